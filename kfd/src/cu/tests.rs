use std::fmt::Write;

use proptest::prelude::*;

use super::*;
use crate::Bdf;
use crate::fixture::Fixture;
use crate::gfx::GfxVersion;

/// A GPU at 0000:03:00.0, 0000:04:00.0 and so on.
fn gpu(number: u32, gfx: u32, cu_count: u32, num_xcc: u32) -> CuGpu {
    CuGpu {
        bdf: Bdf::from_kfd(0, (3 + number) << 8),
        cu_count,
        num_xcc,
        gfx: GfxVersion(gfx),
        unique_id: 0x1a2b_3c4d_5e6f_7000 + u64::from(number),
    }
}

fn machine(gpus: &[CuGpu]) -> Machine {
    let mut machine = Machine::empty();
    gpus.iter().for_each(|gpu| machine.add(*gpu).unwrap());
    machine
}

const NOTHING: Variables<'_> = Variables {
    range: b"",
    visible: None,
    mask: None,
};

/// What goes into `HSA_CU_MASK`, and what each GPU is given.
fn given(
    variables: &Variables<'_>,
    gpus: &[CuGpu],
) -> Result<(String, Vec<(Bdf, Given)>), CuError> {
    let mut place = [0; 8192];
    let mut text = Text::new(&mut place);
    let mut all = Vec::new();
    give(variables, &machine(gpus), &mut |number, gpu, given| {
        write_set(&mut text, number, &given.mask);
        all.push((gpu.bdf, *given));
    })?;
    Ok((String::from_utf8(text.written().to_vec()).unwrap(), all))
}

fn on(range: &str, gpu: CuGpu) -> Result<Given, CuError> {
    let range = range.as_bytes();
    given(&Variables { range, ..NOTHING }, &[gpu]).map(|(_, all)| all[0].1)
}

/// The mask as the ioctl has it: words of 32 bits, the first CU in the lowest bit, none behind the last one's.
fn words(range: &str, gpu: CuGpu) -> String {
    let mask = on(range, gpu).unwrap().mask;
    let mut text = String::new();
    for word in 0..=mask.last().unwrap() / 32 {
        let whole = mask.words()[(word / 2) as usize];
        write!(text, "{:08x} ", (whole >> (word % 2 * 32)) as u32).unwrap();
    }
    text.trim_end().to_owned()
}

const GFX906: (u32, u32, u32) = (90_006, 60, 1);
const GFX90A: (u32, u32, u32) = (90_010, 104, 1);
const GFX942: (u32, u32, u32) = (90_402, 304, 8);
const GFX1030: (u32, u32, u32) = (100_300, 72, 1);
const GFX1100: (u32, u32, u32) = (110_000, 96, 1);

fn one((gfx, cu_count, num_xcc): (u32, u32, u32)) -> CuGpu {
    gpu(0, gfx, cu_count, num_xcc)
}

#[test]
fn golden_masks() {
    for (architecture, range, golden) in [
        (GFX906, "0-37", "ffffffff 0000003f"),
        (GFX906, "0-59", "ffffffff 0fffffff"),
        (GFX906, "59", "00000000 08000000"),
        (GFX90A, "0-37", "ffffffff 0000003f"),
        (GFX90A, "64-75,0-3", "0000000f 00000000 00000fff"),
        (GFX90A, "all", "ffffffff ffffffff ffffffff 000000ff"),
        // Bit i is a CU of XCC i mod 8: five on each of six, four on the other two.
        (GFX942, "0-37", "ffffffff 0000003f"),
        (
            GFX942,
            "0-303",
            "ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 0000ffff",
        ),
        (GFX1030, "0-37", "ffffffff 0000003f"),
        (GFX1030, "0-36", "ffffffff 0000000f"),
        (GFX1030, "1-36", "fffffffc 0000000f"),
        (GFX1100, "0-37", "ffffffff 0000003f"),
        (GFX1100, "0-36", "ffffffff 0000000f"),
        (GFX1100, "1-2", "00000003"),
        (GFX1100, "95", "00000000 00000000 c0000000"),
    ] {
        assert_eq!(
            words(range, one(architecture)),
            golden,
            "{range} {architecture:?}"
        );
    }
}

#[test]
fn a_range_on_many_xccs_is_dealt_out_to_them() {
    let mask = on("0-37", one(GFX942)).unwrap().mask;
    let of = |xcc: u32| (0..304).filter(|cu| cu % 8 == xcc && mask.has(*cu)).count();
    assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(of), [5, 5, 5, 5, 5, 5, 4, 4]);
}

#[test]
fn an_xcc_must_not_be_left_without_compute_units() {
    let error = on("0-6", one(GFX942)).unwrap_err();
    assert!(
        matches!(
            error,
            CuError::IdleXcc {
                xcc: 7,
                num_xcc: 8,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(on("0-7", one(GFX942)).unwrap().mask.count(), 8);
    assert_eq!(on("100-107", one(GFX942)).unwrap().mask.count(), 8);
    // One XCC has any of them.
    assert_eq!(on("7", one(GFX90A)).unwrap().mask.count(), 1);
}

#[test]
fn a_range_that_starts_past_the_last_unit_is_an_error() {
    for (range, first) in [("400-500", 400), ("304", 304), ("0-37,304-305", 304)] {
        let error = on(range, one(GFX942)).unwrap_err();
        assert!(
            matches!(error, CuError::PastTheEnd { first: found, cu_count: 304, .. } if found == first),
            "{range}: {error}"
        );
        assert!(error.to_string().contains("the last is 303"), "{error}");
    }
}

#[test]
fn an_end_past_the_last_unit_is_cut_and_known() {
    let given = on("300-400,0-7", one(GFX942)).unwrap();
    assert_eq!((given.mask.count(), given.asked_end), (12, Some(400)));
    assert_eq!(given.mask.last(), Some(303));
    assert_eq!(on("0-303", one(GFX942)).unwrap().asked_end, None);
    assert_eq!(on("all", one(GFX942)).unwrap().asked_end, None);
}

#[test]
fn pairs_are_whole_and_nobody_gets_more_than_he_asked_for_unless_nothing_were_left() {
    for (range, shown, rounded) in [
        ("0-37", "0-37", false),
        ("0-36", "0-35", true),
        ("1-37", "2-37", true),
        ("1-2", "0-1", true),
        ("5", "4-5", true),
        ("4,5", "4-5", false),
        ("0-3,7,8", "0-3", true),
        ("95", "94-95", true),
    ] {
        let given = on(range, one(GFX1100)).unwrap();
        assert_eq!(
            (given.mask.to_string().as_str(), given.rounded),
            (shown, rounded),
            "{range}"
        );
        assert!(!on(range, one(GFX90A)).unwrap().rounded, "{range}");
    }
}

#[test]
fn what_is_no_range_is_refused_and_quoted() {
    for (text, quoted) in [
        ("", "empty"),
        ("  ", "empty"),
        ("banana", "'banana'"),
        ("0-", "'0-'"),
        ("-5", "'-5'"),
        ("0-37-40", "'0-37-40'"),
        ("0,,3", "''"),
        ("0-3,", "''"),
        ("5-3", "'5-3'"),
        ("0x10", "'0x10'"),
        ("+1", "'+1'"),
        ("1000000000", "'1000000000'"),
        ("0-37,0000:03:00.0=0-1", "'0000:03:00.0'"),
        ("gpu0=0-1", "'gpu0'"),
        ("=0-1", "''"),
        ("0000:03:00.0=", "''"),
        ("*=0-1,*=2-3", "'*' is named twice"),
        ("3:0.0=0-1,0000:03:00.0=2", "'0000:03:00.0' is named twice"),
        ("a\nb", "'a\\nb'"),
    ] {
        let error = on(text, one(GFX90A)).unwrap_err();
        let told = error.explain(text.as_bytes());
        assert!(matches!(error, CuError::Range(_)), "{text:?}: {told}");
        assert!(told.contains(quoted), "{text:?}: {told}");
    }
}

#[test]
fn each_gpu_can_have_a_range_of_its_own() {
    let two = [one(GFX90A), gpu(1, 90_010, 104, 1)];
    let range = |range: &'static str| Variables {
        range: range.as_bytes(),
        ..NOTHING
    };
    let text = |text| given(&range(text), &two).map(|(text, _)| text);
    assert_eq!(text("0-37, 64-75").unwrap(), "0:0-37,64-75;1:0-37,64-75");
    assert_eq!(
        text("0000:03:00.0=0-37, 64-75,*= 0-15").unwrap(),
        "0:0-37,64-75;1:0-15"
    );
    assert_eq!(text("*=0-15,4:0.0=all").unwrap(), "0:0-15;1:0-103");
    assert_eq!(text("3:0.0=0-37"), Err(CuError::NotNamed(two[1].bdf)));
    let missing = Bdf::from_kfd(0, 0x900);
    assert_eq!(text("09:00.0=0,*=0-1"), Err(CuError::NotPresent(missing)));
    // Only GPUs that are shown need a range; the named ones may be any of the machine's.
    let one_shown = Variables {
        visible: Some(b"0"),
        ..range("3:0.0=0-37")
    };
    assert_eq!(given(&one_shown, &two).unwrap().0, "0:0-37");
}

#[test]
fn gpus_are_numbered_as_rocr_numbers_them() {
    let three = [0, 1, 2].map(|number| gpu(number, 90_010, 104, 1));
    let order = |visible: Option<&str>| -> Vec<u64> {
        let variables = Variables {
            range: b"0-7",
            visible: visible.map(str::as_bytes),
            mask: None,
        };
        let (text, all) = given(&variables, &three).unwrap();
        assert_eq!(text.matches(':').count(), all.len());
        all.iter().map(|(bdf, _)| (bdf.to_u64() >> 8) - 3).collect()
    };
    assert_eq!(order(None), [0, 1, 2]);
    for (visible, expected) in [
        ("", &[][..]),
        ("2", &[2]),
        ("2,0", &[2, 0]),
        (" 1 , 0x2,00", &[1, 2, 0]),
        ("1,1,0", &[1]),
        ("0,7,1", &[0]),
        ("0,-1,1", &[0]),
        ("0,x,1", &[0]),
        ("0,1,2,0", &[0, 1, 2]),
        ("GPU-1a2b3c4d5e6f7001", &[1]),
        ("gpu-1A2B3C4D5E6F7002,0", &[2, 0]),
        // It is the beginning of all three.
        ("GPU-1a2b", &[]),
        ("0,GPU-1a2b3c4d5e6f7009", &[0]),
        ("GPU-1a2b3c4d5e6f70011", &[]),
        ("GPU-", &[]),
    ] {
        assert_eq!(order(Some(visible)), expected, "{visible:?}");
        let ids = three.map(|gpu| gpu.unique_id);
        let shown = super::shown(Some(visible.as_bytes()), &ids);
        assert!(shown.eq(expected.iter().map(|index| *index as usize)));
    }
}

#[test]
fn the_users_own_mask_is_read_as_rocr_reads_it() {
    let masks = |text: &str| [0, 1].map(|gpu| variable::mask_of(text.as_bytes(), gpu, 2, 104));
    let shown = |text: &str| masks(text).map(|mask| mask.map_or("-".into(), |m| m.to_string()));
    for (text, expected) in [
        ("0:0-3", ["0-3", "-"]),
        ("0-1:0-3", ["0-3", "0-3"]),
        (" 0 : 0 - 3 , 8 ;\t1:0X f0 ", ["0-3,8", "4-7"]),
        ("1:0x1_", ["-", "-"]),
        ("0:0xffffffff00000000", ["32-63", "-"]),
        ("0:0;1:5;", ["0", "5"]),
        // An error ends it, and what was before counts.
        ("0:0-3;1:x", ["0-3", "-"]),
        ("0:3-0;1:1", ["-", "-"]),
        ("0:0-3;;1:1", ["0-3", "-"]),
        ("0:1,1;1:1", ["-", "-"]),
        ("0:0x0;1:1", ["-", "-"]),
        ("0:1;0:2;1:3", ["1", "-"]),
        ("0:1:2;1:1", ["-", "-"]),
        ("0", ["-", "-"]),
        ("", ["-", "-"]),
        // GPUs and CUs that are not there are left out, but a list of nothing else is an error.
        ("7:1;0:1", ["-", "-"]),
        ("2:1;0:1", ["1", "-"]),
        ("0,7:1", ["1", "-"]),
        ("0:500;1:1", ["-", "-"]),
        ("0:3-500", ["3-104", "-"]),
        ("0:-5", ["0-5", "-"]),
        ("0:5-", ["5", "-"]),
    ] {
        assert_eq!(shown(text), expected, "{text:?}");
    }
}

#[test]
fn what_the_user_masked_stays_masked() {
    let with = |range: &str, mask: &str, gpu: CuGpu| {
        let variables = Variables {
            range: range.as_bytes(),
            visible: None,
            mask: Some(mask.as_bytes()),
        };
        given(&variables, &[gpu]).map(|(text, all)| (text, all[0].1.reduced))
    };
    let text = |text: &str, reduced| Ok((text.to_owned(), reduced));
    assert_eq!(with("0-37", "0:30-60", one(GFX90A)), text("0:30-37", true));
    assert_eq!(with("0-37", "0:0-60", one(GFX90A)), text("0:0-37", false));
    assert_eq!(with("0-37", "1:0", one(GFX90A)), text("0:0-37", false));
    let nothing = Err(CuError::NothingLeft(one(GFX90A).bdf));
    assert_eq!(with("0-37", "0:40-60", one(GFX90A)), nothing);
    assert_eq!(with("0-37", "0:31-60", one(GFX1100)), text("0:32-37", true));
    assert_eq!(with("0-37", "0:37-60", one(GFX1100)), nothing);
}

#[test]
fn counts_are_shares_of_what_the_runtime_counts() {
    let share = |range: &str, gpu: CuGpu, native| {
        gpu.shape()
            .share(native, on(range, gpu).unwrap().mask.count())
    };
    assert_eq!(share("0-37", one(GFX942), 304), 38);
    assert_eq!(share("0-37", one(GFX1100), 48), 19, "WGPs");
    assert_eq!(share("0-37", one(GFX1100), 96), 38);
    assert_eq!(share("0", one(GFX90A), 104), 1);
    assert_eq!(share("0", one(GFX90A), 1), 1, "never nothing");
    assert_eq!(share("all", one(GFX90A), 104), 104);
}

#[test]
fn a_gpu_without_a_count_is_an_error() {
    let error = on("0-1", gpu(0, 90_010, 0, 1)).unwrap_err();
    assert!(error.to_string().contains("0000:03:00.0"), "{error}");
}

#[test]
fn the_machine_is_the_one_that_the_topology_has() {
    let tree = Fixture::new();
    tree.gpu(1, 100, 0x300);
    tree.gpu(2, 200, 0x400);
    tree.gpu(10, 300, 0x500);
    // ROCr counts nodes without a gap; this one is a hole.
    tree.gpu(3, 400, 0x600);
    tree.remove("dev/dri/renderD131");
    let mut machine = Machine::empty();
    machine.read_below(&tree.root()).unwrap();
    let topology = crate::Topology::read(&tree.root()).unwrap();
    let shown: Vec<_> = topology
        .gpus
        .iter()
        .filter(|gpu| gpu.render_node_present && gpu.node < 4)
        .map(|gpu| (gpu.bdf, gpu.cu_count.unwrap(), gpu.num_xcc))
        .collect();
    let read: Vec<_> = machine
        .gpus()
        .iter()
        .map(|gpu| (gpu.bdf, gpu.cu_count, gpu.num_xcc))
        .collect();
    assert_eq!(read, shown);
    assert_eq!(read.len(), 2);
    assert_eq!(machine.gpus()[0].gfx, GfxVersion(90_010));
    assert_eq!(machine.gpus()[0].unique_id, 0);
}

#[test]
fn a_machine_without_the_driver_is_an_error() {
    let empty = tempfile::tempdir().unwrap();
    let error = Machine::empty()
        .read_below(&crate::Root::at(empty.path()))
        .unwrap_err();
    assert_eq!(error, CuError::Unreadable(2));
    assert!(error.may_pass());
}

/// A range of one to four parts that are on a GPU with so many compute units, or reach beyond.
fn ranges(cu_count: u32) -> impl Strategy<Value = Vec<(u32, u32)>> {
    let part = (0..cu_count, 0..cu_count * 2).prop_map(|(first, len)| (first, first + len));
    proptest::collection::vec(part, 1..4)
}

fn any_gpu() -> impl Strategy<Value = CuGpu> {
    prop_oneof![
        Just(one(GFX906)),
        Just(one(GFX90A)),
        Just(one(GFX942)),
        Just(one(GFX1030)),
        Just(one(GFX1100)),
    ]
}

proptest! {
    #[test]
    fn what_is_given_was_asked_for_and_is_there(
        (gpu, parts) in any_gpu().prop_flat_map(|gpu| (Just(gpu), ranges(gpu.cu_count)))
    ) {
        let text: Vec<String> = parts.iter().map(|(a, b)| format!("{a}-{b}")).collect();
        let asked = |cu: u32| parts.iter().any(|(a, b)| (*a..=*b).contains(&cu));
        let given = match on(&text.join(","), gpu) {
            Ok(given) => given,
            Err(CuError::IdleXcc { xcc, .. }) => {
                prop_assert!((0..gpu.cu_count).all(|cu| cu % 8 != xcc || !asked(cu)));
                return Ok(());
            }
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        };
        let (mask, pairs) = (given.mask, gpu.shape().pairs);
        prop_assert!(mask.count() > 0);
        prop_assert!(mask.last().unwrap() < gpu.cu_count);
        let whole = |cu: u32| asked(cu) && (!pairs || asked(cu ^ 1) && cu | 1 < gpu.cu_count);
        for cu in 0..gpu.cu_count {
            prop_assert!(!pairs || mask.has(cu) == mask.has(cu ^ 1));
            prop_assert!(!whole(cu) || mask.has(cu), "{} is missing", cu);
        }
        let asked_count = (0..gpu.cu_count).filter(|cu| asked(*cu)).count();
        prop_assert!(mask.count() as usize <= asked_count.max(2));
        prop_assert_eq!(given.asked_end.is_some(), parts.iter().any(|(_, b)| *b >= gpu.cu_count));
    }

    /// What is written for ROCr is read by it as what was meant.
    #[test]
    fn masks_survive_the_variable(cus in proptest::collection::vec(0..1024_u32, 1..200)) {
        let mut mask = CuMask::none();
        cus.iter().for_each(|cu| mask.add(*cu));
        let text = format!("0:0;3:{mask};4:1");
        prop_assert_eq!(variable::mask_of(text.as_bytes(), 3, 8, 1023), Some(mask));
    }

    #[test]
    fn any_text_is_an_answer(text in "[0-9,=:*. a-]{0,24}", own in "[0-9,:;xA-F -]{0,24}") {
        let variables = Variables {
            range: text.as_bytes(),
            visible: Some(own.as_bytes()),
            mask: Some(own.as_bytes()),
        };
        let two = [one(GFX942), gpu(1, 110_000, 96, 1)];
        if let Err(error) = given(&variables, &two) {
            prop_assert!(!error.explain(text.as_bytes()).is_empty());
        }
    }
}
