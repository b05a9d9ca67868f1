//! Tests of the tables: of each by itself, and with planted mistakes, which they must notice.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use evermap_index::testkit::model::panicked;
use evermap_pm::sim::keep_panics_quiet;
use evermap_pm::sim::schedule::{self, Schedule};
use evermap_pm::{Domain, Guard};

use super::*;

mod histories;
pub(super) mod hook;
mod kit;
mod schedules;
mod tables;
mod zipped;

pub(super) type Plain<T = Unordered> = Rp<u64, u64, Identity, T>;

/// Creates a domain without a reclaimer of its own.
fn domain() -> Arc<Domain> {
    Arc::new(Domain::new(Box::new(|_| {})))
}

/// A table that only `resize` and `help` resize, from one bucket on.
fn tiny(buckets: u64) -> Config {
    Config {
        buckets,
        buckets_min: 1,
        buckets_max: 64,
        stripes: 4,
        policy: None,
        ..Config::default()
    }
}

/// The ways in which an [`Rp`] is resized.
fn places() -> [(Place, Place); 4] {
    use Place::{New, Same};
    [(New, New), (New, Same), (Same, New), (Same, Same)]
}

/// Returns the pairs that a walk shows, sorted.
fn pairs<T: ResizableTable<u64, u64>>(table: &T, guard: &Guard<'_>) -> Vec<(u64, u64)> {
    let mut pairs = Vec::new();
    table.for_each(guard, &mut |&key, &value| {
        pairs.push((key, value));
        true
    });
    pairs.sort_unstable();
    pairs
}

/// A kind of table, so that a test can be written once for all.
trait Kind {
    type Table<S: BuildHasher + Send + Sync>: ResizableTable<u64, u64>;

    const NAME: &'static str;

    fn create<S: BuildHasher + Send + Sync>(
        domain: Arc<Domain>,
        hasher: S,
        config: Config,
    ) -> Result<Self::Table<S>>;
}

macro_rules! kinds {
    ($($kind:ident: $table:ty;)+) => {
        $(
            enum $kind {}

            impl Kind for $kind {
                type Table<S: BuildHasher + Send + Sync> = $table;

                const NAME: &'static str = stringify!($kind);

                fn create<S: BuildHasher + Send + Sync>(
                    domain: Arc<Domain>,
                    hasher: S,
                    config: Config,
                ) -> Result<Self::Table<S>> {
                    <$table>::new(domain, hasher, config)
                }
            }
        )+
    };
}

kinds! {
    Relativistic: Rp<u64, u64, S>;
    Sorted: RpSorted<u64, u64, S>;
    Moving: Ddds<u64, u64, S>;
    Locking: RwLockTable<u64, u64, S>;
}

/// Returns the message with which `body` panics, if it does.
fn panic_of(body: impl FnOnce() + Send) -> Option<String> {
    // Under the simulated scheduler, which catches panics, and keeps them quiet.
    keep_panics_quiet();
    let bodies: Vec<Box<dyn FnOnce() + Send + '_>> = vec![Box::new(body)];
    let run = || schedule::run(Schedule::default(), bodies);
    catch_unwind(AssertUnwindSafe(run)).err().map(panicked)
}
