//! Hashes chosen to fill windows, and keys and words that other implementations reserve.

use evermap_papers::cceh::Cceh;
use evermap_pm::ErrorKind;

use super::*;

/// Inserts keys until one is refused. Returns how many were inserted.
fn fill<M: Medium>(index: &Chosen<M>, pool: &Pool<M>, keys: impl Iterator<Item = u64>) -> u64 {
    let mut held = 0;
    for key in keys {
        match index.insert(key, key, &pool.pin()) {
            Ok(change) => held += u64::from(change.inserted()),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::NoSpace { .. }), "{error}");
                break;
            }
        }
    }
    held
}

/// CC-8: keys with equal hashes fill a window, and no split can separate them. Further ones must be
/// refused without doubling the directory, and everything else must continue to work.
#[test]
fn cc8_equal_hashes_end_in_no_space() {
    let pool = dram(2 << 20, 1 << 26);
    let index = Cceh::<evermap_index::testkit::Coarse, _>::create(
        pool.clone(),
        pool.root(0),
        Config::default(),
    );
    let index = index.unwrap();
    let same = |number: u64| 0x9a3c_55f0 << 32 | number;
    for number in 0..16 {
        assert!(index.insert(same(number), number, &pool.pin()).unwrap().inserted());
    }
    let before = index.stats(&pool.pin()).unwrap();
    for number in 16..40 {
        let mut asked = false;
        let refused = index
            .mutate(same(number), evermap_index::MutateMode::MayInsert, &pool.pin(), &mut |_| {
                asked = true;
                evermap_index::Action::Put(0)
            })
            .unwrap_err();
        assert!(refused.is_no_space(), "{refused}");
        assert!(!asked, "there is no slot for the result");
    }
    assert_eq!(index.stats(&pool.pin()).unwrap(), before, "a refusal changes nothing");
    for number in 0..16 {
        assert_eq!(index.get(same(number), &pool.pin()).unwrap(), Some(number));
        assert_eq!(index.update(same(number), 7, &pool.pin()).unwrap().old, Some(number));
    }
    // Other keys can be inserted, and the refused ones once there is space.
    for other in 1..2000u64 {
        let spread = other.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        assert!(index.insert(spread, other, &pool.pin()).unwrap().inserted());
    }
    assert!(index.remove(same(3), &pool.pin()).unwrap().removed());
    assert!(index.insert(same(20), 20, &pool.pin()).unwrap().inserted());
    assert_eq!(index.check(), Vec::<String>::new());
}

/// CC-8, with an attacker: hashes agree in more and more bits, so that every split separates only a
/// few from the rest. The directory stays in proportion to its segments.
#[test]
fn cc8_a_directory_stays_in_proportion_to_what_it_names() {
    let pool = dram(4096, 1 << 24);
    let index = Chosen::create(pool.clone(), pool.root(0), Config::default()).unwrap();
    let mut held = 0;
    for depth in 0..60 {
        held += fill(&index, &pool, (0..9).map(|low| 1 << (63 - depth) | low << 2));
    }
    let stats = index.stats(&pool.pin()).unwrap();
    assert_eq!(stats.len, held);
    let segments = stats.pm_bytes - 64 - (8 << stats.depth);
    assert!(8 << stats.depth <= segments.max(4096), "{stats:?}");
    assert!(stats.depth >= 9, "a directory in proportion must be allowed: {stats:?}");
    assert_eq!(index.check(), Vec::<String>::new());
}

/// CC-8: keys that agree in several bits are separated by as many splits as that takes.
#[test]
fn cc8_long_common_prefixes_are_separated() {
    let pool = dram(4096, 1 << 24);
    let index = Chosen::create(pool.clone(), pool.root(0), Config::default()).unwrap();
    // Eight keys fill a window; the ninth differs from them in the eighth bit.
    let keys: Vec<u64> =
        (0..8).map(|number| key(0b0110_1010, 8, number)).chain([key(0b0110_1011, 8, 9)]).collect();
    put(&index, &pool, &keys);
    let stats = index.stats(&pool.pin()).unwrap();
    assert_eq!((stats.depth, stats.splits, stats.len), (8, 7, 9));
    assert_sound(&index, &pool);
}

/// A split keeps records that wrap around the end of a segment. Other implementations copy records
/// in the order of slots, and lose them if a window is full.
#[test]
fn c12_a_split_keeps_records_that_wrap_around() {
    let pool = dram(4096, 1 << 24);
    let index = Chosen::create(pool.clone(), pool.root(0), Config::default()).unwrap();
    // All are in the upper half of the lower segment, so that all of them move at the first split.
    let at = |bucket: u64, number: u64| key(0b01, 2, number) | bucket;
    let mut keys: Vec<u64> = Vec::new();
    // The records of bucket 3 fill 3 and 0; those of bucket 0 go to 1, and those of bucket 1 to 2.
    keys.extend((0..8).map(|number| at(3, number)));
    keys.extend((0..4).map(|number| at(0, 10 + number)));
    keys.extend((0..4).map(|number| at(1, 20 + number)));
    put(&index, &pool, &keys);
    assert_eq!(index.stats(&pool.pin()).unwrap().splits, 0, "every slot is taken");
    // One more, in the other half of the lower segment: all others move.
    put(&index, &pool, &[key(0b00, 2, 5)]);
    assert_eq!(index.stats(&pool.pin()).unwrap().splits, 1);
    for (word, &key) in keys.iter().enumerate() {
        assert_eq!(index.get(key, &pool.pin()).unwrap(), Some(word as u64), "key {key:#x}");
    }
    assert_sound(&index, &pool);
}

/// No key is reserved: a key that marks a free slot in one segment is an ordinary key of another.
#[test]
fn every_key_and_every_word_is_possible() {
    fn all<K: for<'a> Key<Ref<'a> = u64>>() {
        let pool = dram(4096, 1 << 24);
        let index = Tiny::<K, _>::create(pool.clone(), pool.root(0), Config::default()).unwrap();
        // The first candidates for such marks, and similar keys.
        let marks = (0..8u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let keys: Vec<u64> = marks.chain([1, u64::MAX, u64::MAX - 1, 1 << 63]).collect();
        for (round, word) in [0, u64::MAX, 5].into_iter().enumerate() {
            for &key in &keys {
                assert_eq!(index.get(key, &pool.pin()).unwrap(), None, "round {round}");
                assert!(index.insert(key, word, &pool.pin()).unwrap().inserted());
            }
            for &key in &keys {
                assert_eq!(index.get(key, &pool.pin()).unwrap(), Some(word));
                assert_eq!(index.remove(key, &pool.pin()).unwrap().old, Some(word));
            }
        }
        assert_eq!(index.stats(&pool.pin()).unwrap().len, 0);
    }
    all::<u64>();
    all::<Plain>();
}

/// C15: the probing distance is part of the format, because a record beyond a shorter window would
/// be missed.
#[test]
fn c15_another_geometry_is_refused() {
    let pool = dram(4096, 1 << 24);
    Tiny::<u64, _>::create(pool.clone(), pool.root(0), Config::default()).unwrap();
    for refused in [
        Cceh::<u64, _, 4, 1>::open(pool.clone(), pool.root(0)).err(),
        Cceh::<u64, _, 8, 2>::open(pool.clone(), pool.root(0)).err(),
        Tiny::<Plain, _>::open(pool.clone(), pool.root(0)).err(),
    ] {
        assert!(refused.unwrap().to_string().contains("another kind of index"));
    }
    assert!(Tiny::<u64, _>::open(pool.clone(), pool.root(0)).is_ok());
}

#[test]
fn impossible_depths_are_refused() {
    for initial_depth in [0, 41, u32::MAX] {
        let config = Config { initial_depth, ..Config::default() };
        let pool = dram(4096, 1 << 24);
        let error = Tiny::<u64, _>::create(pool.clone(), pool.root(0), config).err().unwrap();
        assert!(matches!(error.kind(), ErrorKind::Config(_)), "{error}");
    }
}
