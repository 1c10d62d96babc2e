//! Is there a GPU that HIP can use?

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use hipflex_kfd::{Gpu, Root, Topology, TopologyError};
use nix::unistd::{AccessFlags, access};

use crate::failure::Failure;

/// The GPUs of this machine, if HIP will be able to use at least one of them.
pub(crate) fn check(root: &Root) -> Result<Topology, Failure> {
    let device = root.kfd_device();
    let shown = device.display();
    if !device.exists() {
        return Err(Failure::refused(
            format!("there is no {shown}, so HIP finds no GPU"),
            "load the driver (modprobe amdgpu); in a container, pass --device /dev/kfd --device /dev/dri",
        ));
    }
    if let Err(error) = access(&device, AccessFlags::R_OK | AccessFlags::W_OK) {
        return Err(Failure::refused(
            format!("cannot open {shown} for reading and writing: {error}"),
            "add this user to the group that owns it (usually render or video) and log in again",
        ));
    }
    let topology = Topology::read(root).map_err(|error| match error {
        TopologyError::NoDriver { .. } => Failure::refused(error.to_string(), ""),
        other => Failure::refused(format!("cannot list the GPUs: {other}"), ""),
    })?;
    if topology.gpus.is_empty() {
        let problem = match topology.hidden_nodes.len() {
            0 => String::from("the amdgpu driver lists no GPU"),
            hidden => {
                format!("all GPUs ({hidden}) are hidden from this container by its device cgroup")
            }
        };
        return Err(Failure::refused(
            problem,
            "check dmesg and `ls /dev/dri`; in a container, pass --device /dev/kfd --device /dev/dri",
        ));
    }
    if !topology.gpus.iter().any(|gpu| gpu.render_node_present) {
        let wanted: Vec<String> = topology
            .gpus
            .iter()
            .filter_map(|gpu| Some(root.render_node(gpu.render_minor?).display().to_string()))
            .collect();
        return Err(Failure::refused(
            format!("no GPU has its render node ({})", wanted.join(", ")),
            "HIP ignores such GPUs; in a container, pass --device /dev/dri",
        ));
    }
    let closed = closed_render_nodes(root, &topology);
    let present = topology.gpus.iter().filter(|gpu| gpu.render_node_present);
    if closed.len() == present.count()
        && let Some((_, path, error)) = closed.first()
    {
        return Err(Failure::refused(
            format!(
                "cannot open {} for reading and writing: {error}",
                path.display()
            ),
            "add this user to the group that owns it (usually render or video) and log in again; in a \
             container, pass --device /dev/dri",
        ));
    }
    Ok(topology)
}

/// The GPUs that HIP will not see or cannot use, while others are there. A line for each.
pub(crate) fn unusable(root: &Root, topology: &Topology) -> Vec<String> {
    let missing = topology
        .gpus
        .iter()
        .filter(|gpu| !gpu.render_node_present)
        .map(|gpu| format!("HIP will not see {}: no render node in /dev/dri", gpu.bdf));
    let closed = closed_render_nodes(root, topology)
        .into_iter()
        .map(|(gpu, path, error)| {
            format!(
                "HIP cannot use {}: cannot open {} for reading and writing: {error}",
                gpu.bdf,
                path.display()
            )
        });
    missing.chain(closed).collect()
}

/// The render nodes that are there and do not open. Permission bits do not tell all: the device
/// cgroup of a container refuses only the opening.
fn closed_render_nodes<'a>(
    root: &Root,
    topology: &'a Topology,
) -> Vec<(&'a Gpu, PathBuf, io::Error)> {
    let present = topology.gpus.iter().filter(|gpu| gpu.render_node_present);
    let closed = present.filter_map(|gpu| {
        let path = root.render_node(gpu.render_minor?);
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK);
        let error = options.open(&path).err()?;
        Some((gpu, path, error))
    });
    closed.collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;
    use tempfile::TempDir;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A machine with GPUs of 64 GiB at 0000:03:00.0, 0000:04:00.0 and so on.
    pub(crate) fn machine(gpus: u32) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "dev/kfd", "");
        for gpu in 0..=gpus {
            let node = format!("sys/class/kfd/kfd/topology/nodes/{gpu}");
            let id = if gpu == 0 { 0 } else { 1000 + gpu };
            write(root.path(), &format!("{node}/gpu_id"), &format!("{id}\n"));
            let properties = format!(
                "simd_count 416\nsimd_per_cu 4\nlocation_id {}\ndrm_render_minor {}\n",
                (2 + gpu) << 8,
                127 + gpu
            );
            write(root.path(), &format!("{node}/properties"), &properties);
            let bank = "heap_type 1\nsize_in_bytes 68719476736\n";
            write(root.path(), &format!("{node}/mem_banks/0/properties"), bank);
            write(root.path(), &format!("dev/dri/renderD{}", 127 + gpu), "");
        }
        root
    }

    fn message(machine: &TempDir) -> String {
        check(&Root::at(machine.path())).unwrap_err().to_string()
    }

    #[test]
    fn a_machine_with_gpus_passes() {
        let machine = machine(2);
        assert_eq!(check(&Root::at(machine.path())).unwrap().gpus.len(), 2);
    }

    #[test]
    fn gpus_that_cannot_be_used_beside_others_are_named() {
        let machine = machine(3);
        let root = Root::at(machine.path());
        fs::remove_file(root.render_node(129)).unwrap();
        fs::remove_file(root.render_node(130)).unwrap();
        fs::create_dir(root.render_node(130)).unwrap();
        let topology = check(&root).unwrap();
        let told = unusable(&root, &topology);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(
            told[0].starts_with("HIP will not see 0000:04:00.0"),
            "{told:?}"
        );
        assert!(
            told[1].starts_with("HIP cannot use 0000:05:00.0: cannot open ")
                && told[1].contains("renderD130"),
            "{told:?}"
        );
    }

    #[test]
    fn each_thing_that_is_missing_is_named() {
        let no_kfd = tempfile::tempdir().unwrap();
        assert!(
            message(&no_kfd).contains("dev/kfd, so HIP finds no GPU"),
            "{}",
            message(&no_kfd)
        );

        let no_driver = tempfile::tempdir().unwrap();
        write(no_driver.path(), "dev/kfd", "");
        assert!(
            message(&no_driver).contains("modprobe amdgpu"),
            "{}",
            message(&no_driver)
        );

        let no_gpu = machine(0);
        assert!(
            message(&no_gpu).contains("lists no GPU"),
            "{}",
            message(&no_gpu)
        );

        let no_render_node = machine(1);
        fs::remove_dir_all(no_render_node.path().join("dev/dri")).unwrap();
        let text = message(&no_render_node);
        assert!(
            text.contains("renderD128") && text.contains("--device /dev/dri"),
            "{text}"
        );

        let closed = machine(2);
        for minor in ["renderD128", "renderD129"] {
            // A directory is not opened for writing, by root neither.
            fs::remove_file(closed.path().join("dev/dri").join(minor)).unwrap();
            fs::create_dir(closed.path().join("dev/dri").join(minor)).unwrap();
        }
        let text = message(&closed);
        assert!(
            text.contains("cannot open ") && text.contains("renderD128 for reading and writing"),
            "{text}"
        );

        let malformed = machine(1);
        write(
            malformed.path(),
            "sys/class/kfd/kfd/topology/nodes/1/gpu_id",
            "banana",
        );
        assert!(
            message(&malformed).contains("banana"),
            "{}",
            message(&malformed)
        );
    }
}
