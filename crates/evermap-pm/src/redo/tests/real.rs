//! The log in a real directory.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::*;
use super::model::{Model, PAGE, UUID, options};
use crate::ErrorKind;

fn storage(path: &Path) -> Arc<dyn Storage> {
    Arc::new(Directory::create(path).unwrap())
}

fn create(path: &Path, model: &Model, options: RedoOptions) -> RedoLog {
    let first = model.last().as_slice();
    let copy = |offset: u64, bytes: &mut [u8]| {
        bytes.copy_from_slice(&first[offset as usize..][..bytes.len()]);
    };
    RedoLog::create(storage(path), UUID, first.len() as u64, options, copy).unwrap()
}

fn rebuilt(path: &Path, until: Option<u64>) -> (Rebuilt, Vec<u8>) {
    let mut target = vec![0xff; 3 * PAGE];
    let directory = Directory::open_read_only(path).unwrap();
    let rebuilt = rebuild(&directory, &mut target, until, &mut |_, _| {}).unwrap();
    (rebuilt, target)
}

fn append(log: &RedoLog, model: &mut Model) -> u64 {
    let mut record = RecordBuilder::new();
    let region_len = model.change(&mut record);
    let sequence = log.append(&record, region_len).unwrap();
    assert_eq!(sequence, model.sequence());
    assert_eq!(log.region_len(), region_len);
    sequence
}

#[test]
fn a_region_is_rebuilt_from_image_and_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let mut model = Model::new(1, 40);
    let mut log = create(&path, &model, options());
    for round in 0..120 {
        let sequence = append(&log, &mut model);
        if round % 5 == 0 {
            let (found, bytes) = rebuilt(&path, None);
            assert_eq!((found.sequence, found.uuid), (sequence, UUID));
            assert_eq!(found.region_len, bytes.len() as u64);
            assert!(bytes == **model.last(), "round {round}");
        }
        if log.checkpoint_due() {
            log.checkpoint().unwrap();
            assert!(!log.checkpoint_due());
        }
        if round % 7 == 0 {
            drop(log);
            log = RedoLog::open(storage(&path), options()).unwrap();
            assert_eq!((log.last_sequence(), log.uuid()), (sequence, UUID));
        }
        if round % 11 == 0 {
            log.reserve().unwrap();
        }
    }
}

/// Records before one that is known to be durable need not be read.
#[test]
fn a_log_is_opened_after_a_record_that_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let mut model = Model::new(2, 40);
    let log = create(&path, &model, RedoOptions { checkpoint_bytes: 1 << 30, ..options() });
    let mut known = Vec::new();
    for _ in 0..30 {
        append(&log, &mut model);
        known.push(log.position());
    }
    drop(log);
    for known in known.into_iter().step_by(5) {
        let position = LogPosition::from_words(known.words());
        let log = RedoLog::open_after(storage(&path), options(), Some(position)).unwrap();
        assert_eq!(log.last_sequence(), model.sequence());
        append(&log, &mut model);
        drop(log);
        let (found, bytes) = rebuilt(&path, None);
        assert_eq!(found.sequence, model.sequence());
        assert!(bytes == **model.last());
    }
}

#[test]
fn the_image_is_the_region_after_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = Model::new(2, 20);
    let log = create(folder.path(), &model, options());
    for _ in 0..30 {
        append(&log, &mut model);
    }
    log.checkpoint().unwrap();
    assert!(std::fs::read(folder.path().join("image")).unwrap() == **model.last());
    // Segments are used again, and not more than can be needed are kept.
    let names = Directory::open(folder.path()).unwrap().list().unwrap();
    assert!(names.iter().filter(|name| name.ends_with(".redo")).count() <= 5, "{names:?}");
}

#[test]
fn files_are_private_and_segments_have_their_space() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let mut model = Model::new(6, 4);
    let log = create(&path, &model, options());
    log.reserve().unwrap();
    append(&log, &mut model);
    let names = log.storage_names().into_iter().filter(|name| !name.starts_with('.'));
    for name in names {
        let found = std::fs::metadata(path.join(&name)).unwrap();
        assert_eq!(found.mode() & 0o777, 0o600, "{name}");
        if name.ends_with(".redo") {
            assert_eq!(found.len(), options().segment_bytes, "{name}");
            assert!(found.blocks() * 512 >= found.len(), "{name} has holes");
        }
    }
    assert!(Directory::open(&path.join("absent")).is_err());
    assert!(Directory::create(&path.join("absent/deeper")).is_err());
}

#[test]
fn every_moment_can_be_rebuilt_if_the_log_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("log"), folder.path().join("copy"));
    let options = RedoOptions { keep_log: true, ..options() };
    let mut model = Model::new(3, 20);
    let log = create(&path, &model, options);
    std::fs::create_dir(&copy).unwrap();
    for name in ["control", "image", "sums"] {
        std::fs::copy(path.join(name), copy.join(name)).unwrap();
    }
    let mut times = vec![rebuilt(&path, None).0.time];
    for round in 0..60 {
        append(&log, &mut model);
        times.push(rebuilt(&path, None).0.time);
        if round % 20 == 19 {
            log.checkpoint().unwrap();
        }
    }
    for name in log.storage_names().into_iter().filter(|name| name.ends_with(".redo")) {
        std::fs::copy(path.join(&name), copy.join(&name)).unwrap();
    }
    for (sequence, time) in times.iter().enumerate() {
        let (found, bytes) = rebuilt(&copy, Some(*time));
        assert_eq!((found.sequence, found.time), (sequence as u64, *time));
        assert!(bytes == *model.states[sequence]);
    }
    // The image of the log itself is later by now.
    let directory = Directory::open_read_only(&path).unwrap();
    let refused = rebuild(&directory, &mut Vec::new(), Some(times[10]), &mut |_, _| {});
    let refused = refused.unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Config(_)), "{refused}");
}

impl RedoLog {
    fn storage_names(&self) -> Vec<String> {
        self.storage.list().unwrap()
    }
}

#[test]
fn a_reader_sees_states_while_the_log_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = Model::new(4, 20);
    let mut records: Vec<(RecordBuilder, u64)> = Vec::new();
    let log = create(folder.path(), &model, options());
    for _ in 0..400 {
        let mut record = RecordBuilder::new();
        let region_len = model.change(&mut record);
        records.push((record, region_len));
    }
    let (is_done, model, log) = (AtomicBool::new(false), &model, &log);
    std::thread::scope(|scope| {
        let is_done = &is_done;
        scope.spawn(move || {
            for (record, region_len) in &records {
                log.append(record, *region_len).unwrap();
            }
            is_done.store(true, Ordering::Release);
        });
        scope.spawn(move || {
            while !is_done.load(Ordering::Acquire) {
                if log.checkpoint_due() {
                    log.checkpoint().unwrap();
                }
                std::thread::yield_now();
            }
        });
        let mut last = 0;
        let storage = Box::new(Directory::open_read_only(folder.path()).unwrap());
        let reader = Reader::open(storage).unwrap();
        while last < 400 {
            let least = log.last_sequence();
            let mut bytes = Vec::new();
            let found = match reader.load(&mut bytes, &mut |_, _| {}) {
                // The writer makes hundreds of checkpoints a second here.
                Err(error) if matches!(error.kind(), ErrorKind::Config(_)) => continue,
                found => found.unwrap(),
            };
            assert!(found.sequence >= least.max(last));
            last = found.sequence;
            assert!(Some(&*bytes) == model.state(last), "state {last}");
        }
    });
}

#[test]
fn impossible_requests_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let is_config = |error: crate::Error| matches!(error.kind(), ErrorKind::Config(_));
    let none = RedoLog::open(storage(&path), options()).err().unwrap();
    assert!(matches!(none.kind(), ErrorKind::NotAStore { .. }), "{none}");
    let bad = RedoOptions { segment_bytes: 5000, ..options() };
    let bad = RedoLog::create(storage(&path), UUID, 4096, bad, |_, _| {});
    assert!(is_config(bad.err().unwrap()));
    let bad = RedoLog::create(storage(&path), UUID, 5000, options(), |_, _| {});
    assert!(is_config(bad.err().unwrap()));
    assert!(!RedoLog::exists(&*storage(&path)).unwrap());
    let model = Model::new(5, 4);
    let log = create(&path, &model, options());
    assert!(RedoLog::exists(&*storage(&path)).unwrap());
    let twice = RedoLog::create(storage(&path), UUID, 4096, options(), |_, _| {});
    assert!(is_config(twice.err().unwrap()));
    let mut record = RecordBuilder::new();
    record.page(4, 1, &mut |_, line| line.fill(1));
    assert!(is_config(log.append(&record, 4 * 4096).unwrap_err()), "a page beyond the region");
    record.clear();
    assert!(is_config(log.append(&record, 3 * 4096).unwrap_err()), "the region shrinks");
    assert_eq!(log.append(&record, 5 * 4096).unwrap(), 1);
    let read_only = Directory::open_read_only(&path).unwrap();
    assert!(matches!(read_only.create("x").err().unwrap().kind(), ErrorKind::ReadOnly { .. }));
}
