//! The tiers of tests, and which of them cannot run here.

use hipflex_e2e::runtime::Runtime;

use crate::rocm::Fetched;

/// The generations of HIP that the suites have a test for, as `hipflex_e2e::on_each_runtime`
/// names them.
const GENERATIONS: [u32; 4] = [502, 507, 604, 702];

/// What is run and what is not.
#[derive(Default)]
pub(super) struct Plan {
    runs: Vec<String>,
    skips: Vec<String>,
    /// nextest expressions of tests that are left out.
    excluded: Vec<String>,
}

impl Plan {
    /// The emulated node can run: with these runtimes.
    pub(super) fn with_runtimes(&mut self, fetched: &Fetched) {
        for runtime in &fetched.runtimes {
            self.runs
                .push(format!("HIP {} ({})", runtime.version, runtime.package));
        }
        self.skips.extend(
            fetched
                .skipped
                .iter()
                .map(|why| format!("real runtimes: {why}")),
        );
        for generation in GENERATIONS {
            if fetched
                .runtimes
                .iter()
                .map(Runtime::generation)
                .any(|g| g == generation)
            {
                continue;
            }
            let name = format!("hip_{}_{}", generation / 100, generation % 100);
            self.excluded.push(format!("test(/::{name}$/)"));
        }
        for runtime in &fetched.runtimes {
            if !GENERATIONS.contains(&runtime.generation()) {
                self.skips.push(format!(
                    "HIP {}: fetched, but the suites have no tests for this generation yet",
                    runtime.version
                ));
            }
        }
    }

    /// The emulated node cannot run, so neither can any real runtime.
    pub(super) fn without_node(&mut self, missing: &[String]) {
        self.skips.push(format!(
            "emulated node and real runtimes: needs {}",
            missing.join("; ")
        ));
        self.excluded.push("package(hipflex-e2e)".into());
        self.excluded
            .push("package(kfd-emulator) and kind(test)".into());
    }

    /// Whether there is a real GPU.
    pub(super) fn for_real_gpu(&mut self, present: bool) {
        if present {
            self.skips.push(
                "real GPU: no suite for it yet; `cargo xtask demo` runs on it and checks each step"
                    .into(),
            );
            // It shows what happens on a machine without a GPU.
            self.excluded.push("test(without_a_gpu)".into());
        } else {
            self.skips
                .push("real GPU: this machine has no /dev/kfd".into());
        }
    }

    /// The expression for all that is run.
    pub(super) fn filter(&self) -> String {
        self.excluded.iter().fold("all()".to_string(), |all, out| {
            format!("{all} and not ({out})")
        })
    }

    /// Before the tests: what will run, what will not.
    pub(super) fn announce(&self) {
        println!(
            "tiers: pure, stand-in runtime{}",
            self.runs
                .iter()
                .map(|r| format!(", {r}"))
                .collect::<String>()
        );
        for skip in &self.skips {
            println!("SKIPPED: {skip}");
        }
    }

    /// After the tests: what did not run.
    pub(super) fn remind(&self) {
        match self.skips.len() {
            0 => println!("every tier was run"),
            n => println!("{n} not run:"),
        }
        for skip in &self.skips {
            println!("  SKIPPED: {skip}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Plan;

    #[test]
    fn what_cannot_run_is_left_out_and_said() {
        let mut plan = Plan::default();
        assert_eq!(plan.filter(), "all()");
        plan.without_node(&["root".into()]);
        assert!(plan.filter().contains("not (package(hipflex-e2e))"));
        assert_eq!(plan.skips.len(), 1);
    }
}
