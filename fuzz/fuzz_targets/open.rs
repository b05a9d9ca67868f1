//! A file that holds anything.
//!
//! The input either is the file, or says what to change in a sound one: words, and where it ends.
//! Whatever it is: opening it answers or refuses, no value is shown that was never stored, and
//! nothing panics. With [`OnSuspect::Salvage`] too.
//!
//! ```text
//! cargo +nightly fuzz run open -- -max_total_time=60
//! ```

#![no_main]

use std::ops::ControlFlow;
use std::sync::OnceLock;
use std::time::{Duration, UNIX_EPOCH};

use evermap::{Clock, Evermap, Map, OnSuspect, Options};
use evermap_pm::medium::{Dram, Pages};
use evermap_pm::region::Identity;
use evermap_pm::{Medium, PmU64};
use libfuzzer_sys::fuzz_target;

const BYTES: u64 = 128 << 10;
const KEYS: u32 = 300;

fn options() -> Options {
    Options::small(BYTES).seed(1).clock(Clock::manual(UNIX_EPOCH + Duration::from_secs(1000)))
}

fn memory(bytes: &[u8]) -> Dram {
    let memory = Dram::reserve(BYTES, Pages::Base).unwrap();
    memory.grow(bytes.len() as u64).unwrap();
    let cells = memory.slice::<PmU64>(0, memory.len() / 8).unwrap();
    memory.write_bytes(cells, bytes);
    memory
}

fn key_of(number: u32) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// A value that tells which key and version it belongs to.
fn value_of(key: &[u8], version: u32) -> Vec<u8> {
    let unit = [key, &version.to_le_bytes()].concat();
    unit.iter().copied().cycle().take(unit.len() + version as usize % 200).collect()
}

fn was_stored(key: &[u8], value: &[u8]) -> bool {
    let version = value.get(key.len()..).and_then(|rest| rest.first_chunk());
    version.is_some_and(|version| value_of(key, u32::from_le_bytes(*version)) == value)
}

fn put<M: Medium>(map: &Map<M>, number: u32, version: u32) -> evermap::Result<()> {
    let key = key_of(number);
    map.set(&key).flags(version).put(&value_of(&key, version)).map(drop)
}

/// The bytes of a store after a clean shutdown, and of one whose process died.
fn templates() -> &'static [Vec<u8>; 2] {
    static TEMPLATES: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    TEMPLATES.get_or_init(|| {
        [true, false].map(|close| {
            let memory = SharedDram::new();
            let identity = Identity::default();
            let db = Evermap::create_medium(memory.clone(), identity, options()).unwrap();
            let map = db.default_map();
            (0..KEYS).for_each(|number| put(&map, number, 1000 + number).unwrap());
            (0..KEYS).step_by(5).for_each(|number| put(&map, number, 2000 + number).unwrap());
            (0..KEYS).step_by(7).for_each(|number| assert!(map.delete(&key_of(number)).unwrap()));
            if close {
                db.close().unwrap();
            }
            memory.bytes()
        })
    })
}

/// Memory that can be read while a store is in it.
#[derive(Clone)]
struct SharedDram(std::sync::Arc<Dram>);

impl SharedDram {
    fn new() -> Self {
        SharedDram(std::sync::Arc::new(Dram::reserve(BYTES, Pages::Base).unwrap()))
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.0.len() as usize];
        self.0.read_bytes(self.0.slice(0, self.0.len() / 8).unwrap(), &mut bytes);
        bytes
    }
}

// SAFETY: all promises are kept by the memory inside.
unsafe impl Medium for SharedDram {
    fn base(&self) -> std::ptr::NonNull<u8> {
        self.0.base()
    }
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn capacity(&self) -> u64 {
        self.0.capacity()
    }
    fn grow(&self, len: u64) -> evermap_pm::Result<()> {
        self.0.grow(len)
    }
    fn discard(&self, range: std::ops::Range<u64>) {
        self.0.discard(range);
    }
    fn sync(&self) -> evermap_pm::Result<()> {
        self.0.sync()
    }
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn flush_bytes(&self, addr: *const u8, len: usize) {
        self.0.flush_bytes(addr, len);
    }
    fn fence(&self) {
        self.0.fence();
    }
}

/// The file that an input stands for.
fn file_of(input: &[u8]) -> Option<Vec<u8>> {
    let (&kind, rest) = input.split_first()?;
    if kind % 4 == 0 {
        return Some(rest[..rest.len().min(BYTES as usize)].to_vec());
    }
    let mut bytes = templates()[usize::from(kind % 2)].clone();
    if kind % 4 == 3 {
        let (end, _) = rest.split_first_chunk::<3>()?;
        let end = u32::from_le_bytes([end[0], end[1], end[2], 0]) as usize;
        bytes.truncate(end % bytes.len());
    }
    for change in rest.chunks_exact(11) {
        let at = u32::from_le_bytes([change[0], change[1], change[2], 0]) as usize % BYTES as usize;
        if let Some(word) = bytes.get_mut(at / 8 * 8..at / 8 * 8 + 8) {
            word.copy_from_slice(&change[3..]);
        }
    }
    Some(bytes)
}

fn look<M: Medium>(map: &Map<M>) {
    for number in 0..KEYS + 10 {
        let key = key_of(number);
        if let Ok(Some(value)) = map.get(&key) {
            assert!(was_stored(&key, &value), "{} -> {}", number, value.escape_ascii());
        }
    }
    let shown = map.for_each(|item| {
        assert!(item.is_err() || item.is_ok_and(|item| was_stored(item.key, item.value)));
        ControlFlow::Continue(())
    });
    shown.unwrap();
}

fn use_it(bytes: &[u8], on_suspect: OnSuspect) -> bool {
    let options = options().on_suspect(on_suspect);
    let opened = Evermap::open_medium(memory(bytes), Identity::default(), options);
    let Ok(db) = opened else { return false };
    let map = db.default_map();
    look(&map);
    for number in (0..KEYS).step_by(11) {
        let _ = put(&map, number, 3000 + number);
    }
    let _ = (map.remove(&key_of(3)), map.touch(&key_of(4), None), db.compact(), db.purge());
    db.check(true).unwrap();
    look(&map);
    let _ = db.close();
    true
}

fuzz_target!(|input: &[u8]| {
    let Some(bytes) = file_of(input) else { return };
    if !use_it(&bytes, OnSuspect::default()) {
        use_it(&bytes, OnSuspect::Salvage);
    }
});
