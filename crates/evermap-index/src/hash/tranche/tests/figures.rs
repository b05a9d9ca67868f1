//! How many tranches operations read, and how full they become: by counting.

use evermap_pm::sim::Sim;
use evermap_pm::sim::rng::Rng;

use super::super::image::{home, nth, steps_to};
use super::super::layout::Kind;
use super::super::{Config, Tranche, Tranche4K, Tranche32K, Tranche256, Tranche512};
use super::in_memory;
use crate::key::Key;
use crate::{Index, Persistent};

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
fn parsed<const T: usize, const G: usize, const C: u32>(
    index: &Tranche<u64, Sim, T, G, C>,
    hash: u64,
) -> u64 {
    let groups = index.table.groups();
    let group = index.table.arrays.group(index.table.arrays.state().group_of(hash)).unwrap();
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

/// Fills an index of `2^depth` groups to the given share of its slots, without growth.
fn figures_of<const T: usize, const G: usize, const C: u32>(depth: u32, fill: f64) -> Figures {
    let pool = in_memory(256 << 20);
    let config = Config { initial_depth: depth };
    let index = Tranche::<u64, Sim, T, G, C>::create(pool.clone(), pool.root(0), config).unwrap();
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
    let (mut displaced, mut steps) = (0, 0);
    for group in 0..table.arrays.state().groups() {
        let group = table.arrays.group(group).unwrap();
        table
            .groups()
            .records(group, |stored| {
                let home = home::<G>(table.hash_of(&stored)?);
                let more = steps_to::<G>(home, stored.place) as u64;
                displaced += u64::from(more > 0);
                steps += more;
                Ok(())
            })
            .unwrap();
    }
    let per_key = |count: u64| count as f64 / keys.len() as f64;
    let misses = (0..20_000).map(|_| parsed(&index, random.draw())).sum::<u64>();
    let overflows = index.stats(&pool.pin()).unwrap().segments - stats.segments;
    let figures = Figures {
        displaced: per_key(displaced),
        hit: 1.0 + per_key(steps),
        miss: misses as f64 / 20_000.0,
        overflows: overflows as f64 / stats.segments as f64,
    };
    println!("{T} bytes, {G} tranches, fill {fill}: {figures:?}");
    figures
}

/// Nearly every lookup reads one tranche, and displaced records are few, up to the fill at which
/// the table grows. The bounds are those of the simulation in `docs/two-misses.md`, with a margin
/// for chance.
#[test]
fn lookups_read_one_tranche() {
    for (fill, displaced, hit, miss) in
        [(0.6, 0.017, 1.02, 1.12), (0.7, 0.04, 1.05, 1.3), (0.8, 0.08, 1.14, 2.2)]
    {
        let found = figures_of::<256, 16, 8>(8, fill);
        assert!(found.displaced < displaced && found.displaced > displaced / 4.0, "{found:?}");
        assert!(found.hit < hit && found.miss < miss && found.overflows < 0.02, "{found:?}");
    }
    let found = figures_of::<512, 16, 7>(7, 0.8);
    assert!(found.displaced < 0.03 && found.hit < 1.05 && found.miss < 1.4, "{found:?}");
    let found = figures_of::<4096, 16, 4>(4, 0.9);
    assert!(found.displaced < 0.006 && found.hit < 1.01 && found.miss < 1.15, "{found:?}");
    let found = figures_of::<{ 32 << 10 }, 8, 2>(2, 0.95);
    assert!(found.displaced < 0.004 && found.hit < 1.01 && found.miss < 1.2, "{found:?}");
}

/// Returns the bytes per pair just before a round of growth begins, and just after it.
fn bytes_per_pair<const T: usize, const G: usize, const C: u32>(depth: u32) -> (f64, f64) {
    let pool = in_memory(64 << 20);
    let config = Config { initial_depth: depth };
    let index = Tranche::<u64, Sim, T, G, C>::create(pool.clone(), pool.root(0), config).unwrap();
    let mut before = 0.0;
    for key in 0.. {
        index.insert(key, key, &pool.pin()).unwrap();
        let state = index.table.arrays.state();
        let bytes = state.groups() * (T * G) as u64;
        let per_pair = bytes as f64 / (key + 1) as f64;
        if index.table.splits.load(std::sync::atomic::Ordering::Relaxed) == 0 {
            before = per_pair;
        } else if state.split == 0 {
            println!("{T}: {before} before a round, {per_pair} after it");
            return (before, per_pair);
        }
    }
    unreachable!("the table grows")
}

/// A pair has 16 bytes. A tranche of 256 bytes holds 12 pairs, so 21.3 bytes each, and a round
/// begins at a fill of 0.8.
#[test]
fn space_of_a_pair() {
    let (before, after) = bytes_per_pair::<256, 16, 8>(5);
    assert!((26.0..27.5).contains(&before) && after < 2.0 * 27.0, "{before} {after}");
    let (before, after) = bytes_per_pair::<4096, 16, 4>(2);
    assert!((21.0..22.0).contains(&before) && after < 2.0 * 22.0, "{before} {after}");
}

/// Every geometry of the laboratory stores, finds and removes, through growth.
#[test]
fn all_sizes_work() {
    fn run<const T: usize, const G: usize, const C: u32>(keys: u64) {
        let pool = in_memory(64 << 20);
        let config = Config { initial_depth: 0 };
        let index =
            Tranche::<u64, Sim, T, G, C>::create(pool.clone(), pool.root(0), config).unwrap();
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
    run::<256, 16, 8>(3000);
    run::<512, 16, 7>(3000);
    run::<4096, 16, 4>(20_000);
    run::<{ 32 << 10 }, 8, 2>(40_000);
    // The aliases have these geometries.
    let kinds = [
        size_of::<Tranche256<u64, Sim>>(),
        size_of::<Tranche512<u64, Sim>>(),
        size_of::<Tranche4K<u64, Sim>>(),
        size_of::<Tranche32K<u64, Sim>>(),
    ];
    assert!(kinds.iter().all(|&size| size == kinds[0]));
}
