use super::*;

#[test]
fn every_data_file_is_valid_and_named_after_its_profile() {
    for (file, text) in FILES {
        let profile = Profile::parse(text).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert_eq!(format!("{}.toml", profile.name), file);
    }
}

#[test]
fn found_by_name_and_by_gfx_name_in_any_case() {
    for (name, gfx) in [
        ("mi100", "gfx908"),
        ("mi210", "gfx90a"),
        ("mi300x", "gfx942"),
        ("rx7900xtx", "gfx1100"),
    ] {
        let profile = Profile::by_name(name).unwrap();
        assert_eq!(profile.gfx_name(), gfx);
        assert_eq!(Profile::by_name(gfx).unwrap(), profile);
        assert_eq!(Profile::by_name(&name.to_uppercase()).unwrap(), profile);
    }
}

#[test]
fn an_unknown_name_is_answered_with_what_exists() {
    let message = Profile::by_name("voodoo2").unwrap_err().to_string();
    assert_eq!(
        message,
        "no GPU profile \"voodoo2\"; choose one of mi100 (gfx908), mi210 (gfx90a), mi300x (gfx942), rx7900xtx (gfx1100)"
    );
}

#[test]
fn damaged_data_is_told_with_the_reason() {
    let good = include_str!("../../profiles/mi300x.toml");
    for (from, to, reason) in [
        ("cu_count = 304", "cu_count = 0", "cu_count is 0"),
        (
            "default_count = 8",
            "default_count = 9",
            "there are 8 buses",
        ),
        (
            "default_count = 8",
            "default_count = 0",
            "default_count is 0",
        ),
        (
            "cu_count = 304",
            "cu_count = 3040",
            "shader arrays hold 320",
        ),
        ("cu_count = 304", "cu_count = 303", "leaves a remainder"),
        ("wavefront_size = 64", "wavefront_size = 48", "not 32 or 64"),
        (
            "vram_type = \"hbm\"",
            "vram_type = \"core\"",
            "unknown variant",
        ),
        ("xgmi = true", "xmgi = true", "unknown field"),
        ("0x22, ", "0x0c, ", "names a bus twice"),
        ("level = 3", "level = 4", "cache levels"),
        (
            "vram_bytes = 206_141_652_992",
            "vram_bytes = 4096",
            "vram_bytes is 4096",
        ),
        (
            "gfx_target_version = 90402",
            "gfx_target_version = 402",
            "no gfx name",
        ),
    ] {
        assert!(good.contains(from), "{from}");
        let error = Profile::parse(&good.replacen(from, to, 1)).unwrap_err();
        assert!(error.contains(reason), "{to}: {error}");
    }
}

#[test]
fn eight_gpus_differ_in_every_identity() {
    for profile in Profile::all().unwrap() {
        let gpus = gpus(profile, 8, &[]).unwrap();
        let distinct = |of: fn(&Gpu) -> u64| gpus.iter().map(of).collect::<BTreeSet<_>>().len();
        assert_eq!(distinct(|g| g.gpu_id.into()), 8);
        assert_eq!(distinct(|g| g.render_minor.into()), 8);
        assert_eq!(distinct(|g| g.bdf.location_id().into()), 8);
        assert_eq!(distinct(|g| g.unique_id), 8);
        assert!(gpus.iter().all(|g| g.vram_bytes == profile.vram_bytes));
    }
}

#[test]
fn gpus_are_bounded_in_number_and_vram() {
    let mi300x = Profile::by_name("mi300x").unwrap();
    assert_eq!(gpus(mi300x, 0, &[]).unwrap(), []);
    assert_eq!(gpus(mi300x, 2, &[8 << 30]).unwrap()[1].vram_bytes, 8 << 30);
    assert_eq!(
        gpus(mi300x, 1, &[(8 << 30) + 5]).unwrap()[0].vram_bytes,
        8 << 30
    );
    let too_many = gpus(mi300x, 9, &[]).unwrap_err().to_string();
    assert_eq!(
        too_many,
        "9 GPUs were asked for, but a node of mi300x holds at most 8"
    );
    let too_little = gpus(mi300x, 1, &[1]).unwrap_err().to_string();
    assert!(too_little.contains("between 64 MiB and"), "{too_little}");
    assert!(gpus(mi300x, 1, &[u64::MAX]).is_err());
}

#[test]
fn gpus_of_different_sizes() {
    let mi210 = Profile::by_name("mi210").unwrap();
    let sizes = [64 << 30, 16 << 30, 8 << 30];
    let made = gpus(mi210, 3, &sizes).unwrap();
    assert_eq!(made.iter().map(|g| g.vram_bytes).collect::<Vec<_>>(), sizes);
    let wrong = gpus(mi210, 2, &sizes).unwrap_err().to_string();
    assert!(
        wrong.starts_with("3 sizes of VRAM were given for 2 GPUs"),
        "{wrong}"
    );
    assert!(gpus(mi210, 3, &[64 << 30, 1, 8 << 30]).is_err());
}

#[test]
fn an_address_prints_as_sysfs_does() {
    let bdf = PciAddress {
        domain: 0,
        bus: 0xc3,
        device: 0x1f,
        function: 7,
    };
    assert_eq!(bdf.to_string(), "0000:c3:1f.7");
    assert_eq!(bdf.location_id(), 0xc3ff);
}

#[test]
fn a_board_in_partitions() {
    let mi300x = Profile::by_name("mi300x").unwrap();
    for ids in [
        PartitionIds::Function,
        PartitionIds::Location,
        PartitionIds::Unique,
    ] {
        let boards = gpus(mi300x, 8, &[]).unwrap();
        let parts = split(boards.clone(), 8, ids).unwrap();
        assert_eq!(parts.len(), 64);
        let distinct = |of: fn(&Gpu) -> u64| parts.iter().map(of).collect::<BTreeSet<_>>().len();
        assert_eq!(distinct(|gpu| gpu.gpu_id.into()), 64);
        assert_eq!(distinct(|gpu| gpu.location_id.into()), 64);
        assert_eq!(distinct(|gpu| gpu.bdf.location_id().into()), 8);
        assert_eq!(distinct(|gpu| gpu.render_minor.into()), 64);
        let own = if ids == PartitionIds::Unique { 64 } else { 8 };
        assert_eq!(distinct(|gpu| gpu.unique_id), own);
        let last = &parts[63];
        assert_eq!(
            (last.index, last.board.index, last.board.partition),
            (63, 7, 7)
        );
        assert_eq!((last.cu_count(), last.num_xcc()), (38, 1));
        assert_eq!((last.shader_arrays(), last.sdma_engines()), (4, (2, 0)));
        assert_eq!(last.vram_bytes, (mi300x.vram_bytes / 8) & !0xfff);
        assert_eq!(last.board.vram_bytes, boards[7].vram_bytes);
        assert!(parts[56].board.is_on_bus() && !last.board.is_on_bus());
        let location = match ids {
            PartitionIds::Function => 0xdf07,
            PartitionIds::Location | PartitionIds::Unique => 0x7000_df00,
        };
        assert_eq!(last.location_id, location);
    }
    let whole = gpus(mi300x, 2, &[]).unwrap();
    assert_eq!(
        split(whole.clone(), 1, PartitionIds::Unique).unwrap(),
        whole
    );
    assert_eq!(
        (whole[0].cu_count(), whole[0].sdma_engines()),
        (304, (2, 14))
    );
    for count in [0, 3, 16] {
        let error = split(whole.clone(), count, PartitionIds::Unique).unwrap_err();
        assert!(error.to_string().contains("8 XCCs"), "{error}");
    }
    let mi210 = gpus(Profile::by_name("mi210").unwrap(), 1, &[]).unwrap();
    assert!(split(mi210, 2, PartitionIds::Unique).is_err());
}
