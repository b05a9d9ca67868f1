//! Without space, mutations return a clear error, nothing is lost, and the store is usable again as
//! soon as there is space.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::common::{self, Kept, Random, is_value_of, value_of};
use evermap::{Error, Map, MapOptions, Options};
use evermap_index::testkit::tier;
use evermap_pm::Medium;

fn key_of(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// The length of the value of each key that was acknowledged.
type Model = BTreeMap<u64, usize>;

/// Puts new keys until there is no space. Returns how many.
fn fill<M: Medium>(store: &Map<M>, model: &mut Model, next: &mut u64, len: usize) -> usize {
    let mut count = 0;
    loop {
        let key = key_of(*next);
        match store.put(&key, &value_of(&key, *next, len)) {
            Ok(()) => {
                model.insert(*next, len);
                (*next, count) = (*next + 1, count + 1);
            }
            Err(error) => {
                assert!(error.is_no_space() && error.to_string().contains("no space"), "{error}");
                assert_eq!(store.get(&key).unwrap(), None, "not stored, but present");
                return count;
            }
        }
    }
}

fn verify<M: Medium>(store: &Map<M>, model: &Model) {
    for &number in model.keys() {
        let key = key_of(number);
        assert!(is_value_of(&key, &store.get(&key).unwrap().expect("acknowledged")));
    }
    let mut shown = 0;
    store
        .for_each(|item| {
            shown += usize::from(item.is_ok());
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(shown, model.len());
}

fn check<M: Medium>(store: &Map<M>, model: &Model) {
    verify(store, model);
    let report = store.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
    assert_eq!(report.records, model.len() as u64);
}

/// With small values the space ends while the index grows or doubles, with large ones in the
/// allocation of a block. It ends in a different place with each capacity.
#[test]
fn space_ends_anywhere() {
    for round in (0..40u64).step_by(tier().choose(5, 1)) {
        let memory = Kept::new((200 << 10) + round * 20_000);
        let options = common::small(1 << 20).seed(round);
        let mut store = memory.open(&options).unwrap();
        let (mut model, mut next) = (Model::new(), 0);
        let mut random = Random::new(round);
        for step in 0..6u64 {
            let len = [0, 100, 1000, 6000][(round + step) as usize % 4];
            fill(&store, &mut model, &mut next, len);
            // Overwriting needs space for the new value before the old one is freed: it succeeds or
            // changes nothing.
            for &number in model.keys().step_by(7) {
                let key = key_of(number);
                if let Err(error) = store.put(&key, &value_of(&key, number + 1, len)) {
                    assert!(error.is_no_space(), "{error}");
                }
            }
            verify(&store, &model);
            if step % 2 == 0 {
                // Without space, the allocated blocks cannot be saved.
                store.db().clone().close().unwrap();
            }
            drop(store);
            store = memory.open(&options).unwrap();
            store.db().recover().unwrap();
            check(&store, &model);
            let gone = random.below(4);
            model.retain(|&number, _| {
                let goes = number % 4 <= gone;
                assert!(!goes || store.delete(&key_of(number)).unwrap());
                !goes
            });
            check(&store, &model);
        }
        model.keys().for_each(|&number| assert!(store.delete(&key_of(number)).unwrap()));
        model.clear();
        assert!(fill(&store, &mut model, &mut next, 100) > 300, "space must become free");
    }
}

/// Most of the file is free, but in pieces: records are moved out of the way of a large value.
#[test]
fn scattered_free_space_is_put_together() {
    let memory = Kept::new(8 << 20);
    let store = memory.open(&Options::new().capacity(8 << 20).seed(1)).unwrap();
    let (mut model, mut next) = (Model::new(), 0);
    fill(&store, &mut model, &mut next, 3_000);
    let gone: Vec<u64> = model.keys().copied().filter(|number| number % 400 >= 100).collect();
    for number in gone {
        assert!(store.delete(&key_of(number)).unwrap());
        model.remove(&number);
    }
    let (key, len) = (key_of(next), 1_500_000);
    store.put(&key, &value_of(&key, next, len)).unwrap();
    model.insert(next, len);
    check(&store, &model);
}

/// A file system of a few megabytes, unmounted on drop.
struct Disk(PathBuf, #[allow(dead_code)] tempfile::TempDir);

impl Disk {
    /// Returns `None` if this process may not mount.
    fn mount(kib: u64) -> Option<Disk> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        std::fs::create_dir(&path).unwrap();
        let (target, options) = (c_string(&path), CString::new(format!("size={kib}k")).unwrap());
        // SAFETY: all strings end with a zero byte and live through the call.
        let done = unsafe {
            let kind = c"tmpfs".as_ptr();
            libc::mount(kind, target.as_ptr(), kind, 0, options.as_ptr().cast())
        };
        (done == 0).then_some(Disk(path, directory))
    }

    fn free(&self) -> u64 {
        let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
        // SAFETY: the path ends with a zero byte, and the structure is ours.
        unsafe {
            assert_eq!(libc::statvfs(c_string(&self.0).as_ptr(), stat.as_mut_ptr()), 0);
            let stat = stat.assume_init();
            stat.f_bavail * stat.f_frsize
        }
    }

    /// Takes all space but `left` bytes with another file.
    fn take_all_but(&self, left: u64) {
        let bytes = vec![1; self.free().saturating_sub(left) as usize];
        std::fs::write(self.0.join("other"), bytes).unwrap();
    }

    fn give_back(&self) {
        std::fs::remove_file(self.0.join("other")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // SAFETY: the path ends with a zero byte. If it fails, the file system stays mounted until
        // the next boot.
        unsafe { libc::umount2(c_string(&self.0).as_ptr(), libc::MNT_DETACH) };
    }
}

fn c_string(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).unwrap()
}

fn options() -> Options {
    common::options().capacity(1 << 30).extent_size(64 << 10)
}

/// Needs the right to mount; without it, only `space_ends_anywhere` tests this.
#[test]
fn a_full_disk_loses_nothing() {
    for round in 0..tier().choose(3, 6) {
        let Some(disk) = Disk::mount(3000 + round * 777) else {
            println!("may not mount a small file system here");
            return;
        };
        let path = disk.0.join("map");
        let (mut model, mut next) = (Model::new(), 0);
        let map = common::open_file(&path, options()).unwrap();
        fill(&map, &mut model, &mut next, [0, 200, 3000][round as usize % 3]);
        verify(&map, &model);
        // There is no space for anything when it is closed, either.
        disk.take_all_but(0);
        map.into_db().close().unwrap();
        let map = common::open_file(&path, options()).unwrap();
        verify(&map, &model);
        // Whole extents become free, their pages are returned to the file system, and another file
        // takes them.
        model.retain(|&number, _| {
            let goes = number % 5 != 0 || number < next / 2;
            assert!(!goes || map.delete(&key_of(number)).unwrap());
            !goes
        });
        let count = fill(&map, &mut model, &mut next, 200);
        assert!(count > 1000, "only {count} records fitted after most were removed");
        check(&map, &model);
        disk.give_back();
        fill(&map, &mut model, &mut next, 200);
        check(&map, &model);
        map.into_db().close().unwrap();
        check(&common::open_file(&path, options()).unwrap(), &model);
    }
}

#[test]
fn a_disk_too_small_for_any_store_says_so() {
    let Some(disk) = Disk::mount(16) else {
        println!("may not mount a small file system here");
        return;
    };
    let path = disk.0.join("map");
    let error = common::open_file(&path, options()).unwrap_err();
    assert!(error.is_no_space(), "{error}");
    drop(disk);
    // With space, the creation is started again.
    let disk = Disk::mount(8000).unwrap();
    let path = disk.0.join("map");
    disk.take_all_but(20 << 10);
    let error = common::open_file(&path, options()).unwrap_err();
    assert!(error.is_no_space() && error.to_string().contains("map"), "{error}");
    disk.give_back();
    let map = common::open_file(&path, options()).unwrap();
    map.put(b"key", b"value").unwrap();
    map.into_db().close().unwrap();
}

/// After a kill the limit includes the records from before, although they are not counted yet.
#[test]
fn the_limit_holds_between_a_kill_and_the_sweep() {
    for rounds in [1, 3] {
        let memory = Kept::new(64 << 20);
        let options = common::options().capacity(64 << 20).extent_size(64 << 10).seed(1);
        let mut store = memory.open(&options).unwrap();
        let users = store.db().map("users", MapOptions::new()).unwrap();
        users.put(b"one", b"user").unwrap();
        drop(users);
        let mut next = 0u64;
        // Each opening ends with a kill, and none is swept.
        for _ in 0..rounds {
            for _ in 0..5_000 {
                store.put(&key_of(next), &[1; 100]).unwrap();
                next += 1;
            }
            drop(store);
            store = memory.open(&options).unwrap();
        }
        store.db().recover().unwrap();
        let (bytes, each) = (store.bytes().value, store.bytes().value / next);
        drop(store);
        let limit = bytes + bytes / 2;
        let store = memory.open(&options.clone().max_bytes(limit)).unwrap();
        assert!(!store.bytes().exact);
        let mut stored = 0;
        let refused = loop {
            match store.put(&key_of(next + stored), &[1; 100]) {
                Ok(()) => stored += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::Full { .. }), "{refused}");
        assert!(bytes + stored * each <= limit, "{stored} records of {each} bytes over {bytes}");
        assert!(stored * each >= bytes / 4, "refused too early, after {stored} records");
        // Removals make space, and each map has its own limit.
        (0..10).for_each(|key| assert!(store.delete(&key_of(key)).unwrap()));
        (0..10).for_each(|key| store.put(&key_of(key), &[1; 100]).unwrap());
        let users = store.db().map("users", MapOptions::new().max_bytes(1 << 20)).unwrap();
        users.put(b"two", &[1; 100_000]).unwrap();
        // Once everything is counted, exactly the limit can be used.
        store.db().recover().unwrap();
        assert!(store.bytes().exact);
        let mut at = next + stored;
        while store.put(&key_of(at), &[1; 100]).is_ok() {
            at += 1;
        }
        assert!((limit - each..=limit).contains(&store.bytes().value), "{}", store.bytes().value);
    }
}

/// A mutation that reaches the limit before everything is counted waits for the count instead of
/// being refused.
#[test]
fn the_limit_waits_for_the_sweep() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    let open = || {
        let mapped = evermap_pm::medium::MappedOptions {
            create: true,
            capacity: 1 << 30,
            ..Default::default()
        };
        evermap_pm::medium::Mapped::open(&path, &mapped).unwrap()
    };
    let medium = open();
    let identity = medium.identity();
    let store = common::open_medium(medium, identity, &options()).unwrap();
    (0..20_000u64).for_each(|key| store.put(&key_of(key), &[1; 100]).unwrap());
    let bytes = store.bytes().value;
    drop(store);
    // There is space for one more record, which is far less than the bound may be too high.
    let map = common::open_file(&path, options().max_bytes(bytes + 1000)).unwrap();
    map.put(b"one more", &[1; 100]).unwrap();
    assert!(map.bytes().exact, "it has waited for the count");
    assert!((0..20u64).any(|key| map.put(&key.to_le_bytes(), &[1; 100]).is_err()));
}
