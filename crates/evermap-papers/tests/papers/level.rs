//! Mistakes of other implementations of Level hashing, with one test for each.
//!
//! The numbers are those of `docs/design/level.md`, which also lists the pitfalls that cannot occur
//! here.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use evermap_index::testkit::crash::{Workload, assert_survives};
use evermap_index::testkit::{Coarse, PoolSubject, beside_readers};
use evermap_index::{Action, Change, Guard, Index, MutateMode, Persistent, Result, Stats, Visitor};
use evermap_papers::level::{Config, Level, Locking, Resize, Tiny};
use evermap_pm::medium::{Counter, Note};
use evermap_pm::region::{Identity, OnSuspect, ROOTS, RegionConfig};
use evermap_pm::sim::{Image, ImageConfig, Model, Sim, for_each_image};
use evermap_pm::{Medium, PmU64, Pool};

fn pool<M: Medium>(medium: M, extent_size: u64) -> Arc<Pool<M>> {
    let config = RegionConfig { extent_size, capacity: medium.capacity(), seed: Some(1) };
    Pool::create(medium, &config, Identity::default()).unwrap()
}

fn dram(capacity: u64, extent_size: u64) -> Arc<Pool<Sim>> {
    pool(Sim::in_memory(capacity).unwrap(), extent_size)
}

fn tiny(resize: Resize) -> Config {
    Config { top_level: 2, resize, locking: Locking::Optimistic }
}

/// Keys with equal hashes fill their four buckets, and growing the table would not separate them.
/// Further ones are refused, and the table stays small.
#[test]
fn equal_hashes_end_in_no_space() {
    for resize in [Resize::Incremental, Resize::Blocking] {
        let pool = dram(64 << 20, 4096);
        let index = Tiny::<Coarse, _>::create(pool.clone(), pool.root(0), tiny(resize)).unwrap();
        let keys: Vec<u64> = (0..200).map(|i| 0x9a3c_55f0 << 32 | i).collect();
        let insert = |&&key: &&u64| match index.insert(key, key, &pool.pin()) {
            Ok(change) => change.inserted(),
            Err(error) => {
                assert!(error.is_no_space(), "{error}");
                false
            }
        };
        let held: Vec<&u64> = keys.iter().filter(insert).collect();
        // Four buckets of four slots, six while the lowest level cannot be emptied.
        assert!((16..=24).contains(&held.len()), "{}", held.len());
        for key in &keys {
            let due = held.contains(&key).then_some(*key);
            assert_eq!(index.get(*key, &pool.pin()).unwrap(), due);
        }
        let stats = index.stats(&pool.pin()).unwrap();
        assert!(stats.depth <= 6, "{stats:?}");
        assert_eq!(index.check(), Vec::<String>::new());
        // When there are fewer than four buckets hold, there is space again.
        for key in &held[15..] {
            assert!(index.remove(**key, &pool.pin()).unwrap().removed());
        }
        let refused = keys.iter().find(|key| !held.contains(key)).unwrap();
        assert!(index.insert(*refused, 1, &pool.pin()).unwrap().inserted());
        assert_eq!(index.check(), Vec::<String>::new());
    }
}

/// Returns the maximum number of lines that one insert flushes while the table grows several times,
/// and how often it grew.
fn costliest_insert(resize: Resize) -> (u64, u64) {
    let counter = Arc::new(Counter::default());
    let medium = Sim::in_memory(1 << 28).unwrap().observed_by(counter.clone());
    let pool = pool(medium, 2 << 20);
    let config = Config { resize, ..Config::default() };
    let index = Level::<u64, _>::create(pool.clone(), pool.root(0), config).unwrap();
    let mut most = 0;
    for key in 0..100_000 {
        counter.reset();
        index.insert(key, key, &pool.pin()).unwrap();
        most = most.max(counter.counts().lines_flushed);
    }
    (most, index.stats(&pool.pin()).unwrap().splits)
}

/// The work of growing the table is divided among many inserts, whatever its size.
#[test]
fn no_insert_pays_for_a_whole_resize() {
    let (incremental, growths) = costliest_insert(Resize::Incremental);
    assert!(growths >= 4, "{growths}");
    // 64 buckets are prepared, one is emptied, and the insert itself.
    assert!(incremental < 250, "{incremental} lines in one insert");
    let (blocking, growths) = costliest_insert(Resize::Blocking);
    assert!(growths >= 4, "{growths}");
    assert!(
        blocking > 10_000,
        "{blocking} lines: this is the cost of growing in one step, as in the paper"
    );
}

/// Returns a tiny index with this number of keys.
fn with_keys(keys: u64) -> (Arc<Pool<Sim>>, Tiny<u64, Sim>) {
    let pool = dram(1 << 28, 4096);
    let index =
        Tiny::<u64, _>::create(pool.clone(), pool.root(0), tiny(Resize::Incremental)).unwrap();
    (0..keys).for_each(|key| {
        index.insert(key, key, &pool.pin()).unwrap();
    });
    (pool, index)
}

/// A walk, unit by unit, and how often it has shown each key.
#[derive(Default)]
struct Walker {
    from: u64,
    has_ended: bool,
    shown: HashMap<u64, u32>,
}

impl Walker {
    /// Continues the walk by up to this number of units.
    fn advance(&mut self, pool: &Arc<Pool<Sim>>, index: &Tiny<u64, Sim>, units: usize) {
        for _ in 0..units {
            if self.has_ended {
                return;
            }
            let mut each = |key, _| *self.shown.entry(key).or_insert(0) += 1;
            let (unit, next) = index.scan(self.from, &pool.pin(), &mut each);
            unit.unwrap();
            (self.from, self.has_ended) = (next.unwrap_or(0), next.is_none());
        }
    }
}

/// Inserts keys from `from` on until the table has grown this number of times. Returns the first
/// key that was not inserted.
fn grow(pool: &Arc<Pool<Sim>>, index: &Tiny<u64, Sim>, from: u64, times: u64) -> u64 {
    let grown = || index.stats(&pool.pin()).unwrap().splits;
    let (before, mut key) = (grown(), from);
    while grown() < before + times {
        for key in key..key + 50 {
            index.insert(key, key, &pool.pin()).unwrap();
        }
        key += 50;
    }
    key
}

/// Any number of walks can be in progress, and each can pause anywhere while the table grows
/// several times: each shows every key that is present throughout once, and no key twice. No thread
/// waits for a paused walk.
#[test]
fn walks_that_pause_miss_nothing_however_many_there_are() {
    const KEYS: u64 = 2600;
    const WALKS: usize = 40;
    let (pool, index) = with_keys(KEYS);
    let mut walkers: Vec<Walker> = (0..WALKS).map(|_| Walker::default()).collect();
    // They pause at different places.
    for (at, walker) in walkers.iter_mut().enumerate() {
        walker.advance(&pool, &index, 1 + at % 5);
    }
    assert!(walkers.iter().all(|walker| !walker.has_ended));
    let left = grow(&pool, &index, KEYS, 2);
    walkers.iter_mut().for_each(|walker| walker.advance(&pool, &index, 2));
    grow(&pool, &index, left, 1);
    for walker in &mut walkers {
        walker.advance(&pool, &index, usize::MAX);
        assert!((0..KEYS).all(|key| walker.shown.get(&key) == Some(&1)));
        assert!(walker.shown.values().all(|&times| times == 1));
    }
    assert_eq!(index.check(), Vec::<String>::new());
}

/// Calls `meanwhile` when the first word is shown, and counts how often each word is shown.
struct Interrupted<F: FnOnce()> {
    meanwhile: Option<F>,
    shown: HashMap<u64, u32>,
}

impl<F: FnOnce()> Visitor for Interrupted<F> {
    fn block(&mut self, _offset: u64) {}

    fn word(&mut self, word: u64) {
        *self.shown.entry(word).or_insert(0) += 1;
        if let Some(meanwhile) = self.meanwhile.take() {
            meanwhile();
        }
    }
}

/// A visit, on which the sweep relies, shows all words, whatever walks begin, pause and end at the
/// same time, and however the table grows.
#[test]
fn a_visit_misses_nothing_however_many_walks_there_are() {
    const KEYS: u64 = 2600;
    for walks in [0, 1, 15, 16, 17, 100] {
        let (pool, index) = with_keys(KEYS);
        let meanwhile = || {
            let mut others: Vec<Walker> = (0..walks).map(|_| Walker::default()).collect();
            others.iter_mut().for_each(|walker| walker.advance(&pool, &index, 1));
            let left = grow(&pool, &index, KEYS, 1);
            drop(others);
            grow(&pool, &index, left, 1);
        };
        let mut visitor = Interrupted { meanwhile: Some(meanwhile), shown: HashMap::new() };
        index.visit(&mut visitor).unwrap();
        let shown = visitor.shown;
        assert!((0..KEYS).all(|key| shown.get(&key) == Some(&1)), "{walks} walks");
        assert!(shown.values().all(|&times| times == 1), "{walks} walks");
    }
}

/// However long a walk pauses, the table grows when it is full, and inserts find space as if there
/// were no walk.
#[test]
fn a_paused_walk_prevents_nothing() {
    const KEYS: u64 = 2600;
    let grown = |pauses: bool| {
        let (pool, index) = with_keys(KEYS);
        let mut walker = Walker::default();
        walker.advance(&pool, &index, usize::from(pauses));
        (KEYS..2 * KEYS).for_each(|key| {
            index.insert(key, key, &pool.pin()).unwrap();
        });
        let stats = index.stats(&pool.pin()).unwrap();
        (stats.splits, stats.depth, stats.pm_bytes)
    };
    assert_eq!(grown(true), grown(false));
}

/// L8: a lookup visits one bucket after another, and a record may move to one that was already
/// visited. Keys that are never removed must always be found while the table grows, with either
/// kind of resize.
#[test]
fn l8_no_lookup_misses_a_record_that_moves() {
    const KEPT: u64 = 200;
    for (resize, locking) in [
        (Resize::Incremental, Locking::Optimistic),
        (Resize::Incremental, Locking::Striped),
        (Resize::Blocking, Locking::Optimistic),
        (Resize::Blocking, Locking::Striped),
    ] {
        for _ in 0..4 {
            let pool = dram(1 << 28, 4096);
            let config = Config { locking, ..tiny(resize) };
            let index = Tiny::<u64, _>::create(pool.clone(), pool.root(0), config).unwrap();
            for key in 0..KEPT {
                index.insert(key, key + 1, &pool.pin()).unwrap();
            }
            let change = |round| {
                for key in KEPT + 250 * round..KEPT + 250 * (round + 1) {
                    index.insert(key, key, &pool.pin()).unwrap();
                }
            };
            beside_readers(80, change, || {
                for key in 0..KEPT {
                    let found = index.get(key, &pool.pin()).unwrap();
                    assert_eq!(found, Some(key + 1), "key {key} was always present");
                }
            });
            assert!(index.stats(&pool.pin()).unwrap().splits >= 5);
            assert_eq!(index.check(), Vec::<String>::new());
        }
    }
}

/// A lookup that shares locks stores to a line of persistent memory, twice, for each bucket that it
/// searches. Another one stores nothing.
#[test]
fn lookups_store_where_they_share_locks() {
    for (locking, least, most) in [(Locking::Optimistic, 0, 0), (Locking::Striped, 2, 8)] {
        let counter = Arc::new(Counter::default());
        let medium = Sim::in_memory(1 << 26).unwrap().observed_by(counter.clone());
        let pool = pool(medium, 2 << 20);
        let config = Config { locking, ..Config::default() };
        let index = Level::<u64, _>::create(pool.clone(), pool.root(0), config).unwrap();
        (0..2000).for_each(|key| {
            index.insert(key, key, &pool.pin()).unwrap();
        });
        for key in 0..4000 {
            counter.reset();
            let found = index.get(key, &pool.pin()).unwrap();
            assert_eq!(found, (key < 2000).then_some(key));
            let counts = counter.counts();
            let stores = counts.stores + counts.cas;
            let least = if key < 2000 { least } else { most };
            assert!((least..=most).contains(&stores), "{locking:?}, key {key}: {stores}");
            assert_eq!((counts.lines_flushed, counts.fences), (0, 0));
        }
    }
}

/// L8, LV-15: two threads insert the same keys. Each key is added by exactly one of them, and keeps
/// its word.
#[test]
fn l8_concurrent_insertions_of_one_key_add_it_once() {
    const KEYS: u64 = 5000;
    let pool = dram(1 << 26, 4096);
    let index =
        Tiny::<u64, _>::create(pool.clone(), pool.root(0), tiny(Resize::Incremental)).unwrap();
    let insert_all = |thread: u64| -> Vec<u64> {
        let mine =
            |&key: &u64| index.insert(key, key * 2 + thread, &pool.pin()).unwrap().inserted();
        (0..KEYS).filter(mine).collect()
    };
    let [one, other] = std::thread::scope(|threads| {
        let handles = [0, 1].map(|thread| threads.spawn(move || insert_all(thread)));
        handles.map(|handle| handle.join().unwrap())
    });
    assert_eq!(one.len() + other.len(), KEYS as usize);
    for (thread, keys) in [(0, one), (1, other)] {
        for key in keys {
            assert_eq!(index.get(key, &pool.pin()).unwrap(), Some(key * 2 + thread));
        }
    }
    assert_eq!(index.check(), Vec::<String>::new());
}

/// A walk that is interrupted between its units shows each record that is present throughout once,
/// however the table grows meanwhile.
#[test]
fn walks_show_each_record_once_while_the_table_grows() {
    for insertions_between in [1, 5, 30] {
        let pool = dram(1 << 26, 4096);
        let index = Tiny::<u64, _>::create(
            pool.clone(),
            pool.root(0),
            Config { top_level: 8, ..Config::default() },
        )
        .unwrap();
        let stable = 1200;
        for key in 0..stable {
            index.insert(key, key, &pool.pin()).unwrap();
        }
        let mut next = 1_000_000;
        let mut shown: HashMap<u64, u32> = HashMap::new();
        let mut from = Some(0);
        while let Some(here) = from {
            let guard = pool.pin();
            let (result, more) = index.scan(here, &guard, &mut |key, word| {
                assert_eq!(key, word);
                *shown.entry(key).or_default() += 1;
            });
            result.unwrap();
            drop(guard);
            from = more;
            for _ in 0..insertions_between * 8 {
                index.insert(next, next, &pool.pin()).unwrap();
                next += 1;
            }
        }
        for key in 0..stable {
            assert_eq!(shown.get(&key), Some(&1), "key {key}, {insertions_between} between");
        }
        assert!(shown.values().all(|&times| times == 1));
        assert_eq!(index.check(), Vec::<String>::new());
    }
}

/// An index is durable when `create` returns, although it was not used yet.
#[test]
fn creation_is_durable_when_it_returns() {
    const CAPACITY: u64 = 128 << 10;
    let sim = Sim::new(CAPACITY).unwrap();
    let pool = pool(sim.clone(), 4096);
    sim.note(Note::Begin(0));
    Tiny::<u64, _>::create(pool.clone(), pool.root(0), tiny(Resize::Incremental)).unwrap();
    sim.note(Note::End(0));
    drop(pool);
    let mut images = 0;
    let visit = |image: &Image<'_>| {
        if image.point.completed(0) {
            let survivor = Sim::from_image(image.bytes, CAPACITY).unwrap();
            let (pool, _) = Pool::open(survivor, Identity::default(), OnSuspect::Refuse).unwrap();
            let index = Tiny::<u64, _>::open(pool.clone(), pool.root(0)).unwrap();
            assert_eq!(index.get(1, &pool.pin()).unwrap(), None);
            images += 1;
        }
        ControlFlow::Continue(())
    };
    for_each_image(&sim.trace(), &ImageConfig::default(), visit);
    assert!(images > 0);
}

/// An index in memory that contained another one before, with the same kinds of blocks in the same
/// places. Words that it does not initialise have the values of the former index.
struct Recycled<M: Medium>(Tiny<u64, M>);

impl<M: Medium> Index<u64> for Recycled<M> {
    fn get(&self, key: u64, guard: &Guard<'_>) -> Result<Option<u64>> {
        self.0.get(key, guard)
    }

    fn mutate(
        &self,
        key: u64,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        self.0.mutate(key, mode, guard, decide)
    }

    fn for_each(&self, guard: &Guard<'_>, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        self.0.for_each(guard, each)
    }

    fn stats(&self, guard: &Guard<'_>) -> Result<Stats> {
        self.0.stats(guard)
    }
}

impl<M: Medium> Persistent<M> for Recycled<M> {
    type Config = Config;

    fn create(pool: Arc<Pool<M>>, root: &PmU64, config: Config) -> Result<Self> {
        struct Blocks(Vec<u64>);
        impl Visitor for Blocks {
            fn block(&mut self, offset: u64) {
                self.0.push(offset);
            }
            fn word(&mut self, _word: u64) {}
        }
        // Under another root, so that it is not taken for this one after a crash.
        let slot = pool.root(ROOTS - 1);
        let former = Tiny::<u64, M>::create(pool.clone(), slot, config)?;
        for key in 0..400 {
            former.insert(key, 0xdead, &pool.pin())?;
        }
        let mut blocks = Blocks(Vec::new());
        former.visit(&mut blocks)?;
        let m = pool.medium();
        m.store(slot, 0);
        m.persist(slot);
        pool.epoch().drain();
        blocks.0.into_iter().for_each(|block| pool.free_unpublished(block));
        Tiny::create(pool, root, config).map(Recycled)
    }

    fn is_at(pool: &Pool<M>, root: &PmU64) -> bool {
        Tiny::<u64, M>::is_at(pool, root)
    }

    fn open(pool: Arc<Pool<M>>, root: &PmU64) -> Result<Self> {
        Tiny::open(pool, root).map(Recycled)
    }

    fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        self.0.visit(visitor)
    }

    fn scan(
        &self,
        from: u64,
        guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        self.0.scan(from, guard, each)
    }

    fn check(&self) -> Vec<String> {
        self.0.check()
    }
}

struct InUsedMemory;

impl PoolSubject<u64> for InUsedMemory {
    type Index = Recycled<Sim>;

    fn config(&self) -> Config {
        tiny(Resize::Incremental)
    }
}

#[test]
fn used_memory_makes_no_difference() {
    assert_survives::<u64, _>(&InUsedMemory, Workload::GROWING, Model::Adr, 0..2);
}
