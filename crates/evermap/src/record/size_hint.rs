//! The usual length of records: how much of a record is worth prefetching before its length is
//! known.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use evermap_pm::medium::LINE;

/// Samples one write in this number: recording all would make the cache line bounce between writers
/// and readers.
const SAMPLE_RATE: u64 = 64;
/// The maximum: in a longer record, the hardware prefetcher recognizes the sequential access.
const MAX: u64 = 6 * LINE;
/// A record of this length is prefetched together with its key.
const SHORT: u64 = 2 * LINE;

/// The length of a record that was sampled recently, bytes; 0 until one was.
#[derive(Default)]
pub(crate) struct RecordSizeHint(AtomicU32);

impl RecordSizeHint {
    /// Samples the length of a record that is written; `cas` is its CAS id.
    #[inline]
    pub(crate) fn written(&self, cas: u64, bytes: u64) {
        if cas.is_multiple_of(SAMPLE_RATE) {
            self.set(bytes);
        }
    }

    /// Samples the length of a record that is read, if none was sampled yet.
    #[inline]
    pub(crate) fn read(&self, bytes: u64) {
        if self.0.load(Relaxed) == 0 {
            self.set(bytes);
        }
    }

    fn set(&self, bytes: u64) {
        // Relaxed: a hint.
        self.0.store(bytes.min(MAX) as u32, Relaxed);
    }

    /// Returns the number of bytes of the next record to prefetch.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.0.load(Relaxed)).max(LINE)
    }

    /// Returns the number of bytes to prefetch if that is more than what is prefetched with the
    /// key.
    #[inline]
    pub(crate) fn long(&self) -> Option<u64> {
        Some(self.bytes()).filter(|&bytes| bytes > SHORT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_sample_counts() {
        let hint = RecordSizeHint::default();
        assert_eq!((hint.bytes(), hint.long()), (64, None));
        hint.read(300);
        hint.read(200);
        assert_eq!((hint.bytes(), hint.long()), (300, Some(300)));
        hint.written(1, 100);
        assert_eq!(hint.bytes(), 300);
        hint.written(SAMPLE_RATE, 100);
        assert_eq!((hint.bytes(), hint.long()), (100, None));
        hint.written(0, 1 << 20);
        assert_eq!(hint.bytes(), MAX);
    }
}
