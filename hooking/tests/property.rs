//! Functions put together at random: hooked, they do what they did; and what must be refused is refused.

mod common;

use std::cell::Cell;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::Function;
use hipflex_hooking::Refusal;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Pieces of code. Each may change rax, rcx and rdx, and ends where it began.
type Piece = &'static [u8];

/// First instructions, and what gives their stack back.
const FIRST: [(Piece, Piece); 12] = [
    (&[0x53], &[0x5b]),                                     // push rbx; pop rbx
    (&[0x41, 0x54], &[0x41, 0x5c]),                         // push r12; pop r12
    (&[0x50], &[0x59]),                                     // push rax; pop rcx
    (&[0x6a, 0x07], &[0x59]),                               // push 7; pop rcx
    (&[0x48, 0x83, 0xec, 0x18], &[0x48, 0x83, 0xc4, 0x18]), // sub rsp, 24; add rsp, 24
    (
        &[0x48, 0x81, 0xec, 0x08, 0x04, 0, 0],
        &[0x48, 0x81, 0xc4, 0x08, 0x04, 0, 0],
    ), // sub rsp, 0x408; add rsp, 0x408
    (&[0x31, 0xc0], &[]),                                   // xor eax, eax
    (&[0xb8, 0x11, 0, 0, 0], &[]),                          // mov eax, 17
    (&[0x49, 0x89, 0xfa], &[]),                             // mov r10, rdi
    (&[0x85, 0xff], &[]),                                   // test edi, edi
    (&[0x83, 0xff, 0x03], &[]),                             // cmp edi, 3
    (&[0x90], &[]),                                         // nop
];

/// What follows.
const THEN: [Piece; 11] = [
    &[0x01, 0xf8],                                           // add eax, edi
    &[0x8d, 0x04, 0x3f],                                     // lea eax, [rdi + rdi]
    &[0xff, 0xc0],                                           // inc eax
    &[0x0f, 0xaf, 0xc7],                                     // imul eax, edi
    &[0x48, 0x8d, 0x15, 0, 0, 0, 0, 0x8b, 0x12, 0x01, 0xd0], // lea rdx, [rip]; mov edx, [rdx]; add eax, edx
    &[0x85, 0xff, 0x74, 0x02, 0xff, 0xc0],                   // test edi, edi; je over; inc eax
    &[0x74, 0x02, 0xff, 0xc8],                               // je over; dec eax
    &[0xeb, 0x01, 0xcc, 0x01, 0xf8],                         // jmp over; int3; add eax, edi
    &[0x0f, 0x44, 0xc7],                                     // cmove eax, edi
    &[0xb8, 0x2a, 0, 0, 0],                                  // mov eax, 42
    &[0xf3, 0x90],                                           // pause
];

const ENDBR64: Piece = &[0xf3, 0x0f, 0x1e, 0xfa];
const RETURN: u8 = 0xc3;
/// Where the function begins in its file.
const ENTRY: usize = 0x40;

/// Maps `code` out of a new file in `folder`, executable, for good.
fn map(folder: &Path, code: &[u8]) -> usize {
    let mut page = vec![0xcc; 0x1000];
    page[ENTRY..ENTRY + code.len()].copy_from_slice(code);
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let number = FILES.fetch_add(1, Ordering::SeqCst);
    let path = folder.join(number.to_string());
    fs::write(&path, &page).expect("a written file");
    let file = fs::File::open(&path).expect("a file");
    // SAFETY: a new mapping of a file that nobody else knows.
    let mapped = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            page.len(),
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(mapped, libc::MAP_FAILED);
    mapped as usize + ENTRY
}

fn function() -> impl Strategy<Value = Vec<u8>> {
    let piece = proptest::sample::select(&THEN[..]);
    let first = proptest::sample::select(&FIRST[..]);
    (
        any::<bool>(),
        first,
        proptest::collection::vec(piece, 3..12),
    )
        .prop_map(|(endbr, (first, last), pieces)| {
            let start = if endbr { ENDBR64 } else { &[] };
            let mut code = [start, first, &pieces.concat(), last].concat();
            code.push(RETURN);
            code
        })
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config {
        cases,
        // The message has the failing case whole.
        failure_persistence: None,
        ..Config::default()
    })
}

#[test]
fn hooked_functions_do_what_they_did() {
    let folder = tempfile::tempdir().expect("a folder");
    let (hooked, refused) = (Cell::new(0), Cell::new(0));
    runner(400)
        .run(&function(), |code| {
            let address = map(folder.path(), &code);
            // SAFETY: the pieces are put together to a function of this type.
            let function: Function = unsafe { core::mem::transmute(address) };
            let call = || [0, 1, 3, 7, 1 << 31].map(|n| function(n));
            let expected = call();
            let before: [u8; 64] = common::code(address);
            match common::install(address, 0) {
                Ok(_) => {
                    let calls = common::calls(0);
                    prop_assert_eq!(call(), expected);
                    prop_assert_eq!(common::calls(0), calls + 5);
                    hooked.set(hooked.get() + 1);
                }
                Err(refusal) => {
                    // Some pieces branch or point to what comes next, which may be under the jump; one jumps on.
                    let known = matches!(
                        refusal,
                        Refusal::BranchInto { .. } | Refusal::TooShort { .. }
                    );
                    prop_assert!(known, "{}", refusal);
                    prop_assert_eq!(common::code(address), before);
                    prop_assert_eq!(call(), expected);
                    refused.set(refused.get() + 1);
                }
            }
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
    let (hooked, refused) = (hooked.get(), refused.get());
    println!("{hooked} hooked, {refused} refused");
    assert!(hooked > 100 && refused > 10, "{hooked} {refused}");
}

/// Whatever the bytes are, there is an answer, and what is refused is untouched.
#[test]
fn any_bytes_are_hooked_or_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes = proptest::collection::vec(any::<u8>(), 80..200);
    runner(500)
        .run(&bytes, |code| {
            let address = map(folder.path(), &code);
            let before: [u8; 80] = common::code(address);
            match common::install(address, 0) {
                Ok(hook) => {
                    let now: [u8; 80] = common::code(address);
                    let kept = hook.jump - hook.entry;
                    // A jump may be followed anywhere in the page.
                    if hook.entry == address {
                        prop_assert_eq!(&now[..kept], &before[..kept]);
                        prop_assert_eq!(now[kept], 0xe9);
                        prop_assert_eq!(&now[kept + 5..], &before[kept + 5..]);
                    }
                }
                Err(_) => prop_assert_eq!(common::code(address), before),
            }
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}
