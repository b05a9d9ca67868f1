//! The conformance kit: one battery that every index passes.
//!
//! Implement [`Subject`], or [`PoolSubject`] for an index that lives in a pool, to create the
//! index, and run everything with one line:
//!
//! ```
//! use evermap_index::testkit::MakeLocked;
//! evermap_index::conformance!(volatile locked, MakeLocked, [u64]);
//! ```
//!
//! Each part is also a function, which returns a [`Failure`] instead of panicking:
//!
//! | part | what it checks |
//! |---|---|
//! | [`model`](model::model) | results against an ordered map, through all operations |
//! | [`histories`](concurrent::histories) | [linearizability] per key |
//! | [`storm`](concurrent::storm) | exactly one caller sees each word as old |
//! | [`growth`](concurrent::growth) | readers find stable keys during splits and merges |
//! | [`walks`](concurrent::walks) | walks show stable keys once while the index grows |
//! | [`sweep`](persistence::sweep) | a sweep beside mutations finds what is reachable |
//! | [`full`](persistence::full) | running out of space changes nothing |
//! | [`reuse`](persistence::reuse) | space of removed records serves other sizes |
//! | [`damage`](damage::damage) | a wrong word causes errors at most |
//! | [`instants`](instants::instants) | an instant is what a kill leaves |
//!
//! [`crash_campaign!`](crate::crash_campaign) [crashes](crash) the index at every point.
//! [`counters`](counters::counters) checks promises about flushes, fences and cache lines.
//! [`order`](order::order) compares insertions in orders that walks produce to those in random
//! order.
//!
//! Parts are bounded by counts, never by time, and single-threaded parts are reproducible by their
//! seed. `EVERMAP_TESTKIT_SEED` chooses the seed, `EVERMAP_TESTKIT_SCALE` multiplies the counts,
//! and `EVERMAP_TEST_TIER=full` runs everything; see [`tier`].

use std::fmt;

use evermap_pm::sim::rng::Rng;
use evermap_pm::{Guard, Result};

use crate::{Index, Key, Stats};

pub mod call;
pub mod chain;
pub mod concurrent;
pub mod counters;
pub mod crash;
pub mod crash_states;
pub mod damage;
pub mod delays;
mod erased;
pub mod instants;
pub mod keys;
pub mod linearizability;
pub mod model;
mod observers;
pub mod order;
pub mod ordered;
pub mod persistence;
mod readers;
pub mod reference;
pub mod tiny;

#[cfg(test)]
mod planted_tests;

pub use evermap_pm::sim::{Tier, tier};
pub use keys::{Coarse, Crowded, Numbered, Plain, Universe};
pub use persistence::{PoolSubject, Pooled};
pub use readers::beside_readers;
pub use reference::MakeLocked;

/// How to create an index for the kit.
pub trait Subject<K: Key>: Sync {
    /// The type of an open index.
    type Instance: Instance<K>;

    /// Creates an empty index with space for at least 20,000 pairs, which is so small that a few
    /// dozen keys cause every structural change.
    ///
    /// # Errors
    /// Any error that prevents it; the test fails then.
    fn fresh(&self) -> Result<Self::Instance>;

    /// Stops an index and opens it again. An index that is not persistent is returned unchanged.
    ///
    /// # Errors
    /// Any error that prevents it; the test fails then.
    fn reopen(&self, instance: Self::Instance, _stop: Stop) -> Result<Self::Instance> {
        Ok(instance)
    }

    /// Returns the number of keys that the index holds whatever their hashes are. Beyond it, the
    /// index may return `NoSpace` if hashes are adversarial.
    fn always_holds(&self) -> usize {
        32
    }
}

/// How an index is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A clean shutdown.
    Clean,
    /// The death of the process: all stores are kept, but nothing was closed.
    Unclean,
}

/// An open index and what belongs to it.
pub trait Instance<K: Key>: Sync {
    /// Returns the index.
    fn index(&self) -> &dyn Index<K>;

    /// Pins a guard for the index.
    fn pin(&self) -> Guard<'_>;

    /// Shows one unit of the index; see [`Persistent::scan`](crate::Persistent::scan). An index
    /// that has no units is one unit.
    fn scan(
        &self,
        _from: u64,
        guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        let mut show = |slot_key, word| {
            each(slot_key, word);
            true
        };
        (self.index().for_each(guard, &mut show), None)
    }

    /// Returns the seed of the placement hash.
    fn seed(&self) -> u64 {
        0
    }

    /// Returns the word to put for `key` that has the number `tag`: the number itself, or if words
    /// are records a new record that is not reachable yet. Tags of records are never used twice.
    ///
    /// # Errors
    /// `NoSpace`.
    fn word(&self, _key: K::Ref<'_>, tag: u64) -> Result<u64> {
        Ok(tag)
    }

    /// Returns the number of a word.
    fn tag(&self, word: u64) -> u64 {
        word
    }

    /// Frees a word that was never put.
    fn discard(&self, _word: u64) {}

    /// Retires a word that was replaced or removed under `guard`.
    fn retire(&self, _word: u64, _guard: &Guard<'_>) {}

    /// Sweeps after an unclean shutdown. May run concurrently with mutations.
    ///
    /// # Errors
    /// Any error that prevents it; the test fails then.
    fn sweep(&self) -> Result<()> {
        Ok(())
    }

    /// Describes each violated invariant of the structure and of its space. Must run alone,
    /// without guards.
    fn audit(&self) -> Vec<String> {
        Vec::new()
    }
}

/// How much to test, and which part of it.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Determines everything random.
    pub seed: u64,
    /// Multiplies counts of operations and rounds. 1 takes seconds.
    pub scale: usize,
    /// Chooses between the counts of a short and a long run.
    pub tier: Tier,
    /// The number of threads in concurrent parts. More than the machine has processors, so that
    /// some are always interrupted during an operation.
    pub threads: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config { seed: 0x00e7_e23a_9000_0001, scale: 1, tier: Tier::Full, threads: 4 }
    }
}

impl Config {
    /// Returns the default, changed by `EVERMAP_TESTKIT_SEED`, `EVERMAP_TESTKIT_SCALE` and
    /// `EVERMAP_TEST_TIER`.
    ///
    /// # Panics
    /// If one of them has an invalid value: a long run must not turn out to be a short one.
    pub fn from_env() -> Self {
        let number = |name: &str| {
            let text = std::env::var(name).ok()?;
            Some(text.parse().unwrap_or_else(|_| panic!("{name}: {text:?} is not a number")))
        };
        let default = Config::default();
        Config {
            seed: number("EVERMAP_TESTKIT_SEED").unwrap_or(default.seed),
            scale: number("EVERMAP_TESTKIT_SCALE").map_or(default.scale, |scale| scale as usize),
            tier: tier(),
            ..default
        }
    }

    /// Returns the number of rounds of a part, given the numbers for the default and the full tier.
    fn rounds(&self, default: usize, full: usize) -> usize {
        self.tier.choose(default, full) * self.scale
    }

    /// Returns the universes of a kind. In the default tier, large ones are thinned.
    fn universes<K: Numbered>(&self) -> Vec<Universe> {
        let most = self.tier.choose(800, usize::MAX);
        K::universes().into_iter().map(|universe| universe.thinned(most)).collect()
    }

    /// Returns the seed for one of several runs.
    fn seed_of(&self, run: usize) -> u64 {
        self.seed.wrapping_add(run as u64)
    }
}

/// Returns `true` in `percent` of 100 cases.
fn chance(random: &mut Rng, percent: u64) -> bool {
    random.below(100) < percent
}

/// The report of a part of the kit that has found a violation.
pub struct Failure(String);

impl Failure {
    fn new<K: ?Sized>(part: &str, universe: &str, seed: u64, what: impl fmt::Display) -> Self {
        let kind = std::any::type_name::<K>();
        Failure(format!("{part}, {kind} keys, {universe}, seed {seed}: {what}"))
    }

    /// Combines all failures into one.
    ///
    /// # Errors
    /// If there is any.
    pub fn any(results: impl IntoIterator<Item = Result<(), Failure>>) -> Result<(), Failure> {
        let failures: Vec<String> =
            results.into_iter().filter_map(Result::err).map(|failure| failure.0).collect();
        if failures.is_empty() { Ok(()) } else { Err(Failure(failures.join("\n\n"))) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The same as [`Display`](fmt::Display), because a test that returns a failure prints this.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {}

/// Declares a module of tests, one for each part of the kit.
///
/// `conformance!(name, subject, [kinds])` for a [`PoolSubject`] and
/// `conformance!(volatile name, subject, [kinds])` for any other [`Subject`]. `subject` is an
/// expression that each test evaluates anew. `kinds` are kinds of keys, and may be left out: then
/// they are `u64`, [`Plain`], and, for keys with equal hashes, [`Bytes`](crate::Bytes) in pools and
/// [`Coarse`] elsewhere.
#[macro_export]
macro_rules! conformance {
    (volatile $name:ident, $subject:expr) => {
        $crate::conformance!(volatile $name, $subject, [
            u64, $crate::testkit::Plain, $crate::testkit::Coarse
        ]);
    };
    (volatile $name:ident, $subject:expr, $kinds:tt) => {
        #[cfg(test)]
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::conformance!(@parts $subject, $kinds, {
                model::model, concurrent::histories, concurrent::storm, concurrent::growth,
                concurrent::walks
            });
        }
    };
    ($name:ident, $subject:expr) => {
        $crate::conformance!($name, $subject, [
            u64, $crate::testkit::Plain, $crate::Bytes
        ]);
    };
    ($name:ident, $subject:expr, $kinds:tt) => {
        #[cfg(test)]
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::conformance!(@parts $crate::testkit::Pooled($subject), $kinds, {
                model::model, concurrent::histories, concurrent::storm, concurrent::growth,
                concurrent::walks
            });
            $crate::conformance!(@parts $subject, $kinds, {
                persistence::sweep, persistence::full, persistence::reuse, damage::damage,
                instants::instants
            });
        }
    };
    (@parts $subject:expr, $kinds:tt, {$($module:ident::$part:ident),+}) => {
        $($crate::conformance!(@part $subject, $kinds, $module, $part);)+
    };
    (@part $subject:expr, [$($kind:ty),+ $(,)?], $module:ident, $part:ident) => {
        #[test]
        fn $part() -> ::std::result::Result<(), $crate::testkit::Failure> {
            let config = $crate::testkit::Config::from_env();
            $crate::testkit::Failure::any([
                $($crate::testkit::$module::$part::<$kind, _>(&$subject, &config)),+
            ])
        }
    };
}
