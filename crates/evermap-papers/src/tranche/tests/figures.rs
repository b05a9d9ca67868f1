//! How many tranches operations read, and how full they become: by counting.

use evermap_index::key::Key;
use evermap_index::testkit::tier;
use evermap_index::{Index, Persistent};
use evermap_pm::sim::Sim;
use evermap_pm::sim::rng::Rng;

use super::super::geometry::{Geometry, Sizes};
use super::super::group::Stored;
use super::super::image::{home, nth, steps_to};
use super::super::layout::Kind;
use super::super::table::Table;
use super::super::{Config, Pairs, Tranche, Tranche4K, Tranche32K, Tranche256, Tranche512};
use super::in_memory;

/// What lookups cost at one fill.
#[derive(Debug)]
struct Figures {
    /// The share of the records that are not in their home.
    displaced: f64,
    /// Tranches read for a present key, on average.
    hit: f64,
    /// Tranches read for an absent key, on average.
    miss: f64,
    /// Overflow blocks, for each group.
    overflows: f64,
}

/// Returns the number of tranches that a search for an absent key reads.
fn parsed<G: Geometry>(index: &Tranche<u64, Sim, G>, hash: u64) -> u64 {
    let groups = index.table.groups();
    let group = index.table.arrays.group(index.table.group_of(hash)).unwrap();
    let mut parsed = 0;
    for step in 0.. {
        let Some(tranche) = groups.tranche(group, nth::<G>(home::<G>(hash), step)).unwrap() else {
            break;
        };
        parsed += 1;
        if groups.commit(tranche).unwrap().pass == 0 {
            break;
        }
    }
    parsed
}

/// Returns the number of tranches behind their homes in which records are, in all.
fn displacement<G: Geometry>(index: &Tranche<u64, Sim, G>) -> u64 {
    let (table, mut steps) = (&index.table, 0);
    for group in 0..table.arrays.state().count() {
        let group = table.arrays.group(group).unwrap();
        let add = |stored: Stored<'_>| {
            if !stored.entry.dead {
                steps += steps_to::<G>(home::<G>(table.hash_of(&stored)?), stored.place) as u64;
            }
            Ok(())
        };
        table.groups().records(group, add).unwrap();
    }
    steps
}

/// Fills an index of `2^depth` groups to the given share of its slots, without growth.
fn figures_of<G: Geometry>(depth: u32, fill: f64) -> Figures {
    let pool = in_memory(256 << 20);
    let config = Config { initial_depth: depth };
    let index = Tranche::<u64, Sim, G>::create(pool.clone(), pool.root(0), config).unwrap();
    let stats = index.stats(&pool.pin()).unwrap();
    let random = &mut Rng::new(7);
    let keys: Vec<u64> =
        (0..(stats.capacity as f64 * fill) as u64).map(|_| random.draw()).collect();
    let table = &index.table;
    for &key in &keys {
        let hash = <u64 as Key>::hash(key, table.seed);
        let mut locked = table.lock(hash).unwrap();
        let room = table.make_room(&mut locked, hash, Kind::Pair, 2, &pool.pin()).unwrap();
        table.groups().add(locked.group, &room, hash, Kind::Pair, &[key, 1]).unwrap();
        locked.changed = true;
    }
    assert_eq!(index.check(), Vec::<String>::new());
    let mut displaced = 0;
    for group in 0..table.arrays.state().count() {
        let group = table.arrays.group(group).unwrap();
        table
            .groups()
            .records(group, |stored| {
                let home = home::<G>(table.hash_of(&stored)?);
                displaced += u64::from(home != stored.place);
                Ok(())
            })
            .unwrap();
    }
    let per_key = |count: u64| count as f64 / keys.len() as f64;
    let misses = (0..20_000).map(|_| parsed(&index, random.draw())).sum::<u64>();
    let overflows = index.stats(&pool.pin()).unwrap().segments - stats.segments;
    let figures = Figures {
        displaced: per_key(displaced),
        hit: 1.0 + per_key(displacement(&index)),
        miss: misses as f64 / 20_000.0,
        overflows: overflows as f64 / stats.segments as f64,
    };
    let (bytes, tranches) = (G::TRANCHE_BYTES, G::TRANCHES);
    println!("{bytes} bytes, {tranches} tranches, fill {fill}: {figures:?}");
    figures
}

/// Nearly every lookup reads one tranche, and displaced records are few, up to the fill at which
/// the table grows. The bounds are those of the simulation in `docs/measured/two-misses.md`, with a
/// margin for chance.
#[test]
fn lookups_read_one_tranche() {
    for (fill, displaced, hit, miss) in
        [(0.6, 0.017, 1.02, 1.12), (0.7, 0.04, 1.05, 1.3), (0.8, 0.08, 1.14, 2.2)]
    {
        let found = figures_of::<Sizes<256, 16, 7>>(8, fill);
        assert!(found.displaced < displaced && found.displaced > displaced / 4.0, "{found:?}");
        assert!(found.hit < hit && found.miss < miss && found.overflows < 0.02, "{found:?}");
    }
    let found = figures_of::<Sizes<512, 16, 6>>(7, 0.8);
    assert!(found.displaced < 0.03 && found.hit < 1.05 && found.miss < 1.4, "{found:?}");
    let found = figures_of::<Sizes<4096, 16, 3>>(4, 0.9);
    assert!(found.displaced < 0.006 && found.hit < 1.01 && found.miss < 1.15, "{found:?}");
    let found = figures_of::<Sizes<{ 32 << 10 }, 4, 2>>(3, 0.95);
    assert!(found.displaced < 0.004 && found.hit < 1.01 && found.miss < 1.2, "{found:?}");
}

/// What a table takes on average while it grows from some number of pairs to twice as many, and
/// then while it shrinks from that to a tenth.
#[derive(Debug)]
struct Space {
    /// Bytes of everything in the pool, for each pair.
    bytes: f64,
    /// The greatest of these.
    most: f64,
    /// Tranches read for a present key, on average.
    hit: f64,
    /// Overflow blocks, for each group.
    overflows: f64,
    /// The share of the bytes that is left when a tenth of the pairs is left.
    left: f64,
}

fn space_of<G: Geometry>(pairs: u64) -> Space {
    const SAMPLES: u64 = 32;
    let pool = in_memory(256 << 20);
    let config = Config { initial_depth: 0 };
    let index = Tranche::<u64, Sim, G>::create(pool.clone(), pool.root(0), config).unwrap();
    let used = |pairs: u64| pool.heap_stats().used_bytes as f64 / pairs as f64;
    let (mut sum, mut most, mut hit, mut overflows) = (0.0, 0f64, 0.0, 0.0);
    for key in 0..2 * pairs {
        index.insert(key, key, &pool.pin()).unwrap();
        if key >= pairs && (key - pairs).is_multiple_of(pairs / SAMPLES) {
            sum += used(key + 1);
            most = most.max(used(key + 1));
            let groups = index.table.arrays.state().count();
            let more = index.stats(&pool.pin()).unwrap().segments - groups;
            overflows += more as f64 / groups as f64;
            hit += 1.0 + displacement(&index) as f64 / (key + 1) as f64;
        }
    }
    let (left, before) = (pairs / 5, pool.heap_stats().used_bytes);
    for key in left..2 * pairs {
        assert!(index.remove(key, &pool.pin()).unwrap().removed());
    }
    pool.epoch().drain();
    assert_eq!(index.check(), Vec::<String>::new());
    let per_sample = |sum: f64| sum / SAMPLES as f64;
    let space = Space {
        bytes: per_sample(sum),
        most,
        hit: per_sample(hit),
        overflows: per_sample(overflows),
        left: pool.heap_stats().used_bytes as f64 / before as f64,
    };
    let (bytes, tranches) = (G::TRANCHE_BYTES, G::TRANCHES);
    println!("{bytes} bytes, {tranches} tranches, {pairs} pairs: {space:?}");
    space
}

/// A pair has 16 bytes. Everything is counted: the tables, the block for rewriting, what the heap
/// has beside blocks. While the table grows, lookups cost as much as at that fill without growth.
#[test]
fn space_of_a_pair() {
    let small = space_of::<Sizes<256, 16, 7>>(tier().choose(100_000, 400_000));
    assert!(
        small.bytes < tier().choose(31.5, 29.0) && small.hit < 1.11 && small.overflows < 0.01,
        "{small:?}"
    );
    let medium = space_of::<Sizes<4096, 16, 3>>(tier().choose(600_000, 2_000_000));
    assert!(medium.bytes <= 22.0 && medium.hit < 1.005 && medium.overflows < 0.002, "{medium:?}");
    // Chunks of half a mebibyte are two percent of the smaller one of these tables.
    let large = space_of::<Sizes<{ 32 << 10 }, 4, 2>>(tier().choose(600_000, 4_000_000));
    assert!(
        large.bytes <= tier().choose(21.0, 20.1) && large.hit < 1.002 && large.overflows < 0.01,
        "{large:?}"
    );
    for space in [small, medium, large] {
        assert!(space.left < 0.25 && space.most < 1.15 * space.bytes, "{space:?}");
    }
}

/// A page of a walk has a bounded number of pairs, whatever the size of a tranche.
#[test]
fn pages_are_bounded() {
    fn most<G: Geometry>(pairs: u64) -> usize {
        let pool = in_memory(256 << 20);
        let config = Config { initial_depth: 0 };
        let index = Tranche::<u64, Sim, G>::create(pool.clone(), pool.root(0), config).unwrap();
        for key in 0..pairs {
            index.insert(key, key, &pool.pin()).unwrap();
        }
        let (mut shown, mut most, mut from) = (vec![false; pairs as usize], 0, Some(0));
        while let Some(here) = from {
            let mut page = 0;
            let (done, next) = index.scan(here, &pool.pin(), &mut |key, _| {
                assert!(!std::mem::replace(&mut shown[key as usize], true));
                page += 1;
            });
            done.unwrap();
            (most, from) = (most.max(page), next);
        }
        assert!(shown.iter().all(|&shown| shown));
        println!("{}: {most} pairs in a page", G::TRANCHE_BYTES);
        most
    }
    assert!(most::<Sizes<256, 16, 7>>(20_000) < 3000);
    assert!(most::<Sizes<4096, 16, 3>>(100_000) < 4500);
    assert!(most::<Sizes<{ 32 << 10 }, 4, 2>>(300_000) < 4500);
}

/// Removals and insertions in turn move nothing.
#[test]
fn growth_and_shrinking_are_apart() {
    let pool = in_memory(64 << 20);
    let config = Config { initial_depth: 0 };
    let index = Tranche256::<u64, Sim>::create(pool.clone(), pool.root(0), config).unwrap();
    for key in 0..10_000 {
        index.insert(key, key, &pool.pin()).unwrap();
    }
    let state = index.table.arrays.state();
    for round in 0..4 {
        let keys = round * 1500..(round + 1) * 1500;
        for key in keys.clone() {
            assert!(index.remove(key, &pool.pin()).unwrap().removed());
        }
        assert_eq!(index.table.arrays.state(), state);
        for key in keys {
            assert!(index.insert(key, key, &pool.pin()).unwrap().inserted());
        }
        assert_eq!(index.table.arrays.state(), state);
    }
    assert_eq!(index.check(), Vec::<String>::new());
}

/// A thread that does the growth that is due soon leaves none to the insertions that follow.
#[test]
fn growth_ahead_leaves_none_to_insertions() {
    let pool = in_memory(64 << 20);
    let config = Config { initial_depth: 0 };
    let index = Tranche256::<u64, Sim>::create(pool.clone(), pool.root(0), config).unwrap();
    let mut done = 0;
    for key in 0..10_000 {
        done += index.rehash_step(u64::MAX).unwrap();
        let state = index.table.arrays.state();
        assert!(index.insert(key, key, &pool.pin()).unwrap().inserted());
        assert_eq!(index.table.arrays.state(), state, "after {key}");
    }
    assert!(done > 1000 && index.table.arrays.state().count() > 50);
    assert_eq!(index.check(), Vec::<String>::new());
}

/// Insertions fill the table no further than a little beyond the point at which it grows, even if
/// the thread that grows it is late.
#[test]
fn insertions_wait_for_growth_that_is_late() {
    let pool = in_memory(64 << 20);
    let config = Config { initial_depth: 2 };
    let index = Tranche256::<u64, Sim>::create(pool.clone(), pool.root(0), config).unwrap();
    let table = &index.table;
    let full = Table::<Pairs<u64>, Sim, Sizes<256, 16, 7>>::OVERFULL;
    std::thread::scope(|scope| {
        let growth = table.growth.lock().unwrap();
        let inserts = scope.spawn(|| {
            (0..20_000).for_each(|key| {
                assert!(index.insert(key, key, &pool.pin()).unwrap().inserted());
            });
        });
        while table.ratio() < full && !inserts.is_finished() {
            std::thread::yield_now();
        }
        // Time for the mistake to show: thousands of insertions.
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(table.ratio() < full + 0.02 && !inserts.is_finished(), "{}", table.ratio());
        drop(growth);
    });
    assert!(table.ratio() < full && index.check().is_empty());
}

/// Every geometry of the laboratory stores, finds and removes, through growth.
#[test]
fn all_sizes_work() {
    fn run<G: Geometry>(keys: u64) {
        let pool = in_memory(64 << 20);
        let config = Config { initial_depth: 0 };
        let index = Tranche::<u64, Sim, G>::create(pool.clone(), pool.root(0), config).unwrap();
        for key in 0..keys {
            assert!(index.insert(key, !key, &pool.pin()).unwrap().inserted());
        }
        assert_eq!(index.check(), Vec::<String>::new());
        let stats = index.stats(&pool.pin()).unwrap();
        assert!(stats.splits > 0 && stats.len == keys, "{stats:?}");
        for key in 0..keys {
            assert_eq!(index.get(key, &pool.pin()).unwrap(), Some(!key));
            assert_eq!(index.get(keys + key, &pool.pin()).unwrap(), None);
        }
        for key in (0..keys).step_by(2) {
            assert!(index.remove(key, &pool.pin()).unwrap().removed());
        }
        assert_eq!(index.check(), Vec::<String>::new());
        assert_eq!(index.stats(&pool.pin()).unwrap().len, keys / 2);
    }
    run::<Sizes<256, 16, 7>>(3000);
    run::<Sizes<512, 16, 6>>(3000);
    run::<Sizes<4096, 16, 3>>(20_000);
    run::<Sizes<{ 32 << 10 }, 4, 2>>(40_000);
    // The aliases have these geometries.
    let kinds = [
        size_of::<Tranche256<u64, Sim>>(),
        size_of::<Tranche512<u64, Sim>>(),
        size_of::<Tranche4K<u64, Sim>>(),
        size_of::<Tranche32K<u64, Sim>>(),
    ];
    assert!(kinds.iter().all(|&size| size == kinds[0]));
}
