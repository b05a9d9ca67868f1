//! A log whose process is killed while it appends, truncates, purges and votes.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;

use evermap::{Durability, Evermap, MapOptions, Options};
use evermap_raft::kv::{Kv, Request};
use evermap_raft::{LogStore, Storage};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId, RaftLogReader, Vote};

use crate::victim::{Random, Victim, lose_power};
use crate::{instants, times};

fn options() -> Options {
    // Small, so that there are checkpoints all the time.
    Options::new()
        .capacity(1 << 30)
        .durability(Durability::Log)
        .log_in_memory(true)
        .checkpoint_bytes(512 << 10)
}

fn id(term: u64, index: u64) -> LogId<u64> {
    LogId::new(CommittedLeaderId::new(term, 1), index)
}

/// An entry whose content follows from its id.
fn entry(term: u64, index: u64) -> Entry<Kv> {
    let value = vec![index as u8; 20 + (index * 37 % 500) as usize];
    let request = Request::Set { key: [term.to_le_bytes(), index.to_le_bytes()].concat(), value };
    Entry { log_id: id(term, index), payload: EntryPayload::Normal(request) }
}

/// Changes a log until the process is killed, and says what it does and what is durable.
pub(crate) fn work(file: &Path, seed: u64) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let Storage::<Kv> { mut log, .. } = evermap_raft::open(file, options()).unwrap();
        let mut random = Random::new(seed);
        // Another term for every process: entries of two processes are never the same.
        let term = 1 + log.read_vote().await.unwrap().map_or(0, |vote| vote.leader_id().term);
        println!("VOTES {term}");
        log.save_vote(&Vote::new_committed(term, 1)).await.unwrap();
        println!("VOTED {term}");
        loop {
            step(&mut log, term, &mut random, |word, number| println!("{word} {number}")).await;
        }
    });
}

/// Changes a log once.
async fn step(log: &mut LogStore<Kv>, term: u64, random: &mut Random, say: impl Fn(&str, u64)) {
    let state = log.get_log_state().await.unwrap();
    let first = state.last_purged_log_id.map_or(0, |id| id.index + 1);
    let end = state.last_log_id.map_or(0, |id| id.index + 1);
    match random.below(12) {
        0 if end > first => {
            let from = end - 1 - random.below((end - first).min(40));
            say("TRUNCATES", from);
            // Only the index matters.
            log.truncate(id(term, from)).await.unwrap();
        }
        1 if end > first + 300 => {
            let to = first + random.below(end - first);
            say("PURGES", to);
            let purged = log.try_get_log_entries(to..=to).await.unwrap()[0].log_id;
            log.purge(purged).await.unwrap();
        }
        _ => {
            let entries = (end..=end + random.below(20)).map(|index| entry(term, index));
            let entries: Vec<_> = entries.collect();
            let last = entries.last().unwrap().log_id.index;
            say("APPENDS", last);
            log.blocking_append(entries).await.unwrap();
            say("APPENDED", last);
        }
    }
}

/// What is known of a log whose process was killed.
#[derive(Default)]
struct Known {
    vote: u64,
    /// The lowest end that the log can have: the index behind the last entry.
    end: u64,
    /// The highest index that can have been purged.
    purged: Option<u64>,
    begun_vote: u64,
    begun_end: u64,
}

impl Known {
    fn hear(&mut self, said: &str) {
        for line in said.lines() {
            let (word, number) = line.split_once(' ').unwrap();
            // The last line may be cut off.
            let Ok(number) = number.parse::<u64>() else { continue };
            match word {
                "VOTES" => self.begun_vote = number,
                "VOTED" => self.vote = number,
                "APPENDS" => self.begun_end = self.begun_end.max(number + 1),
                "APPENDED" => self.end = number + 1,
                "TRUNCATES" => self.end = self.end.min(number),
                "PURGES" => self.purged = self.purged.max(Some(number)),
                other => panic!("{other}"),
            }
        }
    }

    /// Checks what a kill has left.
    async fn check(&mut self, file: &Path) {
        let db = Evermap::open(file, options()).unwrap();
        let snapshots = file.with_extension("snapshots");
        let Storage::<Kv> { mut log, .. } = evermap_raft::from_db(db.clone(), snapshots).unwrap();
        let vote = log.read_vote().await.unwrap().map_or(0, |vote| vote.leader_id().term);
        assert!(self.vote <= vote && vote <= self.begun_vote, "voted {}: {vote}", self.vote);
        let state = log.get_log_state().await.unwrap();
        let purged = state.last_purged_log_id.map(|id| id.index);
        assert!(purged <= self.purged, "purged {purged:?}, and not {:?}", self.purged);
        let (first, end) = ends(&mut log).await;
        assert!(self.end <= end && end <= self.begun_end, "end {}: {end}", self.end);
        check_entries(&db, &mut log, first..end).await;
        *self = Known { vote, end, purged, begun_vote: vote, begun_end: end };
    }
}

/// Checks that a log has exactly these entries, and nothing that is unreachable.
async fn check_entries(db: &Evermap, log: &mut LogStore<Kv>, range: Range<u64>) {
    let entries = log.try_get_log_entries(..).await.unwrap();
    assert_eq!(entries.len() as u64, range.end - range.start, "entries of {range:?}");
    let mut term = 0;
    for (found, index) in entries.iter().zip(range) {
        assert!(found.log_id.leader_id.term >= term, "terms go back at {index}");
        term = found.log_id.leader_id.term;
        assert_eq!(*found, entry(term, index));
    }
    // What was left of interrupted operations is gone.
    let map = db.map("raft.log", MapOptions::new().create(false)).unwrap();
    let keys: HashSet<_> = map.keys().collect::<evermap::Result<_>>().unwrap();
    assert_eq!(keys.len(), entries.len(), "unreachable entries");
}

/// Returns the index behind the last entry that is purged, and that behind the last one.
async fn ends(log: &mut LogStore<Kv>) -> (u64, u64) {
    let state = log.get_log_state().await.unwrap();
    let behind = |id: Option<LogId<u64>>| id.map_or(0, |id| id.index + 1);
    (behind(state.last_purged_log_id), behind(state.last_log_id))
}

/// A log is whole at every instant.
pub(crate) fn instants(random: &mut Random) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut decisions = Random::new(random.below(u64::MAX));
    let mut most = 0;
    instants::take(
        times(100, 5000),
        |storage, has_ended| {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let mut log = storage.log;
            while !has_ended.load(Ordering::Relaxed) {
                runtime.block_on(step(&mut log, 1, &mut decisions, |_, _| {}));
            }
        },
        |path| {
            let (db, Storage { mut log, .. }) = instants::open(&path);
            runtime.block_on(async {
                let (first, end) = ends(&mut log).await;
                check_entries(&db, &mut log, first..end).await;
                most = most.max(end);
            });
        },
    );
    println!("log at instants: up to {most} entries");
    assert!(most > 100);
}

pub(crate) fn test(random: &mut Random) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("node");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut known = Known::default();
    let kills = times(10, 200);
    for kill in 0..kills {
        let mut victim =
            Victim::start(&["as-log", file.to_str().unwrap(), &random.below(1 << 30).to_string()]);
        victim.wait_for("VOTES");
        std::thread::sleep(random.millis(300));
        known.hear(&victim.kill());
        if kill % 2 == 1 {
            lose_power(&file);
        }
        runtime.block_on(known.check(&file));
    }
    println!("log: {kills} kills, {} entries, purged {:?}", known.end, known.purged);
}
