//! Who of this process's threads is inside a membership: so that none goes on writing into its slot
//! after another has given the slot back, when it may be another process's already.

use crate::sync::{AtomicU64, Ordering, fence, fence_behind_change};

/// Counts the operations under way.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    inside: AtomicU64,
}

/// One operation, for as long as it lives.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Gate);

impl Gate {
    /// Goes in. Whoever does so looks at the slot's state *afterwards*, and keeps out of the slot
    /// unless it is claimed. The one who leaves changes the state and *then* asks [`Self::is_empty`]:
    /// so either the change is seen here, or this operation there.
    pub(crate) fn enter(&self) -> Inside<'_> {
        self.inside.fetch_add(1, Ordering::SeqCst);
        fence_behind_change();
        Inside(self)
    }

    /// Whether nobody is inside. What those did who were is seen then.
    pub(crate) fn is_empty(&self) -> bool {
        fence(Ordering::SeqCst);
        self.inside.load(Ordering::SeqCst) == 0
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_is_empty_when_all_have_gone() {
        let gate = Gate::default();
        assert!(gate.is_empty());
        let (one, two) = (gate.enter(), gate.enter());
        drop(one);
        assert!(!gate.is_empty());
        drop(two);
        assert!(gate.is_empty());
    }
}
