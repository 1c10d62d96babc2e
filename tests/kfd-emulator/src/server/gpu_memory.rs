//! Memory and code of a process, as its GPU sees them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use crate::command_processor::{Fault, GpuMemory, Kernel, KernelNames, code_object};
use crate::state::ProcessKey;
use crate::state::page_table::Place;

use super::caller::{read_memory, write_memory};
use super::shared::Shared;

/// The GPU's address space of a process.
pub(super) struct ProcessMemory<'a> {
    shared: &'a Shared,
    key: ProcessKey,
    pid: u32,
}

impl<'a> ProcessMemory<'a> {
    /// That of this process, with its PID for the parts that are its own memory.
    pub(super) fn new(shared: &'a Shared, key: ProcessKey, pid: u32) -> Self {
        Self { shared, key, pid }
    }

    /// Where the bytes at `va` are, and how many lie together there, at most `length`.
    fn locate(&self, va: u64, length: usize) -> Result<(Place, usize), Fault> {
        let driver = self.shared.driver();
        let process = driver.processes.get(&self.key).ok_or(Fault { va })?;
        let (place, together) = process.page_table.locate(va);
        let together = usize::try_from(together).unwrap_or(usize::MAX);
        if together == 0 {
            Err(Fault { va })
        } else {
            Ok((place, together.min(length)))
        }
    }
}

impl GpuMemory for ProcessMemory<'_> {
    fn read(&self, mut va: u64, mut buf: &mut [u8]) -> Result<(), Fault> {
        while !buf.is_empty() {
            let (place, length) = self.locate(va, buf.len())?;
            let (now, rest) = buf.split_at_mut(length);
            let done = match place {
                Place::Backing(offset) => self.shared.memory.read(offset, now).is_ok(),
                Place::Process(address) => read_memory(self.pid, address, now).is_ok(),
            };
            if !done {
                return Err(Fault { va });
            }
            buf = rest;
            va = va.wrapping_add(length as u64);
        }
        Ok(())
    }

    fn write(&self, mut va: u64, mut buf: &[u8]) -> Result<(), Fault> {
        while !buf.is_empty() {
            let (place, length) = self.locate(va, buf.len())?;
            let (now, rest) = buf.split_at(length);
            let done = match place {
                Place::Backing(offset) => self.shared.memory.write(offset, now).is_ok(),
                Place::Process(address) => write_memory(self.pid, address, now).is_ok(),
            };
            if !done {
                return Err(Fault { va });
            }
            buf = rest;
            va = va.wrapping_add(length as u64);
        }
        Ok(())
    }
}

/// Kernels that were found, per process. Looking one up reads megabytes.
#[derive(Default)]
pub(super) struct KernelCache {
    found: RefCell<HashMap<ProcessKey, (u64, Kernels)>>,
}

type Kernels = HashMap<u64, Option<Arc<Kernel>>>;

impl KernelCache {
    /// Forgets processes that are gone.
    pub(super) fn retain(&self, alive: impl Fn(ProcessKey) -> bool) {
        self.found.borrow_mut().retain(|&key, _| alive(key));
    }
}

/// The kernels of a process.
pub(super) struct ProcessKernels<'a> {
    /// Its memory, where the code objects are.
    pub(super) memory: &'a ProcessMemory<'a>,
    /// What was found before.
    pub(super) cache: &'a KernelCache,
}

impl KernelNames for ProcessKernels<'_> {
    fn kernel(&self, kernel_object: u64) -> Option<Arc<Kernel>> {
        let key = self.memory.key;
        let epoch = self.memory.shared.driver().processes.get(&key)?.code_epoch;
        let mut found = self.cache.found.borrow_mut();
        let (of, kernels) = found.entry(key).or_default();
        if *of != epoch {
            // Memory was freed since: another code object may be at the same address.
            *of = epoch;
            kernels.clear();
        }
        kernels
            .entry(kernel_object)
            .or_insert_with(|| code_object::find(self.memory, kernel_object).map(Arc::new))
            .clone()
    }
}
