//! Descriptors for the caller.
//!
//! EXPORT_DMABUF, SMI_EVENTS and PRIME_HANDLE_TO_FD return a new descriptor. A FUSE server cannot
//! put one into another process, so there are two ways around:
//!
//! * **seccomp** ([`filter`], `server::seccomp`): a filter, set before exec, hands these three
//!   ioctls to the server, which adds a descriptor (`SECCOMP_IOCTL_NOTIF_ADDFD`, Linux 5.9). Works
//!   for any program, but a process can have only one such listener, and a caught ioctl does not
//!   reach the kernel's ioctl entry (nor its tracepoint).
//! * **preload**: the ioctl reaches the server, which answers `EOPNOTSUPP` and the number of the
//!   memory block; a small preloaded library then opens the dma-buf by its path in the node. Works
//!   for programs that call libc's `ioctl`, and leaves seccomp alone.
//!
//! Either way the dma-buf is a file of the node's own FUSE mount, so the kernel tells the server
//! when its last descriptor is closed.

pub mod filter;

use std::fmt;
use std::str::FromStr;

use crate::abi::{drm, kfd};

/// Type and number of the ioctls that return a descriptor.
pub const RETURN_DESCRIPTORS: [(u8, u8); 3] = [
    (kfd::TYPE, kfd::number::EXPORT_DMABUF),
    (kfd::TYPE, kfd::number::SMI_EVENTS),
    (drm::TYPE, drm::number::PRIME_HANDLE_TO_FD),
];

/// How programs in a node get descriptors from ioctls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inject {
    /// By a seccomp listener.
    #[default]
    Seccomp,
    /// By a preloaded library.
    Preload,
    /// Not at all: these ioctls fail with `EOPNOTSUPP`.
    None,
}

impl fmt::Display for Inject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Inject::Seccomp => "seccomp",
            Inject::Preload => "preload",
            Inject::None => "none",
        })
    }
}

impl FromStr for Inject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Inject::Seccomp, Inject::Preload, Inject::None]
            .into_iter()
            .find(|inject| inject.to_string() == text)
            .ok_or_else(|| format!("{text:?} is none of seccomp, preload, none"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for inject in [Inject::Seccomp, Inject::Preload, Inject::None] {
            assert_eq!(inject.to_string().parse(), Ok(inject));
        }
        assert!("ptrace".parse::<Inject>().unwrap_err().contains("ptrace"));
    }
}
