//! How often an operation waits until what it has written is durable.

use crate::common::{Kept, value_of};
use evermap::Map;
use evermap_pm::sim::Sim;

/// Returns the numbers of fences of many operations, in ascending order.
fn fences(medium: &Kept, store: &Map<Sim>, mut operation: impl FnMut(&Map<Sim>, u64)) -> Vec<u64> {
    let mut counts: Vec<_> = (0..20_000)
        .map(|number| {
            let before = medium.fences();
            operation(store, number);
            medium.fences() - before
        })
        .collect();
    counts.sort_unstable();
    counts
}

fn key_of(number: u64) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// Three fences for the record, the slot and the bucket's header, or two if the slot shares the
/// header's line. There are more only if space is needed: for a split, a displacement, a new
/// extent, or a new range of CAS ids.
#[test]
fn a_put_waits_three_times() {
    let medium = Kept::new(64 << 20);
    let store = medium.open(&evermap::Options::new().capacity(64 << 20)).unwrap();
    let put = |store: &Map<Sim>, number| {
        store.put(&key_of(number), &value_of(&key_of(number), number, 100)).unwrap();
    };
    let inserts = fences(&medium, &store, put);
    assert!(inserts[inserts.len() * 90 / 100] <= 3, "inserts: {:?}", inserts.last());
    // The record and the word that names it.
    let updates = fences(&medium, &store, put);
    assert!(updates[updates.len() * 99 / 100] <= 2, "updates: {:?}", updates.last());
    let removals = fences(&medium, &store, |store, number| {
        assert!(store.delete(&key_of(number)).unwrap());
    });
    assert!(removals[removals.len() * 95 / 100] <= 1, "removals: {:?}", removals.last());
    let lookups = fences(&medium, &store, |store, number| {
        assert_eq!(store.get(&key_of(number)).unwrap(), None);
    });
    assert_eq!(lookups.last(), Some(&0));
}
