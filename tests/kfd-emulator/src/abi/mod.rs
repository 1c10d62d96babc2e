//! The binary interface of the driver: ioctl numbers and the structs that travel with them.
//!
//! Sources: `include/uapi/linux/kfd_ioctl.h` (KFD 1.11 in Linux 6.1; newer fields are marked with
//! the KFD version that brought them), `include/uapi/drm/drm.h`, `include/uapi/drm/amdgpu_drm.h`.

pub mod drm;
pub mod kfd;

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// An ioctl command word: direction, size of the argument, type and number.
///
/// The driver tells commands apart by type and number alone. The size part differs between
/// runtimes, since argument structs have grown over the years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Command(pub u32);

impl Command {
    /// `_IOC_READ`: the kernel writes the argument back.
    pub const READ: u32 = 2;
    /// `_IOC_WRITE`: the kernel reads the argument.
    pub const WRITE: u32 = 1;

    /// A command word, as `_IOC` of `asm-generic/ioctl.h` makes it.
    pub const fn new(direction: u32, kind: u8, number: u8, size: usize) -> Self {
        Self(direction << 30 | (size as u32) << 16 | (kind as u32) << 8 | number as u32)
    }

    /// The type: `K` for KFD, `d` for DRM.
    pub const fn kind(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// The number within the type.
    pub const fn number(self) -> u8 {
        self.0 as u8
    }

    /// Bytes of the argument, as the caller sees it.
    pub const fn size(self) -> usize {
        (self.0 >> 16 & 0x3fff) as usize
    }

    /// Whether the caller expects the argument back.
    pub const fn returns(self) -> bool {
        self.0 >> 30 & Self::READ != 0
    }
}

/// An argument struct: any bytes are a valid value, and it has no padding.
pub trait Argument: FromBytes + IntoBytes + Immutable {}
impl<T: FromBytes + IntoBytes + Immutable> Argument for T {}

/// Reads a struct from bytes that may be shorter (an older caller: the rest is zero) or longer
/// (a newer one: the rest is ignored), as `kfd_ioctl` and `drm_ioctl` do.
pub fn load<T: Argument>(bytes: &[u8]) -> T {
    let mut value = T::new_zeroed();
    let common = bytes.len().min(size_of::<T>());
    value.as_mut_bytes()[..common].copy_from_slice(&bytes[..common]);
    value
}

/// Writes a struct over as many bytes as the caller's version of it has.
pub fn store<T: Argument>(value: &T, bytes: &mut [u8]) {
    let common = bytes.len().min(size_of::<T>());
    bytes[..common].copy_from_slice(&value.as_bytes()[..common]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_command_word() {
        let alloc = Command(0xc028_4b16);
        assert_eq!(
            (alloc.kind(), alloc.number(), alloc.size(), alloc.returns()),
            (b'K', 0x16, 40, true)
        );
        assert_eq!(
            Command::new(Command::READ | Command::WRITE, b'K', 0x16, 40),
            alloc
        );
        assert!(!Command(0x4008_4b17).returns());
    }

    #[test]
    fn an_older_caller_has_a_shorter_struct() {
        let mut bytes = [0xff_u8; 8];
        let version: kfd::GetVersion = load(&bytes[..4]);
        assert_eq!((version.major, version.minor), (u32::MAX, 0));
        store(
            &kfd::GetVersion {
                major: 1,
                minor: 17,
            },
            &mut bytes[..4],
        );
        assert_eq!(bytes, [1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    }

    #[test]
    fn a_newer_caller_has_a_longer_struct() {
        let bytes = [1_u8, 0, 0, 0, 17, 0, 0, 0, 9, 9];
        let version: kfd::GetVersion = load(&bytes);
        assert_eq!((version.major, version.minor), (1, 17));
        let mut back = bytes;
        store(&version, &mut back);
        assert_eq!(back, bytes);
    }
}
