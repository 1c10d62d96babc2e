//! The libraries that show GPUs to administrators and to programs that want to know how much memory there is:
//! rocm_smi (librocm_smi64) and amdsmi (libamd_smi). Under a limit they tell what HIP tells.
//!
//! * `table`: the functions, one row each; `entries` makes the rest of it;
//! * `natives`: the library's own function behind an entry. There may be several libraries and several
//!   copies of one, and one of them may be unloaded again; so unlike HIP's runtime none is chosen;
//! * `library`: what else the library with that function tells;
//! * `device`: which GPU is meant; `share`: what this process is to see of it;
//! * `answers`: the outputs. Only those that are there, of a call that succeeded, are changed.
//!
//! A process that only looks, as `rocm-smi` does, must not take a place in the ledger, nor make one, nor call
//! HIP: it reads the ledger as `hipflex status` does.

mod answers;
mod device;
mod entries;
mod library;
mod natives;
mod share;
mod table;

pub(crate) use natives::entry_before;
pub(crate) use table::Api;

/// `RSMI_STATUS_SUCCESS` of `rocm_smi.h`, `AMDSMI_STATUS_SUCCESS` of `amdsmi.h`.
const SUCCESS: core::ffi::c_int = 0;
/// `RSMI_STATUS_NOT_SUPPORTED`, `AMDSMI_STATUS_NOT_SUPPORTED`.
const NOT_SUPPORTED: core::ffi::c_int = 2;
