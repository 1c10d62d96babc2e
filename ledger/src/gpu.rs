//! What the account knows of a GPU: a key, a limit and the size of the board.

use std::fmt;

use crate::limit::Limit;

/// Tells GPUs apart: the PCI address packed as `domain << 32 | location_id`, where `location_id` is
/// as the KFD topology gives it (bits 15:8 bus, 7:3 device, 2:0 function, 31:28 partition).
///
/// The account only compares keys; it decodes them to show them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuKey(pub u64);

impl fmt::Display for GpuKey {
    /// `0000:03:00.0`, and `0000:03:00.0/2` for the third partition of a device.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (domain, location) = (self.0 >> 32, self.0 & 0xffff_ffff);
        let (bus, device, function) = (location >> 8 & 0xff, location >> 3 & 0x1f, location & 7);
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")?;
        match location >> 28 {
            0 => Ok(()),
            partition => write!(f, "/{partition}"),
        }
    }
}

/// One GPU that a process brings to the account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuSpec {
    /// Which one.
    pub key: GpuKey,
    /// What the joining process was told to stay within on it.
    pub limit: Limit,
    /// VRAM of the board in bytes, 0 when unknown. Only recorded; it does not limit.
    pub board_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_as_pci_addresses() {
        assert_eq!(GpuKey(0x0300).to_string(), "0000:03:00.0");
        assert_eq!(GpuKey(1 << 32 | 0x83_19).to_string(), "0001:83:03.1");
        assert_eq!(GpuKey(0x2000_0300).to_string(), "0000:03:00.0/2");
        assert_eq!(
            GpuKey(0xffff_ffff_0000_0000).to_string(),
            "ffffffff:00:00.0"
        );
    }
}
