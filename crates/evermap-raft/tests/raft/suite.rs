//! The tests that openraft has for every storage.

use evermap::Options;
use evermap_raft::kv::Kv;
use evermap_raft::{LogStore, StateMachine, Storage};
use openraft::StorageError;
use openraft::testing::{StoreBuilder, Suite};
use tempfile::TempDir;

struct Builder;

impl StoreBuilder<Kv, LogStore<Kv>, StateMachine<Kv>, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore<Kv>, StateMachine<Kv>), StorageError<u64>> {
        let folder = tempfile::tempdir().unwrap();
        let options = Options::new().capacity(64 << 20).log_in_memory(true);
        let Storage { log, state_machine } =
            evermap_raft::open(folder.path().join("node"), options).unwrap();
        Ok((folder, log, state_machine))
    }
}

#[test]
fn openraft_finds_nothing_wrong() {
    Suite::test_all(Builder).unwrap();
}
