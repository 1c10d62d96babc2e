//! What is mapped where in this process, as `/proc/self/maps` says it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::Refusal;

/// One line of `/proc/PID/maps`, see `proc_pid_maps(5)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) executable: bool,
    /// Where its start is in its file.
    pub(crate) offset: u64,
    /// 0: no file.
    pub(crate) inode: u64,
    /// A file's path, a name such as `[heap]`, or nothing.
    pub(crate) path: PathBuf,
}

/// All mappings, by address.
#[derive(Debug)]
pub(crate) struct Maps(Vec<Mapping>);

impl Maps {
    /// The mappings as they are now.
    pub(crate) fn read() -> Result<Self, Refusal> {
        let text = fs::read("/proc/self/maps")
            .map_err(|error| Refusal::system("cannot read /proc/self/maps", &error))?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &[u8]) -> Self {
        let lines = text.split(|byte| *byte == b'\n');
        Self(lines.filter_map(Mapping::parse).collect())
    }

    /// The mapping that holds an address.
    pub(crate) fn at(&self, address: usize) -> Option<&Mapping> {
        let next = self.0.partition_point(|mapping| mapping.end <= address);
        self.0.get(next).filter(|mapping| mapping.start <= address)
    }

    /// The end of what is mapped of one file without a gap, from `mapping` on: mappings are split where somebody
    /// changed the protection of a part, even if it was put back.
    pub(crate) fn end_of_code(&self, mapping: &Mapping) -> usize {
        let mut end = mapping.end;
        while let Some(next) = self.at(end) {
            let expected = mapping
                .offset
                .wrapping_add(end.wrapping_sub(mapping.start) as u64);
            if next.inode != mapping.inode || next.offset != expected || !next.executable {
                break;
            }
            end = next.end;
        }
        end
    }

    /// What is free between mappings: its start and end, without the places that are needed by a heap that
    /// grows upwards or a stack that grows downwards.
    pub(crate) fn gaps(&self) -> impl Iterator<Item = (usize, usize)> {
        self.0.windows(2).filter_map(|pair| match pair {
            [below, above] if below.end < above.start => {
                let heap = below.path == Path::new("[heap]");
                let stack = above.path == Path::new("[stack]");
                (!heap && !stack).then_some((below.end, above.start))
            }
            _ => None,
        })
    }
}

impl Mapping {
    /// `start-end perms offset device inode path`, numbers in hexadecimal but for the inode.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.splitn(6, |byte| *byte == b' ');
        let mut field = || fields.next().and_then(|f| str::from_utf8(f).ok());
        let (start, end) = field()?.split_once('-')?;
        let mut permissions = field()?.bytes();
        let mut may = |letter| permissions.next() == Some(letter);
        let (readable, writable, executable) = (may(b'r'), may(b'w'), may(b'x'));
        let offset = u64::from_str_radix(field()?, 16).ok()?;
        let _device = field()?;
        let inode = field()?.parse().ok()?;
        // The path alone may be something else than UTF-8.
        let path = fields.next().unwrap_or_default().trim_ascii_start();
        Some(Self {
            start: usize::from_str_radix(start, 16).ok()?,
            end: usize::from_str_radix(end, 16).ok()?,
            readable,
            writable,
            executable,
            offset,
            inode,
            path: PathBuf::from(OsStr::from_bytes(path)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
55d0f2a00000-55d0f2a01000 r--p 00000000 fe:00 42                         /usr/bin/a b\n\
55d0f2a01000-55d0f2a03000 r-xp 00001000 fe:00 42                         /usr/bin/a b\n\
55d0f2a03000-55d0f2a04000 rwxp 00003000 fe:00 42                         /usr/bin/a b\n\
55d0f2a04000-55d0f2a05000 r-xp 00004000 fe:00 43                         /usr/bin/c\n\
55d0f3000000-55d0f3021000 rw-p 00000000 00:00 0                          [heap]\n\
7f0000000000-7f0000001000 ---p 00000000 00:00 0 \n\
7f0000003000-7f0000004000 r-xs 00000000 00:05 7                          /\xff (deleted)\n\
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]\n\
not a line\n";

    #[test]
    fn lines_are_understood() {
        let maps = Maps::parse(TEXT);
        assert_eq!(maps.0.len(), 8);
        let code = maps.at(0x55d0_f2a0_2fff).unwrap();
        assert_eq!(code.start, 0x55d0_f2a0_1000);
        assert!(code.readable && code.executable && !code.writable);
        assert_eq!((code.offset, code.inode), (0x1000, 42));
        assert_eq!(code.path, Path::new("/usr/bin/a b"));
        let shared = maps.at(0x7f00_0000_3000).unwrap();
        assert_eq!(shared.path.as_os_str().as_bytes(), b"/\xff (deleted)");
        assert_eq!(maps.at(0x7f00_0000_2000), None);
        assert_eq!(maps.at(0), None);
        assert_eq!(maps.at(usize::MAX), None);
    }

    #[test]
    fn code_goes_on_over_a_split_and_ends_with_its_file() {
        let maps = Maps::parse(TEXT);
        let code = maps.at(0x55d0_f2a0_1000).unwrap();
        assert_eq!(maps.end_of_code(code), 0x55d0_f2a0_4000);
    }

    #[test]
    fn gaps_leave_room_to_heap_and_stack() {
        let gaps: Vec<_> = Maps::parse(TEXT).gaps().collect();
        assert_eq!(
            gaps,
            [
                (0x55d0_f2a0_5000, 0x55d0_f300_0000),
                (0x7f00_0000_1000, 0x7f00_0000_3000)
            ]
        );
    }

    #[test]
    fn this_process_has_its_own_code() {
        let here = this_process_has_its_own_code as *const () as usize;
        let maps = Maps::read().unwrap();
        let mapping = maps.at(here).unwrap();
        assert!(mapping.executable && mapping.inode != 0);
        assert!(maps.end_of_code(mapping) > here);
    }
}
