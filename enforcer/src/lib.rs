//! `libhipflex.so`: keeps a HIP program inside its share of a GPU.
