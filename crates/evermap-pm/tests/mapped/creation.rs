//! Creations of regions that are interrupted at every step, as by a kill.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use crate::common::{creating, directory, in_memory};
use evermap_pm::medium::{Mapped, Medium};
use evermap_pm::region::{OnSuspect, Region, RegionConfig};
use evermap_pm::{PmU64, Result};

/// A mapped file with a limited number of steps; the next step panics. Everything stored stays in
/// the file, as after a kill.
struct Limited {
    inner: Mapped,
    steps: AtomicI64,
}

impl Limited {
    fn step(&self) {
        if self.steps.fetch_sub(1, Relaxed) == 0 {
            // A panic that no hook reports.
            resume_unwind(Box::new("interrupted"));
        }
    }
}

// SAFETY: `inner` fulfils all guarantees.
unsafe impl Medium for Limited {
    fn base(&self) -> NonNull<u8> {
        self.inner.base()
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }
    fn grow(&self, len: u64) -> Result<()> {
        self.step();
        self.inner.grow(len)
    }
    fn begin(&self, word: u64) -> Result<()> {
        self.step();
        self.inner.begin(word)
    }
    fn begun_bytes(&self) -> u64 {
        self.inner.begun_bytes()
    }
    fn discard(&self, range: Range<u64>) {
        self.inner.discard(range);
    }
    fn sync(&self) -> Result<()> {
        self.step();
        self.inner.sync()
    }
    fn name(&self) -> &'static str {
        "limited"
    }
    fn store(&self, cell: &PmU64, value: u64) {
        self.step();
        self.inner.store(cell, value);
    }
    fn flush_bytes(&self, addr: *const u8, len: usize) {
        self.step();
        self.inner.flush_bytes(addr, len);
    }
    fn fence(&self) {
        self.inner.fence();
    }
}

/// Returns `true` if a creation at `path` finishes within `steps` steps. If not, it is created
/// again afterwards.
fn finishes_within(steps: i64, path: &Path, config: &RegionConfig) -> bool {
    let open = || Mapped::open(path, &creating()).unwrap();
    let medium = Limited { inner: open(), steps: steps.into() };
    let identity = medium.inner.identity();
    let create = || drop(Region::create(medium, config, identity).unwrap());
    let finished = catch_unwind(AssertUnwindSafe(create)).is_ok();
    let medium = open();
    if Region::is_blank(&medium) {
        assert!(!finished, "a finished creation is not blank");
        drop(Region::create(medium, config, identity).unwrap());
    } else {
        drop(medium);
    }
    let (region, opened) = Region::open(open(), identity, OnSuspect::Refuse).unwrap();
    assert!(!opened.suspect);
    assert_eq!(region.extent_size(), config.extent_size);
    finished
}

fn interrupt_everywhere(directory: &Path, config: &RegionConfig) {
    let mut steps = 0;
    loop {
        let path = directory.join("store");
        let finished = finishes_within(steps, &path, config);
        std::fs::remove_file(&path).unwrap();
        if finished {
            break;
        }
        steps += 1;
    }
    assert!(steps > 20, "only {steps}");
}

#[test]
fn an_interrupted_creation_is_started_again() {
    for directory in [directory(), in_memory()] {
        let config = RegionConfig { capacity: 1 << 30, ..RegionConfig::default() };
        interrupt_everywhere(directory.path(), &config);
    }
}

/// With a table of extents that is too large to be checked as a whole.
#[test]
fn an_interrupted_large_creation_is_started_again() {
    let config = RegionConfig { capacity: 33 << 30, extent_size: 4096, seed: None };
    interrupt_everywhere(in_memory().path(), &config);
}

/// An interrupted creation never leaves zeros, and zeros are not a store.
#[test]
fn a_file_of_zeros_is_not_blank() {
    for bytes in [4096, 8192, 1 << 20, 65 << 20] {
        let directory = in_memory();
        let path = directory.path().join("file");
        std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        assert!(!Region::is_blank(&Mapped::open(&path, &creating()).unwrap()), "{bytes}");
    }
}
