//! Every function that allocates and frees: what is booked, refused, given back, and where.

mod common;
#[path = "functions/requests.rs"]
mod requests;
#[path = "functions/session.rs"]
mod session;

use common::{GIB, on_each_standin};
use hip_standin::Build;
use requests::{PITCH, Request, one_of_each, other_shapes};
use session::Setup;

on_each_standin! {
    what_is_taken_is_booked_and_every_free_gives_it_back,
    rows_are_booked_as_long_as_the_runtime_makes_them,
    a_free_of_another_sort_changes_nothing,
    an_exact_fit_is_granted_and_one_byte_less_is_not,
    rows_that_do_not_fit_as_the_runtime_makes_them_are_refused,
    what_cannot_be_counted_is_refused,
    a_native_failure_gives_everything_back,
    nothing_and_nowhere_are_left_to_the_runtime,
    calls_inside_of_calls_count_once,
    the_device_that_is_current_is_charged,
    the_device_that_was_used_is_charged,
    only_the_limit_of_the_device_that_was_used_counts,
    a_location_is_charged_as_the_runtime_takes_it,
    what_is_recorded_is_booked_when_it_is_taken,
    host_memory_is_not_charged,
    managed_memory_is_told_apart,
    both_accounts_agree_when_nothing_is_under_way,
}

/// What a call of this command must print on failure when nothing is written.
fn refused(command: &str) -> String {
    let name = command.split(':').next().unwrap();
    let more = match name {
        "pitch" | "mem_pitch" => " pitch kept",
        "malloc3d" => " pitch kept xsize kept ysize kept",
        _ => "",
    };
    format!("{name} a = 2 untouched{more}")
}

fn is_success(line: &str) -> bool {
    line.split(" = ").nth(1).is_some_and(|result| {
        result.split(' ').next() == Some("0")
            && !result.contains("untouched")
            && !result.contains("null")
    })
}

/// The request's own commands, with `more` behind.
fn script<'a>(request: &'a Request, more: &[&'a str]) -> Vec<&'a str> {
    let setup = request.setup.iter().copied();
    let own = std::iter::once(request.command.as_str());
    setup.chain(own).chain(more.iter().copied()).collect()
}

fn is_booked_and_given_back(setup: &Setup, request: &Request) {
    // Each way to free it, twice; pools give memory back when their stream has come that far.
    for free in request.frees {
        let commands = script(request, &[free, free, "synchronize:0"]);
        let mut session = setup.start(&commands);
        let native = setup.native(&commands);
        let before = request.setup.len();
        assert_eq!(session.steps(before), native[..before]);
        let case = format!("{request:?} {free}");
        assert_eq!(session.step(), native[before], "{case}");
        assert!(is_success(&native[before]), "{case}: {}", native[before]);
        assert_eq!(session.booked(0), request.bytes, "{case}");
        assert_eq!(session.given(0), request.bytes, "{case}: the stand-in");
        assert_eq!(session.counts(), (1, 0, 0), "{case}");
        assert_eq!(session.step(), native[before + 1], "{case}");
        assert!(native[before + 1].ends_with(" = 0"), "{case}");
        // A pool has it until the stream has come that far.
        let is_kept = request.function.ends_with("Async") && *free == "free_async:a";
        let kept = if is_kept { request.bytes } else { 0 };
        assert_eq!((session.booked(0), session.kept(0)), (0, kept), "{case}");
        assert_eq!(session.given(0), kept, "{case}: the stand-in");
        assert_eq!(session.counts(), (1, 1, 0), "{case}");
        assert_eq!(session.step(), native[before + 2], "{case}");
        assert!(!native[before + 2].ends_with(" = 0"), "{case}");
        assert_eq!((session.booked(0), session.kept(0)), (0, kept), "{case}");
        assert_eq!(session.counts(), (1, 1, 0), "{case}");
        session.step();
        assert_eq!((session.booked(0), session.kept(0)), (0, 0), "{case}");
        assert_eq!(session.given(0), 0, "{case}: the stand-in");
        session.finish();
    }
}

fn what_is_taken_is_booked_and_every_free_gives_it_back(build: Build) {
    for request in one_of_each(PITCH).iter().chain(&other_shapes()) {
        is_booked_and_given_back(&Setup::new(build), request);
    }
}

/// The pitch is the runtime's to choose.
fn rows_are_booked_as_long_as_the_runtime_makes_them(build: Build) {
    for pitch in [1, 128, 4096, 65536] {
        let setup = Setup::new(build).set("PITCH", &pitch.to_string());
        for request in one_of_each(pitch) {
            if request.command.contains("pitch") || request.command.contains("malloc3d") {
                is_booked_and_given_back(&setup, &request);
            }
        }
    }
}

/// The runtime turns it down, so the memory is still there.
fn a_free_of_another_sort_changes_nothing(build: Build) {
    const ALL: [&str; 7] = [
        "free:a",
        "free_async:a",
        "release:a",
        "free_array:a",
        "array_destroy:a",
        "free_mipmapped:a",
        "mipmapped_destroy:a",
    ];
    for request in one_of_each(PITCH) {
        let others: Vec<_> = ALL
            .into_iter()
            .filter(|free| !request.frees.contains(free))
            .collect();
        let commands = script(&request, &[&others[..], &request.frees[..1]].concat());
        let setup = Setup::new(build);
        let mut session = setup.start(&commands);
        let native = setup.native(&commands);
        let before = request.setup.len() + 1;
        assert_eq!(session.steps(before), native[..before]);
        for (n, other) in others.iter().enumerate() {
            assert_eq!(session.step(), native[before + n], "{request:?} {other}");
            assert!(!native[before + n].ends_with(" = 0"), "{request:?} {other}");
            assert_eq!(session.booked(0), request.bytes, "{request:?} {other}");
        }
        assert!(session.step().ends_with(" = 0"));
        assert_eq!(session.booked(0), 0, "{request:?}");
        assert_eq!(session.counts(), (1, 1, 0), "{request:?}");
        session.finish();
    }
}

fn an_exact_fit_is_granted_and_one_byte_less_is_not(build: Build) {
    for request in one_of_each(PITCH) {
        let commands = script(&request, &[]);
        let setup = Setup::new(build).limit(request.bytes);
        let mut session = setup.start(&commands);
        session.steps(request.setup.len());
        let line = session.step();
        assert!(is_success(&line), "{request:?}: {line}");
        assert_eq!(session.booked(0), request.bytes, "{request:?}");
        session.finish();

        let setup = setup.limit(request.bytes - 1);
        let mut session = setup.start(&commands);
        session.steps(request.setup.len());
        assert_eq!(session.step(), refused(&request.command), "{request:?}");
        assert_eq!(session.booked(0), 0, "{request:?}");
        assert_eq!(session.given(0), 0, "{request:?}: the stand-in");
        assert_eq!(session.counts(), (0, 0, 1), "{request:?}");
        let refusal = session.member().unwrap().last_refusal.unwrap();
        assert_eq!(refusal.api, request.function);
        session.finish();
    }
}

/// What was asked fits, what the runtime makes of it does not.
fn rows_that_do_not_fit_as_the_runtime_makes_them_are_refused(build: Build) {
    let setup = Setup::new(build).set("PITCH", "4096").limit(200_000);
    for (command, fits) in [
        ("pitch:a:100:1000", "pitch:a:100:10"),
        ("mem_pitch:a:100:1000:8", "mem_pitch:a:100:10:8"),
        ("malloc3d:a:100:100:10", "malloc3d:a:100:5:2"),
    ] {
        let mut session = setup.start(&[command, fits]);
        assert_eq!(session.step(), refused(command));
        assert_eq!(session.booked(0), 0, "{command}");
        assert_eq!(session.given(0), 0, "{command}: the stand-in");
        // Nothing of it stands in the way of what does fit.
        let line = session.step();
        assert!(is_success(&line), "{line}");
        assert_eq!(session.booked(0), 40_960, "{command}");
        session.finish();
    }
}

/// Products and sums beyond 2^62, and such as would be small again in 64 bits.
fn what_cannot_be_counted_is_refused(build: Build) {
    let mut commands = Vec::new();
    for size in [
        (1 << 62) + 4096,
        (1 << 63) - 1,
        1 << 63,
        (1 << 63) + 4096,
        u64::MAX - 4095,
        u64::MAX,
    ] {
        commands.extend(
            ["malloc", "ext", "managed", "async"].map(|command| format!("{command}:a:{size}")),
        );
        commands.push(format!("from_pool:a:{size}:p"));
        commands.push(format!("create:a:{size}:0"));
        commands.push(format!("array:a:32.0.0.0:{size}:1"));
        commands.push(format!("array3d:a:32.0.0.0:{size}:0:0"));
        commands.push(format!("array_create:a:0x01.1:{size}:0"));
        commands.push(format!("array3d_create:a:0x01.1:{size}:1:1"));
        commands.push(format!("mipmapped:a:8.0.0.0:{size}:1:1:1"));
        commands.push(format!("mipmapped_create:a:0x01.1:{size}:1:1:1"));
    }
    for (width, height) in [
        (1 << 32, 1 << 32),
        (1 << 33, 1 << 31),
        (1 << 63, 2),
        (u64::MAX, 1),
        (u64::MAX, u64::MAX),
        (1 << 56, 256),
        ((1 << 32) + 1, (1 << 32) + 1),
    ] {
        commands.push(format!("pitch:a:{width}:{height}"));
        commands.push(format!("mem_pitch:a:{width}:{height}:4"));
        commands.push(format!("malloc3d:a:{width}:{height}:1"));
        commands.push(format!("malloc3d:a:{width}:1:{height}"));
        commands.push(format!("malloc3d:a:1:{width}:{height}"));
        commands.push(format!("array:a:8.0.0.0:{width}:{height}"));
        commands.push(format!("array3d:a:8.0.0.0:{width}:{height}:1"));
        commands.push(format!("array_create:a:0x01.1:{width}:{height}"));
        commands.push(format!("array3d_create:a:0x01.1:1:{width}:{height}"));
        commands.push(format!("mipmapped:a:8.0.0.0:{width}:{height}:1:1"));
        commands.push(format!("mipmapped_create:a:0x20.4:{width}:{height}:1:33"));
    }
    for command in ["malloc3d", "array3d", "array3d_create"] {
        let format = match command {
            "array3d" => "32.32.32.32:",
            "array3d_create" => "0x20.4:",
            _ => "",
        };
        // 2^64, 2^60 elements of 16 bytes, 3 * 2^64 + 2^21.
        for extent in ["4194304:2097152:2097152", "1048576:1048576:1048576"] {
            commands.push(format!("{command}:a:{format}{extent}"));
        }
    }
    commands.push(String::from("mipmapped:a:32.0.0.0:100:1:1:4294967295"));
    for limit in ["unlimited", "4GiB"] {
        // The runtime has no bound of its own on arrays here; it may wrap, so it must not be asked.
        let setup = Setup::new(build)
            .limit(limit)
            .set("IMAGE_LIMIT", "9223372036854775807");
        let mut all = vec![
            String::from("default_pool:p:0"),
            String::from("malloc:b:4096"),
        ];
        all.extend(commands.iter().cloned());
        all.push(String::from("malloc:c:4096"));
        let mut session = setup.start(&all);
        session.steps(2);
        for command in &commands {
            let line = session.step();
            let error = line
                .split(" = ")
                .nth(1)
                .and_then(|rest| rest.split(' ').next());
            assert!(
                matches!(error, Some("1" | "2")),
                "{limit} {command}: {line}"
            );
            assert_eq!(session.booked(0), 4096, "{limit} {command}");
            assert_eq!(session.given(0), 4096, "{limit} {command}: the stand-in");
        }
        assert!(is_success(&session.step()));
        assert_eq!(session.booked(0), 8192);
        session.finish();
    }
}

/// By an error, by a null pointer, by want of memory; and what the outputs hold then is the runtime's affair.
fn a_native_failure_gives_everything_back(build: Build) {
    for request in one_of_each(PITCH) {
        let name = request.function;
        let setup = || Setup::new(build);
        let full = (request.bytes - 1).to_string();
        for setup in [
            setup().set("RULES", &format!("{name}=2")),
            setup().set("RULES", &format!("{name}=999")),
            setup().set("RULES", &format!("{name}=null")),
            setup()
                .set("RULES", &format!("{name}=2"))
                .set("POISON", "1"),
            setup().set("VRAM", &full),
            setup().set("VRAM", &full).set("POISON", "1"),
        ] {
            // Managed memory takes none of the device's.
            if name == "hipMallocManaged" && format!("{setup:?}").contains("VRAM") {
                continue;
            }
            let commands = script(&request, &[]);
            let mut session = setup.start(&commands);
            let native = setup.native(&commands);
            assert_eq!(session.steps(native.len()), native, "{setup:?} {request:?}");
            let last = native.last().unwrap();
            assert!(!is_success(last), "{setup:?} {request:?}: {last}");
            assert_eq!(session.booked(0), 0, "{setup:?} {request:?}");
            assert_eq!(session.given(0), 0, "{setup:?} {request:?}: the stand-in");
            assert_eq!(session.counts(), (0, 0, 0), "{setup:?} {request:?}");
            session.finish();
        }
    }
}

/// Nothing asked for, no place for the result, no description, or one that is not right: as without us, also where as
/// much as that would be too much.
fn nothing_and_nowhere_are_left_to_the_runtime(build: Build) {
    let much = 5 * GIB;
    let mut commands: Vec<String> = ["malloc", "ext", "managed", "async"]
        .into_iter()
        .flat_map(|command| {
            [
                format!("{command}:a:0"),
                format!("{command}:nowhere:0"),
                format!("{command}:nowhere:4096"),
                format!("{command}:nowhere:{much}"),
            ]
        })
        .collect();
    commands.extend(
        [
            "default_pool:p:0",
            "from_pool:a:0:p",
            "from_pool:nowhere:4096:p",
            "from_pool:a:4096:0",
            "create:a:0:0",
            "create:nowhere:4096:0",
            "create:a:4096:null",
            "create:a:4095:0",
            "create:a:4096:99",
            "pitch:a:0:7",
            "pitch:a:100:0",
            "pitch:nowhere:100:7",
            "pitch_nowhere:a:100:7",
            "pitch_nowhere:nowhere:0:0",
            "mem_pitch:a:0:0:4",
            "mem_pitch:a:100:7:5",
            "mem_pitch:nowhere:100:7",
            "mem_pitch_nowhere:a:100:7",
            "malloc3d:a:0:7:3",
            "malloc3d:a:100:0:3",
            "malloc3d:a:100:7:0",
            "array:a:null:100:7",
            "array:nowhere:32.0.0.0:100:7",
            "array:a:32.0.0.0:0:7",
            "array:a:0.0.0.0:100:7",
            "array:a:7.0.0.0:100:7",
            "array:a:32.32.32.0:100:7",
            "array3d:a:null:100:7:3",
            "array3d:nowhere:32.0.0.0:100:7:3",
            "array3d:a:32.0.0.0:100:0:3",
            "array_create:a:null:100:7",
            "array_create:nowhere:0x20.4:100:7",
            "array_create:a:0x07.4:100:7",
            "array_create:a:0x20.3:100:7",
            "array_create:a:0x20.4:0:0",
            "array3d_create:a:null:100:7:3",
            "array3d_create:nowhere:0x20.4:100:7:3",
            "array3d_create:a:0x40.1:100:7:3",
            "mipmapped:a:null:100:7:3:2",
            "mipmapped:nowhere:32.0.0.0:100:7:3:2",
            "mipmapped:a:32.0.0.0:100:7:3:0",
            "mipmapped:a:32.0.0.0:100:7:3:9",
            "mipmapped_create:a:null:100:7:3:2",
            "mipmapped_create:nowhere:0x20.4:100:7:3:2",
            "mipmapped_create:a:0x20.4:0:0:0:1",
            "free:0",
            "free_async:0",
            "release:0",
            "free_array:0",
            "array_destroy:0",
            "free_mipmapped:0",
            "mipmapped_destroy:0",
        ]
        .map(String::from),
    );
    // hipMalloc3D has one output only.
    commands.push(String::from("malloc3d:nowhere:100:7:3"));
    let setup = Setup::new(build);
    let native = setup.native(&commands);
    commands.push(String::from("malloc:z:4096"));
    let mut session = setup.start(&commands);
    for (command, expected) in commands.iter().zip(&native) {
        assert_eq!(session.step(), *expected, "{command}");
    }
    assert!(is_success(&session.step()));
    assert_eq!((session.booked(0), session.given(0)), (4096, 4096));
    assert_eq!(session.counts(), (1, 0, 0));
    session.finish();
}

fn calls_inside_of_calls_count_once(build: Build) {
    let setup = Setup::new(build).set("NESTED", "1");
    for request in one_of_each(PITCH) {
        is_booked_and_given_back(&setup, &request);
    }
}

/// Two GPUs, of which HIP shows the second one first if `reversed`.
fn two_gpus(build: Build, reversed: bool) -> Setup {
    let two = "0000:03:00.0,0000:83:00.0";
    let setup = Setup::new(build)
        .set("DEVICES", two)
        .variable("FH_VISIBLE_DEVICES", two);
    if reversed {
        setup.variable("HIP_VISIBLE_DEVICES", "1,0")
    } else {
        setup
    }
}

/// Checks that the last of `commands` is charged to the GPU that the stand-in took it from, which is `gpu`, and
/// refused where that has one byte too little.
fn is_charged_to(setup: &Setup, commands: &[&str], bytes: u64, gpu: usize) {
    let both = |bytes| if gpu == 0 { [bytes, 0] } else { [0, bytes] };
    let limits = [
        (String::from("unlimited"), true),
        (limits_of(gpu, bytes, bytes * 2), true),
        (limits_of(gpu, bytes - 1, bytes * 2), false),
    ];
    for (limit, fits) in limits {
        check_charge(setup, &limit, commands, both(if fits { bytes } else { 0 }));
    }
}

/// A limit on this GPU, and one on the other.
fn limits_of(gpu: usize, here: u64, there: u64) -> String {
    let names = ["0000:03:00.0", "0000:83:00.0"];
    format!("{}={here},{}={there}", names[gpu], names[1 - gpu])
}

/// Checks what is charged to both GPUs when the last of `commands` was done. If that is nothing, it must have been
/// refused.
fn check_charge(setup: &Setup, limit: &str, commands: &[&str], expected: [u64; 2]) {
    // A pool may keep what was taken back until the device has come that far.
    const SYNCHRONIZE: [&str; 4] = ["device:0", "synchronize:0", "device:1", "synchronize:0"];
    let all = [commands, &SYNCHRONIZE].concat();
    let mut session = setup.clone().limit(limit).start(&all);
    let lines = session.steps(commands.len());
    let case = format!("{limit}: {setup:?} {commands:?} {lines:?}");
    let last = commands.len() - 1;
    if expected == [0, 0] {
        assert_eq!(lines[last], refused(commands[last]), "{case}");
    } else {
        assert!(is_success(&lines[last]), "{case}");
    }
    let booked = [session.booked(0), session.booked(1)];
    assert_eq!(booked, expected, "{case}");
    session.steps(SYNCHRONIZE.len());
    let given = [session.given(0), session.given(1)];
    assert_eq!(given, expected, "the stand-in: {case}");
    session.finish();
}

fn the_device_that_is_current_is_charged(build: Build) {
    for (device, reversed) in [(1, false), (0, true)] {
        let setup = two_gpus(build, reversed);
        for request in one_of_each(PITCH) {
            let current = format!("device:{device}");
            let pool = format!("default_pool:p:{device}");
            // Handles and pools name their device.
            let command = request
                .command
                .replace("1003520:0", &format!("1003520:{device}"));
            let commands = [current.as_str(), &pool, &command];
            is_charged_to(&setup, &commands, request.bytes, 1);
            // It is given back where it was taken, whichever device is current.
            let (other, free) = (format!("device:{}", 1 - device), request.frees[0]);
            let mut session = setup.start(&[&commands[..], &[&other, free]].concat());
            session.steps(5);
            let booked = [session.booked(0), session.booked(1)];
            assert_eq!(booked, [0, 0], "{request:?}");
            assert_eq!(session.counts(), (1, 1, 0), "{request:?}");
            session.finish();
        }
    }
}

/// Calls that name a stream or a pool, and the device that this is of.
const ELSEWHERE: [(&[&str], &str, usize); 7] = [
    (&["device:1", "stream:s", "device:0"], "async:a:4096:s", 1),
    (&["stream:s", "device:1"], "async:a:4096:s", 0),
    // The null stream and the thread's own are those of the current device.
    (&["device:1"], "async:a:4096:0", 1),
    (&["device:1"], "async:a:4096:2", 1),
    (&["pool:p:1"], "from_pool:a:4096:p", 1),
    (&["default_pool:p:0", "device:1"], "from_pool:a:4096:p", 0),
    (&["stream:s", "default_pool:p:1"], "from_pool:a:4096:p:s", 1),
];

fn the_device_that_was_used_is_charged(build: Build) {
    for (before, command, device) in ELSEWHERE {
        for reversed in [false, true] {
            let setup = two_gpus(build, reversed);
            let commands = [before, &[command]].concat();
            is_charged_to(&setup, &commands, 4096, device ^ usize::from(reversed));
        }
    }
}

/// What has no room on the current device does not stand in the way of another.
fn only_the_limit_of_the_device_that_was_used_counts(build: Build) {
    for (before, command, device) in ELSEWHERE {
        let setup = two_gpus(build, false);
        let commands = [before, &[command]].concat();
        let mut expected = [0; 2];
        expected[device] = 4096;
        check_charge(&setup, &limits_of(device, 4096, 1), &commands, expected);
    }
}

/// Up to 6 handles lie on the device that is named, since 7 on the current one.
fn a_location_is_charged_as_the_runtime_takes_it(build: Build) {
    let by_location = build.generation() < 7;
    for (current, location) in [(0, 1), (1, 0)] {
        let current_first = format!("device:{current}");
        let command = format!("create:a:4096:{location}");
        let commands = [current_first.as_str(), &command];
        for reversed in [false, true] {
            let device = if by_location { location } else { current } ^ usize::from(reversed);
            let setup = two_gpus(build, reversed);
            is_charged_to(&setup, &commands, 4096, device);
            let mut expected = [0; 2];
            expected[device] = 4096;
            check_charge(&setup, &limits_of(device, 4096, 1), &commands, expected);
        }
    }
}

/// Since 6 a graph's memory is allocated when the graph runs; before, it is at once. What is freed in a recording is
/// there until the graph runs.
fn what_is_recorded_is_booked_when_it_is_taken(build: Build) {
    let commands = [
        "malloc:z:1",
        "stream:s",
        "capture:s",
        "async:a:4096:s",
        "free_async:a:s",
        "end_capture:s",
        "async:b:4096:s",
    ];
    let taken = if build.generation() >= 6 { 0 } else { 4096 };
    let setup = Setup::new(build).limit(4097 + taken);
    let native = setup.native(&commands);
    let mut session = setup.start(&commands);
    for (n, expected) in native[..6].iter().enumerate() {
        assert_eq!(session.step(), *expected);
        let sum = if n < 3 { 1 } else { 1 + taken };
        assert_eq!(
            [session.booked(0), session.given(0)],
            [sum; 2],
            "{expected}"
        );
    }
    assert!(is_success(&native[3]) && native[4].ends_with(" = 0"));
    assert!(is_success(&session.step()));
    let sum = 4097 + taken;
    assert_eq!([session.booked(0), session.given(0)], [sum; 2]);
    session.finish();
}

/// Signal memory is of the host, and so are handles for the host, which are an error before 7. But 7.2.4 takes
/// VRAM for those; without the driver's counters, which would tell, they are charged there.
fn host_memory_is_not_charged(build: Build) {
    let commands = [
        "ext:a:8:2",
        "ext:b:16:2",
        "create:c:8192:host",
        "free:a",
        "release:c",
    ];
    let is_charged = build == Build::Seven;
    let setup = Setup::new(build).limit(if is_charged { 8193 } else { 1 });
    let native = setup.native(&commands);
    let with_anchor = [&["malloc:z:1"], &commands[..]].concat();
    let mut session = setup.start(&with_anchor);
    assert_eq!(session.step(), "malloc z = 0");
    for (command, expected) in commands.iter().zip(&native) {
        assert_eq!(session.step(), *expected, "{command}");
        let is_there = is_charged && ["create:c:8192:host", "free:a"].contains(command);
        let host = if is_there { 8192 } else { 0 };
        assert_eq!(session.booked(0), 1 + host, "{command}");
        if *command == "create:c:8192:host" {
            assert_eq!(session.given_of_host(), host);
        }
    }
    let counts = if is_charged { (2, 1, 0) } else { (1, 0, 0) };
    assert_eq!(session.counts(), counts);
    assert_eq!(native[..2], ["ext a = 0", "ext b = 1 untouched"]);
    assert_eq!(native[2].starts_with("create c = 0"), is_charged);
    session.finish();
}

/// It counts against the limit, and is not in the driver's count.
fn managed_memory_is_told_apart(build: Build) {
    let setup = Setup::new(build).limit(12_288);
    let mut session = setup.start(&[
        "managed:a:8192",
        "malloc:b:4096",
        "malloc:c:1",
        "managed:c:1",
        "free:b",
        "free:a",
    ]);
    assert!(is_success(&session.step()));
    assert_eq!((session.booked(0), session.unseen(0)), (8192, 8192));
    assert!(is_success(&session.step()));
    assert_eq!((session.booked(0), session.unseen(0)), (12_288, 8192));
    assert_eq!(session.step(), "malloc c = 2 untouched");
    assert_eq!(session.step(), "managed c = 2 untouched");
    session.step();
    assert_eq!((session.booked(0), session.unseen(0)), (8192, 8192));
    session.step();
    assert_eq!((session.booked(0), session.unseen(0)), (0, 0));
    session.finish();
}

fn both_accounts_agree_when_nothing_is_under_way(build: Build) {
    let requests = [one_of_each(PITCH), other_shapes()].concat();
    let named = |n: usize, text: &str| text.replacen(":a", &format!(":n{n}"), 1);
    let mut commands = vec![String::from("default_pool:p:0")];
    for (n, request) in requests.iter().enumerate() {
        commands.push(named(n, &request.command));
    }
    // Every second one, then the others in reverse.
    let order: Vec<usize> = (0..requests.len())
        .filter(|n| n % 2 == 0)
        .chain((0..requests.len()).rev().filter(|n| n % 2 != 0))
        .collect();
    for n in &order {
        let free = requests[*n].frees[n / 2 % requests[*n].frees.len()];
        commands.push(named(*n, free));
        commands.push(String::from("synchronize:0"));
    }
    let mut session = Setup::new(build).set("ROUND", "1").start(&commands);
    session.step();
    let mut sum = 0;
    for request in &requests {
        let line = session.step();
        assert!(is_success(&line), "{line}");
        sum += request.bytes;
        assert_eq!(
            [session.booked(0), session.given(0)],
            [sum; 2],
            "{request:?}"
        );
    }
    for n in order {
        let line = session.step();
        assert!(line.ends_with(" = 0"), "{line}");
        session.step();
        sum -= requests[n].bytes;
        assert_eq!(
            [session.booked(0), session.given(0)],
            [sum; 2],
            "{:?}",
            requests[n]
        );
    }
    assert_eq!(sum, 0);
    let all = requests.len() as u64;
    assert_eq!(session.counts(), (all, all, 0));
    session.finish();
}
