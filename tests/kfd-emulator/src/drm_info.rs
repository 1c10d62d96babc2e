//! Answers of the render node's `AMDGPU_INFO` ioctl, computed from a GPU.
//!
//! Queries and structures are those of Linux's `include/uapi/drm/amdgpu_drm.h` (`AMDGPU_INFO_*`,
//! `struct drm_amdgpu_info_*`). Each answer has the size of its structure; the driver copies as much of it as the
//! caller has room for. libdrm_amdgpu asks most of them when it opens the device, the SMI libraries the rest.

use crate::profile::Gpu;
use crate::sysfs::{GTT_BYTES, GTT_USED_BY_DRIVER, VRAM_USED_BY_DRIVER};

/// `AMDGPU_INFO_*`
mod query {
    pub(super) const ACCEL_WORKING: u32 = 0x00;
    pub(super) const HW_IP_INFO: u32 = 0x02;
    pub(super) const HW_IP_COUNT: u32 = 0x03;
    pub(super) const TIMESTAMP: u32 = 0x05;
    pub(super) const FW_VERSION: u32 = 0x0e;
    pub(super) const NUM_BYTES_MOVED: u32 = 0x0f;
    pub(super) const VRAM_USAGE: u32 = 0x10;
    pub(super) const GTT_USAGE: u32 = 0x11;
    pub(super) const GDS_CONFIG: u32 = 0x13;
    pub(super) const VRAM_GTT: u32 = 0x14;
    pub(super) const READ_MMR_REG: u32 = 0x15;
    pub(super) const DEV_INFO: u32 = 0x16;
    pub(super) const VIS_VRAM_USAGE: u32 = 0x17;
    pub(super) const NUM_EVICTIONS: u32 = 0x18;
    pub(super) const MEMORY: u32 = 0x19;
    pub(super) const VBIOS: u32 = 0x1b;
    pub(super) const SENSOR: u32 = 0x1d;
    pub(super) const NUM_VRAM_CPU_PAGE_FAULTS: u32 = 0x1e;
    pub(super) const VRAM_LOST_COUNTER: u32 = 0x1f;
    pub(super) const RAS_ENABLED_FEATURES: u32 = 0x20;
}

/// `AMDGPU_HW_IP_*`
mod hw_ip {
    pub(super) const GFX: u32 = 0;
    pub(super) const COMPUTE: u32 = 1;
    pub(super) const DMA: u32 = 2;
}

/// The answer to a query, or `None` where the driver says EINVAL.
///
/// `sub` is the first word of the query's own input (IP type, sensor, VBIOS part). `used`: bytes of VRAM that
/// processes hold on this GPU.
pub fn answer(gpu: &Gpu, query: u32, sub: u32, used: u64) -> Option<Vec<u8>> {
    let profile = gpu.profile;
    let used = used.saturating_add(VRAM_USED_BY_DRIVER);
    Some(match query {
        query::ACCEL_WORKING => word(1),
        query::HW_IP_INFO => hw_ip_info(gpu, sub)?,
        query::HW_IP_COUNT => word(u32::from(has_hw_ip(sub))),
        // drm_amdgpu_info_firmware: version, feature version
        query::FW_VERSION => Structure::new(8).u32(0, 71).u32(4, 71).bytes,
        query::VRAM_USAGE | query::VIS_VRAM_USAGE => long(used),
        query::GTT_USAGE => long(GTT_USED_BY_DRIVER),
        query::TIMESTAMP
        | query::NUM_BYTES_MOVED
        | query::NUM_EVICTIONS
        | query::NUM_VRAM_CPU_PAGE_FAULTS
        | query::RAS_ENABLED_FEATURES => long(0),
        query::VRAM_LOST_COUNTER => word(0),
        // drm_amdgpu_info_gds: no global data share
        query::GDS_CONFIG => Structure::new(32).bytes,
        // drm_amdgpu_info_vram_gtt
        query::VRAM_GTT => {
            let vram = gpu.vram_bytes;
            Structure::new(24)
                .u64(0, vram)
                .u64(8, vram)
                .u64(16, GTT_BYTES)
                .bytes
        }
        // Up to 128 registers: the tiling set-up, of which compute clients use nothing.
        query::READ_MMR_REG => vec![0; 128 * 4],
        query::DEV_INFO => device(gpu),
        query::MEMORY => memory(gpu, used),
        query::VBIOS => vbios(gpu, sub)?,
        query::SENSOR => word(match sub {
            // GFX_SCLK and GFX_MCLK in MHz
            1 => profile.max_engine_clock_mhz,
            2 => profile.max_memory_clock_mhz,
            // GPU_TEMP in millidegrees, GPU_LOAD in percent, GPU_AVG_POWER and GPU_INPUT_POWER in watts
            3 => 38_000,
            4 => 0,
            5 | 0xc => 41,
            // VDDNB and VDDGFX in millivolts
            6 | 7 => 793,
            // STABLE_PSTATE_ and PEAK_PSTATE_, GFX_SCLK and GFX_MCLK
            8 | 0xa => profile.max_engine_clock_mhz,
            9 | 0xb => profile.max_memory_clock_mhz,
            _ => return None,
        }),
        _ => return None,
    })
}

fn has_hw_ip(ip: u32) -> bool {
    matches!(ip, hw_ip::GFX | hw_ip::COMPUTE | hw_ip::DMA)
}

/// `struct drm_amdgpu_info_hw_ip`. Blocks that are not there (video engines) answer with zeros.
fn hw_ip_info(gpu: &Gpu, ip: u32) -> Option<Vec<u8>> {
    const KINDS: u32 = 10; // AMDGPU_HW_IP_NUM
    if ip >= KINDS {
        return None;
    }
    let info = Structure::new(32);
    if !has_hw_ip(ip) {
        return Some(info.bytes);
    }
    let drm = &gpu.profile.drm;
    let [major, minor] = if ip == hw_ip::DMA {
        drm.sdma_ip
    } else {
        drm.gc_ip
    };
    // A graphics ring is not there on compute cards, nor needed on others.
    let rings = if ip == hw_ip::GFX { 0 } else { 0xf };
    Some(
        info.u32(0, major)
            .u32(4, minor)
            .u32(16, 32)
            .u32(20, 32)
            .u32(24, rings)
            .bytes,
    )
}

/// `struct drm_amdgpu_info_device`
fn device(gpu: &Gpu) -> Vec<u8> {
    let (profile, pci) = (gpu.profile, &gpu.profile.pci);
    let mut info = Structure::new(440)
        .u32(0, pci.device_id)
        // chip_rev, external_rev, pci_rev
        .u32(4, 0)
        .u32(8, pci.revision)
        .u32(12, pci.revision)
        .u32(16, profile.drm.family)
        .u32(20, profile.shader_arrays / profile.arrays_per_engine)
        .u32(24, profile.arrays_per_engine)
        // gpu_counter_freq, max_engine_clock and max_memory_clock in kHz
        .u32(28, 100_000)
        .u64(32, u64::from(profile.max_engine_clock_mhz) * 1000)
        .u64(40, u64::from(profile.max_memory_clock_mhz) * 1000)
        .u32(48, profile.cu_count)
        // virtual_address_offset, _max, _alignment; pte_fragment_size; gart_page_size
        .u64(144, 0x20_0000)
        .u64(152, 0x7fff_ffff_f000)
        .u32(160, 4096)
        .u32(164, 4096)
        .u32(168, 4096)
        .u32(176, profile.vram_type.drm_code())
        .u32(180, profile.vram_width_bits)
        .u32(240, profile.wavefront_size)
        .u32(248, profile.cu_per_array)
        // pcie_num_lanes
        .u32(268, pci.link_lanes);
    // cu_bitmap[4][4]: the active CUs of each array of the engines that fit in
    let each = profile.cu_count.div_ceil(profile.shader_arrays).min(31);
    for cell in 0..16 {
        let (engine, array) = (cell / 4, cell % 4);
        let there = engine < profile.shader_arrays / profile.arrays_per_engine
            && array < profile.arrays_per_engine;
        info = info.u32(
            56 + 4 * cell as usize,
            if there { (1 << each) - 1 } else { 0 },
        );
    }
    info.bytes
}

/// `struct drm_amdgpu_memory_info`: VRAM, VRAM that the CPU can reach, GTT; each total, usable, used and largest.
fn memory(gpu: &Gpu, used: u64) -> Vec<u8> {
    let vram = gpu.vram_bytes;
    let heaps = [(vram, used), (vram, used), (GTT_BYTES, GTT_USED_BY_DRIVER)];
    let mut info = Structure::new(96);
    for (heap, (total, used)) in heaps.into_iter().enumerate() {
        let at = heap * 32;
        info = info.u64(at, total).u64(at + 8, total).u64(at + 16, used);
        info = info.u64(at + 24, total / 4 * 3);
    }
    info.bytes
}

fn vbios(gpu: &Gpu, part: u32) -> Option<Vec<u8>> {
    const IMAGE_BYTES: usize = 64 << 10;
    Some(match part {
        // AMDGPU_INFO_VBIOS_SIZE
        1 => word(IMAGE_BYTES as u32),
        // AMDGPU_INFO_VBIOS_IMAGE: an option ROM's mark and nothing in it
        2 => {
            let mut image = vec![0; IMAGE_BYTES];
            image[..2].copy_from_slice(&[0x55, 0xaa]);
            image
        }
        // AMDGPU_INFO_VBIOS_INFO: struct drm_amdgpu_info_vbios
        3 => {
            Structure::new(200)
                .text(0, 64, &gpu.profile.market_name)
                .text(64, 64, &gpu.profile.drm.vbios_part)
                .u32(128, 1)
                .text(136, 32, "022.040.003.043.000001")
                .text(168, 32, "2024/01/15 12:00")
                .bytes
        }
        _ => return None,
    })
}

fn word(value: u32) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

fn long(value: u64) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

/// A C structure, all zeros at first.
struct Structure {
    bytes: Vec<u8>,
}

impl Structure {
    fn new(size: usize) -> Structure {
        Structure {
            bytes: vec![0; size],
        }
    }

    fn u32(mut self, at: usize, value: u32) -> Structure {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    fn u64(mut self, at: usize, value: u64) -> Structure {
        self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        self
    }

    /// A C string in a field of `room` bytes: cut so that its zero at the end fits.
    fn text(mut self, at: usize, room: usize, text: &str) -> Structure {
        let length = text.len().min(room - 1);
        self.bytes[at..at + length].copy_from_slice(&text.as_bytes()[..length]);
        self
    }
}

#[cfg(test)]
mod tests;
