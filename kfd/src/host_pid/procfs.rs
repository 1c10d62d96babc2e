//! What a mounted `/proc` says of the process that reads it, and of the PID namespace it was mounted for.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use crate::root::{parse_number, read_text_raw};

/// The inode of the initial PID namespace: `PROC_PID_INIT_INO` in `include/linux/proc_ns.h`.
const INITIAL_NAMESPACE: u64 = 0xEFFF_FFFC;

/// `PF_KTHREAD` in `include/linux/sched.h`, a bit of field 9 of `/proc/PID/stat` (proc_pid_stat(5)).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// A directory where a `/proc` is mounted, or should be.
#[derive(Clone, Copy)]
pub(super) struct Procfs<'a> {
    at: &'a Path,
}

/// The reading process.
pub(super) struct Myself {
    /// Its PID in the namespace that this `/proc` was mounted for.
    pub(super) pid: u32,
    /// The inode of its own PID namespace.
    pub(super) namespace: u64,
}

impl Myself {
    /// Whether it is in the initial PID namespace.
    pub(super) fn is_of_the_host(&self) -> bool {
        self.namespace == INITIAL_NAMESPACE
    }
}

/// Which PID namespace a `/proc` was mounted for.
pub(super) enum Origin {
    /// The initial one.
    Host,
    /// Another.
    Nested,
    /// It does not show enough: why.
    Untold(String),
}

impl<'a> Procfs<'a> {
    pub(super) fn at(at: &'a Path) -> Self {
        Self { at }
    }

    /// Whether there is nothing at its place.
    pub(super) fn is_missing(self) -> bool {
        matches!(fs::metadata(self.at), Err(error) if error.kind() == io::ErrorKind::NotFound)
    }

    /// The reading process, which may always look at itself.
    pub(super) fn myself(self) -> Result<Myself, String> {
        let pid = self.link("self").map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                format!("{self} has no entry for this process: no /proc is mounted there, or one of a PID \
                    namespace that this process is not in")
            } else {
                self.cannot("self", &error)
            }
        })?;
        let namespace = self.namespace_of("self");
        Ok(Myself {
            pid: number(&pid).ok_or_else(|| {
                format!(
                    "{self}/self should lead to a PID, but leads to \"{}\"",
                    pid.escape_debug()
                )
            })?,
            namespace: namespace.map_err(|error| self.cannot("self/ns/pid", &error))?,
        })
    }

    /// The PIDs of the reading process: in the namespace of this `/proc`, in the next inside it, and so on to
    /// its own.
    pub(super) fn numbers_of_myself(self) -> Result<Vec<u32>, String> {
        let status = read_text_raw(&self.at.join("self/status"))
            .map_err(|error| self.cannot("self/status", &error))?;
        // A name with a line break cannot forge a line: the kernel escapes it.
        status
            .lines()
            .find_map(|line| line.strip_prefix("NSpid:"))
            .and_then(|numbers| numbers.split_whitespace().map(number).collect())
            .filter(|numbers: &Vec<u32>| !numbers.is_empty())
            .ok_or_else(|| format!("{self}/self/status has no line of PIDs (NSpid)"))
    }

    /// Which namespace this `/proc` was mounted for.
    ///
    /// PID 1 of every namespace is in it, but only who may trace it can see its namespace, and few in a
    /// container may trace the host's. So kthreadd is asked next: it is PID 2 of the initial namespace
    /// (`rest_init` in `init/main.c`), all kernel threads are its children, so no other namespace has any, and no
    /// program can set the flag. Anyone may read it.
    pub(super) fn origin(self) -> Origin {
        match self.namespace_of("1") {
            Ok(INITIAL_NAMESPACE) => return Origin::Host,
            Ok(_) => return Origin::Nested,
            Err(_) => {}
        }
        match read_text_raw(&self.at.join("2/stat")) {
            Ok(stat) => match flags(&stat) {
                Some(flags) if flags & KERNEL_THREAD != 0 => Origin::Host,
                Some(_) => Origin::Nested,
                None => Origin::Untold(format!("{self}/2/stat is not understood")),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Origin::Untold(String::from(
                "it shows no process 2, which is a thread of the kernel's on the host. So it is another's, or hides \
                 processes; mount the host's, without the option hidepid",
            )),
            Err(error) => Origin::Untold(format!(
                "{}; mount the host's, without the option hidepid",
                self.cannot("2/stat", &error)
            )),
        }
    }

    /// The inode in a link such as `pid:[4026531836]`.
    fn namespace_of(self, process: &str) -> io::Result<u64> {
        let target = self.link(&format!("{process}/ns/pid"))?;
        target
            .strip_prefix("pid:[")
            .and_then(|rest| rest.strip_suffix(']'))
            .and_then(parse_number)
            .ok_or_else(|| {
                io::Error::other(format!("\"{}\" is no PID namespace", target.escape_debug()))
            })
    }

    fn link(self, below: &str) -> io::Result<String> {
        let target = fs::read_link(self.at.join(below))?;
        Ok(target.to_string_lossy().into_owned())
    }

    fn cannot(self, below: &str, error: &io::Error) -> String {
        format!("cannot read {self}/{below}: {error}")
    }
}

impl fmt::Display for Procfs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.at.display().fmt(f)
    }
}

/// Field 9 of a `stat` line. The name in parentheses may hold anything, parentheses and spaces included.
fn flags(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    // The first is field 3.
    parse_number(fields.split_whitespace().nth(6)?)
}

/// A PID: never 0.
fn number(text: &str) -> Option<u32> {
    let number = u32::try_from(parse_number(text)?).ok()?;
    (number > 0).then_some(number)
}
