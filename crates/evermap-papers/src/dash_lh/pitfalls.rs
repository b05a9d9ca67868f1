//! One test for each mistake of other implementations of Dash-LH, and tests of what is specific to
//! linear hashing.
//!
//! The numbers are those of `docs/design/dash-lh.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, OnceLock};

use evermap_index::hash::dash::layout::{Bucket, Header, Segment, Version};
use evermap_index::hash::dash::{Config, Geometry};
use evermap_index::hash::hash_prefix::HashPrefix;
use evermap_index::hash::segmented::core::HasCore;
use evermap_index::hash::segmented::map::SegmentMap;
use evermap_index::hash::segmented::{SegmentHeader, Segmented, chain};
use evermap_index::testkit::{Coarse, Plain, beside_readers};
use evermap_index::{Index, Persistent, Visitor};
use evermap_pm::medium::Note;
use evermap_pm::region::{Identity, OnSuspect, RegionConfig};
use evermap_pm::sim::{Access, ImageConfig, Model, Observer, Sim, for_each_image};
use evermap_pm::{Medium, Pool};

use super::expand::Growing;
use super::layout::{ARRAYS, Array, Extent};
use super::{DashLh, Linear, TinyLh, numbers, prefix_if_initialised};

pub(super) const CAPACITY: u64 = 512 << 10;

fn config() -> RegionConfig {
    RegionConfig { extent_size: 4096, capacity: CAPACITY, seed: Some(1) }
}

pub(super) fn pool_in<M: Medium>(medium: M) -> Arc<Pool<M>> {
    Pool::create(medium, &config(), Identity::default()).unwrap()
}

fn dram() -> Arc<Pool<Sim>> {
    pool_in(Sim::in_memory(CAPACITY).unwrap())
}

pub(super) fn tiny<M: Medium>(pool: &Arc<Pool<M>>) -> TinyLh<u64, M> {
    TinyLh::create(pool.clone(), pool.root(0), Config { initial_depth: 0 }).unwrap()
}

pub(super) fn reopened(image: &[u8]) -> Option<TinyLh<u64, Sim>> {
    let sim = Sim::from_image(image, CAPACITY).unwrap();
    let (pool, _) = Pool::open(sim, Identity::default(), OnSuspect::Refuse).unwrap();
    (pool.medium().load(pool.root(0)) != 0)
        .then(|| TinyLh::open(pool.clone(), pool.root(0)).unwrap())
}

/// Inserts the keys below `keys` into a new index. Calls `judge` with the recovered index after
/// each possible crash, and with the number of keys that were acknowledged before it.
fn crash_everywhere(model: Model, keys: u64, judge: impl FnMut(&TinyLh<u64, Sim>, u64)) {
    let sim = Sim::new(CAPACITY).unwrap();
    let pool = pool_in(sim.clone());
    let index = tiny(&pool);
    crash_inserts(&sim, &index, model, keys, judge);
}

/// Like [`crash_everywhere`], for an existing index.
fn crash_inserts(
    sim: &Sim,
    index: &TinyLh<u64, Sim>,
    model: Model,
    keys: u64,
    mut judge: impl FnMut(&TinyLh<u64, Sim>, u64),
) {
    sim.checkpoint();
    for key in 0..keys {
        sim.note(Note::Begin(key));
        index.insert(key, key + 1, &index.pool().pin()).unwrap();
        sim.note(Note::End(key));
    }
    let mut images = 0;
    for_each_image(
        &sim.trace(),
        &ImageConfig { per_point: 16, ..ImageConfig::of(model) },
        |image| {
            images += 1;
            let acknowledged = (0..keys).take_while(|&key| image.point.completed(key)).count();
            judge(&reopened(image.bytes).expect("it was created before"), acknowledged as u64);
            ControlFlow::Continue(())
        },
    );
    assert!(images > 500, "{images} images");
}

pub(super) fn all_there<M, G, const F: usize, const T: usize>(
    index: &DashLh<u64, M, G, F, T>,
    keys: u64,
) where
    M: Medium,
    G: Geometry,
{
    for key in 0..keys {
        let found = index.get(key, &index.pool().pin()).unwrap();
        assert_eq!(found, Some(key + 1), "key {key} of {keys}");
    }
}

/// Calls a function before every fence.
struct OnFence(OnceLock<Box<dyn Fn() + Send + Sync>>);

impl Observer for OnFence {
    fn observe(&self, access: Access) {
        if let (Access::Fence, Some(look)) = (access, self.0.get()) {
            look();
        }
    }
}

/// P12: a thread that uses a new extent moves records to new segments. If the extent is not durable
/// by then, a crash undoes it, and lookups do not find the moved records. So no thread may use an
/// extent before it is durable.
#[test]
fn p12_no_search_uses_an_extent_that_is_not_durable() {
    let on_fence = Arc::new(OnFence(OnceLock::new()));
    let pool = pool_in(Sim::in_memory(CAPACITY).unwrap().observed_by(on_fence.clone()));
    let index = Arc::new(tiny(&pool));
    let watched = Arc::downgrade(&index);
    let expansions = Arc::new(std::sync::Mutex::new((1, 0)));
    let seen = expansions.clone();
    let look = move || {
        let Some(index) = watched.upgrade() else { return };
        let mut seen = seen.lock().unwrap();
        let stored = Extent::decode(index.medium().load(&index.map().root().extent)).unwrap();
        let led_by = index.map().count();
        assert!(led_by <= seen.0, "searches go by {led_by} segments, {} are durable", seen.0);
        seen.1 += u32::from(stored.0 > seen.0);
        // What is stored now is durable after this fence.
        seen.0 = stored.0;
    };
    assert!(on_fence.0.set(Box::new(look)).is_ok());
    for key in 0..300 {
        index.insert(key, key + 1, &pool.pin()).unwrap();
    }
    let (durable, times) = *expansions.lock().unwrap();
    assert!(durable == index.map().count() && times > 5, "{times} expansions");
}

/// Checks that an index has all arrays that it needs, and that all blocks are named once. Returns
/// the number of arrays that it does not need.
pub(super) fn is_sound(index: &TinyLh<u64, Sim>) -> usize {
    struct Blocks(BTreeSet<u64>);
    impl Visitor for Blocks {
        fn block(&mut self, offset: u64) {
            assert!(self.0.insert(offset), "block {offset:#x} is named twice");
        }
        fn word(&mut self, _word: u64) {}
    }
    let (pool, linear) = (index.pool(), index.map());
    let in_use = Linear::<Sim, 2, 2>::arrays_for(linear.count());
    let mut spare = 0;
    for number in 0..ARRAYS {
        let word = pool.medium().load(&linear.root().arrays[number]);
        assert!(word == 0 || Array::decode(number, word).is_some(), "array {number}: {word:#x}");
        assert!(word != 0 || number >= in_use, "array {number} of {in_use} is not there");
        spare += usize::from(word != 0 && number >= in_use);
    }
    let mut reachable = Blocks(BTreeSet::new());
    pool.sweep(|mark| {
        index.visit(&mut reachable)?;
        reachable.0.iter().for_each(|&block| mark(block));
        Ok(())
    })
    .unwrap();
    assert_eq!(pool.allocated(), reachable.0.into_iter().collect::<Vec<_>>());
    spare
}

/// P13: a persistent mark for "being allocated" would make all threads wait after a crash. After
/// any crash, the root has the complete offset of each array or none, and no block is leaked or
/// referred to twice.
#[test]
fn p13_a_crash_leaves_no_array_half_allocated() {
    let mut spare = 0;
    crash_everywhere(Model::Adr, 120, |index, acknowledged| {
        spare += is_sound(index);
        all_there(index, acknowledged);
    });
    assert!(spare > 0, "no crash came between an array and the extent that uses it");
}

/// P14: recovery from a crash during a split. Every lookup must return the right result, and what
/// the interrupted split has left must not affect the next one.
#[test]
fn p14_an_interrupted_split_is_forgotten_or_finished() {
    let (mut unfinished, mut forgotten) = (0, 0);
    for model in [Model::Adr, Model::ProcessDeath] {
        crash_everywhere(model, 60, |index, acknowledged| {
            let m = index.medium();
            let prefix = |number| prefix_if_initialised(m, number, index.place(number));
            for number in 1..index.map().count() {
                let origin = prefix(numbers::origin(number));
                let given = origin.is_some_and(|it| it.depth >= numbers::least_depth(number));
                unfinished += u32::from(prefix(number).is_some() && !given);
                forgotten += u32::from(prefix(number).is_none() && !given);
            }
            all_there(index, acknowledged);
            for key in 0..100 {
                index.upsert(key, key + 1, &index.pool().pin()).unwrap();
            }
            all_there(index, 100);
            assert_eq!(index.check(), Vec::<String>::new());
        });
    }
    assert!(unfinished > 0 && forgotten > 0, "{unfinished} unfinished, {forgotten} forgotten");
}

/// The memory of a new segment may contain any data, even what looks like an initialised segment.
/// It must not be taken for one, neither before nor after a crash.
#[test]
fn p14_what_was_in_the_space_before_does_not_matter() {
    for model in [Model::Adr, Model::ProcessDeath] {
        let sim = Sim::new(CAPACITY).unwrap();
        let pool = pool_in(sim.clone());
        let index = tiny(&pool);
        // The next segment to come into use: empty, not stale, and with the prefix that it will
        // have.
        let next = index.segment(index.place(1)).unwrap();
        sim.store(&next.header.magic, Header::MAGIC);
        sim.store(&next.header.prefix, HashPrefix { depth: 1, pattern: 1 }.encode());
        sim.store(&next.header.generation, index.core().generation);
        for bucket in next.normal.iter().chain(&next.stash) {
            sim.store(&bucket.version, Version::fresh(index.core().generation).0);
            sim.store(&bucket.meta, 0);
        }
        sim.persist(next);
        assert!(prefix_if_initialised(&sim, 1, index.place(1)).is_some());
        crash_inserts(&sim, &index, model, 40, |index, acknowledged| {
            all_there(index, acknowledged);
            assert_eq!(index.check(), Vec::<String>::new());
        });
        all_there(&index, 40);
        assert!(index.map().count() > 2);
        assert_eq!(index.check(), Vec::<String>::new());
    }
}

/// Returns keys that all have the hash of `upper`.
fn equal_hashes(upper: u64, keys: std::ops::Range<u64>) -> impl Iterator<Item = u64> + Clone {
    keys.map(move |key| upper << 32 | key)
}

/// P15: readers follow a chain while its buckets are linked, unlinked and reused.
#[test]
fn p15_readers_follow_a_chain_that_grows_and_shrinks() {
    // Much more than is needed: a reader that is not scheduled delays the reuse of buckets.
    let medium = Sim::in_memory(64 << 20).unwrap();
    let region = RegionConfig { capacity: 64 << 20, ..config() };
    let pool = Pool::create(medium, &region, Identity::default()).unwrap();
    let index = TinyLh::<Coarse, _>::create(pool.clone(), pool.root(0), Config::default()).unwrap();
    let insert = |key| assert!(index.insert(key, key, &pool.pin()).unwrap().inserted());
    // Sixteen keys fill the segment, and the others its chain. In the chain, keys that stay are
    // both before and after keys that are removed and inserted again.
    let kept: Vec<u64> = equal_hashes(1, 0..16).chain(equal_hashes(1, 100..104)).collect();
    let passing: Vec<u64> = equal_hashes(1, 16..60).chain(equal_hashes(1, 104..130)).collect();
    equal_hashes(1, 0..130).for_each(insert);
    let change = |_| {
        for &key in &passing {
            index.remove(key, &pool.pin()).unwrap();
        }
        passing.iter().copied().for_each(insert);
    };
    beside_readers(300, change, || {
        for &key in &kept {
            assert_eq!(index.get(key, &pool.pin()).unwrap(), Some(key));
        }
    });
    equal_hashes(1, 0..130).for_each(|key| {
        index.remove(key, &pool.pin()).unwrap();
    });
    let left = index.chain_blocks(index.segment(index.place(0)).unwrap());
    assert_eq!(left, [], "a chain without records");
    assert_eq!(index.check(), Vec::<String>::new());
}

/// A damaged link makes records unreachable. A walk reports that it did not see all records, for
/// callers that rely on this, such as the sweep.
#[test]
fn a_walk_reports_a_damaged_chain() {
    struct Ignored;
    impl Visitor for Ignored {
        fn block(&mut self, _offset: u64) {}
        fn word(&mut self, _word: u64) {}
    }
    let pool = dram();
    let index = TinyLh::<Coarse, _>::create(pool.clone(), pool.root(0), Config::default()).unwrap();
    equal_hashes(1, 0..130).for_each(|key| {
        index.insert(key, key, &pool.pin()).unwrap();
    });
    index.visit(&mut Ignored).unwrap();
    let mut chains = (0..).map(|number| index.segment(index.place(number)).unwrap());
    let segment = chains.find(|segment| !index.chain_blocks(segment).is_empty()).unwrap();
    let last = chain::links::<Bucket, _>(index.medium(), &segment.header.chain).last().unwrap();
    pool.medium().store(&last.version, 1 << 40);
    assert!(index.visit(&mut Ignored).is_err());
    assert!(index.for_each(&pool.pin(), &mut |_, _| true).is_err());
    assert!(!index.check().is_empty());
}

/// P16: the overflow of a version must not change any other state, such as whether a segment is
/// initialised.
#[test]
fn p16_a_version_wraps_without_touching_anything_else() {
    let pool = dram();
    let index = tiny(&pool);
    index.insert(7, 1, &pool.pin()).unwrap();
    for bucket in &index.segment(index.place(0)).unwrap().normal {
        // The greatest version: the next change makes it overflow.
        let version = index.medium().load(&bucket.version) | u64::MAX << 33;
        index.medium().store_transient(&bucket.version, version);
    }
    for word in 2..5 {
        assert_eq!(index.update(7, word, &pool.pin()).unwrap().old, Some(word - 1));
        assert_eq!(index.get(7, &pool.pin()).unwrap(), Some(word));
    }
    let segment: &Segment<4, 2> = index.segment(index.place(0)).unwrap();
    for bucket in &segment.normal {
        let version = Version(index.medium().load(&bucket.version));
        assert!(version.is_readable(index.core().generation) && !version.overflowed());
    }
    assert!(prefix_if_initialised(index.medium(), 0, index.place(0)).is_some());
    assert_eq!(index.check(), Vec::<String>::new());
}

/// P22: keys with equal hashes lengthen a chain. Expanding would not shorten it, so it must not go
/// on without end.
#[test]
fn p22_equal_hashes_do_not_expand_the_index() {
    let medium = Sim::in_memory(64 << 20).unwrap();
    let region = RegionConfig { extent_size: 2 << 20, capacity: 64 << 20, seed: Some(1) };
    let pool = Pool::create(medium, &region, Identity::default()).unwrap();
    let index = DashLh::<Coarse, _>::create(pool.clone(), pool.root(0), Config::default()).unwrap();
    for key in equal_hashes(5, 0..5000) {
        assert!(index.insert(key, key, &pool.pin()).unwrap().inserted());
    }
    let stats = index.stats(&pool.pin()).unwrap();
    assert!(stats.segments <= 16, "{stats:?}");
    for key in equal_hashes(5, 0..5000) {
        assert_eq!(index.get(key, &pool.pin()).unwrap(), Some(key));
    }
    assert_eq!(index.check(), Vec::<String>::new());
    for key in equal_hashes(5, 0..5000) {
        assert!(index.remove(key, &pool.pin()).unwrap().removed());
    }
    let emptied = index.stats(&pool.pin()).unwrap();
    assert!(emptied.len == 0 && emptied.pm_bytes < stats.pm_bytes, "{emptied:?}");
}

/// P25: several threads need an array that another one is allocating. They wait for a lock, not in
/// a loop on a word that the compiler may read only once. So all of them finish, and no array is
/// allocated twice.
#[test]
fn p25_threads_expand_together() {
    const THREADS: u64 = 4;
    const KEYS: u64 = 3000;
    let medium = Sim::in_memory(16 << 20).unwrap();
    let region = RegionConfig { capacity: 16 << 20, ..config() };
    let pool = Pool::create(medium, &region, Identity::default()).unwrap();
    let index = tiny(&pool);
    std::thread::scope(|threads| {
        for thread in 0..THREADS {
            let (index, pool) = (&index, &pool);
            threads.spawn(move || {
                for key in (thread..KEYS).step_by(THREADS as usize) {
                    index.insert(key, key + 1, &pool.pin()).unwrap();
                }
            });
        }
    });
    all_there(&index, KEYS);
    assert_eq!(index.check(), Vec::<String>::new());
    let linear = index.map();
    let there = linear.arrays.iter().filter(|array| array.load(Acquire) != 0).count();
    assert!(there > 8, "{there} arrays");
    // Each group has one size: no array was allocated without being used.
    let mut sizes = BTreeMap::<u64, usize>::new();
    for (number, array) in linear.arrays.iter().enumerate().take(there) {
        assert_ne!(array.load(Acquire), 0);
        *sizes.entry(numbers::array_len(number, 2, 2)).or_default() += 1;
    }
    pool.epoch().drain();
    let chains: usize = (0..linear.count())
        .filter_map(|number| index.segment(index.place(number)).ok().map(|it| (number, it)))
        .filter(|&(number, _)| {
            prefix_if_initialised(index.medium(), number, index.place(number)).is_some()
        })
        .map(|(_, segment)| index.chain_blocks(segment).len())
        .sum();
    assert_eq!(pool.allocated().len(), 1 + there + chains);
}

/// Lookups do not split segments: segments that have come into use stay uninitialised, and lookups
/// find their records in their origins, also after an unclean shutdown.
#[test]
fn lookups_find_what_is_still_at_the_origin() {
    let sim = Sim::new(CAPACITY).unwrap();
    let pool = pool_in(sim.clone());
    let index = tiny(&pool);
    let waiting = |index: &TinyLh<u64, Sim>| {
        let count = index.map().count();
        let is_waiting = |&number: &u64| {
            prefix_if_initialised(index.medium(), number, index.place(number)).is_none()
        };
        (0..count).filter(is_waiting).count()
    };
    let mut most = 0;
    for key in 0..200 {
        index.insert(key, key + 1, &pool.pin()).unwrap();
        let before = waiting(&index);
        all_there(&index, key + 1);
        assert_eq!(waiting(&index), before);
        most = most.max(before);
        assert_eq!(index.check(), Vec::<String>::new());
        if before > 0 && key % 7 == 0 {
            let again = reopened(&sim.contents()).unwrap();
            all_there(&again, key + 1);
            assert_eq!(waiting(&again), before);
            let mut shown = 0;
            let count = &mut |_, _| {
                shown += 1;
                true
            };
            again.for_each(&again.pool().pin(), count).unwrap();
            assert_eq!(shown, key + 1);
        }
    }
    assert!(most > 1, "{most} segments were not initialised");
}

/// If a segment cannot be initialised for lack of space, its records are changed in its origin.
#[test]
fn changes_go_on_where_there_is_no_room_to_split() {
    let pool = dram();
    let index =
        TinyLh::<Coarse, _>::create(pool.clone(), pool.root(0), Config { initial_depth: 0 })
            .unwrap();
    // All of these keys belong to segment 1 as soon as it is in use, since the lowest number bit of
    // their hash is 1.
    let odd = 1 << 24 | 1;
    let mut keys = equal_hashes(odd, 0..1000);
    let mut there = Vec::new();
    while index.map().count() == 1 {
        let key = keys.next().unwrap();
        index.insert(key, key, &pool.pin()).unwrap();
        there.push(key);
    }
    let mut blocks = Vec::new();
    let sizes = [4096, 2048, 1024, 512, 256];
    for size in sizes {
        // Blocks of both kinds of allocation, which have separate extents.
        while let Ok(block) = pool.allocate(size).or_else(|_| pool.allocate_fixed(size)) {
            blocks.push(block);
        }
    }
    let word = |key: u64| index.get(key, &pool.pin()).unwrap();
    for &key in &there {
        assert_eq!(index.update(key, key + 1, &pool.pin()).unwrap().old, Some(key));
        assert_eq!(word(key), Some(key + 1));
    }
    // Inserts use the free slots of the chain, and then fail.
    let mut refused = None;
    for key in keys.by_ref().take(20) {
        match index.insert(key, key + 1, &pool.pin()) {
            Ok(_) => there.push(key),
            Err(error) => {
                assert!(error.is_no_space(), "{error}");
                refused = Some(key);
                break;
            }
        }
    }
    let refused = refused.expect("the pool is full");
    let removed = there.remove(3);
    assert!(index.remove(removed, &pool.pin()).unwrap().removed());
    assert!(prefix_if_initialised(index.medium(), 1, index.place(1)).is_none());
    assert_eq!(word(refused), None);
    there.iter().for_each(|&key| assert_eq!(word(key), Some(key + 1)));
    assert_eq!(index.check(), Vec::<String>::new());
    blocks.into_iter().for_each(|block| pool.free_unpublished(block));
    index.insert(refused, refused + 1, &pool.pin()).unwrap();
    there.push(refused);
    assert!(prefix_if_initialised(index.medium(), 1, index.place(1)).is_some());
    there.iter().for_each(|&key| assert_eq!(word(key), Some(key + 1)));
    assert_eq!(index.check(), Vec::<String>::new());
}

/// A search may lead to a segment that was not initialised when it began. If its records are moved
/// to a third segment meanwhile, the search is not current any more.
#[test]
fn a_search_at_an_origin_is_outdated_by_any_split() {
    let pool = dram();
    type Small = TinyLh<Plain, Sim>;
    let index = Small::create(pool.clone(), pool.root(0), Config { initial_depth: 0 }).unwrap();
    // The origins of segment 7 are 3, 1 and 0.
    let hash = numbers::hash_of(7);
    index.insert(hash, 1, &pool.pin()).unwrap();
    index.bring_into_use(1, 8).unwrap();
    let m = pool.medium();
    let (holder, found) = SegmentMap::<Small>::holder(index.map(), m, hash).unwrap();
    let is_current = || SegmentMap::<Small>::is_current(index.map(), m, hash, &found);
    assert!(holder == index.place(0) && is_current());
    let (origin, prefix) = index.nearest(7).unwrap();
    index.split_origin(origin, prefix, &pool.pin()).unwrap();
    assert_eq!(index.nearest(7).unwrap().0, 1);
    assert!(prefix_if_initialised(m, 7, index.place(7)).is_none());
    assert!(!is_current());
    assert_eq!(index.get(hash, &pool.pin()).unwrap(), Some(1));
}
