//! The address of a GPU: PCI domain, bus, device, function, and the compute partition.

use std::fmt;
use std::str::FromStr;

/// Bits of KFD's `location_id` that name the PCI function: bus 15:8, device 7:3, function 2:0.
const PCI_MASK: u32 = 0x0000_ffff;
/// Bits of KFD's `location_id` that name the partition of a board that is split into several nodes.
/// (`kfd_topology.c`: "On multi-partition nodes, node id = location_id\[31:28\]".)
const PARTITION_SHIFT: u32 = 28;

/// Where a GPU sits: PCI domain, bus, device and function, and the partition of the board.
///
/// One packed word, `domain << 32 | location_id`, so that it can be the key of a GPU in shared
/// memory. It is the same in every process of one boot, whatever `HIP_VISIBLE_DEVICES` or
/// `ROCR_VISIBLE_DEVICES` say.
///
/// The text form is that of Linux, `0000:03:00.0`; a partition other than the first follows after a
/// slash: `0000:03:00.0/2`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bdf(u64);

impl Bdf {
    /// The address that KFD describes by a node's `domain` and `location_id`.
    ///
    /// Bits 27:16 of `location_id` are unused by the driver and dropped, so that the text form and
    /// the packed form say the same.
    pub fn from_kfd(domain: u32, location_id: u32) -> Self {
        let location = location_id & (PCI_MASK | (0xf << PARTITION_SHIFT));
        Self((u64::from(domain) << 32) | u64::from(location))
    }

    /// The address packed by [`Bdf::to_u64`], perhaps in another process.
    pub fn from_u64(packed: u64) -> Self {
        let [d0, d1, d2, d3, l0, l1, l2, l3] = packed.to_be_bytes();
        Self::from_kfd(
            u32::from_be_bytes([d0, d1, d2, d3]),
            u32::from_be_bytes([l0, l1, l2, l3]),
        )
    }

    /// The address of nothing: a place to be filled.
    pub(crate) const NOWHERE: Self = Self(0);

    /// As [`Bdf::from_str`], without a message. Nothing is allocated or called.
    pub fn from_bytes(text: &[u8]) -> Option<Self> {
        parse(text)
    }

    /// `domain << 32 | location_id`.
    pub fn to_u64(self) -> u64 {
        self.0
    }

    /// The PCI domain (segment); 0 on most machines.
    pub fn domain(self) -> u32 {
        let [d0, d1, d2, d3, ..] = self.0.to_be_bytes();
        u32::from_be_bytes([d0, d1, d2, d3])
    }

    /// The PCI bus number.
    pub fn bus(self) -> u8 {
        let [.., bus, _] = self.0.to_be_bytes();
        bus
    }

    /// The PCI device number, 0 to 31.
    pub fn device(self) -> u8 {
        let [.., devfn] = self.0.to_be_bytes();
        devfn >> 3
    }

    /// The PCI function number, 0 to 7.
    pub fn function(self) -> u8 {
        let [.., devfn] = self.0.to_be_bytes();
        devfn & 0x7
    }

    /// The partition of the board, 0 to 15; 0 on a board that is not split.
    pub fn partition(self) -> u8 {
        let [_, _, _, _, high, ..] = self.0.to_be_bytes();
        high >> 4
    }

    /// The address of the whole board: the same without the partition.
    pub fn board(self) -> Self {
        Self(self.0 & !(0xf << PARTITION_SHIFT))
    }
}

impl fmt::Display for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (domain, bus, device) = (self.domain(), self.bus(), self.device());
        write!(
            f,
            "{domain:04x}:{bus:02x}:{device:02x}.{:x}",
            self.function()
        )?;
        match self.partition() {
            0 => Ok(()),
            partition => write!(f, "/{partition}"),
        }
    }
}

impl fmt::Debug for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bdf({self})")
    }
}

/// A text that is not the address of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{}\" is not a PCI address; write domain:bus:device.function in hexadecimal, such as 0000:03:00.0",
    .0.escape_default()
)]
pub struct ParseBdfError(String);

impl FromStr for Bdf {
    type Err = ParseBdfError;

    /// Reads `0000:03:00.0`, `03:00.0` (domain 0) and either with a partition, `/2`, behind it.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::from_bytes(text.as_bytes()).ok_or_else(|| ParseBdfError(text.to_owned()))
    }
}

/// Reads an address byte by byte: it is needed where nothing of libc may be called, and a comparison of texts is a call
/// of `memcmp`.
fn parse(text: &[u8]) -> Option<Bdf> {
    let (address, partition) = match split_last(text, b'/') {
        Some((address, partition)) => (address, number(partition, 10, 2, 0xf)?),
        None => (text, 0),
    };
    let (rest, function) = split_last(address, b'.')?;
    let (rest, device) = split_last(rest, b':')?;
    let (domain, bus) = split_last(rest, b':').unwrap_or((b"0", rest));
    let domain = number(domain, 16, 8, u32::MAX)?;
    let devfn = (number(device, 16, 2, 0x1f)? << 3) | number(function, 16, 1, 0x7)?;
    let location = (partition << PARTITION_SHIFT) | (number(bus, 16, 2, 0xff)? << 8) | devfn;
    Some(Bdf::from_kfd(domain, location))
}

/// What is before and behind the last `separator`.
fn split_last(text: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().rposition(|byte| *byte == separator)?;
    Some((text.get(..at)?, text.get(at.checked_add(1)?..)?))
}

/// A number of at least one and at most `digits` digits, and at most `max`. (No sign.)
fn number(text: &[u8], radix: u32, digits: usize, max: u32) -> Option<u32> {
    if text.is_empty() || text.len() > digits {
        return None;
    }
    let mut value = 0_u32;
    for byte in text {
        let digit = char::from(*byte).to_digit(radix)?;
        value = value.checked_mul(radix)?.checked_add(digit)?;
    }
    Some(value).filter(|value| *value <= max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kfd_location_is_split_into_its_parts() {
        let bdf = Bdf::from_kfd(0, 768);
        assert_eq!(
            (bdf.domain(), bdf.bus(), bdf.device(), bdf.function()),
            (0, 3, 0, 0)
        );
        assert_eq!(bdf.to_string(), "0000:03:00.0");
        let bdf = Bdf::from_kfd(0x1_0002, 0x83fe);
        assert_eq!(
            (bdf.domain(), bdf.bus(), bdf.device(), bdf.function()),
            (0x1_0002, 0x83, 31, 6)
        );
        assert_eq!(bdf.to_string(), "10002:83:1f.6");
    }

    #[test]
    fn partitions_of_one_board_are_different_keys_of_the_same_board() {
        let keys: Vec<Bdf> = (0..8)
            .map(|p| Bdf::from_kfd(0, (p << 28) | 0x300))
            .collect();
        for (index, key) in keys.iter().enumerate() {
            assert_eq!(usize::from(key.partition()), index);
            assert_eq!(key.board(), keys[0]);
            assert_eq!(keys.iter().filter(|other| *other == key).count(), 1);
        }
        assert_eq!(keys[0].to_string(), "0000:03:00.0");
        assert_eq!(keys[7].to_string(), "0000:03:00.0/7");
    }

    #[test]
    fn unused_bits_do_not_make_another_gpu() {
        assert_eq!(Bdf::from_kfd(0, 0x0fff_0300), Bdf::from_kfd(0, 0x300));
        assert_eq!(Bdf::from_u64(0x0fff_0300), Bdf::from_kfd(0, 0x300));
    }

    #[test]
    fn text_and_packed_forms_round_trip() {
        for (domain, location) in [
            (0, 0),
            (0, 0x300),
            (0xffff, 0xffff),
            (u32::MAX, 0xf000_ffff),
            (1, 0xa000_8301),
        ] {
            let bdf = Bdf::from_kfd(domain, location);
            assert_eq!(bdf.to_string().parse(), Ok(bdf));
            assert_eq!(Bdf::from_u64(bdf.to_u64()), bdf);
        }
        assert_eq!("03:00.0".parse(), Ok(Bdf::from_kfd(0, 0x300)));
        assert_eq!("0000:C3:00.0".parse(), Ok(Bdf::from_kfd(0, 0xc300)));
    }

    #[test]
    fn what_is_no_address_is_refused_with_an_example() {
        for text in [
            "",
            "banana",
            "0000:03:00",
            "0000:03:00.8",
            "0000:03:20.0",
            "0000:103:00.0",
            "1:2:3:4.0",
            "0000:03:00.0/",
            "0000:03:00.0/16",
            "+000:03:00.0",
            "0000:03:+0.0",
            "0000:-3:00.0",
            " 0000:03:00.0",
            "100000000:03:00.0",
            "::.",
        ] {
            let error = text.parse::<Bdf>().unwrap_err().to_string();
            assert!(error.contains("such as 0000:03:00.0"), "{text}: {error}");
        }
    }
}
