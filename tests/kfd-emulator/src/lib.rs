//! An AMD GPU, as the amdkfd driver shows it, in user space.
//!
//! AMD's unmodified user-space runtimes run on it: a FUSE file tree serves `/dev/kfd`, the render
//! nodes and the GPU's parts of sysfs inside a private mount namespace, a [`Node`]. Allocations are
//! real and are accounted as the driver does; copies and fills work on real memory; other kernels
//! complete without effect.
//!
//! | module | what it is |
//! |---|---|
//! | [`abi`] | ioctl numbers and structs |
//! | [`profile`] | the GPUs that can be emulated |
//! | [`sysfs`], [`drm_info`] | what the driver shows of a GPU |
//! | [`state`] | processes, memory, queues, events |
//! | [`ioctl`] | the ioctls, as functions of the state |
//! | [`command_processor`] | what the GPU does with a queue |
//! | [`inject`] | descriptors for the caller |
//! | [`server`] | FUSE, threads, the control socket |
//! | [`node`] | the private namespace and the programs in it |

pub mod abi;
pub mod command_processor;
pub mod control;
pub mod drm_info;
pub mod inject;
pub mod ioctl;
pub mod node;
pub mod profile;
pub mod server;
pub mod state;
pub mod sysfs;
pub mod trace;

pub use control::Control;
pub use inject::Inject;
pub use node::Node;
