//! The ioctls, as functions of the driver's state and the caller's memory.
//!
//! Each takes a struct of [`crate::abi`] and changes it in place, as the kernel does. What the
//! trace shall show of it goes into [`Fields`].

pub mod drm;
pub mod kfd;
#[cfg(test)]
mod random_tests;

use std::time::Instant;

use nix::errno::Errno;
use serde_json::{Map, Value};

use crate::abi::{Argument, Command, load, store};
use crate::state::{BlockId, Driver, FileId, FileKind, WaitClient};

/// Most entries of an array that a caller may pass by pointer. The kernel has limits of its own
/// for each; all are below this.
const MAX_ARRAY: u32 = 1 << 16;

/// What a descriptor of the caller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptor {
    /// A render node, by its minor number.
    Render(u32),
    /// A dma-buf of this node.
    Dmabuf(BlockId),
    /// Something else.
    Other,
    /// Not open.
    Closed,
}

/// The process that an ioctl comes from.
///
/// An ioctl reads all memory of its caller that it needs before it changes anything: it may be run
/// a second time when a read fails for now.
pub trait Caller {
    /// Its thread-group id.
    fn pid(&self) -> u32;
    /// The thread.
    fn tid(&self) -> u32;
    /// Fills `buffer` from an address of the caller.
    ///
    /// # Errors
    /// `EFAULT` when a part of it is not mapped.
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Errno>;
    /// Writes `bytes` to an address of the caller.
    ///
    /// # Errors
    /// `EFAULT` when a part of it is not mapped.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno>;
    /// What one of its descriptors is.
    fn descriptor(&self, fd: u32) -> Descriptor;
}

/// Reads an array that the caller passed by pointer.
///
/// # Errors
/// `EFAULT`, or `EINVAL` for a length that no real caller has.
pub fn read_array<T: Argument>(
    caller: &dyn Caller,
    address: u64,
    length: u32,
) -> Result<Vec<T>, Errno> {
    if length > MAX_ARRAY {
        return Err(Errno::EINVAL);
    }
    let mut bytes = vec![0; length as usize * size_of::<T>()];
    if !bytes.is_empty() {
        caller.read(address, &mut bytes)?;
    }
    Ok(bytes.chunks_exact(size_of::<T>()).map(load).collect())
}

/// Most entries of an array that the trace shows.
const MOST_SHOWN: usize = 16;

/// What the trace shows of an ioctl: names and values.
#[derive(Clone, Debug, Default)]
pub struct Fields(pub Map<String, Value>);

impl Fields {
    /// Adds a value.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }

    /// Adds the first entries of an array. When it has more, `NAME_count` tells how many.
    pub fn list<T: Into<Value>>(&mut self, name: &str, items: impl ExactSizeIterator<Item = T>) {
        let count = items.len();
        if count > MOST_SHOWN {
            self.set(&format!("{name}_count"), count);
        }
        let shown: Vec<Value> = items.take(MOST_SHOWN).map(Into::into).collect();
        self.set(name, shown);
    }

    /// Adds an address, a handle or a set of bits, in hexadecimal.
    pub fn hex(&mut self, name: &str, value: impl Into<u64>) {
        self.set(name, format!("{:#x}", value.into()));
    }
}

/// What became of an ioctl.
pub enum Outcome {
    /// It is done: the argument goes back to the caller, with this result.
    Done(Result<(), Errno>),
    /// It is a wait; [`WaitClient::finish`] ends it.
    Waits,
}

/// Runs a function on the argument of an ioctl, whatever size the caller's version of it has.
/// The argument goes back also with an error, as some callers want it.
fn with<T: Argument>(bytes: &mut [u8], run: impl FnOnce(&mut T) -> Result<(), Errno>) -> Outcome {
    let mut argument: T = load(bytes);
    let result = run(&mut argument);
    store(&argument, bytes);
    Outcome::Done(result)
}

/// The name of an ioctl on a kind of file.
pub fn name(kind: &FileKind, command: Command) -> &'static str {
    match kind {
        FileKind::Kfd(_) => crate::abi::kfd::name(command),
        FileKind::Render { .. } => crate::abi::drm::name(command),
        FileKind::Dmabuf(_) => "UNKNOWN",
    }
}

/// Runs an ioctl.
///
/// `argument` has the size that the command names. `client` is used only for a wait.
pub fn run(
    driver: &mut Driver,
    caller: &dyn Caller,
    file: FileId,
    command: Command,
    argument: &mut [u8],
    fields: &mut Fields,
    client: impl FnOnce() -> Box<dyn WaitClient>,
) -> Outcome {
    match driver.file(file).map(|f| &f.kind) {
        Some(&FileKind::Kfd(key)) if command.kind() == crate::abi::kfd::TYPE => {
            // Only the process that opened it can use the descriptor (kfd_ioctl): a forked child
            // must open its own.
            match driver.processes.get(&key) {
                Some(process) if process.opener.pid == caller.pid() => {}
                _ => return Outcome::Done(Err(Errno::EBADF)),
            }
            let mut call = kfd::Call {
                driver,
                caller,
                key,
                fields,
            };
            if command.number() == crate::abi::kfd::number::WAIT_EVENTS {
                return call.wait_events(load(argument), Instant::now(), client);
            }
            call.run(command.number(), argument)
        }
        Some(&FileKind::Render { gpu_id, .. }) if command.kind() == crate::abi::drm::TYPE => {
            drm::Call {
                driver,
                caller,
                file,
                gpu_id,
                fields,
            }
            .run(command.number(), argument)
        }
        Some(_) => Outcome::Done(Err(Errno::ENOTTY)),
        None => Outcome::Done(Err(Errno::EBADF)),
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! A caller whose memory is a map, and a bench to run ioctls on.

    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use super::*;
    use crate::abi::kfd::WaitEvents;
    use crate::state::Opener;
    use crate::state::testing::driver_of;

    pub(crate) const PID: u32 = 100;

    /// A process with a little memory.
    pub(crate) struct FakeCaller {
        pub(crate) pid: u32,
        pub(crate) memory: RefCell<BTreeMap<u64, u8>>,
        pub(crate) descriptors: BTreeMap<u32, Descriptor>,
    }

    impl FakeCaller {
        pub(crate) fn new(pid: u32) -> Self {
            Self {
                pid,
                memory: RefCell::default(),
                descriptors: BTreeMap::new(),
            }
        }

        /// Puts values at an address.
        pub(crate) fn put(&self, address: u64, bytes: &[u8]) -> u64 {
            let mut memory = self.memory.borrow_mut();
            memory.extend((address..).zip(bytes.iter().copied()));
            address
        }

        pub(crate) fn get<T: Argument>(&self, address: u64) -> T {
            let mut value = T::new_zeroed();
            self.read(address, value.as_mut_bytes()).unwrap();
            value
        }
    }

    impl Caller for FakeCaller {
        fn pid(&self) -> u32 {
            self.pid
        }

        fn tid(&self) -> u32 {
            self.pid
        }

        fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Errno> {
            let end = address
                .checked_add(buffer.len() as u64)
                .ok_or(Errno::EFAULT)?;
            let memory = self.memory.borrow();
            for (at, byte) in (address..end).zip(buffer) {
                *byte = *memory.get(&at).ok_or(Errno::EFAULT)?;
            }
            Ok(())
        }

        fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
            let end = address
                .checked_add(bytes.len() as u64)
                .ok_or(Errno::EFAULT)?;
            let mut memory = self.memory.borrow_mut();
            for (at, byte) in (address..end).zip(bytes) {
                *memory.get_mut(&at).ok_or(Errno::EFAULT)? = *byte;
            }
            Ok(())
        }

        fn descriptor(&self, fd: u32) -> Descriptor {
            self.descriptors
                .get(&fd)
                .copied()
                .unwrap_or(Descriptor::Closed)
        }
    }

    struct NoWait;

    impl WaitClient for NoWait {
        fn write_age(&self, _index: usize, _age: u64) {}
        fn finish(self: Box<Self>, _result: Result<(), Errno>, _args: &WaitEvents) {}
    }

    /// A driver, a process that has everything open, and its memory.
    pub(crate) struct Bench {
        pub(crate) driver: Driver,
        pub(crate) caller: FakeCaller,
        pub(crate) kfd: FileId,
        pub(crate) render: FileId,
        pub(crate) gpu_id: u32,
    }

    impl Bench {
        /// A process with its VM on every GPU.
        pub(crate) fn with(profile: &str, gpus: usize) -> Self {
            let (mut driver, _) = driver_of(profile, gpus);
            let kfd = driver.open_kfd(Opener {
                pid: PID,
                start_time: 1,
            });
            let gpu_id = driver.devices[0].gpu.gpu_id;
            let render = driver.open_render(gpu_id, PID);
            let mut bench = Self {
                driver,
                caller: FakeCaller::new(PID),
                kfd,
                render,
                gpu_id,
            };
            for index in 0..gpus {
                let gpu = &bench.driver.devices[index].gpu;
                let (gpu_id, minor) = (gpu.gpu_id, gpu.render_minor);
                bench
                    .caller
                    .descriptors
                    .insert(minor, Descriptor::Render(minor));
                let mut acquire = crate::abi::kfd::AcquireVm {
                    drm_fd: minor,
                    gpu_id,
                };
                bench.kfd(0x15, &mut acquire).unwrap();
            }
            bench
        }

        pub(crate) fn new() -> Self {
            Self::with("mi210", 1)
        }

        fn ioctl<T: Argument>(
            &mut self,
            file: FileId,
            kind: u8,
            number: u8,
            argument: &mut T,
        ) -> Result<(), Errno> {
            let command = Command::new(3, kind, number, size_of::<T>());
            let mut bytes = argument.as_bytes().to_vec();
            let mut fields = Fields::default();
            let outcome = run(
                &mut self.driver,
                &self.caller,
                file,
                command,
                &mut bytes,
                &mut fields,
                || Box::new(NoWait),
            );
            *argument = load(&bytes);
            match outcome {
                Outcome::Done(result) => result,
                Outcome::Waits => panic!("it waits"),
            }
        }

        /// An ioctl on `/dev/kfd`.
        pub(crate) fn kfd<T: Argument>(
            &mut self,
            number: u8,
            argument: &mut T,
        ) -> Result<(), Errno> {
            self.ioctl(self.kfd, b'K', number, argument)
        }

        /// An ioctl on the first render node.
        pub(crate) fn drm<T: Argument>(
            &mut self,
            number: u8,
            argument: &mut T,
        ) -> Result<(), Errno> {
            self.ioctl(self.render, b'd', number, argument)
        }
    }

    #[test]
    fn another_process_cannot_use_the_descriptor() {
        let mut bench = Bench::new();
        let mut version = crate::abi::kfd::GetVersion::default();
        assert_eq!(bench.kfd(1, &mut version), Ok(()));
        bench.caller.pid += 1;
        assert_eq!(bench.kfd(1, &mut version), Err(Errno::EBADF));
    }

    #[test]
    fn commands_of_another_type_are_not_for_this_file() {
        let mut bench = Bench::new();
        let mut version = crate::abi::kfd::GetVersion::default();
        assert_eq!(
            bench.ioctl(bench.kfd, b'd', 0, &mut version),
            Err(Errno::ENOTTY)
        );
        assert_eq!(
            bench.ioctl(FileId(999), b'K', 1, &mut version),
            Err(Errno::EBADF)
        );
    }

    #[test]
    fn the_trace_shows_the_start_of_an_array() {
        let mut fields = Fields::default();
        fields.list("few", [1, 2].into_iter());
        fields.list("many", vec![7; 100].into_iter());
        assert_eq!(fields.0["few"], serde_json::json!([1, 2]));
        assert_eq!(fields.0["many"].as_array().map(Vec::len), Some(MOST_SHOWN));
        assert_eq!(fields.0["many_count"], 100);
        assert!(!fields.0.contains_key("few_count"));
    }

    #[test]
    fn arrays_are_bounded() {
        let caller = FakeCaller::new(1);
        assert!(read_array::<u32>(&caller, 0, 0).unwrap().is_empty());
        assert_eq!(read_array::<u32>(&caller, 0, 1), Err(Errno::EFAULT));
        assert_eq!(read_array::<u32>(&caller, 0, u32::MAX), Err(Errno::EINVAL));
    }
}
