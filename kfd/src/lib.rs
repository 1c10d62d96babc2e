//! What the amdkfd driver says: topology, memory per process.
