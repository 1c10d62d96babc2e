//! What this machine has, what is missing for which tests, and how to get it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Is there a real AMD GPU's driver?
pub(crate) fn has_real_gpu() -> bool {
    Path::new("/dev/kfd").exists()
}

/// Does this process run as root?
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid has no arguments, no memory is touched and it cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Why the emulated node cannot run here; empty if it can.
pub(crate) fn missing_for_node() -> Vec<String> {
    let mut missing = Vec::new();
    if !is_root() {
        missing.push("root, for mounts in a namespace of its own (`sudo env \"PATH=$PATH\" cargo xtask ...`)".into());
    }
    if !Path::new("/dev/fuse").exists() {
        missing.push("/dev/fuse: load the kernel module fuse".into());
    }
    match kernel_version() {
        Some(version) if version < (6, 9) => missing.push(format!(
            "Linux 6.9 for FUSE passthrough: this is {}.{}",
            version.0, version.1
        )),
        Some(_) => {}
        None => missing.push("a kernel version that can be read in /proc/sys/kernel".into()),
    }
    missing
}

fn kernel_version() -> Option<(u32, u32)> {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let mut numbers = text.split(['.', '-']).map(|n| n.trim().parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// A program that is needed, and the Debian package which has it.
struct Tool {
    program: &'static str,
    package: &'static str,
}

const TOOLS: [Tool; 4] = [
    Tool {
        program: "cc",
        package: "gcc",
    },
    Tool {
        program: "dpkg-deb",
        package: "dpkg",
    },
    Tool {
        program: "unshare",
        package: "util-linux",
    },
    Tool {
        program: "kill",
        package: "procps",
    },
];

/// Installs the programs that are missing, as root with apt; else says what to install.
pub(crate) fn install_tools() -> Result<()> {
    let missing: Vec<_> = TOOLS.iter().filter(|t| !is_on_path(t.program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<_> = missing.iter().map(|t| t.package).collect();
    let programs: Vec<_> = missing.iter().map(|t| t.program).collect();
    if !(is_root() && is_on_path("apt-get")) {
        bail!(
            "missing here: {}. On Debian `sudo apt-get install {}` brings them",
            programs.join(", "),
            packages.join(" ")
        );
    }
    println!("installing {} ...", packages.join(" "));
    apt(&["update"])?;
    let mut install = vec!["install", "-y", "--no-install-recommends"];
    install.extend(&packages);
    apt(&install)
}

fn apt(arguments: &[&str]) -> Result<()> {
    let status = Command::new("apt-get")
        .arg("-qq")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .status()
        .context("cannot run apt-get")?;
    if !status.success() {
        bail!(
            "apt-get {} failed ({status}), see above",
            arguments.join(" ")
        );
    }
    Ok(())
}

/// Is there an executable of this name on the PATH?
pub(crate) fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
