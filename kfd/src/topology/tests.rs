use super::*;
use crate::fixture::Fixture;

fn read(tree: &Fixture) -> Vec<Gpu> {
    Topology::read(&tree.root()).unwrap().gpus
}

fn error(tree: &Fixture) -> String {
    Topology::read(&tree.root()).unwrap_err().to_string()
}

#[test]
fn one_gpu_is_read_whole() {
    let tree = Fixture::new();
    tree.gpu(1, 35383, 768);
    tree.file(
        "sys/bus/pci/devices/0000:03:00.0/product_name",
        "AMD Instinct MI210\n",
    );
    assert_eq!(
        read(&tree),
        [Gpu {
            node: 1,
            gpu_id: 35383,
            bdf: "0000:03:00.0".parse().unwrap(),
            name: String::from("AMD Instinct MI210"),
            gfx_target_version: Some(GfxVersion(90_010)),
            cu_count: Some(104),
            simd_per_cu: Some(4),
            num_xcc: 1,
            vram_bytes: Some(64 << 30),
            render_minor: Some(129),
            unique_id: None,
            render_node_present: true,
        }]
    );
}

#[test]
fn no_driver_says_what_to_do() {
    let empty = tempfile::tempdir().unwrap();
    let error = Topology::read(&Root::at(empty.path())).unwrap_err();
    assert!(matches!(error, TopologyError::NoDriver { .. }));
    let text = error.to_string();
    assert!(text.contains("sys/class/kfd/kfd/topology/nodes") && text.contains("modprobe amdgpu"));
}

#[test]
fn machine_without_gpu_is_an_empty_list() {
    assert_eq!(read(&Fixture::new()), []);
}

#[test]
fn eight_gpus_come_in_the_order_of_their_nodes() {
    let tree = Fixture::new();
    // Node 10 sorts before node 9 as text, but not as a number.
    for node in (3..=10).rev() {
        tree.gpu(node, 1000 + node, node << 8);
    }
    let gpus = read(&tree);
    assert_eq!(
        gpus.iter().map(|gpu| gpu.node).collect::<Vec<_>>(),
        (3..=10).collect::<Vec<_>>()
    );
    assert_eq!(gpus[7].bdf.to_string(), "0000:0a:00.0");
}

#[test]
fn sixty_four_partitions_are_told_apart() {
    let tree = Fixture::new();
    for (board, partition) in (0..8).flat_map(|board| (0..8).map(move |p| (board, p))) {
        let node = 1 + board * 8 + partition;
        tree.gpu(node, 5000 + node, (partition << 28) | ((3 + board) << 8));
    }
    let gpus = read(&tree);
    let mut keys: Vec<u64> = gpus.iter().map(|gpu| gpu.bdf.to_u64()).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!((gpus.len(), keys.len()), (64, 64));
    assert_eq!(gpus[63].bdf.to_string(), "0000:0a:00.0/7");
}

#[test]
fn functions_of_one_bus_are_told_apart() {
    let tree = Fixture::new();
    tree.gpu(1, 11, 0x300);
    tree.gpu(2, 12, 0x301);
    let topology = Topology::read(&tree.root()).unwrap();
    let second = topology.by_bdf("0000:03:00.1".parse().unwrap()).unwrap();
    assert_eq!(second.gpu_id, 12);
    assert!(topology.by_bdf("0000:03:00.2".parse().unwrap()).is_none());
}

#[test]
fn an_old_driver_leaves_fields_unknown_not_zero() {
    let tree = Fixture::new();
    tree.node_file(1, "gpu_id", "7\n");
    tree.node_file(1, "properties", "location_id 256\nsimd_count 256\n");
    let gpus = read(&tree);
    assert_eq!(gpus[0].cu_count, None);
    assert_eq!(gpus[0].vram_bytes, None);
    assert_eq!(gpus[0].gfx_target_version, None);
    assert_eq!(gpus[0].render_minor, None);
    assert!(!gpus[0].render_node_present);
    assert_eq!(gpus[0].num_xcc, 1);
    assert_eq!(gpus[0].name, "AMD GPU");
    assert_eq!(gpus[0].bdf.to_string(), "0000:01:00.0");
}

#[test]
fn zero_simds_per_cu_is_unknown_not_a_crash() {
    let tree = Fixture::new();
    tree.gpu(1, 7, 768);
    tree.node_file(
        1,
        "properties",
        "location_id 768\nsimd_count 416\nsimd_per_cu 0\n",
    );
    assert_eq!(read(&tree)[0].cu_count, None);
}

#[test]
fn a_newer_driver_may_add_what_it_likes() {
    let tree = Fixture::new();
    tree.gpu(1, 7, 768);
    tree.node_file(
        1,
        "properties",
        "novelty yes please\nlonely\n\nsimd_count 416\nsimd_per_cu 4\nlocation_id 768\nlocation_id_2 5\n",
    );
    tree.node_file(1, "mem_banks/used", "not a bank");
    tree.file("sys/class/kfd/kfd/topology/nodes/summary", "not a node");
    let gpus = read(&tree);
    assert_eq!((gpus.len(), gpus[0].cu_count), (1, Some(104)));
}

#[test]
fn apu_without_vram_of_its_own_has_no_size() {
    let tree = Fixture::new();
    tree.gpu(1, 7, 768);
    tree.node_file(
        1,
        "mem_banks/0/properties",
        "heap_type 0\nsize_in_bytes 34359738368\n",
    );
    assert_eq!(read(&tree)[0].vram_bytes, None);
}

#[test]
fn both_kinds_of_vram_bank_are_added() {
    let tree = Fixture::new();
    tree.gpu(1, 7, 768);
    tree.node_file(
        1,
        "mem_banks/0/properties",
        "heap_type 1\nsize_in_bytes 268435456\n",
    );
    tree.node_file(
        1,
        "mem_banks/1/properties",
        "heap_type 2\nsize_in_bytes 8321499136\n",
    );
    tree.node_file(
        1,
        "mem_banks/2/properties",
        "heap_type 5\nsize_in_bytes 4096\n",
    );
    assert_eq!(read(&tree)[0].vram_bytes, Some(8 << 30));
}

#[test]
fn a_missing_render_node_is_noticed() {
    let tree = Fixture::new();
    tree.gpu(1, 7, 768);
    fs::remove_file(tree.root().render_node(129)).unwrap();
    let gpus = read(&tree);
    assert_eq!(
        (gpus[0].render_minor, gpus[0].render_node_present),
        (Some(129), false)
    );
}

#[test]
fn malformed_numbers_name_file_and_property() {
    let tree = Fixture::new();
    tree.gpu(1, 7, 768);
    for (properties, expected) in [
        ("location_id banana\n", "property location_id"),
        ("location_id -3\n", "property location_id"),
        ("location_id\n", "no property location_id"),
        ("simd_count 4\n", "no property location_id"),
        ("", "no property location_id"),
        ("location_id 4294967296\n", "4294967296"),
        (
            "location_id 768\nsimd_count 99999999999999999999999\n",
            "property simd_count",
        ),
        (
            "location_id 768\ngfx_target_version 0x9\n",
            "property gfx_target_version",
        ),
    ] {
        tree.node_file(1, "properties", properties);
        let text = error(&tree);
        assert!(
            text.contains("nodes/1/properties") && text.contains(expected),
            "{text}"
        );
    }
}

#[test]
fn malformed_banks_and_identifiers_name_the_file() {
    let tree = Fixture::new();
    tree.gpu(1, 7, 768);
    tree.node_file(1, "mem_banks/0/properties", "heap_type 1\n");
    assert!(error(&tree).contains("mem_banks/0/properties has no property size_in_bytes"));
    let huge = format!("heap_type 1\nsize_in_bytes {}\n", u64::MAX);
    tree.node_file(1, "mem_banks/0/properties", &huge);
    assert_eq!(read(&tree)[0].vram_bytes, Some(u64::MAX));
    tree.node_file(
        1,
        "mem_banks/1/properties",
        "heap_type 2\nsize_in_bytes 1\n",
    );
    assert!(error(&tree).contains("mem_banks/1/properties"));
    for id in ["", "\0\0\0", "x", "4294967296", "1 2"] {
        tree.node_file(1, "gpu_id", id);
        assert!(error(&tree).contains("nodes/1/gpu_id"), "{id:?}");
    }
}

#[test]
fn a_node_without_files_names_the_one_it_misses() {
    let tree = Fixture::new();
    tree.node_file(1, "name", "half a node\n");
    assert!(error(&tree).contains("nodes/1/gpu_id: No such file"));
    tree.node_file(1, "gpu_id", "7\n");
    assert!(error(&tree).contains("nodes/1/properties: No such file"));
}

#[test]
fn binary_content_is_told_on_one_line() {
    let tree = Fixture::new();
    tree.node_file(1, "gpu_id", &format!("\u{1b}[31m\n{}", "x".repeat(5000)));
    let text = error(&tree);
    assert!(
        !text.contains('\n') && !text.contains('\u{1b}') && text.len() < 400,
        "{text}"
    );
}

#[test]
fn only_the_cgroups_refusal_hides_a_node() {
    for (errno, forbidden) in [(1, true), (2, false), (5, false), (13, false)] {
        let source = io::Error::from_raw_os_error(errno);
        let error = ReadError::Io {
            path: PathBuf::from("gpu_id"),
            source,
        };
        assert_eq!(is_forbidden(&error), forbidden, "errno {errno}");
    }
}
