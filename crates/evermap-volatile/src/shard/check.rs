//! Checks of the structure, for tests.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

use super::*;

impl<K: Hash + Eq, V> Shard<K, V> {
    /// Describes each violated invariant. Nobody else uses the shard.
    pub(crate) fn check<S: BuildHasher>(
        &self,
        hashing: &Hashing<S>,
        guard: &Guard<'_>,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        let (mut found, mut overflow): (Vec<Id>, usize) = (Vec::new(), 0);
        let state = self.lock();
        let mut table = Some(self.table(guard));
        while let Some(current) = table {
            for index in 0..current.buckets() {
                let bucket = current.bucket_at(index);
                let moved = current.next().is_some() && index < state.moved;
                if bucket.load().is_forwarded() != moved {
                    wrong.push(format!("bucket {index}: forwarded is not {moved}"));
                }
                if moved {
                    continue;
                }
                overflow += self.chain(bucket, guard).count() - 1;
                for (tag, split, id) in self.slots(bucket, guard) {
                    let place = hashing.place_of(&self.entry(id, guard).key, current.seed());
                    let due = (current.index(place.prefix()), place.tag());
                    if due != (index, tag) || place.split(current.bits()) != split {
                        wrong.push(format!("{id:?} is in bucket {index} with {tag} and {split}"));
                    }
                    found.push(id);
                }
            }
            table = current.next();
        }
        let mut keys = HashMap::new();
        for &id in &found {
            if let Some(other) = keys.insert(&self.entry(id, guard).key, id) {
                wrong.push(format!("{id:?} and {other:?} have the same key"));
            }
        }
        let counts = [
            ("entries", found.len(), self.len()),
            ("places", state.entries.used(), self.len() + state.garbage.entries_waiting()),
            (
                "overflow buckets",
                state.overflow.used(),
                overflow + state.garbage.overflow_waiting(),
            ),
        ];
        let unequal = counts.iter().filter(|(_, is, should)| is != should);
        wrong.extend(unequal.map(|(what, is, should)| format!("{is} {what}, not {should}")));
        wrong
    }

    /// Returns the largest number of entries in a chain of the current table.
    pub(crate) fn longest_chain(&self, guard: &Guard<'_>) -> usize {
        let table = self.table(guard);
        let length = |index| self.slots(table.bucket_at(index), guard).count();
        (0..table.buckets()).map(length).max().unwrap_or(0)
    }

    fn chain<'g>(
        &'g self,
        first: &'g Bucket,
        guard: &'g Guard<'_>,
    ) -> impl Iterator<Item = &'g Bucket> {
        std::iter::successors(Some(first), move |bucket| {
            Some(self.overflow_bucket(bucket.load().overflow()?, guard))
        })
    }

    fn slots<'g>(
        &'g self,
        first: &'g Bucket,
        guard: &'g Guard<'_>,
    ) -> impl Iterator<Item = (u8, u32, Id)> {
        self.chain(first, guard).flat_map(|bucket| {
            let words = bucket.load();
            words.used().map(move |slot| {
                (words.tag(slot), bucket.split(slot), bucket.reference(slot).expect("used"))
            })
        })
    }
}
