//! The seccomp filter that hands ioctls which return a descriptor to the server.

use std::io;
use std::mem::offset_of;
use std::os::fd::RawFd;

use libc::sock_filter;

use super::RETURN_DESCRIPTORS;

/// `AUDIT_ARCH_X86_64` of linux/audit.h.
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const COMMANDS: usize = RETURN_DESCRIPTORS.len();
const LENGTH: usize = 6 + COMMANDS + 2;

const fn step(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// The filter: all system calls pass, but ioctls whose type and number are among
/// [`RETURN_DESCRIPTORS`] go to the listener. The size part of a command is not looked at.
pub const FILTER: [sock_filter; LENGTH] = {
    let arch = offset_of!(libc::seccomp_data, arch) as u32;
    let number = offset_of!(libc::seccomp_data, nr) as u32;
    // The low half of the second argument (little endian).
    let command = offset_of!(libc::seccomp_data, args) as u32 + 8;
    let allow = step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);
    let mut filter = [allow; LENGTH];
    filter[0] = step(LOAD, 0, 0, arch);
    filter[1] = step(IF_EQUAL, 0, (LENGTH - 4) as u8, AUDIT_ARCH_X86_64);
    filter[2] = step(LOAD, 0, 0, number);
    filter[3] = step(IF_EQUAL, 0, (LENGTH - 6) as u8, libc::SYS_ioctl as u32);
    filter[4] = step(LOAD, 0, 0, command);
    filter[5] = step(AND, 0, 0, 0xffff);
    let mut at = 0;
    while at < COMMANDS {
        let (kind, number) = RETURN_DESCRIPTORS[at];
        let wanted = (kind as u32) << 8 | number as u32;
        filter[6 + at] = step(IF_EQUAL, (COMMANDS - at) as u8, 0, wanted);
        at += 1;
    }
    filter[LENGTH - 1] = step(RETURN, 0, 0, libc::SECCOMP_RET_USER_NOTIF);
    filter
};

/// Puts the filter over the calling thread and what it execs, and returns the listener.
///
/// Only makes system calls and allocates nothing, so it can run between fork and exec.
///
/// # Errors
/// `EBUSY` when there is a listener already, `EACCES` without CAP_SYS_ADMIN.
pub fn install() -> io::Result<RawFd> {
    let program = libc::sock_fprog {
        len: LENGTH as u16,
        filter: FILTER.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel reads `program` and the `LENGTH` steps it points to, which are constant,
    // and writes neither.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    if listener < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(listener as RawFd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the filter returns for a system call: the steps that it is made of, run by hand.
    fn run(arch: u32, number: i64, command: u32) -> u32 {
        let mut accumulator = 0;
        let mut at = 0;
        loop {
            let step = &FILTER[at];
            at += 1;
            match step.code {
                LOAD => {
                    accumulator = match step.k {
                        4 => arch,
                        0 => number as u32,
                        24 => command,
                        other => panic!("loads from {other}"),
                    }
                }
                AND => accumulator &= step.k,
                IF_EQUAL => {
                    at += usize::from(if accumulator == step.k {
                        step.jt
                    } else {
                        step.jf
                    });
                }
                RETURN => return step.k,
                other => panic!("step {other:#x}"),
            }
        }
    }

    #[test]
    fn only_ioctls_that_return_a_descriptor_go_to_the_listener() {
        let ioctl = libc::SYS_ioctl;
        for command in [0xc010_4b24, 0xc008_4b1f, 0xc00c_642d, 0xc020_4b24] {
            let result = run(AUDIT_ARCH_X86_64, ioctl, command);
            assert_eq!(result, libc::SECCOMP_RET_USER_NOTIF, "{command:#x}");
        }
        for command in [0xc028_4b16, 0xc00c_642e, 0, 0x2424] {
            assert_eq!(
                run(AUDIT_ARCH_X86_64, ioctl, command),
                libc::SECCOMP_RET_ALLOW
            );
        }
        assert_eq!(
            run(AUDIT_ARCH_X86_64, libc::SYS_read, 0xc010_4b24),
            libc::SECCOMP_RET_ALLOW
        );
        assert_eq!(
            run(0x4000_0003, ioctl, 0xc010_4b24),
            libc::SECCOMP_RET_ALLOW
        );
    }
}
