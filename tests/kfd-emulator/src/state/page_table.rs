//! Where the bytes behind a GPU address are.

use std::collections::BTreeMap;

/// The place of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At an offset of the backing file.
    Backing(u64),
    /// At an address of the process itself.
    Process(u64),
}

impl Place {
    fn plus(self, distance: u64) -> Self {
        match self {
            Place::Backing(offset) => Place::Backing(offset.wrapping_add(distance)),
            Place::Process(address) => Place::Process(address.wrapping_add(distance)),
        }
    }
}

/// The GPU page table of a process. One table serves all GPUs: an address means the same memory
/// on each of them, since ROCr maps a buffer at one address everywhere.
#[derive(Debug, Default)]
pub struct PageTable {
    ranges: BTreeMap<u64, (u64, Place)>,
}

impl PageTable {
    /// Maps `size` bytes at `va`, over whatever was mapped there.
    pub fn map(&mut self, va: u64, size: u64, place: Place) {
        let Some(end) = va.checked_add(size).filter(|_| size > 0) else {
            return;
        };
        self.unmap(va, end - va);
        self.ranges.insert(va, (size, place));
    }

    /// Removes every mapping from `size` bytes at `va`; what sticks out on either side stays.
    pub fn unmap(&mut self, va: u64, size: u64) {
        let end = va.saturating_add(size);
        let first = self
            .ranges
            .range(..va)
            .next_back()
            .map_or(va, |(&start, _)| start);
        let touched: Vec<_> = self
            .ranges
            .range(first..end)
            .map(|(&start, &(length, place))| (start, start + length, place))
            .filter(|&(_, stop, _)| stop > va)
            .collect();
        for (start, stop, place) in touched {
            self.ranges.remove(&start);
            if start < va {
                self.ranges.insert(start, (va - start, place));
            }
            if stop > end {
                self.ranges
                    .insert(end, (stop - end, place.plus(end - start)));
            }
        }
    }

    /// Where the byte at `va` is, and how many bytes from there on are in the same run.
    ///
    /// An address that nothing was mapped at is the process's own: shared virtual memory, where
    /// GPU and CPU addresses are the same. The run then ends where the next mapping begins.
    pub fn locate(&self, va: u64) -> (Place, u64) {
        if let Some((&start, &(size, place))) = self.ranges.range(..=va).next_back() {
            let distance = va - start;
            if distance < size {
                return (place.plus(distance), size - distance);
            }
        }
        let next = va
            .checked_add(1)
            .and_then(|from| self.ranges.range(from..).next());
        (
            Place::Process(va),
            next.map_or(u64::MAX - va, |(&start, _)| start - va),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inside_a_mapping_and_outside() {
        let mut table = PageTable::default();
        table.map(0x1000, 0x2000, Place::Backing(0x9000));
        assert_eq!(table.locate(0x1fff), (Place::Backing(0x9fff), 0x1001));
        assert_eq!(table.locate(0x3000).0, Place::Process(0x3000));
        assert_eq!(table.locate(0xf00), (Place::Process(0xf00), 0x100));
    }

    #[test]
    fn host_memory_may_have_another_address_on_the_gpu() {
        let mut table = PageTable::default();
        table.map(0x1000, 0x1000, Place::Process(0x7f00_0000));
        assert_eq!(table.locate(0x1010), (Place::Process(0x7f00_0010), 0xff0));
    }

    #[test]
    fn unmapping_the_middle_leaves_both_ends() {
        let mut table = PageTable::default();
        table.map(0x1000, 0x3000, Place::Backing(0));
        table.unmap(0x2000, 0x1000);
        assert_eq!(table.locate(0x1800), (Place::Backing(0x800), 0x800));
        assert_eq!(table.locate(0x2000).0, Place::Process(0x2000));
        assert_eq!(table.locate(0x3010), (Place::Backing(0x2010), 0xff0));
    }

    #[test]
    fn mapping_over_a_mapping_replaces_it() {
        let mut table = PageTable::default();
        table.map(0x1000, 0x2000, Place::Backing(0));
        table.map(0x2000, 0x2000, Place::Backing(0x10_0000));
        assert_eq!(table.locate(0x1000), (Place::Backing(0), 0x1000));
        assert_eq!(table.locate(0x2000), (Place::Backing(0x10_0000), 0x2000));
    }

    #[test]
    fn ranges_that_wrap_are_ignored() {
        let mut table = PageTable::default();
        table.map(u64::MAX - 10, 100, Place::Backing(0));
        assert_eq!(table.locate(u64::MAX - 5).0, Place::Process(u64::MAX - 5));
    }
}
