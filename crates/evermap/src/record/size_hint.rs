//! How long records usually are: how much of one is worth fetching before anybody knows how long it is.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use evermap_pm::medium::LINE;

/// Of so many records that are written, one is noted: whoever notes all would have readers wait for the line.
const ONE_IN: u64 = 64;
/// Longer than this, the processor sees by itself that a record is read from one end to the other.
const MOST: u64 = 6 * LINE;
/// A record of so many bytes comes with its key.
const SHORT: u64 = 2 * LINE;

/// Bytes of a record that was noted lately; 0 as long as none was.
#[derive(Default)]
pub(crate) struct RecordSizeHint(AtomicU32);

impl RecordSizeHint {
    /// A record of so many bytes was written; `cas` is its CAS id.
    #[inline]
    pub(crate) fn written(&self, cas: u64, bytes: u64) {
        if cas.is_multiple_of(ONE_IN) {
            self.note(bytes);
        }
    }

    /// A record of so many bytes was read.
    #[inline]
    pub(crate) fn read(&self, bytes: u64) {
        if self.0.load(Relaxed) == 0 {
            self.note(bytes);
        }
    }

    fn note(&self, bytes: u64) {
        // Relaxed: a hint.
        self.0.store(bytes.min(MOST) as u32, Relaxed);
    }

    /// How much of the next record to fetch.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.0.load(Relaxed)).max(LINE)
    }

    /// The same, if that is more than what comes with its key.
    #[inline]
    pub(crate) fn long(&self) -> Option<u64> {
        Some(self.bytes()).filter(|&bytes| bytes > SHORT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_last_is_usual() {
        let usual = RecordSizeHint::default();
        assert_eq!((usual.bytes(), usual.long()), (64, None));
        usual.read(300);
        usual.read(200);
        assert_eq!((usual.bytes(), usual.long()), (300, Some(300)));
        usual.written(1, 100);
        assert_eq!(usual.bytes(), 300);
        usual.written(ONE_IN, 100);
        assert_eq!((usual.bytes(), usual.long()), (100, None));
        usual.written(0, 1 << 20);
        assert_eq!(usual.bytes(), MOST);
    }
}
