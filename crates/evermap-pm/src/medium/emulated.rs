//! A medium that is slowed down to the speed of persistent memory.

use std::cell::Cell;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

use super::{BLOCK, LINE, Medium, Note};
use crate::{PmU64, Result};

/// Number of lines in the cache model of a thread.
const CACHED_LINES: usize = 512;
/// Number of blocks that a thread has read just before.
const NEAR_BLOCKS: usize = 16;
/// Number of blocks in which the memory combines stores: 16 KiB, as measured of a module (Yang et
/// al., FAST 2020).
const COMBINING_BLOCKS: usize = 64;
/// Number of blocks that are accepted before they are written: a fence does not wait for these.
const QUEUED_BLOCKS: u64 = 16;

/// The speed of a kind of persistent memory. Zero switches a delay or a limit off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Speed {
    /// The least duration of a fence that follows a flush, in nanoseconds.
    pub persist_ns: u64,
    /// The duration of a read of a line that is not in the thread's cache, in nanoseconds.
    pub read_ns: u64,
    /// The same, if the thread has just read another line of its block.
    pub near_read_ns: u64,
    /// Megabytes (10^6 bytes) of blocks that all threads together can read in a second.
    pub read_mb_s: u64,
    /// Megabytes of blocks that all threads together can write in a second.
    pub write_mb_s: u64,
}

impl Speed {
    /// What most of the literature assumes: a persist of 600 ns, and no other delay.
    pub const CUSTOMARY: Speed =
        Speed { persist_ns: 600, read_ns: 0, near_read_ns: 0, read_mb_s: 0, write_mb_s: 0 };

    /// One module of Intel Optane memory of the first generation. Latencies and bandwidths are
    /// those that Yang et al. measured ("An Empirical Guide to the Behavior and Use of Scalable
    /// Persistent Memory", FAST 2020): a random read of a line 305 ns, a sequential one 169 ns on
    /// average, which leaves 124 ns for each further line of a block; store, flush and fence 62 ns;
    /// 6.6 GB/s are read, 2.3 GB/s written.
    pub const OPTANE_MODULE: Speed = Speed {
        persist_ns: 62,
        read_ns: 305,
        near_read_ns: 124,
        read_mb_s: 6_600,
        write_mb_s: 2_300,
    };

    /// Six of these modules with interleaved addresses, as beside one processor.
    pub const OPTANE: Speed = Speed {
        read_mb_s: 6 * Speed::OPTANE_MODULE.read_mb_s,
        write_mb_s: 6 * Speed::OPTANE_MODULE.write_mb_s,
        ..Speed::OPTANE_MODULE
    };
}

/// Delays another medium, so that a program has the costs of persistent memory on a machine without
/// it.
///
/// A [`Speed`] says how long the delays are. These model the path of a thread to the memory:
///
/// * **persist**: a fence that follows at least one flush of its thread takes at least
///   `persist_ns`, including the work of the inner medium. Flushes before the same fence overlap,
///   as they do on hardware.
/// * **read**: a line that is not in the thread's cache arrives `read_ns` after its load or
///   prefetch started (`near_read_ns` if its block was just read); a load waits for it, a prefetch
///   does not. The cache is a model: 512 lines per thread, direct-mapped (32 KiB, as a first-level
///   cache has), with no limit on the number of lines in flight. Stores and swaps bring in their
///   line at no cost, because a store buffer hides it.
///
/// And these the memory, which all threads share and which works in blocks of 256 bytes, one after
/// the other:
///
/// * **writing**: a flushed line occupies the memory for the time of a block, unless its block is
///   among the 64 that were flushed last: stores to one block are combined. Sixteen blocks may wait
///   to be written; a fence waits until no more blocks than these are before its own last one.
/// * **reading**: a block occupies the memory, too, unless the thread has just read another line of
///   it. A read waits for the reads and writes that came before it.
///
/// Delays are spun, so a slowed thread keeps its processor, as a stalled one does.
pub struct Emulated<M: Medium> {
    inner: M,
    persist_ticks: u64,
    read_ticks: u64,
    near_read_ticks: u64,
    block_read_ticks: u64,
    block_write_ticks: u64,
    device: Box<Device>,
    persists: AtomicU64,
    reads: AtomicU64,
}

/// The memory that all threads share.
struct Device {
    /// Tick at which it has done everything that it was asked for.
    free: AtomicU64,
    /// Numbers of the blocks in which stores are combined, by their low bits.
    combining: [AtomicUsize; COMBINING_BLOCKS],
    blocks_read: AtomicU64,
    blocks_written: AtomicU64,
}

/// The number of times that an [`Emulated`] medium has applied its delays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// Fences that waited.
    pub persists: u64,
    /// Lines that were not in the cache. Not counted while reads are not delayed.
    pub reads: u64,
    /// Blocks that occupied the memory for a read. Not counted without a limit for reading.
    pub blocks_read: u64,
    /// Blocks that occupied the memory for a write. Not counted without a limit for writing.
    pub blocks_written: u64,
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
    /// Tick at which the memory will have written what this thread has flushed.
    static WRITTEN: Cell<u64> = const { Cell::new(0) };
    static CACHE: [CachedLine; CACHED_LINES] =
        const { [const { CachedLine { line: Cell::new(0), ready: Cell::new(0) } }; CACHED_LINES] };
    /// Numbers of the blocks that this thread has read just before, by their low bits.
    static NEAR: [Cell<usize>; NEAR_BLOCKS] = const { [const { Cell::new(0) }; NEAR_BLOCKS] };
}

impl Device {
    fn new() -> Self {
        Device {
            free: AtomicU64::new(0),
            combining: [const { AtomicUsize::new(0) }; COMBINING_BLOCKS],
            blocks_read: AtomicU64::new(0),
            blocks_written: AtomicU64::new(0),
        }
    }

    /// Occupies the memory for this number of ticks. Returns when they end.
    fn occupy(&self, ticks: u64) -> u64 {
        let now = now();
        let end = |free: u64| free.max(now) + ticks;
        let update = self.free.fetch_update(Relaxed, Relaxed, |free| Some(end(free)));
        end(update.unwrap_or_else(|free| free))
    }

    /// Returns `true` if a store to this block cannot be combined with one before, and makes the
    /// block one with which later stores are combined.
    fn is_new_write(&self, block: usize) -> bool {
        self.combining[block % COMBINING_BLOCKS].swap(block, Relaxed) != block
    }
}

impl<M: Medium> Emulated<M> {
    /// Slows `inner` down.
    ///
    /// The first call in a process takes several milliseconds to calibrate the clock.
    pub fn new(inner: M, speed: Speed) -> Self {
        Emulated {
            inner,
            persist_ticks: ticks(speed.persist_ns as f64),
            read_ticks: ticks(speed.read_ns as f64),
            near_read_ticks: ticks(speed.near_read_ns as f64),
            block_read_ticks: ticks(block_ns(speed.read_mb_s)),
            block_write_ticks: ticks(block_ns(speed.write_mb_s)),
            device: Box::new(Device::new()),
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
        Delays {
            persists: self.persists.load(Relaxed),
            reads: self.reads.load(Relaxed),
            blocks_read: self.device.blocks_read.load(Relaxed),
            blocks_written: self.device.blocks_written.load(Relaxed),
        }
    }

    fn delays_reads(&self) -> bool {
        self.read_ticks > 0 || self.block_read_ticks > 0
    }

    /// Starts to bring in every line of `words` words at `cell`, and passes each one to `then`.
    fn bring_in(&self, cell: *const PmU64, words: usize, then: impl Fn(&CachedLine)) {
        if !self.delays_reads() {
            return;
        }
        for line in lines(cell.addr(), words * 8) {
            CACHE.with(|cache| {
                let entry = &cache[line % CACHED_LINES];
                if entry.line.replace(line) != line {
                    entry.ready.set(self.arrival(line));
                }
                then(entry);
            });
        }
    }

    /// Returns the tick at which a line arrives that is requested now.
    fn arrival(&self, line: usize) -> u64 {
        self.reads.fetch_add(1, Relaxed);
        let block = block_of(line);
        let is_near = NEAR.with(|near| near[block % NEAR_BLOCKS].replace(block) == block);
        if is_near {
            return now() + self.near_read_ticks;
        }
        if self.block_read_ticks == 0 {
            return now() + self.read_ticks;
        }
        self.device.blocks_read.fetch_add(1, Relaxed);
        let begins = self.device.occupy(self.block_read_ticks) - self.block_read_ticks;
        begins + self.read_ticks
    }

    /// Delays a load of these words by the calling thread.
    fn reads(&self, cell: *const PmU64, words: usize) {
        self.bring_in(cell, words, |entry| spin_until(entry.ready.replace(0)));
    }

    /// Records a store to these words by the calling thread.
    fn writes(&self, cell: *const PmU64, words: usize) {
        if !self.delays_reads() {
            return;
        }
        for line in lines(cell.addr(), words * 8) {
            CACHE.with(|cache| {
                let entry = &cache[line % CACHED_LINES];
                if entry.line.replace(line) != line {
                    entry.ready.set(0);
                }
            });
        }
    }

    /// Occupies the memory for a flush of these bytes.
    fn write_back(&self, place: usize, len: usize) {
        if self.block_write_ticks == 0 {
            return;
        }
        for line in lines(place, len) {
            if self.device.is_new_write(block_of(line)) {
                self.device.blocks_written.fetch_add(1, Relaxed);
                WRITTEN.set(self.device.occupy(self.block_write_ticks));
            }
        }
    }

    /// Returns the tick at which all that this thread has flushed is accepted.
    fn acceptance(&self) -> u64 {
        WRITTEN.replace(0).saturating_sub(QUEUED_BLOCKS * self.block_write_ticks)
    }
}

/// Returns the numbers of the lines that hold these bytes.
fn lines(place: usize, len: usize) -> Range<usize> {
    let line = LINE as usize;
    if len == 0 { 0..0 } else { place / line..(place + len).div_ceil(line) }
}

fn block_of(line: usize) -> usize {
    line / (BLOCK / LINE) as usize
}

/// Returns the nanoseconds of a block at this number of megabytes a second, or zero if there is no
/// limit.
fn block_ns(mb_s: u64) -> f64 {
    if mb_s == 0 { 0.0 } else { BLOCK as f64 * 1e3 / mb_s as f64 }
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
fn ticks(ns: f64) -> u64 {
    static TICKS_PER_NS: OnceLock<f64> = OnceLock::new();
    if ns == 0.0 {
        return 0;
    }
    let ticks_per_ns = TICKS_PER_NS.get_or_init(|| {
        let (first_tick, start) = (now(), Instant::now());
        while start.elapsed() < Duration::from_millis(5) {}
        (now() - first_tick) as f64 / start.elapsed().as_nanos() as f64
    });
    (ns * ticks_per_ns).ceil() as u64
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
        self.write_back(addr.addr(), len);
    }

    #[track_caller]
    fn fence(&self) {
        let start = now();
        self.inner.fence();
        if FLUSHED.replace(false) && self.persist_ticks + self.block_write_ticks > 0 {
            self.persists.fetch_add(1, Relaxed);
            spin_until(self.acceptance().max(start + self.persist_ticks));
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

    const NONE: Speed =
        Speed { persist_ns: 0, read_ns: 0, near_read_ns: 0, read_mb_s: 0, write_mb_s: 0 };

    fn medium(speed: Speed) -> Emulated<Dram> {
        let dram = Dram::reserve(1 << 20, Pages::Base).unwrap();
        dram.grow(1 << 18).unwrap();
        Emulated::new(dram, speed)
    }

    fn cells(medium: &Emulated<Dram>) -> &[PmU64] {
        medium.slice(0, 1 << 15).unwrap()
    }

    #[test]
    fn only_a_fence_that_ends_flushes_waits() {
        let medium = medium(Speed { persist_ns: 50, ..NONE });
        let cells = cells(&medium);
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
        assert_eq!(medium.delays(), Delays { persists: 2, ..Delays::default() });
    }

    #[test]
    fn a_line_is_waited_for_until_it_is_cached() {
        let medium = medium(Speed { read_ns: 50, ..NONE });
        // Lines 0 and 512 have the same cache entry.
        let cells = cells(&medium);
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
        assert_eq!(medium.delays(), Delays { reads: 5, ..Delays::default() });
    }

    #[test]
    fn a_delay_of_zero_is_off() {
        let medium = medium(NONE);
        let cell: &PmU64 = medium.at(0).unwrap();
        medium.store(cell, 1);
        medium.persist(cell);
        assert_eq!(medium.load(cell), 1);
        assert_eq!(medium.delays(), Delays::default());
    }

    #[test]
    fn stores_to_a_block_are_combined() {
        let medium = medium(Speed { write_mb_s: 10_000, ..NONE });
        let cells = cells(&medium);
        let written = |cells: &[PmU64]| {
            let before = medium.delays().blocks_written;
            medium.persist(cells);
            medium.delays().blocks_written - before
        };
        assert_eq!(written(&cells[0..1]), 1);
        assert_eq!(written(&cells[8..9]), 0, "another line of the block");
        assert_eq!(written(&cells[0..65]), 2, "three blocks, one of which is known");
        let all_blocks = COMBINING_BLOCKS as u64;
        assert_eq!(written(&cells[32 * 64..2 * 32 * 64]), all_blocks);
        assert_eq!(written(&cells[0..1]), 1, "it was forgotten");
    }

    #[test]
    fn lines_of_a_block_are_read_together() {
        let medium = medium(Speed { read_mb_s: 10_000, ..NONE });
        let cells = cells(&medium);
        for line in [0, 3, 1, 4] {
            medium.load(&cells[line * 8]);
        }
        assert_eq!(medium.delays(), Delays { reads: 4, blocks_read: 2, ..Delays::default() });
    }

    /// Times have a lower bound only: the thread may be interrupted.
    #[test]
    fn threads_share_the_bandwidth() {
        // A block takes 10 us.
        let medium = medium(Speed { write_mb_s: 25, read_mb_s: 0, ..NONE });
        let cells = cells(&medium);
        let block_ns = 256 * 1000 / 25;
        let start = Instant::now();
        std::thread::scope(|threads| {
            for thread in 0..2 {
                let medium = &medium;
                threads.spawn(move || {
                    (0..50).for_each(|nth| medium.persist(&cells[(2 * nth + thread) * 32]));
                });
            }
        });
        let waited = (100 - 2 * QUEUED_BLOCKS) * block_ns;
        assert!(start.elapsed() >= Duration::from_nanos(waited), "{:?}", start.elapsed());
        assert_eq!(medium.delays().blocks_written, 100);
    }

    #[test]
    fn a_read_waits_behind_writes() {
        let medium = medium(Speed { write_mb_s: 25, read_mb_s: 10_000, ..NONE });
        let cells = cells(&medium);
        let start = Instant::now();
        (0..10).for_each(|block| medium.flush(&cells[block * 32]));
        medium.load(&cells[3200]);
        let waited = Duration::from_nanos(10 * 256 * 1000 / 25);
        assert!(start.elapsed() >= waited, "{:?}", start.elapsed());
    }
}
