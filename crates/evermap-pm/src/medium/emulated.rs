//! A medium that is slowed down to the speed of persistent memory.

use std::cell::Cell;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::{LINE, Medium, Note};
use crate::{PmU64, Result};

/// Number of lines in the cache model of a thread.
const CACHED_LINES: usize = 512;

/// Delays another medium, so that a program has the costs of persistent memory on a machine without
/// it.
///
/// Two delays model the device, as is usual in the literature:
///
/// * **persist**: a fence that follows at least one flush of its thread takes at least
///   `persist_ns`, including the work of the inner medium. Flushes before the same fence overlap,
///   as they do on hardware.
/// * **read**: a line that is not in the thread's cache arrives `read_ns` after its load or
///   prefetch started; a load waits for it, a prefetch does not. The cache is a model: 512 lines
///   per thread, direct-mapped (32 KiB, as a first-level cache has), with no limit on the number of
///   lines in flight. Stores and swaps bring in their line at no cost, because a store buffer hides
///   it.
///
/// Delays are spun, so a slowed thread keeps its processor, as a stalled one does.
pub struct Emulated<M: Medium> {
    inner: M,
    persist_ticks: u64,
    read_ticks: u64,
    persists: AtomicU64,
    reads: AtomicU64,
}

/// The number of times that an [`Emulated`] medium has applied its delays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// Fences that waited.
    pub persists: u64,
    /// Lines that were not in the cache. Not counted while `read_ns` is zero.
    pub reads: u64,
}

/// An entry of the cache model.
struct CachedLine {
    /// Number of the line. The number of a real address is never zero.
    line: Cell<usize>,
    /// Tick at which the line arrives. Zero once a load has waited for it.
    ready: Cell<u64>,
}

thread_local! {
    /// Whether this thread has flushed since its last fence.
    static FLUSHED: Cell<bool> = const { Cell::new(false) };
    static CACHE: [CachedLine; CACHED_LINES] =
        const { [const { CachedLine { line: Cell::new(0), ready: Cell::new(0) } }; CACHED_LINES] };
}

impl<M: Medium> Emulated<M> {
    /// The cost of a persist in most of the literature, in nanoseconds.
    pub const PERSIST_NS: u64 = 600;

    /// Slows `inner` down by these delays. Zero switches a delay off.
    ///
    /// The first call in a process takes several milliseconds to calibrate the clock.
    pub fn new(inner: M, persist_ns: u64, read_ns: u64) -> Self {
        Emulated {
            inner,
            persist_ticks: ticks(persist_ns),
            read_ticks: ticks(read_ns),
            persists: AtomicU64::new(0),
            reads: AtomicU64::new(0),
        }
    }

    /// Returns the inner medium, which is not delayed.
    pub fn inner(&self) -> &M {
        &self.inner
    }

    /// Returns the number of times that the delays have been applied.
    pub fn delays(&self) -> Delays {
        Delays { persists: self.persists.load(Relaxed), reads: self.reads.load(Relaxed) }
    }

    /// Starts to bring in every line of `words` words at `cell`, and passes each one to `then`.
    fn bring_in(&self, cell: *const PmU64, words: usize, then: impl Fn(&CachedLine)) {
        if self.read_ticks == 0 {
            return;
        }
        for line in lines(cell, words) {
            CACHE.with(|cache| {
                let entry = &cache[line % CACHED_LINES];
                if entry.line.replace(line) != line {
                    self.reads.fetch_add(1, Relaxed);
                    entry.ready.set(now() + self.read_ticks);
                }
                then(entry);
            });
        }
    }

    /// Delays a load of these words by the calling thread.
    fn reads(&self, cell: *const PmU64, words: usize) {
        self.bring_in(cell, words, |entry| spin_until(entry.ready.replace(0)));
    }

    /// Records a store to these words by the calling thread.
    fn writes(&self, cell: *const PmU64, words: usize) {
        if self.read_ticks == 0 {
            return;
        }
        for line in lines(cell, words) {
            CACHE.with(|cache| {
                let entry = &cache[line % CACHED_LINES];
                if entry.line.replace(line) != line {
                    entry.ready.set(0);
                }
            });
        }
    }
}

/// Returns the numbers of the lines that hold these words.
fn lines(cell: *const PmU64, words: usize) -> Range<usize> {
    let line = LINE as usize;
    if words == 0 { 0..0 } else { cell.addr() / line..(cell.addr() + words * 8).div_ceil(line) }
}

/// Returns the time in ticks of the finest clock available.
#[inline(always)]
fn now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a counter that every x86-64 has.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

fn spin_until(tick: u64) {
    while now() < tick {}
}

/// Converts nanoseconds to ticks. The clocks are compared once per process.
fn ticks(ns: u64) -> u64 {
    static TICKS_PER_NS: OnceLock<f64> = OnceLock::new();
    if ns == 0 {
        return 0;
    }
    let ticks_per_ns = TICKS_PER_NS.get_or_init(|| {
        let (first_tick, start) = (now(), Instant::now());
        while start.elapsed() < Duration::from_millis(5) {}
        (now() - first_tick) as f64 / start.elapsed().as_nanos() as f64
    });
    (ns as f64 * ticks_per_ns).ceil() as u64
}

// SAFETY: `inner` guarantees 1 to 3; all calls about memory go to it.
unsafe impl<M: Medium> Medium for Emulated<M> {
    forward_memory!();

    fn name(&self) -> &'static str {
        "emulated"
    }

    #[track_caller]
    fn flush_bytes(&self, addr: *const u8, len: usize) {
        FLUSHED.set(FLUSHED.get() || len > 0);
        self.inner.flush_bytes(addr, len);
    }

    #[track_caller]
    fn fence(&self) {
        let start = now();
        self.inner.fence();
        if FLUSHED.replace(false) && self.persist_ticks > 0 {
            self.persists.fetch_add(1, Relaxed);
            spin_until(start + self.persist_ticks);
        }
    }

    fn note(&self, note: Note) {
        self.inner.note(note);
    }

    #[track_caller]
    fn load(&self, cell: &PmU64) -> u64 {
        self.reads(cell, 1);
        self.inner.load(cell)
    }

    #[track_caller]
    fn load_relaxed(&self, cell: &PmU64) -> u64 {
        self.reads(cell, 1);
        self.inner.load_relaxed(cell)
    }

    #[track_caller]
    fn store(&self, cell: &PmU64, value: u64) {
        self.writes(cell, 1);
        self.inner.store(cell, value);
    }

    #[track_caller]
    fn store_transient(&self, cell: &PmU64, value: u64) {
        self.writes(cell, 1);
        self.inner.store_transient(cell, value);
    }

    #[track_caller]
    fn cas(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        self.writes(cell, 1);
        self.inner.cas(cell, old, new)
    }

    #[track_caller]
    fn cas_transient(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        self.writes(cell, 1);
        self.inner.cas_transient(cell, old, new)
    }

    #[track_caller]
    fn write_bytes(&self, cells: &[PmU64], bytes: &[u8]) {
        self.writes(cells.as_ptr(), bytes.len().div_ceil(8));
        self.inner.write_bytes(cells, bytes);
    }

    #[track_caller]
    fn read_bytes(&self, cells: &[PmU64], out: &mut [u8]) {
        self.reads(cells.as_ptr(), out.len().div_ceil(8));
        self.inner.read_bytes(cells, out);
    }

    fn prefetch(&self, offset: u64) {
        let cell = self.base().as_ptr().wrapping_add(offset as usize).cast();
        self.bring_in(cell, 1, |_| ());
        self.inner.prefetch(offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium::{Dram, Pages};

    fn medium(persist_ns: u64, read_ns: u64) -> Emulated<Dram> {
        let dram = Dram::reserve(1 << 20, Pages::Base).unwrap();
        dram.grow(1 << 18).unwrap();
        Emulated::new(dram, persist_ns, read_ns)
    }

    #[test]
    fn only_a_fence_that_ends_flushes_waits() {
        let medium = medium(50, 0);
        let cells: &[PmU64] = medium.slice(0, 64).unwrap();
        medium.fence();
        assert_eq!(medium.delays().persists, 0);
        medium.flush(&cells[0]);
        medium.flush(&cells[32]);
        medium.fence();
        medium.fence();
        assert_eq!(medium.delays().persists, 1);
        medium.flush(&cells[0..0]);
        medium.fence();
        assert_eq!(medium.delays().persists, 1, "nothing was flushed");
        medium.flush(&cells[0]);
        std::thread::scope(|threads| {
            threads.spawn(|| medium.fence());
        });
        assert_eq!(medium.delays().persists, 1, "another thread's fence");
        medium.fence();
        assert_eq!(medium.delays(), Delays { persists: 2, reads: 0 });
    }

    #[test]
    fn a_line_is_waited_for_until_it_is_cached() {
        let medium = medium(0, 50);
        // Lines 0 and 512 have the same cache entry.
        let cells: &[PmU64] = medium.slice(0, 8 * 600).unwrap();
        medium.load(&cells[0]);
        medium.load_relaxed(&cells[7]);
        assert_eq!(medium.delays().reads, 1);
        medium.load(&cells[8 * 512]);
        medium.load(&cells[0]);
        assert_eq!(medium.delays().reads, 3);
        medium.store(&cells[8], 1);
        medium.load(&cells[8]);
        assert_eq!(medium.delays().reads, 3, "a store brings its line in");
        medium.read_bytes(&cells[8..], &mut [0; 128]);
        assert_eq!(medium.delays().reads, 4);
        medium.prefetch(5 * LINE);
        medium.load(&cells[5 * 8]);
        assert_eq!(medium.delays(), Delays { persists: 0, reads: 5 });
    }

    #[test]
    fn a_delay_of_zero_is_off() {
        let medium = medium(0, 0);
        let cell: &PmU64 = medium.at(0).unwrap();
        medium.store(cell, 1);
        medium.persist(cell);
        assert_eq!(medium.load(cell), 1);
        assert_eq!(medium.delays(), Delays::default());
    }
}
