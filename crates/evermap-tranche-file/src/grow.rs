//! Growth: rounds in which every group is split, in portions of several groups.

use evermap_pm::{Error, Result};

use super::page::{Hash, Page, Record};
use super::write::Portion;
use super::{GROUP, TrancheFile};

/// A record on its way to another tranche.
struct Moved {
    hash: Hash,
    payload: Vec<u8>,
}

/// The fill below which chance does not fill a group.
const FULL_LEAST: f64 = 0.2;

impl<const T: usize> TrancheFile<T> {
    /// Returns how full the groups are that wait for their split in the current round, on average.
    /// Those that were split are half as full.
    pub(super) fn waiting_fill(&self) -> f64 {
        self.header.bytes as f64 / (self.groups().before() * Self::CAPACITY) as f64
    }

    /// Notes that the group of keys with this hash is full, so that it is split before anything
    /// else is written.
    ///
    /// # Errors
    /// `NoSpace` if the table is so empty that this is not by chance: then splits do not help.
    pub(super) fn note_full(&mut self, hash: Hash) -> Result<()> {
        // What other groups have got and what they are still to get: changes are written group
        // after group, so this one may have got all of its own.
        let bytes = self.header.bytes + self.changes.payloads();
        if (bytes as f64) < FULL_LEAST * (self.header.groups * Self::CAPACITY) as f64 {
            return Err(Error::no_space("a group of tranches", Self::CAPACITY));
        }
        self.pace.note_full(self.groups(), hash.first);
        Ok(())
    }

    /// Splits the next groups of the round, as many as a portion has room for. Each then is two.
    ///
    /// # Errors
    /// `NoSpace`, `Damaged`.
    pub(super) fn grow(&mut self) -> Result<()> {
        let end = 2 * self.groups().before();
        self.split((self.portion / (2 * GROUP)).min(end - self.header.groups))?;
        if self.header.groups == end {
            self.pace.end_round();
        }
        Ok(())
    }

    /// Splits this number of groups, the next ones of the round.
    fn split(&mut self, splits: u64) -> Result<()> {
        let (before, old) = (self.groups().before(), self.header.groups);
        let first = old - before;
        let places: Vec<u64> = (first * GROUP..(first + splits) * GROUP).collect();
        let loaded = self.load(&places)?;
        self.header.groups = old + splits;
        let result = self.extend().and_then(|()| self.distribute(loaded, first, splits, before));
        // It is the number in the file that counts until the portion is written.
        self.header.groups = old;
        let portion = result?;
        if let Some(written) = &mut self.written {
            written.resize(((old + splits) * GROUP) as usize, false);
        }
        self.counters.splits += splits;
        self.commit(portion)
    }

    /// Distributes the records of groups over these and as many new ones.
    fn distribute(
        &mut self,
        loaded: Portion<T>,
        first: u64,
        splits: u64,
        before: u64,
    ) -> Result<Portion<T>> {
        let mut portion = self.portion();
        for group in first..first + splits {
            let mut records = Vec::new();
            for place in group * GROUP..(group + 1) * GROUP {
                self.take_records(&loaded, place, &mut records)?;
            }
            let is_moved = |record: &Moved| self.groups().of(record.hash.first) != group;
            let (moved, kept): (Vec<_>, Vec<_>) = records.into_iter().partition(is_moved);
            for (group, records) in [(group, kept), (group + before, moved)] {
                for (tranche, page) in (0..).zip(self.compose(records)?) {
                    portion.put(group * GROUP + tranche, page);
                }
            }
        }
        self.recycle(loaded);
        Ok(portion)
    }

    /// Appends copies of the records of a tranche.
    fn take_records(
        &self,
        loaded: &Portion<T>,
        place: u64,
        records: &mut Vec<Moved>,
    ) -> Result<()> {
        let page = loaded.page(place);
        for at in 0..page.count() {
            let hash = match page.record(at)? {
                Record::Here { key, .. } => self.hash(key),
                Record::Elsewhere(elsewhere) => elsewhere.hash,
            };
            records.push(Moved { hash, payload: page.payload_bytes(at)?.to_vec() });
        }
        Ok(())
    }

    /// Returns the tranches of a group with these records.
    ///
    /// # Errors
    /// `NoSpace` if they do not fit: then nearly all records of a group were moved to one other,
    /// which hashes of an unknown seed do not do.
    fn compose(&mut self, mut records: Vec<Moved>) -> Result<Vec<Page<T>>> {
        // Small ones last: they fill the gaps.
        records.sort_by_key(|record| std::cmp::Reverse(record.payload.len()));
        let mut pages: Vec<Page<T>> = (0..GROUP).map(|_| Page::empty(self.buffer())).collect();
        for Moved { hash, payload } in records {
            let tranche = |step: u64| ((super::home(hash) + step) % GROUP) as usize;
            let room = (0..GROUP).find(|&step| pages[tranche(step)].has_room(payload.len(), None));
            let Some(room) = room else {
                return Err(Error::no_space("a group of tranches", payload.len() as u64));
            };
            (0..room).for_each(|step| pages[tranche(step)].passed(true));
            pages[tranche(room)].append(hash, &payload);
        }
        Ok(pages)
    }
}
