//! Why functions that may allocate or free are not hooked.

use anyhow::{Result, ensure};
use serde::Deserialize;

use super::Release;
use super::hooks::Hook;

/// What `tests/hook-coverage.toml` says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reasons {
    /// What is in the names of functions that may allocate or free.
    patterns: Vec<String>,
    #[serde(rename = "group")]
    pub(super) groups: Vec<Group>,
}

/// Functions that are not hooked for one reason.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Group {
    pub(super) verdict: Verdict,
    /// A hooked function, or `overhead`.
    pub(super) by: Option<String>,
    pub(super) why: String,
    functions: Vec<String>,
}

#[derive(Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Covered,
    Not,
    Gap,
}

impl Reasons {
    pub(super) fn parse(text: &str) -> Result<Reasons> {
        let reasons: Reasons = toml::from_str(text)?;
        for group in &reasons.groups {
            ensure!(
                group.by.is_some() == (group.verdict == Verdict::Covered),
                "`by` belongs to `covered`: {}",
                group.why
            );
        }
        Ok(reasons)
    }

    pub(super) fn matches(&self, function: &str) -> bool {
        self.patterns
            .iter()
            .any(|pattern| function.contains(pattern))
    }

    /// The group of a function.
    pub(super) fn of(&self, function: &str) -> Option<&Group> {
        self.groups
            .iter()
            .find(|group| group.functions.iter().any(|name| name == function))
    }

    /// All that is not known, known twice, or known though there is nothing to know.
    pub(super) fn faults(&self, releases: &[Release], hooks: &[Hook]) -> Vec<String> {
        let mut faults = Vec::new();
        let is_hooked = |name: &str| hooks.iter().any(|hook| hook.name == name);
        let is_exported = |name: &str| releases.iter().any(|release| release.has(name));
        for release in releases {
            for export in &release.exports {
                let name = &export.name;
                if self.matches(name) && !is_hooked(name) && self.of(name).is_none() {
                    faults.push(format!(
                        "HIP {} exports {name}, which may allocate or free: hook it, or say in {} why not",
                        release.name,
                        super::REASONS
                    ));
                }
            }
        }
        for hook in hooks {
            if !is_exported(&hook.name) {
                faults.push(format!("{} is hooked, and no runtime has it", hook.name));
            }
        }
        for group in &self.groups {
            if let Some(by) = &group.by
                && by != "overhead"
                && !is_hooked(by)
            {
                faults.push(format!("`by = {by:?}`: that is not hooked"));
            }
            for name in &group.functions {
                let groups = self.groups.iter().flat_map(|group| &group.functions);
                let why = if is_hooked(name) {
                    "is hooked"
                } else if !is_exported(name) {
                    "is in no runtime"
                } else if !self.matches(name) {
                    "matches no pattern"
                } else if groups.filter(|other| *other == name).count() > 1 {
                    "is listed twice"
                } else {
                    continue;
                };
                faults.push(format!("{}: {name} {why}", super::REASONS));
            }
        }
        faults.dedup();
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hipflex_e2e::exports::Export;

    fn release(names: &[&str]) -> Release {
        let exports = names.iter().map(|name| Export {
            name: (*name).into(),
            version: "hip_4.2".into(),
            slot: None,
        });
        Release {
            name: "9.9".into(),
            exports: exports.collect(),
        }
    }

    fn hook(name: &str) -> Hook {
        Hook {
            name: name.into(),
            kind: "allocates".into(),
        }
    }

    fn reasons(functions: &[&str]) -> Reasons {
        let text = format!(
            "patterns = [\"lloc\"]\n[[group]]\nverdict = \"not\"\nwhy = \"host\"\nfunctions = {functions:?}\n"
        );
        Reasons::parse(&text).unwrap()
    }

    #[test]
    fn a_new_allocator_is_noticed() {
        let hooks = [hook("hipMalloc")];
        let known = release(&["hipMalloc", "hipHostAlloc", "hipInit"]);
        assert!(
            reasons(&["hipHostAlloc"])
                .faults(&[known], &hooks)
                .is_empty()
        );
        let new = release(&["hipMalloc", "hipHostAlloc", "hipAllocBetter"]);
        let faults = reasons(&["hipHostAlloc"]).faults(&[new], &hooks);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].contains("hipAllocBetter") && faults[0].contains("9.9"));
    }

    #[test]
    fn what_is_out_of_date_is_noticed() {
        let releases = [release(&["hipMalloc", "hipHostAlloc", "hipInit"])];
        let faults = |functions: &[&str], hooked: &[&str]| {
            let hooks: Vec<_> = hooked.iter().map(|name| hook(name)).collect();
            reasons(functions).faults(&releases, &hooks)
        };
        for (functions, hooked) in [
            (&["hipHostAlloc", "hipGone"][..], &["hipMalloc"][..]),
            (&["hipHostAlloc", "hipInit"], &["hipMalloc"]),
            (&["hipHostAlloc", "hipHostAlloc"], &["hipMalloc"]),
            (&["hipHostAlloc"], &["hipMalloc", "hipHostAlloc"]),
            (&["hipHostAlloc"], &["hipMalloc", "hipGone"]),
        ] {
            assert!(
                !faults(functions, hooked).is_empty(),
                "{functions:?} {hooked:?}"
            );
        }
    }

    #[test]
    fn what_covers_is_named() {
        let text =
            |rest: &str| format!("patterns = []\n[[group]]\nwhy = \"x\"\nfunctions = []\n{rest}");
        assert!(Reasons::parse(&text("verdict = \"covered\"")).is_err());
        assert!(Reasons::parse(&text("verdict = \"gap\"\nby = \"overhead\"")).is_err());
        let unknown = Reasons::parse(&text("verdict = \"covered\"\nby = \"hipX\"")).unwrap();
        assert_eq!(unknown.faults(&[], &[]).len(), 1);
    }
}
