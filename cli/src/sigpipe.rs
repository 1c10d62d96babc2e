//! SIGPIPE as it was when this program was started.
//!
//! Rust's runtime sets SIGPIPE to "ignore" before `main`. For `hipflex run` that would be handed on
//! to the program (an ignored signal stays ignored over exec), and `hipflex status | head` would get
//! write errors where other tools simply end. So the disposition is looked up before the runtime
//! starts, and put back first thing in `main`.

use std::sync::atomic::{AtomicBool, Ordering};

static WAS_IGNORED: AtomicBool = AtomicBool::new(false);

/// Runs before the runtime, as an entry of `.init_array` (System V ABI, "Initialization Functions").
extern "C" fn look() {
    // SAFETY: signal(2) has no memory arguments. Setting and setting back is not atomic, but at this
    // time there is one thread, and nobody has a pipe open that this code writes to.
    unsafe {
        let before = libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        libc::signal(libc::SIGPIPE, before);
        WAS_IGNORED.store(before == libc::SIG_IGN, Ordering::Relaxed);
    }
}

// SAFETY: the section holds pointers to functions that the C runtime calls once each, before main;
// `look` is such a function and touches only a static atomic and signal(2).
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// Puts back the disposition that this program was started with.
pub(crate) fn restore() {
    if !WAS_IGNORED.load(Ordering::Relaxed) {
        // SAFETY: SIG_DFL is a valid disposition, and no handler of ours is replaced.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
}
