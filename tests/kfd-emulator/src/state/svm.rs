//! Shared virtual memory: attributes of address ranges (`svm_range_set_attr` and
//! `svm_range_get_attr` of the kernel's kfd_svm.c). No memory moves here; the emulator reads and
//! writes such ranges in the process itself.

use std::collections::BTreeMap;

use nix::errno::Errno;

use crate::abi::kfd::{
    SVM_ATTR_ACCESS, SVM_ATTR_ACCESS_IN_PLACE, SVM_ATTR_CLR_FLAGS, SVM_ATTR_GRANULARITY,
    SVM_ATTR_NO_ACCESS, SVM_ATTR_PREFERRED_LOC, SVM_ATTR_PREFETCH_LOC, SVM_ATTR_SET_FLAGS,
    SVM_FLAG_COHERENT, SVM_FLAG_HOST_ACCESS, SVM_LOCATION_UNDEFINED, SvmAttribute,
};

/// Log2 of the pages that move together, unless told otherwise.
const DEFAULT_GRANULARITY: u32 = 9;

/// The attributes of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Attributes {
    preferred: u32,
    prefetch: u32,
    flags: u32,
    granularity: u32,
    /// `SVM_ATTR_ACCESS*` per GPU; a GPU that is not listed has no access (no XNACK here).
    access: BTreeMap<u32, u32>,
}

impl Default for Attributes {
    fn default() -> Self {
        Self {
            preferred: SVM_LOCATION_UNDEFINED,
            prefetch: SVM_LOCATION_UNDEFINED,
            flags: SVM_FLAG_HOST_ACCESS | SVM_FLAG_COHERENT,
            granularity: DEFAULT_GRANULARITY,
            access: BTreeMap::new(),
        }
    }
}

impl Attributes {
    fn apply(&mut self, attribute: &SvmAttribute) {
        let value = attribute.value;
        match attribute.kind {
            SVM_ATTR_PREFERRED_LOC => self.preferred = value,
            SVM_ATTR_PREFETCH_LOC => self.prefetch = value,
            SVM_ATTR_SET_FLAGS => self.flags |= value,
            SVM_ATTR_CLR_FLAGS => self.flags &= !value,
            SVM_ATTR_GRANULARITY => self.granularity = value.min(0x3f),
            access => {
                self.access.insert(value, access);
            }
        }
    }

    fn access(&self, gpu_id: u32) -> u32 {
        self.access
            .get(&gpu_id)
            .copied()
            .unwrap_or(SVM_ATTR_NO_ACCESS)
    }
}

/// The ranges of a process that attributes were set on.
#[derive(Debug, Default)]
pub struct Ranges {
    /// Start of each range, its end, its attributes. Ranges do not overlap.
    ranges: BTreeMap<u64, (u64, Attributes)>,
}

impl Ranges {
    /// Sets attributes on `start..end`; ranges that stick out are split.
    ///
    /// # Errors
    /// `EINVAL` for an unknown attribute: then nothing is set.
    pub fn set(&mut self, start: u64, end: u64, attributes: &[SvmAttribute]) -> Result<(), Errno> {
        check(attributes)?;
        self.split_at(start);
        self.split_at(end);
        let mut at = start;
        while at < end {
            let stop = match self.ranges.get_mut(&at) {
                Some((stop, have)) => {
                    attributes.iter().for_each(|a| have.apply(a));
                    *stop
                }
                None => {
                    let next = self
                        .ranges
                        .range(at..end)
                        .next()
                        .map_or(end, |(&next, _)| next);
                    let mut fresh = Attributes::default();
                    attributes.iter().for_each(|a| fresh.apply(a));
                    self.ranges.insert(at, (next, fresh));
                    next
                }
            };
            at = stop;
        }
        self.merge(start, end);
        Ok(())
    }

    /// Answers a query about `start..end`: what all of it agrees on.
    ///
    /// # Errors
    /// `EINVAL` for an unknown attribute.
    pub fn get(&self, start: u64, end: u64, queries: &mut [SvmAttribute]) -> Result<(), Errno> {
        check(queries)?;
        let default = Attributes::default();
        let mut found: Vec<&Attributes> = self
            .ranges
            .range(..end)
            .filter(|&(_, &(stop, _))| stop > start)
            .map(|(_, (_, attributes))| attributes)
            .collect();
        if found.is_empty() {
            found.push(&default);
        }
        let agreed = |of: fn(&Attributes) -> u32| {
            let first = found.first().map_or(SVM_LOCATION_UNDEFINED, |a| of(a));
            if found.iter().all(|a| of(a) == first) {
                first
            } else {
                SVM_LOCATION_UNDEFINED
            }
        };
        for query in queries {
            match query.kind {
                SVM_ATTR_PREFERRED_LOC => query.value = agreed(|a| a.preferred),
                SVM_ATTR_PREFETCH_LOC => query.value = agreed(|a| a.prefetch),
                SVM_ATTR_SET_FLAGS => {
                    query.value = found.iter().fold(u32::MAX, |all, a| all & a.flags);
                }
                SVM_ATTR_CLR_FLAGS => {
                    query.value = !found.iter().fold(0, |any, a| any | a.flags);
                }
                SVM_ATTR_GRANULARITY => {
                    query.value = found
                        .iter()
                        .map(|a| a.granularity)
                        .min()
                        .unwrap_or(DEFAULT_GRANULARITY);
                }
                _ => {
                    let all = |kind| found.iter().all(|a| a.access(query.value) == kind);
                    query.kind = if all(SVM_ATTR_ACCESS) {
                        SVM_ATTR_ACCESS
                    } else if all(SVM_ATTR_ACCESS_IN_PLACE) {
                        SVM_ATTR_ACCESS_IN_PLACE
                    } else {
                        SVM_ATTR_NO_ACCESS
                    };
                }
            }
        }
        Ok(())
    }

    fn split_at(&mut self, at: u64) {
        if let Some((_, (stop, attributes))) = self.ranges.range_mut(..at).next_back()
            && *stop > at
        {
            let rest = (*stop, attributes.clone());
            *stop = at;
            self.ranges.insert(at, rest);
        }
    }

    /// Joins equal neighbours, so that the list stays as short as what it says.
    fn merge(&mut self, start: u64, end: u64) {
        let first = self
            .ranges
            .range(..start)
            .next_back()
            .map_or(start, |(&first, _)| first);
        let starts: Vec<u64> = self
            .ranges
            .range(first..=end)
            .map(|(&start, _)| start)
            .collect();
        let mut kept = first;
        for next in starts.into_iter().filter(|&next| next != first) {
            let joins = match (self.ranges.get(&kept), self.ranges.get(&next)) {
                (Some((stop, a)), Some((_, b))) => *stop == next && a == b,
                _ => false,
            };
            if joins && let Some((stop, _)) = self.ranges.remove(&next) {
                if let Some(range) = self.ranges.get_mut(&kept) {
                    range.0 = stop;
                }
            } else {
                kept = next;
            }
        }
    }
}

fn check(attributes: &[SvmAttribute]) -> Result<(), Errno> {
    let known = |a: &SvmAttribute| a.kind <= SVM_ATTR_GRANULARITY;
    if attributes.iter().all(known) {
        Ok(())
    } else {
        Err(Errno::EINVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u32, value: u32) -> SvmAttribute {
        SvmAttribute { kind, value }
    }

    fn get(ranges: &Ranges, start: u64, end: u64, kind: u32, value: u32) -> (u32, u32) {
        let mut query = [attribute(kind, value)];
        ranges.get(start, end, &mut query).unwrap();
        (query[0].kind, query[0].value)
    }

    #[test]
    fn defaults_where_nothing_was_set() {
        let ranges = Ranges::default();
        assert_eq!(
            get(&ranges, 0, 10, SVM_ATTR_ACCESS, 7),
            (SVM_ATTR_NO_ACCESS, 7)
        );
        assert_eq!(get(&ranges, 0, 10, SVM_ATTR_SET_FLAGS, 0).1, 3);
        assert_eq!(get(&ranges, 0, 10, SVM_ATTR_CLR_FLAGS, 0).1, !3);
        assert_eq!(get(&ranges, 0, 10, SVM_ATTR_GRANULARITY, 0).1, 9);
        assert_eq!(get(&ranges, 0, 10, SVM_ATTR_PREFERRED_LOC, 0).1, u32::MAX);
    }

    #[test]
    fn setting_a_part_splits_the_range() {
        let mut ranges = Ranges::default();
        ranges
            .set(0, 100, &[attribute(SVM_ATTR_ACCESS, 7)])
            .unwrap();
        ranges
            .set(40, 60, &[attribute(SVM_ATTR_PREFERRED_LOC, 7)])
            .unwrap();
        assert_eq!(get(&ranges, 40, 60, SVM_ATTR_PREFERRED_LOC, 0).1, 7);
        assert_eq!(get(&ranges, 0, 100, SVM_ATTR_PREFERRED_LOC, 0).1, u32::MAX);
        assert_eq!(get(&ranges, 0, 100, SVM_ATTR_ACCESS, 7).0, SVM_ATTR_ACCESS);
        assert_eq!(ranges.ranges.len(), 3);
    }

    #[test]
    fn equal_neighbours_join() {
        let mut ranges = Ranges::default();
        for start in [0, 20, 10, 30] {
            ranges
                .set(start, start + 10, &[attribute(SVM_ATTR_ACCESS_IN_PLACE, 7)])
                .unwrap();
        }
        assert_eq!(ranges.ranges.len(), 1);
        assert_eq!(
            get(&ranges, 0, 40, SVM_ATTR_ACCESS, 7).0,
            SVM_ATTR_ACCESS_IN_PLACE
        );
        ranges
            .set(5, 15, &[attribute(SVM_ATTR_NO_ACCESS, 7)])
            .unwrap();
        ranges
            .set(5, 15, &[attribute(SVM_ATTR_ACCESS_IN_PLACE, 7)])
            .unwrap();
        assert_eq!(ranges.ranges.len(), 1);
    }

    #[test]
    fn flags_are_set_and_cleared() {
        let mut ranges = Ranges::default();
        ranges
            .set(
                0,
                10,
                &[attribute(SVM_ATTR_CLR_FLAGS, 2), attribute(5, 0x10)],
            )
            .unwrap();
        assert_eq!(get(&ranges, 0, 10, SVM_ATTR_SET_FLAGS, 0).1, 0x11);
        assert_eq!(get(&ranges, 0, 10, SVM_ATTR_CLR_FLAGS, 0).1, !0x11);
    }

    #[test]
    fn unknown_attributes_change_nothing() {
        let mut ranges = Ranges::default();
        let mixed = [attribute(SVM_ATTR_ACCESS, 7), attribute(99, 0)];
        assert_eq!(ranges.set(0, 10, &mixed), Err(Errno::EINVAL));
        assert!(ranges.ranges.is_empty());
        assert_eq!(
            ranges.get(0, 10, &mut [attribute(99, 0)]),
            Err(Errno::EINVAL)
        );
    }
}
