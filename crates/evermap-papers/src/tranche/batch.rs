//! Lookups of many keys at once: their misses of the cache overlap.
//!
//! A lookup reads three places, of which each says where the next one is: the header of the home,
//! the payload of the record there whose fingerprint matches, and what this names. So the places of
//! all keys of a batch are prefetched one stage after the other, and then the keys are looked up
//! like others. A prefetch is only a hint: whatever it reads may change meanwhile.
//!
//! Lookups validate the version in the header of the home. So only changes need locks.

use evermap_index::fingerprint as fingerprints;
use evermap_index::index::BATCH_KEYS;
use evermap_pm::medium::prefetch;
use evermap_pm::{Medium, PmU64};

use super::geometry::Geometry;
use super::image::{fingerprint, home};
use super::layout::{COMMIT, Commit, Entry, GROUP_WORD, Kind, LINK, Named, Shape};
use super::table::{Format, Located, Table};

/// The home of a key.
#[derive(Clone, Copy)]
struct Home<'t> {
    located: Located<'t>,
    tranche: &'t [PmU64],
    hash: u64,
}

/// The record that a lookup most likely finds.
#[derive(Clone, Copy)]
struct Match<'t> {
    kind: Kind,
    payload: &'t [PmU64],
}

/// The groups of the keys of a batch, with the locks that changes take.
///
/// A lock is at the beginning of a group, mostly of a page, so all of them belong to one set of the
/// first-level cache, which holds and awaits only few lines at a time. So each is prefetched when a
/// few others are still to be used.
pub struct Batch<'t>([Option<Located<'t>>; BATCH_KEYS]);

impl<'t> Batch<'t> {
    /// The number of locks that are prefetched and not used.
    const AHEAD: usize = 8;

    /// Returns where the key with this number was.
    #[inline(always)]
    pub(super) fn located(&self, at: usize) -> Option<Located<'t>> {
        self.0[at]
    }

    /// Prefetches the locks that are used first.
    pub(super) fn prefetch_first(&self) {
        (0..Self::AHEAD).for_each(|at| self.prefetch(at));
    }

    /// Prefetches a lock for later. To be called before the key with this number is looked up.
    #[inline(always)]
    pub fn prefetch_after(&self, at: usize) {
        self.prefetch(at + Self::AHEAD);
    }

    #[inline(always)]
    fn prefetch(&self, at: usize) {
        if let Some(Some(located)) = self.0.get(at) {
            prefetch_word(&located.group.words[GROUP_WORD]);
        }
    }
}

/// Words in a line.
pub(super) const LINE: usize = 8;
/// The most words that are prefetched of a record.
const MATCH: usize = 16;

impl<F: Format, M: Medium, G: Geometry> Table<F, M, G> {
    /// Prefetches what lookups of up to [`BATCH_KEYS`] keys with these hashes will read. Calls
    /// `prefetch_named` with the words of pairs, for what these name. Does not prefetch locks.
    pub(super) fn prefetch_batch(
        &self,
        hashes: &[u64],
        mut prefetch_named: impl FnMut(u64),
    ) -> Batch<'_> {
        let mut homes = [None; BATCH_KEYS];
        for (home, &hash) in homes.iter_mut().zip(hashes) {
            *home = self.prefetch_home(hash);
        }
        let batch = Batch(homes.map(|home| home.map(|home| home.located)));
        let homes = homes.into_iter().flatten();
        // Otherwise all of a strip is beside the header.
        if Shape::<G>::strip_end(Shape::<G>::PAIRS) > LINE {
            homes.clone().for_each(|home| self.prefetch_strip(home));
        }
        let mut matches = [None; BATCH_KEYS];
        for (found, home) in matches.iter_mut().zip(homes) {
            *found = self.prefetch_match(home);
        }
        for found in matches.into_iter().flatten() {
            match found.kind {
                Kind::Pair => prefetch_named(self.medium().load_relaxed(&found.payload[1])),
                Kind::Indirect => self.prefetch_block(found),
                Kind::Direct => {}
            }
        }
        batch
    }

    /// Prefetches the header of the home of a key; also the lock, if the home has no version.
    #[inline(always)]
    fn prefetch_home(&self, hash: u64) -> Option<Home<'_>> {
        let (located, place) = (self.locate(hash)?, home::<G>(hash));
        let words = located.group.words;
        let tranche = words[place * Shape::<G>::WORDS..].get(..Shape::<G>::WORDS)?;
        prefetch_word(&tranche[0]);
        if place == LINK {
            prefetch_word(&words[GROUP_WORD]);
        }
        Some(Home { located, tranche, hash })
    }

    /// Prefetches the lock of the group and the home of a key: if tranches are small, all of it.
    #[inline(always)]
    pub(super) fn prefetch_bucket(&self, hash: u64) {
        let Some(home) = self.prefetch_home(hash) else { return };
        prefetch_word(&home.located.group.words[GROUP_WORD]);
        if G::TRANCHE_BYTES <= 256 {
            home.tranche.iter().skip(LINE).step_by(LINE).for_each(prefetch_word);
        }
    }

    /// Returns the word of the pair that is most likely the key's.
    #[inline(always)]
    pub(super) fn likely_word(&self, hash: u64) -> Option<u64> {
        let found = self.prefetch_match(self.prefetch_home(hash)?)?;
        (found.kind == Kind::Pair).then(|| self.medium().load_relaxed(&found.payload[1]))
    }

    /// Returns what the home seems to have. The strip that it describes is inside the tranche.
    #[inline(always)]
    fn likely_commit(&self, home: Home<'_>) -> Option<Commit> {
        Commit::decode::<G>(self.medium().load_relaxed(&home.tranche[COMMIT]))
    }

    /// Prefetches the rest of the strip of a home whose header has arrived.
    #[inline(always)]
    fn prefetch_strip(&self, home: Home<'_>) {
        let words =
            self.likely_commit(home).map_or(0, |commit| Shape::<G>::strip_end(commit.count));
        home.tranche[..words].iter().skip(LINE).step_by(LINE).for_each(prefetch_word);
    }

    /// Prefetches the first record of the home whose fingerprint matches. It has at least two
    /// words.
    #[inline(always)]
    fn prefetch_match<'t>(&'t self, home: Home<'t>) -> Option<Match<'t>> {
        let (m, tranche) = (self.medium(), home.tranche);
        let (commit, sought) = (self.likely_commit(home)?, fingerprint(home.hash));
        for first in (0..commit.count).step_by(8) {
            let word = m.load_relaxed(&tranche[Shape::<G>::fingerprint_word(first)]);
            let matching = fingerprints::matches([word, 0], sought) & 0xff;
            let at = first + matching.trailing_zeros() as usize;
            if matching == 0 || at >= commit.count {
                continue;
            }
            let word = m.load_relaxed(&tranche[Shape::<G>::entry_word(at)]);
            let Entry { start, kind, .. } = Entry::decode((word >> (at % 4 * 16)) as u16)?;
            let words = if kind == Kind::Direct { MATCH } else { 2 };
            let payload = tranche.get(start..tranche.len().min(start + words))?;
            payload.iter().step_by(LINE).for_each(prefetch_word);
            // Payloads are not aligned to lines.
            prefetch_word(payload.last()?);
            return (payload.len() > 1).then_some(Match { kind, payload });
        }
        None
    }

    /// Prefetches the beginning of the block that a long record names.
    #[inline(always)]
    fn prefetch_block(&self, found: Match<'_>) {
        let m = self.medium();
        let hash = m.load_relaxed(&found.payload[1]);
        if let Some(block) = Named::Item(hash).decode(m.load_relaxed(&found.payload[0])) {
            m.prefetch_bytes(block, MATCH as u64 * 8);
        }
    }
}

#[inline(always)]
pub(super) fn prefetch_word(word: &PmU64) {
    prefetch(std::ptr::from_ref(word).cast());
}
