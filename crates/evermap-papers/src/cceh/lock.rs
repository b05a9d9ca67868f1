//! The lock of a segment.
//!
//! One word serves three purposes: writers exclude each other by it; readers either share it or
//! only compare its version; and a generation stamp shows whether the segment was recovered since
//! the region was opened. The word is never flushed. After a crash it can have any value, but its
//! stamp is that of an earlier opener, so it is ignored.

use evermap_index::hash::segmented::SegmentHeader;
use evermap_pm::Medium;

use super::layout::Header;

/// The lock word of a segment.
///
/// ```text
/// bit  0..16  generation   low bits of the generation of the opener that wrote it: if they are
///                          not those of the current opener, the segment is stale
/// bit 16..31  readers      number of readers that share the lock (see `Locking::Pessimistic`)
/// bit 31      locked       by a writer, which may still be waiting until there are no readers
/// bit 32..64  version      counts the changes by writers
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lock(pub(super) u64);

impl Lock {
    const READER: u64 = 1 << 16;
    const READERS: u64 = 0x7fff << 16;
    const LOCKED: u64 = 1 << 31;
    const ONE: u64 = 1 << 32;

    /// Returns an unlocked word with version 0.
    pub(super) fn fresh(generation: u64) -> Self {
        Lock(generation & 0xffff)
    }

    /// Returns whether the opener with this generation wrote the word.
    #[inline(always)]
    pub(super) fn is_of(self, generation: u64) -> bool {
        self.0 as u16 == generation as u16
    }

    /// Returns whether the opener with this generation wrote the word, and no writer has locked it.
    #[inline(always)]
    pub(super) fn is_readable(self, generation: u64) -> bool {
        (self.0 ^ generation & 0xffff) & (Self::LOCKED | 0xffff) == 0
    }

    /// Returns whether readers share the lock.
    #[inline(always)]
    pub(super) fn has_readers(self) -> bool {
        self.0 & Self::READERS != 0
    }

    /// Returns the same word, locked by a writer.
    #[inline(always)]
    pub(super) fn locked(self) -> Self {
        Lock(self.0 | Self::LOCKED)
    }

    /// Returns the same word, unlocked and without readers, with the same version.
    #[inline(always)]
    pub(super) fn released(self) -> Self {
        Lock(self.0 & !(Self::LOCKED | Self::READERS))
    }

    /// Returns the same word, unlocked and without readers, with the next version.
    #[inline(always)]
    pub(super) fn advanced(self) -> Self {
        // The version is in the top bits, so its overflow changes no other field.
        Lock(self.released().0.wrapping_add(Self::ONE))
    }

    /// Returns the same word with one more reader. Returns `None` if the number of readers would
    /// overflow.
    fn entered(self) -> Option<Self> {
        (self.0 & Self::READERS != Self::READERS).then(|| Lock(self.0 + Self::READER))
    }
}

/// The outcome of an attempt to take a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Taking {
    /// The lock was taken. The word had this value before.
    Taken(Lock),
    /// Another thread holds the lock.
    Busy,
    /// The segment was not recovered since the region was opened, or there is no segment.
    Stale,
}

/// Tries to take the lock for writing. There may still be readers, but no further ones can enter.
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
    // If a damaged offset refers to data other than a segment, the data must not be changed.
    if !word.is_of(generation) || m.load_relaxed(&header.magic) != Header::MAGIC {
        return Taking::Stale;
    }
    let next = taken(word).filter(|_| word.is_readable(generation));
    match next.map(|next| m.cas_transient(&header.lock, word.0, next.0)) {
        Some(Ok(_)) => Taking::Taken(word),
        _ => Taking::Busy,
    }
}

/// Releases a lock that [`try_shared`] has taken.
pub(super) fn leave<M: Medium>(m: &M, header: &Header) {
    // No thread resets the number of readers while it includes this one.
    change(m, header, |word| Lock(word.0.wrapping_sub(Lock::READER)));
}

/// Releases a lock that [`try_exclusive`] has taken, while there may be readers.
pub(super) fn give_up<M: Medium>(m: &M, header: &Header) {
    change(m, header, |word| Lock(word.0 & !Lock::LOCKED));
}

fn change<M: Medium>(m: &M, header: &Header, changed: impl Fn(Lock) -> Lock) {
    let mut word = m.load(&header.lock);
    // Each failure means that another thread succeeded: a reader entered or left, or a writer took
    // or released the lock.
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
        assert_eq!(shared.entered(), None, "one more reader would set the lock bit");
        assert!(!shared.locked().is_readable(0x1234) && shared.locked().is_of(0x1234));
        assert_eq!(shared.locked().released(), fresh);
        assert_eq!(fresh.locked().advanced().0, fresh.0 + (1 << 32));
        let last = Lock(fresh.0 | 0xffff_ffff << 32);
        assert_eq!(
            last.locked().advanced(),
            fresh,
            "the version wraps without changing other fields"
        );
    }
}
