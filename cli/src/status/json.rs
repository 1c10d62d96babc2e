//! The view for programs: one JSON document, described in docs/status-json.md.
//!
//! The structs here *are* the format. A field may be added at any time; removing or changing one
//! needs a new [`FORMAT_VERSION`], and the document must say so.

use std::collections::BTreeMap;

use hipflex_ledger::{Alive, Limit};
use serde::Serialize;

use crate::status::model::{self, Pid, Status, Why};

/// The version of the format.
const FORMAT_VERSION: u32 = 1;

#[derive(Serialize)]
struct Document {
    version: u32,
    generated_at: u64,
    budgets: Vec<Budget>,
    removed: Vec<Removed>,
    unusable: Vec<Unusable>,
    boards: Vec<Board>,
}

#[derive(Serialize)]
struct Budget {
    name: String,
    uid: u32,
    shared: bool,
    path: String,
    created_at: u64,
    anomalies: u64,
    reaped_processes: u64,
    returned: Returned,
    gpus: Vec<Gpu>,
    processes: Vec<Process>,
}

#[derive(Serialize)]
struct Gpu {
    bdf: String,
    limit_bytes: Option<u64>,
    board_bytes: Option<u64>,
    booked_bytes: u64,
    pending_bytes: u64,
    overhead_bytes: Option<u64>,
    charged_bytes: u64,
    free_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Process {
    pid: Option<u32>,
    inner_pid: Option<u32>,
    alive: Option<bool>,
    uid: u32,
    comm: String,
    library_version: String,
    hooks: BTreeMap<&'static str, usize>,
    joined_at: u64,
    allocations: u64,
    frees: u64,
    refusals: u64,
    last_refusal: Option<Refusal>,
    gpus: Vec<Holding>,
}

#[derive(Serialize)]
struct Holding {
    bdf: String,
    limit_bytes: Option<u64>,
    booked_bytes: u64,
    pending_bytes: u64,
    overhead_bytes: Option<u64>,
    peak_bytes: u64,
}

#[derive(Serialize)]
struct Refusal {
    bdf: String,
    bytes: u64,
    api: String,
    at: u64,
    reason: Option<&'static str>,
    limit_bytes: Option<u64>,
    held_bytes: Option<u64>,
    others_bytes: Option<u64>,
    available_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Returned {
    processes: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct Removed {
    name: String,
    uid: u32,
    shared: bool,
    returned: Returned,
}

#[derive(Serialize)]
struct Unusable {
    path: String,
    reason: String,
}

#[derive(Serialize)]
struct Board {
    bdf: String,
    name: String,
    vram_bytes: Option<u64>,
    used_bytes: Option<u64>,
    limits_bytes: u64,
    overcommitted: bool,
}

/// The document, with a line end behind it.
pub(crate) fn render(status: &Status) -> String {
    let document = Document {
        version: FORMAT_VERSION,
        generated_at: status.now,
        budgets: status.budgets.iter().map(budget).collect(),
        removed: status.removed.iter().map(removed).collect(),
        unusable: status.unusable.iter().map(unusable).collect(),
        boards: status.boards.iter().map(board).collect(),
    };
    // Numbers, strings and lists of them always have a JSON form; writing to memory does not fail.
    let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text.push('\n');
    text
}

fn budget(budget: &model::Budget) -> Budget {
    Budget {
        name: budget.name.clone(),
        uid: budget.owner.uid,
        shared: budget.owner.shared,
        path: budget.path.to_string_lossy().into_owned(),
        created_at: budget.created,
        anomalies: budget.anomalies,
        reaped_processes: budget.reaped,
        returned: returned(budget.returned),
        gpus: budget.gpus.iter().map(gpu).collect(),
        processes: budget
            .processes
            .iter()
            .map(|each| process(each, &budget.gpus))
            .collect(),
    }
}

fn gpu(account: &model::GpuAccount) -> Gpu {
    Gpu {
        bdf: account.key.to_string(),
        limit_bytes: bytes(account.limit),
        board_bytes: account.board_bytes,
        booked_bytes: account.booked,
        pending_bytes: account.pending,
        overhead_bytes: account.overhead,
        charged_bytes: account.charged,
        free_bytes: account.free,
    }
}

fn process(process: &model::Process, gpus: &[model::GpuAccount]) -> Process {
    let (pid, inner_pid) = match process.pid {
        Pid::Here(pid) => (Some(pid), None),
        Pid::Inside(pid) => (None, Some(pid)),
    };
    Process {
        pid,
        inner_pid,
        alive: match process.alive {
            Alive::Yes => Some(true),
            Alive::No => Some(false),
            Alive::Unknown => None,
        },
        uid: process.uid,
        comm: process.comm.clone(),
        library_version: process.library_version.clone(),
        hooks: process.hooks.clone(),
        joined_at: process.since,
        allocations: process.allocations,
        frees: process.frees,
        refusals: process.refusals,
        last_refusal: process.last_refusal.as_ref().map(refusal),
        gpus: gpus
            .iter()
            .zip(&process.gpus)
            .map(|(gpu, held)| holding(gpu, held))
            .collect(),
    }
}

fn holding(gpu: &model::GpuAccount, holding: &model::Holding) -> Holding {
    Holding {
        bdf: gpu.key.to_string(),
        limit_bytes: bytes(holding.own_limit.unwrap_or(gpu.limit)),
        booked_bytes: holding.booked,
        pending_bytes: holding.pending,
        overhead_bytes: holding.overhead,
        peak_bytes: holding.peak,
    }
}

fn refusal(refusal: &model::Refusal) -> Refusal {
    let (reason, figures) = match refusal.why {
        Why::OverLimit(figures) => (Some("over-limit"), Some(figures)),
        Why::TooLarge => (Some("too-large"), None),
        Why::Unknown => (None, None),
    };
    Refusal {
        bdf: refusal.gpu.to_string(),
        bytes: refusal.bytes,
        api: refusal.api.clone(),
        at: refusal.at,
        reason,
        limit_bytes: figures.and_then(|figures| bytes(figures.limit)),
        held_bytes: figures.map(|figures| figures.held.saturating_add(figures.overhead)),
        others_bytes: figures.map(|figures| figures.others),
        available_bytes: figures.and_then(|figures| figures.available),
    }
}

fn returned(returned: model::Returned) -> Returned {
    Returned {
        processes: returned.processes,
        bytes: returned.bytes,
    }
}

fn removed(removed: &model::Removed) -> Removed {
    Removed {
        name: removed.name.clone(),
        uid: removed.owner.uid,
        shared: removed.owner.shared,
        returned: returned(removed.returned),
    }
}

fn unusable(unusable: &model::Unusable) -> Unusable {
    Unusable {
        path: unusable.path.to_string_lossy().into_owned(),
        reason: unusable.reason.clone(),
    }
}

fn board(board: &model::Board) -> Board {
    Board {
        bdf: board.key.to_string(),
        name: board.name.clone(),
        vram_bytes: board.vram,
        used_bytes: board.used,
        limits_bytes: board.promised,
        overcommitted: board.is_overcommitted(),
    }
}

fn bytes(limit: Limit) -> Option<u64> {
    match limit {
        Limit::Unlimited => None,
        Limit::Bytes(bytes) => Some(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::samples;
    use std::collections::BTreeSet;

    #[test]
    fn documents() {
        insta::assert_snapshot!("empty", render(&samples::empty()));
        insta::assert_snapshot!("busy", render(&samples::busy()));
        insta::assert_snapshot!("several", render(&samples::several()));
    }

    /// The document promises that unknown is null and that sizes are whole bytes.
    #[test]
    fn unknown_is_null_and_sizes_are_exact() {
        let document: serde_json::Value =
            serde_json::from_str(&render(&samples::several())).unwrap();
        assert_eq!(document["version"], 1);
        let container = &document["budgets"][1];
        assert!(container["gpus"][0]["limit_bytes"].is_null());
        assert!(container["gpus"][0]["free_bytes"].is_null());
        assert!(container["gpus"][0]["overhead_bytes"].is_null());
        assert!(container["processes"][0]["pid"].is_null());
        assert_eq!(container["processes"][0]["inner_pid"], 7);
        assert!(container["processes"][0]["alive"].is_null());
        assert_eq!(
            document["budgets"][0]["gpus"][0]["booked_bytes"],
            5_368_709_121_u64
        );
        assert_eq!(document["boards"][0]["overcommitted"], true);
    }

    /// The names of all fields, with those above them.
    fn fields(value: &serde_json::Value, above: &str, names: &mut BTreeSet<String>) {
        match value {
            serde_json::Value::Object(object) => {
                for (name, value) in object {
                    let name = format!("{above}.{name}");
                    fields(value, &name, names);
                    names.insert(name);
                }
            }
            serde_json::Value::Array(values) => {
                values.iter().for_each(|value| fields(value, above, names));
            }
            _ => {}
        }
    }

    #[test]
    fn the_document_on_the_format_has_every_field() {
        let page = include_str!("../../../docs/status-json.md");
        let example = page
            .split("```json")
            .nth(1)
            .unwrap()
            .split("```")
            .next()
            .unwrap();
        let (mut documented, mut rendered) = (BTreeSet::new(), BTreeSet::new());
        fields(&serde_json::from_str(example).unwrap(), "", &mut documented);
        let mut status = samples::busy();
        status.removed.clear();
        fields(
            &serde_json::from_str(&render(&status)).unwrap(),
            "",
            &mut rendered,
        );
        assert_eq!(documented, rendered, "the example in docs/status-json.md");

        for status in [samples::busy(), samples::several()] {
            fields(
                &serde_json::from_str(&render(&status)).unwrap(),
                "",
                &mut rendered,
            );
        }
        for name in rendered {
            let field = name.rsplit('.').next().unwrap();
            assert!(
                page.contains(&format!("`{field}`")),
                "{field} is not explained"
            );
        }
    }
}
