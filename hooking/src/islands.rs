//! Executable memory within reach of a jump with 32 bits.

use std::io;

use crate::Refusal;
use crate::maps::Maps;
use crate::raw;
use crate::writer::Writer;

/// How much is mapped at once. All hooks of one library go into one.
const ISLAND: usize = 0x4000;
/// How far away an island may be. A jump reaches 2 GiB; what is left over reaches all of the library's data,
/// which moved instructions may refer to.
const REACH: usize = 0x7000_0000;
/// Code begins at multiples of this.
const ALIGNMENT: usize = 16;
/// How many free places are tried.
const MOST_TRIES: usize = 64;

/// Islands of r-x memory, never writable and never given back: a thread may be in any of them at any time.
#[derive(Debug, Default)]
pub(crate) struct Islands(Vec<Island>);

#[derive(Debug)]
struct Island {
    start: usize,
    used: usize,
}

impl Islands {
    /// Places `code` near `origin`, at the address that it is made for.
    pub(crate) fn place(
        &mut self,
        maps: &Maps,
        writer: &Writer,
        origin: usize,
        at_most: usize,
        code: impl FnOnce(usize) -> Result<Vec<u8>, Refusal>,
    ) -> Result<usize, Refusal> {
        let at = self.reserve(maps, origin, at_most)?;
        let code = code(at)?;
        if code.len() > at_most {
            return Err(no_room(origin, "the code is longer than expected"));
        }
        writer
            .write(at, &code)
            .map_err(|error| Refusal::system("cannot write code", &raw::error(error)))?;
        Ok(at)
    }

    fn reserve(&mut self, maps: &Maps, origin: usize, length: usize) -> Result<usize, Refusal> {
        let length = length.next_multiple_of(ALIGNMENT);
        let fits = |island: &Island| {
            island.start.abs_diff(origin) < REACH && island.used.saturating_add(length) <= ISLAND
        };
        let found = match self.0.iter().position(fits) {
            Some(found) => found,
            None => {
                let start = map_near(maps, origin)?;
                self.0.push(Island { start, used: 0 });
                self.0.len().saturating_sub(1)
            }
        };
        let island = self
            .0
            .get_mut(found)
            .filter(|island| island.used.saturating_add(length) <= ISLAND)
            .ok_or_else(|| no_room(origin, "too much is needed at once"))?;
        let at = island.start.saturating_add(island.used);
        island.used = island.used.saturating_add(length);
        Ok(at)
    }
}

/// Maps an island in the nearest gap between what was mapped at the session's start.
fn map_near(maps: &Maps, origin: usize) -> Result<usize, Refusal> {
    let mut places: Vec<usize> = maps
        .gaps()
        .flat_map(|(start, end)| {
            let low = start.checked_next_multiple_of(ISLAND);
            let high = end
                .checked_sub(ISLAND)
                .map(|high| high.wrapping_sub(high % ISLAND));
            match (low, high) {
                (Some(low), Some(high)) if low <= high => [Some(low), Some(high)],
                _ => [None, None],
            }
        })
        .flatten()
        .filter(|place| place.abs_diff(origin) < REACH)
        .collect();
    places.sort_unstable_by_key(|place| place.abs_diff(origin));
    let mut last = None;
    for place in places.into_iter().take(MOST_TRIES) {
        match map_at(place) {
            Ok(()) => return Ok(place),
            Err(error) => last = Some(error.to_string()),
        }
    }
    let why = last.unwrap_or_else(|| "nothing is free there".into());
    Err(no_room(origin, &why))
}

/// Maps an island at this place, if it is free.
fn map_at(place: usize) -> io::Result<()> {
    // SAFETY: with MAP_FIXED_NOREPLACE nothing is replaced; kernels before 4.17 take it for a hint.
    let mapped = unsafe {
        libc::mmap(
            place as *mut _,
            ISLAND,
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if mapped as usize != place {
        // SAFETY: it was just mapped, and nobody knows of it.
        unsafe { libc::munmap(mapped, ISLAND) };
        return Err(io::Error::from_raw_os_error(libc::EEXIST));
    }
    Ok(())
}

fn no_room(origin: usize, why: &str) -> Refusal {
    Refusal::System {
        what: format!("no executable memory within 2 GiB of {origin:#x}"),
        why: why.into(),
    }
}
