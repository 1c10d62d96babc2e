//! Is there a GPU that HIP can use?

use hipflex_kfd::{Root, Topology, TopologyError};
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
    Ok(topology)
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
