//! Tests of the map.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use evermap_index::testkit::{delays, tier};
use evermap_pm::sim::schedule::{Schedule, Strategy};
use evermap_pm::sim::{Sim, rng::Rng};
use evermap_pm::{Domain, Medium, PmU64};

use super::*;

#[cfg(test)]
mod api;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod lifetimes;
#[cfg(test)]
mod model;
#[cfg(test)]
mod order;
#[cfg(test)]
mod panics;
#[cfg(test)]
mod schedules;
#[cfg(test)]
mod sizes;
#[cfg(test)]
mod words;

thread_local! {
    /// The number of accesses of this thread to what threads share.
    static STEPS: Cell<u64> = const { Cell::new(0) };
    /// The medium whose accesses are the switches of the simulated scheduler.
    static SWITCHES: RefCell<Option<Sim>> = const { RefCell::new(None) };
}

/// Lets the kit delay the thread, or the simulated scheduler run another one.
#[inline(always)]
pub(super) fn step() {
    delays::step();
    STEPS.set(STEPS.get() + 1);
    SWITCHES.with_borrow(|sim| {
        if let Some(sim) = sim {
            let cell = &sim.slice::<PmU64>(4096, 1).expect("a word of the medium")[0];
            // A load, after which a thread may be paused for long; and a store, after which others
            // may be able to continue.
            sim.load(cell);
            sim.store_transient(cell, 0);
        }
    });
}

/// Runs `bodies` as threads under the simulated scheduler.
pub(super) fn in_turns<'env, R: Send + 'env>(
    seed: u64,
    bodies: Vec<Box<dyn FnOnce() -> R + Send + 'env>>,
) -> Vec<R> {
    let sim = Sim::new(1 << 16).unwrap();
    sim.grow(1 << 16).unwrap();
    sim.pause();
    sim.set_schedule(Schedule { strategy: Strategy::Mixed, seed });
    let wrap = |body: Box<dyn FnOnce() -> R + Send + 'env>| {
        let sim = sim.clone();
        let body = move || {
            struct Reset;
            impl Drop for Reset {
                fn drop(&mut self) {
                    SWITCHES.set(None);
                }
            }
            let _reset = Reset;
            SWITCHES.set(Some(sim));
            body()
        };
        Box::new(body) as Box<dyn FnOnce() -> R + Send + 'env>
    };
    sim.in_parallel(bodies.into_iter().map(wrap).collect())
}

/// A hasher for numbers that returns few different hashes: the last `BITS` bits of the number.
#[derive(Default)]
pub(super) struct Weak<const BITS: u32>(u64);

impl<const BITS: u32> Hasher for Weak<BITS> {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = number & ((1 << BITS) - 1);
    }
}

pub(super) type BuildWeak<const BITS: u32> = BuildHasherDefault<Weak<BITS>>;

/// A hasher of which an attacker knows many keys with the same hash, unless something unknown was
/// hashed before them.
#[derive(Default)]
pub(super) struct Attacked(u64);

impl Hasher for Attacked {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }
    fn write_u64(&mut self, number: u64) {
        // Without a seed, all multiples of a number that is easily guessed collide.
        self.0 = if self.0 == 0 {
            (number % 1024) | (1 << 60)
        } else {
            (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        };
    }
}

pub(super) type BuildAttacked = BuildHasherDefault<Attacked>;

/// Creates a map of one shard with a domain of its own, so that few keys cause every change.
pub(super) fn tiny<K, V, S: Default>() -> VolatileMap<K, V, S> {
    VolatileMap::with_shards(S::default(), Arc::new(Domain::new(Box::new(|_| ()))), 0)
}

/// Creates such a map with a mistake.
pub(super) fn mistaken<K, V, S: Default>(
    mistake: Option<mistakes::Mistake>,
) -> VolatileMap<K, V, S> {
    let mut map = tiny();
    map.shards.iter_mut().for_each(|shard| shard.mistake = mistake);
    map
}

impl<K: Hash + Eq, V, S: BuildHasher> VolatileMap<K, V, S> {
    /// Describes each violated invariant. Nobody else uses the map.
    fn audit(&self) -> Vec<String> {
        let guard = self.domain.pin();
        self.shards.iter().flat_map(|shard| shard.check(&self.hashing, &guard)).collect()
    }

    fn longest_chain(&self) -> usize {
        let guard = self.domain.pin();
        self.shards.iter().map(|shard| shard.longest_chain(&guard)).max().unwrap_or(0)
    }

    fn finish_resizes(&self) {
        let guard = self.domain.pin();
        self.shards.iter().for_each(|shard| shard.finish(&self.hashing, &guard));
    }
}

/// Ignores a result.
pub(super) fn ignore<T>(_: T) {}

/// Counts the values that exist.
#[derive(Default)]
pub(super) struct Registry {
    created: AtomicUsize,
    dropped: AtomicUsize,
}

impl Registry {
    pub(super) fn alive(&self) -> usize {
        self.created.load(SeqCst) - self.dropped.load(SeqCst)
    }

    pub(super) fn create(self: &Arc<Self>, number: u64) -> Tracked {
        self.created.fetch_add(1, SeqCst);
        Tracked { number, state: AtomicU64::new(ALIVE), registry: self.clone() }
    }
}

const ALIVE: u64 = 0x600d_600d_600d_600d;
const DROPPED: u64 = 0xdead_dead_dead_dead;

/// A value that notices if it is used after it was dropped, or dropped twice.
pub(super) struct Tracked {
    number: u64,
    state: AtomicU64,
    registry: Arc<Registry>,
}

impl Tracked {
    /// Returns the number, or `None` if the value was dropped.
    pub(super) fn number(&self) -> Option<u64> {
        (self.state.load(SeqCst) == ALIVE).then_some(self.number)
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        assert_eq!(self.state.swap(DROPPED, SeqCst), ALIVE, "dropped twice");
        self.registry.dropped.fetch_add(1, SeqCst);
    }
}
