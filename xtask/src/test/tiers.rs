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
        if fetched.runtimes.is_empty() {
            self.excluded.push("package(hipflex-e2e)".into());
        }
        for generation in GENERATIONS {
            if fetched
                .runtimes
                .iter()
                .any(|r| r.generation() == generation)
            {
                continue;
            }
            let (major, minor) = (generation / 100, generation % 100);
            self.excluded
                .push(format!("test(/::hip_{major}_{minor}$/)"));
            self.skips.push(format!(
                "HIP {major}.{minor}: no suite offers it any more, see above"
            ));
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

    /// llama.cpp was asked for, and is there: with the runtime that it brings.
    pub(super) fn with_llama(&mut self, runtime: &Runtime) {
        self.runs
            .push(format!("llama.cpp with {}", runtime.package));
    }

    /// llama.cpp was not asked for.
    pub(super) fn without_llama(&mut self) {
        self.excluded.push("binary(llama)".into());
        self.skips
            .push("llama.cpp: `cargo xtask test --llama` runs it (a download of 0.5 GB)".into());
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

    /// What else cannot be looked at, if there is a reason.
    pub(super) fn without(&mut self, what: &str, reason: Option<String>) {
        self.skips
            .extend(reason.map(|reason| format!("{what}: {reason}")));
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
    use super::*;

    fn fetched(versions: &[&str]) -> Fetched {
        let runtime = |version: &&str| Runtime {
            version: version.to_string(),
            suite: String::new(),
            package: String::new(),
            root: "".into(),
            library: String::new(),
            loader: None,
            library_dirs: vec![],
        };
        Fetched {
            runtimes: versions.iter().map(runtime).collect(),
            skipped: vec![],
        }
    }

    #[test]
    fn what_cannot_run_is_left_out_and_said() {
        let mut plan = Plan::default();
        assert_eq!(plan.filter(), "all()");
        plan.without_node(&["root".into()]);
        assert!(plan.filter().contains("not (package(hipflex-e2e))"));
        assert_eq!(plan.skips.len(), 1);
        plan.without("nothing", None);
        assert_eq!(plan.skips.len(), 1);
    }

    #[test]
    fn a_generation_that_no_suite_offers_is_left_out_and_said() {
        let mut plan = Plan::default();
        plan.with_runtimes(&fetched(&["5.2.3", "5.7.1", "6.4.3", "7.2.4"]));
        assert_eq!((plan.filter().as_str(), plan.skips.len()), ("all()", 0));
        let mut plan = Plan::default();
        plan.with_runtimes(&fetched(&["5.2.3", "5.7.1", "7.2.4", "8.0.0"]));
        assert!(plan.filter().contains("hip_6_4"));
        assert!(plan.skips.iter().any(|s| s.contains("HIP 6.4")));
        assert!(
            plan.skips.iter().any(|s| s.contains("HIP 8.0.0")),
            "{:?}",
            plan.skips
        );
    }

    #[test]
    fn llama_runs_only_when_it_is_asked_for() {
        let mut plan = Plan::default();
        plan.without_llama();
        assert!(plan.filter().contains("not (binary(llama))"));
        assert!(plan.skips.iter().any(|s| s.contains("--llama")));
    }

    #[test]
    fn without_any_runtime_no_suite_runs() {
        let mut plan = Plan::default();
        plan.with_runtimes(&fetched(&[]));
        assert!(plan.filter().contains("package(hipflex-e2e)"));
    }
}
