//! Instants of a store in use: each is what a kill at that moment would leave.
//!
//! A process that is killed has nearly always been waiting for a sync. Here nobody waits, and most
//! instants are in the middle of an operation.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use evermap::{Evermap, Options};
use evermap_raft::Storage;
use evermap_raft::kv::Kv;

/// Opens a store that survives kills only, which is enough here, and its storage.
pub(crate) fn open(path: &Path) -> (Evermap, Storage<Kv>) {
    let db = Evermap::open(path, Options::new().capacity(256 << 20)).unwrap();
    let storage = evermap_raft::from_db(db.clone(), path.with_extension("snapshots")).unwrap();
    (db, storage)
}

/// Takes `times` instants while `work` changes the storage, until the flag is set, and shows stores
/// of them.
pub(crate) fn take(
    times: u64,
    work: impl FnOnce(Storage<Kv>, &AtomicBool) + Send,
    mut check: impl FnMut(PathBuf),
) {
    let folder = tempfile::tempdir().unwrap();
    let (db, storage) = open(&folder.path().join("node"));
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(storage, &ends));
        for number in 0..times {
            assert!(!worker.is_finished(), "the work has ended");
            let mut copy = Vec::new();
            db.backup(&mut copy).unwrap();
            // A folder for each, so that nothing is mistaken for what belongs to another.
            let folder = folder.path().join(number.to_string());
            std::fs::create_dir(&folder).unwrap();
            evermap::restore(&mut [&mut &copy[..]], folder.join("node")).unwrap();
            check(folder.join("node"));
            std::fs::remove_dir_all(folder).unwrap();
        }
        ends.store(true, Ordering::Relaxed);
    });
}
