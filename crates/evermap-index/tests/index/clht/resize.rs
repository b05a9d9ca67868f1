//! Replacing the table.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use evermap_index::hash::clht::Config;
use evermap_index::hash::clht::layout::{Bucket, Link, Root, Table};
use evermap_index::testkit::Plain;
use evermap_index::{Clht, Index, Persistent};
use evermap_pm::sim::Sim;
use evermap_pm::{ErrorKind, Medium, Pool};

use super::watched::{Access, Watch};
use super::{ROOT, dram, get, put, remove, tiny, verify, wait_until};

fn table<M: Medium>(index: &Clht<Plain, M>) -> Table {
    table_at(index.pool(), ROOT)
}

/// Returns the table of the index that a root slot names.
fn table_at<M: Medium>(pool: &Pool<M>, slot: usize) -> Table {
    let root = pool.medium().at::<Root>(pool.medium().load(pool.root(slot))).unwrap();
    Table::decode(pool.medium().load(&root.table))
}

/// Puts `count` pairs into the chain of `low`.
fn fill<M: Medium>(index: &Clht<Plain, M>, low: u64, count: u64) {
    (1..=count).for_each(|number| put(index, number << 32 | low, number));
}

/// Releases a paused thread, also if the test fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// While one writer is paused in the middle of copying, readers find everything without waiting,
/// and another writer that needs a chain that is already frozen copies the rest.
#[test]
fn writers_help_and_readers_do_not_wait() {
    const KEYS: u64 = 1800;
    // Keys are their own hashes, so chains are filled evenly, and chain 0 is copied first.
    let watch = Arc::new(Watch::default());
    let index = Arc::new(tiny::<Plain, _>(dram(4 << 20).observed_by(watch.clone())));
    (0..KEYS).for_each(|key| put(&index, key, key + 1));
    let before = index.stats(&index.pool().pin()).unwrap();
    let first_chain = table(&index).home(0);
    let (held_up, release) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let flushes_of_others = Arc::new(AtomicU64::new(0));
    let (holding, held) = mpsc::channel();
    {
        let (held_up, release) = (held_up.clone(), release.clone());
        let flushes_of_others = flushes_of_others.clone();
        let frozen = AtomicBool::new(false);
        watch.begin(move |access| match access {
            Access::Flush if held_up.load(SeqCst) => drop(flushes_of_others.fetch_add(1, SeqCst)),
            // The first writer inserts nothing into this chain, so it stores to it only to freeze
            // it.
            Access::Store(offset) if offset == first_chain => frozen.store(true, SeqCst),
            Access::Flush if frozen.load(SeqCst) => {
                held_up.store(true, SeqCst);
                holding.send(()).unwrap();
                wait_until(|| release.load(SeqCst));
            }
            _ => {}
        });
    }
    std::thread::scope(|threads| {
        let _release = SetOnDrop(&release);
        let resizer = index.clone();
        threads.spawn(move || {
            let elsewhere = (KEYS..2 * KEYS + 200).filter(|key| key % (1 << before.depth) != 0);
            elsewhere.for_each(|key| put(&resizer, key, key + 1));
        });
        held.recv_timeout(Duration::from_secs(60)).expect("the table grows");
        for key in 0..KEYS {
            assert_eq!(get(&index, key), Some(key + 1));
        }
        assert_eq!(flushes_of_others.load(SeqCst), 0, "lookups flush nothing");
        let helper = index.clone();
        let helping = threads.spawn(move || put(&helper, 0, 2));
        // One update flushes a line; these flushes are those of most of the new table. The update
        // itself waits until the first writer has copied its share too.
        while flushes_of_others.load(SeqCst) < 1 << before.depth {
            assert!(!helping.is_finished(), "no thread helps");
            std::thread::yield_now();
        }
        release.store(true, SeqCst);
    });
    watch.end();
    assert_eq!(get(&index, 0), Some(2));
    for key in 1..KEYS {
        assert_eq!(get(&index, key), Some(key + 1));
    }
    verify(&index);
}

/// If a chain cannot be copied, the table is not replaced, every chain is usable again, and nothing
/// leaks.
#[test]
fn a_resize_that_fails_leaves_everything_as_it_was() {
    let index = tiny::<Plain, _>(dram(1 << 20));
    let m = index.pool().medium();
    fill(&index, 2, 9);
    let home = m.at::<Bucket>(table(&index).home(2)).unwrap();
    let behind = m.at::<Bucket>(Link(m.load(&home.link)).next().unwrap()).unwrap();
    let link = m.load(&behind.link);
    m.store(&behind.link, link | 8);
    let before = table(&index);
    // With two more long chains, the table should grow.
    fill(&index, 0, 9);
    fill(&index, 1, 9);
    assert_eq!(table(&index), before);
    for low in [0, 1] {
        (1..=9).for_each(|number| assert_eq!(get(&index, number << 32 | low), Some(number)));
    }
    let broken = index.get(1 << 40 | 2, &index.pool().pin()).unwrap_err();
    assert!(matches!(broken.kind(), ErrorKind::Damaged { .. }), "{broken}");
    m.store(&behind.link, link);
    verify(&index);
    // Now it can grow.
    fill(&index, 3, 9);
    assert_ne!(table(&index), before);
    verify(&index);
}

/// Keys with equal hashes make one chain longer. They do not enlarge the table, and their space is
/// free again when they are removed.
#[test]
fn equal_hashes_make_one_chain() {
    let index = tiny::<evermap_index::testkit::Coarse, _>(dram(1 << 20));
    let keys = || (0..3000u64).map(|number| 0x1234_5678_0000_0000 | number);
    keys().for_each(|key| put(&index, key, !key));
    let stats = index.stats(&index.pool().pin()).unwrap();
    assert_eq!((stats.len, stats.depth, stats.splits), (3000, 2, 0));
    keys().for_each(|key| assert_eq!(get(&index, key), Some(!key)));
    verify(&index);
    keys().for_each(|key| remove(&index, key));
    let stats = index.stats(&index.pool().pin()).unwrap();
    assert_eq!((stats.len, stats.segments), (0, 1), "only the table is left");
    verify(&index);
}

#[test]
fn the_table_follows_the_number_of_pairs() {
    const KEYS: u64 = 100_000;
    let index = tiny::<u64, Sim>(dram(64 << 20));
    let stats = || index.stats(&index.pool().pin()).unwrap();
    let mut least = 1f64;
    for key in 0..KEYS {
        put(&index, key, key);
        if key > 1000 && key % 1000 == 0 {
            least = least.min(stats().load_factor());
        }
    }
    let full = stats();
    assert!(least > 0.4, "load factor {least}");
    assert!(full.splits >= 12, "{full:?}");
    (0..KEYS).for_each(|key| remove(&index, key));
    let empty = stats();
    assert!(empty.merges >= 3 && empty.depth < 8, "{empty:?}");
    verify(&index);
}

/// A table that was created large stays large.
#[test]
fn a_table_does_not_shrink_below_its_initial_size() {
    use evermap_index::Persistent;
    use evermap_index::hash::clht::Config;
    use evermap_pm::Pool;
    use evermap_pm::region::{Identity, RegionConfig};
    let config = RegionConfig { extent_size: 4096, capacity: 1 << 20, seed: Some(1) };
    let pool = Pool::create(dram(1 << 20), &config, Identity::default()).unwrap();
    let index =
        Clht::<u64, _>::create(pool.clone(), pool.root(ROOT), Config { initial_buckets: 1000 })
            .unwrap();
    for round in 0..3 {
        (0..100).for_each(|key| put(&index, key, round));
        (0..100).for_each(|key| remove(&index, key));
    }
    let stats = index.stats(&index.pool().pin()).unwrap();
    assert_eq!((stats.depth, stats.merges), (10, 0));
}

/// Damage that turns a chain into a cycle causes an error, not a hang.
#[test]
fn a_chain_that_leads_back_to_itself_is_noticed() {
    let index = tiny::<Plain, _>(dram(1 << 20));
    let m = index.pool().medium();
    fill(&index, 2, 12);
    let home = m.at::<Bucket>(table(&index).home(2)).unwrap();
    let first = Link(m.load(&home.link)).next().unwrap();
    let mut last = m.at::<Bucket>(first).unwrap();
    while !Link(m.load(&last.link)).is_last() {
        last = m.at::<Bucket>(Link(m.load(&last.link)).next().unwrap()).unwrap();
    }
    m.store(&last.link, Link(m.load(&last.link)).followed_by(first).0);
    let guard = index.pool().pin();
    let absent = 1 << 40 | 2;
    for error in [
        index.get(absent, &guard).unwrap_err(),
        index.insert(absent, 1, &guard).unwrap_err(),
        index.for_each(&guard, &mut |_, _| true).unwrap_err(),
    ] {
        assert!(matches!(error.kind(), ErrorKind::Damaged { .. }), "{error}");
    }
    // Other chains can be used as before, and so can the pairs of this one.
    fill(&index, 1, 3);
    assert_eq!((get(&index, 1 << 32 | 1), get(&index, 1 << 32 | 2)), (Some(1), Some(1)));
}

/// Returns the last bucket of the chain that begins with this one.
fn last_of<'s>(sim: &'s Sim, mut bucket: &'s Bucket) -> &'s Bucket {
    while let next @ 1.. = Link(sim.load(&bucket.link)).next().unwrap() {
        bucket = sim.at::<Bucket>(next).unwrap();
    }
    bucket
}

/// Buckets that damage has made part of a second chain stay those of the first one.
#[test]
fn a_resize_frees_nothing_of_another_table() {
    let sim = dram(4 << 20);
    let (one, root) = (tiny::<Plain, _>(sim.clone()), ROOT + 1);
    let pool = one.pool().clone();
    let other =
        Clht::<Plain, _>::create(pool.clone(), pool.root(root), Config { initial_buckets: 64 });
    let other = other.unwrap();
    // One long chain in each: the low bits of the keys choose it.
    (0..12).for_each(|number| put(&one, number << 32, number));
    (0..12).for_each(|number| put(&other, number << 32 | 2, 100 + number));
    let home = |slot, low| sim.at::<Bucket>(table_at(&pool, slot).home(low)).unwrap();
    let (end, shared) =
        (last_of(&sim, home(ROOT, 0)), Link(sim.load(&home(root, 2).link)).next().unwrap());
    sim.store(&end.link, Link(sim.load(&end.link)).followed_by(shared).0);
    let before = table(&one).bits;
    fill(&one, 1, 2000);
    assert!(table(&one).bits > before);
    (0..12).for_each(|number| assert_eq!(get(&other, number << 32 | 2), Some(100 + number)));
    (0..12).for_each(|number| assert_eq!(get(&one, number << 32), Some(number)));
    assert_eq!(other.check(), Vec::<String>::new());
    pool.epoch().drain();
    assert_eq!(pool.heap_stats().faults, 0);
}
