//! Where the bench keeps what it builds and fetches. Everything is below the workspace's `target`.

use std::path::{Path, PathBuf};

/// The root of the workspace.
pub fn workspace() -> PathBuf {
    // tests/e2e is two levels below the root, by the layout of this repository.
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest
        .ancestors()
        .nth(2)
        .unwrap_or(manifest)
        .to_path_buf()
}

/// The workspace's `target` directory, `CARGO_TARGET_DIR` respected.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => workspace().join(dir),
        None => workspace().join("target"),
    }
}

/// Where release builds of the product and of the emulator lie: what a user would install, so
/// that is what the suites test.
pub fn release() -> PathBuf {
    target().join("release")
}

/// Where the fetched ROCm runtimes are unpacked, a folder each.
pub fn rocm() -> PathBuf {
    target().join("rocm")
}

/// Where llama.cpp is unpacked, with a runtime of its own, if it was fetched.
pub fn llama() -> PathBuf {
    target().join("llama")
}

/// Where compiled test programs go.
pub fn programs() -> PathBuf {
    target().join("programs")
}
