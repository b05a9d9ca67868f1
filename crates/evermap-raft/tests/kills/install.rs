//! A state machine whose process is killed while it builds and installs snapshots.

use std::path::Path;
use std::sync::atomic::Ordering;

use evermap::{Evermap, MapOptions, Options};
use evermap_raft::kv::{Kv, Request};
use evermap_raft::{StateMachine, Storage};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine, Snapshot};
use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId, RaftLogReader, RaftSnapshotBuilder};

use crate::victim::{Random, Victim, lose_power};
use crate::{instants, times};

fn options() -> Options {
    Options::new().capacity(1 << 30).log_in_memory(true).checkpoint_bytes(1 << 20)
}

fn open(folder: &Path, name: &str) -> Storage<Kv> {
    evermap_raft::open(folder.join(name), options()).unwrap()
}

/// The number of keys in a generation: each has other ones, so that mixtures are noticed.
fn keys(generation: u64) -> std::ops::Range<u64> {
    generation * 100..generation * 100 + 500 + generation % 7
}

fn entry(index: u64, request: Request) -> Entry<Kv> {
    let log_id = LogId::new(CommittedLeaderId::new(1, 1), index);
    Entry { log_id, payload: EntryPayload::Normal(request) }
}

/// Takes a leader's state to the next generation. The index of the last entry is a thousand times
/// that.
async fn advance(leader: &mut StateMachine<Kv>, generation: u64) {
    let old = keys(generation - 1).map(|key| Request::Delete { key: key.to_be_bytes().into() });
    let new = keys(generation).map(|key| {
        let value = vec![generation as u8; (key % 300) as usize];
        Request::Set { key: key.to_be_bytes().into(), value }
    });
    let requests: Vec<_> = old.chain(new).collect();
    let start = generation * 1000 + 1 - requests.len() as u64;
    let entries = (start..).zip(requests).map(|(index, request)| entry(index, request));
    leader.apply(entries.collect::<Vec<_>>()).await.unwrap();
}

/// Installs snapshots of a leader until the process is killed.
pub(crate) fn work(folder: &Path) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let storage = open(folder, "follower");
    runtime.block_on(install(storage, || false, |word, number| println!("{word} {number}")));
}

/// Installs snapshots of a leader.
async fn install(storage: Storage<Kv>, has_ended: impl Fn() -> bool, say: impl Fn(&str, u64)) {
    let Storage { log: mut follower_log, state_machine: mut follower } = storage;
    let applied = follower.applied_state().await.unwrap().0.map_or(0, |id| id.index);
    let mut generation = applied / 1000;
    // The leader is only the source.
    let source = tempfile::tempdir().unwrap();
    let mut leader = open(source.path(), "leader").state_machine;
    while !has_ended() {
        generation += 1;
        advance(&mut leader, generation).await;
        let Snapshot { meta, mut snapshot } =
            leader.get_snapshot_builder().await.build_snapshot().await.unwrap();
        let mut received = follower.begin_receiving_snapshot().await.unwrap();
        tokio::io::copy(&mut snapshot, &mut received).await.unwrap();
        say("INSTALLS", generation);
        // As openraft does it: it does not wait before it purges.
        let last = meta.last_log_id.unwrap();
        let purges = async { follower_log.purge(last).await.unwrap() };
        let installs = async { follower.install_snapshot(&meta, received).await.unwrap() };
        tokio::join!(installs, purges);
        let state = follower_log.get_log_state().await.unwrap();
        assert_eq!(state.last_log_id, Some(last));
        say("INSTALLED", generation);
        let next = last.index + 1;
        let noise = (0..3).map(|more| entry(next + more, Request::Delete { key: vec![] }));
        follower_log.blocking_append(noise.collect::<Vec<_>>()).await.unwrap();
    }
}

/// Checks that a follower has one generation, wholly, and returns which.
async fn check(follower: Storage<Kv>, said: &str) -> u64 {
    let last = |word: &str| {
        let mut numbers = said.lines().filter_map(|line| line.strip_prefix(word)?.parse().ok());
        numbers.next_back().unwrap_or(0_u64)
    };
    let Storage { mut log, state_machine: mut follower } = follower;
    let (applied, _) = follower.applied_state().await.unwrap();
    let generation = applied.map_or(0, |id| id.index) / 1000;
    let (begun, ended) = (last("INSTALLS "), last("INSTALLED "));
    assert!(generation >= ended, "generation {ended} was installed, {generation} is there");
    assert!(begun == 0 || generation <= begun, "{generation} is there, {begun} was begun");
    let map = follower.state().map();
    let mut found = 0;
    for pair in map.iter() {
        let (key, value) = pair.unwrap();
        let key = u64::from_be_bytes(key.try_into().unwrap());
        assert!(keys(generation).contains(&key), "the key {key} in generation {generation}");
        assert_eq!(value, vec![generation as u8; (key % 300) as usize]);
        found += 1;
    }
    let expected = if generation == 0 { 0 } else { keys(generation).count() };
    assert_eq!(found, expected, "records of generation {generation}");
    let state = log.get_log_state().await.unwrap();
    assert_eq!(state.last_purged_log_id, applied, "what is purged, and what is applied");
    let entries = log.try_get_log_entries(..).await.unwrap();
    assert!(matches!(entries.len(), 0 | 3), "{} entries", entries.len());
    let snapshot = follower.get_current_snapshot().await.unwrap();
    assert!(snapshot.is_none_or(|snapshot| snapshot.meta.last_log_id <= applied));
    generation
}

/// Checks that nothing is left of installations that were killed.
fn check_rest(folder: &Path) {
    let db = Evermap::open(folder.join("follower"), options().durability(evermap::Durability::Log));
    let db = db.unwrap();
    let maps = db.maps().unwrap();
    let states = maps.iter().filter(|name| name.starts_with("raft.state.")).count();
    assert_eq!(states, 1, "{maps:?}");
    let log = db.map("raft.log", MapOptions::new().create(false)).unwrap();
    assert!(log.keys().count() <= 3, "{} entries", log.keys().count());
    let files = std::fs::read_dir(folder.join("follower.snapshots")).unwrap().count();
    assert!(files <= 1, "{files} snapshots");
}

/// A state is one generation at every instant.
pub(crate) fn instants(_: &mut Random) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut last = 0;
    instants::take(
        times(60, 3000),
        |storage, has_ended| {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let has_ended = || has_ended.load(Ordering::Relaxed);
            runtime.block_on(install(storage, has_ended, |_, _| {}));
        },
        |path| {
            let generation = runtime.block_on(check(instants::open(&path).1, ""));
            assert!(generation >= last, "generation {last} was there, now {generation}");
            last = generation;
        },
    );
    println!("install at instants: {last} snapshots");
    assert!(last > 0);
}

pub(crate) fn test(random: &mut Random) {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let kills = times(10, 200);
    let mut generation = 0;
    for kill in 0..kills {
        let mut victim = Victim::start(&["as-install", folder.path().to_str().unwrap()]);
        victim.wait_for("INSTALLS");
        std::thread::sleep(random.millis(400));
        let said = victim.kill();
        if kill % 2 == 1 {
            lose_power(&folder.path().join("follower"));
        }
        let found = runtime.block_on(check(open(folder.path(), "follower"), &said));
        assert!(found >= generation, "generation {generation} was there, now {found}");
        generation = found;
        check_rest(folder.path());
    }
    println!("install: {kills} kills, {generation} snapshots");
    assert!(generation > 0);
}
