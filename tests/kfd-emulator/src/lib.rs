//! An AMD GPU, as the amdkfd driver shows it, in user space.
