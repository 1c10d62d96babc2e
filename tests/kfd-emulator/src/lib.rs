//! An AMD GPU, as the amdkfd driver shows it, in user space.

pub mod abi;
pub mod command_processor;
pub mod drm_info;
pub mod ioctl;
pub mod profile;
pub mod state;
pub mod sysfs;
