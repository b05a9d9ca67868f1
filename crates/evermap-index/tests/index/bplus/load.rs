//! Trees that are loaded from runs.

use std::collections::BTreeMap;

use evermap_index::ordered::bplus::{BPlus, Config, Partitioner};
use evermap_index::ordered::{Cursor, Direction, OrderedIndex, Run};
use evermap_index::testkit::ordered::model::key_sets;
use evermap_index::testkit::tier;
use evermap_pm::ErrorKind;
use evermap_pm::sim::rng::Rng;

use super::SOUND;

/// Returns the pairs of runs: of equal keys, the last one counts.
fn model(runs: &[Run]) -> BTreeMap<Vec<u8>, u64> {
    let pairs = runs.iter().flat_map(Run::iter);
    pairs.map(|(key, word)| (key.to_vec(), word)).collect()
}

fn load<const N: usize>(runs: &[Run], threads: usize) -> BPlus<N> {
    BPlus::load(Config::default(), runs, threads).unwrap()
}

fn must_hold(tree: &dyn OrderedIndex, model: &BTreeMap<Vec<u8>, u64>) {
    assert_eq!((tree.check(), tree.len()), (SOUND, model.len() as u64));
    let mut cursor = Cursor::new(tree, .., Direction::Ascending);
    for (key, &word) in model {
        assert_eq!(cursor.next().unwrap(), Some((&key[..], word)));
    }
    assert_eq!(cursor.next().unwrap(), None);
}

/// Sets of keys in any number of runs, some of them sorted, with keys that occur more than once.
#[test]
fn a_loaded_tree_holds_its_runs() {
    let mut random = Rng::new(3);
    for (_, keys) in key_sets() {
        for runs in [1, 2, 5] {
            let mut runs = vec![Run::new(); runs];
            for word in 0..keys.len() as u64 * 2 {
                let at = random.below(runs.len() as u64) as usize;
                let key: &Vec<u8> = random.pick(&keys);
                runs[at].push(key, word);
            }
            let mut sorted = Run::new();
            keys.iter().step_by(3).for_each(|key| sorted.push(key, 77));
            runs.insert(random.below(runs.len() as u64 + 1) as usize, sorted);
            let model = model(&runs);
            must_hold(&load::<4>(&runs, 1), &model);
            must_hold(&load::<7>(&runs, 3), &model);
            must_hold(&load::<40>(&runs, 2), &model);
        }
    }
}

/// There are enough pairs for several partitions per thread.
#[test]
fn parts_fit_together() {
    let mut random = Rng::new(5);
    for spread in [u64::MAX, 60_000, 50] {
        let mut runs = vec![Run::new(); 3];
        for word in 0..200_000 {
            let key = random.below(spread).to_be_bytes();
            runs[random.below(3) as usize].push(&key, word);
        }
        let model = model(&runs);
        for &threads in tier().choose(&[2][..], &[1, 2, 4]) {
            must_hold(&load::<4>(&runs, threads), &model);
            must_hold(&load::<40>(&runs, threads), &model);
        }
    }
}

/// There are enough pairs for many partitions, and the keys differ only near their ends.
#[test]
fn keys_that_differ_late_find_their_parts() {
    let mut random = Rng::new(8);
    let mut runs = vec![Run::new(); 2];
    for word in 0..100_000 {
        let late = random.below(60_000);
        let key = match random.below(5) {
            0 => format!("another table's key {late}"),
            _ => format!("a table's key {late}"),
        };
        runs[random.below(2) as usize].push(key.as_bytes(), word);
    }
    runs[1].push(b"", 1);
    runs[0].push(b"z", 2);
    let mut sorted = Run::new();
    (0..20_000).for_each(|key| sorted.push(format!("a table's key {key:06}").as_bytes(), 3));
    runs.insert(1, sorted);
    let model = model(&runs);
    for threads in [1, 3] {
        must_hold(&load::<40>(&runs, threads), &model);
    }
}

/// Partitions are chosen by samples that represent the keys well, badly or not at all.
#[test]
fn partitioned_pairs_are_loaded() {
    let mut random = Rng::new(13);
    for (sampled, keys) in [("m:", "m:"), ("m:", ""), ("m:a", "m:b"), ("m:b", "m:a"), ("", "m:")] {
        for &samples in tier().choose(&[1, 40_000][..], &[0, 1, 10, 40_000]) {
            let key = |random: &mut Rng, table: &str| {
                let number = random.below(60_000);
                match random.below(50) {
                    0 => table.as_bytes()[..number as usize % (table.len() + 1)].to_vec(),
                    1 => format!("z{number}").into_bytes(),
                    _ => format!("{table}{number}").into_bytes(),
                }
            };
            let mut sample = Run::new();
            (0..samples).for_each(|_| sample.push(&key(&mut random, sampled), 0));
            let partitioner = Partitioner::from_sample(&sample, 60_000);
            let mut buffers: Vec<_> = (0..3).map(|_| partitioner.buffers(20_000)).collect();
            let mut runs = vec![Run::new(); 3];
            for word in 0..60_000 {
                let (key, at) = (key(&mut random, keys), random.below(3) as usize);
                buffers[at].push(&key, word).unwrap();
                runs[at].push(&key, word);
            }
            let tree =
                BPlus::<40>::load_partitioned(Config::default(), &partitioner, buffers, 2).unwrap();
            must_hold(&tree, &model(&runs));
        }
    }
}

#[test]
fn empty_buffers_make_an_empty_tree() {
    let partitioner = Partitioner::from_sample(&Run::new(), 1 << 20);
    for buffers in [vec![], vec![partitioner.buffers(0), partitioner.buffers(5)]] {
        let tree =
            BPlus::<7>::load_partitioned(Config::default(), &partitioner, buffers, 2).unwrap();
        must_hold(&tree, &BTreeMap::new());
    }
    let error = partitioner.buffers(1).push(&[0; 65_537], 1).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KeyTooLong { len: 65_537, .. }), "{error}");
}

#[test]
#[should_panic = "buffers of another partitioner"]
fn buffers_of_two_partitioners_do_not_mix() {
    let partitioners = [(); 2].map(|()| Partitioner::from_sample(&Run::new(), 0));
    let _ = BPlus::<7>::load_partitioned(
        Config::default(),
        &partitioners[0],
        vec![partitioners[1].buffers(0)],
        1,
    );
}

#[test]
fn a_loaded_tree_can_be_changed() {
    let mut run = Run::new();
    (0..5000u64).for_each(|key| run.push(&(key * 2).to_be_bytes(), key));
    let tree = load::<7>(&[run], 2);
    for key in 0..10_000u64 {
        let change = tree.upsert(&key.to_be_bytes(), 1).unwrap();
        assert_eq!(change.old, (key % 2 == 0).then_some(key / 2));
    }
    assert_eq!((tree.len(), tree.check()), (10_000, SOUND));
    for key in 0..10_000u64 {
        assert!(tree.remove(&key.to_be_bytes()).unwrap().removed());
    }
    assert_eq!((tree.len(), tree.stats().depth, tree.check()), (0, 1, SOUND));
}

#[test]
fn nothing_makes_an_empty_tree() {
    for runs in [vec![], vec![Run::new(); 3]] {
        let tree = load::<4>(&runs, 4);
        must_hold(&tree, &BTreeMap::new());
        assert!(tree.insert(b"first", 1).unwrap().inserted());
    }
}

#[test]
fn a_load_is_refused_as_a_whole() {
    let mut run = Run::new();
    (0..50_000u64).for_each(|key| run.push(&key.to_be_bytes(), key));
    for bytes_max in [100, 10_000, 1_000_000] {
        let error = BPlus::<40>::load(Config { bytes_max }, &[run.clone()], 2).err().unwrap();
        assert!(error.is_no_space(), "{error}");
    }
    run.push(&vec![0; 65_537], 1);
    let error = BPlus::<40>::load(Config::default(), &[run], 2).err().unwrap();
    assert!(matches!(error.kind(), ErrorKind::KeyTooLong { len: 65_537, .. }), "{error}");
}

/// Nodes are loaded nine tenths full, so that there is space for inserts.
#[test]
fn a_loaded_tree_is_dense() {
    let mut run = Run::new();
    (0..100_000u64).for_each(|key| run.push(&key.to_be_bytes(), key));
    let stats = load::<40>(&[run], 2).stats();
    assert!((0.85..0.91).contains(&stats.load_factor()), "{stats:?}");
}
