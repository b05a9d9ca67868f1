//! Hashes that hurt, and words that no key may have elsewhere.

use evermap_index::hash::cceh::Cceh;
use evermap_pm::ErrorKind;

use super::*;

/// Keys are put until one is refused; answers how many found room.
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

/// CC-8: keys with equal hashes fill a window that no split can part. They must be refused, without
/// a directory that doubles for them without effect, and everything else must go on.
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
        assert!(!asked, "the answer could not be carried out");
    }
    assert_eq!(index.stats(&pool.pin()).unwrap(), before, "a refusal changes nothing");
    for number in 0..16 {
        assert_eq!(index.get(same(number), &pool.pin()).unwrap(), Some(number));
        assert_eq!(index.update(same(number), 7, &pool.pin()).unwrap().old, Some(number));
    }
    // Others, and the refused ones once there is room.
    for other in 1..2000u64 {
        let spread = other.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        assert!(index.insert(spread, other, &pool.pin()).unwrap().inserted());
    }
    assert!(index.remove(same(3), &pool.pin()).unwrap().removed());
    assert!(index.insert(same(20), 20, &pool.pin()).unwrap().inserted());
    assert_eq!(index.check(), Vec::<String>::new());
}

/// CC-8, hostile: hashes that agree in ever more bits, so that every split parts a few from the
/// rest. The directory stays in proportion to the segments that it names.
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
    assert!(stats.depth >= 9, "what is in proportion must be allowed: {stats:?}");
    assert_eq!(index.check(), Vec::<String>::new());
}

/// CC-8, far: keys that agree in some bits only are parted by as many splits as it takes.
#[test]
fn cc8_long_common_prefixes_are_parted() {
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

/// Records that wrap around the end of a segment find room when it splits: other implementations
/// lose them, when they are copied in the order of slots and a window is full.
#[test]
fn c12_a_split_has_room_for_what_wraps_around() {
    let pool = dram(4096, 1 << 24);
    let index = Chosen::create(pool.clone(), pool.root(0), Config::default()).unwrap();
    // All in the upper half of the lower segment, so that all of them move at the first split.
    let at = |bucket: u64, number: u64| key(0b01, 2, number) | bucket;
    let mut keys: Vec<u64> = Vec::new();
    // Buckets 3 and 0 are filled by those of 3, then 1 by those of 0, which had to make way, and 2
    // by those of 1.
    keys.extend((0..8).map(|number| at(3, number)));
    keys.extend((0..4).map(|number| at(0, 10 + number)));
    keys.extend((0..4).map(|number| at(1, 20 + number)));
    put(&index, &pool, &keys);
    assert_eq!(index.stats(&pool.pin()).unwrap().splits, 0, "every slot is taken");
    // One more, elsewhere in the lower segment: all others move.
    put(&index, &pool, &[key(0b00, 2, 5)]);
    assert_eq!(index.stats(&pool.pin()).unwrap().splits, 1);
    for (word, &key) in keys.iter().enumerate() {
        assert_eq!(index.get(key, &pool.pin()).unwrap(), Some(word as u64), "key {key:#x}");
    }
    assert_sound(&index, &pool);
}

/// No key is reserved: whatever marks a free slot in one segment is an ordinary key of another.
#[test]
fn every_key_and_every_word_is_possible() {
    fn all<K: for<'a> Key<Ref<'a> = u64>>() {
        let pool = dram(4096, 1 << 24);
        let index = Tiny::<K, _>::create(pool.clone(), pool.root(0), Config::default()).unwrap();
        // The first candidates for marks, and their like.
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

/// C15: how far is probed belongs to the format: a record beyond a shorter window would be missed.
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
