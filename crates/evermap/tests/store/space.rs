//! How much space a store takes, whatever is stored in it and however it is shut down: at most
//! twice the bytes of keys and values and 2 MiB, and little more than those bytes if values are
//! large.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::common::{self, Kept, Random};
use evermap::{IndexKind, Map, MapOptions, Options};
use evermap_pm::Medium;
use evermap_pm::sim::Sim;

const MIB: u64 = 1 << 20;

/// Returns the maximum size of a file with this number of bytes of keys and values, from a megabyte
/// on.
fn most(bytes: u64) -> u64 {
    2 * bytes.max(1_000_000) + 2 * MIB
}

/// Returns the larger of a file's length and the space that it takes on the disk.
fn size_of(path: &Path) -> u64 {
    let file = std::fs::metadata(path).unwrap();
    file.len().max(file.blocks() * 512)
}

/// Returns a value of this number of bytes.
fn value(len: u64) -> Vec<u8> {
    vec![len as u8; len as usize]
}

fn uniform(random: &mut Random) -> u64 {
    random.below(5121)
}

/// Returns a size below a random power of two.
fn skewed(random: &mut Random) -> u64 {
    let most = 2 << random.below(18);
    random.below(most)
}

/// Returns the size of a random class of blocks.
fn every_size(random: &mut Random) -> u64 {
    let doubling = 32 << random.below(13);
    doubling * (8 + random.below(8)) / 8
}

fn powers_of_two(random: &mut Random) -> u64 {
    1 << random.below(17)
}

fn one_size(_: &mut Random) -> u64 {
    17_000
}

#[test]
fn a_file_takes_at_most_twice_what_is_in_it() {
    let mixes = [uniform, skewed, every_size, powers_of_two, one_size];
    for (number, mix) in mixes.into_iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("map");
        let map = common::open_file(&path, Options::new().seed(7)).unwrap();
        assert!(size_of(&path) < MIB, "an empty store takes {}", size_of(&path));
        let (mut bytes, mut random) = (0, Random::new(number as u64));
        for key in 0u64.. {
            let len = mix(&mut random);
            map.put(&key.to_le_bytes(), &value(len)).unwrap();
            bytes += 8 + len;
            if key % 64 == 0 || bytes > 24_000_000 {
                let size = size_of(&path);
                assert!(size <= most(bytes), "mix {number}: {size} for {bytes} bytes");
            }
            if bytes > 24_000_000 {
                break;
            }
        }
        map.into_db().close().unwrap();
        let size = size_of(&path);
        assert!(size <= most(bytes), "mix {number}: {size} for {bytes} bytes, closed");
    }
}

#[test]
fn large_values_take_what_they_need() {
    for len in [MIB, MIB + 1000, 2 * MIB, 2 * MIB + 1, 3_333_333] {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = directory.path().join("map");
        let map = common::open_file(&path, Options::new()).unwrap();
        for key in 1..=24u64 {
            map.put(&key.to_le_bytes(), &value(len)).unwrap();
            let size = size_of(&path);
            assert!(size <= key * len * 115 / 100 + MIB / 2, "{size} for {key} values of {len}");
        }
        map.into_db().close().unwrap();
        assert!(size_of(&path) <= 24 * len * 115 / 100);
    }
}

/// A megabyte of small records in four maps, with the default options and each kind of index.
#[test]
fn several_maps_share_a_small_file() {
    for kind in common::every_index() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("map");
        let map = common::open_file(&path, Options::new().index(kind)).unwrap();
        let options = || MapOptions::new();
        let maps: Vec<_> =
            ["a", "b", "c"].iter().map(|name| map.db().map(name, options()).unwrap()).collect();
        let mut bytes = 0;
        for key in 0..900u64 {
            for store in maps.iter().chain([&map]) {
                store.put(&key.to_le_bytes(), &value(270 + key % 20)).unwrap();
                bytes += 278 + key % 20;
            }
        }
        // The first arrays of these two have a mebibyte each.
        let arrays = matches!(kind, IndexKind::DashLh | IndexKind::Level);
        let most = most(bytes) + if arrays { 2 * MIB } else { 0 };
        assert!(size_of(&path) <= most, "{kind}: {} for {bytes} bytes", size_of(&path));
    }
}

/// The size of `/dev/shm` in containers: a store can use nearly all of it.
#[test]
fn a_small_disk_takes_values_of_all_sizes() {
    let store = Kept::new(64 * MIB).open(&Options::new().seed(1)).unwrap();
    let (mut bytes, mut random) = (0, Random::new(3));
    let full = (0u64..).find_map(|key| {
        let len = uniform(&mut random);
        let put = store.put(&key.to_le_bytes(), &value(len));
        bytes += 8 + len;
        put.err()
    });
    assert!(full.unwrap().is_no_space());
    assert!(bytes > 48 * MIB, "refused after {bytes} bytes");
}

#[test]
fn the_smallest_stores_take_records() {
    for (capacity, least) in [(64 << 10, 20), (128 << 10, 400), (256 << 10, 1500)] {
        for index in common::every_index() {
            let store = match Kept::new(MIB).open(&Options::small(capacity).index(index).seed(1)) {
                // Indexes that begin larger return an error.
                Err(error) if index != IndexKind::DashEh && capacity == 64 << 10 => {
                    assert!(error.to_string().contains("at least 131072 bytes"), "{error}");
                    continue;
                }
                opened => opened.unwrap(),
            };
            let keys = 0u64..;
            let put = |key: u64| store.put(&key.to_le_bytes(), b"value").is_ok();
            let count = keys.take_while(|&key| put(key)).count();
            let least = if index == IndexKind::DashEh { least } else { 1 };
            assert!(count >= least, "{count} records in {capacity} bytes with {index}");
            assert!(store.stat().file_bytes <= capacity);
        }
    }
}

/// The table is as long as the file needs, not as the capacity would.
#[test]
fn the_capacity_takes_no_space() {
    for extent_size in [4096, 16384, 64 << 10, 2 << 20, 1 << 30] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("map");
        let options = Options::new().extent_size(extent_size).capacity(256 << 30);
        let map = common::open_file(&path, options).unwrap();
        map.put(b"key", b"value").unwrap();
        assert!(size_of(&path) < MIB, "{} with extents of {extent_size}", size_of(&path));
    }
}

/// A store is killed again and again while it is written to, before its sweep, after it, or in
/// turns.
#[test]
fn kills_do_not_enlarge_the_file_for_ever() {
    for swept in [|_| true, |round| round % 2 == 0, |round| round % 10 == 9] {
        let memory = Kept::new(1 << 30);
        let options = Options::new().seed(5);
        let mut random = Random::new(11);
        let store = memory.open(&options).unwrap();
        let (mut sizes, mut written) = (vec![0; 4800], 0);
        let mut put = |store: &Map<Sim>, key: u64| {
            let len = uniform(&mut random);
            store.put(&key.to_le_bytes(), &value(len)).unwrap();
            sizes[key as usize] = 8 + len;
            (8 + len, sizes.iter().sum::<u64>())
        };
        for key in 0..4800 {
            put(&store, key);
        }
        drop(store);
        let mut keys = Random::new(12);
        for round in 0..110 {
            let store = memory.open(&options).unwrap();
            if swept(round) {
                store.db().recover().unwrap();
                store.db().compact().unwrap();
                written = 0;
            }
            let mut bytes = 0;
            for _ in 0..100 {
                let (more, all) = put(&store, keys.below(4800));
                written += more;
                bytes = all;
            }
            // What was written since the last sweep counts twice: it is not known yet what it has
            // replaced.
            let file = memory.len();
            assert!(file <= most(bytes + written), "{file} for {bytes} bytes after {round} kills");
        }
    }
}

/// Values of changing sizes are overwritten and removed.
#[test]
fn churn_does_not_enlarge_the_file_for_ever() {
    let memory = Kept::new(1 << 30);
    let store = memory.open(&Options::new().seed(5)).unwrap();
    let (mut random, mut sizes) = (Random::new(21), vec![0u64; 4000]);
    for round in 0..40_000u64 {
        let key = random.below(4000);
        let kept = &mut sizes[key as usize];
        if random.below(4) == 0 {
            store.delete(&key.to_le_bytes()).unwrap();
            *kept = 0;
        } else {
            // The common sizes shift.
            let len = random.below(1024) * (1 + round / 4000 % 5);
            store.put(&key.to_le_bytes(), &value(len)).unwrap();
            *kept = 8 + len;
        }
        if round % 500 == 499 {
            store.db().compact().unwrap();
        }
        // The most that it has contained.
        let file = memory.len();
        assert!(file <= most(4000 * 5 * 512), "{file} after {round} changes");
    }
    let (bytes, stat) = (sizes.iter().sum::<u64>(), store.space().unwrap());
    assert!(stat.extent_bytes <= 2 * bytes + MIB, "{stat} for {bytes} bytes");
}

#[test]
fn a_clean_shutdown_does_not_double_a_store_of_long_keys() {
    let memory = Kept::new(1 << 30);
    let store = memory.open(&Options::new().ordered(true).seed(1)).unwrap();
    let key = |number: u64| {
        let mut key = vec![number as u8; evermap::KEY_MAX];
        key[..8].copy_from_slice(&number.to_be_bytes());
        key
    };
    for number in 0..500 {
        store.put(&key(number), b"value").unwrap();
    }
    assert_eq!(store.scan(..).unwrap().count(), 500);
    store.into_db().close().unwrap();
    let bytes = 500 * (evermap::KEY_MAX as u64 + 5);
    assert!(memory.len() <= bytes * 3 / 2, "{} for {bytes}", memory.len());
    let store = memory.open(&Options::new().ordered(true)).unwrap();
    assert_eq!(store.scan(..).unwrap().count(), 500);
}
