//! Commands, and snapshots.

use std::collections::BTreeSet;

use evermap::KEY_MAX;
use evermap_raft::kv::{Reply, Request};
use evermap_raft::{State, Storage};
use openraft::storage::{RaftStateMachine, Snapshot};
use openraft::{Entry, EntryPayload, Membership, RaftSnapshotBuilder};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

use crate::{entry, id, open, set};

fn exchange(key: &str, expected: Option<&str>, new: Option<&str>) -> Request {
    let bytes = |value: &str| value.as_bytes().to_vec();
    Request::CompareExchange { key: key.into(), expected: expected.map(bytes), new: new.map(bytes) }
}

fn add(key: &str, by: i64) -> Request {
    Request::Increment { key: key.into(), by }
}

#[tokio::test]
async fn commands_of_one_round_see_those_before() {
    let folder = tempfile::tempdir().unwrap();
    let Storage { mut state_machine, .. } = open(folder.path().join("node"));
    let steps = [
        (set("a", "1"), Reply::Done),
        (exchange("a", Some("1"), Some("2")), Reply::Done),
        (exchange("a", Some("1"), Some("3")), Reply::Differs(Some(b"2".into()))),
        (exchange("b", None, Some("new")), Reply::Done),
        (exchange("b", Some("new"), None), Reply::Done),
        (Request::Delete { key: "b".into() }, Reply::Absent),
        (Request::Delete { key: "a".into() }, Reply::Done),
        (exchange("a", None, Some("4")), Reply::Done),
        (add("n", 5), Reply::Count(5)),
        (add("n", -7), Reply::Count(-2)),
        (add("n", i64::MIN), Reply::Refused("the sum does not fit".into())),
        (add("a", 1), Reply::Refused("the value is no counter".into())),
        (set(vec![0; KEY_MAX + 1], "x"), Reply::Refused("the key is too long".into())),
    ];
    let (requests, replies): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
    let entries: Vec<_> = (1..).zip(requests).map(|(index, it)| entry(index, it)).collect();
    assert_eq!(state_machine.apply(entries).await.unwrap(), replies);
    let state = state_machine.state();
    assert_eq!(state.get("a").unwrap().as_deref(), Some(&b"4"[..]));
    assert_eq!(state.get("b").unwrap(), None);
    assert_eq!(state.get("n").unwrap(), Some((-2_i64).to_le_bytes().into()));
    assert_eq!(state.map().len(), 2);
}

/// Many more changes than one batch has.
#[tokio::test]
async fn a_state_is_the_same_after_it_was_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node");
    let members = Membership::new(vec![BTreeSet::from([1, 2, 3])], None);
    {
        let Storage { mut state_machine, .. } = open(&path);
        let payload = EntryPayload::Membership(members.clone());
        let first = Entry { log_id: id(1, 1), payload };
        let more = (2..10_000).map(|index| entry(index, set(index.to_string(), "value")));
        let entries: Vec<_> = std::iter::once(first).chain(more).collect();
        assert_eq!(state_machine.apply(entries).await.unwrap().len(), 9_999);
    }
    let Storage { mut state_machine, .. } = open(&path);
    let (applied, membership) = state_machine.applied_state().await.unwrap();
    assert_eq!(applied, Some(id(1, 9_999)));
    assert_eq!((*membership.log_id(), membership.membership()), (Some(id(1, 1)), &members));
    assert_eq!(state_machine.state().map().iter().count(), 9_998);
}

async fn bytes_of(mut snapshot: Snapshot<evermap_raft::kv::Kv>) -> Vec<u8> {
    let mut bytes = Vec::new();
    snapshot.snapshot.read_to_end(&mut bytes).await.unwrap();
    bytes
}

fn value(state: &State, key: &str) -> Option<Vec<u8>> {
    state.get(key).unwrap()
}

#[tokio::test]
async fn a_damaged_snapshot_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut leader = open(folder.path().join("leader")).state_machine;
    let entries = (1..2_000).map(|index| entry(index, set(index.to_string(), vec![7; 100])));
    leader.apply(entries.collect::<Vec<_>>()).await.unwrap();
    let built = leader.get_snapshot_builder().await.build_snapshot().await.unwrap();
    let meta = built.meta.clone();
    let good = bytes_of(built).await;

    for at in [0, 9, 20, 100, good.len() / 2, good.len() - 17, good.len() - 1, good.len()] {
        let path = folder.path().join(format!("follower {at}"));
        let mut follower = open(&path).state_machine;
        follower.apply([entry(1, set("old", "state"))]).await.unwrap();
        let mut bad = good.clone();
        match bad.get_mut(at) {
            Some(byte) => *byte ^= 0x10,
            // The end is missing.
            None => bad.truncate(at - 16),
        }
        let mut received = follower.begin_receiving_snapshot().await.unwrap();
        received.write_all(&bad).await.unwrap();
        assert!(follower.install_snapshot(&meta, received).await.is_err(), "{at}");
        assert_eq!(follower.applied_state().await.unwrap().0, Some(id(1, 1)));
        assert_eq!(value(&follower.state(), "old"), Some(b"state".into()));
        assert_eq!(follower.state().map().iter().count(), 1);
    }
}

#[tokio::test]
async fn a_snapshot_takes_the_place_of_the_state() {
    let folder = tempfile::tempdir().unwrap();
    let mut leader = open(folder.path().join("leader")).state_machine;
    let entries = (1..2_000).map(|index| entry(index, set(index.to_string(), vec![7; 100])));
    leader.apply(entries.collect::<Vec<_>>()).await.unwrap();
    let mut built = leader.get_snapshot_builder().await.build_snapshot().await.unwrap();
    // It is of the moment at which it was built.
    leader.apply([entry(2_000, set("late", "value"))]).await.unwrap();
    let (meta, path) = (built.meta.clone(), folder.path().join("follower"));
    {
        let mut follower = open(&path).state_machine;
        follower.apply([entry(1, set("old", "state"))]).await.unwrap();
        let state = follower.state();
        let before = state.map();
        let mut received = follower.begin_receiving_snapshot().await.unwrap();
        // In pieces, one of them twice, as over a network.
        let mut buffer = vec![0; 70_000];
        for start in [0, 70_000, 70_000, 140_000, 210_000] {
            built.snapshot.seek(std::io::SeekFrom::Start(start)).await.unwrap();
            received.seek(std::io::SeekFrom::Start(start)).await.unwrap();
            let mut piece = (&mut built.snapshot).take(70_000);
            buffer.clear();
            piece.read_to_end(&mut buffer).await.unwrap();
            received.write_all(&buffer).await.unwrap();
        }
        follower.install_snapshot(&meta, received).await.unwrap();
        assert_eq!(value(&state, "1999"), Some(vec![7; 100]));
        assert_eq!((value(&state, "old"), value(&state, "late")), (None, None));
        assert!(matches!(before.get("old"), Err(evermap::Error::Dropped { .. })));
    }
    let mut follower = open(&path).state_machine;
    assert_eq!(follower.applied_state().await.unwrap().0, meta.last_log_id);
    assert_eq!(follower.state().map().iter().count(), 1_999);
    let kept = follower.get_current_snapshot().await.unwrap().unwrap();
    assert_eq!(kept.meta, meta);
    assert!(follower.begin_receiving_snapshot().await.is_ok());
    let files = std::fs::read_dir(folder.path().join("follower.snapshots")).unwrap().count();
    assert_eq!(files, 1, "what was not received is removed");
}
