//! What masks the queues of an architecture accept.

use super::mask::{CuMask, MAX_CUS};

/// How the compute units of a GPU hang together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// How many there are; 0: not known.
    pub cu_count: u32,
    /// XCCs (compute dies) that work as one GPU. Bit i of a mask is a CU of XCC i mod `num_xcc`.
    pub num_xcc: u32,
    /// Whether two neighbours are one work-group processor (WGP), of which a queue gets both or none: from GFX10 on.
    /// (`AqlQueue::SetCUMasking` of ROCr refuses others, and the queue then has no mask at all; so does amdkfd,
    /// `update_cu_mask` in `kfd_process_queue_manager.c`.)
    pub pairs: bool,
}

impl Shape {
    /// Rounds a mask so that queues accept it: a WGP of which only one CU is in the mask is left out. Nobody gets more
    /// than he asked for, unless nothing would be left: then it is the WGP of the first CU. True if that changed it.
    pub fn round(&self, mask: &mut CuMask) -> bool {
        let Some(first) = mask.first().filter(|_| self.pairs) else {
            return false;
        };
        let before = mask.count();
        self.drop_halves(mask);
        if mask.count() == 0 {
            mask.add(first);
            mask.add(first ^ 1);
            return true;
        }
        mask.count() != before
    }

    /// Leaves the WGPs out of which only one CU is in the mask.
    pub fn drop_halves(&self, mask: &mut CuMask) {
        if !self.pairs {
            return;
        }
        for even in (0..MAX_CUS).step_by(2) {
            let odd = even | 1;
            if mask.has(even) != mask.has(odd) {
                mask.remove(even);
                mask.remove(odd);
            }
        }
    }

    /// An XCC without a CU in the mask, if there is one. Work is dealt out to all XCCs in turn, so what goes there would
    /// never run.
    pub fn idle_xcc(&self, mask: &CuMask) -> Option<u32> {
        (0..self.num_xcc).find(|xcc| {
            let step = self.num_xcc.max(1) as usize;
            !(*xcc..MAX_CUS).step_by(step).any(|cu| mask.has(cu))
        })
    }

    /// What a program is told for `native` units of such a GPU, of whose CUs it may use `used`: the count is in CUs, or
    /// in WGPs, as the runtime counts.
    pub fn share(&self, native: u32, used: u32) -> u32 {
        let share = u64::from(native).saturating_mul(u64::from(used));
        let share = share.checked_div(u64::from(self.cu_count));
        let share = share.and_then(|share| u32::try_from(share).ok());
        share.map_or(native, |share| share.clamp(1, native.max(1)))
    }
}
