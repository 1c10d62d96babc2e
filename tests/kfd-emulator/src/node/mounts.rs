//! The mounts of a node.
//!
//! The server does this in a mount namespace of its own, in which every mount is private, so
//! nothing of it is seen outside, and all of it goes with the last process inside. Nothing is
//! made on the host's file systems either: the directories that mounts need are in a tmpfs that is
//! put over `/dev/shm` first and disappears under the node's own `/dev`.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::fcntl::{OFlag, open};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::Mode;

use super::{CACHE_DIRECTORY, NODE_DIRECTORY, PROGRAM_DIRECTORY};
use crate::server::caller::DMABUF_DIRECTORY;

/// What `rocminfo` runs to see whether the driver is loaded.
const LSMOD: &str =
    "#!/bin/sh\necho 'Module                  Size  Used by'\necho 'amdgpu 9990144 0'\n";

/// The tmpfs with the directories that mounts need, reached through a descriptor: other mounts
/// cover its path.
pub(super) struct Scaffold {
    root: OwnedFd,
}

impl Scaffold {
    /// Enters a new mount namespace and puts the scaffold up.
    pub(super) fn raise() -> Result<Self> {
        unshare(CloneFlags::CLONE_NEWNS)
            .context("cannot make a mount namespace (are you root?)")?;
        let everywhere = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, everywhere, None::<&str>)
            .context("cannot make the mounts private")?;
        let at = Path::new("/dev/shm");
        new_tmpfs(at)?;
        let scaffold = Self {
            root: open_path(at)?,
        };
        for directory in ["fuse", "run", "dev/dri", "dev/shm", "sys", "etc"] {
            fs::create_dir_all(scaffold.path(directory))
                .with_context(|| format!("cannot make {directory} in the scaffold"))?;
        }
        Ok(scaffold)
    }

    /// A path in the scaffold, for the calling thread's table of descriptors.
    pub(super) fn path(&self, inside: impl AsRef<Path>) -> PathBuf {
        PathBuf::from(format!("/proc/thread-self/fd/{}", self.root.as_raw_fd())).join(inside)
    }

    /// Where the emulator's file tree is to be mounted.
    pub(super) fn fuse(&self) -> PathBuf {
        self.path("fuse")
    }

    /// The node's own directory, that will be [`NODE_DIRECTORY`].
    pub(super) fn run(&self) -> PathBuf {
        self.path("run")
    }

    /// Builds the node's `/dev` and `/sys` once the file tree is mounted, and `/etc` when a library
    /// is to be preloaded into every program.
    pub(super) fn build(&self, preload: Option<&Path>) -> Result<()> {
        self.build_run()?;
        self.build_dev()?;
        self.build_sys()?;
        preload.map_or(Ok(()), |library| self.build_etc(library))
    }

    fn build_run(&self) -> Result<()> {
        let run = self.run();
        for directory in [PROGRAM_DIRECTORY, CACHE_DIRECTORY, DMABUF_DIRECTORY] {
            fs::create_dir_all(run.join(directory))?;
        }
        fs::set_permissions(
            run.join(CACHE_DIRECTORY),
            fs::Permissions::from_mode(0o1777),
        )?;
        let lsmod = run.join(PROGRAM_DIRECTORY).join("lsmod");
        fs::write(&lsmod, LSMOD)?;
        fs::set_permissions(&lsmod, fs::Permissions::from_mode(0o755))?;
        fs::write(run.join(super::MARK_FILE), "")?;
        Ok(())
    }

    /// `/dev`: the host's, with the emulated devices, the node's own directory and an empty
    /// `/dev/shm` in it.
    fn build_dev(&self) -> Result<()> {
        let fuse = self.fuse();
        let lower = self.path("dev");
        fs::write(lower.join("kfd"), "")?;
        let mut devices = vec!["kfd".to_owned()];
        for name in names(&fuse.join("dev/dri"))? {
            fs::write(lower.join("dri").join(&name), "")?;
            devices.push(format!("dri/{name}"));
        }
        // The host's own GPUs are not part of the node.
        hide_lower(&lower.join("dri"))?;
        let own = Path::new(NODE_DIRECTORY);
        fs::create_dir_all(lower.join(own.strip_prefix("/dev")?))?;
        // Sources are opened first: the overlay covers /dev, not what a descriptor leads to.
        let run = self.run();
        overlay(&lower, Path::new("/dev"), &[Path::new("/dev/shm")])?;
        for device in devices {
            bind(
                &fuse.join("dev").join(&device),
                &Path::new("/dev").join(&device),
            )?;
        }
        bind(&run, own)?;
        for own_file in [DMABUF_DIRECTORY, super::MARK_FILE] {
            bind(&fuse.join(own_file), &own.join(own_file))?;
        }
        new_tmpfs(Path::new("/dev/shm"))
    }

    /// `/sys`: the host's, with the emulator's directories and links in it, and the cgroup root
    /// read-only. (With cgroup v1 that root is a plain tmpfs, where a mkdir would stay.)
    fn build_sys(&self) -> Result<()> {
        let (tree, lower) = (self.fuse().join("sys"), self.path("sys"));
        let mut binds = Vec::new();
        plan_sys(&tree, &lower, Path::new(""), &mut binds)?;
        overlay(&lower, Path::new("/sys"), &[])?;
        for directory in binds {
            bind(&tree.join(&directory), &Path::new("/sys").join(&directory))?;
        }
        let cgroups = Path::new("/sys/fs/cgroup");
        if mount_points(Path::new("/sys/fs"))?
            .iter()
            .any(|point| point == cgroups)
        {
            let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
            mount(None::<&str>, cgroups, None::<&str>, flags, None::<&str>)
                .context("cannot make the cgroup root read-only")?;
        }
        Ok(())
    }

    /// `/etc`: the host's, with an `ld.so.preload` that names the library. Unlike `LD_PRELOAD`, this
    /// leaves that variable to what is under test.
    fn build_etc(&self, library: &Path) -> Result<()> {
        let name = "libkfd_inject.so";
        fs::copy(library, self.run().join(name))
            .with_context(|| format!("cannot copy {}", library.display()))?;
        let before = match fs::read_to_string("/etc/ld.so.preload") {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).context("cannot read /etc/ld.so.preload"),
        };
        let own = Path::new(NODE_DIRECTORY).join(name);
        fs::write(
            self.path("etc/ld.so.preload"),
            format!("{}\n{before}", own.display()),
        )?;
        overlay(&self.path("etc"), Path::new("/etc"), &[])
    }
}

/// Directories of `/sys` that the node replaces as a whole, though the host may have them too.
const REPLACED: [&str; 4] = [
    "devices/virtual/kfd",
    "class/kfd",
    "class/drm",
    "module/amdgpu",
];

/// Makes in the overlay's lower layer what `/sys` lacks, and lists what is to be bound over it:
/// the directories above, each PCI device, and links as they are.
fn plan_sys(tree: &Path, lower: &Path, at: &Path, binds: &mut Vec<PathBuf>) -> Result<()> {
    for name in names(&tree.join(at))? {
        let path = at.join(&name);
        let source = tree.join(&path);
        let kind = fs::symlink_metadata(&source)?.file_type();
        if kind.is_symlink() {
            symlink(fs::read_link(&source)?, lower.join(&path))?;
        } else if kind.is_dir() {
            fs::create_dir_all(lower.join(&path))?;
            let is_pci_device = source.join("vendor").exists();
            if is_pci_device || REPLACED.iter().any(|replaced| path == Path::new(replaced)) {
                binds.push(path);
            } else {
                plan_sys(tree, lower, &path, binds)?;
            }
        }
    }
    Ok(())
}

fn names(directory: &Path) -> Result<Vec<String>> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect()
}

/// Tells overlayfs not to look below a directory of a lower layer.
fn hide_lower(directory: &Path) -> Result<()> {
    let path = std::ffi::CString::new(directory.as_os_str().as_encoded_bytes())?;
    let (name, value) = (c"trusted.overlay.opaque", b"y");
    // SAFETY: two strings that end with a zero, and a value with its length.
    let result = unsafe {
        libc::setxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            0,
        )
    };
    nix::errno::Errno::result(result)
        .map(|_| ())
        .with_context(|| format!("cannot make {} opaque", directory.display()))
}

/// Puts an overlay of `lower` and what is at `target` over `target`. Mounts below `target` stay
/// visible, but for those in `without`.
fn overlay(lower: &Path, target: &Path, without: &[&Path]) -> Result<()> {
    let mut kept = Vec::new();
    for point in mount_points(target)? {
        if !without.contains(&point.as_path()) {
            kept.push((open_path(&point)?, point));
        }
    }
    let options = format!("lowerdir={}:{}", lower.display(), target.display());
    mount(
        Some("kfd-emulator"),
        target,
        Some("overlay"),
        MsFlags::empty(),
        Some(&*options),
    )
    .with_context(|| format!("cannot put an overlay over {}", target.display()))?;
    for (source, point) in kept {
        bind(
            Path::new(&format!("/proc/thread-self/fd/{}", source.as_raw_fd())),
            &point,
        )?;
    }
    Ok(())
}

fn bind(source: &Path, target: &Path) -> Result<()> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(source), target, None::<&str>, flags, None::<&str>)
        .with_context(|| format!("cannot bind {} to {}", source.display(), target.display()))
}

fn new_tmpfs(target: &Path) -> Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(
        Some("kfd-emulator"),
        target,
        Some("tmpfs"),
        flags,
        Some("mode=1777"),
    )
    .with_context(|| format!("cannot mount a tmpfs at {}", target.display()))
}

fn open_path(path: &Path) -> Result<OwnedFd> {
    open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
        .with_context(|| format!("cannot open {}", path.display()))
}

/// The uppermost mount points below a directory.
fn mount_points(below: &Path) -> Result<Vec<PathBuf>> {
    let text = fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts")?;
    Ok(uppermost(&text, below))
}

fn uppermost(mountinfo: &str, below: &Path) -> Vec<PathBuf> {
    let mut points: Vec<PathBuf> = mountinfo
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|point| PathBuf::from(unescape(point)))
        .filter(|point| point.starts_with(below) && point != below)
        .collect();
    points.sort();
    points.dedup();
    let all = points.clone();
    points.retain(|point| {
        !all.iter()
            .any(|other| point != other && point.starts_with(other))
    });
    points
}

/// The kernel writes space, tab, newline and backslash of a path as `\` and three octal digits.
fn unescape(text: &str) -> String {
    [
        (r"\040", " "),
        (r"\011", "\t"),
        (r"\012", "\n"),
        (r"\134", r"\"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (code, meaning)| {
        text.replace(code, meaning)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uppermost_mounts_below() {
        let line = |point: &str| format!("36 35 98:0 / {point} rw - tmpfs x rw\n");
        let text: String = [
            "/",
            "/dev",
            "/dev/pts",
            "/dev/pts",
            "/dev/shm/a\\040b",
            "/dev/pts/x",
            "/devices",
        ]
        .into_iter()
        .map(line)
        .collect();
        let found = uppermost(&text, Path::new("/dev"));
        assert_eq!(found, [Path::new("/dev/pts"), Path::new("/dev/shm/a b")]);
    }
}
