use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::*;
use crate::command_processor::QueueKind;
use crate::profile::{Profile, gpus};

const NODES: &str = "sys/devices/virtual/kfd/kfd/topology/nodes";

fn node_of(profile: &str, count: usize) -> Vec<Gpu> {
    gpus(Profile::by_name(profile).unwrap(), count, &[]).unwrap()
}

fn tree_of(profile: &str, count: usize) -> Tree {
    Tree::build(&node_of(profile, count), &TreeOptions::default())
}

/// Every entry below the root with its content, by path.
fn listing(tree: &Tree) -> BTreeMap<String, String> {
    fn add(tree: &Tree, ino: Ino, path: &str, listing: &mut BTreeMap<String, String>) {
        let content = match tree.node(ino).unwrap() {
            Entry::Directory(children) => {
                for (name, child) in children {
                    add(tree, *child, &format!("{path}/{name}"), listing);
                }
                if !children.is_empty() {
                    return;
                }
                "empty directory\n".to_owned()
            }
            Entry::Text(text) => text.clone(),
            Entry::Binary(bytes) => {
                let line = |bytes: &[u8]| {
                    let hex: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                    hex.join(" ") + "\n"
                };
                bytes.chunks(16).map(line).collect()
            }
            Entry::Symlink(target) => format!("-> {target}\n"),
            other => format!("{other:?}\n"),
        };
        listing.insert(path.to_owned(), content);
    }
    let mut listing_of_tree = BTreeMap::new();
    add(tree, tree.root(), "", &mut listing_of_tree);
    listing_of_tree
}

fn dump(tree: &Tree) -> String {
    listing(tree)
        .iter()
        .fold(String::new(), |mut dump, (path, content)| {
            write!(dump, "## {path}\n{content}").unwrap();
            dump
        })
}

fn text<'a>(tree: &'a Tree, path: &str) -> &'a str {
    match tree.resolve(path).and_then(|ino| tree.node(ino)) {
        Some(Entry::Text(text)) => text,
        other => panic!("{path} is {other:?}"),
    }
}

fn properties(tree: &Tree, path: &str) -> BTreeMap<String, u64> {
    let lines = text(tree, path).lines();
    let pairs = lines
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| *name != "sibling_map");
    pairs
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect()
}

fn count(tree: &Tree, path: &str) -> u64 {
    tree.children(tree.resolve(path).unwrap()).count() as u64
}

#[test]
fn the_tree_of_one_mi210() {
    insta::assert_snapshot!(dump(&tree_of("mi210", 1)));
}

#[test]
fn the_tree_of_two_mi300x() {
    insta::assert_snapshot!(dump(&tree_of("mi300x", 2)));
}

#[test]
fn the_tree_of_one_rx7900xtx() {
    insta::assert_snapshot!(dump(&tree_of("rx7900xtx", 1)));
}

/// The properties of a GPU node in the order of `node_show` in Linux's kfd_topology.c.
#[test]
fn a_gpu_node_has_the_properties_of_the_driver_in_its_order() {
    let names = "cpu_cores_count simd_count mem_banks_count caches_count io_links_count p2p_links_count \
        cpu_core_id_base simd_id_base max_waves_per_simd lds_size_in_kb gds_size_in_kb num_gws wave_front_size \
        array_count simd_arrays_per_engine cu_per_simd_array simd_per_cu max_slots_scratch_cu gfx_target_version \
        vendor_id device_id location_id domain drm_render_minor hive_id num_sdma_engines num_sdma_xgmi_engines \
        num_sdma_queues_per_engine num_cp_queues max_engine_clk_fcompute local_mem_size fw_version capability \
        debug_prop sdma_fw_version unique_id num_xcc max_engine_clk_ccompute";
    let tree = tree_of("mi300x", 1);
    let shown = text(&tree, &format!("{NODES}/1/properties")).lines();
    let shown: Vec<_> = shown.map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(shown, names.split_whitespace().collect::<Vec<_>>());
}

#[test]
fn every_profile_tells_its_own_numbers() {
    for (name, simds, xcc, gfx, wave, vram) in [
        ("mi100", 480, 1, 90008, 64, 34_342_961_152),
        ("mi210", 416, 1, 90010, 64, 68_702_699_520),
        ("mi300x", 1216, 8, 90402, 64, 206_141_652_992),
        ("rx7900xtx", 192, 1, 110000, 32, 25_753_026_560u64),
    ] {
        let tree = tree_of(name, 1);
        let node = properties(&tree, &format!("{NODES}/1/properties"));
        let numbers = [
            "simd_count",
            "num_xcc",
            "gfx_target_version",
            "wave_front_size",
        ]
        .map(|p| node[p]);
        assert_eq!(numbers, [simds, xcc, gfx, wave], "{name}");
        let bank = properties(&tree, &format!("{NODES}/1/mem_banks/0/properties"));
        assert_eq!(
            (bank["heap_type"], bank["size_in_bytes"]),
            (1, vram),
            "{name}"
        );
    }
}

#[test]
fn the_counts_are_those_of_what_is_there() {
    for (name, gpus) in [("mi300x", 8), ("mi210", 4), ("rx7900xtx", 1), ("mi210", 0)] {
        let tree = tree_of(name, gpus);
        assert_eq!(count(&tree, NODES), gpus as u64 + 1);
        for node in 0..=gpus {
            let at = format!("{NODES}/{node}");
            let told = properties(&tree, &format!("{at}/properties"));
            for kind in ["mem_banks", "caches", "io_links", "p2p_links"] {
                let there = count(&tree, &format!("{at}/{kind}"));
                assert_eq!(
                    told[&format!("{kind}_count")],
                    there,
                    "{name} {node} {kind}"
                );
            }
        }
    }
}

/// Destination and type of each link of a node.
fn links(tree: &Tree, node: usize, kind: &str) -> Vec<(u64, u64)> {
    let directory = format!("{NODES}/{node}/{kind}");
    let numbers = tree.children(tree.resolve(&directory).unwrap());
    let links = numbers.map(|(number, _)| {
        let link = properties(tree, &format!("{directory}/{number}/properties"));
        assert_eq!(link["node_from"], node as u64);
        (link["node_to"], link["type"])
    });
    links.collect()
}

#[test]
fn eight_mi300x_are_one_hive() {
    const XGMI: u64 = 11;
    const PCIE: u64 = 2;
    let tree = tree_of("mi300x", 8);
    let mut hives = BTreeSet::new();
    for node in 1..=8 {
        let mut expected = vec![(0, PCIE)];
        expected.extend(
            (1..=8)
                .filter(|peer| *peer != node as u64)
                .map(|peer| (peer, XGMI)),
        );
        assert_eq!(links(&tree, node, "io_links"), expected);
        assert_eq!(links(&tree, node, "p2p_links"), []);
        let told = properties(&tree, &format!("{NODES}/{node}/properties"));
        assert_eq!(told["num_xcc"], 8);
        hives.insert(told["hive_id"]);
    }
    assert_eq!(hives.len(), 1);
    assert!(!hives.contains(&0));
    assert_eq!(
        links(&tree, 0, "io_links"),
        (1..=8).map(|n| (n, PCIE)).collect::<Vec<_>>()
    );
}

#[test]
fn cards_without_xgmi_are_peers_through_the_cpu() {
    let tree = tree_of("mi210", 3);
    assert_eq!(links(&tree, 2, "io_links"), [(0, 2)]);
    assert_eq!(links(&tree, 2, "p2p_links"), [(1, 2), (3, 2)]);
    assert_eq!(
        properties(&tree, &format!("{NODES}/2/properties"))["hive_id"],
        0
    );
    let options = TreeOptions {
        hive: Some(77),
        ..TreeOptions::default()
    };
    let tree = Tree::build(&node_of("mi210", 1), &options);
    assert_eq!(
        properties(&tree, &format!("{NODES}/1/properties"))["hive_id"],
        77
    );
}

#[test]
fn without_a_large_bar_the_cpu_has_no_way_to_the_vram() {
    let options = TreeOptions {
        large_bar: false,
        ..TreeOptions::default()
    };
    let gpus = node_of("rx7900xtx", 1);
    let tree = Tree::build(&gpus, &options);
    assert_eq!(links(&tree, 0, "io_links"), []);
    assert_eq!(
        properties(&tree, &format!("{NODES}/0/properties"))["io_links_count"],
        0
    );
    assert_eq!(links(&tree, 1, "io_links"), [(0, 2)]);
    let bank = properties(&tree, &format!("{NODES}/1/mem_banks/0/properties"));
    assert_eq!(bank["heap_type"], 2);
    let visible = format!(
        "sys/devices/pci0000:00/{}/mem_info_vis_vram_total",
        gpus[0].bdf
    );
    assert_eq!(text(&tree, &visible), "268435456\n");
}

#[test]
fn the_pci_device_and_the_topology_agree() {
    for gpu in node_of("mi300x", 8) {
        let tree = tree_of("mi300x", 8);
        let node = properties(&tree, &format!("{NODES}/{}/properties", gpu.node()));
        let device = format!("sys/devices/pci0000:00/{}", gpu.bdf);
        assert_eq!(node["location_id"], u64::from(gpu.bdf.bus) << 8);
        assert_eq!(
            text(&tree, &format!("{device}/device")),
            format!("{:#06x}\n", node["device_id"])
        );
        assert_eq!(
            text(&tree, &format!("{device}/unique_id")),
            format!("{:016x}\n", node["unique_id"])
        );
        let render = format!("{device}/drm/renderD{}", node["drm_render_minor"]);
        assert_eq!(
            text(&tree, &format!("{render}/dev")),
            format!("226:{}\n", gpu.render_minor)
        );
    }
}

/// Follows a symbolic link from the directory that it is in.
fn follow(tree: &Tree, link: &str) -> Option<Ino> {
    let Entry::Symlink(target) = tree.node(tree.resolve(link)?)? else {
        return None;
    };
    let mut path: Vec<&str> = link.split('/').collect();
    path.pop();
    for part in target.split('/') {
        if part == ".." {
            path.pop()?;
        } else {
            path.push(part);
        }
    }
    tree.resolve(&path.join("/"))
}

#[test]
fn every_symbolic_link_leads_somewhere() {
    let tree = tree_of("mi300x", 8);
    let listing = listing(&tree);
    let links: Vec<_> = listing
        .iter()
        .filter(|(_, text)| text.starts_with("-> "))
        .map(|(path, _)| path)
        .collect();
    // kfd, and for each GPU: driver, two on the bus, three for each of two DRM nodes
    assert_eq!(links.len(), 1 + 8 * (3 + 2 * 3));
    for link in links {
        assert!(
            follow(&tree, link.trim_start_matches('/')).is_some(),
            "{link}"
        );
    }
}

#[test]
fn inode_numbers_are_stable_and_lookups_bounded() {
    let tree = tree_of("mi210", 2);
    let kfd = tree.resolve("dev/kfd").unwrap();
    assert_eq!(tree.node(kfd), Some(&Entry::Device(Device::Kfd)));
    assert_eq!(tree_of("mi210", 2).resolve("dev/kfd"), Some(kfd));
    assert_eq!(tree.lookup(kfd, "x"), None);
    assert_eq!(tree.children(kfd).count(), 0);
    for ino in [0, u64::MAX] {
        assert_eq!(tree.node(ino), None);
        assert_eq!(tree.lookup(ino, "dev"), None);
    }
    let names: Vec<_> = tree
        .children(tree.resolve("dev/dri").unwrap())
        .map(|(n, _)| n)
        .collect();
    assert_eq!(names, ["card0", "card1", "renderD128", "renderD129"]);
}

#[test]
fn dynamic_files_print_the_state() {
    let used = Dynamic::VramUsed { gpu_id: 5 };
    assert_eq!(used.text(4096, false), "10928128\n");
    assert_eq!(used.text(u64::MAX, false), format!("{}\n", u64::MAX));
    assert_eq!(Dynamic::BusyPercent { gpu_id: 5 }.text(0, true), "99\n");
    assert_eq!(Dynamic::BusyPercent { gpu_id: 5 }.text(0, false), "0\n");
    assert_eq!(used.gpu_id(), 5);
}

/// Process 100 with two queues; 4096 bytes on GPU 7, nothing on GPU 8.
struct OneProcess;

impl ProcessTable for OneProcess {
    fn pids(&self) -> Vec<u32> {
        vec![100]
    }

    fn gpu_ids(&self) -> Vec<u32> {
        vec![7, 8]
    }

    fn pasid(&self, pid: u32) -> Option<u32> {
        (pid == 100).then_some(0x8001)
    }

    fn vram(&self, pid: u32, gpu_id: u32) -> Option<u64> {
        match (pid, gpu_id) {
            (100, 7) => Some(4096),
            (100, 8) => Some(0),
            _ => None,
        }
    }

    fn queues(&self, pid: u32) -> Vec<QueueEntry> {
        if pid != 100 {
            return Vec::new();
        }
        vec![
            QueueEntry {
                id: 0,
                gpu_id: 7,
                bytes: 16384,
                kind: QueueKind::Aql,
            },
            QueueEntry {
                id: 3,
                gpu_id: 8,
                bytes: 1 << 20,
                kind: QueueKind::SdmaXgmi,
            },
        ]
    }
}

fn entry(path: &str) -> Option<ProcessEntry> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    process_entry(&OneProcess, &parts)
}

#[test]
fn a_process_has_its_files() {
    for (path, expected) in [
        ("100/pasid", "32769\n"),
        ("100/vram_7", "4096\n"),
        ("100/vram_8", "0\n"),
        ("100/sdma_7", "0\n"),
        ("100/stats_7/evicted_ms", "0\n"),
        ("100/stats_8/cu_occupancy", "0\n"),
        ("100/counters_8/page_in", "0\n"),
        ("100/queues/0/gpuid", "7"),
        ("100/queues/0/size", "16384"),
        ("100/queues/0/type", "0"),
        ("100/queues/3/type", "4"),
    ] {
        assert_eq!(
            entry(path),
            Some(ProcessEntry::File(expected.to_owned())),
            "{path}"
        );
    }
}

/// Whatever a directory lists exists, and is a directory if it says so.
fn walk(path: &str) -> usize {
    let Some(ProcessEntry::Directory(entries)) = entry(path) else {
        panic!("{path}")
    };
    let counts = entries.iter().map(|(name, is_directory)| {
        let path = format!("{path}/{name}");
        if *is_directory {
            return walk(&path);
        }
        assert!(
            matches!(entry(&path), Some(ProcessEntry::File(_))),
            "{path}"
        );
        1
    });
    counts.sum()
}

#[test]
fn what_a_directory_lists_is_there() {
    // pasid; vram, sdma, two stats and three counters for each of two GPUs; three files for each of two queues
    assert_eq!(walk(""), 1 + 2 * 7 + 2 * 3);
}

#[test]
fn what_is_not_there_is_none() {
    for path in [
        "101",
        "101/vram_7",
        "+100",
        "0100",
        "x",
        "100/vram_9",
        "100/vram_07",
        "100/vram_",
        "100/other_7",
        "100/stats_7/other",
        "100/queues/1",
        "100/queues/0/other",
        "100/queues/0/size/more",
        "100/vram_7/more",
        "100/pasid/more",
    ] {
        assert_eq!(entry(path), None, "{path}");
    }
}

#[test]
fn queue_types_are_those_of_the_driver() {
    for (from_ioctl, shown) in [(0, 0), (1, 1), (2, 0), (3, 4), (4, 5)] {
        assert_eq!(
            QueueKind::from_ioctl(from_ioctl).map(QueueKind::driver_type),
            Some(shown)
        );
    }
    assert_eq!(QueueKind::from_ioctl(5), None);
}

/// What amdkfd and amdgpu show of two MI300X in CPX mode.
#[test]
fn the_tree_of_boards_in_partitions() {
    use crate::profile::{PartitionIds, split};
    let gpus = split(node_of("mi300x", 2), 8, PartitionIds::Unique).unwrap();
    let tree = Tree::build(&gpus, &TreeOptions::default());
    let text = |path: &str| match tree.resolve(path).and_then(|ino| tree.node(ino)) {
        Some(Entry::Text(text)) => text.clone(),
        other => panic!("{path}: {other:?}"),
    };
    let nodes = "sys/devices/virtual/kfd/kfd/topology/nodes";
    let properties = text(&format!("{nodes}/10/properties"));
    for line in [
        "simd_count 152",
        "num_xcc 1",
        "location_id 268444160",
        "unique_id 6633120147964053001",
        "drm_render_minor 137",
        "io_links_count 16",
    ] {
        assert!(
            properties.lines().any(|l| l == line),
            "{line}: {properties}"
        );
    }
    let part = 206_141_652_992_u64 / 8;
    let bank = text(&format!("{nodes}/10/mem_banks/0/properties"));
    assert!(bank.contains(&format!("size_in_bytes {part}\n")), "{bank}");
    // Partition 1 of the second board: first the CPU, then the eight of the other board, then its own.
    let link = |number: u32| text(&format!("{nodes}/10/io_links/{number}/properties"));
    assert!(link(1).contains("node_to 1\nweight 41\n"), "{}", link(1));
    assert!(link(9).contains("node_to 9\nweight 13\n"), "{}", link(9));
    let board = "sys/devices/pci0000:00/0000:22:00.0";
    assert_eq!(text(&format!("{board}/current_compute_partition")), "CPX\n");
    assert_eq!(
        text(&format!("{board}/mem_info_vram_total")),
        "206141652992\n"
    );
    assert_eq!(text(&format!("{board}/drm/renderD136/dev")), "226:136\n");
    let platform = "sys/devices/platform/amdgpu_xcp_7";
    assert_eq!(text(&format!("{platform}/drm/renderD137/dev")), "226:137\n");
    let boards = tree.resolve("sys/bus/pci/devices").unwrap();
    assert_eq!(tree.children(boards).count(), 2);
}
