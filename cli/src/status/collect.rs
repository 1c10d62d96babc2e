//! Looking everything up: the ledgers, the PIDs as they are known here, and the boards.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};

use hipflex_kfd::cu::CuMask;
use hipflex_kfd::{Gpu, Root, Topology, vram_used};
use hipflex_ledger::{
    BudgetName, CellView, ChangeError, DenialReason, GpuKey, HookEngine, LastRefusal, Ledger,
    LedgerSnapshot, Limit, Listed, MemberSnapshot, Place,
};
use nix::unistd::{Uid, User, geteuid};

use crate::status::model::{
    Board, Budget, Figures, GpuAccount, Holding, Owner, Pid, Process, Refusal, Removed, Returned,
    Status, Unusable, Why,
};

/// The inode of the initial PID namespace (`PROC_PID_INIT_INO`, `include/linux/proc_ns.h`).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Looks at every ledger that this user may see, or at those of one name. Dead processes are reaped
/// and empty ledgers removed on the way.
pub(crate) fn collect(place: &Place, only: Option<BudgetName>, root: &Root) -> Status {
    let mut status = Status {
        now: seconds(SystemTime::now()),
        sees_all: geteuid().is_root(),
        only: only.map(|name| name.to_string()),
        ..Status::default()
    };
    let listed = Ledger::list(place).unwrap_or_else(|error| {
        let (path, reason) = (place.root().to_owned(), error.to_string());
        status.unusable.push(Unusable { path, reason });
        Vec::new()
    });
    let here = pid_namespace();
    for entry in listed {
        let name = entry.path.file_name().and_then(OsStr::to_str);
        if status.only.is_none() || name == status.only.as_deref() {
            visit(entry, here, &mut status);
        }
    }
    status.budgets.sort_by(|a, b| {
        let key = |budget: &Budget| (!budget.owner.is_me, budget.owner.uid, budget.name.clone());
        key(a).cmp(&key(b))
    });
    status.boards = boards(root, &status.budgets);
    status
}

fn visit(entry: Listed, here: Option<u64>, status: &mut Status) {
    let Listed { path, uid, ledger } = entry;
    let ledger = match ledger {
        Ok(ledger) => ledger,
        Err(error) => {
            status.unusable.push(Unusable {
                path,
                reason: error.to_string(),
            });
            return;
        }
    };
    let returned = reap(&ledger, &mut status.problems);
    let snapshot = ledger.snapshot();
    let owner = owner(uid.unwrap_or(snapshot.uid), uid.is_none());
    // One that is in use is left alone: removing takes the lock that joining needs.
    if snapshot.members.is_empty() && remove(&ledger, &mut status.problems) {
        status.removed.push(Removed {
            name: snapshot.budget,
            owner,
            returned,
        });
    } else if ledger.is_current() {
        // Once more: somebody may have joined meanwhile.
        status
            .budgets
            .push(budget(ledger.snapshot(), owner, returned, here));
    }
}

/// Returns what dead processes had booked.
fn reap(ledger: &Ledger, problems: &mut Vec<String>) -> Returned {
    match ledger.reap() {
        Ok(reaped) => {
            let bytes = reaped
                .iter()
                .flat_map(|member| &member.returned)
                .map(|(_, bytes)| *bytes);
            Returned {
                processes: reaped.len(),
                bytes: bytes.fold(0, u64::saturating_add),
            }
        }
        // It can be looked at; its dead wait for someone who may reap.
        Err(ChangeError::ReadOnly(_)) => Returned::default(),
        Err(error) => {
            problems.push(error.to_string());
            Returned::default()
        }
    }
}

/// Removes the ledger if nobody uses it.
fn remove(ledger: &Ledger, problems: &mut Vec<String>) -> bool {
    match ledger.remove_if_empty() {
        Ok(removed) => removed,
        Err(ChangeError::ReadOnly(_)) => false,
        Err(error) => {
            problems.push(error.to_string());
            false
        }
    }
}

fn budget(snapshot: LedgerSnapshot, owner: Owner, returned: Returned, here: Option<u64>) -> Budget {
    let mut processes: Vec<Process> = snapshot
        .members
        .iter()
        .map(|member| process(member, &snapshot, here))
        .collect();
    processes.sort_by_key(|process| (process.pid, process.since));
    let gpus = (0..snapshot.gpus.len())
        .map(|index| account(&snapshot, index))
        .collect();
    Budget {
        name: snapshot.budget,
        owner,
        path: snapshot.path,
        created: seconds(snapshot.created),
        anomalies: snapshot.anomalies,
        reaped: snapshot.reaped,
        gpus,
        processes,
        returned,
    }
}

fn account(snapshot: &LedgerSnapshot, index: usize) -> GpuAccount {
    let gpu = &snapshot.gpus[index];
    let total = |figure: fn(&CellView) -> u64| {
        let cells = snapshot
            .members
            .iter()
            .filter_map(|member| member.cells.get(index));
        cells.fold(0_u64, |sum, cell| sum.saturating_add(figure(&cell.figures)))
    };
    let (booked, pending) = (
        total(|figures| figures.live),
        total(|figures| figures.pending),
    );
    let measured = snapshot
        .members
        .iter()
        .filter_map(|member| member.cells.get(index)?.figures.beyond());
    // Of those where it was measured; not known if that is nobody.
    let overhead = measured.reduce(u64::saturating_add);
    // From the same figures as the others, so that they add up in one view.
    let charged = booked
        .saturating_add(pending)
        .saturating_add(overhead.unwrap_or(0));
    GpuAccount {
        key: gpu.key,
        limit: gpu.limit,
        board_bytes: (gpu.board_bytes > 0).then_some(gpu.board_bytes),
        booked,
        pending,
        overhead,
        charged,
        free: match gpu.limit {
            Limit::Unlimited => None,
            Limit::Bytes(limit) => Some(limit.saturating_sub(charged)),
        },
    }
}

fn process(member: &MemberSnapshot, snapshot: &LedgerSnapshot, here: Option<u64>) -> Process {
    let holdings = snapshot
        .gpus
        .iter()
        .zip(&member.cells)
        .map(|(gpu, cell)| Holding {
            booked: cell.figures.live,
            pending: cell.figures.pending,
            overhead: cell.figures.beyond(),
            peak: cell.figures.peak,
            own_limit: (cell.limit != gpu.limit).then_some(cell.limit),
        });
    Process {
        pid: pid(member, here),
        alive: member.alive,
        uid: member.uid,
        comm: member.comm.clone(),
        library_version: member.library_version.clone(),
        hooks: hooks(&member.engines),
        since: seconds(member.joined),
        gpus: holdings.collect(),
        compute_units: member
            .compute_units
            .map(|words| CuMask::from_words(words).to_string()),
        allocations: member.allocations,
        frees: member.frees,
        refusals: member.refusals,
        last_refusal: member.last_refusal.as_ref().map(|refusal| Refusal {
            gpu: refusal.gpu,
            bytes: refusal.size,
            api: refusal.api.clone(),
            at: seconds(refusal.time),
            why: why(refusal),
        }),
    }
}

/// How many there are of each engine.
fn hooks(engines: &[HookEngine]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for engine in engines {
        *counts.entry(engine.name()).or_default() += 1;
    }
    counts
}

fn why(refusal: &LastRefusal) -> Why {
    match refusal.reason {
        Some(DenialReason::OverLimit) => Why::OverLimit(Figures {
            limit: refusal.limit,
            held: refusal.mine,
            others: refusal.others,
            overhead: refusal.overhead,
            available: refusal.available(),
        }),
        Some(DenialReason::TooLarge) => Why::TooLarge,
        // The others are no answer to a request of a member on a GPU of its own.
        _ => Why::Unknown,
    }
}

/// The PID as it is known here, if it can be.
fn pid(member: &MemberSnapshot, here: Option<u64>) -> Pid {
    let same_namespace = here.is_some_and(|here| here == member.pid_namespace);
    let host_pid = member.host_pid != 0 && here == Some(INITIAL_PID_NAMESPACE);
    match member.pid_here {
        Some(pid) => Pid::Here(pid),
        None if same_namespace => Pid::Here(member.pid),
        None if host_pid => Pid::Here(member.host_pid),
        None => Pid::Inside(member.pid),
    }
}

fn pid_namespace() -> Option<u64> {
    fs::metadata("/proc/self/ns/pid")
        .ok()
        .map(|namespace| namespace.ino())
}

fn owner(uid: u32, shared: bool) -> Owner {
    let is_me = uid == geteuid().as_raw();
    let user = if is_me {
        None
    } else {
        User::from_uid(Uid::from_raw(uid)).ok().flatten()
    };
    Owner {
        uid,
        name: user.map(|user| user.name),
        is_me,
        shared,
    }
}

/// The boards, with what was promised of them. Without a driver that tells of them there are none.
fn boards(root: &Root, budgets: &[Budget]) -> Vec<Board> {
    let Ok(topology) = Topology::read(root) else {
        return Vec::new();
    };
    let boards = topology.gpus.iter().map(|gpu| {
        let key = GpuKey(gpu.bdf.to_u64());
        let accounts = budgets.iter().flat_map(|budget| &budget.gpus);
        let limits = accounts
            .filter(|account| account.key == key)
            .map(|account| account.limit);
        let promised = limits.fold(0_u64, |sum, limit| match limit {
            Limit::Unlimited => sum,
            Limit::Bytes(bytes) => {
                sum.saturating_add(bytes.min(gpu.vram_bytes.unwrap_or(u64::MAX)))
            }
        });
        // The driver tells that of whole boards only, and the partitions of one have a part of its memory each.
        let slot = |gpu: &Gpu| (gpu.bdf.domain(), gpu.bdf.bus(), gpu.bdf.device());
        let on_board = topology
            .gpus
            .iter()
            .filter(|other| slot(other) == slot(gpu));
        let is_whole = on_board.count() == 1;
        Board {
            key,
            name: gpu.name.clone(),
            vram: gpu.vram_bytes,
            used: is_whole.then(|| vram_used(root, gpu).ok()).flatten(),
            promised,
        }
    });
    boards.collect()
}

/// Seconds since 1970; a clock before that counts as 0.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hipflex_ledger::Alive;

    /// A process with PID 7 in PID namespace 100.
    fn member(pid_here: Option<u32>, host_pid: u32) -> MemberSnapshot {
        MemberSnapshot {
            compute_units: None,
            slot: 0,
            generation: 1,
            alive: Alive::Yes,
            pid: 7,
            pid_namespace: 100,
            start_time: 0,
            host_pid,
            pid_here,
            uid: 0,
            comm: String::new(),
            library_version: String::new(),
            joined: UNIX_EPOCH,
            engines: Vec::new(),
            allocations: 0,
            frees: 0,
            refusals: 0,
            anomalies: 0,
            last_refusal: None,
            cells: Vec::new(),
        }
    }

    #[test]
    fn a_pid_is_shown_as_ours_only_where_it_is() {
        let outside = Some(INITIAL_PID_NAMESPACE);
        assert_eq!(
            pid(&member(None, 0), Some(100)),
            Pid::Here(7),
            "the same namespace"
        );
        assert_eq!(
            pid(&member(None, 0), Some(101)),
            Pid::Inside(7),
            "another container"
        );
        assert_eq!(
            pid(&member(None, 0), outside),
            Pid::Inside(7),
            "nobody told the host PID"
        );
        assert_eq!(
            pid(&member(None, 4711), outside),
            Pid::Here(4711),
            "an observer told it"
        );
        assert_eq!(
            pid(&member(None, 4711), Some(101)),
            Pid::Inside(7),
            "host PIDs are not valid here"
        );
        assert_eq!(
            pid(&member(Some(42), 4711), Some(101)),
            Pid::Here(42),
            "the kernel told it"
        );
        assert_eq!(
            pid(&member(None, 0), None),
            Pid::Inside(7),
            "/proc is not mounted"
        );
    }
}
