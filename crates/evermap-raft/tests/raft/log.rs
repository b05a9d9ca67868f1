//! What a log is after it was opened again.

use evermap_raft::Storage;
use evermap_raft::kv::{Kv, Request};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use openraft::{Entry, RaftLogReader, Vote};

use crate::{entry, id, open, set};

fn entries(range: std::ops::Range<u64>) -> Vec<Entry<Kv>> {
    range.map(|index| entry(index, set(index.to_string(), "value"))).collect()
}

#[tokio::test]
async fn a_log_is_the_same_after_it_was_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node");
    {
        let Storage { mut log, .. } = open(&path);
        log.blocking_append(entries(0..100)).await.unwrap();
        log.truncate(id(1, 90)).await.unwrap();
        log.purge(id(1, 9)).await.unwrap();
        log.save_committed(Some(id(1, 50))).await.unwrap();
    }
    let Storage { mut log, .. } = open(&path);
    let state = log.get_log_state().await.unwrap();
    assert_eq!(state.last_purged_log_id, Some(id(1, 9)));
    assert_eq!(state.last_log_id, Some(id(1, 89)));
    assert_eq!(log.read_committed().await.unwrap(), Some(id(1, 50)));
    assert_eq!(log.try_get_log_entries(..).await.unwrap(), entries(10..90));
    assert_eq!(log.try_get_log_entries(5..=11).await.unwrap(), entries(10..12));
    log.truncate(id(1, 10)).await.unwrap();
    let state = log.get_log_state().await.unwrap();
    assert_eq!(state.last_log_id, Some(id(1, 9)), "only what is purged is left");
    log.blocking_append(entries(10..12)).await.unwrap();
    assert_eq!(log.try_get_log_entries(..).await.unwrap(), entries(10..12));
}

/// It would go on in its term otherwise, with a state that may be older than what it has answered.
#[tokio::test]
async fn a_leader_that_was_restarted_is_not_the_leader() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node");
    {
        let Storage { mut log, .. } = open(&path);
        assert_eq!(log.read_vote().await.unwrap(), None);
        log.save_vote(&Vote::new_committed(3, 1)).await.unwrap();
        assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new_committed(3, 1)));
    }
    let Storage { mut log, .. } = open(&path);
    assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new(3, 1)));
}

#[tokio::test]
async fn replications_read_parts() {
    let folder = tempfile::tempdir().unwrap();
    let Storage { mut log, .. } = open(folder.path().join("node"));
    let long = |index| entry(index, set("key", vec![index as u8; 300_000]));
    log.blocking_append((0..10).map(long).collect::<Vec<_>>()).await.unwrap();
    let read = log.limited_get_log_entries(2, 10).await.unwrap();
    assert_eq!(read, (2..6).map(long).collect::<Vec<_>>());
    let read = log.limited_get_log_entries(9, 10).await.unwrap();
    assert_eq!(read, [long(9)]);
}

/// Nothing is left of a log without the state that stands for it.
#[tokio::test]
async fn a_purge_waits_for_the_snapshot_that_is_installed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node");
    {
        let Storage { mut log, mut state_machine } = open(&path);
        log.blocking_append(entries(0..10)).await.unwrap();
        let received = state_machine.begin_receiving_snapshot().await.unwrap();
        log.purge(id(1, 500)).await.unwrap();
        let state = log.get_log_state().await.unwrap();
        assert_eq!(
            (state.last_purged_log_id, state.last_log_id),
            (Some(id(1, 500)), Some(id(1, 500)))
        );
        assert!(log.try_get_log_entries(..).await.unwrap().is_empty());
        // It is given up, and so is the node.
        drop(received);
        let next = entry(501, Request::Delete { key: vec![] });
        assert!(log.blocking_append([next]).await.is_err());
    }
    let Storage { mut log, .. } = open(&path);
    assert_eq!(log.try_get_log_entries(..).await.unwrap(), entries(0..10));
    assert_eq!(log.get_log_state().await.unwrap().last_purged_log_id, None);
}
