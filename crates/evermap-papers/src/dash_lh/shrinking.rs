//! Tests of [`shrink`](super::shrink).

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use evermap_index::hash::dash::layout::{Segment, Version};
use evermap_index::hash::dash::{Config, Geometry, Sizes};
use evermap_index::hash::mistakes;
use evermap_index::hash::segmented::Segmented;
use evermap_index::hash::segmented::core::HasCore;
use evermap_index::testkit::beside_readers;
use evermap_index::{Index, Key, Persistent, Stats};
use evermap_pm::medium::Note;
use evermap_pm::region::{Identity, RegionConfig};
use evermap_pm::sim::rng::Rng;
use evermap_pm::sim::{Access, ImageConfig, Model, Mutation, Observer, Sim, for_each_image};
use evermap_pm::{Medium, Pool};

use super::expand::Growing;
use super::pitfalls::{CAPACITY, all_there, is_sound, pool_in, reopened, tiny};
use super::{DashLh, Linear, TinyLh, numbers, prefix_if_initialised};

/// A pool that is large enough for whatever waits for guards, and a small index in it.
fn in_memory(extent_size: u64) -> (Sim, Arc<Pool<Sim>>) {
    let capacity = 1 << 28;
    let sim = Sim::in_memory(capacity).unwrap();
    let region = RegionConfig { extent_size, capacity, seed: Some(1) };
    let pool = Pool::create(sim.clone(), &region, Identity::default()).unwrap();
    (sim, pool)
}

fn insert<G: Geometry, const F: usize, const T: usize>(
    index: &DashLh<u64, Sim, G, F, T>,
    keys: impl IntoIterator<Item = u64>,
) {
    for key in keys {
        assert!(index.insert(key, key + 1, &index.pool().pin()).unwrap().inserted());
    }
}

fn remove<G: Geometry, const F: usize, const T: usize>(
    index: &DashLh<u64, Sim, G, F, T>,
    keys: impl IntoIterator<Item = u64>,
) {
    for key in keys {
        assert!(index.remove(key, &index.pool().pin()).unwrap().removed(), "key {key}");
    }
}

fn initialise_all(index: &TinyLh<u64, Sim>) {
    (0..index.map().count())
        .for_each(|number| index.initialise(number, &index.pool().pin()).unwrap());
}

fn named_arrays<G: Geometry, const F: usize, const T: usize>(
    index: &DashLh<u64, Sim, G, F, T>,
) -> usize {
    let arrays = index.map().arrays.iter();
    arrays.take_while(|array| array.load(Relaxed) != 0).count()
}

fn stats<G: Geometry, const F: usize, const T: usize>(index: &DashLh<u64, Sim, G, F, T>) -> Stats {
    index.stats(&index.pool().pin()).unwrap()
}

/// The order in which keys are removed.
#[derive(Clone, Copy, Debug)]
enum Order {
    Insertion,
    Reverse,
    Random,
    /// In the order of a walk, the first segments lose all records before the last ones lose any.
    Walk,
    /// In the order of ranks, the last segment and its origin are the last to lose their records.
    Ranks,
}

const ORDERS: [Order; 5] =
    [Order::Insertion, Order::Reverse, Order::Random, Order::Walk, Order::Ranks];

impl Order {
    fn of<G: Geometry, const F: usize, const T: usize>(
        self,
        index: &DashLh<u64, Sim, G, F, T>,
        keys: u64,
    ) -> Vec<u64> {
        let mut rng = Rng::new(7);
        let mut order: Vec<u64> = (0..keys).collect();
        match self {
            Order::Insertion => {}
            Order::Reverse => order.reverse(),
            Order::Random => {
                for i in (1..order.len()).rev() {
                    order.swap(i, rng.below(i as u64 + 1) as usize);
                }
            }
            Order::Walk => {
                order.clear();
                let guard = index.pool().pin();
                let each = &mut |_, word| {
                    order.push(word - 1);
                    true
                };
                index.for_each(&guard, each).unwrap();
            }
            Order::Ranks => {
                order.sort_by_key(|&key| numbers::rank(u64::hash(key, index.core().seed)));
            }
        }
        assert_eq!(order.len() as u64, keys);
        order
    }
}

/// Whatever is removed first, an index whose records are all gone takes little more space than a
/// new one, and can grow again.
fn is_small_when_empty<G: Geometry, const F: usize, const T: usize>(
    keys: u64,
    extent: u64,
    orders: &[Order],
) {
    for &order in orders {
        let (_, pool) = in_memory(extent);
        let root = pool.root(0);
        let index =
            DashLh::<u64, _, G, F, T>::create(pool.clone(), root, Config { initial_depth: 0 });
        let index = index.unwrap();
        let first = pool.heap_stats().allocated_bytes;
        for round in 0..2 {
            insert(&index, 0..keys);
            let (most, before) = (pool.heap_stats().allocated_bytes, stats(&index));
            let order_of_keys = order.of(&index, keys);
            let (nine_tenths, rest) = order_of_keys.split_at(keys as usize * 9 / 10);
            remove(&index, nine_tenths.iter().copied());
            pool.epoch().drain();
            let tenth = (pool.heap_stats().allocated_bytes, stats(&index));
            remove(&index, rest.iter().copied());
            pool.epoch().drain();
            let (left, after) = (pool.heap_stats().allocated_bytes, stats(&index));
            println!(
                "{order:?}: {most} bytes in {} segments, {} in {} for a tenth, {left} in {}",
                before.segments, tenth.0, tenth.1.segments, after.segments
            );
            // Full segments have no room for each other: then hardly any were merged.
            let are_full = matches!(order, Order::Walk | Order::Ranks);
            let slots = tenth.1.segments * (G::BUCKETS * G::BUCKET_SLOTS) as u64;
            assert!(are_full || slots < 10 * tenth.1.len, "{order:?}: {tenth:?}");
            assert!(left - first < (most - first) / 8, "{order:?}: {left} bytes of {most}");
            assert!(after.segments <= 1 + before.segments / 8, "{after:?}");
            assert!(after.merges > before.segments / 2, "{after:?}");
            assert_eq!(index.check(), Vec::<String>::new(), "{order:?}, round {round}");
        }
        insert(&index, 0..keys);
        all_there(&index, keys);
        assert_eq!(index.check(), Vec::<String>::new());
    }
}

/// With small segments: there are only as many as the removals of a few records can merge, because
/// in the order of a walk the last segment is full until only its own records are left. In the
/// order of ranks, even these would have to be fewer.
#[test]
fn an_emptied_index_is_hardly_larger_than_a_new_one() {
    is_small_when_empty::<Sizes<4, 2, 4>, 2, 2>(1000, 4096, &ORDERS[..4]);
}

/// With segments of the default size, in which only some removals try to shrink the index.
#[test]
fn an_emptied_index_of_full_size_is_hardly_larger_than_a_new_one() {
    is_small_when_empty::<Sizes, 4, 4>(60_000, 2 << 20, &ORDERS);
}

/// Counts what is read and what is flushed.
#[derive(Default)]
struct Counts {
    loads: AtomicU64,
    flushes: AtomicU64,
}

impl Observer for Counts {
    fn observe(&self, access: Access) {
        match access {
            Access::Load(_) => &self.loads,
            Access::Flush(..) => &self.flushes,
            _ => return,
        }
        .fetch_add(1, Relaxed);
    }
}

/// Removing twice as many records costs about twice as much, whatever is removed first.
#[test]
fn removals_cost_the_same_in_an_index_of_any_size() {
    let cost = |order: Order, keys| {
        let counts = Arc::new(Counts::default());
        let medium = Sim::in_memory(1 << 28).unwrap().observed_by(counts.clone());
        let region = RegionConfig { extent_size: 2 << 20, capacity: 1 << 28, seed: Some(1) };
        let pool = Pool::create(medium, &region, Identity::default()).unwrap();
        let index = DashLh::<u64, Sim>::create(pool.clone(), pool.root(0), Config::default());
        let index = index.unwrap();
        insert(&index, 0..keys);
        let order = order.of(&index, keys);
        let now = || [counts.loads.load(Relaxed), counts.flushes.load(Relaxed)];
        let before = now();
        remove(&index, order);
        let after = now();
        assert!(stats(&index).merges > 0);
        [0, 1].map(|i| (after[i] - before[i]) as f64 / keys as f64)
    };
    for order in ORDERS {
        let [less, more] = [20_000, 40_000].map(|keys| cost(order, keys));
        println!("{order:?}: {less:?} and {more:?} loads and flushes a removal");
        for i in 0..2 {
            assert!(more[i] < 1.25 * less[i], "{order:?}: {less:?}, {more:?}");
        }
    }
}

/// Insertions and removals in turn, at each size from one at which an index has just expanded to
/// one at which it has shrunk to little: neither happens again and again.
#[test]
fn an_index_does_not_grow_and_shrink_in_turn() {
    let (_, pool) = in_memory(4096);
    let index = tiny(&pool);
    insert(&index, 0..1000);
    let (first, mut before) = (index.map().count(), index.map().count());
    let (mut expanded, mut merged) = (0, 0);
    let mut note = || {
        let count = index.map().count();
        expanded += count.saturating_sub(before);
        merged += before.saturating_sub(count);
        before = count;
    };
    for keys in (20..=1000).rev().step_by(20) {
        for _ in 0..20 {
            insert(&index, keys..keys + 4);
            note();
            remove(&index, keys..keys + 4);
            note();
        }
        remove(&index, keys - 20..keys);
        note();
    }
    println!("{first} segments: {expanded} more, {merged} merged");
    assert!(expanded < first / 4 && merged > first / 2);
}

/// Returns whether arrays stay while a guard exists that is older than the merges. Segments that
/// were merged are locked.
fn arrays_stay(mutation: Option<Mutation>) -> bool {
    let (sim, pool) = in_memory(4096);
    let index = tiny(&pool);
    insert(&index, 0..400);
    initialise_all(&index);
    pool.epoch().drain();
    let slow = pool.pin();
    let (last, arrays) = (index.map().count() - 1, named_arrays(&index));
    let places: Vec<u64> = (0..=last).map(|number| index.place(number)).collect();
    sim.mutate(mutation);
    remove(&index, 0..400);
    assert!(index.map().count() < 5, "{} segments", index.map().count());
    let stay = (0..).zip(&places).all(|(number, &place)| index.place(number) == place);
    for &place in &places[index.map().count() as usize..] {
        let segment: &Segment<4, 2> = index.segment(place).unwrap();
        let is_locked = |word| Version(sim.load(word)).is_locked();
        assert!(segment.normal.iter().all(|bucket| is_locked(&bucket.version)));
    }
    drop(slow);
    pool.epoch().drain();
    insert(&index, 0..10);
    remove(&index, 0..10);
    assert!(named_arrays(&index) < arrays.min(4));
    assert_eq!(index.check(), Vec::<String>::new());
    stay
}

#[test]
fn an_array_stays_while_a_search_may_still_lead_there() {
    assert!(arrays_stay(None));
    assert!(!arrays_stay(Some(Mutation::Planted(mistakes::ARRAY_FREED_EARLY))));
}

/// Returns whether segments are merged while a guard exists that is older than their splits.
fn merges_under_an_old_guard(mutation: Option<Mutation>) -> bool {
    let (sim, pool) = in_memory(4096);
    let index = tiny(&pool);
    let slow = pool.pin();
    insert(&index, 0..400);
    let count = index.map().count();
    sim.mutate(mutation);
    remove(&index, 0..400);
    let merged = index.map().count() < count;
    drop(slow);
    pool.epoch().drain();
    insert(&index, 0..10);
    remove(&index, 0..10);
    assert!(index.map().count() < count);
    merged
}

#[test]
fn what_a_search_has_seen_split_is_not_merged_under_it() {
    assert!(!merges_under_an_old_guard(None));
    assert!(merges_under_an_old_guard(Some(Mutation::Planted(mistakes::MERGED_AT_ONCE))));
}

/// A segment that was merged does not come into use again while a search may go by what it was.
#[test]
fn an_index_does_not_expand_under_a_guard_older_than_a_merge() {
    let (_, pool) = in_memory(4096);
    let index = tiny(&pool);
    insert(&index, 0..400);
    initialise_all(&index);
    pool.epoch().drain();
    let slow = pool.pin();
    remove(&index, 0..400);
    let count = index.map().count();
    assert!(count < 5, "{count} segments");
    insert(&index, 0..400);
    assert_eq!(index.map().count(), count);
    all_there(&index, 400);
    assert_eq!(index.check(), Vec::<String>::new());
    drop(slow);
    pool.epoch().drain();
    insert(&index, 400..800);
    assert!(index.map().count() > count + 10);
    all_there(&index, 800);
    assert_eq!(index.check(), Vec::<String>::new());
}

/// A crash at any moment of a merge leaves all records, each in one place; and arrays that are in
/// use, or are used next, and no other space.
#[test]
fn an_interrupted_merge_is_undone_or_complete() {
    const KEYS: u64 = 60;
    const KEPT: u64 = 5;
    for model in [Model::Adr, Model::ProcessDeath] {
        let sim = Sim::new(CAPACITY).unwrap();
        let pool = pool_in(sim.clone());
        let index = tiny(&pool);
        insert(&index, 0..KEYS);
        initialise_all(&index);
        pool.epoch().drain();
        let count = index.map().count();
        sim.checkpoint();
        for key in KEPT..KEYS {
            sim.note(Note::Begin(key));
            remove(&index, [key]);
            sim.note(Note::End(key));
        }
        assert!(index.map().count() < 4 && named_arrays(&index) < 4);
        let (mut undone, mut complete, mut spare) = (0, 0, 0);
        for_each_image(
            &sim.trace(),
            &ImageConfig { per_point: 8, ..ImageConfig::of(model) },
            |image| {
                let index = reopened(image.bytes).expect("it was created before");
                let prefix =
                    |number| prefix_if_initialised(index.medium(), number, index.place(number));
                let last = index.map().count() - 1;
                let given = last > 0
                    && prefix(numbers::origin(last))
                        .is_some_and(|it| it.depth >= numbers::least_depth(last));
                undone += u32::from(last > 0 && prefix(last).is_some() && !given);
                complete += u32::from(last + 1 < count);
                let needed = Linear::<Sim, 2, 2>::arrays_for(last + 1);
                spare += u32::from(named_arrays(&index) > needed);
                let removed = (KEPT..KEYS).take_while(|&key| image.point.completed(key)).count();
                is_sound(&index);
                all_there(&index, KEPT);
                let mut left: BTreeMap<u64, u64> = BTreeMap::new();
                let each = &mut |key, word| left.insert(key, word).is_none();
                index.for_each(&index.pool().pin(), each).unwrap();
                let (most, least) = (KEYS - removed as u64, KEYS - removed as u64 - 1);
                assert!((least.max(KEPT)..=most).contains(&(left.len() as u64)), "{left:?}");
                assert_eq!(index.check(), Vec::<String>::new());
                insert(&index, (KEYS..3 * KEYS).filter(|key| !left.contains_key(key)));
                assert_eq!(index.check(), Vec::<String>::new());
                ControlFlow::Continue(())
            },
        );
        println!("{model:?}: {undone} undone, {complete} complete, {spare} with a spare array");
        assert!(undone > 0 && complete > 0 && spare > 0);
    }
}

/// Keys that stay are found by every lookup, and shown once by every walk, while two threads make
/// the index grow and shrink.
#[test]
fn no_lookup_and_no_walk_misses_a_record_that_is_merged() {
    const KEPT: u64 = 64;
    const PASSING: u64 = 500;
    let (_, pool) = in_memory(4096);
    let index = tiny(&pool);
    insert(&index, 0..KEPT);
    let (mut least, mut most) = (u64::MAX, 0);
    let pass = |part: u64| {
        let keys = (KEPT..KEPT + PASSING).map(move |key| part * 10_000 + key);
        insert(&index, keys.clone());
        let grown = index.map().count();
        remove(&index, keys);
        grown
    };
    let change = |_| {
        let grown = std::thread::scope(|threads| {
            let other = threads.spawn(|| pass(1));
            pass(2).max(other.join().unwrap())
        });
        most = most.max(grown);
        least = least.min(index.map().count());
    };
    beside_readers(30, change, || {
        for key in 0..KEPT {
            let found = index.get(key, &pool.pin()).unwrap();
            assert_eq!(found, Some(key + 1), "key {key} was present all the time");
        }
        let mut seen = [0; KEPT as usize];
        let each = &mut |key, _| {
            if let Some(seen) = seen.get_mut(key as usize) {
                *seen += 1;
            }
            true
        };
        index.for_each(&pool.pin(), each).unwrap();
        assert_eq!(seen, [1; KEPT as usize]);
    });
    println!("{least} to {most} segments, {:?}", stats(&index));
    // How many depends on how long guards of the readers are there.
    assert!(most > least && stats(&index).merges > 10);
    pool.epoch().drain();
    pass(1);
    assert!(index.map().count() < most / 2, "{} segments", index.map().count());
    all_there(&index, KEPT);
    assert_eq!(index.check(), Vec::<String>::new());
}
