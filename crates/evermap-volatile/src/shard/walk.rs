//! Walking a shard while it is changed and its table replaced, in an order of hashes that suits
//! insertions into another map: see `order.rs`.

use std::hash::{BuildHasher, Hash};

use evermap_pm::Guard;

use super::{CHAIN_MAX, Entry, Shard};
use crate::bucket::Bucket;
use crate::hashing::Hashing;
#[cfg(test)]
use crate::mistakes::Mistake;
use crate::order::Position;
use crate::table::Table;

/// A position in this order.
pub(crate) struct Cursor<'g> {
    /// The table in whose order the entries are shown.
    table: Table<'g>,
    /// Where the walk continues, or `None` after the last bucket.
    next: Option<Position>,
}

impl<K, V> Shard<K, V> {
    /// Returns a cursor before the first entry.
    pub(crate) fn cursor<'g, S>(&'g self, hashing: &Hashing<S>, guard: &'g Guard<'_>) -> Cursor<'g>
    where
        K: Hash,
        S: BuildHasher,
    {
        loop {
            let table = self.table(guard);
            // If the table is being seeded anew, its entries are in two orders. If that begins
            // later, old buckets are still as they were when they were forwarded.
            match table.next() {
                Some(next) if next.seed() != table.seed() => self.finish(hashing, guard),
                _ => return Cursor { table, next: Some(Position::first(table.bits())) },
            }
        }
    }

    /// Adds the entries of the bucket after the cursor to `shown`, and advances the cursor. Returns
    /// `false` after the last bucket.
    pub(crate) fn show<'g, S>(
        &'g self,
        cursor: &mut Cursor<'g>,
        shown: &mut Vec<&'g Entry<K, V>>,
        hashing: &Hashing<S>,
        guard: &'g Guard<'_>,
    ) -> bool
    where
        K: Hash + Eq,
        S: BuildHasher,
    {
        let Some(position) = cursor.next else { return false };
        let hashes = position.hashes();
        let from = *hashes.start();
        let seed = cursor.table.seed();
        let table = self.table(guard);
        if table.seed() == seed {
            cursor.table = table;
        }
        let mut table = cursor.table;
        while self.follows_forwarded_buckets() && table.bucket(from).load().is_forwarded() {
            match table.next().filter(|next| next.seed() == seed || self.walks_in_two_orders()) {
                Some(next) => table = next,
                // The bucket is as it was when it was moved into another order, which was not
                // before the cursor was created.
                None => break,
            }
        }
        let index = table.index(from);
        self.show_chain(table.bucket(from), shown, guard);
        let (least, next) = (table.least_hash(index), table.least_hash(index + 1));
        let ends_within = next.map_or(*hashes.end() == u64::MAX, |next| next - 1 <= *hashes.end());
        if (least != Some(from) || !ends_within) && self.follows_the_cursor() {
            // The bucket is larger than one was before. Its other entries were shown, or will be,
            // at other positions.
            shown.retain(|entry| hashes.contains(&hashing.place_of(&entry.key, seed).prefix()));
        }
        cursor.next = position.after(next);
        if let Some(next) = cursor.next {
            table.prefetch(*next.hashes().start());
        }
        true
    }

    /// Returns `true` unless the mistake is planted of showing forwarded buckets.
    fn follows_forwarded_buckets(&self) -> bool {
        #[cfg(test)]
        return !self.errs(Mistake::ShowsForwardedBuckets);
        #[cfg(not(test))]
        true
    }

    /// Returns `true` unless the mistake is planted of showing whole buckets.
    fn follows_the_cursor(&self) -> bool {
        #[cfg(test)]
        return !self.errs(Mistake::ShowsBucketsFromTheirBeginning);
        #[cfg(not(test))]
        true
    }

    /// Returns `true` if the mistake is planted of mixing two orders in a walk.
    fn walks_in_two_orders(&self) -> bool {
        #[cfg(test)]
        return self.errs(Mistake::WalksInTwoOrders);
        #[cfg(not(test))]
        false
    }

    /// Adds the entries of a chain to `shown`, each key once.
    fn show_chain<'g>(
        &'g self,
        first: &'g Bucket,
        shown: &mut Vec<&'g Entry<K, V>>,
        guard: &'g Guard<'_>,
    ) where
        K: Eq,
    {
        let before = shown.len();
        let mut tags = [0; CHAIN_MAX];
        let mut bucket = first;
        loop {
            let words = bucket.load();
            for slot in words.used() {
                let Some(id) = bucket.reference(slot) else { continue };
                let (entry, tag) = (self.entry(id, guard), words.tag(slot));
                // A key that was removed and added meanwhile may be in two slots.
                let others = tags.iter().zip(&shown[before..]);
                let equals = |(other, entry_shown): (&u8, &&Entry<K, V>)| {
                    *other == tag && entry_shown.key == entry.key
                };
                if !others.into_iter().any(equals) {
                    if let Some(place) = tags.get_mut(shown.len() - before) {
                        *place = tag;
                    }
                    shown.push(entry);
                }
            }
            match words.overflow() {
                Some(id) => bucket = self.overflow_bucket(id, guard),
                None => return,
            }
        }
    }
}
