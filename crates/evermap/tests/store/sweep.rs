//! What a sweep reads.

use std::collections::HashSet;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use crate::common::{self, Kept};
use evermap::{IndexKind, MapOptions, Options};
use evermap_pm::PmU64;
use evermap_pm::medium::Medium;
use evermap_pm::region::Identity;

const LINE: u64 = 64;

/// Memory that counts loads and prefetches of some of its lines.
#[derive(Clone)]
struct Watched {
    memory: Kept,
    lines: Arc<OnceLock<HashSet<u64>>>,
    touched: Arc<AtomicU64>,
}

impl Watched {
    fn touch(&self, at: u64, bytes: u64) {
        let Some(lines) = self.lines.get() else { return };
        let touched = (at / LINE..(at + bytes).div_ceil(LINE)).any(|line| lines.contains(&line));
        self.touched.fetch_add(u64::from(touched), Relaxed);
    }
}

// SAFETY: all calls are passed on to the inner medium, which keeps the contract.
unsafe impl Medium for Watched {
    fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }

    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn capacity(&self) -> u64 {
        self.memory.capacity()
    }

    fn grow(&self, len: u64) -> evermap_pm::Result<()> {
        self.memory.grow(len)
    }

    fn discard(&self, range: Range<u64>) {
        self.memory.discard(range);
    }

    fn sync(&self) -> evermap_pm::Result<()> {
        self.memory.sync()
    }

    fn name(&self) -> &'static str {
        "watched"
    }

    fn flush_bytes(&self, addr: *const u8, len: usize) {
        self.memory.flush_bytes(addr, len);
    }

    fn fence(&self) {
        self.memory.fence();
    }

    fn load(&self, cell: &PmU64) -> u64 {
        self.touch(self.offset_of(cell), 8);
        self.memory.load(cell)
    }

    fn load_relaxed(&self, cell: &PmU64) -> u64 {
        self.touch(self.offset_of(cell), 8);
        self.memory.load_relaxed(cell)
    }

    fn read_bytes(&self, cells: &[PmU64], out: &mut [u8]) {
        if let Some(first) = cells.first() {
            self.touch(self.offset_of(first), out.len() as u64);
        }
        self.memory.read_bytes(cells, out);
    }

    fn prefetch(&self, offset: u64) {
        self.touch(offset, 1);
    }

    fn prefetch_bytes(&self, offset: u64, bytes: u64) {
        self.touch(offset, bytes);
    }
}

/// The byte of which values consist, so that words of values are recognised at any alignment.
const FILLER: u8 = 0xab;

/// Returns memory with a store that was not closed. It has records of several sizes in two maps,
/// whose lines are watched.
fn killed(index: IndexKind) -> (Watched, Options, [u64; 2]) {
    let memory = Kept::new(16 << 20);
    let options = Options::small(16 << 20).index(index).seed(3);
    let store = memory.open(&options).unwrap();
    let named = store.db().map("named", MapOptions::new()).unwrap();
    for (map, keys) in [(&store, 1000u64), (&named, 200)] {
        for key in 0..keys {
            let len = if key == 7 { 40_000 } else { 100 + key as usize % 3 * 700 };
            map.put(&key.to_le_bytes(), &vec![FILLER; len]).unwrap();
        }
        (0..keys).step_by(5).for_each(|key| assert!(map.remove(&key.to_le_bytes()).unwrap()));
    }
    let counts = [&store, &named].map(|map| map.len().value);
    drop((store, named));
    let filler = u64::from_le_bytes([FILLER; 8]);
    let filled = (0..memory.len()).step_by(8).filter(|&at| memory.word(at) == filler);
    // The first line of a block is watched if the value begins in it, as it does in nearly all
    // blocks.
    let lines: HashSet<u64> = filled.map(|at| at / LINE).collect();
    let watched = Watched { memory, lines: Arc::new(lines.into()), touched: Arc::default() };
    (watched, options, counts)
}

#[test]
fn a_sweep_reads_no_record() {
    for index in common::every_index() {
        let (watched, options, counts) = killed(index);
        let store = common::open_medium(watched.clone(), Identity::default(), &options).unwrap();
        store.db().recover().unwrap();
        let named = store.db().map("named", MapOptions::new()).unwrap();
        assert_eq!([&store, &named].map(|map| map.len().value), counts, "{index}");
        assert!(store.len().exact && named.len().exact);
        // The records of the catalogue are read, and are not watched.
        assert_eq!(watched.touched.load(Relaxed), 0, "{index}");
        let report = store.db().check(false).unwrap();
        assert!(report.is_sound(), "{index}: {report}");
        assert_eq!(watched.touched.load(Relaxed), 0, "{index}: a check that is not deep");
        let report = store.db().check(true).unwrap();
        assert!(report.is_sound(), "{index}: {report}");
        assert!(watched.touched.load(Relaxed) > 1000, "records are watched");
    }
}
