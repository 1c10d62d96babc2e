//! The page itself.

use super::Release;
use super::hooks::Hook;
use super::reasons::{Group, Reasons, Verdict};

const HEAD: &str = "\
# Which functions of HIP are hooked

Every function of the releases below that allocates or frees memory of a device, or whose name looks like it, and every
other function that is hooked. This page is made by `cargo xtask coverage`; `cargo xtask check` fails when it is out of date,
or when a release has a function of this kind that it does not know. The reasons stand in `tests/hook-coverage.toml`.

* **hooked**: calls are seen, and do to the account what the column says: [`hook_table.rs`](../enforcer/src/hook_table.rs);
* **covered**: not hooked, and counted all the same: by another function's hook, or as overhead, which is what the
  driver holds for the process beyond its bookings;
* **not**: not hooked on purpose;
* **gap**: memory that is not counted, or not always.

";

pub(super) fn make(releases: &[Release], hooks: &[Hook], reasons: &Reasons) -> String {
    let all = releases.iter().flat_map(|release| &release.exports);
    let mut names: Vec<&str> = all.map(|export| export.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let mut text = String::from(HEAD);
    text.push_str("| function |");
    for release in releases {
        text.push_str(&format!(" {} |", release.name));
    }
    text.push_str(" is | how, or why not |\n|---|");
    text.push_str(&"---|".repeat(releases.len() + 2));
    text.push('\n');
    let mut counts = [0; 4];
    for name in names {
        let (count, verdict, how) = match hooks.iter().find(|hook| hook.name == name) {
            Some(hook) => (0, "hooked", hook.kind.clone()),
            None if !reasons.matches(name) => continue,
            None => match reasons.of(name) {
                Some(group) => told(group),
                None => continue,
            },
        };
        if let Some(count) = counts.get_mut(count) {
            *count += 1;
        }
        text.push_str(&format!("| `{name}` |"));
        for release in releases {
            text.push_str(if release.has(name) { " x |" } else { " |" });
        }
        text.push_str(&format!(" {verdict} | {how} |\n"));
    }
    let [hooked, covered, not, gap] = counts;
    text.push_str(&format!(
        "\n{hooked} are hooked, {covered} covered, {not} not hooked on purpose, {gap} are gaps.\n"
    ));
    text
}

/// Which count it adds to, and what is told of it.
fn told(group: &Group) -> (usize, &'static str, String) {
    let why = group.why.clone();
    match (group.verdict, &group.by) {
        (Verdict::Covered, Some(by)) if by == "overhead" => {
            (1, "covered", format!("as overhead: {why}"))
        }
        (Verdict::Covered, by) => {
            let by = by.as_deref().unwrap_or_default();
            (1, "covered", format!("by `{by}`: {why}"))
        }
        (Verdict::Not, _) => (2, "not", why),
        (Verdict::Gap, _) => (3, "**gap**", why),
    }
}
