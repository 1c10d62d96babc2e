//! Making a ledger: a draft that gets its name when it is complete.

use std::io;
use std::os::fd::AsFd;

use crate::MAX_GPUS;
use crate::directory::Directory;
use crate::error::JoinError;
use crate::fault::fault_point;
use crate::file::{LedgerFile, Names, boot_id, now};
use crate::gpu::GpuSpec;
use crate::layout::{
    FLAG_SHARED, Geometry, GpuRecord, Header, LIVENESS_LOCKS, LIVENESS_WITNESS, MAGIC, VERSION,
    encode_limit, store_bytes,
};
use crate::liveness::{self, At};
use crate::mapping::Mapping;
use crate::place::BudgetName;
use crate::process::effective_uid;
use crate::sync::Ordering;
use crate::sys;

/// Makes a ledger that has these GPUs and their limits, under the directory's lock. It gets its name
/// when it is complete; one that exists already is an error.
pub(crate) fn create(
    directory: &Directory,
    names: &Names,
    budget: &BudgetName,
    gpus: &[GpuSpec],
    version: &str,
) -> Result<(), JoinError> {
    let result = create_draft(directory, names, budget, gpus, version).and_then(|()| {
        let linked = sys::link_at(directory.fd(), &names.draft, &names.ledger);
        fault_point!(LedgerLinked);
        linked.map_err(|e| {
            directory
                .error("cannot give its name to", &names.ledger, e)
                .into()
        })
    });
    let removed = remove_draft(directory, names);
    result.and(removed)
}

/// Removes what a creator left that died on the way.
pub(crate) fn remove_draft(directory: &Directory, names: &Names) -> Result<(), JoinError> {
    sys::unlink_at(directory.fd(), &names.draft)
        .map_err(|error| directory.error("cannot remove", &names.draft, error).into())
}

fn create_draft(
    directory: &Directory,
    names: &Names,
    budget: &BudgetName,
    gpus: &[GpuSpec],
    version: &str,
) -> Result<(), JoinError> {
    let failed = |attempt: &'static str| {
        move |error: io::Error| JoinError::from(directory.error(attempt, &names.ledger, error))
    };
    let geometry = Geometry::for_gpus(gpus.len()).ok_or_else(|| JoinError::GpuList {
        brought: format!("{} GPUs", gpus.len()),
        max: MAX_GPUS,
    })?;
    let bytes = geometry.file_size() as u64;
    let limit = sys::file_size_limit();
    if bytes > limit {
        let path = directory.path_of(&names.ledger);
        return Err(JoinError::FileSizeLimit { path, bytes, limit });
    }
    remove_draft(directory, names)?;
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    let fd = sys::open_at(
        Some(directory.fd()),
        &names.draft,
        flags,
        directory.file_mode(),
    )
    .map_err(failed("cannot make"))?;
    fault_point!(DraftMade);
    directory
        .settle_owner_and_mode(fd.as_fd())
        .map_err(failed("cannot set the mode of"))?;
    sys::allocate(fd.as_fd(), geometry.file_size()).map_err(|error| {
        match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => JoinError::NoSpace {
                path: directory.path_of(&names.ledger),
                bytes,
            },
            _ => failed("cannot reserve the space of")(error),
        }
    })?;
    fault_point!(DraftAllocated);
    let id = sys::status(fd.as_fd())
        .map_err(failed("cannot examine"))?
        .file;
    let at = At {
        directory: Some(directory.fd()),
        name: &names.draft,
    };
    let liveness = if liveness::probe(at, id) {
        LIVENESS_LOCKS
    } else {
        LIVENESS_WITNESS
    };
    let map =
        Mapping::new(fd.as_fd(), geometry, true).map_err(failed("cannot map the memory of"))?;
    write_gpus(&map, gpus);
    fault_point!(DraftGpusWritten);
    let header = map.header();
    geometry.write(header);
    let boot = boot_id().map_err(failed("cannot read the boot ID for"))?;
    for (word, value) in header.boot_id.iter().zip(boot) {
        word.store(value, Ordering::Relaxed);
    }
    header.flags.store(
        if directory.shared() { FLAG_SHARED } else { 0 },
        Ordering::Relaxed,
    );
    header.liveness.store(liveness, Ordering::Relaxed);
    sign(header, version);
    store_bytes(&header.budget, budget.as_str().as_bytes());
    header.version.store(VERSION, Ordering::Relaxed);
    header.magic.store(MAGIC, Ordering::Release);
    fault_point!(DraftWritten);
    Ok(())
}

/// Makes a ledger anew in its place, under the directory's lock and with all slots free: for one that
/// only another user could remove. Generations go on, so that nobody takes a new member for an old.
pub(crate) fn renew(
    directory: &Directory,
    names: &Names,
    ledger: &LedgerFile,
    gpus: &[GpuSpec],
    version: &str,
) -> Result<(), JoinError> {
    let map = &ledger.map;
    let header = map.header();
    let capacity = map.geometry().gpu_capacity();
    if gpus.len() > capacity {
        return Err(JoinError::CannotReplace {
            path: directory.path_of(&names.ledger),
            owner: ledger.owner,
            capacity: capacity as u64,
            brought: gpus.len(),
        });
    }
    header.gpu_count.word.store(0, Ordering::Release);
    for figure in [
        &header.reaped,
        &header.last_reap_at,
        &header.anomalies,
        &header.reap_cursor,
    ] {
        figure.store(0, Ordering::Relaxed);
    }
    sign(header, version);
    write_gpus(map, gpus);
    Ok(())
}

/// Says who made the ledger, and when.
fn sign(header: &Header, version: &str) {
    let relaxed = Ordering::Relaxed;
    header.uid.store(u64::from(effective_uid()), relaxed);
    header.created_at.store(now(), relaxed);
    header
        .creator_pid
        .store(u64::from(std::process::id()), relaxed);
    store_bytes(&header.creator_version, version.as_bytes());
}

/// Fills in the record of a GPU that is about to be counted in.
pub(crate) fn enter(record: &GpuRecord, gpu: &GpuSpec) {
    let limit = encode_limit(gpu.limit);
    record.key.store(gpu.key.0, Ordering::Relaxed);
    record.limit.store(limit, Ordering::Relaxed);
    record.made_limit.store(limit, Ordering::Relaxed);
    record.board_bytes.store(gpu.board_bytes, Ordering::Relaxed);
}

fn write_gpus(map: &Mapping, gpus: &[GpuSpec]) {
    for (record, gpu) in map.gpu_records().iter().zip(gpus) {
        enter(record, gpu);
    }
    map.header()
        .gpu_count
        .word
        .store(gpus.len() as u64, Ordering::Release);
}
