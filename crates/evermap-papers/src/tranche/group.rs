//! The records of a group: where they are, and the stores that add and remove them.

use std::marker::PhantomData;

use evermap_index::fingerprint;
use evermap_index::recipe::{self, Preparation};
use evermap_pm::{Error, Medium, PmU64, Result};

use super::ahead::Ahead;
use super::arrays::Group;
use super::geometry::Geometry;
use super::image::{Item, bytes_of, fingerprint, home, nth, steps_to};
use super::layout::{COMMIT, Commit, Entry, GROUP_WORD, Kind, LINK, Named, OVERFLOWS_MAX, Shape};
use super::mistakes;
use super::place::Division;

/// A record in a tranche.
#[derive(Clone, Copy)]
pub(super) struct Stored<'a> {
    pub(super) tranche: &'a [PmU64],
    /// The number of the tranche in its group.
    pub(super) place: usize,
    /// The number of the record in its tranche.
    pub(super) at: usize,
    pub(super) entry: Entry,
    pub(super) payload: &'a [PmU64],
}

impl Stored<'_> {
    /// Returns the number of bytes that the record takes in a tranche.
    pub(super) fn bytes(&self) -> u64 {
        bytes_of(self.payload.len())
    }
}

/// How far a search goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reach {
    /// Only into the home of the key.
    Home,
    /// As far as records may be that have passed.
    Group,
}

/// What a search has found.
pub(super) enum Search<R> {
    /// What was sought, or that there is none.
    Ended(Option<R>),
    /// Nothing yet: the search goes on behind the home.
    GoesOn,
}

impl<R> Search<R> {
    /// Replaces what was found by what `read` returns for it.
    #[inline(always)]
    pub(super) fn map<S>(self, read: impl FnOnce(R) -> Result<S>) -> Result<Search<S>> {
        Ok(match self {
            Search::Ended(Some(found)) => Search::Ended(Some(read(found)?)),
            Search::Ended(None) => Search::Ended(None),
            Search::GoesOn => Search::GoesOn,
        })
    }
}

/// Room for a record.
pub(super) struct Room<'a> {
    tranche: &'a [PmU64],
    /// The number of the tranche in its group.
    pub(super) place: usize,
    /// The number of a dead record with a payload of the same size that the new one replaces.
    reused: Option<(usize, Entry)>,
}

/// What a record needs a place for.
pub(super) struct Wanted {
    pub(super) hash: u64,
    pub(super) kind: Kind,
    /// The number of words of the payload.
    pub(super) words: usize,
}

/// How groups are read and changed.
pub(super) struct Groups<'m, M: Medium, G: Geometry>(
    pub(super) &'m M,
    pub(super) PhantomData<fn() -> G>,
);

impl<'m, M: Medium, G: Geometry> Groups<'m, M, G> {
    const WORDS: usize = Shape::<G>::WORDS;
    /// A tranche in which one record in this number is dead should be rewritten rather than passed.
    const FRAGMENTED: usize = 8;
    /// Tranches of a group with all of its overflow blocks.
    const TRANCHES_MAX: usize = G::TRANCHES * (1 + OVERFLOWS_MAX);

    /// Returns an overflow block of a group: the one behind `place` others.
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn overflow(
        &self,
        group: Group<'m>,
        place: usize,
    ) -> Result<Option<(u64, &'m [PmU64])>> {
        let mut words = group.words;
        for at in 0..=place {
            let cell = &words[LINK * Self::WORDS + GROUP_WORD];
            let word = self.0.load(cell);
            if word == 0 || at == OVERFLOWS_MAX {
                return Ok(None);
            }
            let next = Named::Overflow(group.index, at).decode(word).and_then(|offset| {
                let words: &[PmU64] = self.0.slice(offset, (Self::WORDS * G::TRANCHES) as u64)?;
                Some((offset, words))
            });
            let next =
                next.ok_or_else(|| self.damaged(words, "impossible overflow block of a group"))?;
            if at == place {
                return Ok(Some(next));
            }
            words = next.1;
        }
        Ok(None)
    }

    /// Returns a tranche of a group or of its overflow blocks. Returns `None` after the last one.
    #[inline(always)]
    pub(super) fn tranche(&self, group: Group<'m>, place: usize) -> Result<Option<&'m [PmU64]>> {
        let words = match place.checked_sub(G::TRANCHES) {
            None => group.words,
            Some(behind) => match self.overflow(group, behind / G::TRANCHES)? {
                Some((_, words)) => words,
                None => return Ok(None),
            },
        };
        Ok(words[place % G::TRANCHES * Self::WORDS..].get(..Self::WORDS))
    }

    /// Returns all tranches of a group.
    pub(super) fn tranches(&self, group: Group<'m>) -> Result<Vec<&'m [PmU64]>> {
        let mut tranches = Vec::with_capacity(G::TRANCHES);
        while tranches.len() < Self::TRANCHES_MAX
            && let Some(tranche) = self.tranche(group, tranches.len())?
        {
            tranches.push(tranche);
        }
        Ok(tranches)
    }

    /// Returns the offsets of the overflow blocks of a group.
    pub(super) fn overflows(&self, group: Group<'m>) -> Result<Vec<u64>> {
        let mut offsets = Vec::new();
        while let Some((offset, _)) = self.overflow(group, offsets.len())? {
            offsets.push(offset);
        }
        Ok(offsets)
    }

    #[cold]
    pub(super) fn damaged(&self, tranche: &[PmU64], what: &str) -> Error {
        Error::damaged(self.0.offset_of(tranche), what)
    }

    /// Returns what a tranche contains.
    #[inline(always)]
    pub(super) fn commit(&self, tranche: &[PmU64]) -> Result<Commit> {
        match Commit::decode::<G>(self.0.load(&tranche[COMMIT])) {
            Some(commit) => Ok(commit),
            None => Err(self.damaged(tranche, "impossible state of a tranche")),
        }
    }

    pub(super) fn set_commit(&self, tranche: &[PmU64], commit: Commit) {
        self.0.store_transient(&tranche[COMMIT], commit.encode());
    }

    /// Returns a record of a tranche, live or dead.
    #[inline(always)]
    pub(super) fn record(
        &self,
        tranche: &'m [PmU64],
        place: usize,
        commit: Commit,
        at: usize,
    ) -> Result<Stored<'m>> {
        let word = self.0.load(&tranche[Shape::<G>::entry_word(at)]);
        let entry = Entry::decode((word >> (at % 4 * 16)) as u16);
        let stored = entry.filter(|entry| entry.start >= commit.low).and_then(|entry| {
            let words = match entry.kind {
                Kind::Pair | Kind::Indirect => 2,
                Kind::Direct => direct_words(self.0.load_relaxed(tranche.get(entry.start)?))?,
            };
            let payload = tranche.get(entry.start..entry.start.checked_add(words)?)?;
            Some(Stored { tranche, place, at, entry, payload })
        });
        stored.ok_or_else(|| self.damaged(tranche, "impossible record"))
    }

    /// Checks that the payload of a record is between those of its neighbours, as it was stored:
    /// each is in front of the one before. Otherwise a walk could show one record twice.
    ///
    /// # Errors
    /// `Damaged`.
    fn ensure_in_order(&self, stored: &Stored<'m>, commit: Commit) -> Result<()> {
        let start_of = |at: usize| {
            let word = self.0.load(&stored.tranche[Shape::<G>::entry_word(at)]);
            Entry::start_of((word >> (at % 4 * 16)) as u16)
        };
        let (at, start) = (stored.at, stored.entry.start);
        let before = at.checked_sub(1).map_or(usize::MAX, start_of);
        let is_last = at + 1 == commit.count;
        match start + stored.payload.len() <= before && (is_last || start_of(at + 1) < start) {
            true => Ok(()),
            false => Err(self.damaged(stored.tranche, "records overlap")),
        }
    }

    /// Searches for the live record with this hash that `is_it` accepts, as far as necessary.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline(always)]
    pub(super) fn find(
        &self,
        group: Group<'m>,
        hash: u64,
        is_it: impl FnMut(&Stored<'m>) -> bool,
    ) -> Result<Option<Stored<'m>>> {
        match self.search(group, hash, Reach::Group, is_it)? {
            Search::Ended(found) => Ok(found),
            Search::GoesOn => Ok(None),
        }
    }

    /// Searches for the live record with this hash that `is_it` accepts.
    ///
    /// # Errors
    /// `Damaged`, also if another thread changes the group meanwhile.
    #[inline(always)]
    pub(super) fn search(
        &self,
        group: Group<'m>,
        hash: u64,
        reach: Reach,
        mut is_it: impl FnMut(&Stored<'m>) -> bool,
    ) -> Result<Search<Stored<'m>>> {
        let (home, sought) = (home::<G>(hash), fingerprint(hash));
        let most = if reach == Reach::Home { 1 } else { Self::TRANCHES_MAX };
        for step in 0..most {
            let place = nth::<G>(home, step);
            let Some(tranche) = self.tranche(group, place)? else { break };
            let commit = self.commit(tranche)?;
            let mut ahead = Ahead::<G>::new();
            for first in (0..commit.count).step_by(8) {
                let word = self.0.load_relaxed(&tranche[Shape::<G>::fingerprint_word(first)]);
                let mut matching = fingerprint::matches([word, 0], sought) & 0xff;
                while matching != 0 {
                    let at = first + matching.trailing_zeros() as usize;
                    matching &= matching - 1;
                    if at >= commit.count {
                        break;
                    }
                    let stored = self.record(tranche, place, commit, at)?;
                    if stored.entry.dead {
                        continue;
                    }
                    let found = ahead.exchange(stored).filter(&mut is_it);
                    if found.is_some() {
                        return Ok(Search::Ended(found));
                    }
                }
            }
            let found = ahead.rest().find(&mut is_it);
            if found.is_some() {
                return Ok(Search::Ended(found));
            }
            // Not "has free space": records of any size may have been removed here since a record
            // found no room, and a small one may fit where a large one did not.
            let last = if self.0.mutant(mistakes::FREE_SPACE_ENDS_SEARCH) {
                commit.has_room::<G>(2)
            } else {
                commit.pass == 0
            };
            if last {
                return Ok(Search::Ended(None));
            }
        }
        Ok(if reach == Reach::Home { Search::GoesOn } else { Search::Ended(None) })
    }

    /// Calls `each` with every record of a group, live or dead.
    pub(super) fn records(
        &self,
        group: Group<'m>,
        mut each: impl FnMut(Stored<'m>) -> Result<()>,
    ) -> Result<()> {
        for (place, tranche) in self.tranches(group)?.into_iter().enumerate() {
            let commit = self.commit(tranche)?;
            for at in 0..commit.count {
                each(self.record(tranche, place, commit, at)?)?;
            }
        }
        Ok(())
    }

    /// Calls `each` with the live records in a part of a group, and the hashes of their keys. Reads
    /// the tranches at which searches for such keys arrive. `division` says how many parts there
    /// are.
    ///
    /// # Errors
    /// `Damaged`; if records overlap, after all others.
    pub(super) fn part(
        &self,
        group: Group<'m>,
        (division, part): (Division, u64),
        hash_of: impl Fn(&Stored<'m>) -> Result<u64>,
        mut each: impl FnMut(Stored<'m>, u64) -> Result<()>,
    ) -> Result<()> {
        let homes = division.homes_of(part);
        let (mask, bits) = division.fingerprints_of(part);
        let mask = u64::from_le_bytes([mask; 8]);
        let mut result = Ok(());
        for step in 0..Self::TRANCHES_MAX {
            let place = nth::<G>(homes.start, step);
            let Some(tranche) = self.tranche(group, place)? else { break };
            let commit = self.commit(tranche)?;
            for first in (0..commit.count).step_by(8) {
                let word = self.0.load_relaxed(&tranche[Shape::<G>::fingerprint_word(first)]);
                let mut matching = fingerprint::matches([word & mask, 0], bits) & 0xff;
                while matching != 0 {
                    let at = first + matching.trailing_zeros() as usize;
                    matching &= matching - 1;
                    if at >= commit.count {
                        break;
                    }
                    let stored = self.record(tranche, place, commit, at)?;
                    if stored.entry.dead {
                        continue;
                    }
                    let hash = hash_of(&stored)?;
                    if division.part(hash) == part {
                        // The others can be read.
                        match self.ensure_in_order(&stored, commit) {
                            Ok(()) => each(stored, hash)?,
                            overlap => result = result.and(overlap),
                        }
                    }
                }
            }
            if step + 1 >= homes.len() && commit.pass == 0 {
                break;
            }
        }
        result
    }

    /// Looks for room for a record of this kind, with a payload of `words` words, in a locked
    /// group.
    pub(super) fn room(
        &self,
        group: Group<'m>,
        hash: u64,
        kind: Kind,
        words: usize,
    ) -> Result<Option<Room<'m>>> {
        let wanted = Wanted { hash, kind, words };
        for step in 0..Self::TRANCHES_MAX {
            let place = nth::<G>(home::<G>(hash), step);
            let Some(tranche) = self.tranche(group, place)? else { break };
            let commit = self.commit(tranche)?;
            if commit.has_room::<G>(words) {
                return Ok(Some(Room { tranche, place, reused: None }));
            }
            if commit.dead > 0
                && let Some(reused) = self.dead(tranche, commit, &wanted, |_| true)?
            {
                return Ok(Some(Room { tranche, place, reused: Some(reused) }));
            }
        }
        Ok(None)
    }

    /// Returns a dead record that `is_free` accepts, and whose space a record of this kind can
    /// take.
    ///
    /// The space of a record with lengths goes to such a record only: while its payload is
    /// replaced, before the entry is, the payload has a size that is read from its first word.
    pub(super) fn dead(
        &self,
        tranche: &'m [PmU64],
        commit: Commit,
        item: &Wanted,
        is_free: impl Fn(usize) -> bool,
    ) -> Result<Option<(usize, Entry)>> {
        // Begins anywhere: where all searches begin, there would be no dead records any more.
        let fours = commit.count.div_ceil(4);
        let begin = (item.hash >> 20) as usize % fours.max(1);
        for four in (begin..fours).chain(0..begin) {
            let first = four * 4;
            let word = self.0.load(&tranche[Shape::<G>::entry_word(first)]);
            let mut dead = word & Entry::DEAD_OF_FOUR;
            while dead != 0 {
                let at = first + dead.trailing_zeros() as usize / 16;
                dead &= dead - 1;
                if at >= commit.count || !is_free(at) {
                    continue;
                }
                let stored = self.record(tranche, 0, commit, at)?;
                let alike = (stored.entry.kind == Kind::Direct) == (item.kind == Kind::Direct);
                if alike && stored.payload.len() == item.words {
                    return Ok(Some((at, stored.entry)));
                }
            }
        }
        Ok(None)
    }

    /// Returns whether a record with this hash should not go to `room`, behind its home, because
    /// its home would have room if the group were rewritten: the home has dead records, and none of
    /// the right size.
    pub(super) fn is_fragmented(
        &self,
        group: Group<'m>,
        hash: u64,
        room: &Room<'m>,
    ) -> Result<bool> {
        let home = home::<G>(hash);
        if room.place == home {
            return Ok(false);
        }
        let Some(tranche) = self.tranche(group, home)? else { return Ok(false) };
        let commit = self.commit(tranche)?;
        Ok(commit.dead * Self::FRAGMENTED > commit.count)
    }

    /// Returns whether a group has dead records, whose space can be collected.
    pub(super) fn has_dead(&self, group: Group<'m>) -> Result<bool> {
        for place in 0..Self::TRANCHES_MAX {
            let Some(tranche) = self.tranche(group, place)? else { break };
            if self.commit(tranche)?.dead > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Adds a record to a locked group, durably.
    pub(super) fn add(
        &self,
        group: Group<'m>,
        room: &Room<'m>,
        hash: u64,
        kind: Kind,
        payload: &[u64],
    ) -> Result<()> {
        let steps = steps_to::<G>(home::<G>(hash), room.place);
        for step in 0..steps {
            let Some(passed) = self.tranche(group, nth::<G>(home::<G>(hash), step))? else {
                break;
            };
            self.set_commit(passed, self.commit(passed)?.passed());
        }
        let commit = self.commit(room.tranche)?;
        match room.reused {
            None => self.append(room.tranche, commit, hash, kind, payload),
            Some((at, dead)) => self.replace(room.tranche, commit, at, dead, hash, kind, payload),
        }
        Ok(())
    }

    /// Appends a record; the commit is the word that counts the records.
    fn append(&self, tranche: &'m [PmU64], commit: Commit, hash: u64, kind: Kind, payload: &[u64]) {
        let (at, start) = (commit.count, commit.low - payload.len());
        let entry = Entry { start, kind, dead: false };
        let mut change = Preparation::new(self.0, &tranche[COMMIT]);
        for (cell, &word) in tranche[start..].iter().zip(payload) {
            change.store(cell, word);
        }
        let fingerprints = &tranche[Shape::<G>::fingerprint_word(at)];
        change.store(fingerprints, self.with_fingerprint(fingerprints, at, hash));
        let entries = &tranche[Shape::<G>::entry_word(at)];
        change.store(entries, self.with_entry(entries, at, entry));
        change.commit(Commit { count: at + 1, low: start, ..commit }.encode());
    }

    /// Stores a record where a dead one of the same size was; the commit is the entry.
    #[expect(clippy::too_many_arguments, reason = "a record and its place")]
    fn replace(
        &self,
        tranche: &'m [PmU64],
        commit: Commit,
        at: usize,
        dead: Entry,
        hash: u64,
        kind: Kind,
        payload: &[u64],
    ) {
        let entries = &tranche[Shape::<G>::entry_word(at)];
        let mut change = Preparation::new(self.0, entries);
        for (cell, &word) in tranche[dead.start..].iter().zip(payload) {
            change.store(cell, word);
        }
        let fingerprints = &tranche[Shape::<G>::fingerprint_word(at)];
        change.store(fingerprints, self.with_fingerprint(fingerprints, at, hash));
        let entry = Entry { start: dead.start, kind, dead: false };
        change.commit(self.with_entry(entries, at, entry));
        self.set_commit(tranche, Commit { dead: commit.dead.saturating_sub(1), ..commit });
    }

    pub(super) fn with_fingerprint(&self, cell: &PmU64, at: usize, hash: u64) -> u64 {
        let shift = at % 8 * 8;
        self.0.load(cell) & !(0xff << shift) | u64::from(fingerprint(hash)) << shift
    }

    /// Stores the fingerprint of a record of a group that is being recovered, if it has another.
    /// Returns `false` if it had. Not flushed.
    pub(super) fn mend_fingerprint(&self, stored: &Stored<'m>, hash: u64) -> bool {
        let cell = &stored.tranche[Shape::<G>::fingerprint_word(stored.at)];
        let right = self.with_fingerprint(cell, stored.at, hash);
        let is_right = self.0.load(cell) == right;
        if !is_right {
            self.0.store(cell, right);
        }
        is_right
    }

    pub(super) fn with_entry(&self, cell: &PmU64, at: usize, entry: Entry) -> u64 {
        let shift = at % 4 * 16;
        self.0.load(cell) & !(0xffff << shift) | u64::from(entry.encode()) << shift
    }

    /// Removes a record of a locked group, durably. A search goes on behind the tranches that the
    /// record had passed until it is gone for good.
    pub(super) fn kill(&self, group: Group<'m>, stored: &Stored<'m>, hash: u64) -> Result<()> {
        self.mark_dead(stored);
        self.0.fence();
        self.uncount(group, stored, hash)
    }

    /// Removes records of a locked group, durably, with one fence for all.
    pub(super) fn kill_all(&self, group: Group<'m>, records: &[(Stored<'m>, u64)]) -> Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        records.iter().for_each(|(stored, _)| self.mark_dead(stored));
        self.0.fence();
        records.iter().try_for_each(|(stored, hash)| self.uncount(group, stored, *hash))
    }

    /// Counts a record as dead, and not among those that have passed tranches.
    fn uncount(&self, group: Group<'m>, stored: &Stored<'m>, hash: u64) -> Result<()> {
        let commit = self.commit(stored.tranche)?;
        self.set_commit(stored.tranche, Commit { dead: commit.dead + 1, ..commit });
        for step in 0..steps_to::<G>(home::<G>(hash), stored.place) {
            let Some(passed) = self.tranche(group, nth::<G>(home::<G>(hash), step))? else {
                break;
            };
            self.set_commit(passed, self.commit(passed)?.passed_no_more());
        }
        Ok(())
    }

    /// Marks a record as dead, flushed without a fence.
    pub(super) fn mark_dead(&self, stored: &Stored<'m>) {
        let entries = &stored.tranche[Shape::<G>::entry_word(stored.at)];
        let dead = Entry { dead: true, ..stored.entry };
        self.0.store(entries, self.with_entry(entries, stored.at, dead));
        self.0.flush(entries);
    }

    /// Replaces one word of a payload, durably and atomically.
    pub(super) fn overwrite(&self, cell: &PmU64, word: u64) {
        recipe::commit(self.0, cell, word);
    }

    /// Counts for each tranche of a group the records that have passed it, and the dead ones, and
    /// stores these counters. `hash_of` is called with live records.
    pub(super) fn recount(
        &self,
        group: Group<'m>,
        hash_of: impl Fn(&Stored<'m>) -> Result<u64>,
    ) -> Result<()> {
        let tranches = self.tranches(group)?;
        for (tranche, commit) in tranches.iter().zip(self.counted(group, hash_of)?) {
            self.set_commit(tranche, commit);
        }
        Ok(())
    }

    /// Returns what the states of the tranches of a group should be.
    pub(super) fn counted(
        &self,
        group: Group<'m>,
        hash_of: impl Fn(&Stored<'m>) -> Result<u64>,
    ) -> Result<Vec<Commit>> {
        let mut commits = Vec::new();
        for tranche in self.tranches(group)? {
            commits.push(Commit { pass: 0, dead: 0, ..self.commit(tranche)? });
        }
        self.records(group, |stored| {
            if stored.entry.dead {
                commits[stored.place].dead += 1;
                return Ok(());
            }
            let home = home::<G>(hash_of(&stored)?);
            for step in 0..steps_to::<G>(home, stored.place) {
                let passed = &mut commits[nth::<G>(home, step)];
                *passed = passed.passed();
            }
            Ok(())
        })?;
        Ok(commits)
    }

    /// Returns the live records of a locked group.
    pub(super) fn items(
        &self,
        group: Group<'m>,
        hash_of: impl Fn(&Stored<'m>) -> Result<u64>,
    ) -> Result<Vec<Item<'m>>> {
        let mut items = Vec::new();
        self.records(group, |stored| {
            if !stored.entry.dead {
                items.push(Item::of(&stored, hash_of(&stored)?));
            }
            Ok(())
        })?;
        Ok(items)
    }
}

/// Returns the number of words of a direct record, from its first one.
pub(super) fn direct_words(lengths: u64) -> Option<usize> {
    let bytes = (lengths & 0xffff_ffff) + (lengths >> 32);
    usize::try_from(bytes.div_ceil(8)).ok()?.checked_add(1)
}
