//! The end-to-end suites: real HIP runtimes on the emulated node.
