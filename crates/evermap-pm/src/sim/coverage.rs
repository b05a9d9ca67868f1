//! Which crashes have been tried, and which are worth more tries.

use std::collections::{BTreeMap, HashMap};

use super::choice::Choice;
use super::image::Walk;
use super::trace::Site;

/// Pairs of stores to different granules, one before the other and both undecided at the same time,
/// and whether they were tried in reverse order: the later one survived and the earlier one was
/// lost.
pub type Pairs = BTreeMap<(Site, Site), bool>;

/// A pair that was not tried yet: for each of its stores the granule, and the position among its
/// entries.
struct Untried {
    sites: (Site, Site),
    first: (usize, u32),
    second: (usize, u32),
}

/// A search for pairs at one crash point.
pub(crate) struct PairSearch {
    untried: Vec<Untried>,
}

impl PairSearch {
    /// Returns the pairs at this point that are new or not tried yet.
    pub(crate) fn new(walk: &Walk<'_>, pairs: &mut Pairs) -> Self {
        // Each site once per granule: the oldest store is the first to be lost, and the newest the
        // last to survive.
        let mut stores: HashMap<(Site, usize), (u32, u32)> = HashMap::new();
        for (granule, item) in walk.items().iter().enumerate() {
            for (at, entry) in (0..).zip(walk.entries_of(item)).filter(|(_, e)| !e.transient) {
                let site = walk.site_of(entry);
                stores.entry((site, granule)).or_insert((at, entry.record));
            }
        }
        let mut untried = Vec::new();
        for (&(earlier, granule), &(at, record)) in &stores {
            for (&(later, other), &(other_at, other_record)) in &stores {
                if granule == other || record >= other_record {
                    continue;
                }
                let sites = (earlier, later);
                if !*pairs.entry(sites).or_insert(false) {
                    let (first, second) = ((granule, at), (other, other_at));
                    untried.push(Untried { sites, first, second });
                }
            }
        }
        PairSearch { untried }
    }

    /// Records an image, or several that recovery cannot distinguish: for each granule the minimum
    /// and the maximum of what survived.
    pub(crate) fn tried(&mut self, pairs: &mut Pairs, left: impl Fn(usize) -> (Choice, Choice)) {
        self.untried.retain(|pair| {
            let ((granule, at), (other, other_at)) = (pair.first, pair.second);
            let reversed = left(granule).0.taken <= at && left(other).1.taken > other_at;
            if reversed {
                pairs.insert(pair.sites, true);
            }
            !reversed
        });
    }
}

/// Which crash points get all the images that the budget allows: those that look new.
#[derive(Clone, Copy, Debug)]
pub struct Pruning {
    /// Of the points that look the same (with the same site of the crash, and the same sites of
    /// undecided stores), this number are treated in full.
    pub first: u64,
    /// Of the others, one in this many is treated in full.
    pub every: u64,
    /// The rest get this number of images.
    pub images: u64,
}

impl Default for Pruning {
    fn default() -> Self {
        Pruning { first: 8, every: 16, images: 4 }
    }
}

/// Applies a [`Pruning`] in one walk.
pub(crate) struct Pruner {
    pruning: Pruning,
    seen: HashMap<u64, u64>,
}

impl Pruner {
    pub(crate) fn new(pruning: Pruning) -> Self {
        Pruner { pruning, seen: HashMap::new() }
    }

    /// Returns the maximum number of images at a point with this look, if each may have `most`.
    pub(crate) fn most(&mut self, look: u64, most: u64) -> u64 {
        let count = self.seen.entry(look).or_insert(0);
        *count += 1;
        let full = *count <= self.pruning.first || count.is_multiple_of(self.pruning.every.max(1));
        if full { most } else { most.min(self.pruning.images) }
    }
}
