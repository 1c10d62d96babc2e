//! VRAM of real processes in a running node.

mod common;

use common::{Client, GIB, MIB, vram_of, wait_until};
use kfd_emulator::Node;
use kfd_emulator::control::{FailAllocs, HoldAllocs};

#[test]
fn two_processes_share_vram() {
    let node = start_or_skip!(Node::builder().vram(GIB));
    let (mut a, mut b) = (Client::open(&node), Client::open(&node));
    let held = a.ok(&format!("alloc {}", 700 * MIB));
    assert_eq!(b.ask(&format!("alloc {}", 400 * MIB)), Err(libc::ENOMEM));
    let small = b.ok(&format!("alloc {}", 300 * MIB));
    assert_eq!(vram_of(&node, a.pid()), Some(700 * MIB));
    assert_eq!(vram_of(&node, b.pid()), Some(300 * MIB));
    assert_eq!(b.ok("available"), (24 * MIB).to_string());
    let used = node.path("/sys/class/drm/renderD128/device/mem_info_vram_used");
    let used: u64 = std::fs::read_to_string(used)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(used >= 1000 * MIB);
    a.ok(&format!("free {held}"));
    b.ok(&format!("free {small}"));
    b.ok(&format!("alloc {GIB}"));
}

#[test]
fn an_allocation_that_is_held_back_holds_up_no_other() {
    let node = start_or_skip!(Node::builder().vram(GIB));
    let control = node.control();
    let held_back = |given| {
        let order = HoldAllocs { from: MIB, given };
        control.hold_allocs(order).unwrap();
        let mut client = Client::open(&node);
        client.send(&format!("alloc {MIB}"));
        client
    };
    let mut other = Client::open(&node);
    let mut given = held_back(true);
    wait_until("the memory", || vram_of(&node, given.pid()) == Some(MIB));
    let mut not_given = held_back(false);
    // Neither of them smaller than asked for, nor of another kind.
    other.ok("alloc 4096");
    other.ok(&format!("alloc-gtt {MIB}"));
    assert_eq!(vram_of(&node, not_given.pid()), Some(0));
    control.mark("let go").unwrap();
    control.let_go().unwrap();
    for client in [&mut given, &mut not_given] {
        client.answer().unwrap();
        assert_eq!(vram_of(&node, client.pid()), Some(MIB));
    }
    let trace = control.trace(true).unwrap();
    let names = trace
        .entries
        .iter()
        .filter(|entry| entry.pid != other.pid());
    let names: Vec<_> = names.map(|entry| entry.name.as_str()).collect();
    let last = ["let go", "ALLOC_MEMORY_OF_GPU", "ALLOC_MEMORY_OF_GPU"];
    assert!(names.ends_with(&last), "{names:?}");
}

#[test]
fn a_process_that_is_killed_while_it_is_held_back_goes() {
    let node = start_or_skip!(Node::builder().vram(GIB));
    let control = node.control();
    let (from, given) = (MIB, true);
    control.hold_allocs(HoldAllocs { from, given }).unwrap();
    let mut client = Client::open(&node);
    client.send(&format!("alloc {MIB}"));
    wait_until("the memory", || vram_of(&node, client.pid()) == Some(MIB));
    client.process.kill().unwrap();
    control.let_go().unwrap();
    wait_until("its end", || control.state().unwrap().processes.is_empty());
}

#[test]
fn killed_processes_give_their_memory_back_within_50_ms() {
    let node = start_or_skip!(Node::builder().vram(GIB));
    let mut times = Vec::new();
    for round in 0..12 {
        let mut client = Client::open(&node);
        client.ok(&format!("alloc {}", 512 * MIB));
        client.ok("queue");
        if round % 2 == 1 {
            // Blocked in the driver: the kernel holds it there until the emulator lets go.
            let event = client.ok("event");
            client.send(&format!("wait {event} 4294967295"));
            wait_until("the wait", || node.control().state().unwrap().waits == 1);
        }
        let pid = client.pid();
        assert_eq!(vram_of(&node, pid), Some(512 * MIB));
        let process = node.path(format!("/sys/class/kfd/kfd/proc/{pid}"));
        client.process.kill().unwrap();
        times.push(wait_until("the memory", || !process.exists()));
        let state = node.control().state().unwrap();
        assert_eq!(
            (state.gpus[0].vram_used, state.processes.len(), state.blocks),
            (0, 0, 0)
        );
    }
    times.sort();
    println!("{times:?}");
    // One that this machine had no CPU for is not the emulator's.
    assert!(times[times.len() - 2].as_millis() < 50, "{times:?}");
}

#[test]
fn exec_gives_memory_back_and_a_forked_child_keeps_it() {
    let node = start_or_skip!(Node::builder().vram(GIB));
    let mut client = Client::open(&node);
    client.ok(&format!("alloc {}", 100 * MIB));
    client.send("exec");
    let used = || node.control().state().unwrap().gpus[0].vram_used;
    wait_until("exec", || used() == 0);
    client.ok("open");
    client.ok(&format!("alloc {}", 200 * MIB));
    let child: i32 = client.ok("fork").parse().unwrap();
    let pid = client.pid();
    client.kill();
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(used(), 200 * MIB, "the child has the descriptor");
    assert_eq!(
        vram_of(&node, pid),
        Some(200 * MIB),
        "under its parent's number"
    );
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child), nix::sys::signal::SIGKILL).unwrap();
    wait_until("the child's end", || used() == 0);
}

#[test]
fn the_memory_is_real_and_is_zero_again_after_free() {
    let node = start_or_skip!(Node::builder().vram(GIB));
    let mut client = Client::open(&node);
    let (a, b) = (client.ok("alloc 4096"), client.ok("alloc 4096"));
    client.ok(&format!("poke {a} 17"));
    client.ok(&format!("poke {b} 18"));
    assert_eq!(
        (
            client.ok(&format!("peek {a}")),
            client.ok(&format!("peek {b}"))
        ),
        ("17".into(), "18".into())
    );
    client.ok(&format!("free {a}"));
    let again = client.ok("alloc 4096");
    assert_eq!(client.ok(&format!("peek {again}")), "0");
}

#[test]
fn mapped_memory_must_be_unmapped_first() {
    let node = start_or_skip!(Node::builder().vram(GIB));
    let mut client = Client::open(&node);
    let handle = client.ok("alloc 4096");
    client.ok(&format!("map {handle}"));
    assert_eq!(client.ask(&format!("free {handle}")), Err(libc::EBUSY));
    client.ok(&format!("unmap {handle}"));
    client.ok(&format!("free {handle}"));
}

#[test]
fn the_nth_allocation_fails_and_vram_can_shrink() {
    let node = start_or_skip!(Node::builder().vram(GIB));
    let mut client = Client::open(&node);
    let control = node.control();
    control.fail_allocs(FailAllocs::nth_vram(2)).unwrap();
    client.ok("alloc 4096");
    client.ok("alloc-gtt 4096");
    assert_eq!(client.ask("alloc 4096"), Err(libc::ENOMEM));
    client.ok("alloc 4096");
    control
        .fail_allocs(FailAllocs {
            errno: libc::EIO,
            ..FailAllocs::nth_vram(1).times(2)
        })
        .unwrap();
    assert_eq!(client.ask("alloc 4096"), Err(libc::EIO));
    assert_eq!(client.ask("alloc 4096"), Err(libc::EIO));
    client.ok("alloc 4096");
    control.set_vram(0, 64 * MIB).unwrap();
    assert_eq!(
        client.ask(&format!("alloc {}", 64 * MIB)),
        Err(libc::ENOMEM)
    );
    client.ok(&format!("alloc {}", 32 * MIB));
}
