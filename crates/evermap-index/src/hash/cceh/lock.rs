//! The lock of a segment.
//!
//! One word serves three purposes: writers exclude each other by it, readers either share it or
//! only compare its version, and a stamp tells whether the segment was recovered since the region
//! was opened. It is never flushed. A crash may leave it in any state; the stamp is then of an
//! earlier opener, which makes it count as nothing.

use evermap_pm::Medium;

use super::layout::Header;
use crate::hash::segmented::SegmentHeader;

/// The lock word of a segment.
///
/// ```text
/// bit  0..16  generation   low bits of the opener that wrote it; any other means "recover first"
/// bit 16..31  readers      that share the lock, where readers lock at all
/// bit 31      locked       by a writer, which may still be waiting for the readers to leave
/// bit 32..64  version      counts the writers' changes
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lock(pub(super) u64);

impl Lock {
    const READER: u64 = 1 << 16;
    const READERS: u64 = 0x7fff << 16;
    const LOCKED: u64 = 1 << 31;
    const ONE: u64 = 1 << 32;

    /// Free, at version 0.
    pub(super) fn fresh(generation: u64) -> Self {
        Lock(generation & 0xffff)
    }

    /// Returns whether the opener `generation` wrote it.
    #[inline(always)]
    pub(super) fn is_of(self, generation: u64) -> bool {
        self.0 as u16 == generation as u16
    }

    /// Returns whether the opener `generation` wrote it, and no writer holds it.
    #[inline(always)]
    pub(super) fn is_readable(self, generation: u64) -> bool {
        (self.0 ^ generation & 0xffff) & (Self::LOCKED | 0xffff) == 0
    }

    /// Returns whether readers share it.
    #[inline(always)]
    pub(super) fn has_readers(self) -> bool {
        self.0 & Self::READERS != 0
    }

    /// Returns the same word, held by a writer.
    #[inline(always)]
    pub(super) fn locked(self) -> Self {
        Lock(self.0 | Self::LOCKED)
    }

    /// Returns a free word with nothing changed.
    #[inline(always)]
    pub(super) fn released(self) -> Self {
        Lock(self.0 & !(Self::LOCKED | Self::READERS))
    }

    /// Returns a free word, a version later.
    #[inline(always)]
    pub(super) fn advanced(self) -> Self {
        // The version is at the top: its carry falls off the end of the word.
        Lock(self.released().0.wrapping_add(Self::ONE))
    }

    /// With one reader more, if it can count them.
    fn entered(self) -> Option<Self> {
        (self.0 & Self::READERS != Self::READERS).then(|| Lock(self.0 + Self::READER))
    }
}

/// What an attempt to take a lock found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Taking {
    /// Taken, when the word was this.
    Taken(Lock),
    /// Another thread holds it.
    Busy,
    /// The segment was not recovered since the region was opened, or there is none.
    Stale,
}

/// Tries to take the lock for writing. Readers may still be there; no more will come.
#[inline(always)]
pub(super) fn try_exclusive<M: Medium>(m: &M, header: &Header, generation: u64) -> Taking {
    take(m, header, generation, |word| Some(word.locked()))
}

/// Tries to take the lock for reading.
#[inline(always)]
pub(super) fn try_shared<M: Medium>(m: &M, header: &Header, generation: u64) -> Taking {
    take(m, header, generation, Lock::entered)
}

#[inline(always)]
fn take<M: Medium>(
    m: &M,
    header: &Header,
    generation: u64,
    taken: impl Fn(Lock) -> Option<Lock>,
) -> Taking {
    let word = Lock(m.load(&header.lock));
    // Where damage leads to something else than a segment, nothing must be changed.
    if !word.is_of(generation) || m.load_relaxed(&header.magic) != Header::MAGIC {
        return Taking::Stale;
    }
    let next = taken(word).filter(|_| word.is_readable(generation));
    match next.map(|next| m.cas_transient(&header.lock, word.0, next.0)) {
        Some(Ok(_)) => Taking::Taken(word),
        _ => Taking::Busy,
    }
}

/// Gives back what [`try_shared`] took.
pub(super) fn leave<M: Medium>(m: &M, header: &Header) {
    // No thread resets the count while this one is in it.
    change(m, header, |word| Lock(word.0.wrapping_sub(Lock::READER)));
}

/// Gives back what [`try_exclusive`] took, before the readers have left.
pub(super) fn give_up<M: Medium>(m: &M, header: &Header) {
    change(m, header, |word| Lock(word.0 & !Lock::LOCKED));
}

fn change<M: Medium>(m: &M, header: &Header, changed: impl Fn(Lock) -> Lock) {
    let mut word = m.load(&header.lock);
    // Each failure is the success of a reader that came or left, or of a writer that announced
    // itself.
    while let Err(now) = m.cas_transient(&header.lock, word, changed(Lock(word)).0) {
        word = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_touch_each_other() {
        let fresh = Lock::fresh(0xffff_1234);
        assert!(fresh.is_of(0x1234) && fresh.is_readable(0x1234) && !fresh.is_readable(0x1235));
        let mut shared = fresh;
        for _ in 0..0x7fff {
            shared = shared.entered().unwrap();
            assert!(shared.has_readers() && shared.is_readable(0x1234));
        }
        assert_eq!(shared.entered(), None, "one reader more would be taken for a writer");
        assert!(!shared.locked().is_readable(0x1234) && shared.locked().is_of(0x1234));
        assert_eq!(shared.locked().released(), fresh);
        assert_eq!(fresh.locked().advanced().0, fresh.0 + (1 << 32));
        let last = Lock(fresh.0 | 0xffff_ffff << 32);
        assert_eq!(last.locked().advanced(), fresh, "the version wraps and leaves the rest alone");
    }
}
