//! A home bucket and those behind it: where a pair can be, and where a new one goes.
//!
//! A pair is in its home bucket, or in one of the chain behind it, and stays in its bucket for as long as it lives.
//! So a reader that goes along the chain, and finds each bucket in order by itself, misses no pair that was there
//! all the time. New buckets come in right behind the home bucket: links lead from younger buckets to older ones,
//! also those of buckets that were taken out.

use evermap_pm::{Error, Guard, Medium, Result};

use super::Clht;
use super::bucket::{Held, Locking, View, find, recover, try_lock, view};
use super::layout::{BUCKET_BYTES, Bucket, Control, Link, Places, Table, free_place};
use crate::Key;
use crate::hash::lock_wait::LockWait;
use crate::hash::probe::Probe;

/// Where a pair sits.
pub(super) struct Place<'a> {
    pub(super) bucket: &'a Bucket,
    pub(super) place: usize,
    pub(super) word: u64,
    /// The bucket before it in the chain; none for the home bucket.
    pub(super) before: Option<&'a Bucket>,
}

/// What a search of a chain that the caller holds found.
pub(super) enum Search<'a> {
    Present(Place<'a>),
    /// Not there; and where there is room for it, if anywhere.
    Absent(Option<(&'a Bucket, usize)>),
}

impl<K: Key, M: Medium> Clht<K, M> {
    /// The home bucket with this number.
    #[inline(always)]
    pub(super) fn home(&self, table: Table, number: u64) -> Result<&Bucket> {
        self.bucket(table.home(number))
    }

    /// The bucket at `offset`.
    ///
    /// # Errors
    /// `Damaged` if there cannot be one.
    #[inline(always)]
    pub(super) fn bucket(&self, offset: u64) -> Result<&Bucket> {
        match self.medium().at(offset) {
            Some(bucket) => Ok(bucket),
            None => Err(outside(offset)),
        }
    }

    /// Looks for a key without a lock or a store.
    #[inline(always)]
    pub(super) fn lookup(&self, probe: &Probe<'_, K>) -> Result<Option<u64>> {
        let m = self.medium();
        // No need to look at the table again afterwards: one that is being replaced is complete until the new one
        // takes its place, and does not change any more then. What it says was true when we began, or later.
        let table = self.table();
        let home = self.home(table, table.home_of(probe.hash))?;
        match view(m, home, probe, self.generation) {
            View::Found(word) => Ok(Some(word)),
            View::Absent(link) if link.is_last() => Ok(None),
            seen => self.lookup_further(home, seen, probe),
        }
    }

    /// Goes on where a look at the home bucket did not suffice.
    fn lookup_further<'a>(
        &'a self,
        home: &'a Bucket,
        seen: View,
        probe: &Probe<'_, K>,
    ) -> Result<Option<u64>> {
        let m = self.medium();
        let (mut bucket, mut seen) = (home, seen);
        let mut patience = LockWait::default();
        let mut circle = Circle::default();
        loop {
            match seen {
                View::Found(word) => return Ok(Some(word)),
                View::Absent(link) if link.is_last() => return Ok(None),
                View::Absent(link) => {
                    let next = link.next()?;
                    circle.pass(next)?;
                    bucket = self.bucket(next)?;
                }
                // Some writer has got something done in the meantime, so this does not go on for ever.
                View::Again => {}
                View::Overwritten => patience.wait_at(&self.region, m.offset_of(bucket))?,
                View::Stale => self.recover(bucket),
            }
            seen = view(m, bucket, probe, self.generation);
        }
    }

    /// Recovers a bucket that an earlier opener left.
    #[cold]
    pub(super) fn recover(&self, bucket: &Bucket) {
        if recover(self.medium(), bucket, self.generation) {
            self.count_recovered();
        }
    }

    /// Locks the chain of a hash, in the table that is current. Takes part in replacing the table if that is under
    /// way.
    #[inline(always)]
    pub(super) fn lock(&self, hash: u64, guard: &Guard<'_>) -> Result<Held<'_, M>> {
        let table = self.table();
        let home = self.home(table, table.home_of(hash))?;
        // The table cannot have been replaced since: its home buckets stay frozen for ever.
        match try_lock(self.medium(), home, self.generation) {
            Locking::Held(held) => Ok(held),
            _ => self.lock_again(hash, guard),
        }
    }

    #[cold]
    fn lock_again(&self, hash: u64, guard: &Guard<'_>) -> Result<Held<'_, M>> {
        let mut patience = LockWait::default();
        loop {
            let table = self.table();
            let offset = table.home(table.home_of(hash));
            let home = self.bucket(offset)?;
            match try_lock(self.medium(), home, self.generation) {
                Locking::Held(held) => return Ok(held),
                Locking::Stale => self.recover(home),
                Locking::Busy => patience.wait_at(&self.region, offset)?,
                Locking::Frozen => {
                    self.help(guard)?;
                    patience.wait_at(&self.region, offset)?;
                }
            }
        }
    }

    /// Looks for a key in a chain that the caller holds.
    #[inline(always)]
    pub(super) fn search<'a>(
        &'a self,
        held: &Held<'a, M>,
        probe: &Probe<'_, K>,
    ) -> Result<Search<'a>> {
        let (m, bucket) = (self.medium(), held.home);
        let link = Link(m.load_relaxed(&bucket.link));
        let taken = link.taken();
        if let Some((place, word)) = find(m, bucket, taken, probe) {
            return Ok(Search::Present(Place { bucket, place, word, before: None }));
        }
        let room = room(bucket, taken);
        if link.is_last() {
            Ok(Search::Absent(room))
        } else {
            self.search_further(bucket, room, probe)
        }
    }

    /// The same behind the home bucket.
    fn search_further<'a>(
        &'a self,
        home: &'a Bucket,
        mut room_found: Option<(&'a Bucket, usize)>,
        probe: &Probe<'_, K>,
    ) -> Result<Search<'a>> {
        let m = self.medium();
        let mut before = home;
        for bucket in self.behind(home) {
            let bucket = bucket?;
            let taken = Link(m.load_relaxed(&bucket.link)).taken();
            if let Some((place, word)) = find(m, bucket, taken, probe) {
                return Ok(Search::Present(Place { bucket, place, word, before: Some(before) }));
            }
            room_found = room_found.or_else(|| room(bucket, taken));
            before = bucket;
        }
        Ok(Search::Absent(room_found))
    }

    /// The buckets behind a home bucket, recovered, in a chain that nobody changes.
    pub(super) fn behind<'a>(
        &'a self,
        home: &'a Bucket,
    ) -> impl Iterator<Item = Result<&'a Bucket>> + 'a {
        let m = self.medium();
        let mut link = Link(m.load(&home.link));
        let mut circle = Circle::default();
        std::iter::from_fn(move || {
            if link.is_last() {
                return None;
            }
            let next = link.next().and_then(|next| {
                circle.pass(next)?;
                let bucket = self.bucket(next)?;
                if !Control(m.load(&bucket.control)).is_of(self.generation) {
                    self.recover(bucket);
                }
                Ok(bucket)
            });
            // An error ends the chain.
            link = next.as_ref().map_or(Link::default(), |bucket| Link(m.load(&bucket.link)));
            Some(next)
        })
    }

    /// Removes a pair, and its bucket if that is empty then and no home bucket.
    pub(super) fn remove_at(&self, held: &mut Held<'_, M>, place: &Place<'_>, guard: &Guard<'_>) {
        let left = held.remove(place.bucket, place.place);
        if let Some(before) = place.before
            && left.taken() == 0
        {
            // A step of its own: a reader that does not come here any more must not miss what a crash could
            // bring back. A crash in between leaves an empty bucket, which the next pair fills.
            held.unlink(before, place.bucket);
            self.pool.retire(self.medium().offset_of(place.bucket), BUCKET_BYTES, guard);
        }
    }
}

/// A free place of a bucket.
#[inline(always)]
fn room(bucket: &Bucket, taken: Places) -> Option<(&Bucket, usize)> {
    free_place(taken).map(|place| (bucket, place))
}

/// Notices that a chain, which damage has bent into a circle, comes by again: after at most three rounds.
///
/// Brent's method (1980): the last step whose number is a power of two is remembered.
#[derive(Default)]
struct Circle {
    steps: u64,
    remembered: u64,
}

impl Circle {
    fn pass(&mut self, offset: u64) -> Result<()> {
        if offset == self.remembered {
            return Err(Error::damaged(offset, "a chain of buckets leads back to itself"));
        }
        self.steps += 1;
        if self.steps.is_power_of_two() {
            self.remembered = offset;
        }
        Ok(())
    }
}

#[cold]
fn outside(offset: u64) -> Error {
    Error::damaged(offset, "a bucket outside the region")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_are_noticed_and_chains_are_not() {
        let mut straight = Circle::default();
        assert!((1..10_000u64).all(|step| straight.pass(step * 64).is_ok()));
        for (stem, round) in [(0, 1), (0, 2), (1, 1), (5, 3), (100, 7), (3, 1000)] {
            let mut circle = Circle::default();
            let offset = |step: u64| {
                64 * (1 + if step < stem { step } else { stem + (step - stem) % round })
            };
            let noticed = (0..).position(|step| circle.pass(offset(step)).is_err()).unwrap() as u64;
            assert!(noticed <= 3 * (stem + round) + 1, "{stem} and {round}: {noticed}");
        }
    }
}
