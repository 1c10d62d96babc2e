//! What can go wrong while reading, said with the file and a way out.

use std::io;
use std::path::PathBuf;

/// A file of the driver that could not be read or understood.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be opened or read.
    #[error("cannot read {}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The file holds something that is not a number this crate can represent.
    #[error(
        "{what} of {} should be a number, but is \"{}\"; is this a driver newer than this program?",
        .path.display(),
        shortened(.text)
    )]
    NotANumber {
        /// The file.
        path: PathBuf,
        /// The property inside the file, or "the file".
        what: String,
        /// What was read instead.
        text: String,
    },
    /// The file lacks a property without which the GPU cannot be told from others.
    #[error("{} has no property {property}; is amdgpu loaded completely (see dmesg)?", .path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The property's name.
        property: &'static str,
    },
}

/// The topology could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// The driver's directory is not there: no amdgpu driver with KFD, or a sysfs that hides it.
    #[error(
        "there is no {}: the amdgpu driver with KFD is not loaded, or this container hides /sys \
         (try `modprobe amdgpu`; in a container, mount /sys)",
        .path.display()
    )]
    NoDriver {
        /// The directory that is missing.
        path: PathBuf,
    },
    /// One of the files could not be read or understood.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The driver kept changing the topology while it was read.
    #[error(
        "the topology below {} changed {attempts} times while it was read; try again when no GPU is being \
         reset or repartitioned",
        .path.display()
    )]
    Unstable {
        /// The topology's directory.
        path: PathBuf,
        /// How often it was read.
        attempts: u32,
    },
}

/// Enough of a file's content to recognise it, on one line.
fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short.escape_debug().collect()
}
