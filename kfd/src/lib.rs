//! What the amdkfd driver says about this machine: its GPUs, and the VRAM that a process holds.
//!
//! Everything here is a plain read of sysfs or `/proc`: no ioctl, no device is opened, nothing is written.
//! All paths are taken below a [`Root`], so that the same code reads a real machine and a tree in a
//! test's temporary directory.
//!
//! * [`Topology::read`]: the GPUs that this process may use, in the order of their topology nodes.
//! * [`process_vram`]: what the driver has given to one process on one GPU.
//! * [`host_pid()`]: under which PID the driver lists this process.
//! * [`cu`]: which compute units of each GPU a process may use.
//! * [`vram_used`]: what is in use on a board, whoever holds it.
//!
//! The enforcer runs this code inside other people's programs, so nothing in it panics, and a file
//! of unexpected content is an error that names the file.

#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

mod bdf;
pub mod cu;
mod error;
mod gfx;
mod host_pid;
mod memory;
mod properties;
mod root;
mod topology;

#[cfg(test)]
mod fixture;

pub use bdf::{Bdf, ParseBdfError};
pub use error::{ReadError, TopologyError};
pub use gfx::GfxVersion;
pub use host_pid::{HostPid, host_pid};
pub use memory::{ProcessVram, process_vram, vram_used};
pub use root::Root;
pub use topology::{Gpu, Topology};
