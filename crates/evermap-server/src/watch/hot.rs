//! The keys that are used most, by sampling.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The mean number of accesses from one sample to the next.
pub const SAMPLING: u64 = 64;
/// The time in seconds for which keys are sampled after the last request for them.
pub(super) const LEASE: u64 = 60;
/// The number of keys that one worker tracks.
const TRACKED_MAX: usize = 128;
/// The number of samples after which all counts are halved, so that keys that are no longer hot
/// are forgotten.
const WINDOW: u64 = 1 << 14;

/// The hot keys of one worker: at most [`TRACKED_MAX`] keys.
///
/// The lock is the worker's own. Another thread takes it only to read the keys.
#[derive(Default)]
pub(super) struct HotKeys(Mutex<Sampler>);

#[derive(Default)]
struct Sampler {
    /// The number of accesses that are passed over before the next sample.
    skip: u64,
    random: u64,
    /// The number of samples that the counts stem from.
    samples: u64,
    /// The tracked keys. A key that is sampled more often than `samples / TRACKED_MAX` is among
    /// them, because it replaces the one with the lowest count and inherits that count (the
    /// algorithm Space-Saving).
    counts: HashMap<Box<[u8]>, u64>,
}

impl HotKeys {
    /// Offers an access to a key. Most are passed over.
    pub(super) fn offer(&self, key: &[u8]) {
        let mut sampler = self.lock();
        match sampler.skip.checked_sub(1) {
            Some(skip) => sampler.skip = skip,
            None => sampler.sample(key),
        }
    }

    /// Forgets all keys.
    pub(super) fn reset(&self) {
        *self.lock() = Sampler::default();
    }

    /// Adds the counts to `totals`, and returns the number of samples.
    pub(super) fn add_to(&self, totals: &mut HashMap<Box<[u8]>, u64>) -> u64 {
        let sampler = self.lock();
        for (key, count) in &sampler.counts {
            *totals.entry(key.clone()).or_default() += count;
        }
        sampler.samples
    }

    fn lock(&self) -> MutexGuard<'_, Sampler> {
        // No code that can panic runs between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sampler {
    fn sample(&mut self, key: &[u8]) {
        self.skip = self.next_skip();
        if self.samples >= WINDOW {
            self.samples /= 2;
            self.counts.retain(|_, count| {
                *count /= 2;
                *count > 0
            });
        }
        self.samples += 1;
        if let Some(count) = self.counts.get_mut(key) {
            *count += 1;
            return;
        }
        let mut count = 0;
        if self.counts.len() >= TRACKED_MAX
            && let Some((rarest, lowest)) = self.counts.iter().min_by_key(|(_, count)| **count)
        {
            let rarest = rarest.clone();
            count = *lowest;
            self.counts.remove(&rarest);
        }
        self.counts.insert(key.into(), count + 1);
    }

    /// Returns a random number of accesses, so that no regular pattern of keys always meets or
    /// always misses the samples.
    fn next_skip(&mut self) -> u64 {
        // The generator SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % (2 * SAMPLING - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(keys: &HotKeys) -> (u64, HashMap<Box<[u8]>, u64>) {
        let mut totals = HashMap::new();
        (keys.add_to(&mut totals), totals)
    }

    #[test]
    fn a_hot_key_is_found_among_many_and_forgotten_later() {
        let keys = HotKeys::default();
        let accesses = 64 * SAMPLING * TRACKED_MAX as u64;
        for i in 0..accesses {
            // One access of four has the same key, in step with the mean of the sampling.
            let key = if i % 4 == 0 { 0 } else { i };
            keys.offer(&key.to_le_bytes());
        }
        let (samples, totals) = counts(&keys);
        let expected = accesses / SAMPLING;
        assert!((expected * 9 / 10..=expected * 11 / 10).contains(&samples), "{samples}");
        assert!(totals.len() <= TRACKED_MAX);
        let hot = totals[&0u64.to_le_bytes()[..]];
        assert!((samples / 5..=samples * 3 / 10).contains(&hot), "{hot} of {samples}");
        assert!(totals.values().all(|&count| count <= hot));

        for i in 1..=SAMPLING * WINDOW * 8 {
            keys.offer(&(i % 16 + 1_000_000).to_le_bytes());
        }
        let (samples, totals) = counts(&keys);
        assert!(samples <= WINDOW && !totals.contains_key(&0u64.to_le_bytes()[..]), "{totals:?}");
        keys.reset();
        assert_eq!(counts(&keys), (0, HashMap::new()));
    }
}
