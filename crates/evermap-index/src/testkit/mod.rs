//! The conformance kit: one battery that every index passes.
//!
//! Say how to make your index ([`Subject`], or [`PoolSubject`] for one that lives in a pool), and run
//! everything with one line:
//!
//! ```
//! use evermap_index::testkit::MakeLocked;
//! evermap_index::conformance!(volatile locked, MakeLocked, [u64]);
//! ```
//!
//! Each part is a function too, that answers with a [`Failure`] instead of panicking:
//!
//! | part | what it asks |
//! |---|---|
//! | [`model`](model::model) | does the index answer as an ordered map of the standard library does, through growth, shrinkage, bad hashes and reopening? |
//! | [`histories`](concurrent::histories) | is what concurrent callers see [linearizable](linearizability) per key? |
//! | [`storm`](concurrent::storm) | does exactly one caller see each word as old? |
//! | [`growth`](concurrent::growth) | does a reader always find what nobody touches, while segments split and merge? |
//! | [`walks`](concurrent::walks) | is what nobody touches shown exactly once, while the fullest index moves and grows? |
//! | [`sweep`](persistence::sweep) | are exactly the reachable blocks allocated after a sweep beside mutations? |
//! | [`full`](persistence::full) | does running out of space change nothing? |
//! | [`reuse`](persistence::reuse) | does what most was removed from give its space back to records of other sizes? |
//! | [`damage`](damage::damage) | does any wrong word in the region cost an answer at most? |
//!
//! A second line, [`crash_campaign!`](crate::crash_campaign), [crashes](crash) the index everywhere.
//!
//! One more, [`counters`](counters::counters), holds an index to what it promises about flushes, fences and lines.
//!
//! Parts are bounded by counts, never by time, and single-threaded ones repeat exactly for a seed.
//! `EVERMAP_TESTKIT_SEED` chooses the seed and `EVERMAP_TESTKIT_SCALE` multiplies the counts.

use std::fmt;

use evermap_pm::sim::rng::Rng;
use evermap_pm::{Guard, Result};

use crate::{Index, Key, Stats};

pub mod call;
pub mod chain;
pub mod concurrent;
pub mod counters;
pub mod crash;
pub(crate) mod crowd;
pub mod damage;
mod erased;
pub mod hooked;
pub mod keys;
pub mod linearizability;
mod lookers;
pub mod model;
pub mod ordered;
pub mod persistence;
pub mod reference;
pub mod tiny;

#[cfg(test)]
mod planted_tests;

pub use keys::{Coarse, Crowded, Numbered, Plain, Universe};
pub use lookers::beside_lookers;
pub use persistence::{PoolSubject, Pooled};
pub use reference::MakeLocked;

/// How to make an index for the kit.
pub trait Subject<K: Key>: Sync {
    /// A living index.
    type Instance: Instance<K>;

    /// An empty index with room for at least 20,000 pairs, of a geometry so small that a few dozen keys make
    /// it split, double, merge or whatever it does.
    ///
    /// # Errors
    /// Whatever prevents it; the test fails then.
    fn fresh(&self) -> Result<Self::Instance>;

    /// Stops an index and opens it again. What does not outlive its process is returned as it is.
    ///
    /// # Errors
    /// Whatever prevents it; the test fails then.
    fn reopen(&self, instance: Self::Instance, _stop: Stop) -> Result<Self::Instance> {
        Ok(instance)
    }

    /// So many keys the index holds whatever their hashes are. Beyond that it may answer `NoSpace` where
    /// hashes are chosen to hurt.
    fn always_holds(&self) -> usize {
        32
    }
}

/// How an index is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// In order.
    Clean,
    /// As by the death of the process: everything stored is there, nothing was closed.
    Unclean,
}

/// A living index and what belongs to it.
pub trait Instance<K: Key>: Sync {
    /// The index.
    fn index(&self) -> &dyn Index<K>;

    /// A guard for the index.
    fn pin(&self) -> Guard<'_>;

    /// Shows one unit of the index; see [`Persistent::scan`](crate::Persistent::scan). An index that has no units is
    /// one.
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

    /// Seed of the placement hash.
    fn seed(&self) -> u64 {
        0
    }

    /// The word to put for `key` that has the number `tag`: the number itself, or where words are records a
    /// new one that is not reachable yet. Tags of records are never used twice.
    ///
    /// # Errors
    /// `NoSpace`.
    fn word(&self, _key: K::Ref<'_>, tag: u64) -> Result<u64> {
        Ok(tag)
    }

    /// The number of a word.
    fn tag(&self, word: u64) -> u64 {
        word
    }

    /// Takes back a word that was never put.
    fn discard(&self, _word: u64) {}

    /// Takes back a word that was replaced or removed under `guard`.
    fn retire(&self, _word: u64, _guard: &Guard<'_>) {}

    /// Finds out what an unclean stop left behind. May run beside mutations.
    ///
    /// # Errors
    /// Whatever prevents it; the test fails then.
    fn sweep(&self) -> Result<()> {
        Ok(())
    }

    /// Describes everything that is wrong with the structure or the space it takes. Runs alone, without guards.
    fn audit(&self) -> Vec<String> {
        Vec::new()
    }
}

/// How much to test, and which part of it.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Everything random follows from it.
    pub seed: u64,
    /// Multiplies counts of operations and rounds. 1 takes seconds.
    pub scale: usize,
    /// Threads in concurrent parts. More than the machine has, so that some are always in the middle of things.
    pub threads: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config { seed: 0x00e7_e23a_9000_0001, scale: 1, threads: 4 }
    }
}

impl Config {
    /// The default, changed by `EVERMAP_TESTKIT_SEED` and `EVERMAP_TESTKIT_SCALE`.
    ///
    /// # Panics
    /// If one of them is set to something that is no number: a long run must not turn out to be a short one.
    pub fn from_env() -> Self {
        let number = |name: &str| {
            let text = std::env::var(name).ok()?;
            Some(text.parse().unwrap_or_else(|_| panic!("{name}: {text:?} is not a number")))
        };
        let default = Config::default();
        Config {
            seed: number("EVERMAP_TESTKIT_SEED").unwrap_or(default.seed),
            scale: number("EVERMAP_TESTKIT_SCALE").map_or(default.scale, |scale| scale as usize),
            ..default
        }
    }

    /// A seed for one of several runs.
    fn seed_of(&self, run: usize) -> u64 {
        self.seed.wrapping_add(run as u64)
    }
}

/// True in `percent` of 100 cases.
fn chance(random: &mut Rng, percent: u64) -> bool {
    random.below(100) < percent
}

/// What a part of the kit found wrong, in words.
pub struct Failure(String);

impl Failure {
    fn new<K: ?Sized>(part: &str, universe: &str, seed: u64, what: impl fmt::Display) -> Self {
        let kind = std::any::type_name::<K>();
        Failure(format!("{part}, {kind} keys, {universe}, seed {seed}: {what}"))
    }

    /// All failures as one.
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

/// As [`Display`](fmt::Display): this is what a test prints that returns a failure.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {}

/// Declares a module of tests, one for each part of the kit.
///
/// `conformance!(name, subject, [kinds])` for a [`PoolSubject`] and `conformance!(volatile name, subject,
/// [kinds])` for any other [`Subject`]. `subject` is an expression that each test evaluates anew. `kinds` are
/// kinds of keys, and may be left out: then they are `u64`, [`Plain`], [`Coarse`] and, in pools,
/// [`Bytes`](crate::Bytes).
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
            u64, $crate::testkit::Plain, $crate::testkit::Coarse, $crate::Bytes
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
                persistence::sweep, persistence::full, persistence::reuse, damage::damage
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
