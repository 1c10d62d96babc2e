//! `/sys/bus/pci/devices/BDF` of each GPU with its DRM nodes and sensors, as amdgpu makes it
//! (Linux `drivers/gpu/drm/amd/pm/amdgpu_pm.c`, `amdgpu_vram_mgr.c`, `amdgpu_ucode.c`): libdrm and the SMI tools read it.

use super::gpu_metrics::{self, idle};
use super::topology::{MEC_FIRMWARE, SDMA_FIRMWARE};
use super::{Device, Dynamic, Entry, GTT_BYTES, GTT_USED_BY_DRIVER, Tree, TreeOptions};
use crate::profile::Gpu;

/// Major number of DRM devices.
const DRM_MAJOR: u32 = 226;

pub(super) fn add(tree: &mut Tree, gpus: &[Gpu], options: &TreeOptions) {
    for class in [
        "sys/class/drm",
        "sys/bus/pci/devices",
        "sys/bus/pci/drivers/amdgpu",
    ] {
        tree.directory(class);
    }
    for gpu in gpus {
        if !gpu.board.is_on_bus() {
            // amdgpu_xcp_drv.c: a platform device for each further partition, numbered through all boards.
            let further = gpu.board.partitions - 1;
            let number = gpu.board.index * further + gpu.board.partition - 1;
            drm_nodes(
                tree,
                &format!("sys/devices/platform/amdgpu_xcp_{number}"),
                gpu,
            );
            continue;
        }
        let at = format!("sys/devices/pci0000:00/{}", gpu.bdf);
        identity(tree, &at, gpu);
        link_and_locality(tree, &at, gpu, options);
        memory(tree, &at, gpu, options);
        clocks(tree, &at, gpu);
        sensors(tree, &at, gpu);
        drm_nodes(tree, &at, gpu);
        let bdf = gpu.bdf;
        tree.symlink(&format!("{at}/driver"), "../../../bus/pci/drivers/amdgpu");
        tree.symlink(
            &format!("sys/bus/pci/devices/{bdf}"),
            format!("../../../devices/pci0000:00/{bdf}"),
        );
        tree.symlink(
            &format!("sys/bus/pci/drivers/amdgpu/{bdf}"),
            format!("../../../../devices/pci0000:00/{bdf}"),
        );
    }
}

fn identity(tree: &mut Tree, at: &str, gpu: &Gpu) {
    let (profile, pci) = (gpu.profile, &gpu.profile.pci);
    tree.text(&format!("{at}/vendor"), "0x1002");
    tree.text(&format!("{at}/device"), format!("{:#06x}", pci.device_id));
    tree.text(&format!("{at}/subsystem_vendor"), "0x1002");
    tree.text(
        &format!("{at}/subsystem_device"),
        format!("{:#06x}", pci.subsystem_device_id),
    );
    tree.text(&format!("{at}/class"), format!("{:#08x}", pci.class));
    tree.text(&format!("{at}/revision"), format!("{:#04x}", pci.revision));
    tree.text(
        &format!("{at}/unique_id"),
        format!("{:016x}", gpu.board.unique_id),
    );
    tree.text(
        &format!("{at}/serial_number"),
        format!("{:016x}", gpu.board.unique_id),
    );
    tree.text(&format!("{at}/product_name"), &profile.market_name);
    tree.text(&format!("{at}/product_number"), &profile.drm.product_number);
    tree.text(&format!("{at}/vbios_version"), &profile.drm.vbios_part);
    tree.text(
        &format!("{at}/uevent"),
        format!(
            "DRIVER=amdgpu\nPCI_CLASS={:X}\nPCI_ID=1002:{:04X}\nPCI_SUBSYS_ID=1002:{:04X}\nPCI_SLOT_NAME={}",
            pci.class, pci.device_id, pci.subsystem_device_id, gpu.bdf
        ),
    );
    for (name, version) in [
        ("mec", MEC_FIRMWARE),
        ("sdma", SDMA_FIRMWARE),
        ("vcn", 0x0110_101b),
        ("smc", 0x0044_1a00),
        ("rlc", 0x11),
    ] {
        tree.text(
            &format!("{at}/fw_version/{name}_fw_version"),
            format!("{version:#010x}"),
        );
    }
    tree.text(&format!("{at}/ras/features"), "feature mask: 0x3");
    // NPS1: the memory is one, whatever becomes of the XCCs.
    if profile.num_xcc > 1 {
        let mode = match gpu.board.partitions {
            1 => "SPX",
            2 => "DPX",
            4 => "QPX",
            _ => "CPX",
        };
        tree.text(&format!("{at}/current_compute_partition"), mode);
        tree.text(
            &format!("{at}/available_compute_partition"),
            "SPX, DPX, QPX, CPX",
        );
        tree.text(&format!("{at}/current_memory_partition"), "NPS1");
    }
}

fn link_and_locality(tree: &mut Tree, at: &str, gpu: &Gpu, options: &TreeOptions) {
    let pci = &gpu.profile.pci;
    for which in ["current", "max"] {
        tree.text(
            &format!("{at}/{which}_link_speed"),
            format!("{} PCIe", pci.link_speed),
        );
        tree.text(&format!("{at}/{which}_link_width"), pci.link_lanes);
    }
    tree.text(&format!("{at}/pcie_replay_count"), 0);
    // messages received, messages sent, largest payload in bytes
    tree.text(&format!("{at}/pcie_bw"), "0 0 256");
    tree.text(&format!("{at}/numa_node"), 0);
    let last = options.cpu_cores.saturating_sub(1);
    tree.text(
        &format!("{at}/local_cpulist"),
        if last == 0 {
            "0".into()
        } else {
            format!("0-{last}")
        },
    );
}

fn memory(tree: &mut Tree, at: &str, gpu: &Gpu, options: &TreeOptions) {
    // Without a large BAR the CPU sees 256 MiB at a time.
    const SMALL_BAR: u64 = 256 << 20;
    let visible = if options.large_bar {
        gpu.board.vram_bytes
    } else {
        SMALL_BAR.min(gpu.board.vram_bytes)
    };
    tree.text(&format!("{at}/mem_info_vram_total"), gpu.board.vram_bytes);
    tree.text(&format!("{at}/mem_info_vis_vram_total"), visible);
    tree.text(&format!("{at}/mem_info_gtt_total"), GTT_BYTES);
    tree.text(&format!("{at}/mem_info_gtt_used"), GTT_USED_BY_DRIVER);
    tree.text(&format!("{at}/mem_info_vram_vendor"), "samsung");
    tree.text(&format!("{at}/mem_busy_percent"), 0);
    for name in ["mem_info_vram_used", "mem_info_vis_vram_used"] {
        let used = Dynamic::VramUsed { gpu_id: gpu.gpu_id };
        tree.insert(&format!("{at}/{name}"), Entry::Dynamic(used));
    }
    let busy = Dynamic::BusyPercent { gpu_id: gpu.gpu_id };
    tree.insert(&format!("{at}/gpu_busy_percent"), Entry::Dynamic(busy));
}

fn clocks(tree: &mut Tree, at: &str, gpu: &Gpu) {
    let profile = gpu.profile;
    let (low, high) = (idle::SHADER_MHZ, profile.max_engine_clock_mhz);
    let memory = profile.max_memory_clock_mhz;
    let speed = gpu_metrics::link_gigatransfers(&profile.pci.link_speed);
    tree.text(&format!("{at}/power_dpm_force_performance_level"), "auto");
    // The star marks the level that is in use.
    let middle = (u32::from(low) + high) / 2;
    tree.text(
        &format!("{at}/pp_dpm_sclk"),
        format!("0: {low}Mhz *\n1: {middle}Mhz\n2: {high}Mhz"),
    );
    tree.text(
        &format!("{at}/pp_dpm_mclk"),
        format!("0: 400Mhz\n1: {memory}Mhz *"),
    );
    tree.text(&format!("{at}/pp_dpm_fclk"), "0: 1400Mhz *");
    tree.text(
        &format!("{at}/pp_dpm_socclk"),
        format!("0: {}Mhz *", idle::SOC_MHZ),
    );
    tree.text(
        &format!("{at}/pp_dpm_pcie"),
        format!("0: {speed:.1}GT/s, x{} *", profile.pci.link_lanes),
    );
    tree.text(
        &format!("{at}/pp_od_clk_voltage"),
        format!(
            "OD_SCLK:\n0: {low}Mhz\n1: {high}Mhz\nOD_MCLK:\n0: 400Mhz\n1: {memory}Mhz\n\
             OD_RANGE:\nSCLK: {low}Mhz {high}Mhz\nMCLK: 400Mhz {memory}Mhz"
        ),
    );
}

fn sensors(tree: &mut Tree, at: &str, gpu: &Gpu) {
    tree.insert(
        &format!("{at}/gpu_metrics"),
        Entry::Binary(gpu_metrics::of(gpu)),
    );
    let at = format!("{at}/hwmon/hwmon{}", gpu.index);
    tree.text(&format!("{at}/name"), "amdgpu");
    // millidegrees
    for (number, label, celsius, critical) in [
        (1, "edge", idle::EDGE_CELSIUS, 100_000),
        (2, "junction", idle::HOTSPOT_CELSIUS, 105_000),
        (3, "mem", idle::MEMORY_CELSIUS, 95_000),
    ] {
        tree.text(&format!("{at}/temp{number}_label"), label);
        tree.text(
            &format!("{at}/temp{number}_input"),
            u32::from(celsius) * 1000,
        );
        tree.text(&format!("{at}/temp{number}_crit"), critical);
    }
    tree.text(&format!("{at}/in0_label"), "vddgfx");
    tree.text(&format!("{at}/in0_input"), idle::MILLIVOLTS);
    // hertz
    let memory = gpu.profile.max_memory_clock_mhz;
    for (number, label, mhz) in [
        (1, "sclk", u32::from(idle::SHADER_MHZ)),
        (2, "mclk", memory),
    ] {
        tree.text(&format!("{at}/freq{number}_label"), label);
        tree.text(
            &format!("{at}/freq{number}_input"),
            u64::from(mhz) * 1_000_000,
        );
    }
    // microwatts
    let cap = u64::from(gpu.profile.power_cap_watts) * 1_000_000;
    tree.text(&format!("{at}/power1_label"), "PPT");
    tree.text(
        &format!("{at}/power1_average"),
        u64::from(idle::SOCKET_WATTS) * 1_000_000,
    );
    tree.text(&format!("{at}/power1_cap_min"), 0);
    for name in ["power1_cap", "power1_cap_default", "power1_cap_max"] {
        tree.text(&format!("{at}/{name}"), cap);
    }
}

/// The card and render nodes: in `/dev/dri`, below the PCI device, and the links that lead there.
fn drm_nodes(tree: &mut Tree, at: &str, gpu: &Gpu) {
    let device = at.rsplit('/').next().unwrap_or(at);
    let below = at.strip_prefix("sys/").unwrap_or(at);
    for (name, minor) in [
        (format!("card{}", gpu.card_minor()), gpu.card_minor()),
        (format!("renderD{}", gpu.render_minor), gpu.render_minor),
    ] {
        let node = Entry::Device(Device::Render { gpu_id: gpu.gpu_id });
        tree.insert(&format!("dev/dri/{name}"), node);
        tree.text(
            &format!("{at}/drm/{name}/dev"),
            format!("{DRM_MAJOR}:{minor}"),
        );
        tree.text(
            &format!("{at}/drm/{name}/uevent"),
            format!("MAJOR={DRM_MAJOR}\nMINOR={minor}\nDEVNAME=dri/{name}\nDEVTYPE=drm_minor"),
        );
        tree.symlink(
            &format!("{at}/drm/{name}/device"),
            format!("../../../{device}"),
        );
        let target = format!("../../{below}/drm/{name}");
        tree.symlink(&format!("sys/class/drm/{name}"), &target);
        tree.symlink(&format!("sys/dev/char/{DRM_MAJOR}:{minor}"), &target);
    }
}
