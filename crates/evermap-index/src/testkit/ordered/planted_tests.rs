//! Tests of the kit: each mistake that is planted here must be found by the part that is meant for
//! it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use evermap_pm::Result;
use evermap_pm::sync::Mutex;

use super::OrderedSubject;
use super::model::ranges;
use super::reference::LockedTree;
use super::scans::scans;
use crate::ordered::{Direction, OrderedIndex, Page};
use crate::testkit::{Config, Failure};
use crate::{Action, Change, MutateMode, Stats};

/// A mistake in an ordered index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    TrailingZerosAreNothing,
    LongKeysAreCutOff,
    ExcludedIsIncluded,
    IncludedIsExcluded,
    DescendingIsAscending,
    PageEndsTheScan,
    PageForgetsItsLastPair,
    PageIsShownAgain,
    GoesRoundInACircle,
    EmptyKeyIsNoKey,
    RemoveForgets,
    CountsWrong,
    CheckFindsSomething,
    /// Continues at the rank that the key had when the scan continued.
    GoesOnByRank,
    ShowsThePast,
    ShowsAnotherKeysWord,
}

/// A [`LockedTree`] with a mistake.
struct Mistaken {
    inner: LockedTree,
    mistake: Mistake,
    calls: AtomicU64,
    /// The pairs before some changes.
    past: Mutex<BTreeMap<Vec<u8>, u64>>,
}

impl Mistaken {
    /// Returns `true` if `mistake` is planted, in every `every`th call.
    fn errs(&self, mistake: Mistake, every: u64) -> bool {
        self.mistake == mistake && self.calls.fetch_add(1, SeqCst) % every == every - 1
    }

    /// Returns the key under which `key` is stored.
    fn kept<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        match self.mistake {
            Mistake::TrailingZerosAreNothing => {
                let end = key.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
                // Numbers may end in zeros: only longer keys are cut.
                &key[..end.max(key.len().min(8))]
            }
            Mistake::LongKeysAreCutOff => &key[..key.len().min(1000)],
            _ => key,
        }
    }
}

impl OrderedIndex for Mistaken {
    fn get(&self, key: &[u8]) -> Result<Option<u64>> {
        if self.mistake == Mistake::EmptyKeyIsNoKey && key.is_empty() {
            return Ok(None);
        }
        self.inner.get(self.kept(key))
    }

    fn mutate(
        &self,
        key: &[u8],
        mode: MutateMode,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let change = self.inner.mutate(self.kept(key), mode, decide)?;
        if change.removed() && self.errs(Mistake::RemoveForgets, 30) {
            self.inner.insert(key, change.old.unwrap_or_default())?;
        }
        if change.changed() && self.errs(Mistake::ShowsThePast, 40) {
            *self.past.lock().unwrap() = self.inner.0.read().unwrap().clone();
        }
        Ok(change)
    }

    fn page(&self, from: Bound<&[u8]>, direction: Direction, page: &mut Page) -> Result<()> {
        let (from, direction) = match (self.mistake, from) {
            (Mistake::ExcludedIsIncluded, Bound::Excluded(key))
                if direction == Direction::Ascending =>
            {
                (Bound::Included(key), direction)
            }
            (Mistake::IncludedIsExcluded, Bound::Included(key)) => {
                (Bound::Excluded(key), direction)
            }
            (Mistake::DescendingIsAscending, _) => (from, Direction::Ascending),
            _ => (from, direction),
        };
        if self.mistake == Mistake::ShowsThePast {
            // Only several threads see this as a mistake of concurrency.
            let past = LockedTree(evermap_pm::sync::RwLock::new(self.past.lock().unwrap().clone()));
            return past.page(from, direction, page);
        }
        if self.mistake == Mistake::GoesOnByRank && direction == Direction::Ascending {
            return self.page_by_rank(from, page);
        }
        self.inner.page(from, direction, page)?;
        if self.errs(Mistake::PageEndsTheScan, 10) {
            let pairs = std::mem::take(&mut page.pairs);
            page.clear();
            page.pairs = pairs;
        }
        if self.errs(Mistake::PageForgetsItsLastPair, 10) && page.pairs.len() > 1 {
            let pairs: Vec<_> = page.pairs.iter().map(|(key, word)| (key.to_vec(), word)).collect();
            page.pairs.clear();
            pairs[1..].iter().for_each(|(key, word)| page.pairs.push(key, *word));
        }
        if self.errs(Mistake::PageIsShownAgain, 10)
            && page.next(direction).is_some()
            && !page.pairs.is_empty()
        {
            let last = page.pairs.key(page.pairs.len() - 1).to_vec();
            let edge = match direction {
                Direction::Ascending => last,
                Direction::Descending => page.pairs.key(0).iter().copied().chain([0]).collect(),
            };
            page.continue_at(&edge);
        }
        if self.errs(Mistake::GoesRoundInACircle, 10)
            && let Bound::Included(key) | Bound::Excluded(key) = from
        {
            page.clear();
            page.continue_at(key);
        }
        if self.errs(Mistake::ShowsAnotherKeysWord, 30) && page.pairs.len() > 1 {
            let pairs: Vec<_> = page.pairs.iter().map(|(key, word)| (key.to_vec(), word)).collect();
            page.pairs.clear();
            let words = pairs.iter().map(|pair| pair.1).rev();
            pairs.iter().zip(words).for_each(|((key, _), word)| page.pairs.push(key, word));
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.inner.len() + u64::from(self.errs(Mistake::CountsWrong, 1))
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }

    fn check(&self) -> Vec<String> {
        let found = self.mistake == Mistake::CheckFindsSomething;
        Vec::from_iter(found.then(|| "a planted violation".into()))
    }
}

impl Mistaken {
    fn page_by_rank(&self, from: Bound<&[u8]>, page: &mut Page) -> Result<()> {
        page.clear();
        let rank = {
            let map = self.inner.0.read().unwrap();
            map.range::<[u8], _>((from, Bound::Unbounded))
                .next()
                .map(|(first, _)| map.range(..first.clone()).count())
        };
        std::thread::yield_now();
        let map = self.inner.0.read().unwrap();
        let mut rest = map.iter().skip(rank.unwrap_or(map.len()));
        rest.by_ref().take(3).for_each(|(key, &word)| page.pairs.push(key, word));
        if let Some((next, _)) = rest.next() {
            page.continue_at(next);
        }
        Ok(())
    }
}

impl OrderedSubject for Mistake {
    type Index = Mistaken;

    fn fresh(&self) -> Result<Mistaken> {
        Ok(Mistaken {
            inner: LockedTree::default(),
            mistake: *self,
            calls: AtomicU64::new(0),
            past: Mutex::default(),
        })
    }
}

type Part = fn(&Mistake, &Config) -> std::result::Result<(), Failure>;

/// Returns the report of `part`, which must find the mistake with one of a few seeds.
fn must_find(part: Part, mistake: Mistake) -> String {
    let found = (0..5).find_map(|run| {
        let config = Config { seed: 1000 + run, ..Config::from_env() };
        part(&mistake, &config).err()
    });
    found.unwrap_or_else(|| panic!("{mistake:?} was not found")).to_string()
}

#[test]
fn ranges_find_what_one_thread_can_see() {
    for (mistake, sign) in [
        (Mistake::TrailingZerosAreNothing, "pair"),
        (Mistake::LongKeysAreCutOff, "longest"),
        (Mistake::ExcludedIsIncluded, "pair"),
        (Mistake::IncludedIsExcluded, "pair"),
        (Mistake::DescendingIsAscending, "pair"),
        (Mistake::PageEndsTheScan, "shown is the end"),
        (Mistake::PageForgetsItsLastPair, "pair"),
        (Mistake::PageIsShownAgain, "pair"),
        (Mistake::GoesRoundInACircle, "does not advance"),
        (Mistake::EmptyKeyIsNoKey, "get(0)"),
        (Mistake::RemoveForgets, ""),
        (Mistake::CountsWrong, "len"),
        (Mistake::CheckFindsSomething, "a planted violation"),
        (Mistake::ShowsAnotherKeysWord, "with word"),
    ] {
        let report = must_find(ranges, mistake);
        assert!(report.contains(sign), "{mistake:?}: {report}");
    }
}

#[test]
fn scans_find_what_only_others_cause() {
    for (mistake, sign) in [
        (Mistake::GoesOnByRank, "scan of"),
        (Mistake::ShowsThePast, "scan of"),
        (Mistake::PageEndsTheScan, "misses"),
        (Mistake::PageForgetsItsLastPair, "misses"),
        (Mistake::PageIsShownAgain, "out of order, or twice"),
        (Mistake::ExcludedIsIncluded, ""),
        (Mistake::ShowsAnotherKeysWord, "wrong word"),
        (Mistake::CountsWrong, "pairs in the end"),
        (Mistake::CheckFindsSomething, "a planted violation"),
    ] {
        let report = must_find(scans, mistake);
        assert!(report.contains(sign), "{mistake:?}: {report}");
    }
}

#[test]
fn no_mistake_is_none() {
    for part in [ranges as Part, scans] {
        part(&Mistake::None, &Config::from_env()).unwrap();
    }
}
