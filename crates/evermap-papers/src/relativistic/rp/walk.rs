//! Walks over all pairs.

use std::hash::BuildHasher;

use evermap_index::hash::walk_order::Position;
use evermap_pm::Guard;

use super::super::node::NodeRef;
use super::super::steps::Mistake;
use super::super::{Order, Shared, SplitOrder, TableKey};
use super::Rp;

impl<K, V, S, O> Rp<K, V, S, O>
where
    K: TableKey,
    V: Shared,
    S: BuildHasher + Send + Sync,
    O: Order,
{
    pub(super) fn walk(&self, guard: &Guard<'_>, each: &mut dyn FnMut(&K, &V) -> bool) {
        if O::SORTED {
            let mut from = Some(self.first_position(guard));
            let mut goes_on = true;
            while let Some(position) = from.filter(|_| goes_on) {
                from = self.walk_bucket(position, guard, &mut |key, value| {
                    goes_on = goes_on && each(key, value);
                    goes_on
                });
            }
        } else {
            self.walk_chains(guard, each);
        }
    }

    /// Shows the pairs of all chains, where each bucket's chain shows only what belongs to it.
    fn walk_chains(&self, guard: &Guard<'_>, each: &mut dyn FnMut(&K, &V) -> bool) {
        // The walk is a reader of each chain in turn, of one array and with one mask, which are
        // there as long as the guard is. Each chain leads it to all pairs of the bucket, and a pair
        // belongs to one bucket. What is inserted comes before what the walk has passed.
        //
        // But an upper chain may lead into the end of the lower one, which the last step of
        // unzipping cuts off, and a shrink that follows at once links to the beginning of the upper
        // one: it does not wait for readers. So what comes behind a node of another bucket may have
        // been shown already.
        let planted = self.base.planted;
        let all = planted.has(Mistake::WalkShowsForeignNodes);
        let heads = self.heads(guard);
        let mask = heads.mask();
        let mut shown: Vec<NodeRef<'_, K, V>> = Vec::new();
        for bucket in 0..=mask {
            let mut next = heads.head(bucket).follow(guard);
            let mut strayed = false;
            shown.clear();
            while let Some(node) = next {
                if all || O::place(node.place) & mask == bucket {
                    let same = |other: &NodeRef<'_, K, V>| {
                        other.place == node.place && other.key == node.key
                    };
                    if !strayed || !shown.iter().any(same) {
                        shown.push(node);
                        if !each(&node.key, &node.value) {
                            return;
                        }
                    }
                } else {
                    strayed = !planted.has(Mistake::WalkGoesRound);
                }
                next = node.next.follow(guard);
            }
        }
    }

    fn first_position(&self, guard: &Guard<'_>) -> Position {
        Position::first(self.heads(guard).mask().count_ones(), 0)
    }

    /// Shows the pairs of the bucket at a position, from there on, in the order of their places.
    /// Returns the position of the next bucket.
    ///
    /// The state of a walk between two buckets is a position among the places, which means the same
    /// however the table is resized. A pair keeps its place, so it is shown once.
    fn walk_bucket(
        &self,
        position: Position,
        guard: &Guard<'_>,
        each: &mut dyn FnMut(&K, &V) -> bool,
    ) -> Option<Position> {
        let (place, last) = position.ranks().into_inner();
        let heads = self.heads(guard);
        let mask = heads.mask();
        // A bucket has the places that share its first bits.
        let end = place | u64::MAX.checked_shr(mask.count_ones()).unwrap_or(0);
        let mut next = heads.head(O::place(place) & mask).follow(guard);
        while let Some(node) = next.filter(|node| node.place <= end.min(last)) {
            if node.place >= place && !each(&node.key, &node.value) {
                return None;
            }
            next = node.next.follow(guard);
        }
        position.after(end.checked_add(1))
    }
}

impl<K, V, S> Rp<K, V, S, SplitOrder>
where
    K: TableKey,
    V: Shared,
    S: BuildHasher + Send + Sync,
{
    /// Shows the pairs of one bucket from the position `from` on. Returns the position where the
    /// next bucket begins, or `None` after the last one. The order of the buckets suits insertions
    /// into another table.
    ///
    /// A loop that begins with 0 shows what [`for_each`](super::ResizableTable::for_each) shows,
    /// but needs a guard for one bucket at a time only. A position stays valid for any time and
    /// however the table is resized.
    ///
    /// # Panics
    /// If the guard is one of another domain.
    pub fn scan(&self, from: u64, guard: &Guard<'_>, each: &mut dyn FnMut(&K, &V)) -> Option<u64> {
        self.base.check(guard);
        let position = Position::decode(from, 0).unwrap_or_else(|| self.first_position(guard));
        let next = self.walk_bucket(position, guard, &mut |key, value| {
            each(key, value);
            true
        });
        next.map(Position::encode)
    }
}

#[cfg(test)]
impl<K: Shared, V: Shared, S, O: Order> Rp<K, V, S, O> {
    /// Calls `each` with the place and the key of every node in a chain, whatever bucket it belongs
    /// to.
    pub(in super::super) fn each_in_chain(
        &self,
        bucket: u64,
        guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, &K),
    ) {
        let mut next = self.heads(guard).head(bucket).follow(guard);
        while let Some(node) = next {
            each(node.place, &node.key);
            next = node.next.follow(guard);
        }
    }
}
