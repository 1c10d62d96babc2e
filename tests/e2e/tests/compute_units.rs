//! `FH_CU_RANGE` on the cards of the three architectures: what their queues get, and what programs are told.

use std::process::Command;
use std::slice::from_ref;

use anyhow::{Context, Result, ensure};
use hipflex_e2e::bench::{Bench, library};
use hipflex_e2e::on_each_runtime;
use hipflex_e2e::paths;
use hipflex_e2e::program::{self, Access};
use hipflex_e2e::shell::Shell;
use hipflex_e2e::status;
use kfd_emulator::Node;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// `hipDeviceAttributeMultiprocessorCount` and `hipDeviceAttributePhysicalMultiProcessorCount`
const COUNTS: [u32; 2] = [63, 10015];

on_each_runtime!(
    queues_carry_exactly_the_mask,
    the_first_call_may_be_one_that_is_not_hooked,
    counts_agree,
    only_counts_change,
    compute_units_alone_touch_no_account,
    both_limits_hold_and_are_shown,
    attributes_tell_the_limit_on_memory,
    the_user_s_own_mask_is_intersected,
    a_range_past_the_last_unit_is_an_error,
    what_is_cut_is_told,
    what_cannot_be_kept_may_be_left_open,
    children_have_the_mask,
    a_mask_that_is_there_already_costs_no_look,
    gpus_are_numbered_as_the_runtime_does,
    each_gpu_can_have_a_range_of_its_own,
    changes_before_the_start_of_hip_are_mended,
    changes_after_the_start_of_hip_are_not,
    without_a_range_nothing_is_set,
);

/// A card, how many compute units it has, and how many of them the runtime counts as one.
#[derive(Clone, Copy)]
struct Card {
    profile: &'static str,
    cus: u32,
    unit: u32,
}

const MI210: Card = Card {
    profile: "mi210",
    cus: 104,
    unit: 1,
};
const MI300X: Card = Card {
    profile: "mi300x",
    cus: 304,
    unit: 1,
};
const RX7900XTX: Card = Card {
    profile: "rx7900xtx",
    cus: 96,
    unit: 2,
};

/// The cards that a runtime knows.
fn cards(version: &str) -> &'static [Card] {
    if version < "6" {
        &[MI210]
    } else {
        &[MI210, MI300X, RX7900XTX]
    }
}

fn node(version: &str, card: Card, gpus: usize) -> Result<Bench> {
    Bench::with(version, |node| node.profile(card.profile).gpus(gpus))
}

/// A `hipsh` with these variables, and the library preloaded.
fn shell(bench: &Bench, access: Access, variables: &[(&str, &str)]) -> Result<Shell> {
    let mut command = bench.program("hipsh", access)?;
    command
        .env("LD_PRELOAD", library())
        .envs(variables.iter().copied());
    Shell::start(command)
}

fn ranged(bench: &Bench, range: &str) -> Result<Shell> {
    shell(bench, Access::Linked, &[("FH_CU_RANGE", range)])
}

/// Lets a process have queues.
fn make_queues(shell: &mut Shell) -> Result<()> {
    let made = shell.say("hipStreamCreate s")?;
    ensure!(made.starts_with("ok"), "{made}: {}", shell.messages());
    // The runtimes make the queue of a stream when there is work for it.
    ensure!(shell.malloc("q", 4 * MIB)?);
    shell.say("hipMemsetAsync q 0 4096 s")?;
    shell.say("hipStreamSynchronize s")?;
    shell.free("q")
}

/// The masks of the compute queues of a process on the GPU with this place in the node, each once.
fn masks(bench: &Bench, shell: &Shell, gpu: usize) -> Result<Vec<Vec<u32>>> {
    /// `KFD_IOC_QUEUE_TYPE_COMPUTE_AQL`
    const COMPUTE: u32 = 2;
    let state = bench.node.control().state()?;
    let gpu_id = state.gpus.get(gpu).context("no such GPU")?.gpu_id;
    let process = state.process(shell.pid()).context("no such process")?;
    let queues = process.queues.iter();
    let mut masks: Vec<_> = queues
        .filter(|queue| queue.kind == COMPUTE && queue.gpu_id == gpu_id)
        .map(|queue| queue.cu_mask.clone())
        .collect();
    masks.sort();
    masks.dedup();
    Ok(masks)
}

/// The mask of these compute units, as the ioctl has it.
fn mask(cus: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut words = Vec::new();
    for cu in cus {
        let word = (cu / 32) as usize;
        words.resize(words.len().max(word + 1), 0);
        words[word] |= 1 << (cu % 32);
    }
    words
}

/// The count of compute units in a structure: an int at this byte.
fn count_in(reply: &str, at: usize) -> Result<u32> {
    let bytes: Vec<u8> = (at..at + 4)
        .map(|byte| u8::from_str_radix(&reply[byte * 2..byte * 2 + 2], 16))
        .collect::<Result<_, _>>()
        .with_context(|| format!("{reply:.40}"))?;
    Ok(u32::from_le_bytes(bytes.try_into().unwrap_or_default()))
}

/// Every count that a program can ask for.
fn counts(bench: &Bench, shell: &mut Shell, device: u32) -> Result<Vec<u32>> {
    let mut counts = Vec::new();
    for attribute in COUNTS {
        let reply = shell.say(&format!("attribute {attribute} {device}"))?;
        let value = reply
            .strip_prefix("value ")
            .with_context(|| reply.clone())?;
        counts.push(value.parse()?);
    }
    for (which, at) in layouts(bench) {
        let reply = shell.say(&format!("properties {which} {device}"))?;
        counts.push(count_in(&reply, *at)?);
    }
    Ok(counts)
}

/// The structures of properties that a runtime fills in, and where they have the count.
fn layouts(bench: &Bench) -> &'static [(&'static str, usize)] {
    const ALL: [(&str, usize); 3] = [("plain", 336), ("R0000", 336), ("R0600", 388)];
    if bench.runtime.major() < 6 {
        &ALL[..1]
    } else {
        &ALL
    }
}

fn queues_carry_exactly_the_mask(version: &str) -> Result<()> {
    for card in cards(version) {
        let bench = node(version, *card, 1)?;
        for (range, expected) in [
            ("0-37", mask(0..38)),
            ("0-37,64-75", mask((0..38).chain(64..76))),
            ("8-23", mask(8..24)),
            ("all", mask(0..card.cus)),
        ] {
            for access in Access::ALL {
                let mut shell = shell(&bench, access, &[("FH_CU_RANGE", range)])?;
                make_queues(&mut shell)?;
                let masks = masks(&bench, &shell, 0)?;
                assert_eq!(masks, from_ref(&expected), "{} {range}", card.profile);
                assert_eq!(shell.messages(), "", "{} {range}", card.profile);
            }
        }
    }
    Ok(())
}

fn the_first_call_may_be_one_that_is_not_hooked(version: &str) -> Result<()> {
    for card in cards(version) {
        let bench = node(version, *card, 1)?;
        for first in ["init", "hipGetDeviceCount", "hipStreamCreate first"] {
            let mut shell = ranged(&bench, "0-37")?;
            let reply = shell.say(first)?;
            ensure!(!reply.starts_with("error"), "{first}: {reply}");
            make_queues(&mut shell)?;
            assert_eq!(masks(&bench, &shell, 0)?, [mask(0..38)], "{first}");
            assert_eq!(counts(&bench, &mut shell, 0)?[0], 38 / card.unit, "{first}");
            assert_eq!(shell.messages(), "", "{first}");
        }
    }
    Ok(())
}

fn counts_agree(version: &str) -> Result<()> {
    for card in cards(version) {
        let bench = node(version, *card, 1)?;
        for access in Access::ALL {
            let mut native = Shell::start(bench.program("hipsh", access)?)?;
            let all = counts(&bench, &mut native, 0)?;
            assert_eq!(
                all,
                vec![card.cus / card.unit; all.len()],
                "{}",
                card.profile
            );
            let mut shell = shell(&bench, access, &[("FH_CU_RANGE", "0-37")])?;
            let some = counts(&bench, &mut shell, 0)?;
            assert_eq!(some, vec![38 / card.unit; all.len()], "{}", card.profile);
            assert_eq!(
                shell.say("attribute 63 null")?,
                native.say("attribute 63 null")?
            );
            assert_eq!(shell.say("attribute 63 7")?, native.say("attribute 63 7")?);
        }
    }
    Ok(())
}

/// By look-up: a generation that has not got a layout must not seem to have it.
fn only_counts_change(version: &str) -> Result<()> {
    for card in cards(version) {
        let bench = node(version, *card, 1)?;
        let mut native = bench.shell(Access::Dlopen)?;
        let mut again = bench.shell(Access::Dlopen)?;
        let mut limited = shell(&bench, Access::Dlopen, &[("FH_CU_RANGE", "0-37")])?;
        for (which, at) in [("plain", 336), ("R0000", 336), ("R0600", 388)] {
            let ask = format!("properties {which} 0");
            let (mut before, after) = (native.say(&ask)?, limited.say(&ask)?);
            assert_eq!(before == "absent", after == "absent", "{which}");
            if before == "absent" {
                continue;
            }
            // Some bytes are addresses, which differ from process to process.
            let (native_reply, addresses) = (before.clone(), again.say(&ask)?);
            let count = (38 / card.unit).to_le_bytes();
            let text: String = count.iter().map(|byte| format!("{byte:02x}")).collect();
            before.replace_range(at * 2..at * 2 + 8, &text);
            let word = |text: &str, i: usize| text[i * 16..i * 16 + 16].to_owned();
            let same = |one: &str, other: &str, i| word(one, i) == word(other, i);
            let differing: Vec<usize> = (0..before.len() / 16)
                .filter(|i| same(&addresses, &native_reply, *i) && !same(&before, &after, *i))
                .collect();
            assert_eq!(differing, [0_usize; 0], "{which} on {}", card.profile);
        }
        let (before, after) = (native.say("attributes 0")?, limited.say("attributes 0")?);
        let expected: Vec<String> = before
            .split(' ')
            .map(|pair| match pair.split_once('=') {
                Some(("63" | "10015", _)) => {
                    let (number, _) = pair.split_once('=').unwrap_or_default();
                    format!("{number}={}", 38 / card.unit)
                }
                _ => pair.to_owned(),
            })
            .collect();
        let differ = |pair: &(&String, &str)| *pair.0 != pair.1 && !is_changeable(pair.1);
        let differing: Vec<_> = expected
            .iter()
            .zip(after.split(' '))
            .filter(differ)
            .collect();
        assert_eq!(differing, [], "{}", card.profile);
        assert_eq!(expected.len(), after.split(' ').count());
    }
    Ok(())
}

/// Whether an attribute differs from process to process: `hipDeviceAttributeHdpMemFlushCntl` and `...RegFlushCntl` are
/// addresses, and two sizes of textures follow the host's free memory on a card without textures.
fn is_changeable(pair: &str) -> bool {
    let number = pair.split('=').next().unwrap_or_default();
    ["10005", "10006", "44", "50"].contains(&number)
}

fn compute_units_alone_touch_no_account(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut native = bench.shell(Access::Linked)?;
    let mut shell = ranged(&bench, "0-37")?;
    let total = native.info()?.total;
    assert_eq!(shell.info()?.total, total);
    assert_eq!(shell.say("total 0")?, format!("total {total}"));
    ensure!(shell.malloc("much", total / 2)?);
    assert_eq!(counts(&bench, &mut shell, 0)?[0], 38);
    let status = status::of(&bench)?;
    assert_eq!(status.budgets.len(), 0, "no ledger");
    assert_eq!(shell.messages(), "");
    Ok(())
}

fn both_limits_hold_and_are_shown(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut shell = shell(
        &bench,
        Access::Linked,
        &[("FH_CU_RANGE", "0-37,64-75"), ("FH_MEMORY_LIMIT", "4GiB")],
    )?;
    ensure!(!shell.malloc("much", 5 * GIB)?);
    ensure!(shell.malloc("some", GIB)?);
    make_queues(&mut shell)?;
    let expected = mask((0..38).chain(64..76));
    assert_eq!(masks(&bench, &shell, 0)?, [expected]);
    assert_eq!(counts(&bench, &mut shell, 0)?[0], 50);
    let json = bench.hipflex(&["status", "--json"]).output()?;
    let json = String::from_utf8_lossy(&json.stdout).into_owned();
    ensure!(json.contains("\"compute_units\": \"0-37,64-75\""), "{json}");
    let table = bench.hipflex(&["status"]).output()?;
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    ensure!(table.contains("0-37,64-75"), "{table}");
    // Another process of the budget has no range.
    let mut other = bench.limited_shell(Access::Linked, "4GiB")?;
    other.info()?;
    let json = bench.hipflex(&["status", "--json"]).output()?;
    let json = String::from_utf8_lossy(&json.stdout).into_owned();
    ensure!(json.contains("\"compute_units\": null"), "{json}");
    Ok(())
}

fn attributes_tell_the_limit_on_memory(version: &str) -> Result<()> {
    const TOTAL: &str = "attribute 84 0";
    let bench = Bench::start(version)?;
    let mut native = bench.shell(Access::Linked)?;
    let mut limited = bench.limited_shell(Access::Linked, "1GiB")?;
    let wide = [("FH_MEMORY_LIMIT", "8GiB"), ("FH_BUDGET", "wide")];
    let mut wide = shell(&bench, Access::Linked, &wide)?;
    let before = native.say(TOTAL)?;
    if bench.runtime.generation() < 600 {
        assert_eq!(
            limited.say(TOTAL)?,
            before,
            "this generation does not answer"
        );
    } else {
        // It is an int, of which larger boards get the largest.
        assert_eq!(before, format!("value {}", i32::MAX));
        assert_eq!(limited.say(TOTAL)?, format!("value {GIB}"));
        assert_eq!(wide.say(TOTAL)?, before);
    }
    let all = |text: String| -> Vec<String> {
        let pairs = text.split(' ');
        let pairs = pairs.filter(|pair| !pair.starts_with("84=") && !is_changeable(pair));
        pairs.map(String::from).collect()
    };
    let (before, after) = (native.say("attributes 0")?, limited.say("attributes 0")?);
    assert_eq!(all(before), all(after));
    Ok(())
}

fn the_user_s_own_mask_is_intersected(version: &str) -> Result<()> {
    for card in cards(version) {
        let bench = node(version, *card, 1)?;
        let with = |own: &str| {
            shell(
                &bench,
                Access::Linked,
                &[("FH_CU_RANGE", "0-37"), ("HSA_CU_MASK", own)],
            )
        };
        for (own, expected) in [
            ("0:16-63", mask(16..38)),
            ("0:0xffff0000", mask(16..32)),
            ("1:0-1", mask(0..38)),
        ] {
            let mut shell = with(own)?;
            make_queues(&mut shell)?;
            assert_eq!(masks(&bench, &shell, 0)?, from_ref(&expected), "{own}");
            let count: u32 = expected.iter().map(|word| word.count_ones()).sum();
            assert_eq!(
                counts(&bench, &mut shell, 0)?[0],
                count / card.unit,
                "{own}"
            );
        }
        let mut shell = with("0:40-63")?;
        ensure!(!shell.malloc("a", MIB)?, "nothing is left");
        let told = shell.messages();
        ensure!(
            told.contains("HSA_CU_MASK") && told.contains("in common"),
            "{told}"
        );
        assert_eq!(told.lines().count(), 1, "{told}");
    }
    Ok(())
}

fn a_range_past_the_last_unit_is_an_error(version: &str) -> Result<()> {
    for card in cards(version) {
        let bench = node(version, *card, 1)?;
        let too_far = format!("{}-500", card.cus);
        for range in ["400-500", &too_far, "0-37,400", "banana", "", "5-3"] {
            let mut shell = ranged(&bench, range)?;
            ensure!(!shell.malloc("a", MIB)?, "{range} on {}", card.profile);
            let told = shell.messages();
            ensure!(
                told.starts_with("hipflex: FH_CU_RANGE: "),
                "{range}: {told}"
            );
            assert_eq!(told.lines().count(), 1, "{told}");
            // One count of units is as good as another where nothing may be done.
            assert_eq!(counts(&bench, &mut shell, 0)?[0], card.cus / card.unit);
        }
    }
    Ok(())
}

fn what_is_cut_is_told(version: &str) -> Result<()> {
    for card in cards(version) {
        let bench = node(version, *card, 1)?;
        let mut shell = ranged(&bench, "64-999")?;
        make_queues(&mut shell)?;
        assert_eq!(
            masks(&bench, &shell, 0)?,
            [mask(64..card.cus)],
            "{}",
            card.profile
        );
        assert_eq!(
            counts(&bench, &mut shell, 0)?[0],
            (card.cus - 64) / card.unit
        );
        let told = shell.messages();
        let shown = format!("64-{}", card.cus - 1);
        ensure!(told.contains(&shown) && told.contains("999"), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
        if card.unit == 2 {
            for (range, given, told) in [
                ("0-36", mask(0..36), "0-35"),
                ("1-2", mask(0..2), "0-1"),
                ("5", mask(4..6), "4-5"),
            ] {
                let mut shell = ranged(&bench, range)?;
                make_queues(&mut shell)?;
                assert_eq!(masks(&bench, &shell, 0)?, [given], "{range}");
                let messages = shell.messages();
                ensure!(
                    messages.contains(&format!("compute units {told} ")),
                    "{messages}"
                );
                assert_eq!(messages.lines().count(), 1, "{messages}");
            }
        }
    }
    Ok(())
}

fn what_cannot_be_kept_may_be_left_open(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut shell = shell(
        &bench,
        Access::Linked,
        &[
            ("FH_CU_RANGE", "400-500"),
            ("FH_MEMORY_LIMIT", "4GiB"),
            ("FH_FAIL_MODE", "open"),
        ],
    )?;
    ensure!(shell.malloc("a", MIB)?);
    ensure!(!shell.malloc("b", 5 * GIB)?, "the other limit holds");
    assert_eq!(counts(&bench, &mut shell, 0)?[0], 104);
    let told = shell.messages();
    ensure!(told.contains("ALL compute units"), "{told}");
    Ok(())
}

fn children_have_the_mask(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let program = program::build("hipsh", &bench.runtime, Access::Linked)?;
    let program = program.display().to_string();
    let under = |script: &str, variables: &[(&str, &str)]| {
        let mut command = bench.command("/bin/sh");
        command
            .args(["-c", &script.replace("PROGRAM", &program)])
            .env("LD_PRELOAD", library())
            .envs(variables.iter().copied());
        Shell::start(command)
    };
    let range = ("FH_CU_RANGE", "0-37");
    for (script, variables, expected) in [
        ("exec PROGRAM", &[range][..], mask(0..38)),
        ("FH_CU_RANGE=40-47 exec PROGRAM", &[range], mask(40..48)),
        // The user's own mask was left out of nothing, and is not taken for the parent's.
        (
            "FH_CU_RANGE=40-47 exec PROGRAM",
            &[range, ("HSA_CU_MASK", "0:32-43")],
            mask(40..44),
        ),
        ("HSA_CU_MASK=0:4-50 exec PROGRAM", &[range], mask(4..38)),
        (
            "HSA_CU_MASK_SKIP_INIT=1 exec PROGRAM",
            &[range],
            mask(0..38),
        ),
    ] {
        let mut shell = under(script, variables)?;
        make_queues(&mut shell)?;
        assert_eq!(masks(&bench, &shell, 0)?, [expected], "{script}");
        assert_eq!(shell.messages(), "", "{script}");
    }
    // A new image, a program that cleaned its environment, and forked workers.
    let mut shell = ranged(&bench, "0-37")?;
    assert_eq!(shell.say("exec")?, "ready");
    make_queues(&mut shell)?;
    assert_eq!(masks(&bench, &shell, 0)?, [mask(0..38)]);
    let mut parent = ranged(&bench, "0-37")?;
    let reply = parent.say("workers 2 1048576")?;
    ensure!(!reply.contains("error"), "{reply}");
    let state = bench.node.control().state()?;
    let with_queues = state.processes.iter().filter(|process| {
        let mut masks = process.queues.iter().map(|queue| &queue.cu_mask);
        masks.any(|found| !found.is_empty() && *found != mask(0..38))
    });
    assert_eq!(with_queues.count(), 0, "no queue has another mask");
    Ok(())
}

/// A program whose variables say that its mask was made from the same ones takes it as it is.
fn a_mask_that_is_there_already_costs_no_look(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let seen = |range: &str, marker: &str| -> Result<String> {
        let mut shell = shell(
            &bench,
            Access::Linked,
            &[
                ("FH_CU_RANGE", range),
                ("HSA_CU_MASK", "0:0-5"),
                ("FH_CU_MASK_FROM", marker),
            ],
        )?;
        shell.say("getenv HSA_CU_MASK")
    };
    assert_eq!(seen("0-37", "0-37||0:0-5|")?, "value 0:0-5");
    assert_eq!(seen("0-37", "0-37|=0|0:0-5|")?, "value 0:0-37");
    assert_eq!(seen("0-38", "0-37||0:0-5|")?, "value 0:0-38");
    assert_eq!(seen("0-37", "nonsense")?, "value 0:0-5", "it is the user's");
    Ok(())
}

fn gpus_are_numbered_as_the_runtime_does(version: &str) -> Result<()> {
    let bench = Bench::with(version, |node| node.gpus(3))?;
    let state = bench.node.control().state()?;
    let [first, second, third] = [0, 1, 2].map(|gpu| state.gpus[gpu].bdf.clone());
    let range = format!("{first}=0-7,{second}=16-31,{third}=32-63");
    let ranges = [mask(0..8), mask(16..32), mask(32..64)];
    for (variables, order) in [
        (&[][..], &[0, 1, 2][..]),
        (&[("ROCR_VISIBLE_DEVICES", "2,0")], &[2, 0]),
        (&[("ROCR_VISIBLE_DEVICES", "1")], &[1]),
        (
            &[("ROCR_VISIBLE_DEVICES", "GPU-1a2b3c4d5e6f7002,1")],
            &[2, 1],
        ),
        // HIP's own choice does not change ROCr's numbers.
        (&[("HIP_VISIBLE_DEVICES", "2,1")], &[2, 1]),
        (
            &[
                ("ROCR_VISIBLE_DEVICES", "2,0"),
                ("HIP_VISIBLE_DEVICES", "1"),
            ],
            &[0],
        ),
    ] {
        let mut all = vec![("FH_CU_RANGE", range.as_str())];
        all.extend(variables);
        let mut shell = shell(&bench, Access::Linked, &all)?;
        for (device, gpu) in order.iter().enumerate() {
            let count: u32 = ranges[*gpu].iter().map(|word| word.count_ones()).sum();
            assert_eq!(
                counts(&bench, &mut shell, device as u32)?[0],
                count,
                "{variables:?}"
            );
            assert_eq!(shell.say(&format!("device {device}"))?, "ok");
            make_queues(&mut shell)?;
            let masks = masks(&bench, &shell, *gpu)?;
            assert_eq!(masks, from_ref(&ranges[*gpu]), "{variables:?}");
        }
        assert_eq!(shell.messages(), "", "{variables:?}");
    }
    Ok(())
}

fn each_gpu_can_have_a_range_of_its_own(version: &str) -> Result<()> {
    let bench = Bench::with(version, |node| node.gpus(2))?;
    let second = bench.node.control().state()?.gpus[1].bdf.clone();
    let mut shell = ranged(&bench, &format!("{second}=all,*=0-7"))?;
    assert_eq!(counts(&bench, &mut shell, 0)?[0], 8);
    assert_eq!(counts(&bench, &mut shell, 1)?[0], 104);
    let mut shell = ranged(&bench, &format!("{second}=0-7"))?;
    ensure!(!shell.malloc("a", MIB)?);
    let told = shell.messages();
    ensure!(told.contains("has no range"), "{told}");
    Ok(())
}

fn changes_before_the_start_of_hip_are_mended(version: &str) -> Result<()> {
    let bench = Bench::with(version, |node| node.gpus(2))?;
    for steps in [
        &["unsetenv HSA_CU_MASK"][..],
        &["clearenv"],
        &["setenv FH_CU_RANGE 0-99"],
        &["setenv ROCR_VISIBLE_DEVICES 1"],
        &["setenv HSA_CU_MASK_SKIP_INIT 1"],
        &["setenv HSA_CU_MASK 0:0-63"],
        &["setenv A 1", "unsetenv HSA_CU_MASK", "setenv B 2"],
    ] {
        let mut shell = ranged(&bench, "0-37")?;
        for step in steps {
            assert_eq!(shell.say(step)?, "ok");
        }
        let gpu = usize::from(steps[0].contains("ROCR"));
        assert_eq!(counts(&bench, &mut shell, 0)?[0], 38, "{steps:?}");
        make_queues(&mut shell)?;
        assert_eq!(masks(&bench, &shell, gpu)?, [mask(0..38)], "{steps:?}");
        assert_eq!(shell.messages(), "", "{steps:?}");
    }
    // A range that was not there at the start.
    let mut shell = shell(&bench, Access::Linked, &[])?;
    assert_eq!(shell.say("setenv FH_CU_RANGE 0-37")?, "ok");
    assert_eq!(counts(&bench, &mut shell, 0)?[0], 38);
    make_queues(&mut shell)?;
    assert_eq!(masks(&bench, &shell, 0)?, [mask(0..38)]);
    Ok(())
}

/// The runtime has read the variable, so a program whose mask is another is not told that it holds.
fn changes_after_the_start_of_hip_are_not(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut late = shell(&bench, Access::Linked, &[])?;
    assert_eq!(late.say("init")?, "ok");
    assert_eq!(late.say("setenv FH_CU_RANGE 0-37")?, "ok");
    ensure!(!late.malloc("a", MIB)?, "all units are used");
    let told = late.messages();
    ensure!(told.contains("HIP has started"), "{told}");
    assert_eq!(counts(&bench, &mut late, 0)?[0], 104);
    // What does not matter to the runtime any more is no harm.
    let mut shell = ranged(&bench, "0-37")?;
    ensure!(shell.malloc("a", MIB)?);
    assert_eq!(shell.say("clearenv")?, "ok");
    ensure!(shell.malloc("b", MIB)?);
    assert_eq!(counts(&bench, &mut shell, 0)?[0], 38);
    Ok(())
}

fn without_a_range_nothing_is_set(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    for variables in [
        &[][..],
        &[("FH_MEMORY_LIMIT", "4GiB")],
        &[("FH_CU_RANGE", "0-37"), ("FH_ENABLE_HOOKS", "off")],
    ] {
        let mut shell = shell(&bench, Access::Linked, variables)?;
        assert_eq!(shell.say("getenv HSA_CU_MASK")?, "unset");
        make_queues(&mut shell)?;
        let whole = masks(&bench, &shell, 0)?;
        ensure!(whole.iter().all(Vec::is_empty), "{whole:?}");
        assert_eq!(counts(&bench, &mut shell, 0)?[0], 104);
    }
    Ok(())
}

/// A library stands before libc that has not set itself up when the constructor runs: a call of any function is the end.
/// (In a debug build the compiler calls `memcpy` where it likes.)
#[test]
fn the_constructor_calls_nothing_that_others_interpose() -> Result<()> {
    let directory = paths::programs();
    std::fs::create_dir_all(&directory)?;
    let traps = directory.join("traps.so");
    let mut names = String::from("-DNAMES=");
    let imports = imports()?;
    for expected in ["memcpy", "strlen", "malloc", "open64", "getenv"] {
        ensure!(imports.iter().any(|name| name == expected), "{imports:?}");
    }
    for name in imports {
        names.push_str(&format!("X({name}) "));
    }
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", &names, "-o"])
        .arg(&traps)
        .arg(paths::workspace().join("tests/programs/traps.c"))
        .status()?;
    ensure!(compiled.success(), "cc: {compiled}");
    let node = Node::builder()
        .binary(paths::release().join("kfd-emulator"))
        .gpus(2)
        .start()?;
    for (range, expected) in [
        ("0-37,64-75", "HSA_CU_MASK=0:0-37,64-75;1:30-37,64-75"),
        ("0000:03:00.0=0-3,*=all", "HSA_CU_MASK=0:0-3;1:30-103"),
        ("banana", "HSA_CU_MASK=1:30-103"),
    ] {
        let preloads = format!("{} {}", traps.display(), library().display());
        let output = node
            .command("/usr/bin/env")
            .env("LD_PRELOAD", preloads)
            .env("FH_CU_RANGE", range)
            .env("HSA_CU_MASK", "1:30-103")
            .env("ROCR_VISIBLE_DEVICES", "0,GPU-1a2b3c4d5e6f7001")
            .output()?;
        let variables = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{range}: {}", output.status);
        ensure!(
            variables.lines().any(|line| line == expected),
            "{range}: {variables}"
        );
    }
    Ok(())
}

/// The functions that the library imports, but for those that only the compiler's start-up files look for.
fn imports() -> Result<Vec<String>> {
    let output = Command::new("readelf")
        .args(["--dyn-syms", "--wide"])
        .arg(library())
        .output()?;
    let table = String::from_utf8(output.stdout)?;
    let columns = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let names = columns
        .filter(|columns| columns.get(6) == Some(&"UND") && columns.get(3) == Some(&"FUNC"))
        .filter_map(|columns| columns.get(7)?.split('@').next().map(String::from));
    Ok(names.filter(|name| name != "__cxa_finalize").collect())
}
