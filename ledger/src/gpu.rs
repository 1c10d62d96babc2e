//! What the account knows of a GPU: a key, a limit and the size of the board.

use std::fmt;

use crate::limit::Limit;

/// Tells GPUs apart: the PCI address packed as `domain << 32 | location_id`, where `location_id` is
/// as the KFD topology gives it (bits 15:8 bus, 7:3 device, 2:0 function, 31:28 partition).
///
/// The account only compares keys; it decodes them to show them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuKey(pub u64);

impl GpuKey {
    /// Reads `0000:03:00.0`, `03:00.0` (domain 0), either with a partition behind it (`/2`), with
    /// or without leading zeros; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, partition) = match text.split_once('/') {
            Some((address, partition)) => (address, number(partition, 10, 2, 0xf)?),
            None => (text, 0),
        };
        let (rest, function) = address.rsplit_once('.')?;
        let (rest, device) = rest.rsplit_once(':')?;
        let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
        let function = number(function, 16, 1, 0x7)?;
        let device = number(device, 16, 2, 0x1f)?;
        let bus = number(bus, 16, 2, 0xff)?;
        let domain = number(domain, 16, 8, 0xffff_ffff)?;
        Some(Self(
            domain << 32 | partition << 28 | bus << 8 | device << 3 | function,
        ))
    }
}

/// A number of 1 to `digits` digits (and no sign) that is at most `most`.
fn number(text: &str, radix: u32, digits: usize, most: u64) -> Option<u64> {
    let valid = text.len() <= digits && text.chars().all(|c| c.is_digit(radix));
    let value = u64::from_str_radix(text, radix).ok().filter(|_| valid)?;
    (value <= most).then_some(value)
}

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
        for key in [
            0x0300,
            1 << 32 | 0x83_19,
            0x2000_0300,
            0xffff_ffff_f000_ffff,
        ] {
            let text = GpuKey(key).to_string();
            assert_eq!(GpuKey::parse(&text), Some(GpuKey(key)), "{text}");
        }
        assert_eq!(
            GpuKey(0xffff_ffff_0000_0000).to_string(),
            "ffffffff:00:00.0"
        );
    }
}
