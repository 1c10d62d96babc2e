//! A set of compute units.

use std::fmt;

use super::text::Text;

/// The most compute units that a mask can name: amdkfd drops bits from 1,024 on (`kfd_ioctl_set_cu_mask`,
/// `max_num_cus`).
pub const MAX_CUS: u32 = 1024;

/// Bits of a word.
const WORD: u32 = u64::BITS;
/// Of which a mask is made.
const WORDS: usize = (MAX_CUS / WORD) as usize;

/// A set of compute units: bit i stands for CU i, as in the queue's mask of amdkfd.
///
/// Which CU that is the driver decides: bits are dealt out to the XCCs in turn, then to the shader engines in turn, so
/// that neighbouring bits are in different engines (`mqd_symmetrically_map_cu_mask` in `kfd_mqd_manager.c`).
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct CuMask {
    words: [u64; WORDS],
}

impl CuMask {
    /// No CU at all.
    pub const fn none() -> Self {
        Self { words: [0; WORDS] }
    }

    /// Adds a CU; numbers from [`MAX_CUS`] on are ignored.
    pub fn add(&mut self, cu: u32) {
        if let Some(word) = self.words.get_mut((cu / WORD) as usize) {
            *word |= 1 << (cu % WORD);
        }
    }

    /// Removes a CU.
    pub fn remove(&mut self, cu: u32) {
        if let Some(word) = self.words.get_mut((cu / WORD) as usize) {
            *word &= !(1 << (cu % WORD));
        }
    }

    /// Whether a CU is in it.
    pub fn has(&self, cu: u32) -> bool {
        let word = self.words.get((cu / WORD) as usize);
        word.is_some_and(|word| word & (1 << (cu % WORD)) != 0)
    }

    /// Keeps what is in `other` as well.
    pub fn keep(&mut self, other: &Self) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= other;
        }
    }

    /// How many CUs are in it.
    pub fn count(&self) -> u32 {
        let ones = self.words.iter().map(|word| word.count_ones());
        ones.fold(0, u32::saturating_add)
    }

    /// The lowest CU.
    pub fn first(&self) -> Option<u32> {
        (0..MAX_CUS).find(|cu| self.has(*cu))
    }

    /// The highest CU.
    pub fn last(&self) -> Option<u32> {
        (0..MAX_CUS).rev().find(|cu| self.has(*cu))
    }

    /// Its words, bit 0 of the first being CU 0.
    pub fn words(&self) -> &[u64; WORDS] {
        &self.words
    }

    /// The mask of these words.
    pub fn from_words(words: [u64; WORDS]) -> Self {
        Self { words }
    }

    /// Writes it as a list of ranges: `0-37,64-75`.
    pub fn write(&self, text: &mut Text<'_>) {
        let mut next = 0;
        let mut is_first = true;
        while let Some(start) = (next..MAX_CUS).find(|cu| self.has(*cu)) {
            let end = (start..MAX_CUS)
                .find(|cu| !self.has(*cu))
                .unwrap_or(MAX_CUS);
            if !is_first {
                text.byte(b',');
            }
            is_first = false;
            text.number(start);
            let last = end.saturating_sub(1);
            if last > start {
                text.byte(b'-');
                text.number(last);
            }
            next = end;
        }
    }
}

impl fmt::Display for CuMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Every second CU, each of four digits and a comma.
        const LONGEST: usize = (MAX_CUS / 2) as usize * 5;
        let mut place = [0; LONGEST];
        let mut text = Text::new(&mut place);
        self.write(&mut text);
        f.write_str(std::str::from_utf8(text.written()).unwrap_or_default())
    }
}

impl fmt::Debug for CuMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CuMask({self})")
    }
}
