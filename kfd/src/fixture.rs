//! A sysfs tree in a temporary directory, for tests.

use std::fs;
use std::os::unix::fs::symlink;

use crate::root::Root;

/// A tree that goes away with its value. It starts with one CPU node, as every machine has.
pub(crate) struct Fixture(tempfile::TempDir);

/// The properties of an MI210, less those of a particular board.
const PROPERTIES: &str = "cpu_cores_count 0\nsimd_count 416\nmem_banks_count 1\nwave_front_size 64\n\
    simd_per_cu 4\ngfx_target_version 90010\nvendor_id 4098\nhive_id 0\nnum_xcc 1\n";

impl Fixture {
    pub(crate) fn new() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        tree.file("sys/class/kfd/kfd/topology/generation_id", "2\n");
        tree.node_file(0, "gpu_id", "0\n");
        tree.node_file(0, "properties", "cpu_cores_count 2\nsimd_count 0\n");
        tree
    }

    pub(crate) fn root(&self) -> Root {
        Root::at(self.0.path())
    }

    /// Writes a file and makes the directories above it.
    pub(crate) fn file(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Makes a symbolic link and the directories above it.
    pub(crate) fn link(&self, path: &str, target: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    /// Lets a symbolic link lead elsewhere.
    pub(crate) fn relink(&self, path: &str, target: &str) {
        self.remove(path);
        self.link(path, target);
    }

    /// Removes a file or a link.
    pub(crate) fn remove(&self, path: &str) {
        fs::remove_file(self.0.path().join(path)).unwrap();
    }

    /// Writes a file of a topology node.
    pub(crate) fn node_file(&self, node: u32, name: &str, text: &str) {
        self.file(
            &format!("sys/class/kfd/kfd/topology/nodes/{node}/{name}"),
            text,
        );
    }

    /// A GPU of 64 GiB with a render node (minor 128 + node), in node `node`.
    pub(crate) fn gpu(&self, node: u32, gpu_id: u32, location_id: u32) {
        let minor = 128 + node;
        self.node_file(node, "gpu_id", &format!("{gpu_id}\n"));
        self.node_file(node, "name", "ip discovery\n");
        self.node_file(
            node,
            "properties",
            &format!("{PROPERTIES}domain 0\nlocation_id {location_id}\ndrm_render_minor {minor}\n"),
        );
        self.node_file(
            node,
            "mem_banks/0/properties",
            "heap_type 1\nsize_in_bytes 68719476736\n",
        );
        self.file(&format!("dev/dri/renderD{minor}"), "");
    }
}
