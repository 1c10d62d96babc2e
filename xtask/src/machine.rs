//! What this machine has, what is missing for which tests, and how to get it.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use hipflex_e2e::paths;

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
        missing.push(
            "root, for mounts in a namespace of its own (`sudo env \"PATH=$PATH\" cargo xtask ...`)"
                .to_string(),
        );
        // The rest can be told only to root.
        return missing;
    }
    missing.extend(kfd_emulator::node::missing());
    missing
}

/// A program that is needed, and the Debian package which has it.
struct Tool {
    program: &'static str,
    package: &'static str,
}

/// What the end-to-end suites and the demo take beside Rust and its C compiler.
const TOOLS: [Tool; 3] = [
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

/// Installs the programs that the bench needs and that are missing.
///
/// # Errors
/// They cannot be installed here; the message says which they are and what to do.
pub(crate) fn install_tools() -> Result<()> {
    let missing: Vec<_> = TOOLS.iter().filter(|t| !is_on_path(t.program)).collect();
    let packages: Vec<_> = missing.iter().map(|t| t.package).collect();
    let programs: Vec<_> = missing.iter().map(|t| t.program).collect();
    install(&packages).with_context(|| format!("missing here: {}", programs.join(", ")))
}

/// Installs Debian packages, as root with apt.
///
/// # Errors
/// Not root, no apt, or apt's failure; the message says what to install.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    if !(is_root() && is_on_path("apt-get")) {
        bail!(
            "on Debian `sudo apt-get install {}` brings what is needed",
            packages.join(" ")
        );
    }
    println!("installing {} ...", packages.join(" "));
    apt(&["update"])?;
    let mut install = vec!["install", "-y", "--no-install-recommends"];
    install.extend(packages);
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

/// A folder that cannot be preloaded from: the dynamic linker splits its list there.
pub(crate) fn check_workspace() -> Result<()> {
    let root = paths::workspace();
    let text = root.to_string_lossy();
    if text.contains([' ', '\t', ':']) {
        bail!("{text:?}: LD_PRELOAD can hold no path with a space or a colon; move the sources");
    }
    Ok(())
}

/// Is there an executable of this name on the PATH?
pub(crate) fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
