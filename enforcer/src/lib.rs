//! `libhipflex.so`: keeps a HIP program inside its share of a GPU's memory.
//!
//! Preloaded, it stands before the HIP runtime in two ways: it exports functions of the same names
//! (`entries`, all made from the one `hook_table`), and it answers look-ups by name (`lookup`). A
//! call goes: entry, *before* (reserve in the account), the runtime's real function, *after* (book).
//!
//! * `runtime`: which HIP runtime is behind the hooks, and where its functions are;
//! * `environment`: the variables, as they were when the program started;
//! * `compute_units`: the mask that the runtime is given, set while the program starts;
//! * `process`: whether there is a limit, found out at the first HIP call, and anew in a forked child;
//! * `account`: the membership in the ledger, with `live` (blocks by pointer), `physical` (blocks by what
//!   keeps them), `devices` (GPUs by HIP number) and `which_gpu` (how a number's GPU is found);
//! * `request`, `sizes`, `home`: what a call asks for, how many bytes that is, and on which device;
//! * `allocation`, `mapping`, `reset`, `observers`, `undo`, `queries`, `refusal`, `impossible`: what the hooks do; `helpers`: what
//!   they ask the runtime;
//! * `smi`: the same answers in the libraries that show GPUs to administrators (rocm_smi, amdsmi);
//! * `overhead`, `tally`, `driver_pid`: what the driver holds for this process beyond its bookings;
//! * `stderr`, `line`, `log`: how users are told, without waiting and without allocating;
//! * `guard`, `stack`, `signals`: calls inside of calls, and how threads are kept from ending inside of ours.
//!
//! It also exports `hipflex_version`, by which tools can tell that a file or a process has it: a constant C string
//! (`extern const char hipflex_version[]`), so that it can be read from the file without loading it.
//!
//! The library lives in other people's programs. Before the first HIP call it does nothing
//! but keep its variables (and, where compute units are limited, set the runtime's): no thread, no file. Nothing in it panics, and were it to, the program goes on.

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

#[cfg(not(all(
    target_arch = "x86_64",
    target_os = "linux",
    target_pointer_width = "64"
)))]
compile_error!("libhipflex.so is for x86-64 Linux, as the HIP runtimes are");

mod account;
mod allocation;
mod below;
mod by_number;
mod clock;
mod compute_units;
mod devices;
mod driver_pid;
mod elf;
mod entries;
mod environment;
mod exit;
mod guard;
mod helpers;
mod hip;
mod home;
mod hook_table;
mod impossible;
mod line;
mod linker;
mod live;
mod lock;
mod log;
mod lookup;
mod mapping;
mod observers;
mod overhead;
mod physical;
mod process;
mod queries;
mod question;
mod refusal;
mod registration;
mod request;
mod reset;
mod runtime;
mod settings;
mod signals;
mod sizes;
mod smi;
mod stack;
mod stderr;
mod tally;
mod undo;
mod which_gpu;

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// The version of this library, as C sees it: `extern const char hipflex_version[]`.
#[cfg_attr(not(test), unsafe(export_name = "hipflex_version"))]
#[cfg_attr(test, allow(dead_code, reason = "a test executable exports nothing"))]
pub static EXPORTED_VERSION: [u8; VERSION.len()] = match VERSION.as_bytes().first_chunk() {
    Some(text) => *text,
    None => [0; VERSION.len()],
};
