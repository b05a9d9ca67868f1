//! How often an operation waits for what it wrote to be durable.

use crate::common::{Kept, value_of};
use evermap::Map;

/// Fences of each of many operations, ascending.
fn fences(
    medium: &Kept,
    store: &Map<Kept>,
    mut operation: impl FnMut(&Map<Kept>, u64),
) -> Vec<u64> {
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

/// The record, the slot, the bucket's header: three, and two where the slot shares the header's
/// line. More only where room has to be made: a split, a displacement, a new extent, a new range of
/// CAS ids.
#[test]
fn a_put_waits_three_times() {
    let medium = Kept::new(64 << 20);
    let store = medium.open(&evermap::Options::new().capacity(64 << 20)).unwrap();
    let put = |store: &Map<Kept>, number| {
        store.put(&key_of(number), &value_of(&key_of(number), number, 100)).unwrap();
    };
    let inserts = fences(&medium, &store, put);
    assert!(inserts[inserts.len() * 90 / 100] <= 3, "inserts: {:?}", inserts.last());
    // The record and the word that names it.
    let updates = fences(&medium, &store, put);
    assert!(updates[updates.len() * 99 / 100] <= 2, "updates: {:?}", updates.last());
    let removals = fences(&medium, &store, |store, number| {
        assert!(store.remove(&key_of(number)).unwrap());
    });
    assert!(removals[removals.len() * 95 / 100] <= 1, "removals: {:?}", removals.last());
    let lookups = fences(&medium, &store, |store, number| {
        assert_eq!(store.get(&key_of(number)).unwrap(), None);
    });
    assert_eq!(lookups.last(), Some(&0));
}
