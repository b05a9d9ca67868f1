//! Errors of a tree, none of which changes anything.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use evermap_index::ordered::bplus::{BPlus, Config};
use evermap_index::ordered::{Cursor, Direction, OrderedIndex};
use evermap_index::record::KEY_MAX;
use evermap_index::{Action, Change, MutateMode};
use evermap_pm::ErrorKind;
use evermap_pm::sim::rng::Rng;

use super::SOUND;

#[test]
fn keys_have_a_longest() {
    let tree = BPlus::<4>::new();
    let (longest, longer) = (vec![7; KEY_MAX], vec![7; KEY_MAX + 1]);
    assert!(tree.insert(&longest, 1).unwrap().inserted());
    for refused in [tree.insert(&longer, 2), tree.upsert(&longer, 2)] {
        let error = refused.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::KeyTooLong { len: 65_537, max: 65_536 }));
        assert_eq!(error.to_string(), "key of 65537 bytes is too long; the limit is 65536");
    }
    // Other operations need no check: such a key is always absent.
    assert_eq!(tree.get(&longer).unwrap(), None);
    assert_eq!(tree.remove(&longer).unwrap(), Change::default());
    assert_eq!(tree.update(&longer, 3).unwrap(), Change::default());
    assert_eq!((tree.len(), tree.check()), (1, SOUND));
    // A bound may have any length.
    let mut above = Cursor::new(
        &tree,
        (std::ops::Bound::Excluded(&longer[..]), std::ops::Bound::Unbounded),
        Direction::Ascending,
    );
    assert_eq!(above.next().unwrap(), None);
    let mut below = Cursor::new(
        &tree,
        (std::ops::Bound::Unbounded, std::ops::Bound::Excluded(&longer[..])),
        Direction::Descending,
    );
    assert_eq!(below.next().unwrap(), Some((&longest[..], 1)));
}

/// Fills trees of several limits, with keys that need blocks and keys that do not, and then changes
/// existing keys.
#[test]
fn a_full_tree_refuses_and_is_sound() {
    for (limit, length) in [(2_000, 0), (20_000, 0), (20_000, 40), (200_000, 100)] {
        let tree = BPlus::<4>::with_config(Config { bytes_max: limit }).unwrap();
        let mut model: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        let mut random = Rng::new(limit + length);
        let key = |random: &mut Rng| {
            let mut key = vec![random.below(3) as u8; random.below(length + 1) as usize];
            key.extend(random.below(1 << 16).to_be_bytes());
            key
        };
        let mut refusals = 0;
        for word in 0..20_000 {
            let key = key(&mut random);
            match tree.insert(&key, word) {
                Ok(change) => {
                    assert_eq!(change.old, model.get(&key).copied());
                    model.entry(key).or_insert(word);
                }
                Err(error) => {
                    assert!(error.is_no_space() && !model.contains_key(&key), "{error}");
                    assert_eq!(tree.get(&key).unwrap(), None);
                    refusals += 1;
                    // Existing keys can still be changed and removed.
                    let some = model
                        .keys()
                        .nth(random.below(model.len() as u64) as usize)
                        .unwrap()
                        .clone();
                    let old = model.insert(some.clone(), word);
                    assert_eq!(tree.update(&some, word).unwrap().old, old);
                    if random.below(4) == 0 {
                        assert_eq!(tree.remove(&some).unwrap().old, model.remove(&some));
                    }
                }
            }
            assert!(tree.stats().dram_bytes <= limit + 2_000, "{:?}", tree.stats());
        }
        assert!(refusals > 1000, "{refusals}");
        assert_eq!((tree.len(), tree.check()), (model.len() as u64, SOUND));
        assert!(model.iter().all(|(key, &word)| tree.get(key).unwrap() == Some(word)));
        for key in model.keys() {
            assert!(tree.remove(key).unwrap().removed());
        }
        assert_eq!((tree.stats().depth, tree.check()), (1, SOUND));
        assert!(tree.insert(b"room again", 1).unwrap().inserted());
    }
}

/// A closure that panics changes nothing, and leaves no lock behind.
#[test]
fn a_panic_in_a_decision_changes_nothing() {
    let tree = BPlus::<4>::new();
    let long = [9; 100];
    for key in 0..100u64 {
        tree.insert(&key.to_be_bytes(), key).unwrap();
    }
    for key in [&5u64.to_be_bytes()[..], &500u64.to_be_bytes(), &long] {
        let before = tree.get(key).unwrap();
        let decide = &mut |_: Option<u64>| -> Action { panic!("a decision") };
        let result =
            catch_unwind(AssertUnwindSafe(|| tree.mutate(key, MutateMode::MayInsert, decide)));
        assert!(result.is_err());
        assert_eq!((tree.get(key).unwrap(), tree.len()), (before, 100));
        assert_eq!(tree.upsert(key, 7).unwrap().old, before);
        assert_eq!(tree.upsert(key, 8).unwrap().old, Some(7));
        if before.is_none() {
            tree.remove(key).unwrap();
        }
    }
    assert_eq!(tree.check(), SOUND);
}
