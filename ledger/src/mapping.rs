//! A mapped ledger: the layout behind checked indices.

use std::os::fd::BorrowedFd;
use std::{io, slice};

use crate::MAX_MEMBERS;
use crate::layout::{
    CELLS_OFFSET, COLUMN_BYTES, Cell, GPUS_OFFSET, Geometry, GpuRecord, Header, LIVENESS_LOCKS,
    SLOTS_OFFSET, Slot,
};
use crate::sync::{AtomicU8, Ordering};
use crate::sys::{self, SharedMap};
use crate::view::LivenessMode;

/// A whole ledger in memory: the file itself, or a copy of it. The bounds of everything come from the geometry that was checked when
/// it was opened, never again from the file.
#[derive(Debug)]
pub(crate) struct Mapping {
    memory: SharedMap,
    geometry: Geometry,
    /// It is a private copy of the file.
    copy: bool,
}

impl Mapping {
    /// Maps a file of at least `geometry.file_size()` bytes.
    pub(crate) fn new(fd: BorrowedFd<'_>, geometry: Geometry, writable: bool) -> io::Result<Self> {
        let memory = SharedMap::new(fd, geometry.file_size(), writable)?;
        Ok(Self {
            memory,
            geometry,
            copy: false,
        })
    }

    /// A private copy of a file, which whoever may write to the file cannot take away by cutting it
    /// (touching a mapping behind the end of its file ends the process). What the file does not
    /// have is 0, that is nobody's. What no member has used yet is 0, too, and is not read: most of the
    /// file, as a rule.
    pub(crate) fn copy(fd: BorrowedFd<'_>, geometry: Geometry) -> io::Result<Self> {
        let copy = Self {
            memory: SharedMap::private(geometry.file_size())?,
            geometry,
            copy: true,
        };
        // The header and the GPUs, which say how much there is behind.
        copy.read_again(fd, 0, SLOTS_OFFSET)?;
        let used = copy.used_slots().len();
        let of = |size: usize| used.saturating_mul(size);
        copy.read_again(fd, SLOTS_OFFSET, of(size_of::<Slot>()))?;
        for gpu in 0..copy.gpus().len() {
            copy.read_again(fd, column_offset(gpu), of(size_of::<Cell>()))?;
        }
        Ok(copy)
    }

    /// A copy of the header alone; all else is 0.
    pub(crate) fn copy_of_header(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let geometry = Geometry::with_capacity(1).ok_or(io::ErrorKind::InvalidInput)?;
        let copy = Self {
            memory: SharedMap::private(geometry.file_size())?,
            geometry,
            copy: true,
        };
        copy.read_again(fd, 0, size_of::<Header>())?;
        Ok(copy)
    }

    /// Reads a range of a copy again; a mapping shows what is in the file anyway.
    fn read_again(&self, fd: BorrowedFd<'_>, offset: usize, length: usize) -> io::Result<()> {
        let inside = offset
            .checked_add(length)
            .is_some_and(|end| end <= self.memory.length());
        if !self.copy || !inside {
            return Ok(());
        }
        // SAFETY: the range lies inside the memory (checked), which is private and writable, as this
        // is a copy (checked); all that refers into it are atomics.
        let to = unsafe { self.memory.start().as_ptr().add(offset) };
        // SAFETY: as above.
        let n = unsafe { sys::read_at(fd, to, length, offset) }?;
        for at in n..length {
            // SAFETY: `at` is below `length`, so inside the range; see above.
            let byte = unsafe { &*to.add(at).cast::<AtomicU8>() };
            byte.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Reads a slot and its cells again, if this is a copy.
    pub(crate) fn read_slot_again(&self, fd: BorrowedFd<'_>, slot: usize) -> io::Result<()> {
        let of = |base: usize, size: usize| slot.saturating_mul(size).saturating_add(base);
        self.read_again(fd, of(SLOTS_OFFSET, size_of::<Slot>()), size_of::<Slot>())?;
        for gpu in 0..self.gpus().len() {
            let cell = of(column_offset(gpu), size_of::<Cell>());
            self.read_again(fd, cell, size_of::<Cell>())?;
        }
        Ok(())
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// `count` records of a type that is made of atomics, at a byte offset; none if they do not lie
    /// inside the mapping.
    fn records<T: Record>(&self, offset: usize, count: usize) -> &[T] {
        let bytes = size_of::<T>().saturating_mul(count);
        let inside = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.memory.length());
        if !inside || !offset.is_multiple_of(align_of::<T>()) {
            return &[];
        }
        // SAFETY: the range lies inside the mapping (checked), which is page-aligned, so that the
        // offset aligns T (checked). T is made of atomics (`Record`): any bits are a value of it and
        // other processes may change it at any time. The mapping lives as long as `self`; the file
        // had its space reserved, and only its owner, who is trusted, could cut it.
        unsafe {
            slice::from_raw_parts(self.memory.start().as_ptr().add(offset).cast::<T>(), count)
        }
    }

    pub(crate) fn header(&self) -> &Header {
        // SAFETY: the mapping starts on a page and is longer than a header whatever the geometry
        // (`Geometry::file_size` is above CELLS_OFFSET); for the rest see `records`.
        unsafe { self.memory.start().cast::<Header>().as_ref() }
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        self.records(SLOTS_OFFSET, MAX_MEMBERS)
    }

    pub(crate) fn slot(&self, slot: usize) -> Option<&Slot> {
        self.slots().get(slot)
    }

    /// The records of the GPUs that the ledger has at this moment.
    pub(crate) fn gpus(&self) -> &[GpuRecord] {
        let count = self.header().gpu_count.word.load(Ordering::Acquire);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let all = self.gpu_records();
        all.get(..count).unwrap_or(all)
    }

    /// All GPU records there is room for, valid or not.
    pub(crate) fn gpu_records(&self) -> &[GpuRecord] {
        self.records(GPUS_OFFSET, self.geometry.gpu_capacity())
    }

    /// All members' cells on one GPU, by its index in the ledger.
    pub(crate) fn column(&self, gpu: usize) -> &[Cell] {
        if gpu >= self.geometry.gpu_capacity() {
            return &[];
        }
        self.records(column_offset(gpu), MAX_MEMBERS)
    }

    /// One member's cells on all GPUs there is room for.
    pub(crate) fn row(&self, slot: usize) -> impl Iterator<Item = &Cell> {
        (0..self.geometry.gpu_capacity()).filter_map(move |gpu| self.column(gpu).get(slot))
    }

    /// One member's cells on the GPUs that the ledger has at this moment. Each is on a page of its own,
    /// which costs the first time it is looked at.
    pub(crate) fn used_row(&self, slot: usize) -> impl Iterator<Item = &Cell> {
        self.row(slot).take(self.gpus().len())
    }

    /// The slots that may have been claimed since the ledger was made, with their indices.
    pub(crate) fn used_slots(&self) -> impl ExactSizeIterator<Item = (usize, &Slot)> {
        let count = self.header().high_water.word.load(Ordering::Acquire);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        self.slots().iter().take(count).enumerate()
    }

    pub(crate) fn liveness(&self) -> LivenessMode {
        match self.header().liveness.load(Ordering::Relaxed) {
            LIVENESS_LOCKS => LivenessMode::Locks,
            _ => LivenessMode::Witness,
        }
    }
}

/// Where the cells of a GPU begin.
fn column_offset(gpu: usize) -> usize {
    gpu.saturating_mul(COLUMN_BYTES)
        .saturating_add(CELLS_OFFSET)
}

/// A type that any bits in shared memory are a value of, and that only atomic accesses reach.
///
/// # Safety
/// All fields must be atomics of `core`.
unsafe trait Record {}

// SAFETY: made of AtomicU64 only.
unsafe impl Record for Header {}
// SAFETY: made of AtomicU64 only.
unsafe impl Record for GpuRecord {}
// SAFETY: made of AtomicU64 and AtomicU8 only.
unsafe impl Record for Slot {}
// SAFETY: made of AtomicU64 only.
unsafe impl Record for Cell {}
