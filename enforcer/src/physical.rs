//! Physical memory of `hipMemCreate`, and where it is mapped.
//!
//! It is there until its handle is released *and* its last mapping is gone. What runtimes make of it was seen in
//! 6.4.3 and 7.2.4, which agree but for the unmapping of a range that is not one mapping:
//! * a handle has one hold, whatever `hipMemRetainAllocationHandle` says: the first release drops it, further ones
//!   succeed and do nothing;
//! * a released handle can be mapped again as long as another mapping keeps the memory;
//! * each mapping needs its own unmapping. 6.4.3 says success to any other range and leaves all as it is; 7.2.4
//!   unmaps all mappings of a range that is made of whole ones, and says no to any other;
//! * the value of a handle is given again once the memory is gone.
//!
//! This is a model of that and nothing else: it knows neither the runtime nor the account. A call takes effect in
//! two steps, since another thread may be given the same handle or address as soon as the runtime has done its
//! part: `begin_` before the runtime is called, `end_` when it has answered.

use crate::live::{Block, OutOfMemory};

/// What becomes of a block's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The runtime is about to free it: it is booked, and the driver may not count it any more.
    Leaving(Block),
    /// It was about to, and it has not.
    Stays(Block),
    /// It is not there any more.
    Gone(Block),
}

/// A call under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    what: What,
    /// Of its own for each call.
    number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Map { at: usize, bytes: u64 },
    Unmap(Range),
    Release { place: usize },
    Reset { gpu: u32, runtime: u8 },
}

impl Ticket {
    pub(crate) fn is_mapping(self) -> bool {
        matches!(self.what, What::Map { .. })
    }

    /// The GPU that is reset.
    pub(crate) fn gpu(self) -> Option<u32> {
        match self.what {
            What::Reset { gpu, .. } => Some(gpu),
            _ => None,
        }
    }
}

/// All physical memory of a process.
#[derive(Default)]
pub(crate) struct Physical {
    /// `None`: a place for the next one.
    blocks: Vec<Option<Held>>,
    /// Places in `blocks` that are free.
    free: Vec<usize>,
    /// The blocks that a handle names, by the handle.
    names: Vec<(usize, usize)>,
    /// In the order of their addresses.
    mappings: Vec<Mapping>,
    /// Of the last ticket.
    number: u64,
}

/// A block, and what keeps it.
struct Held {
    block: Block,
    hold: Hold,
    /// Mappings there are, those that are being removed included.
    mappings: usize,
    /// Those that are being removed.
    unmapping: usize,
    /// There was no memory to remember a mapping, so it is never known to be gone.
    pinned: bool,
    /// [`Change::Leaving`] was told.
    leaving: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    Held,
    /// By the ticket of this number.
    Releasing(u64),
    Released,
}

struct Mapping {
    at: usize,
    bytes: u64,
    /// In `blocks`.
    place: usize,
    /// The ticket that makes it, and whether that has come to an end.
    maker: u64,
    is_made: bool,
    /// Calls under way that may remove it.
    removers: usize,
}

impl Mapping {
    fn end(&self) -> usize {
        end(self.at, self.bytes)
    }

    /// Whether the unmapping of a range, of the ticket of this number, is about it.
    fn goes_with(&self, range: Range, number: u64) -> bool {
        let exactly = self.at == range.at && self.end() == range.end();
        let inside = self.at >= range.at && self.end() <= range.end();
        self.maker < number && (exactly || range.several && inside)
    }
}

/// What a call unmaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    at: usize,
    bytes: u64,
    several: bool,
}

impl Range {
    fn end(&self) -> usize {
        end(self.at, self.bytes)
    }
}

fn end(at: usize, bytes: u64) -> usize {
    at.saturating_add(usize::try_from(bytes).unwrap_or(usize::MAX))
}

impl Physical {
    /// A block that the runtime has made under its handle. Another one of that handle cannot be held any more.
    pub(crate) fn create(
        &mut self,
        block: Block,
        tell: &mut dyn FnMut(Change),
    ) -> Result<(), OutOfMemory> {
        self.forget_name(block.pointer, tell);
        self.names.try_reserve(1).map_err(|_| OutOfMemory)?;
        if self.free.is_empty() {
            self.blocks.try_reserve(1).map_err(|_| OutOfMemory)?;
            // Room for every place, so that giving one back needs no memory.
            let places = self.blocks.len().saturating_add(1);
            self.free.try_reserve(places).map_err(|_| OutOfMemory)?;
        }
        let held = Held {
            block,
            hold: Hold::Held,
            mappings: 0,
            unmapping: 0,
            pinned: false,
            leaving: false,
        };
        let place = match self.free.pop() {
            Some(place) => {
                if let Some(empty) = self.blocks.get_mut(place) {
                    *empty = Some(held);
                }
                place
            }
            None => {
                self.blocks.push(Some(held));
                self.blocks.len().saturating_sub(1)
            }
        };
        let at = self
            .names
            .partition_point(|(name, _)| *name < block.pointer);
        self.names.insert(at, (block.pointer, place));
        Ok(())
    }

    /// The runtime has given a handle of this value to something else, so what it named is only kept by its
    /// mappings.
    pub(crate) fn forget_name(&mut self, name: usize, tell: &mut dyn FnMut(Change)) {
        let Some(at) = self.name(name) else {
            return;
        };
        let (_, place) = self.names.remove(at);
        if let Some(Some(held)) = self.blocks.get_mut(place) {
            held.hold = Hold::Released;
        }
        self.settle(place, tell);
    }

    /// The handle is about to be released. `None`: it names nothing that is held here.
    pub(crate) fn begin_release(
        &mut self,
        name: usize,
        tell: &mut dyn FnMut(Change),
    ) -> Option<Ticket> {
        let (_, place) = *self.names.get(self.name(name)?)?;
        let number = self.next_number();
        let held = self.blocks.get_mut(place)?.as_mut()?;
        if held.hold != Hold::Held {
            return None;
        }
        held.hold = Hold::Releasing(number);
        self.settle(place, tell);
        Some(Ticket {
            what: What::Release { place },
            number,
        })
    }

    /// A GPU is about to be reset: that drops all holds there and leaves the mappings.
    pub(crate) fn begin_reset(
        &mut self,
        gpu: u32,
        runtime: u8,
        tell: &mut dyn FnMut(Change),
    ) -> Ticket {
        let number = self.next_number();
        self.change_holds((gpu, runtime), Hold::Held, Hold::Releasing(number), tell);
        Ticket {
            what: What::Reset { gpu, runtime },
            number,
        }
    }

    fn change_holds(
        &mut self,
        whose: (u32, u8),
        from: Hold,
        to: Hold,
        tell: &mut dyn FnMut(Change),
    ) {
        for place in 0..self.blocks.len() {
            if let Some(Some(held)) = self.blocks.get_mut(place)
                && (held.block.gpu, held.block.runtime) == whose
                && held.hold == from
            {
                held.hold = to;
                self.settle(place, tell);
            }
        }
    }

    /// A range is about to be mapped to what a handle names. `None`: that is nothing which is known here.
    pub(crate) fn begin_map(&mut self, at: usize, bytes: u64, name: usize) -> Option<Ticket> {
        let (_, place) = *self.names.get(self.name(name)?)?;
        let number = self.next_number();
        let held = self.blocks.get_mut(place)?.as_mut()?;
        if self.mappings.try_reserve(1).is_err() {
            held.pinned = true;
            return None;
        }
        held.mappings = held.mappings.saturating_add(1);
        let behind = self.mappings.partition_point(|mapping| mapping.at <= at);
        self.mappings.insert(
            behind,
            Mapping {
                at,
                bytes,
                place,
                maker: number,
                is_made: false,
                removers: 0,
            },
        );
        Some(Ticket {
            what: What::Map { at, bytes },
            number,
        })
    }

    /// A range is about to be unmapped. `several`: the runtime unmaps all mappings of a range that is made of
    /// whole ones. `None`: nothing that is known here will be unmapped.
    pub(crate) fn begin_unmap(
        &mut self,
        at: usize,
        bytes: u64,
        several: bool,
        tell: &mut dyn FnMut(Change),
    ) -> Option<Ticket> {
        let range = Range { at, bytes, several };
        let number = self.next_number();
        let found = self.each_in(range, number, tell, |held, mapping| {
            if mapping.removers == 0 {
                held.unmapping = held.unmapping.saturating_add(1);
            }
            mapping.removers = mapping.removers.saturating_add(1);
        });
        found.then_some(Ticket {
            what: What::Unmap(range),
            number,
        })
    }

    /// Changes the mappings that the unmapping of a range, of the ticket of this number, is about. False if there
    /// are none.
    fn each_in(
        &mut self,
        range: Range,
        number: u64,
        tell: &mut dyn FnMut(Change),
        change: impl Fn(&mut Held, &mut Mapping),
    ) -> bool {
        let first = self
            .mappings
            .partition_point(|mapping| mapping.at < range.at);
        let mut found = false;
        for nth in first..self.mappings.len() {
            let Some(mapping) = self.mappings.get_mut(nth) else {
                break;
            };
            if mapping.at >= range.end() {
                break;
            }
            if !mapping.goes_with(range, number) {
                continue;
            }
            found = true;
            let place = mapping.place;
            if let Some(Some(held)) = self.blocks.get_mut(place) {
                change(held, mapping);
            }
            self.settle(place, tell);
        }
        found
    }

    /// The runtime has done what a call began (`done`), or it has not.
    pub(crate) fn end(&mut self, ticket: Ticket, done: bool, tell: &mut dyn FnMut(Change)) {
        let number = ticket.number;
        match ticket.what {
            What::Map { at, bytes } if done => {
                // What was known to be mapped there cannot be there any more.
                self.remove_if(at, bytes, tell, |mapping| {
                    mapping.end() > at && mapping.maker < number
                });
                let first = self.mappings.partition_point(|mapping| mapping.at < at);
                let mut here = self.mappings.iter_mut().skip(first);
                if let Some(mapping) = here.find(|mapping| mapping.maker == number) {
                    mapping.is_made = true;
                }
            }
            What::Map { at, .. } => self.remove_if(at, 1, tell, |m| m.maker == number),
            What::Unmap(range) if done => {
                self.remove_if(range.at, range.bytes, tell, |mapping| {
                    mapping.goes_with(range, number)
                });
            }
            What::Unmap(range) => {
                self.each_in(range, number, tell, |held, mapping| {
                    mapping.removers = mapping.removers.saturating_sub(1);
                    if mapping.removers == 0 {
                        held.unmapping = held.unmapping.saturating_sub(1);
                    }
                });
            }
            What::Reset { gpu, runtime } => {
                let to = if done { Hold::Released } else { Hold::Held };
                self.change_holds((gpu, runtime), Hold::Releasing(number), to, tell);
            }
            What::Release { place } => {
                if let Some(Some(held)) = self.blocks.get_mut(place)
                    && held.hold == Hold::Releasing(number)
                {
                    held.hold = if done { Hold::Released } else { Hold::Held };
                    self.settle(place, tell);
                }
            }
        }
    }

    /// Removes the mappings of a range that are `wanted`.
    fn remove_if(
        &mut self,
        at: usize,
        bytes: u64,
        tell: &mut dyn FnMut(Change),
        wanted: impl Fn(&Mapping) -> bool,
    ) {
        let behind = end(at, bytes);
        // From above, so that what is removed does not move what is still to be looked at.
        let mut nth = self.mappings.partition_point(|mapping| mapping.at < behind);
        while let Some(before) = nth.checked_sub(1) {
            nth = before;
            let Some(mapping) = self.mappings.get(nth) else {
                return;
            };
            if !wanted(mapping) {
                // Those that are made do not overlap each other: all others end where this one begins.
                if mapping.end() <= at && mapping.is_made && mapping.removers == 0 {
                    return;
                }
                continue;
            }
            let gone = self.mappings.remove(nth);
            if let Some(Some(held)) = self.blocks.get_mut(gone.place) {
                held.mappings = held.mappings.saturating_sub(1);
                if gone.removers != 0 {
                    held.unmapping = held.unmapping.saturating_sub(1);
                }
            }
            self.settle(gone.place, tell);
        }
    }

    /// Tells what has become of a block, and forgets it if it is gone.
    fn settle(&mut self, place: usize, tell: &mut dyn FnMut(Change)) {
        let Some(empty) = self.blocks.get_mut(place) else {
            return;
        };
        let Some(held) = empty.as_mut() else {
            return;
        };
        let block = held.block;
        if held.pinned {
            return;
        }
        let leaves = held.hold != Hold::Held && held.mappings == held.unmapping;
        match (leaves, held.leaving) {
            (true, false) => tell(Change::Leaving(block)),
            (false, true) => tell(Change::Stays(block)),
            _ => {}
        }
        held.leaving = leaves;
        if held.hold != Hold::Released || held.mappings != 0 {
            return;
        }
        *empty = None;
        self.free.push(place);
        if let Some(at) = self.name(block.pointer)
            && self.names.get(at).is_some_and(|(_, named)| *named == place)
        {
            self.names.remove(at);
        }
        tell(Change::Gone(block));
    }

    fn name(&self, name: usize) -> Option<usize> {
        self.names
            .binary_search_by_key(&name, |(name, _)| *name)
            .ok()
    }

    fn next_number(&mut self) -> u64 {
        self.number = self.number.saturating_add(1);
        self.number
    }
}

#[cfg(test)]
mod tests;
