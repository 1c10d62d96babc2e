//! Budgets as they may be found, for the tests of both views.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hipflex_ledger::{Alive, GpuKey, Limit};

use crate::status::model::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const NOW: u64 = 1_800_000_000;
const FIRST: GpuKey = GpuKey(0x0300);
const SECOND: GpuKey = GpuKey(0x8300);

fn me() -> Owner {
    Owner {
        uid: 1000,
        name: None,
        is_me: true,
        shared: false,
    }
}

fn account(
    key: GpuKey,
    limit: Limit,
    booked: u64,
    pending: u64,
    overhead: Option<u64>,
) -> GpuAccount {
    let charged = booked + pending + overhead.unwrap_or(0);
    GpuAccount {
        key,
        limit,
        board_bytes: Some(64 * GIB),
        booked,
        pending,
        overhead,
        charged,
        free: match limit {
            Limit::Unlimited => None,
            Limit::Bytes(bytes) => Some(bytes.saturating_sub(charged)),
        },
    }
}

fn process(pid: Pid, comm: &str, age: u64, gpus: &[Holding]) -> Process {
    Process {
        pid,
        alive: Alive::Yes,
        uid: 1000,
        comm: comm.to_owned(),
        library_version: String::from("0.1.0"),
        hooks: BTreeMap::from([("detour", 1), ("table", 26)]),
        since: NOW - age,
        gpus: gpus.to_vec(),
        allocations: 120,
        frees: 100,
        refusals: 0,
        last_refusal: None,
    }
}

fn holding(booked: u64, peak: u64) -> Holding {
    Holding {
        booked,
        peak,
        ..Holding::default()
    }
}

fn budget(name: &str, owner: Owner, gpus: Vec<GpuAccount>, processes: Vec<Process>) -> Budget {
    Budget {
        name: name.to_owned(),
        path: PathBuf::from(match owner.shared {
            true => format!("/dev/shm/hipflex/shared/{name}"),
            false => format!("/dev/shm/hipflex/{}/{name}", owner.uid),
        }),
        owner,
        created: NOW - 4000,
        anomalies: 0,
        reaped: 1,
        gpus,
        processes,
        returned: Returned::default(),
    }
}

/// Nothing is running, and root asks.
pub(crate) fn empty() -> Status {
    Status {
        now: NOW,
        sees_all: true,
        ..Status::default()
    }
}

/// Nothing is running on a machine with GPUs, of which one has no name and tells nothing.
pub(crate) fn idle() -> Status {
    let board = |key, name: &str, vram, used| Board {
        key,
        name: name.to_owned(),
        vram,
        used,
        promised: 0,
    };
    Status {
        boards: vec![
            board(FIRST, "AMD Instinct MI210", Some(64 * GIB), Some(12 * MIB)),
            board(SECOND, "", None, None),
        ],
        ..empty()
    }
}

/// One budget with two processes on one GPU, and what was cleaned up on the way.
pub(crate) fn busy() -> Status {
    let mut refused = process(Pid::Here(12_346), "infer", 7384, &[holding(512 * MIB, GIB)]);
    refused.refusals = 3;
    refused.last_refusal = Some(Refusal {
        gpu: FIRST,
        bytes: 3 * GIB,
        api: String::from("hipMalloc"),
        at: NOW - 12,
        why: Why::OverLimit(Figures {
            limit: Limit::Bytes(4 * GIB),
            held: 512 * MIB,
            others: 2 * GIB + 142 * MIB,
            overhead: 0,
            available: Some(GIB + 370 * MIB),
        }),
    });
    let mut training = process(
        Pid::Here(12_345),
        "python3",
        192,
        &[holding(2 * GIB, 3 * GIB)],
    );
    training.gpus[0].overhead = Some(140 * MIB);
    training.gpus[0].own_limit = Some(Limit::Bytes(3 * GIB));
    let gpu = account(
        FIRST,
        Limit::Bytes(4 * GIB),
        5 * GIB / 2,
        2 * MIB,
        Some(140 * MIB),
    );
    let mut team = budget("team", me(), vec![gpu], vec![training, refused]);
    team.returned = Returned {
        processes: 1,
        bytes: 2 * GIB,
    };
    Status {
        now: NOW,
        budgets: vec![team],
        removed: vec![Removed {
            name: String::from("app-77-0badcafe"),
            owner: me(),
            returned: Returned {
                processes: 2,
                bytes: 3 * GIB + 1,
            },
        }],
        boards: vec![Board {
            key: FIRST,
            name: String::from("AMD Instinct MI210"),
            vram: Some(64 * GIB),
            used: Some(3 * GIB),
            promised: 4 * GIB,
        }],
        ..Status::default()
    }
}

/// Several users, GPUs and PID namespaces; names that could break a table; files that are no ledgers.
pub(crate) fn several() -> Status {
    let holdings = [
        holding(5 * GIB + 1, 6 * GIB),
        Holding::default(),
        holding(0, 7 * GIB),
    ];
    let wide = process(Pid::Here(9), "训练任务🚀", 86_400 * 3 + 3600 * 5, &holdings);
    let mut hostile = process(
        Pid::Here(4_194_304),
        "a\u{1b}[31m\tb",
        5,
        &[Holding::default(); 3],
    );
    hostile.refusals = 1;
    hostile.last_refusal = Some(Refusal {
        gpu: SECOND,
        bytes: u64::MAX,
        api: String::from("hipMalloc"),
        at: NOW + 5,
        why: Why::TooLarge,
    });
    let third = GpuKey(0x2000_0300);
    let gpus = vec![
        account(FIRST, Limit::Bytes(48 * GIB), 5 * GIB + 1, 0, None),
        account(SECOND, Limit::Unlimited, 0, 0, None),
        account(third, Limit::Bytes(8 * GIB), 0, 0, None),
    ];
    let mine = budget("train", me(), gpus, vec![wide, hostile]);

    let alice = Owner {
        uid: 1001,
        name: Some(String::from("alice")),
        is_me: false,
        shared: false,
    };
    let mut inside = process(Pid::Inside(7), "", 60, &[holding(17, 17)]);
    inside.alive = Alive::Unknown;
    let watched = account(FIRST, Limit::Unlimited, 17, 0, None);
    let container = budget("container", alice, vec![watched], vec![inside]);

    let shared = Owner {
        uid: 1002,
        name: None,
        is_me: false,
        shared: true,
    };
    let full = account(FIRST, Limit::Bytes(32 * GIB), 32 * GIB, 0, Some(GIB));
    let mut all = budget("everyone", shared, vec![full], Vec::new());
    all.anomalies = 2;

    Status {
        now: NOW,
        budgets: vec![mine, container, all],
        unusable: vec![Unusable {
            path: PathBuf::from("/dev/shm/hipflex/1000/old"),
            reason: String::from("its layout is version 7, this program knows version 1"),
        }],
        problems: vec![String::from(
            "/dev/shm/hipflex/1000/.lock has been locked for 2000 ms",
        )],
        boards: vec![Board {
            key: FIRST,
            name: String::from("AMD Instinct MI210"),
            vram: Some(64 * GIB),
            used: None,
            promised: 80 * GIB,
        }],
        ..Status::default()
    }
}
