//! Measures what the account costs: `cargo run --release -p hipflex-ledger --example cost`.
//!
//! Nanoseconds for reserve + commit + release, for a view and for a refusal, with 1 to 1,024 claimed
//! slots (all in this process, which makes no difference to a sum), and for joining; then how long it
//! takes each of 256 processes to join that all start at once.

use std::io::{Read, Write};
use std::time::Instant;

use hipflex_ledger::{BudgetName, GpuKey, GpuSpec, Identity, JoinError, Limit, Member, Place};

/// The least of several averages, in nanoseconds for each call.
fn measure(calls: u32, mut call: impl FnMut()) -> f64 {
    let mut least = f64::INFINITY;
    for _ in 0..7 {
        let started = Instant::now();
        for _ in 0..calls {
            call();
        }
        least = least.min(started.elapsed().as_nanos() as f64 / f64::from(calls));
    }
    least
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir_in("/dev/shm")?;
    let place = Place::new(directory.path(), false);
    let budget = BudgetName::new("cost")?;
    let gpus = [GpuSpec {
        key: GpuKey(0x300),
        limit: Limit::Bytes(1 << 40),
        board_bytes: 1 << 36,
    }];
    let identity = Identity {
        comm: b"cost".to_vec(),
        library_version: "0".to_owned(),
    };
    let join = || -> Result<Member, JoinError> {
        Ok(Member::join(&place, &budget, &gpus, &identity)?.member)
    };
    let mut members = vec![join()?];
    println!(
        "{:>6} {:>26} {:>10} {:>12} {:>10}",
        "slots", "reserve+commit+release ns", "view ns", "refusal us", "join us"
    );
    for slots in [1, 8, 64, 512, 1024] {
        let started = Instant::now();
        let joined = slots - members.len();
        while members.len() < slots {
            members.push(join()?);
        }
        let join_us = started.elapsed().as_micros() as f64 / (joined.max(1)) as f64;
        let (Some(member), Some(other)) = (members.first(), members.last()) else {
            continue;
        };
        let cycle = measure(20_000, || {
            if let Ok(reservation) = member.reserve(0, 4096) {
                member.commit(reservation, 4096);
                member.release(0, 4096);
            }
        });
        let view = measure(20_000, || {
            std::hint::black_box(member.view(0));
        });
        if let Ok(reservation) = other.reserve(0, 1 << 39) {
            other.commit(reservation, 1 << 39);
        }
        let refusal = measure(50, || {
            std::hint::black_box(member.reserve(0, 1 << 40).is_err());
        });
        other.release(0, 1 << 39);
        println!(
            "{slots:>6} {cycle:>26.0} {view:>10.0} {:>12.1} {join_us:>10.1}",
            refusal / 1000.0
        );
    }
    drop(members);
    join_at_once(&place, &gpus, &identity)
}

fn join_at_once(
    place: &Place,
    gpus: &[GpuSpec],
    identity: &Identity,
) -> Result<(), Box<dyn std::error::Error>> {
    const PROCESSES: usize = 256;
    let budget = BudgetName::new("at-once")?;
    let (mut times, told) = std::io::pipe()?;
    let (wait, go) = std::io::pipe()?;
    let mut children = Vec::new();
    for _ in 0..PROCESSES {
        // SAFETY: this process has one thread.
        match unsafe { nix::unistd::fork() }? {
            nix::unistd::ForkResult::Parent { child } => children.push(child),
            nix::unistd::ForkResult::Child => {
                drop(go);
                // Ends when the parent closes its end, for all at the same time.
                (&wait).read_exact(&mut [0]).ok();
                let started = Instant::now();
                let joined = Member::join(place, &budget, gpus, identity);
                let us = u32::try_from(started.elapsed().as_micros()).unwrap_or(u32::MAX);
                let us = if joined.is_ok() { us } else { u32::MAX };
                (&told).write_all(&us.to_le_bytes()).ok();
                // Stays a member until all are.
                std::thread::sleep(std::time::Duration::from_secs(2));
                std::process::exit(0);
            }
        }
    }
    drop((go, told));
    let mut all = Vec::new();
    times.read_to_end(&mut all)?;
    let mut all: Vec<u32> = all
        .chunks_exact(4)
        .filter_map(|bytes| Some(u32::from_le_bytes(bytes.try_into().ok()?)))
        .collect();
    all.sort_unstable();
    let at =
        |part: usize| all.get(all.len() * part / 100).copied().unwrap_or_default() as f64 / 1000.0;
    println!(
        "{} processes join at once: p50 {:.1} ms, p99 {:.1} ms",
        all.len(),
        at(50),
        at(99)
    );
    for child in children {
        nix::sys::wait::waitpid(child, None)?;
    }
    Ok(())
}
