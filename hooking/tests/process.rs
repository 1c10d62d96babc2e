//! Processes and files that are not as usual: what cannot be hooked is refused, and nothing is live.

mod common;

use std::fs;
use std::io::Write;

use common::{Function, Library, code, commit, in_child, install, session, stage};
use hipflex_hooking::{Refusal, Session};

/// A library, and one of its functions as it is before it is hooked.
struct Subject {
    library: Library,
    address: usize,
    before: [u8; 16],
}

impl Subject {
    fn new() -> Self {
        let library = Library::new();
        let address = library.address("keep_endbr_push");
        let before = code(address);
        Self {
            library,
            address,
            before,
        }
    }

    /// It can be hooked, and does what it did.
    fn hooks(&self) {
        let function: Function = self.library.function("keep_endbr_push");
        let expected = function(5);
        let calls = common::calls(0);
        install(self.address, 0).unwrap_or_else(|refusal| panic!("{refusal}"));
        assert_eq!(function(5), expected);
        assert_eq!(common::calls(0), calls + 1);
    }

    /// It is refused with this reason, and untouched.
    fn refuses(&self, reason: &str) {
        let refused = Session::new(common::engine()).and_then(|mut session| {
            stage(&mut session, self.address, 0)?;
            commit(session)
        });
        let refusal = refused.expect_err(reason).to_string();
        assert!(refusal.contains(reason), "{refusal}");
        assert_eq!(code(self.address), self.before);
        assert_eq!(self.library.function("keep_endbr_push")(5), 25);
    }
}

fn is_root() -> bool {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() == 0 }
}

/// Says what cannot be run here, past the test runner's capture, which holds for the macros alone.
fn skipped(what: &str) {
    let line = format!("SKIPPED: {what}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

#[test]
fn pages_of_code_are_not_writable_afterwards() {
    let subject = Subject::new();
    subject.hooks();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let path = subject.library.path.display().to_string();
    let code: Vec<_> = maps
        .lines()
        .filter(|line| line.ends_with(&path) && line.contains("x"))
        .filter(|line| line.split(' ').nth(1).is_some_and(|p| p.contains('x')))
        .collect();
    assert!(!code.is_empty());
    for line in code {
        assert!(line.contains(" r-xp "), "{line}");
    }
}

#[test]
fn a_library_that_was_deleted_is_read_all_the_same_or_refused() {
    let subject = Subject::new();
    fs::remove_file(&subject.library.path).unwrap();
    as_root_and_as_another(&subject);
}

#[test]
fn a_library_that_was_replaced_is_not_taken_for_the_new_file() {
    let subject = Subject::new();
    let path = &subject.library.path;
    let length = fs::metadata(path).unwrap().len() as usize;
    let new = path.with_extension("new");
    fs::write(&new, vec![0xcc; length]).unwrap();
    fs::rename(&new, path).unwrap();
    as_root_and_as_another(&subject);
}

#[test]
fn a_file_that_is_named_like_a_deleted_one_is_not_taken_for_it() {
    let subject = Subject::new();
    let path = subject.library.path.display().to_string();
    fs::rename(&path, format!("{path}.old")).unwrap();
    fs::remove_file(format!("{path}.old")).unwrap();
    let length = 1 << 16;
    fs::write(format!("{path}.old (deleted)"), vec![0xcc; length]).unwrap();
    as_root_and_as_another(&subject);
}

/// The kernel has what is deleted, for root; others are refused.
fn as_root_and_as_another(subject: &Subject) {
    if !is_root() {
        skipped("as root: needs root");
        return subject.refuses("was deleted or replaced");
    }
    in_child(|| {
        // SAFETY: numbers of a user that has no privileges; the process has one thread.
        unsafe {
            assert_eq!(libc::setgid(65534), 0);
            assert_eq!(libc::setuid(65534), 0);
            // Else its own files in /proc are root's.
            assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1), 0);
        }
        subject.refuses("was deleted or replaced");
    });
    subject.hooks();
}

/// `PR_SET_MDWE` and `PR_MDWE_REFUSE_EXEC_GAIN`, `linux/prctl.h`, Linux 6.3.
const PR_SET_MDWE: i32 = 65;
const PR_MDWE_REFUSE_EXEC_GAIN: u64 = 1;

#[test]
fn a_process_that_refuses_new_code_is_left_alone() {
    let subject = Subject::new();
    in_child(|| {
        // SAFETY: no pointers.
        let refuses = unsafe { libc::prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) };
        if refuses != 0 {
            return skipped("a process that refuses new code: needs Linux 6.3");
        }
        subject.refuses("the engine '");
    });
}

#[test]
fn without_proc_everything_is_refused() {
    if !is_root() {
        return skipped("a process without /proc: needs root");
    }
    let subject = Subject::new();
    let empty = tempfile::tempdir().unwrap();
    let empty = std::ffi::CString::new(empty.path().to_str().unwrap()).unwrap();
    in_child(|| {
        // SAFETY: a path.
        assert_eq!(unsafe { libc::chroot(empty.as_ptr()) }, 0);
        subject.refuses("/proc/self/maps");
    });
}

#[test]
fn where_the_kernel_lets_nobody_write_to_code_everything_is_refused() {
    let subject = Subject::new();
    // At once, and only when the jumps are written: five bytes each.
    for (length, reason) in [(None, "/proc/self/mem"), (Some(5), "cannot write to code")] {
        in_child(|| {
            refuse_writes(length);
            subject.refuses(reason);
        });
    }
    subject.hooks();
}

#[test]
fn a_session_of_the_parent_is_no_good_in_a_forked_child() {
    let subject = Subject::new();
    let mut session = session();
    stage(&mut session, subject.address, 0).unwrap();
    let place = std::cell::Cell::new(Some(session));
    in_child(|| {
        let refused = commit(place.take().unwrap()).unwrap_err();
        assert!(matches!(refused, Refusal::System { .. }), "{refused}");
        assert_eq!(code(subject.address), subject.before);
    });
    assert_eq!(code(subject.address), subject.before);
    // What is installed before a fork is in the child, too.
    commit(place.take().unwrap()).unwrap();
    in_child(|| {
        let before = common::calls(0);
        assert_eq!(subject.library.function("keep_endbr_push")(5), 25);
        assert_eq!(common::calls(0), before + 1);
    });
}

/// Lets every `pwrite64` fail with EIO, as the kernel does where it may not write; or those of one length.
fn refuse_writes(length: Option<u32>) {
    // `struct seccomp_data`, `linux/seccomp.h`: the number of the call, then at 16 its arguments. The third one
    // of pwrite64 is the length.
    let load = |offset| filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let unless = |value, skip| filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, skip, value);
    let answer = |value| filter(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    let mut program = vec![load(0), unless(libc::SYS_pwrite64 as u32, 1)];
    if let Some(length) = length {
        program[1].jf = 3;
        program.extend([load(16 + 2 * 8), unless(length, 1)]);
    }
    program.extend([
        answer(libc::SECCOMP_RET_ERRNO | libc::EIO as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ]);
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: a program that outlives the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program),
            0
        );
    }
}

fn filter(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}
