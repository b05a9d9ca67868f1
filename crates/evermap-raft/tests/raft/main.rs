//! The storage of a node: openraft's own tests, and what those do not look at.

mod log;
mod state;
mod suite;

use std::path::Path;

use evermap::Options;
use evermap_raft::Storage;
use evermap_raft::kv::{Kv, Request};
use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId};

fn open(path: impl AsRef<Path>) -> Storage<Kv> {
    let options = Options::new().capacity(64 << 20).log_in_memory(true);
    evermap_raft::open(path, options).unwrap()
}

fn id(term: u64, index: u64) -> LogId<u64> {
    LogId::new(CommittedLeaderId::new(term, 1), index)
}

fn entry(index: u64, request: Request) -> Entry<Kv> {
    Entry { log_id: id(1, index), payload: EntryPayload::Normal(request) }
}

fn set(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Request {
    Request::Set { key: key.into(), value: value.into() }
}
