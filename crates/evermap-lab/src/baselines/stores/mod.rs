//! Other projects' persistent stores, to measure ours beside them.
//!
//! Each store is measured at its levels of durability, named after what an acknowledged change
//! survives: nothing, the death of the process, or power loss. Figures compare only at one level.
//! Stores with a cache get one gigabyte.

use crate::LabError;
use crate::error::Failure;
use crate::subject::store::{Result, Store, Stored};
use crate::subject::{Entry, Setup, Subject, Survives};
use crate::workload::KeyValueLengths;

mod fjall;
mod lmdb;
mod redb;
mod rocksdb;
mod sled;
mod sqlite;
mod terms;

use terms::{Folder, Terms};

/// Every store.
pub(crate) const ENTRIES: [Entry; 12] = [
    Entry {
        name: "lmdb-process",
        about: "LMDB (crate heed): a copy-on-write B+tree, one writer; commits are not synced",
        rival: true,
        factory: |name, setup| build(name, Survives::Process, lmdb::Lmdb::open, setup),
    },
    Entry {
        name: "lmdb-power",
        about: "LMDB (crate heed): every commit is synced",
        rival: true,
        factory: |name, setup| build(name, Survives::Power, lmdb::Lmdb::open, setup),
    },
    Entry {
        name: "redb-nothing",
        about: "redb: a copy-on-write B+tree; a kill undoes all since the last durable commit",
        rival: true,
        factory: |name, setup| build(name, Survives::Nothing, redb::Redb::open, setup),
    },
    Entry {
        name: "redb-power",
        about: "redb: every commit is durable",
        rival: true,
        factory: |name, setup| build(name, Survives::Power, redb::Redb::open, setup),
    },
    Entry {
        name: "fjall-process",
        about: "fjall: an LSM-tree; writes are passed to the system",
        rival: true,
        factory: |name, setup| build(name, Survives::Process, fjall::Fjall::open, setup),
    },
    Entry {
        name: "fjall-power",
        about: "fjall: every write is synced",
        rival: true,
        factory: |name, setup| build(name, Survives::Power, fjall::Fjall::open, setup),
    },
    Entry {
        name: "rocksdb-process",
        about: "RocksDB (the system's librocksdb): an LSM-tree; writes are passed to the system",
        rival: true,
        factory: |name, setup| build(name, Survives::Process, rocksdb::RocksDb::open, setup),
    },
    Entry {
        name: "rocksdb-power",
        about: "RocksDB (the system's librocksdb): every write is synced",
        rival: true,
        factory: |name, setup| build(name, Survives::Power, rocksdb::RocksDb::open, setup),
    },
    Entry {
        name: "sled-nothing",
        about: "sled: a log-structured B-link tree; its log is written twice a second",
        rival: true,
        factory: |name, setup| build(name, Survives::Nothing, sled::Sled::open, setup),
    },
    Entry {
        name: "sled-power",
        about: "sled: every write is flushed",
        rival: true,
        factory: |name, setup| build(name, Survives::Power, sled::Sled::open, setup),
    },
    Entry {
        name: "sqlite-process",
        about: "SQLite (crate rusqlite): a B-tree and a log, one writer; commits are not synced",
        rival: true,
        factory: |name, setup| build(name, Survives::Process, sqlite::Sqlite::open, setup),
    },
    Entry {
        name: "sqlite-power",
        about: "SQLite (crate rusqlite): the log is synced for every commit (synchronous=FULL)",
        rival: true,
        factory: |name, setup| build(name, Survives::Power, sqlite::Sqlite::open, setup),
    },
];

fn build<S: Store>(
    name: &'static str,
    survives: Survives,
    open: fn(Terms) -> Result<S>,
    setup: &Setup,
) -> std::result::Result<Box<dyn Subject>, LabError> {
    let failed = |error: Failure| LabError::Index { index: name, source: error };
    let lengths = setup.lengths.unwrap_or(KeyValueLengths::WORDS);
    let folder = Folder::new(setup).map_err(|error| failed(error.into()))?;
    let room = setup.keys.saturating_mul(16 * (64 + lengths.most_bytes())).max(1 << 30);
    let store = open(Terms { folder, survives, room }).map_err(failed)?;
    Ok(Box::new(Stored::new(name, store, lengths)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Config, Plan, Quiet};
    use crate::experiments::drive;
    use crate::machine;
    use crate::registry::subject;
    use crate::subject::{File, MediumKind, Reading};
    use crate::testing::Kept;
    use crate::workload::{Blend, Mix, Phase, Zipf};
    use evermap_pm::medium::Pages;

    /// Returns the names of the stores that this machine has; RocksDB's library may be missing.
    fn names() -> Vec<String> {
        let setup = Setup::new(MediumKind::Process, None, Pages::Base, 10, None).unwrap();
        let there = |entry: &&Entry| match entry.build(&setup) {
            Ok(_) => true,
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("librocksdb"), "{text}");
                false
            }
        };
        ENTRIES.iter().filter(there).map(|entry| entry.name.to_owned()).collect()
    }

    fn config(plan: Plan) -> Config {
        Config {
            indexes: names(),
            keys: 600,
            threads: 2,
            rounds: 1,
            medium: MediumKind::Process,
            quiet: Quiet::NOT_NEEDED,
            limits: false,
            plan,
            lengths: Some(KeyValueLengths {
                keys: "8-40".parse().unwrap(),
                values: "8-300".parse().unwrap(),
            }),
            ..Config::default()
        }
    }

    #[test]
    fn stores_pass_all_phases_and_leave_nothing_behind() {
        let location = std::env::temp_dir().join(format!("lab-stores-{}", std::process::id()));
        std::fs::create_dir(&location).unwrap();
        let phases = config(Plan::Phases(Phase::ALL.to_vec()));
        let config = Config { location: Some(location.clone()), ..phases };
        let driven = drive(&config, &mut Kept::default()).unwrap();
        assert!(driven.subjects.len() >= 8);
        for subject in &driven.subjects {
            let record = &subject.phases[0].summary;
            assert_eq!(record.medium, "files");
            assert!(record.pm_bytes.unwrap() > 0, "{}", subject.name);
            let wanted = subject.name.rsplit('-').next().unwrap();
            assert!(record.survives == wanted || machine::is_in_memory(&location));
        }
        assert_eq!(std::fs::read_dir(&location).unwrap().count(), 0);
        std::fs::remove_dir(&location).unwrap();
    }

    #[test]
    fn stores_pass_every_mix() {
        for mix in Mix::ALL {
            let blend = Blend { mix, keys: mix.keys, theta: Zipf::YCSB, ops: 600 };
            drive(&config(Plan::Blend(blend)), &mut Kept::default()).unwrap();
        }
    }

    /// Every store lends what it copies, one value or several per reader, and a wrong value is
    /// noticed.
    #[test]
    fn stores_lend_their_values() {
        let keys: Vec<u64> = (1..=20).collect();
        for name in names() {
            let setup = Setup::new(MediumKind::Process, None, Pages::Base, 20, None).unwrap();
            let store = subject(&name).unwrap().build(&setup).unwrap();
            let mut stream = crate::workload::Stream { keys: keys.clone(), ..Default::default() };
            stream.spell(&store.speller().unwrap());
            let work = crate::subject::Work {
                spelled: stream.spelled.all(),
                ..crate::testing::work(Phase::Insert, &stream.keys)
            };
            store.run(work).unwrap();
            for reading in [Reading::Copied, Reading::Lent(1), Reading::Lent(7)] {
                assert!(store.read(work, reading).unwrap(), "{name}, {reading:?}");
                let later = crate::subject::Work { version: 1, ..work };
                let error = store.read(later, reading).unwrap_err();
                assert!(matches!(error, LabError::WrongAnswer { key: 1, .. }), "{name}: {error}");
            }
        }
    }

    /// Acknowledged pairs are present when the store is opened again.
    #[test]
    fn stores_can_be_opened_again() {
        let location = std::env::temp_dir().join(format!("lab-reopen-{}", std::process::id()));
        std::fs::create_dir(&location).unwrap();
        for name in names() {
            let entry = subject(&name).unwrap();
            let path = location.join(&name);
            let setup = |file| Setup {
                file,
                ..Setup::new(MediumKind::Process, Some(location.clone()), Pages::Base, 10, None)
                    .unwrap()
            };
            let new = entry.build(&setup(File::New(path.clone()))).unwrap();
            let stream = {
                let keys = vec![1, 2, 3];
                let mut stream = crate::workload::Stream { keys, ..Default::default() };
                stream.spell(&new.speller().unwrap());
                stream
            };
            let work = crate::subject::Work {
                spelled: stream.spelled.all(),
                ..crate::testing::work(Phase::Insert, &stream.keys)
            };
            new.run(work).unwrap();
            drop(new);
            let old = entry.build(&setup(File::Existing(path))).unwrap();
            old.run(crate::subject::Work { phase: Phase::Positive, ..work }).unwrap();
        }
        std::fs::remove_dir_all(&location).unwrap();
    }
}
