//! Points between two accesses to shared words, where tests switch to another thread; and what
//! tests plant. Nothing of this is in a build without tests.

#[cfg(test)]
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// A deliberate mistake, which a test must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Mistake {
    /// A lookup takes the mask from one table and the array from another.
    LoadsTableTwice,
    /// Chains are unzipped while readers may still enter them from the old table.
    NoWaitAfterPublication,
    /// No grace period between two passes.
    NoWaitBetweenPasses,
    /// Two links of one chain are changed in one pass.
    TwoJumpsInOnePass,
    /// In place, a release store of the mask takes the place of the grace period before it.
    MaskWithoutWait,
    /// In place, the upper half is returned while readers may still use the larger mask.
    UpperHalfReturnedAtOnce,
    /// The old array is freed when the last chain is unzipped, although updaters use it.
    OldArrayFreedAtOnce,
    /// A removal does not look at the auxiliary pointer.
    AuxNotAdvanced,
    /// A removal redirects only one of two links.
    OneOfTwoLinks,
    /// A removal advances the auxiliary pointer to a node of the other bucket, as if the run were
    /// still there.
    RunEndNotNoticed,
    /// An insertion looks for its key only up to the first node of another bucket.
    UniqueInPreciseChainOnly,
    /// A removed node is freed without a grace period.
    NodeFreedAtOnce,
    /// A resize waits for readers while it holds its lock.
    WaitsWithLock,
    /// Updates do not take part in a resize.
    UpdatesDoNotHelp,
    /// A walk shows whatever is in a chain.
    WalkShowsForeignNodes,
    /// A walk that is led to the beginning of a chain again shows it again.
    WalkGoesRound,
    /// In DDDS, a lookup does not repeat when a node was moved.
    NoRetry,
    /// In DDDS, nodes are moved while lookups may not know of the resize yet.
    NotAnnounced,
}

/// What a test has planted in a table. Empty without tests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Planted {
    #[cfg(test)]
    pub(super) mistake: Option<Mistake>,
    /// What is freed is only marked, so that later uses are noticed.
    #[cfg(test)]
    pub(super) keep_freed: bool,
}

impl Planted {
    /// Returns what the calling thread's test plants in the tables that it creates.
    pub(super) fn current() -> Self {
        #[cfg(test)]
        return super::tests::hook::planted();
        #[cfg(not(test))]
        Planted::default()
    }

    /// Returns `true` if the table makes this mistake.
    #[inline(always)]
    pub(super) fn has(self, mistake: Mistake) -> bool {
        #[cfg(test)]
        return self.mistake == Some(mistake);
        #[cfg(not(test))]
        {
            let _ = mistake;
            false
        }
    }

    /// Returns `true` if what is freed is only marked.
    #[inline(always)]
    pub(super) fn keeps(self) -> bool {
        #[cfg(test)]
        return self.keep_freed;
        #[cfg(not(test))]
        false
    }
}

/// Marks what was freed, in tests that [keep](Planted::keeps) it. Empty without tests.
#[derive(Default)]
pub(super) struct Kept {
    #[cfg(test)]
    freed: AtomicBool,
}

impl Kept {
    #[inline(always)]
    pub(super) fn mark_freed(&self) {
        #[cfg(test)]
        assert!(!self.freed.swap(true, SeqCst), "freed twice");
    }

    #[inline(always)]
    pub(super) fn assert_alive(&self, what: &str) {
        #[cfg(test)]
        assert!(!self.freed.load(SeqCst), "use of a freed {what}");
        #[cfg(not(test))]
        let _ = what;
    }
}

/// Before a load of a shared word.
#[inline(always)]
pub(super) fn load_step() {
    #[cfg(test)]
    super::tests::hook::step(evermap_pm::sim::schedule::Progress::Load);
}

/// After a store to a shared word.
#[inline(always)]
pub(super) fn store_step() {
    #[cfg(test)]
    super::tests::hook::step(evermap_pm::sim::schedule::Progress::Transient);
}
