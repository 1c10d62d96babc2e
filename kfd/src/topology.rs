//! The GPUs of this machine, from `/sys/class/kfd/kfd/topology`.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::bdf::Bdf;
use crate::error::{ReadError, TopologyError};
use crate::gfx::GfxVersion;
use crate::properties::Properties;
use crate::root::{Root, parse_number, read_number, read_text};

/// Where the driver describes the machine.
const TOPOLOGY: &str = "sys/class/kfd/kfd/topology";
/// How often a topology that changes while it is read is read again.
const ATTEMPTS: u32 = 4;
/// `heap_type` of VRAM that the CPU can reach (`HSA_HEAPTYPE_FRAME_BUFFER_PUBLIC`).
const HEAP_PUBLIC: u64 = 1;
/// `heap_type` of VRAM that only the GPU can reach (`HSA_HEAPTYPE_FRAME_BUFFER_PRIVATE`).
const HEAP_PRIVATE: u64 = 2;

/// One GPU, or one partition of a GPU that is split (CPX and the like).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The number of its topology node; ROCr numbers agents in this order.
    pub node: u32,
    /// The driver's identifier, which names `vram_<gpu_id>` and goes into ioctls. Never 0.
    pub gpu_id: u32,
    /// Its address, unique on the machine and the same in every process.
    pub bdf: Bdf,
    /// The name on the box (`AMD Instinct MI210`) where the driver knows it, else the node's name.
    pub name: String,
    /// The instruction set, or `None` on drivers that do not say.
    pub gfx_target_version: Option<GfxVersion>,
    /// Compute units, or `None` where the driver does not say how many SIMDs make one.
    pub cu_count: Option<u32>,
    /// SIMDs per compute unit, as the driver gives it.
    pub simd_per_cu: Option<u32>,
    /// XCCs (compute dies) that work as this one GPU; 1 unless the driver says more.
    pub num_xcc: u32,
    /// VRAM in bytes, or `None` for a GPU without memory of its own (an APU).
    pub vram_bytes: Option<u64>,
    /// The minor number of its DRM render node, or `None` where the driver names none.
    pub render_minor: Option<u32>,
    /// The number in its UUID (`unique_id`), or `None` where the driver names none. Partitions of a board share it with drivers
    /// before 2025.
    pub unique_id: Option<u64>,
    /// Whether that render node is in `/dev/dri`: without it, HIP does not see this GPU.
    pub render_node_present: bool,
}

/// The GPUs that this process may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// The GPUs in the order of their nodes. CPU nodes are left out.
    pub gpus: Vec<Gpu>,
    /// Nodes that the device cgroup of this container hides: the driver answers EPERM for them.
    pub hidden_nodes: Vec<u32>,
}

impl Topology {
    /// Reads the topology below `root`.
    ///
    /// Properties that this crate does not know are ignored, those that older drivers lack are
    /// `None` in [`Gpu`]. A machine without GPUs gives an empty list.
    ///
    /// # Errors
    /// [`TopologyError::NoDriver`] when there is no KFD at all; [`TopologyError::Read`] when a file
    /// that is needed is unreadable or malformed; [`TopologyError::Unstable`] when GPUs came and
    /// went during every attempt.
    pub fn read(root: &Root) -> Result<Self, TopologyError> {
        let directory = root.path(TOPOLOGY);
        for _ in 0..ATTEMPTS {
            let before = generation(&directory)?;
            let read = read_nodes(root, &directory.join("nodes"));
            // A node that vanished half-way is an error only if nothing changed meanwhile.
            if generation(&directory)? == before {
                return read;
            }
        }
        Err(TopologyError::Unstable {
            path: directory,
            attempts: ATTEMPTS,
        })
    }

    /// The GPU of this address.
    pub fn by_bdf(&self, bdf: Bdf) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.bdf == bdf)
    }
}

/// The driver's counter of topology changes; `None` where there is no such file.
fn generation(topology: &Path) -> Result<Option<u64>, TopologyError> {
    match read_number(&topology.join("generation_id")) {
        Ok(generation) => Ok(Some(generation)),
        Err(ReadError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn read_nodes(root: &Root, directory: &Path) -> Result<Topology, TopologyError> {
    let mut topology = Topology::default();
    let nodes = numbered_directories(directory).map_err(|source| {
        let path = directory.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                TopologyError::NoDriver { path }
            }
            _ => ReadError::Io { path, source }.into(),
        }
    })?;
    for (node, path) in nodes {
        match read_node(root, node, &path) {
            Ok(Some(gpu)) => topology.gpus.push(gpu),
            Ok(None) => {}
            Err(error) if is_forbidden(&error) => topology.hidden_nodes.push(node),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(topology)
}

/// Whether the driver refused because of the device cgroup. (EACCES, a file mode, is another matter.)
fn is_forbidden(error: &ReadError) -> bool {
    const EPERM: i32 = 1;
    matches!(error, ReadError::Io { source, .. } if source.raw_os_error() == Some(EPERM))
}

/// The GPU of a node, or `None` for a CPU.
fn read_node(root: &Root, node: u32, path: &Path) -> Result<Option<Gpu>, ReadError> {
    let id_file = path.join("gpu_id");
    let id = read_number(&id_file)?;
    if id == 0 {
        return Ok(None);
    }
    let gpu_id = u32::try_from(id).map_err(|_| ReadError::NotANumber {
        path: id_file,
        what: String::from("the file"),
        text: id.to_string(),
    })?;
    let properties = Properties::read(&path.join("properties"))?;
    let bdf = Bdf::from_kfd(
        properties.u32("domain")?.unwrap_or(0),
        properties.required_u32("location_id")?,
    );
    let simd_per_cu = properties.u32("simd_per_cu")?;
    let simd_count = properties.u32("simd_count")?;
    let render_minor = properties
        .u32("drm_render_minor")?
        .filter(|minor| *minor != 0);
    Ok(Some(Gpu {
        node,
        gpu_id,
        bdf,
        name: name(root, bdf, path),
        gfx_target_version: properties
            .u32("gfx_target_version")?
            .filter(|version| *version != 0)
            .map(GfxVersion),
        cu_count: simd_count
            .zip(simd_per_cu)
            .and_then(|(simds, per_cu)| simds.checked_div(per_cu)),
        simd_per_cu,
        num_xcc: properties.u32("num_xcc")?.unwrap_or(1).max(1),
        vram_bytes: vram_bytes(&path.join("mem_banks"))?,
        render_minor,
        unique_id: properties.u64("unique_id")?.filter(|id| *id != 0),
        render_node_present: render_minor.is_some_and(|minor| root.render_node(minor).exists()),
    }))
}

/// The name on the box, else what the node calls itself. It is for people: unreadable is no error.
fn name(root: &Root, bdf: Bdf, node: &Path) -> String {
    let product = root.path(format!("sys/bus/pci/devices/{}/product_name", bdf.board()));
    [product, node.join("name")]
        .iter()
        .find_map(|path| read_text(path).ok().filter(|name| !name.is_empty()))
        .unwrap_or_else(|| String::from("AMD GPU"))
}

/// The sum of a node's VRAM banks, or `None` when it has none.
fn vram_bytes(mem_banks: &Path) -> Result<Option<u64>, ReadError> {
    let banks = match numbered_directories(mem_banks) {
        Ok(banks) => banks,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(ReadError::Io {
                path: mem_banks.to_owned(),
                source,
            });
        }
    };
    let mut total = None;
    for (_, path) in banks {
        let file = path.join("properties");
        let bank = Properties::read(&file)?;
        if !matches!(bank.u64("heap_type")?, Some(HEAP_PUBLIC | HEAP_PRIVATE)) {
            continue;
        }
        let size = bank.u64("size_in_bytes")?.ok_or(ReadError::Missing {
            path: file.clone(),
            property: "size_in_bytes",
        })?;
        let sum =
            total
                .unwrap_or(0_u64)
                .checked_add(size)
                .ok_or_else(|| ReadError::NotANumber {
                    path: file,
                    what: String::from("the sum of size_in_bytes up to that"),
                    text: String::from("2^64 or more"),
                })?;
        total = Some(sum);
    }
    Ok(total)
}

/// The entries of a directory whose names are numbers, in the order of those numbers.
fn numbered_directories(directory: &Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let mut numbered = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if let Some(number) = directory_number(&entry.file_name()) {
            numbered.push((number, entry.path()));
        }
    }
    numbered.sort_unstable();
    Ok(numbered)
}

fn directory_number(name: &OsStr) -> Option<u32> {
    parse_number(name.to_str()?).and_then(|number| u32::try_from(number).ok())
}

#[cfg(test)]
mod tests;
