//! An AMD GPU, as the amdkfd driver shows it, in user space.

pub mod command_processor;
pub mod drm_info;
pub mod profile;
pub mod sysfs;
