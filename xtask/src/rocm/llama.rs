//! llama.cpp with its HIP backend, from Debian's packages: a real client for a tier of its own, since the download is large.

use anyhow::{Context, Result};
use hipflex_e2e::paths;
use hipflex_e2e::runtime::{self, Runtime};

use super::apt::Apt;
use super::folder::Download;

/// The programs, and the backend; it brings rocBLAS and the runtime that it is linked to.
const PACKAGES: [&str; 2] = ["llama.cpp-tools", "libggml0-backend-hip"];

/// rocBLAS has gigabytes of kernels. Used are those for the emulated MI210, gfx90a, but for sums in half precision.
const OTHER_KERNELS: [&str; 4] = [
    "*/rocblas/*gfx[!9]*",
    "*/rocblas/*gfx9[!0]*",
    "*/rocblas/*gfx90[!a]*",
    "*/rocblas/*_Type_HH_*",
];

/// Fetches it, unless it is there already; the runtime that it brings.
pub(crate) fn fetch() -> Result<Runtime> {
    let folder = paths::llama();
    if let Some(there) = runtime::at(&folder)? {
        return Ok(there);
    }
    println!("fetching llama.cpp and its HIP backend of Debian sid (0.5 GB, 3.1 GB unpacked) ...");
    let download = Download {
        folder,
        suites: &["sid"],
        without: &OTHER_KERNELS,
    };
    download
        .fetch(|apt: &Apt| {
            let find = |name: &&str| {
                let found = apt.newest_named(name, str::is_empty)?;
                found.with_context(|| format!("Debian sid has no {name} any more"))
            };
            PACKAGES.iter().map(find).collect()
        })
        .context("llama.cpp")
}
