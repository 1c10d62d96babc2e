//! The GPUs that can be emulated: one data file per card, and the devices made from it.
//!
//! The numbers are those that amdkfd's topology and the amdgpu driver report for the card.
//! They live in `profiles/*.toml`, are part of the program, and are checked before use.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::LazyLock;

use serde::Deserialize;

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;
/// VRAM of an emulated GPU: enough for what a runtime allocates at start, and far from the end of a 47-bit address space.
const VRAM_RANGE: std::ops::RangeInclusive<u64> = 64 * MIB..=2 * TIB;

/// The data files, by file name.
const FILES: [(&str, &str); 4] = [
    ("mi100.toml", include_str!("../profiles/mi100.toml")),
    ("mi210.toml", include_str!("../profiles/mi210.toml")),
    ("mi300x.toml", include_str!("../profiles/mi300x.toml")),
    ("rx7900xtx.toml", include_str!("../profiles/rx7900xtx.toml")),
];

static ALL: LazyLock<Result<Vec<Profile>, ProfileError>> = LazyLock::new(|| {
    FILES
        .into_iter()
        .map(|(file, text)| {
            Profile::parse(text).map_err(|reason| ProfileError::Invalid {
                file: file.to_owned(),
                reason,
            })
        })
        .collect()
});

/// One model of GPU. Field names follow amdkfd's topology properties where those exist.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The name by which it is chosen, such as `mi210`.
    pub name: String,
    /// GPUs in a node that does not say how many: what the card is sold in.
    pub default_count: usize,
    /// The name that the SMI tools print.
    pub market_name: String,
    /// The topology node's `name`: the chip's code name, or `ip discovery` on newer chips.
    pub topology_name: String,
    /// The ISA as decimal `major * 10000 + minor * 100 + stepping`.
    pub gfx_target_version: u32,
    /// Active compute units of the whole device.
    pub cu_count: u32,
    /// SIMD units in each compute unit.
    pub simd_per_cu: u32,
    /// Accelerator complex dies that work as this one device.
    pub num_xcc: u32,
    /// Shader arrays of the whole device (`array_count`).
    pub shader_arrays: u32,
    /// Shader arrays in each shader engine (`simd_arrays_per_engine`).
    pub arrays_per_engine: u32,
    /// Places for compute units in a shader array (`cu_per_simd_array`), active or not.
    pub cu_per_array: u32,
    /// Waves that a SIMD can hold.
    pub max_waves_per_simd: u32,
    /// Work-items in a wave.
    pub wavefront_size: u32,
    /// SDMA engines for transfers over PCIe.
    pub sdma_engines: u32,
    /// SDMA engines for transfers over XGMI.
    pub sdma_xgmi_engines: u32,
    /// User queues that one SDMA engine serves.
    pub queues_per_sdma_engine: u32,
    /// User compute queues in hardware (`num_cp_queues`).
    pub compute_queues: u32,
    /// Bytes of VRAM (`mem_info_vram_total`).
    pub vram_bytes: u64,
    /// Kind of memory.
    pub vram_type: VramType,
    /// Memory bus width in bits.
    pub vram_width_bits: u32,
    /// Highest shader clock in MHz.
    pub max_engine_clock_mhz: u32,
    /// Highest memory clock in MHz.
    pub max_memory_clock_mhz: u32,
    /// Whether several of these are linked by XGMI (one hive) rather than by PCIe.
    pub xgmi: bool,
    /// Board power limit in watts.
    pub power_cap_watts: u32,
    /// The PCI side.
    pub pci: Pci,
    /// What only the render node tells.
    pub drm: Drm,
    /// Data caches, one entry per level.
    pub caches: Vec<Cache>,
}

/// The PCI identity of a card, and the places its instances take.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pci {
    /// PCI device id; the vendor is always 0x1002.
    pub device_id: u32,
    /// PCI revision.
    pub revision: u32,
    /// PCI subsystem device id.
    pub subsystem_device_id: u32,
    /// PCI class code, 24 bits.
    pub class: u32,
    /// Bus of the first, second, ... GPU of a node; its length is the most that a node can have.
    pub buses: Vec<u8>,
    /// Link speed as sysfs prints it, without the trailing `PCIe`.
    pub link_speed: String,
    /// Lanes of the link.
    pub link_lanes: u32,
}

/// What only the render node tells (`AMDGPU_INFO`).
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drm {
    /// `AMDGPU_FAMILY_*` of amdgpu_drm.h.
    pub family: u32,
    /// Major and minor version of the graphics IP.
    pub gc_ip: [u32; 2],
    /// Major and minor version of the SDMA IP.
    pub sdma_ip: [u32; 2],
    /// VBIOS part number.
    pub vbios_part: String,
    /// Board product number.
    pub product_number: String,
}

/// A data cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// 1, 2 or 3.
    pub level: u32,
    /// Size in KiB.
    pub kib: u32,
    /// Cache line in bytes.
    pub line_bytes: u32,
}

/// Kind of VRAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VramType {
    /// HBM2, HBM2e, HBM3.
    Hbm,
    /// GDDR6.
    Gddr6,
}

impl VramType {
    /// `AMDGPU_VRAM_TYPE_*` of amdgpu_drm.h.
    pub fn drm_code(self) -> u32 {
        match self {
            VramType::Hbm => 6,
            VramType::Gddr6 => 9,
        }
    }
}

/// Why there is no such GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// No profile has this name.
    #[error("no GPU profile {wanted:?}; choose one of {known}")]
    Unknown {
        /// What was asked for.
        wanted: String,
        /// Every name, with the gfx name in brackets.
        known: String,
    },
    /// A data file is wrong.
    #[error("profiles/{file} is not a valid GPU profile: {reason}")]
    Invalid {
        /// The data file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// More GPUs than the profile has PCI addresses for.
    #[error("{wanted} GPUs were asked for, but a node of {name} holds at most {most}")]
    TooMany {
        /// The profile.
        name: String,
        /// GPUs asked for.
        wanted: usize,
        /// The most that a node can have.
        most: usize,
    },
    /// Partitions that the board cannot be split into.
    #[error("{name} cannot be split into {count} partitions: it has {xccs} XCCs")]
    Partitions {
        /// The profile.
        name: String,
        /// Partitions asked for.
        count: u32,
        /// XCCs of the board.
        xccs: u32,
    },
    /// VRAM that no runtime could work with.
    #[error("{bytes} bytes of VRAM were asked for; give between {} MiB and {} MiB", VRAM_RANGE.start() / MIB, VRAM_RANGE.end() / MIB)]
    Vram {
        /// Bytes asked for.
        bytes: u64,
    },
    /// Sizes for another number of GPUs.
    #[error("{sizes} sizes of VRAM were given for {gpus} GPUs; give one for all, or one for each")]
    VramCount {
        /// Sizes given.
        sizes: usize,
        /// GPUs of the node.
        gpus: usize,
    },
}

impl Profile {
    /// The profile of that name (`mi210`) or gfx name (`gfx90a`).
    ///
    /// # Errors
    /// [`ProfileError::Unknown`] lists what exists; [`ProfileError::Invalid`] tells that a data file is damaged.
    pub fn by_name(name: &str) -> Result<&'static Profile, ProfileError> {
        let all = Profile::all()?;
        let wanted = name.to_ascii_lowercase();
        all.iter()
            .find(|p| p.name == wanted || p.gfx_name() == wanted)
            .ok_or_else(|| {
                let known: Vec<_> = all
                    .iter()
                    .map(|p| format!("{} ({})", p.name, p.gfx_name()))
                    .collect();
                ProfileError::Unknown {
                    wanted: name.to_owned(),
                    known: known.join(", "),
                }
            })
    }

    /// Every profile there is.
    ///
    /// # Errors
    /// [`ProfileError::Invalid`] when a data file is damaged.
    pub fn all() -> Result<&'static [Profile], ProfileError> {
        ALL.as_deref().map_err(Clone::clone)
    }

    /// The compiler's name of the ISA, such as `gfx90a`: stepping and minor are hexadecimal digits.
    pub fn gfx_name(&self) -> String {
        let (major, minor, stepping) = self.gfx_version();
        format!("gfx{major}{minor:x}{stepping:x}")
    }

    /// Major, minor and stepping of the ISA.
    pub fn gfx_version(&self) -> (u32, u32, u32) {
        let v = self.gfx_target_version;
        (v / 10_000, v / 100 % 100, v % 100)
    }

    /// Whether compute units come in pairs (work-group processors), as from gfx10 on:
    /// the kernel then refuses CU masks that split a pair.
    pub fn has_wgp(&self) -> bool {
        self.gfx_version().0 >= 10
    }

    fn parse(text: &str) -> Result<Profile, String> {
        let profile: Profile = toml::from_str(text).map_err(|e| e.to_string())?;
        profile.check()?;
        Ok(profile)
    }

    fn check(&self) -> Result<(), String> {
        let positive = [
            ("cu_count", self.cu_count),
            ("simd_per_cu", self.simd_per_cu),
            ("num_xcc", self.num_xcc),
            ("shader_arrays", self.shader_arrays),
            ("arrays_per_engine", self.arrays_per_engine),
            ("cu_per_array", self.cu_per_array),
            ("max_waves_per_simd", self.max_waves_per_simd),
            ("sdma_engines", self.sdma_engines),
            ("queues_per_sdma_engine", self.queues_per_sdma_engine),
            ("compute_queues", self.compute_queues),
            ("vram_width_bits", self.vram_width_bits),
            ("max_engine_clock_mhz", self.max_engine_clock_mhz),
            ("max_memory_clock_mhz", self.max_memory_clock_mhz),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(format!("{name} is 0"));
        }
        let places = u64::from(self.shader_arrays) * u64::from(self.cu_per_array);
        if u64::from(self.cu_count) > places {
            return Err(format!(
                "cu_count is {}, but the shader arrays hold {places}",
                self.cu_count
            ));
        }
        for (name, whole, part) in [
            ("cu_count by num_xcc", self.cu_count, self.num_xcc),
            ("shader_arrays by num_xcc", self.shader_arrays, self.num_xcc),
            (
                "shader_arrays by arrays_per_engine",
                self.shader_arrays,
                self.arrays_per_engine,
            ),
        ] {
            if whole % part != 0 {
                return Err(format!("{name} leaves a remainder ({whole} / {part})"));
            }
        }
        if ![32, 64].contains(&self.wavefront_size) {
            return Err(format!(
                "wavefront_size is {}, not 32 or 64",
                self.wavefront_size
            ));
        }
        if !(7..=12).contains(&self.gfx_version().0) {
            return Err(format!(
                "gfx_target_version {} has no gfx name",
                self.gfx_target_version
            ));
        }
        if !VRAM_RANGE.contains(&self.vram_bytes) {
            return Err(format!("vram_bytes is {}", self.vram_bytes));
        }
        if !(1..=self.pci.buses.len()).contains(&self.default_count) {
            return Err(format!(
                "default_count is {}, but there are {} buses",
                self.default_count,
                self.pci.buses.len()
            ));
        }
        let buses: BTreeSet<_> = self.pci.buses.iter().collect();
        if buses.is_empty() || buses.len() != self.pci.buses.len() {
            return Err("pci.buses is empty or names a bus twice".to_owned());
        }
        if self.pci.device_id > 0xffff || self.pci.class > 0xff_ffff || self.pci.revision > 0xff {
            return Err("a PCI id is out of range".to_owned());
        }
        let levels: Vec<_> = self.caches.iter().map(|c| c.level).collect();
        if levels.is_empty()
            || levels
                .iter()
                .zip(1..)
                .any(|(level, wanted)| *level != wanted)
        {
            return Err(format!("cache levels are {levels:?}, not 1, 2, ..."));
        }
        Ok(())
    }
}

/// Domain, bus, device and function (BDF) of a PCI device; printed as sysfs does: `0000:03:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// PCI domain (segment).
    pub domain: u16,
    /// Bus.
    pub bus: u8,
    /// Device, 5 bits.
    pub device: u8,
    /// Function, 3 bits.
    pub function: u8,
}

impl PciAddress {
    /// amdkfd's `location_id` of a whole board: bus in bits 15:8, device in 7:3, function in 2:0.
    pub fn location_id(self) -> u32 {
        u32::from(self.bus) << 8
            | u32::from(self.device & 0x1f) << 3
            | u32::from(self.function & 0x7)
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04x}:{:02x}:{:02x}.{:x}",
            self.domain, self.bus, self.device, self.function
        )
    }
}

/// One emulated GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// 0 for the first GPU. Its topology node is `index + 1`, as node 0 is the CPU.
    pub index: u32,
    /// amdkfd's identifier of the device, in ioctls and in sysfs names.
    pub gpu_id: u32,
    /// Minor number of its render node, from 128.
    pub render_minor: u32,
    /// Where it is on the PCI bus.
    pub bdf: PciAddress,
    /// amdkfd's `location_id`: the address, and the partition as [`PartitionIds`] says.
    pub location_id: u32,
    /// Bytes of VRAM: the profile's, or what was asked for instead, or a partition's part of that.
    pub vram_bytes: u64,
    /// Number in its UUID (`unique_id` of the topology).
    pub unique_id: u64,
    /// What model it is.
    pub profile: &'static Profile,
    /// The board that it is, or is a partition of.
    pub board: Board,
}

/// A board, as one of its partitions knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Board {
    /// 0 for the first board of the node.
    pub index: u32,
    /// Into how many partitions it is split; 1: it is whole.
    pub partitions: u32,
    /// Which of them this is.
    pub partition: u32,
    /// Bytes of VRAM of the whole board.
    pub vram_bytes: u64,
    /// Serial number of the board.
    pub unique_id: u64,
}

impl Board {
    /// Whether this stands for the board on the PCI bus: the others are platform devices beside it.
    pub fn is_on_bus(&self) -> bool {
        self.partition == 0
    }
}

/// How amdkfd tells the partitions of a board apart in the topology. It has changed twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum PartitionIds {
    /// In the function's bits of `location_id` ("drm/amdkfd: add gpu compute cores io links for gfx9.4.3", March 2023). All have
    /// the board's `unique_id`.
    Function,
    /// In `location_id[31:28]` ("drm/amdkfd: Add partition id field to location_id", February 2024). All have the board's
    /// `unique_id`.
    Location,
    /// The same, and each has a `unique_id` of its own, that of its first XCD (`dev->gpu->xcp->unique_id` in `node_show`, 2025).
    #[default]
    Unique,
}

impl Gpu {
    /// Its number in amdkfd's topology.
    pub fn node(&self) -> u32 {
        self.index + 1
    }

    /// Minor number of its primary (`card`) node.
    pub fn card_minor(&self) -> u32 {
        self.index
    }

    /// A partition's part of what its board has `all` of.
    fn part(&self, all: u32) -> u32 {
        all / self.board.partitions
    }

    /// Active compute units.
    pub fn cu_count(&self) -> u32 {
        self.part(self.profile.cu_count)
    }

    /// Accelerator complex dies.
    pub fn num_xcc(&self) -> u32 {
        self.part(self.profile.num_xcc)
    }

    /// Shader arrays.
    pub fn shader_arrays(&self) -> u32 {
        self.part(self.profile.shader_arrays)
    }

    /// SDMA engines for transfers over PCIe, and those for transfers over XGMI: of a partition's engines the first two
    /// are of the former kind (`kfd_get_num_sdma_engines` and `kfd_get_num_xgmi_sdma_engines` of amdkfd).
    pub fn sdma_engines(&self) -> (u32, u32) {
        let (pcie, xgmi) = (self.profile.sdma_engines, self.profile.sdma_xgmi_engines);
        let all = self.part(pcie + xgmi);
        (pcie.min(all), all - pcie.min(all))
    }
}

/// The partitions of boards: each is split into `count`, as in CPX with as many as the board has XCCs. The memory is not
/// (NPS1): each partition is told the same part of it (`amdgpu_amdkfd_xcp_memory_size`).
///
/// # Errors
/// [`ProfileError::Partitions`] tells what is possible.
pub fn split(boards: Vec<Gpu>, count: u32, ids: PartitionIds) -> Result<Vec<Gpu>, ProfileError> {
    if count == 1 {
        return Ok(boards);
    }
    if let Some(board) = boards.first() {
        let xccs = board.profile.num_xcc;
        if !(1..=8).contains(&count) || !xccs.is_multiple_of(count) {
            let name = board.profile.name.clone();
            return Err(ProfileError::Partitions { name, count, xccs });
        }
    }
    let partitions = boards.iter().flat_map(|board| {
        (0..count).map(move |partition| {
            let index = board.index * count + partition;
            let location = board.bdf.location_id();
            Gpu {
                index,
                gpu_id: gpu_id(index),
                render_minor: FIRST_RENDER_MINOR + index,
                location_id: match ids {
                    PartitionIds::Function => location | partition,
                    PartitionIds::Location | PartitionIds::Unique => location | partition << 28,
                },
                vram_bytes: (board.vram_bytes / u64::from(count)) & !0xfff,
                unique_id: match ids {
                    PartitionIds::Unique => xcd_id(index),
                    PartitionIds::Function | PartitionIds::Location => board.unique_id,
                },
                board: Board {
                    partitions: count,
                    partition,
                    ..board.board
                },
                ..board.clone()
            }
        })
    });
    Ok(partitions.collect())
}

const FIRST_RENDER_MINOR: u32 = 128;

/// amdkfd hashes the PCI identity into 16 bits: to a client these are arbitrary, distinct and not 0.
fn gpu_id(index: u32) -> u32 {
    0x8a37 + 0x111 * index
}

/// The serial number of a die: other digits than those of boards.
fn xcd_id(index: u32) -> u64 {
    0x5c0d_93a1_7be2_4600 + u64::from(index)
}

/// The GPUs of a node: `count` of one model. `vram` has the bytes of each: none, as the model has it; one, the
/// same for all; else one for each. No GPU at all is a valid node too.
///
/// # Errors
/// [`ProfileError::TooMany`], [`ProfileError::Vram`] and [`ProfileError::VramCount`] tell what is possible.
pub fn gpus(
    profile: &'static Profile,
    count: usize,
    vram: &[u64],
) -> Result<Vec<Gpu>, ProfileError> {
    if count > profile.pci.buses.len() {
        let (name, most) = (profile.name.clone(), profile.pci.buses.len());
        return Err(ProfileError::TooMany {
            name,
            wanted: count,
            most,
        });
    }
    let sizes = match *vram {
        [] => vec![profile.vram_bytes; count],
        [bytes] => vec![bytes; count],
        _ => vram.to_vec(),
    };
    if sizes.len() != count {
        return Err(ProfileError::VramCount {
            sizes: sizes.len(),
            gpus: count,
        });
    }
    if let Some(&bytes) = sizes.iter().find(|bytes| !VRAM_RANGE.contains(bytes)) {
        return Err(ProfileError::Vram { bytes });
    }
    let gpus = (0u32..)
        .zip(&profile.pci.buses)
        .zip(sizes)
        .map(|((index, bus), vram_bytes)| {
            let bdf = PciAddress {
                domain: 0,
                bus: *bus,
                device: 0,
                function: 0,
            };
            let vram_bytes = vram_bytes & !0xfff;
            let unique_id = 0x1a2b_3c4d_5e6f_7000 + u64::from(index);
            Gpu {
                index,
                gpu_id: gpu_id(index),
                render_minor: FIRST_RENDER_MINOR + index,
                bdf,
                location_id: bdf.location_id(),
                vram_bytes,
                unique_id,
                profile,
                board: Board {
                    index,
                    partitions: 1,
                    partition: 0,
                    vram_bytes,
                    unique_id,
                },
            }
        });
    Ok(gpus.collect())
}

#[cfg(test)]
mod tests;
