//! VRAM in use: by one process, and on a whole board.

use std::io;

use crate::error::ReadError;
use crate::root::{Root, parse_number, read_number, read_value};
use crate::topology::Gpu;

/// Errors by which the driver says that an entry is being taken down: the attribute is gone
/// (`ENOENT`, `ENOTDIR`), its object is (`ENODEV`), or it no longer knows the attribute (`EINVAL`).
const ENOENT: i32 = 2;
const ENODEV: i32 = 19;
const ENOTDIR: i32 = 20;
const EINVAL: i32 = 22;

/// What the driver says of one process on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessVram {
    /// The driver has given it this many bytes of VRAM.
    Bytes(u64),
    /// The process is known, but its entry for this GPU is on its way in or out. How much it holds
    /// is unknown, and certainly not 0.
    Ending,
    /// The driver knows no process of this PID: it has not opened `/dev/kfd`, is gone altogether, or
    /// the PID is of another PID namespace (the driver uses those of the first).
    Absent,
}

/// The VRAM that the driver has given to process `pid` on the GPU `gpu_id`.
///
/// `pid` is the PID in the initial PID namespace. The figure counts the process's own allocations
/// through KFD, in whole pages; imported buffers and those of the DRM interface are not in it.
///
/// # Errors
/// [`ReadError`] when the entry is there but cannot be read (permissions) or is not a number.
pub fn process_vram(root: &Root, pid: u32, gpu_id: u32) -> Result<ProcessVram, ReadError> {
    let process = root.path(format!("sys/class/kfd/kfd/proc/{pid}"));
    let path = process.join(format!("vram_{gpu_id}"));
    match read_value(&path) {
        Ok(text) => match parse_number(&text) {
            Some(bytes) => Ok(ProcessVram::Bytes(bytes)),
            // The driver prints nothing for a process whose data is already torn down.
            None if text.is_empty() => Ok(ProcessVram::Ending),
            None => Err(ReadError::NotANumber {
                path,
                what: String::from("the file"),
                text,
            }),
        },
        Err(source) if is_ending(&source) => Ok(if process.exists() {
            ProcessVram::Ending
        } else {
            ProcessVram::Absent
        }),
        Err(source) => Err(ReadError::Io { path, source }),
    }
}

fn is_ending(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(ENOENT | ENODEV | ENOTDIR | EINVAL)
    )
}

/// The VRAM in use on a board in bytes, whoever holds it: all processes, DRM clients and the driver.
///
/// For a partition of a board, this is the figure of the whole board.
///
/// # Errors
/// [`ReadError`] when neither the PCI device nor the render node has a readable counter.
pub fn vram_used(root: &Root, gpu: &Gpu) -> Result<u64, ReadError> {
    let pci = root.path(format!(
        "sys/bus/pci/devices/{}/mem_info_vram_used",
        gpu.bdf.board()
    ));
    let by_address = read_number(&pci);
    match (&by_address, gpu.render_minor) {
        // A container may show /sys/class/drm but not /sys/bus/pci.
        (Err(ReadError::Io { source, .. }), Some(minor))
            if source.kind() == io::ErrorKind::NotFound =>
        {
            let drm = root.path(format!(
                "sys/class/drm/renderD{minor}/device/mem_info_vram_used"
            ));
            // Of two failures the first is told: it names the GPU as people know it.
            read_number(&drm).or(by_address)
        }
        _ => by_address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;
    use crate::topology::Topology;

    const PROC: &str = "sys/class/kfd/kfd/proc";

    #[test]
    fn value_ending_and_absent_are_told_apart() {
        let tree = Fixture::new();
        tree.file(&format!("{PROC}/4711/vram_35383"), "2097152\n");
        tree.file(&format!("{PROC}/4712/pasid"), "0\n");
        tree.file(&format!("{PROC}/4713/vram_35383"), "");
        let root = tree.root();
        let ask = |pid, gpu| process_vram(&root, pid, gpu).unwrap();
        assert_eq!(ask(4711, 35383), ProcessVram::Bytes(2_097_152));
        assert_eq!(
            ask(4711, 1),
            ProcessVram::Ending,
            "no entry for this GPU is not 0 bytes"
        );
        assert_eq!(ask(4712, 35383), ProcessVram::Ending);
        assert_eq!(ask(4713, 35383), ProcessVram::Ending);
        assert_eq!(ask(4714, 35383), ProcessVram::Absent);
    }

    #[test]
    fn process_directory_that_is_no_directory_is_ending() {
        let tree = Fixture::new();
        tree.file(&format!("{PROC}/4711"), "");
        assert_eq!(
            process_vram(&tree.root(), 4711, 1).unwrap(),
            ProcessVram::Ending
        );
    }

    #[test]
    fn errors_of_a_dying_entry_are_not_taken_for_others() {
        for (errno, ending) in [
            (2, true),
            (19, true),
            (20, true),
            (22, true),
            (5, false),
            (13, false),
        ] {
            assert_eq!(
                is_ending(&io::Error::from_raw_os_error(errno)),
                ending,
                "errno {errno}"
            );
        }
    }

    #[test]
    fn nonsense_in_a_process_entry_names_the_file() {
        let tree = Fixture::new();
        for text in ["banana", "-1", "18446744073709551616", "12 34", "0x10"] {
            tree.file(&format!("{PROC}/9/vram_7"), text);
            let error = process_vram(&tree.root(), 9, 7).unwrap_err().to_string();
            assert!(
                error.contains("proc/9/vram_7") && error.contains(text),
                "{error}"
            );
        }
        tree.file(&format!("{PROC}/9/vram_7"), &u64::MAX.to_string());
        assert_eq!(
            process_vram(&tree.root(), 9, 7).unwrap(),
            ProcessVram::Bytes(u64::MAX)
        );
    }

    #[test]
    fn board_usage_is_found_by_address_or_by_render_node() {
        let tree = Fixture::new();
        tree.gpu(1, 35383, 0x2000_0300);
        let root = tree.root();
        let topology = Topology::read(&root).unwrap();
        let gpu = topology.gpus.first().unwrap();

        let error = vram_used(&root, gpu).unwrap_err().to_string();
        assert!(
            error.contains("sys/bus/pci/devices/0000:03:00.0/mem_info_vram_used"),
            "{error}"
        );

        tree.file("sys/class/drm/renderD129/device/mem_info_vram_used", "77\n");
        assert_eq!(vram_used(&root, gpu).unwrap(), 77);
        tree.file(
            "sys/bus/pci/devices/0000:03:00.0/mem_info_vram_used",
            "10924032\n",
        );
        assert_eq!(vram_used(&root, gpu).unwrap(), 10_924_032);
        tree.file(
            "sys/bus/pci/devices/0000:03:00.0/mem_info_vram_used",
            "lots\n",
        );
        assert!(
            vram_used(&root, gpu)
                .unwrap_err()
                .to_string()
                .contains("lots")
        );
    }
}
