//! Opens dma-bufs for programs in an emulated node, without seccomp.
