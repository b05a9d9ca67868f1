//! That the header is up to date, and what C could do wrong.

use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut};

use crate::batch::*;
use crate::cursor::*;
use crate::map::*;
use crate::options::*;
use crate::status::evermap_status::*;
use crate::status::*;
use crate::store::*;
use crate::value::*;

fn message() -> String {
    // SAFETY: it is never null, and ends with a zero.
    unsafe { CStr::from_ptr(evermap_message()) }.to_str().unwrap().to_owned()
}

#[track_caller]
fn refused(status: evermap_status, words: &str) {
    assert_eq!(status, EVERMAP_ERR_INVALID, "{}", message());
    assert!(message().contains(words), "{}", message());
}

fn at(bytes: &[u8]) -> *const c_void {
    bytes.as_ptr().cast()
}

/// A store in memory that is closed at the end.
struct Memory(*mut evermap_db);

impl Memory {
    fn new(options: &[(&CStr, &CStr)]) -> Self {
        let (mut db, set) = (null_mut(), evermap_options_new());
        // SAFETY: all of them are valid.
        unsafe {
            for (name, value) in options {
                assert_eq!(evermap_options_set(set, name.as_ptr(), value.as_ptr()), EVERMAP_OK);
            }
            assert_eq!(evermap_open_memory(set, &mut db), EVERMAP_OK);
            evermap_options_free(set);
        }
        Memory(db)
    }

    fn map(&self) -> *const evermap_map {
        // SAFETY: it is open.
        unsafe { evermap_default_map(self.0) }
    }

    #[track_caller]
    fn put(&self, key: &[u8], value: &[u8]) {
        // SAFETY: all of them are valid.
        let put = unsafe { evermap_put(self.map(), at(key), key.len(), at(value), value.len()) };
        assert_eq!(put, EVERMAP_OK, "{}", message());
    }

    fn get(&self, key: &[u8]) -> (evermap_status, evermap_value) {
        let mut value = evermap_value::NONE;
        // SAFETY: all of them are valid.
        let status = unsafe { evermap_get(self.map(), at(key), key.len(), &mut value) };
        (status, value)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was not closed.
        assert_eq!(unsafe { evermap_close(self.0) }, EVERMAP_OK, "{}", message());
    }
}

#[test]
fn the_header_is_what_the_source_says() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut made = Vec::new();
    let config = cbindgen::Config::from_root_or_default(folder);
    let bindings = cbindgen::Builder::new().with_crate(folder).with_config(config).generate();
    bindings.unwrap().write(&mut made);
    let made = without_safety(std::str::from_utf8(&made).unwrap());
    let path = folder.join("include/evermap.h");
    if std::env::var_os("EVERMAP_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "{} is out of date: see its head", path.display());
}

/// Leaves out what is said to readers of the Rust source only.
fn without_safety(header: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut is_left_out = false;
    for line in header.lines() {
        is_left_out = match line.trim() {
            "* # Safety" => true,
            "*/" => false,
            _ => is_left_out,
        };
        if is_left_out {
            continue;
        }
        // The empty line before it.
        if line.trim() == "*/" && kept.last().is_some_and(|last| last.trim() == "*") {
            kept.pop();
        }
        kept.push(line);
    }
    kept.join("\n") + "\n"
}

#[test]
fn what_is_null_is_refused() {
    let db = Memory::new(&[]);
    let (map, key) = (db.map(), at(b"key"));
    let mut value = evermap_value::NONE;
    // SAFETY: what is not null is valid.
    unsafe {
        refused(evermap_open(null(), null(), &mut null_mut()), "path is NULL");
        refused(evermap_open(c"x".as_ptr(), null(), null_mut()), "db is NULL");
        refused(evermap_get(null(), key, 3, &mut value), "map is NULL");
        refused(evermap_get(map, null(), 3, &mut value), "key is NULL, but its length is 3");
        refused(evermap_get(map, key, 3, null_mut()), "value is NULL");
        refused(evermap_put(map, key, 3, null(), 1), "value is NULL");
        refused(evermap_read(map, key, 3, null_mut(), 1, &mut 0), "buffer is NULL");
        refused(evermap_get_many(map, null(), 2, [evermap_value::NONE; 2].as_mut_ptr()), "keys");
        refused(evermap_batch_put(null_mut(), key, 3, key, 3, 0), "batch is NULL");
        refused(evermap_apply(db.0, null()), "batch is NULL");
        refused(evermap_walk(map, null_mut()), "cursor is NULL");
        refused(evermap_cursor_next(null_mut(), null_mut(), null_mut()), "cursor is NULL");
        refused(evermap_map_open(db.0, null(), true, &mut null_mut()), "name is NULL");
        refused(evermap_sync(null()), "db is NULL");
        evermap_map_free(null_mut());
        evermap_cursor_free(null_mut());
        evermap_batch_free(null_mut());
        evermap_options_free(null_mut());
        evermap_value_release(null_mut());
        evermap_values_release(null_mut(), 7);
        assert_eq!(evermap_close(null_mut()), EVERMAP_OK);
        assert!(evermap_default_map(null()).is_null());
    }
}

#[test]
fn sizes_that_no_object_has_are_refused() {
    let db = Memory::new(&[]);
    let (map, key) = (db.map(), at(b"key"));
    let mut value = evermap_value::NONE;
    // SAFETY: the lengths are looked at before the bytes.
    unsafe {
        refused(evermap_get(map, key, usize::MAX, &mut value), "longer than any object");
        refused(evermap_put(map, key, 3, key, 1 << 63), "longer than any object");
        refused(evermap_get_many(map, key.cast(), usize::MAX / 8, &mut value), "more than there");
        let long = vec![0; EVERMAP_KEY_MAX + 1];
        refused(evermap_put(map, at(&long), long.len(), key, 3), "key of 65537 bytes is too long");
        refused(evermap_put_with(map, key, 3, key, 3, u64::MAX, 0, 0, null_mut()), "too late");
        refused(evermap_put_with(map, key, 3, key, 3, 0, 0, 9, null_mut()), "no evermap_when");
        refused(evermap_expire(map, key, 3, 1 << 40), "too late");
    }
    assert_eq!(db.get(b"key").0, EVERMAP_ABSENT);
}

#[test]
fn a_panic_becomes_an_error() {
    let status = call(|| panic!("planted {}", 7));
    assert_eq!(status, EVERMAP_ERR_PANIC);
    assert!(message().contains("planted 7"), "{}", message());
    free(|| panic!("planted too"));
    assert!(message().contains("planted too"), "{}", message());
}

#[test]
fn messages_belong_to_a_thread() {
    // SAFETY: null is refused.
    refused(unsafe { evermap_sync(null()) }, "db is NULL");
    std::thread::spawn(|| assert_eq!(message(), "")).join().unwrap();
    assert!(message().contains("db is NULL"));
    // SAFETY: both are texts that end with a zero.
    let names = [0, -3, 99].map(|status| unsafe { CStr::from_ptr(evermap_status_name(status)) });
    assert_eq!(names, [c"EVERMAP_OK", c"EVERMAP_ERR_NO_SPACE", c"unknown"]);
}

#[test]
fn values_are_lent_until_they_are_released() {
    let db = Memory::new(&[]);
    db.put(b"key", &[7; 100_000]);
    let (status, mut value) = db.get(b"key");
    assert_eq!((status, value.len, value.borrowed), (EVERMAP_OK, 100_000, true));
    db.put(b"key", b"other");
    // SAFETY: it is held.
    let bytes = unsafe { std::slice::from_raw_parts(value.data, value.len) };
    assert_eq!(bytes, [7; 100_000]);
    // SAFETY: it is open.
    assert_eq!(unsafe { evermap_close(db.0) }, EVERMAP_ERR_DEADLOCK);
    assert!(message().contains("1 value"), "{}", message());
    let (_, empty) = db.get(b"none");
    assert!(empty.data.is_null() && empty.owner.is_null());
    // SAFETY: once with the value, and once with zeros.
    unsafe {
        evermap_value_release(&mut value);
        evermap_value_release(&mut value);
    }
    assert!(value.data.is_null());
}

#[test]
fn many_values_are_read_together_and_released_apart() {
    let db = Memory::new(&[]);
    let key = |number: u32| number.to_le_bytes();
    for number in (0..300).step_by(3) {
        db.put(&key(number), number.to_string().as_bytes());
    }
    db.put(&key(3), b"");
    let keys: Vec<_> = (0..300).map(key).collect();
    let slices: Vec<_> = keys.iter().map(|key| evermap_slice::of(key)).collect();
    let mut values = vec![evermap_value::NONE; 300];
    // SAFETY: all of them are valid.
    let status =
        unsafe { evermap_get_many(db.map(), slices.as_ptr(), slices.len(), values.as_mut_ptr()) };
    assert_eq!(status, EVERMAP_OK);
    for (number, value) in values.iter_mut().enumerate().rev() {
        assert_eq!(value.data.is_null(), number % 3 != 0, "{number}");
        if !value.data.is_null() {
            let expected = if number == 3 { String::new() } else { number.to_string() };
            // SAFETY: it was not released.
            let bytes = unsafe { std::slice::from_raw_parts(value.data, value.len) };
            assert_eq!(bytes, expected.as_bytes());
        }
        // SAFETY: once each.
        unsafe { evermap_value_release(value) };
    }
}

#[test]
fn conditions_counters_and_expiry_say_what_was_there() {
    let db = Memory::new(&[]);
    let (map, key) = (db.map(), at(b"key"));
    let (mut cas, mut other, mut sum, mut left) = (0, 0, 0, 0);
    // SAFETY: all of them are valid.
    unsafe {
        let put = |when, cas| evermap_put_with(map, key, 3, key, 3, 60, 7, when, cas);
        assert_eq!(put(EVERMAP_IF_PRESENT_, null_mut()), EVERMAP_ABSENT);
        assert_eq!(put(EVERMAP_IF_ABSENT_, &mut cas), EVERMAP_OK);
        assert_eq!(put(EVERMAP_IF_ABSENT_, &mut other), EVERMAP_KEPT);
        assert_eq!(cas, other);
        assert_eq!(evermap_ttl(map, key, 3, &mut left), EVERMAP_OK);
        assert!((58..=61).contains(&left), "{left}");
        assert_eq!(evermap_expire(map, key, 3, 0), EVERMAP_OK);
        assert_eq!(evermap_ttl(map, key, 3, &mut left), EVERMAP_OK);
        assert_eq!(left, -1);
        let swap = |cas, new| evermap_compare_exchange(map, key, 3, cas, key, 2, 0, 0, new);
        assert_eq!(swap(cas + 99, &mut other), EVERMAP_KEPT);
        assert_eq!(swap(cas, &mut other), EVERMAP_OK);
        assert_eq!(evermap_delete_if(map, key, 3, cas), EVERMAP_KEPT);
        assert_eq!(evermap_add(map, key, 3, 1, &mut sum), EVERMAP_ERR_COUNTER);
        assert!(message().contains("2 bytes instead of 8"), "{}", message());
        assert_eq!(evermap_delete_if(map, key, 3, other), EVERMAP_OK);
        assert_eq!(evermap_add(map, key, 3, i64::MAX, &mut sum), EVERMAP_OK);
        assert_eq!(sum, i64::MAX);
        assert_eq!(evermap_add(map, key, 3, 1, &mut sum), EVERMAP_ERR_COUNTER);
        assert_eq!(evermap_append(map, key, 3, at(b"!"), 1), EVERMAP_OK);
        let (mut buffer, mut len) = ([0_u8; 4], 0);
        let read = evermap_read(map, key, 3, buffer.as_mut_ptr().cast(), 4, &mut len);
        assert_eq!((read, len, buffer), (EVERMAP_OK, 9, [255; 4]));
        assert_eq!(evermap_delete(map, key, 3), EVERMAP_OK);
        assert_eq!(evermap_delete(map, key, 3), EVERMAP_ABSENT);
        assert_eq!(put(EVERMAP_IF_ABSENT_, null_mut()), EVERMAP_OK);
        assert_eq!(evermap_clear(map), EVERMAP_OK);
        assert_eq!(evermap_contains(map, key, 3), EVERMAP_ABSENT);
    }
}

const EVERMAP_IF_ABSENT_: i32 = evermap_when::EVERMAP_IF_ABSENT as i32;
const EVERMAP_IF_PRESENT_: i32 = evermap_when::EVERMAP_IF_PRESENT as i32;

#[test]
fn batches_change_all_or_nothing() {
    let db = Memory::new(&[]);
    let mut users = null_mut();
    let mut sum = 0;
    // SAFETY: all of them are valid.
    unsafe {
        assert_eq!(evermap_map_open(db.0, c"users".as_ptr(), true, &mut users), EVERMAP_OK);
        let batch = evermap_batch_new();
        evermap_batch_add(batch, at(b"ann"), 3, -5);
        evermap_batch_expect(batch, at(b"lock"), 4, 0);
        evermap_batch_put(batch, at(b"lock"), 4, at(b"mine"), 4, 0);
        evermap_batch_in_map(batch, c"users".as_ptr());
        evermap_batch_put(batch, at(b"ann"), 3, at(b"here"), 4, 60);
        assert_eq!(evermap_apply(db.0, batch), EVERMAP_OK);
        assert_eq!(evermap_apply(db.0, batch), EVERMAP_REFUSED);
        assert!(message().contains("key \"lock\" has the record"), "{}", message());
        assert_eq!(evermap_add(db.map(), at(b"ann"), 3, 0, &mut sum), EVERMAP_OK);
        assert_eq!(sum, -5);
        assert_eq!(evermap_contains(users, at(b"ann"), 3), EVERMAP_OK);
        evermap_batch_clear(batch);
        evermap_batch_in_map(batch, c"nobody".as_ptr());
        evermap_batch_delete(batch, at(b"ann"), 3);
        assert_eq!(evermap_apply(db.0, batch), EVERMAP_ERR_NOT_FOUND);
        evermap_batch_free(batch);
        let mut name = [0; EVERMAP_MAP_NAME_MAX + 1];
        refused(evermap_map_name(db.0, 0, name.as_mut_ptr(), 5), "5 bytes");
        assert_eq!(evermap_map_name(db.0, 0, name.as_mut_ptr(), 6), EVERMAP_OK);
        assert_eq!(CStr::from_ptr(name.as_ptr()), c"users");
        assert_eq!(evermap_map_name(db.0, 1, name.as_mut_ptr(), name.len()), EVERMAP_END);
        assert_eq!(evermap_drop_map(db.0, c"users".as_ptr()), EVERMAP_OK);
        assert_eq!(evermap_drop_map(db.0, c"users".as_ptr()), EVERMAP_ABSENT);
        assert_eq!(evermap_contains(users, at(b"ann"), 3), EVERMAP_ERR_DROPPED);
        evermap_map_free(users);
    }
}

/// The keys that a cursor shows.
fn keys(status: evermap_status, cursor: *mut evermap_cursor) -> Vec<String> {
    assert_eq!(status, EVERMAP_OK, "{}", message());
    let mut keys = Vec::new();
    let mut key = evermap_slice::of(&[]);
    // SAFETY: the cursor is valid, and the key until the next call.
    unsafe {
        while evermap_cursor_next(cursor, &mut key, null_mut()) == EVERMAP_OK {
            let bytes = std::slice::from_raw_parts(key.data.cast::<u8>(), key.len);
            keys.push(String::from_utf8(bytes.to_vec()).unwrap());
        }
        assert_eq!(evermap_cursor_next(cursor, &mut key, null_mut()), EVERMAP_END);
        evermap_cursor_free(cursor);
    }
    keys
}

#[test]
fn scans_are_in_order_and_within_their_bounds() {
    let db = Memory::new(&[(c"ordered", c"true")]);
    for key in ["", "a", "b", "ba", "c"] {
        db.put(key.as_bytes(), b"value");
    }
    let (map, mut cursor) = (db.map(), null_mut());
    // SAFETY: all of them are valid.
    unsafe {
        let begun = evermap_scan(map, null(), 0, null(), 0, false, 0, &mut cursor);
        assert_eq!(keys(begun, cursor), ["", "a", "b", "ba", "c"]);
        let begun = evermap_scan(map, at(b"a"), 1, at(b"ba"), 2, true, 0, &mut cursor);
        assert_eq!(keys(begun, cursor), ["b", "a"]);
        let begun = evermap_scan(map, at(b"a"), 1, null(), 0, false, 2, &mut cursor);
        assert_eq!(keys(begun, cursor), ["a", "b"]);
        let begun = evermap_scan_prefix(map, at(b"b"), 1, false, 0, &mut cursor);
        assert_eq!(keys(begun, cursor), ["b", "ba"]);
        let begun = evermap_walk(map, &mut cursor);
        assert_eq!(keys(begun, cursor).len(), 5);
        // Nothing is before the empty key.
        let begun = evermap_scan(map, null(), 0, at(b""), 0, false, 0, &mut cursor);
        assert_eq!(keys(begun, cursor), [""; 0]);
    }
    let unordered = Memory::new(&[]);
    // SAFETY: all of them are valid.
    let begun = unsafe { evermap_scan_prefix(unordered.map(), null(), 0, false, 0, &mut cursor) };
    assert_eq!((begun, cursor), (EVERMAP_ERR_NOT_ORDERED, null_mut()));
}

#[test]
fn a_file_has_snapshots_and_backups_and_one_opener() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| CString::new(dir.path().join(name).to_str().unwrap()).unwrap();
    let (store, backup, restored) = (path("store"), path("backup"), path("restored"));
    let (mut db, mut second, mut snapshot) = (null_mut(), null_mut(), null_mut());
    let mut problems = 9;
    // SAFETY: all of them are valid.
    unsafe {
        assert_eq!(evermap_open(store.as_ptr(), null(), &mut db), EVERMAP_OK, "{}", message());
        assert_eq!(evermap_open(store.as_ptr(), null(), &mut second), EVERMAP_ERR_IN_USE);
        assert!(second.is_null());
        let put = |value: &[u8]| {
            evermap_put(evermap_default_map(db), at(b"key"), 3, at(value), value.len())
        };
        assert_eq!(put(b"old"), EVERMAP_OK);
        assert_eq!(evermap_snapshot(db, 0, &mut snapshot), EVERMAP_OK, "{}", message());
        assert_eq!(evermap_backup(db, backup.as_ptr()), EVERMAP_OK, "{}", message());
        assert_ne!(evermap_backup(db, backup.as_ptr()), EVERMAP_OK, "there is one already");
        assert_eq!(put(b"newer"), EVERMAP_OK);
        assert_eq!(length(evermap_default_map(snapshot)), 3);
        let written = evermap_put(evermap_default_map(snapshot), at(b"key"), 3, null(), 0);
        assert_eq!(written, EVERMAP_ERR_READ_ONLY);
        assert_eq!(evermap_check(db, true, &mut problems), EVERMAP_OK, "{}", message());
        assert_eq!(
            (problems, evermap_sync(db), evermap_compact(db, null_mut())),
            (0, EVERMAP_OK, EVERMAP_OK)
        );
        assert_eq!(evermap_close(snapshot), EVERMAP_OK);
        let mut stat = evermap_stat::default();
        assert_eq!(evermap_map_stat(evermap_default_map(db), &mut stat), EVERMAP_OK);
        assert_eq!((stat.records, stat.generation, stat.exact), (1, 1, true));
        assert_eq!(evermap_close(db), EVERMAP_OK);
        assert_eq!(evermap_restore(backup.as_ptr(), restored.as_ptr()), EVERMAP_OK);
        for (path, expected) in [(&restored, 3), (&store, 5)] {
            assert_eq!(evermap_open(path.as_ptr(), null(), &mut db), EVERMAP_OK, "{}", message());
            assert_eq!(length(evermap_default_map(db)), expected);
            assert_eq!(evermap_close(db), EVERMAP_OK);
        }
    }
}

/// The length of the value of "key".
///
/// # Safety
/// The map is open.
unsafe fn length(map: *const evermap_map) -> usize {
    let mut len = 0;
    // SAFETY: as the caller says.
    let read = unsafe { evermap_read(map, at(b"key"), 3, null_mut(), 0, &mut len) };
    assert_eq!(read, EVERMAP_OK, "{}", message());
    len
}

#[test]
fn options_are_told_from_nonsense() {
    let options = evermap_options_new();
    // SAFETY: all of them are valid.
    unsafe {
        refused(evermap_options_set(options, c"speed".as_ptr(), c"9".as_ptr()), "no option");
        refused(evermap_options_set(options, c"evict".as_ptr(), c"9".as_ptr()), "true or false");
        evermap_options_free(options);
        assert_eq!(CStr::from_ptr(evermap_version()).to_str().unwrap(), env!("CARGO_PKG_VERSION"));
    }
}
