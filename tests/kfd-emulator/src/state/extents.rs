//! Which runs of the backing file are free.

use std::collections::BTreeMap;

/// Free runs of a range of numbers, first fit, merged when they meet.
#[derive(Debug)]
pub struct Extents {
    /// Start of each free run and its length. No two runs touch.
    free: BTreeMap<u64, u64>,
}

impl Extents {
    /// Everything from `start` up to `end` is free.
    pub fn new(start: u64, end: u64) -> Self {
        let mut free = BTreeMap::new();
        if start < end {
            free.insert(start, end - start);
        }
        Self { free }
    }

    /// Takes a run of `length`, or tells that no free run is that long.
    pub fn take(&mut self, length: u64) -> Option<u64> {
        let (&start, &have) = self
            .free
            .iter()
            .find(|&(_, &have)| have >= length && length > 0)?;
        self.free.remove(&start);
        if have > length {
            self.free.insert(start + length, have - length);
        }
        Some(start)
    }

    /// Gives back a run that [`Extents::take`] gave out.
    pub fn give_back(&mut self, mut start: u64, mut length: u64) {
        if let Some((&before, &have)) = self.free.range(..start).next_back()
            && before + have == start
        {
            self.free.remove(&before);
            start = before;
            length += have;
        }
        if let Some(have) = self.free.remove(&(start + length)) {
            length += have;
        }
        self.free.insert(start, length);
    }

    /// Free numbers in all.
    pub fn free(&self) -> u64 {
        self.free.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_fit_and_full() {
        let mut extents = Extents::new(100, 130);
        assert_eq!(extents.take(10), Some(100));
        assert_eq!(extents.take(20), Some(110));
        assert_eq!(extents.take(1), None);
        assert_eq!(extents.take(0), None);
    }

    #[test]
    fn neighbours_merge_in_any_order() {
        for order in [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ] {
            let mut extents = Extents::new(0, 30);
            for _ in 0..3 {
                assert!(extents.take(10).is_some());
            }
            for part in order {
                extents.give_back(part * 10, 10);
            }
            assert_eq!(extents.free(), 30);
            assert_eq!(
                extents.take(30),
                Some(0),
                "one run again after giving back {order:?}"
            );
        }
    }
}
