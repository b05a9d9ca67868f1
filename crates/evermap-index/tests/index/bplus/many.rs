//! Binding and unbinding many keys at a time.

use std::collections::BTreeMap;

use evermap_index::ordered::bplus::{BPlus, Config};
use evermap_index::record::KEY_MAX;
use evermap_index::{Cursor, Direction, OrderedIndex};
use evermap_pm::sim::rng::Rng;

use super::SOUND;

/// Short keys that fit into slots, and some that need blocks.
fn key_of(random: &mut Rng, keys: u64) -> Vec<u8> {
    let number = random.below(keys);
    let mut key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec();
    key.truncate(1 + number as usize % 8);
    if number.is_multiple_of(5) {
        key.resize(30, number as u8);
    }
    key
}

fn contents<const N: usize>(tree: &BPlus<N>) -> Vec<(Vec<u8>, u64)> {
    let (mut cursor, mut all) = (Cursor::new(tree, .., Direction::Ascending), Vec::new());
    while let Some((key, word)) = cursor.next().unwrap() {
        all.push((key.to_vec(), word));
    }
    all
}

/// The result is that of single operations in the same order, also if a key occurs twice, and if
/// nodes are split and merged in between.
#[test]
fn many_are_set_as_one_by_one() {
    let tree = BPlus::<4>::new();
    let (mut random, mut model) = (Rng::new(3), BTreeMap::new());
    for round in 0..3_000u64 {
        // Growing, shrinking, growing.
        let binds = if round / 500 % 2 == 0 { 8 } else { 2 };
        let pairs: Vec<(Vec<u8>, Option<u64>)> = (0..random.below(100))
            .map(|_| {
                let word = (random.below(10) < binds).then(|| random.draw());
                (key_of(&mut random, 3_000), word)
            })
            .collect();
        for (key, word) in &pairs {
            match word {
                Some(word) => drop(model.entry(key.clone()).or_insert(*word)),
                None => drop(model.remove(key)),
            }
        }
        let pairs: Vec<_> = pairs.iter().map(|(key, word)| (&key[..], *word)).collect();
        tree.set_many(&pairs).unwrap();
        assert_eq!(tree.len(), model.len() as u64);
        if round % 100 == 0 {
            assert!(contents(&tree).into_iter().eq(model.clone()));
            assert_eq!(tree.check(), SOUND);
        }
    }
    assert!(tree.stats().splits > 1_000 && tree.stats().merges > 1_000);
}

/// Each thread sets its own keys, in leaves that they share.
#[test]
fn threads_do_not_lose_each_others_keys() {
    let tree = &BPlus::<4>::new();
    let models = std::thread::scope(|threads| {
        let threads: Vec<_> = (0..3u8)
            .map(|me| {
                threads.spawn(move || {
                    let (mut random, mut model) = (Rng::new(u64::from(me)), BTreeMap::new());
                    for _ in 0..2_000 {
                        let keys: Vec<Vec<u8>> = (0..40)
                            .map(|_| {
                                let mut key = key_of(&mut random, 2_000);
                                key.push(me);
                                key
                            })
                            .collect();
                        let word = (random.below(2) == 0).then(|| u64::from(me));
                        let pairs: Vec<_> = keys.iter().map(|key| (&key[..], word)).collect();
                        tree.set_many(&pairs).unwrap();
                        for key in keys {
                            match word {
                                Some(word) => drop(model.insert(key, word)),
                                None => drop(model.remove(&key)),
                            }
                        }
                    }
                    model
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let all: BTreeMap<Vec<u8>, u64> = models.into_iter().flatten().collect();
    assert!(contents(tree).into_iter().eq(all));
    assert_eq!(tree.check(), SOUND);
}

#[test]
fn what_cannot_be_bound_is_refused() {
    let tree = BPlus::<40>::with_config(Config { bytes_max: 20_000 }).unwrap();
    let long = vec![7; KEY_MAX + 1];
    assert!(tree.set_many(&[(b"a", Some(1)), (&long, Some(2))]).is_err());
    assert!(tree.set_many(&[(&long, None)]).is_ok(), "it is absent already");
    assert_eq!(contents(&tree), [(b"a".to_vec(), 1)]);
    let keys: Vec<[u8; 8]> = (0..2_000u64).map(u64::to_be_bytes).collect();
    let pairs: Vec<_> = keys.iter().map(|key| (&key[..], Some(3))).collect();
    assert!(tree.set_many(&pairs).unwrap_err().is_no_space());
    assert!(tree.len() > 100 && tree.len() < 2_000);
    assert_eq!(tree.check(), SOUND);
}
