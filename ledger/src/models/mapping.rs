//! Takes the place of `mapping` in models: the memory that processes share, on the heap.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use super::models::{GPUS, SLOTS};
use crate::layout::{Cell, Geometry, GpuRecord, Header, Slot};
use crate::sync::Ordering;
use crate::view::LivenessMode;

/// What a ledger's file is otherwise. All is zero, but for the numbers of slots and GPUs.
#[derive(Default)]
pub(crate) struct Memory {
    header: Header,
    gpus: [GpuRecord; GPUS],
    slots: [Slot; SLOTS],
    columns: [[Cell; SLOTS]; GPUS],
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Memory")
    }
}

/// One process's mapping of a memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mapping(NonNull<Memory>);

// SAFETY: it is a shared reference to a Memory, which is Sync; see `of` for its lifetime.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// # Safety
    /// The memory must outlive the mapping and its copies.
    pub(crate) unsafe fn of(memory: &Memory) -> Self {
        Self(NonNull::from(memory))
    }

    /// There are no files in models.
    pub(crate) fn new(_: BorrowedFd<'_>, _: Geometry, _: bool) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn copy(_: BorrowedFd<'_>, _: Geometry) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn copy_of_header(_: BorrowedFd<'_>) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn read_slot_again(&self, _: BorrowedFd<'_>, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn memory(&self) -> &Memory {
        // SAFETY: whoever called `of` promised that the memory is there.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        unreachable!("no model makes a ledger")
    }

    pub(crate) fn writable(&self) -> bool {
        true
    }

    pub(crate) fn header(&self) -> &Header {
        &self.memory().header
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        &self.memory().slots
    }

    pub(crate) fn slot(&self, slot: usize) -> Option<&Slot> {
        self.slots().get(slot)
    }

    pub(crate) fn gpus(&self) -> &[GpuRecord] {
        self.gpu_records()
    }

    pub(crate) fn gpu_records(&self) -> &[GpuRecord] {
        &self.memory().gpus
    }

    pub(crate) fn column(&self, gpu: usize) -> &[Cell] {
        self.memory().columns.get(gpu).map_or(&[], |column| column)
    }

    pub(crate) fn row(&self, slot: usize) -> impl Iterator<Item = &Cell> {
        (0..GPUS).filter_map(move |gpu| self.column(gpu).get(slot))
    }

    pub(crate) fn used_row(&self, slot: usize) -> impl Iterator<Item = &Cell> {
        self.row(slot)
    }

    pub(crate) fn used_slots(&self) -> impl ExactSizeIterator<Item = (usize, &Slot)> {
        let count = self.header().high_water.word.load(Ordering::Acquire);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        self.slots().iter().take(count).enumerate()
    }

    pub(crate) fn liveness(&self) -> LivenessMode {
        LivenessMode::Locks
    }
}
