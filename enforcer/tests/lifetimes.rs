//! Physical memory is charged until its handle is released and its last mapping is gone; and what else frees memory
//! than the functions that are made for it.

mod common;
#[allow(dead_code, reason = "other suites use the rest")]
#[path = "functions/session.rs"]
mod session;

use common::{GIB, on_each_standin};
use hip_standin::Build;
use session::Setup;

const MIB: u64 = 1 << 20;

on_each_standin! {
    it_is_charged_until_the_last_release_and_the_last_unmapping,
    ten_gibibytes_that_are_released_while_mapped_do_not_fit_into_one,
    a_handle_holds_once,
    ranges_of_several_mappings_are_unmapped_as_the_runtime_does,
    what_the_runtime_refuses_changes_nothing,
    an_import_is_not_charged,
    a_handle_that_is_given_again_is_another_block,
    a_reset_gives_back_what_the_runtime_frees,
    a_reset_that_fails_changes_nothing,
    a_free_of_host_memory_gives_back,
    what_a_pool_keeps_is_charged_and_used_again,
    pools_give_back_when_they_are_trimmed_or_synchronised,
}

/// Commands with what is booked or kept by pools, in MiB, when each has been done. The results are those without the library, and
/// the stand-in has given as much as is booked.
fn agree(setup: &Setup, script: &[(&str, u64)]) {
    let commands: Vec<&str> = script.iter().map(|(command, _)| *command).collect();
    let native = setup.native(&commands);
    let mut session = setup.start(&commands);
    for ((command, mib), native) in script.iter().zip(native) {
        assert_eq!(session.step(), native, "{command}");
        let charged = session.booked(0) + session.kept(0);
        assert_eq!(charged, mib * MIB, "{command}");
        assert_eq!(session.given(0), mib * MIB, "{command}: the stand-in");
    }
    session.finish();
}

fn it_is_charged_until_the_last_release_and_the_last_unmapping(build: Build) {
    let setup = Setup::new(build);
    agree(
        &setup,
        &[
            ("reserve:r:0x10000000", 0),
            ("create:h:0x100000:0", 1),
            ("map:r:0:0x100000:h", 1),
            ("map:r:0x100000:0x100000:h", 1),
            ("release:h", 1),
            ("unmap:r:0:0x100000", 1),
            ("unmap:r:0x100000:0x100000", 0),
            // The other way round, and with the memory mapped anew.
            ("create:h:0x100000:0", 1),
            ("map:r:0:0x100000:h", 1),
            ("unmap:r:0:0x100000", 1),
            ("map:r:0:0x80000:h", 1),
            ("unmap:r:0:0x80000", 1),
            ("release:h", 0),
        ],
    );
}

/// As llama.cpp and PyTorch do it.
fn ten_gibibytes_that_are_released_while_mapped_do_not_fit_into_one(build: Build) {
    let setup = Setup::new(build).limit("1GiB");
    let mut commands = vec![String::from("reserve:r:0x280000000")];
    for block in 0..40_u64 {
        let at = block * 256 * MIB;
        commands.push(format!("create:h{block}:0x10000000:0"));
        commands.push(format!("map:r:{at}:0x10000000:h{block}"));
        commands.push(format!("release:h{block}"));
    }
    let mut session = setup.start(&commands);
    session.step();
    for block in 0..40 {
        let granted = session.step().ends_with("= 0");
        assert_eq!(granted, block < 4, "block {block}");
        session.steps(2);
        assert_eq!(session.booked(0), (256 * MIB * (block + 1)).min(GIB));
        assert_eq!(session.given(0), session.booked(0));
    }
    session.finish();
}

fn a_handle_holds_once(build: Build) {
    agree(
        &Setup::new(build),
        &[
            ("reserve:r:0x10000000", 0),
            ("create:h:0x100000:0", 1),
            ("map:r:0:0x100000:h", 1),
            ("map:r:0x100000:0x100000:h", 1),
            ("retain:h:r", 1),
            ("release:h", 1),
            ("release:h", 1),
            ("release:h", 1),
            // A released handle is good as long as there is a mapping.
            ("retain:h:r", 1),
            ("map:r:0x200000:0x100000:h", 1),
            ("unmap:r:0:0x100000", 1),
            ("unmap:r:0x100000:0x100000", 1),
            ("unmap:r:0x200000:0x100000", 0),
        ],
    );
}

fn ranges_of_several_mappings_are_unmapped_as_the_runtime_does(build: Build) {
    let left = if build == Build::Seven { 1 } else { 3 };
    agree(
        &Setup::new(build),
        &[
            ("reserve:r:0x10000000", 0),
            ("create:a:0x100000:0", 1),
            ("create:b:0x100000:0", 2),
            ("create:c:0x100000:0", 3),
            ("map:r:0:0x100000:a", 3),
            ("map:r:0x100000:0x100000:b", 3),
            ("map:r:0x200000:0x100000:c", 3),
            ("release:a", 3),
            ("release:b", 3),
            ("release:c", 3),
            ("unmap:r:0:0x80000", 3),
            ("unmap:r:0:0x180000", 3),
            ("unmap:r:0:0x200000", left),
            ("unmap:r:0:0x100000", left.min(2)),
            ("unmap:r:0x100000:0x100000", 1),
            ("unmap:r:0x200000:0x100000", 0),
        ],
    );
}

fn what_the_runtime_refuses_changes_nothing(build: Build) {
    let setup = Setup::new(build).set("RULES", "hipMemMap@1=1,hipMemRelease@1=999,hipMemUnmap@1=1");
    agree(
        &setup,
        &[
            ("reserve:r:0x10000000", 0),
            ("create:h:0x100000:0", 1),
            ("map:r:0:0x100000:h", 1),
            ("release:h", 1),
            ("map:r:0:0x100000:h", 1),
            ("map:r:0:0x100000:h", 1), // there is something
            ("release:h", 1),
            ("unmap:r:0:0x100000", 1),
            ("unmap:r:0:0x100000", 0),
            ("unmap:r:0:0x100000", 0),
        ],
    );
}

fn an_import_is_not_charged(build: Build) {
    agree(
        &Setup::new(build).limit("1MiB"),
        &[
            ("reserve:r:0x10000000", 0),
            ("create:h:0x100000:0", 1),
            ("import:i:h", 1),
            ("map:r:0:0x100000:i", 1),
            ("map:r:0x100000:0x100000:h", 1),
            ("release:i", 1),
            ("unmap:r:0:0x100000", 1),
            ("release:h", 1),
            ("unmap:r:0x100000:0x100000", 0),
        ],
    );
}

/// The stand-in gives the same values again as soon as it can.
fn a_handle_that_is_given_again_is_another_block(build: Build) {
    let mut script = vec![("reserve:r:0x10000000", 0)];
    for _ in 0..5 {
        script.extend([
            ("create:a:0x100000:0", 1),
            ("map:r:0:0x100000:a", 1),
            ("release:a", 1),
            ("create:b:0x200000:0", 3),
            ("release:b", 1),
            ("unmap:r:0:0x100000", 0),
            ("create:c:0x400000:0", 4),
            ("release:c", 0),
        ]);
    }
    agree(&Setup::new(build), &script);
}

/// Arrays and managed memory stay, and so does what is mapped. 5.2 keeps everything, and forgets its pointers.
fn a_reset_gives_back_what_the_runtime_frees(build: Build) {
    let forgets = build == Build::FivePlain;
    let or = |all, freed| if forgets { all } else { freed };
    agree(
        &Setup::new(build),
        &[
            ("malloc:a:0x100000", 1),
            ("managed:m:0x100000", 2),
            ("array:y:32.0.0.0:1024:256", 3),
            ("reserve:r:0x10000000", 3),
            ("create:h:0x100000:0", 4),
            ("map:r:0:0x100000:h", 4),
            ("create:j:0x100000:0", 5),
            ("async:q:0x100000:null", 6),
            ("reset:-", or(6, 3)),
            ("malloc:b:0x100000", or(7, 4)),
            ("release:h", or(7, 4)),
            ("free_array:y", or(6, 3)),
            ("free:m", or(5, 2)),
            ("free:b", or(4, 1)),
            ("reset:-", or(4, 1)),
            ("malloc:a:0x100000", or(5, 2)),
        ],
    );
}

fn a_reset_that_fails_changes_nothing(build: Build) {
    let setup = Setup::new(build).set("RULES", "hipDeviceReset=999");
    agree(
        &setup,
        &[
            ("malloc:a:0x100000", 1),
            ("create:h:0x100000:0", 2),
            ("reset:-", 2),
            ("free:a", 1),
            ("release:h", 0),
        ],
    );
}

/// It frees memory of a device as well.
fn a_free_of_host_memory_gives_back(build: Build) {
    agree(
        &Setup::new(build),
        &[
            ("malloc:a:0x100000", 1),
            ("host_free:a", 0),
            ("managed:m:0x100000", 1),
            ("host_free:m", 0),
        ],
    );
}

/// A line of a refusal by the limit.
fn is_refused(line: &str) -> bool {
    line.contains(" = 2 ")
}

fn what_a_pool_keeps_is_charged_and_used_again(build: Build) {
    let commands = [
        "stream:s",
        "default_pool:p:0",
        "keep:p:0xffffffffffffffff",
        "async:a:0x300000:s",
        "free_async:a:s",
        "synchronize:s",
        "malloc:b:0x300000",
        "async:a:0x300000:s",
        "malloc:b:0x200000",
        "malloc:b:0x100000",
        "free_async:a:s",
        "synchronize:s",
        "async:a:0x300001:s",
        "trim:p:0",
        "malloc:c:0x300000",
    ];
    let mut session = Setup::new(build).limit("4MiB").start(&commands);
    for (command, refused, mib) in [
        ("stream", false, 0),
        ("default_pool", false, 0),
        ("keep", false, 0),
        ("async", false, 3),
        ("free_async", false, 3),
        ("synchronize", false, 3),
        ("malloc: it would be 6 MiB", true, 3),
        ("async: it fits what the pool keeps", false, 3),
        ("malloc: it would be 5 MiB", true, 3),
        ("malloc", false, 4),
        ("free_async", false, 4),
        ("synchronize", false, 4),
        ("async: one byte more than is kept", true, 4),
        ("trim", false, 1),
        ("malloc", false, 4),
    ] {
        let line = session.step();
        assert_eq!(is_refused(&line), refused, "{command}: {line}");
        assert!(refused || line.contains(" = 0"), "{command}: {line}");
        let charged = session.booked(0) + session.kept(0);
        assert_eq!(charged, mib * MIB, "{command}");
        assert_eq!(session.given(0), mib * MIB, "{command}: the stand-in");
    }
    session.finish();
}

fn pools_give_back_when_they_are_trimmed_or_synchronised(build: Build) {
    agree(
        &Setup::new(build),
        &[
            ("stream:s", 0),
            ("default_pool:p:0", 0),
            ("async:a:0x300000:s", 3),
            ("free_async:a:s", 3),
            ("device_synchronize:-", 0),
            ("async:a:0x300000:s", 3),
            ("free:a", 0),
            ("keep:p:0x200000", 0),
            ("async:a:0x100000:s", 1),
            ("async:b:0x100000:s", 2),
            ("async:c:0x100000:s", 3),
            ("free_async:b:s", 3),
            ("free_async:c:s", 3),
            ("synchronize:s", 2),
            ("trim:p:0x100000", 1),
            ("free_async:a:s", 1),
            ("reset:-", if build == Build::FivePlain { 1 } else { 0 }),
        ],
    );
}
