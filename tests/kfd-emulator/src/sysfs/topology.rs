//! `/sys/devices/virtual/kfd/kfd`: the topology of amdkfd.
//!
//! Names, order and formats of the properties are those of Linux's `drivers/gpu/drm/amd/amdkfd/kfd_topology.c`
//! (`node_show`, `mem_show`, `kfd_cache_show`, `iolink_show`): libhsakmt reads them as lines `name value`.

use super::{Entry, Tree, TreeOptions};
use crate::profile::{Cache, Gpu};

const KFD: &str = "sys/devices/virtual/kfd/kfd";

/// Firmware versions: any that the runtimes do not refuse as too old.
pub(super) const MEC_FIRMWARE: u64 = 71;
pub(super) const SDMA_FIRMWARE: u64 = 8;

/// `capability` bits (Linux `include/uapi/linux/kfd_sysfs.h`, `HSA_CAP_*`).
mod capability {
    pub(super) const WATCH_POINTS_SUPPORTED: u64 = 1 << 7;
    /// log2 of the number of watch points (4), in bits 11:8.
    pub(super) const WATCH_POINTS: u64 = 2 << 8;
    /// Doorbells of 64 bits, in bits 13:12.
    pub(super) const DOORBELL_TYPE_2_0: u64 = 2 << 12;
    pub(super) const TRAP_DEBUG_SUPPORT: u64 = 1 << 15;
    pub(super) const MEM_EDC_SUPPORTED: u64 = 1 << 20;
    /// Bits 25:22.
    pub(super) const ASIC_REVISION_1: u64 = 1 << 22;
    pub(super) const SRAM_EDC_SUPPORTED: u64 = 1 << 26;
    pub(super) const SVM_API_SUPPORTED: u64 = 1 << 27;
}
const CAPABILITY: u64 = capability::WATCH_POINTS_SUPPORTED
    | capability::WATCH_POINTS
    | capability::DOORBELL_TYPE_2_0
    | capability::TRAP_DEBUG_SUPPORT
    | capability::MEM_EDC_SUPPORTED
    | capability::ASIC_REVISION_1
    | capability::SRAM_EDC_SUPPORTED
    | capability::SVM_API_SUPPORTED;
/// `HSA_DBG_*`: watch address mask bits 6..29, dispatch info always valid.
const DEBUG_PROPERTIES: u64 = 0x5d7;
/// `processor_id_low` and `simd_id_base` of the first GPU (as in Linux's kfd_crat.c); each further GPU starts 0x1000 later.
const FIRST_SIMD_ID: u64 = 0x8000_1000;
const CPU_CLOCK_MHZ: u64 = 2400;

/// `io_links` types (`CRAT_IOLINK_TYPE_*` in Linux's kfd_crat.h) with what amdkfd says of them.
#[derive(Clone, Copy)]
enum Link {
    /// CPU to GPU or back.
    Pcie,
    /// GPU to GPU by way of the CPU: twice the weight.
    PcieThroughCpu,
    Xgmi,
    /// Partitions of one board (`kfd_fill_gpu_xgmi_link_to_gpu` of kfd_crat.c).
    InsideBoard,
    /// Partitions of different boards, in the same place: the longest way there may be.
    BetweenPartitions,
}

impl Link {
    /// Type, weight, lowest and highest bandwidth in MB/s.
    fn numbers(self) -> (u64, u64, u64, u64) {
        match self {
            Link::Pcie => (2, 20, 312, 32_000),
            Link::PcieThroughCpu => (2, 40, 312, 32_000),
            Link::Xgmi => (11, 15, 64_000, 64_000),
            Link::InsideBoard => (11, 13, 819_200, 819_200),
            Link::BetweenPartitions => (11, 2 * 13 + 15, 0, 0),
        }
    }
}

pub(super) fn add(tree: &mut Tree, gpus: &[Gpu], options: &TreeOptions) {
    tree.text(&format!("{KFD}/dev"), "510:0");
    tree.text(&format!("{KFD}/uevent"), "MAJOR=510\nMINOR=0\nDEVNAME=kfd");
    tree.insert(&format!("{KFD}/proc"), Entry::ProcessRoot);
    tree.symlink("sys/class/kfd/kfd", "../../devices/virtual/kfd/kfd");
    tree.text(&format!("{KFD}/topology/generation_id"), 2);
    let system = [
        ("platform_oem", 35_498_446_626_881),
        ("platform_id", 71_791_775_140_929),
        ("platform_rev", 2),
    ];
    properties(tree, &format!("{KFD}/topology/system_properties"), &system);
    cpu(tree, gpus, options);
    for gpu in gpus {
        self::gpu(tree, gpu, gpus, options);
    }
}

fn node_path(node: u32) -> String {
    format!("{KFD}/topology/nodes/{node}")
}

/// Node 0: the processor and its memory.
fn cpu(tree: &mut Tree, gpus: &[Gpu], options: &TreeOptions) {
    let node = node_path(0);
    tree.text(&format!("{node}/gpu_id"), 0);
    tree.text(&format!("{node}/name"), "");
    let links = if options.large_bar {
        gpus.len() as u64
    } else {
        0
    };
    let numbers = Numbers {
        cpu_cores: options.cpu_cores.into(),
        mem_banks: 1,
        io_links: links,
        ..Numbers::default()
    };
    let mut list = common_properties(&numbers, None);
    list.push(("max_engine_clk_ccompute", CPU_CLOCK_MHZ));
    properties(tree, &format!("{node}/properties"), &list);
    memory(tree, &node, 0, options.memory_bytes, 72, CPU_CLOCK_MHZ);
    tree.directory(&format!("{node}/caches"));
    tree.directory(&format!("{node}/p2p_links"));
    tree.directory(&format!("{node}/io_links"));
    for (number, gpu) in gpus.iter().enumerate().take(links as usize) {
        link(
            tree,
            &format!("{node}/io_links/{number}"),
            Link::Pcie,
            0,
            gpu.node(),
        );
    }
}

/// A GPU's node.
fn gpu(tree: &mut Tree, gpu: &Gpu, gpus: &[Gpu], options: &TreeOptions) {
    let node = node_path(gpu.node());
    let profile = gpu.profile;
    tree.text(&format!("{node}/gpu_id"), gpu.gpu_id);
    tree.text(&format!("{node}/name"), &profile.topology_name);

    // GPUs of a hive are neighbours; others reach each other through the CPU.
    let peers: Vec<&Gpu> = gpus
        .iter()
        .filter(|other| other.index != gpu.index)
        .collect();
    tree.directory(&format!("{node}/p2p_links"));
    link(
        tree,
        &format!("{node}/io_links/0"),
        Link::Pcie,
        gpu.node(),
        0,
    );
    for (number, peer) in peers.iter().enumerate() {
        if profile.xgmi {
            let path = format!("{node}/io_links/{}", number + 1);
            let kind = match gpu.board.partitions {
                1 => Link::Xgmi,
                _ if gpu.board.index == peer.board.index => Link::InsideBoard,
                _ => Link::BetweenPartitions,
            };
            link(tree, &path, kind, gpu.node(), peer.node());
        } else {
            let path = format!("{node}/p2p_links/{number}");
            link(tree, &path, Link::PcieThroughCpu, gpu.node(), peer.node());
        }
    }
    let (neighbours, distant) = if profile.xgmi {
        (peers.len() as u64, 0)
    } else {
        (0, peers.len() as u64)
    };

    let numbers = Numbers {
        cpu_cores: 0,
        mem_banks: 1,
        caches: profile.caches.len() as u64,
        io_links: 1 + neighbours,
        p2p_links: distant,
    };
    let mut list = common_properties(&numbers, Some((gpu, options.hive_of(gpu))));
    list.extend([
        (
            "max_engine_clk_fcompute",
            profile.max_engine_clock_mhz.into(),
        ),
        // The kernel prints 0 here: memory is told per bank.
        ("local_mem_size", 0),
        ("fw_version", MEC_FIRMWARE),
        ("capability", CAPABILITY),
        ("debug_prop", DEBUG_PROPERTIES),
        ("sdma_fw_version", SDMA_FIRMWARE),
        ("unique_id", gpu.unique_id),
        ("num_xcc", gpu.num_xcc().into()),
        ("max_engine_clk_ccompute", CPU_CLOCK_MHZ),
    ]);
    properties(tree, &format!("{node}/properties"), &list);

    // HSA_MEM_HEAP_TYPE_FB_PUBLIC or _FB_PRIVATE
    let heap = if options.large_bar { 1 } else { 2 };
    let (width, clock) = (
        profile.vram_width_bits.into(),
        profile.max_memory_clock_mhz.into(),
    );
    memory(tree, &node, heap, gpu.vram_bytes, width, clock);
    for (number, cache) in profile.caches.iter().enumerate() {
        self::cache(tree, &format!("{node}/caches/{number}"), gpu, cache);
    }
}

/// How much of what a node has.
#[derive(Default)]
struct Numbers {
    cpu_cores: u64,
    mem_banks: u64,
    caches: u64,
    io_links: u64,
    p2p_links: u64,
}

/// The properties that every node has, all 0 where they are about a GPU and the node is none.
fn common_properties(numbers: &Numbers, gpu: Option<(&Gpu, u64)>) -> Vec<(&'static str, u64)> {
    let of = |value: fn(&Gpu) -> u64| gpu.map_or(0, |(gpu, _)| value(gpu));
    vec![
        ("cpu_cores_count", numbers.cpu_cores),
        (
            "simd_count",
            of(|g| u64::from(g.cu_count()) * u64::from(g.profile.simd_per_cu)),
        ),
        ("mem_banks_count", numbers.mem_banks),
        ("caches_count", numbers.caches),
        ("io_links_count", numbers.io_links),
        ("p2p_links_count", numbers.p2p_links),
        ("cpu_core_id_base", 0),
        ("simd_id_base", of(simd_id_base)),
        (
            "max_waves_per_simd",
            of(|g| g.profile.max_waves_per_simd.into()),
        ),
        ("lds_size_in_kb", of(|_| 64)),
        ("gds_size_in_kb", 0),
        ("num_gws", of(|_| 64)),
        ("wave_front_size", of(|g| g.profile.wavefront_size.into())),
        ("array_count", of(|g| g.shader_arrays().into())),
        (
            "simd_arrays_per_engine",
            of(|g| g.profile.arrays_per_engine.into()),
        ),
        ("cu_per_simd_array", of(|g| g.profile.cu_per_array.into())),
        ("simd_per_cu", of(|g| g.profile.simd_per_cu.into())),
        ("max_slots_scratch_cu", of(|_| 32)),
        (
            "gfx_target_version",
            of(|g| g.profile.gfx_target_version.into()),
        ),
        ("vendor_id", of(|_| 0x1002)),
        ("device_id", of(|g| g.profile.pci.device_id.into())),
        ("location_id", of(|g| g.location_id.into())),
        ("domain", of(|g| g.bdf.domain.into())),
        ("drm_render_minor", of(|g| g.render_minor.into())),
        ("hive_id", gpu.map_or(0, |(_, hive)| hive)),
        ("num_sdma_engines", of(|g| g.sdma_engines().0.into())),
        ("num_sdma_xgmi_engines", of(|g| g.sdma_engines().1.into())),
        (
            "num_sdma_queues_per_engine",
            of(|g| g.profile.queues_per_sdma_engine.into()),
        ),
        ("num_cp_queues", of(|g| g.profile.compute_queues.into())),
    ]
}

fn simd_id_base(gpu: &Gpu) -> u64 {
    FIRST_SIMD_ID + u64::from(gpu.index) * 0x1000
}

fn memory(tree: &mut Tree, node: &str, heap: u64, bytes: u64, width: u64, clock: u64) {
    let list = [
        ("heap_type", heap),
        ("size_in_bytes", bytes),
        ("flags", 0),
        ("width", width),
        ("mem_clk_max", clock),
    ];
    properties(tree, &format!("{node}/mem_banks/0/properties"), &list);
}

/// One cache stands for all of its level, where the kernel lists one per group of CUs: clients look at the sizes.
fn cache(tree: &mut Tree, path: &str, gpu: &Gpu, cache: &Cache) {
    // HSA_CACHE_TYPE_DATA | HSA_CACHE_TYPE_HSACU
    const GPU_DATA: u64 = 9;
    let list = [
        ("processor_id_low", simd_id_base(gpu)),
        ("level", cache.level.into()),
        ("size", cache.kib.into()),
        ("cache_line_size", cache.line_bytes.into()),
        ("cache_lines_per_tag", 1),
        ("association", 16),
        ("latency", 0),
        ("type", GPU_DATA),
    ];
    // A bit list for 32 processors: the first one.
    let sibling_map = format!("1{}", ",0".repeat(31));
    tree.text(
        &format!("{path}/properties"),
        format!("{}sibling_map {sibling_map}", lines(&list)),
    );
}

fn link(tree: &mut Tree, path: &str, link: Link, from: u32, to: u32) {
    // CRAT_IOLINK_FLAGS_ENABLED
    const ENABLED: u64 = 1;
    let (kind, weight, min_bandwidth, max_bandwidth) = link.numbers();
    let list = [
        ("type", kind),
        ("version_major", 0),
        ("version_minor", 0),
        ("node_from", from.into()),
        ("node_to", to.into()),
        ("weight", weight),
        ("min_latency", 0),
        ("max_latency", 0),
        ("min_bandwidth", min_bandwidth),
        ("max_bandwidth", max_bandwidth),
        ("recommended_transfer_size", 0),
        ("flags", ENABLED),
    ];
    properties(tree, &format!("{path}/properties"), &list);
}

fn properties(tree: &mut Tree, path: &str, list: &[(&str, u64)]) {
    tree.insert(path, Entry::Text(lines(list)));
}

fn lines(list: &[(&str, u64)]) -> String {
    list.iter()
        .map(|(name, value)| format!("{name} {value}\n"))
        .collect()
}
