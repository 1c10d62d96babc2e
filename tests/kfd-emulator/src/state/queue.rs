//! User-mode queues of a process.

use std::collections::BTreeMap;

use nix::errno::Errno;

/// Most queues of a process (`KFD_MAX_NUM_OF_QUEUES_PER_PROCESS`), one doorbell each.
pub const MAX_QUEUES: u32 = 1024;
/// Smallest ring in bytes (`KFD_MIN_QUEUE_RING_SIZE`).
pub const MIN_RING: u32 = 1024;
const MAX_PERCENTAGE: u32 = 100;
const MAX_PRIORITY: u32 = 15;

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Tells this queue from an earlier one of the same id.
    pub serial: u64,
    /// One of `QUEUE_TYPE_*`.
    pub kind: u32,
    /// The GPU that serves it.
    pub gpu_id: u32,
    /// GPU address of the ring.
    pub ring_base: u64,
    /// Bytes of the ring.
    pub ring_bytes: u64,
    /// GPU address where the read pointer is published.
    pub read_pointer: u64,
    /// Offset of the doorbell in the backing file.
    pub doorbell: u64,
    /// Share of time, 0 to 100. A queue with 0 is not served.
    pub percentage: u32,
    /// 0 to 15.
    pub priority: u32,
    /// The compute units that it may use, 32 to a word; empty: all.
    pub cu_mask: Vec<u32>,
}

/// Checks what CREATE_QUEUE and UPDATE_QUEUE have in common (`set_queue_properties_from_user`).
///
/// # Errors
/// `EINVAL` for a percentage over 100, a priority over 15 or a ring that is no power of two.
pub fn check_properties(ring_bytes: u32, percentage: u32, priority: u32) -> Result<(), Errno> {
    // Bits 15:8 of the percentage choose the XCC of a PM4 packet.
    let share = percentage & 0xff;
    if share > MAX_PERCENTAGE || priority > MAX_PRIORITY {
        return Err(Errno::EINVAL);
    }
    if ring_bytes != 0 && !ring_bytes.is_power_of_two() {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// Whether a CU mask keeps the two compute units of each work-group processor together, as GPUs
/// from gfx10 on want it (`pqm_update_mqd`).
pub fn is_paired(mask: &[u32]) -> bool {
    mask.iter()
        .all(|word| (word ^ (word >> 1)) & 0x5555_5555 == 0)
}

/// The lowest queue id that is free.
pub fn free_id(queues: &BTreeMap<u32, Queue>) -> Option<u32> {
    (0..MAX_QUEUES).find(|id| !queues.contains_key(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties() {
        assert_eq!(check_properties(4096, 100, 7), Ok(()));
        assert_eq!(check_properties(4096, 3 << 8 | 100, 7), Ok(()));
        assert_eq!(check_properties(0, 0, 0), Ok(()));
        assert_eq!(check_properties(4096, 101, 7), Err(Errno::EINVAL));
        assert_eq!(check_properties(4096, 100, 16), Err(Errno::EINVAL));
        assert_eq!(check_properties(3000, 100, 7), Err(Errno::EINVAL));
    }

    #[test]
    fn pairs() {
        assert!(is_paired(&[]));
        assert!(is_paired(&[0xffff_ffff, 0x3f]));
        assert!(is_paired(&[0b1100]));
        assert!(!is_paired(&[0xffff_ffff, 0x1f]));
        assert!(!is_paired(&[0b0110]));
    }
}
