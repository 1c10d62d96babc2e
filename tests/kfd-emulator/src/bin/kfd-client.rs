//! A process that uses a GPU by hand, for tests of the emulator: no runtime, only ioctls.
//!
//! It reads a command a line from standard input and answers each with a line: `ok ...`, or `err`
//! and the errno. See [`Client::obey`] for the commands.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command as Program;

use kfd_emulator::abi::kfd::{
    ALLOC_GTT, ALLOC_VRAM, AcquireVm, AllocMemory, AvailableMemory, CreateEvent, CreateQueue,
    EventData, EventId, ExportDmabuf, FreeMemory, GetVersion, ImportDmabuf, MapMemory,
    QUEUE_TYPE_COMPUTE_AQL, SetCuMask, TYPE, WaitEvents, number,
};
use kfd_emulator::abi::{Argument, Command, drm};
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

type Answer = Result<String, Errno>;

fn main() -> io::Result<()> {
    let mut client = Client::default();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let answer = match client.obey(&line.split_whitespace().collect::<Vec<_>>()) {
            Ok(text) => format!("ok {text}"),
            Err(errno) => format!("err {}", errno as i32),
        };
        println!("{}", answer.trim_end());
        io::stdout().flush()?;
    }
    Ok(())
}

/// What has been opened.
#[derive(Default)]
struct Client {
    kfd: Option<File>,
    render: Option<File>,
    gpu_id: u32,
    /// mmap offsets and sizes by handle.
    buffers: HashMap<u64, (u64, u64)>,
    next_va: u64,
}

impl Client {
    /// Runs a command.
    fn obey(&mut self, words: &[&str]) -> Answer {
        match *words {
            // Opens the devices of the first GPU and acquires its VM.
            ["open"] => self.open(),
            ["version"] => {
                let mut args = GetVersion::default();
                self.ioctl(number::GET_VERSION, &mut args)?;
                Ok(format!("{}.{}", args.major, args.minor))
            }
            ["alloc", bytes] => self.alloc(bytes, ALLOC_VRAM),
            ["alloc-gtt", bytes] => self.alloc(bytes, ALLOC_GTT),
            ["free", handle] => {
                let mut args = FreeMemory {
                    handle: parse(handle)?,
                };
                self.ioctl(number::FREE_MEMORY_OF_GPU, &mut args)
                    .map(|()| String::new())
            }
            ["map", handle] => self.map(number::MAP_MEMORY_TO_GPU, handle),
            ["unmap", handle] => self.map(number::UNMAP_MEMORY_FROM_GPU, handle),
            // The same with the array in a file's pages, and in pages that never come.
            ["map-from-file", handle, path] => {
                let file = File::open(path).map_err(io_errno)?;
                self.map_at(handle, in_pages_of(&file)?)
            }
            ["map-from-nowhere", handle] => self.map_at(handle, in_pages_that_never_come()?),
            // read(2) and write(2) on the devices.
            ["read-write"] => self.read_write(),
            ["available"] => {
                let mut args = AvailableMemory {
                    gpu_id: self.gpu_id,
                    ..Default::default()
                };
                self.ioctl(number::AVAILABLE_MEMORY, &mut args)?;
                Ok(args.available.to_string())
            }
            // Writes a byte to, or reads one from, a buffer as the CPU sees it.
            ["poke", handle, value] => self.access(handle, Some(parse(value)? as u8)),
            ["peek", handle] => self.access(handle, None),
            ["queue"] => self.queue(),
            ["mask", queue, ref words @ ..] => self.mask(queue, words),
            ["event"] => {
                let mut args = CreateEvent {
                    auto_reset: 1,
                    ..Default::default()
                };
                self.ioctl(number::CREATE_EVENT, &mut args)?;
                Ok(args.event_id.to_string())
            }
            ["set", event] => {
                let mut args = EventId {
                    event_id: parse(event)? as u32,
                    pad: 0,
                };
                self.ioctl(number::SET_EVENT, &mut args)
                    .map(|()| String::new())
            }
            // Waits for an event at most so many milliseconds; answers with the wait's result.
            ["wait", event, milliseconds] => self.wait(event, milliseconds),
            ["export", handle] => {
                let mut args = ExportDmabuf {
                    handle: parse(handle)?,
                    flags: (libc::O_CLOEXEC | libc::O_RDWR) as u32,
                    dmabuf_fd: 0,
                };
                self.ioctl(number::EXPORT_DMABUF, &mut args)?;
                Ok(args.dmabuf_fd.to_string())
            }
            ["import", fd] => {
                let mut args = ImportDmabuf {
                    gpu_id: self.gpu_id,
                    dmabuf_fd: parse(fd)? as u32,
                    ..Default::default()
                };
                self.ioctl(number::IMPORT_DMABUF, &mut args)?;
                Ok(args.handle.to_string())
            }
            ["close", fd] => {
                // SAFETY: the test names a descriptor that `export` returned and that nothing else
                // in this program owns.
                drop(unsafe { OwnedFd::from_raw_fd(parse(fd)? as i32) });
                Ok(String::new())
            }
            // Forks a child that only keeps what it has inherited.
            ["fork"] => fork(),
            // Opens the render node once more, makes an object of one page with the first file and
            // one of two pages with the second, and exports the second one. Answers with its size.
            ["prime-of-second"] => self.prime_of_second(),
            // Exports a buffer again and again, until that fails.
            ["export-forever", handle] => loop {
                let descriptor = self.obey(&["export", handle])?;
                self.obey(&["close", &descriptor])?;
            },
            // Goes on in another thread only: the process's first one ends.
            ["leave-leader"] => leave_leader(),
            // Becomes this program anew: everything that is close-on-exec is closed.
            ["exec"] => {
                let error = Program::new("/proc/self/exe").exec();
                Err(Errno::from_raw(error.raw_os_error().unwrap_or(0)))
            }
            ["read", path] => {
                let text = fs::read_to_string(path);
                let text = text.map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(0)))?;
                Ok(text.trim().replace('\n', " "))
            }
            ["touch", path] => {
                let written = fs::write(path, "x");
                written.map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(0)))?;
                Ok(String::new())
            }
            _ => Err(Errno::EINVAL),
        }
    }

    fn open(&mut self) -> Answer {
        let open = |path| {
            let file = File::options().read(true).write(true).open(path);
            file.map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(0)))
        };
        let id = fs::read_to_string("/sys/class/kfd/kfd/topology/nodes/1/gpu_id");
        self.gpu_id = parse(id.map_err(|_| Errno::ENODEV)?.trim())? as u32;
        self.kfd = Some(open("/dev/kfd")?);
        let render = open("/dev/dri/renderD128")?;
        let mut args = AcquireVm {
            drm_fd: render.as_raw_fd() as u32,
            gpu_id: self.gpu_id,
        };
        self.render = Some(render);
        self.ioctl(number::ACQUIRE_VM, &mut args)?;
        self.next_va = 0x10_0000_0000;
        Ok(String::new())
    }

    fn ioctl<T: Argument>(&self, number: u8, args: &mut T) -> Result<(), Errno> {
        ioctl(self.kfd.as_ref().ok_or(Errno::EBADF)?, TYPE, number, args)
    }

    fn alloc(&mut self, bytes: &str, flags: u32) -> Answer {
        let (size, gpu_id) = (parse(bytes)?, self.gpu_id);
        let mut args = AllocMemory {
            va: self.next_va,
            size,
            gpu_id,
            flags,
            ..Default::default()
        };
        self.ioctl(number::ALLOC_MEMORY_OF_GPU, &mut args)?;
        self.next_va += size.next_multiple_of(4096);
        self.buffers.insert(args.handle, (args.mmap_offset, size));
        Ok(args.handle.to_string())
    }

    fn prime_of_second(&self) -> Answer {
        let first = self.render.as_ref().ok_or(Errno::EBADF)?;
        let link = fs::read_link(format!("/proc/self/fd/{}", first.as_raw_fd()));
        let path = link.map_err(io_errno)?;
        let both = File::options().read(true).write(true).open(path);
        let second = both.map_err(io_errno)?;
        let mut handle = 0;
        for (file, size) in [(first, 4096), (&second, 8192)] {
            let mut args = drm::GemCreate {
                size,
                domains: drm::DOMAIN_VRAM,
                ..Default::default()
            };
            ioctl(file, drm::TYPE, drm::number::GEM_CREATE, &mut args)?;
            handle = args.size as u32;
        }
        let mut args = drm::PrimeHandle {
            handle,
            flags: (libc::O_CLOEXEC | libc::O_RDWR) as u32,
            fd: 0,
        };
        ioctl(
            &second,
            drm::TYPE,
            drm::number::PRIME_HANDLE_TO_FD,
            &mut args,
        )?;
        // SAFETY: the ioctl has made this descriptor; nothing else owns it.
        let exported = File::from(unsafe { OwnedFd::from_raw_fd(args.fd as i32) });
        Ok(exported.metadata().map_err(io_errno)?.len().to_string())
    }

    /// MAP with the array of GPUs at an address.
    fn map_at(&self, handle: &str, gpu_ids_pointer: u64) -> Answer {
        let mut args = MapMemory {
            handle: parse(handle)?,
            gpu_ids_pointer,
            gpus: 1,
            done: 0,
        };
        self.ioctl(number::MAP_MEMORY_TO_GPU, &mut args)
            .map(|()| args.done.to_string())
    }

    /// What reading and writing each device fails with.
    fn read_write(&mut self) -> Answer {
        let mut answers = Vec::new();
        for file in [&mut self.kfd, &mut self.render] {
            let file = file.as_mut().ok_or(Errno::EBADF)?;
            for result in [file.read(&mut [0; 16]), file.write(&[1; 16])] {
                let errno = result.map_or_else(|e| e.raw_os_error(), |_| Some(0));
                answers.push(errno.unwrap_or(-1).to_string());
            }
        }
        Ok(answers.join(" "))
    }

    fn map(&self, number: u8, handle: &str) -> Answer {
        let gpus = [self.gpu_id];
        let mut args = MapMemory {
            handle: parse(handle)?,
            gpu_ids_pointer: gpus.as_ptr() as u64,
            gpus: 1,
            done: 0,
        };
        self.ioctl(number, &mut args)
            .map(|()| args.done.to_string())
    }

    fn access(&self, handle: &str, value: Option<u8>) -> Answer {
        let &(offset, size) = self.buffers.get(&parse(handle)?).ok_or(Errno::EINVAL)?;
        let render = self.render.as_ref().ok_or(Errno::EBADF)?;
        let length = std::num::NonZeroUsize::new(size as usize).ok_or(Errno::EINVAL)?;
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, used only below.
        let memory = unsafe {
            mmap(
                None,
                length,
                both,
                MapFlags::MAP_SHARED,
                render,
                offset as i64,
            )
        }?;
        // SAFETY: the mapping has at least a byte, and nothing else refers to it in here.
        let byte = unsafe {
            let byte = memory.cast::<u8>().as_ptr();
            if let Some(value) = value {
                byte.write_volatile(value);
            }
            byte.read_volatile()
        };
        // SAFETY: the mapping made above; no reference into it is left.
        unsafe { munmap(memory, length.get()) }?;
        Ok(byte.to_string())
    }

    fn queue(&self) -> Answer {
        let mut args = CreateQueue {
            ring_size: 4096,
            gpu_id: self.gpu_id,
            queue_type: QUEUE_TYPE_COMPUTE_AQL,
            queue_percentage: 100,
            queue_priority: 7,
            ..Default::default()
        };
        self.ioctl(number::CREATE_QUEUE, &mut args)?;
        Ok(args.queue_id.to_string())
    }

    fn mask(&self, queue: &str, words: &[&str]) -> Answer {
        let parsed: Result<Vec<u32>, Errno> = words
            .iter()
            .map(|word| u32::from_str_radix(word, 16).map_err(|_| Errno::EINVAL))
            .collect();
        let mask = parsed?;
        let mut args = SetCuMask {
            queue_id: parse(queue)? as u32,
            bits: mask.len() as u32 * 32,
            mask_pointer: mask.as_ptr() as u64,
        };
        self.ioctl(number::SET_CU_MASK, &mut args)
            .map(|()| String::new())
    }

    fn wait(&self, event: &str, milliseconds: &str) -> Answer {
        let events = [EventData {
            event_id: parse(event)? as u32,
            ..Default::default()
        }];
        let mut args = WaitEvents {
            events_pointer: events.as_ptr() as u64,
            events: 1,
            timeout: parse(milliseconds)? as u32,
            ..Default::default()
        };
        // As libhsakmt does it: a wait that was interrupted goes on with the time that is left.
        loop {
            match self.ioctl(number::WAIT_EVENTS, &mut args) {
                Err(Errno::EINTR) => {}
                result => return result.map(|()| args.result.to_string()),
            }
        }
    }
}

fn ioctl<T: Argument>(file: &File, kind: u8, number: u8, args: &mut T) -> Result<(), Errno> {
    unsafe extern "C" {
        // Declared here so that a preloaded library can stand before libc's.
        fn ioctl(fd: i32, request: u64, ...) -> i32;
    }
    let command = Command::new(Command::READ | Command::WRITE, kind, number, size_of::<T>());
    // SAFETY: the command carries the size of the struct that is passed, which holds for any
    // bytes that come back; pointers inside it are to memory that lives until this returns.
    let result = unsafe {
        ioctl(
            file.as_raw_fd(),
            u64::from(command.0),
            std::ptr::from_mut(args),
        )
    };
    Errno::result(result).map(|_| ())
}

fn io_errno(error: io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}

const ONE_PAGE: std::num::NonZeroUsize = std::num::NonZeroUsize::new(4096).unwrap();

/// The address of a page of a file.
fn in_pages_of(file: &File) -> Result<u64, Errno> {
    // SAFETY: a new mapping at an address of the kernel's choice, that this program never uses.
    let page = unsafe {
        mmap(
            None,
            ONE_PAGE,
            ProtFlags::PROT_READ,
            MapFlags::MAP_PRIVATE,
            file,
            0,
        )
    }?;
    Ok(page.as_ptr() as u64)
}

/// The address of a page that a userfaultfd would have to fill (linux/userfaultfd.h); whoever reads
/// it waits.
fn in_pages_that_never_come() -> Result<u64, Errno> {
    const UFFDIO_API: u64 = 0xc018_aa3f;
    const UFFDIO_REGISTER: u64 = 0xc020_aa00;
    const UFFD_API: u64 = 0xaa;
    const MISSING: u64 = 1;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice.
    let page = unsafe {
        nix::sys::mman::mmap_anonymous(None, ONE_PAGE, ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE)
    }?
    .as_ptr() as u64;
    // SAFETY: plain system call. The descriptor stays open as long as this program runs.
    let faults = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    let faults = Errno::result(faults)? as i32;
    let mut api = [UFFD_API, 0, 0];
    // SAFETY: the kernel reads and writes the struct uffdio_api, three 64-bit numbers.
    Errno::result(unsafe { libc::ioctl(faults, UFFDIO_API, api.as_mut_ptr()) })?;
    let mut range = [page, 4096, MISSING, 0];
    // SAFETY: the same with struct uffdio_register, four 64-bit numbers. The page is not used here.
    Errno::result(unsafe { libc::ioctl(faults, UFFDIO_REGISTER, range.as_mut_ptr()) })?;
    Ok(page)
}

/// Ends the first thread, and leaves one that sleeps.
fn leave_leader() -> Answer {
    std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_secs(1000)));
    println!("ok");
    // SAFETY: ends this thread, without unwinding; nothing waits for it or uses its stack.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    Err(Errno::EINVAL)
}

fn fork() -> Answer {
    // SAFETY: this program has one thread, so the child may do what it likes.
    match unsafe { nix::unistd::fork() }? {
        nix::unistd::ForkResult::Parent { child } => Ok(child.to_string()),
        nix::unistd::ForkResult::Child => loop {
            nix::unistd::pause();
        },
    }
}

fn parse(text: &str) -> Result<u64, Errno> {
    text.parse().map_err(|_| Errno::EINVAL)
}
