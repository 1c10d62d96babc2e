//! `gpu_metrics`: the binary table of sensors that the SMI libraries read.

use crate::profile::Gpu;

/// What the sensors of an idle card say; the text files of the PCI device repeat it.
pub(super) mod idle {
    pub(crate) const EDGE_CELSIUS: u16 = 38;
    pub(crate) const HOTSPOT_CELSIUS: u16 = 41;
    pub(crate) const MEMORY_CELSIUS: u16 = 35;
    pub(crate) const SOCKET_WATTS: u16 = 41;
    pub(crate) const SHADER_MHZ: u16 = 500;
    pub(crate) const SOC_MHZ: u16 = 700;
    pub(crate) const MILLIVOLTS: u16 = 793;
}

/// `struct gpu_metrics_v1_3` of Linux's `drivers/gpu/drm/amd/include/kgd_pp_interface.h`, 120 bytes,
/// with every sensor that the card is not given at all ones, which means "not supported".
pub(super) fn of(gpu: &Gpu) -> Vec<u8> {
    const SIZE: u16 = 120;
    const NOT_SUPPORTED: u16 = u16::MAX;
    let memory_mhz = clamp(gpu.profile.max_memory_clock_mhz);
    let mut table = Vec::with_capacity(SIZE.into());
    let halves = |table: &mut Vec<u8>, values: &[u16]| {
        values
            .iter()
            .for_each(|value| table.extend(value.to_le_bytes()));
    };
    // header: size, format revision, content revision
    halves(&mut table, &[SIZE]);
    table.extend([1, 3]);
    // temperatures: edge, hotspot, memory, three regulators
    let regulator = idle::MEMORY_CELSIUS;
    halves(
        &mut table,
        &[
            idle::EDGE_CELSIUS,
            idle::HOTSPOT_CELSIUS,
            idle::MEMORY_CELSIUS,
        ],
    );
    halves(&mut table, &[regulator, regulator, regulator]);
    // activity of graphics, memory and multimedia in percent; power
    halves(&mut table, &[0, 0, 0, idle::SOCKET_WATTS]);
    // energy accumulator (15.26 uJ each), system clock counter (ns)
    table.extend((1u64 << 30).to_le_bytes());
    table.extend(0u64.to_le_bytes());
    // average, then current clocks: gfx, soc, memory, video and display of the first and second engine
    for _ in ["average", "current"] {
        halves(&mut table, &[idle::SHADER_MHZ, idle::SOC_MHZ, memory_mhz]);
        halves(
            &mut table,
            &[idle::SOC_MHZ, idle::SOC_MHZ, NOT_SUPPORTED, NOT_SUPPORTED],
        );
    }
    // throttle status; fan speed, PCIe lanes, speed in 0.1 GT/s, padding
    table.extend(0u32.to_le_bytes());
    let speed: f32 = link_gigatransfers(&gpu.profile.pci.link_speed);
    halves(
        &mut table,
        &[0, clamp(gpu.profile.pci.link_lanes), (speed * 10.0) as u16],
    );
    table.resize(SIZE.into(), 0xff);
    table
}

/// 16.0 of `16.0 GT/s`; 0 when there is no number.
pub(super) fn link_gigatransfers(speed: &str) -> f32 {
    speed
        .split(' ')
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or(0.0)
}

fn clamp(value: u32) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}
