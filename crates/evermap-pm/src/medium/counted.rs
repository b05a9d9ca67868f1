//! A medium that counts accesses. Unlike times, the counts do not depend on the machine's load.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::{BLOCK, LINE, Medium, Note};
use crate::{PmU64, Result};

macro_rules! counters {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// The counts of a [`Counted`] medium.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])+ pub $name: u64,)+
        }

        #[derive(Default)]
        struct Totals {
            $($name: AtomicU64,)+
        }

        impl Totals {
            fn read(&self) -> Counts {
                Counts { $($name: self.$name.load(Relaxed),)+ }
            }

            fn reset(&self) {
                $(self.$name.store(0, Relaxed);)+
            }
        }
    };
}

counters! {
    /// Completed operations.
    ops,
    /// Words loaded.
    loads,
    /// Words stored that must persist.
    stores,
    /// Words stored that need not persist.
    transient_stores,
    /// Compare-and-swaps of both kinds, successful or not.
    cas,
    /// Calls to flush.
    flush_calls,
    /// Lines in these calls. A line in two calls counts twice, because it is written back twice.
    lines_flushed,
    /// Fences.
    fences,
    /// Distinct 64-byte lines read by an operation, over all operations.
    lines_read,
    /// Distinct 64-byte lines written by an operation, over all operations.
    lines_written,
    /// Distinct 256-byte blocks read by an operation, over all operations.
    blocks_read,
    /// Distinct 256-byte blocks written by an operation, over all operations.
    blocks_written,
}

/// Counts the calls to another medium, and the lines that operations touch.
///
/// An operation is what a thread does between [`begin_op`](Counted::begin_op) and
/// [`end_op`](Counted::end_op), or between [`Note::Begin`] and [`Note::End`]. A line that it both
/// reads and writes counts once as read and once as written. A failed compare-and-swap only reads.
/// Accesses outside operations are included in the totals of loads, stores and so on, but not in
/// those of lines and blocks.
///
/// If other threads are running, the totals are read one after the other, not at the same moment.
pub struct Counted<M: Medium> {
    inner: M,
    counter: Counter,
}

/// The counting of a [`Counted`] medium, for other media too. Places are addresses or offsets, in
/// bytes.
#[derive(Default)]
pub struct Counter {
    totals: Totals,
}

/// Lines that the current operation of this thread has touched, with repetitions.
#[derive(Default)]
struct Op {
    open: bool,
    read: Vec<usize>,
    written: Vec<usize>,
}

thread_local! {
    static OP: RefCell<Op> = RefCell::default();
}

impl<M: Medium> Counted<M> {
    /// Creates a medium that counts the calls to `inner`, starting from zero.
    pub fn new(inner: M) -> Self {
        Counted { inner, counter: Counter::default() }
    }

    /// Returns the inner medium. Calls to it are not counted.
    pub fn inner(&self) -> &M {
        &self.inner
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> Counts {
        self.counter.counts()
    }

    /// Resets all counts to zero.
    pub fn reset(&self) {
        self.counter.reset();
    }

    /// Begins an operation on the calling thread. An operation that has not ended is discarded.
    pub fn begin_op(&self) {
        self.counter.begin_op();
    }

    /// Ends the operation of the calling thread. Does nothing if none has begun.
    pub fn end_op(&self) {
        self.counter.end_op();
    }

    /// Records that the operation of the calling thread reads the line at `addr` in ordinary
    /// memory, so that structures outside the medium are counted too.
    pub fn note_dram_line(&self, addr: *const u8) {
        reads(addr.addr(), 1);
    }
}

impl Counter {
    /// Returns the counts so far.
    pub fn counts(&self) -> Counts {
        self.totals.read()
    }

    /// Resets all counts to zero.
    pub fn reset(&self) {
        self.totals.reset();
    }

    /// Begins an operation on the calling thread. An operation that has not ended is discarded.
    pub fn begin_op(&self) {
        OP.with_borrow_mut(|op| {
            op.open = true;
            op.read.clear();
            op.written.clear();
        });
    }

    /// Ends the operation of the calling thread. Does nothing if none has begun.
    pub fn end_op(&self) {
        OP.with_borrow_mut(|op| {
            if !std::mem::take(&mut op.open) {
                return;
            }
            add(&self.totals.ops, 1);
            let (lines, blocks) = distinct(&mut op.read);
            add(&self.totals.lines_read, lines);
            add(&self.totals.blocks_read, blocks);
            let (lines, blocks) = distinct(&mut op.written);
            add(&self.totals.lines_written, lines);
            add(&self.totals.blocks_written, blocks);
        });
    }

    pub(crate) fn load(&self, place: usize, words: usize) {
        add(&self.totals.loads, words as u64);
        reads(place, words * 8);
    }

    pub(crate) fn store(&self, place: usize, words: usize) {
        add(&self.totals.stores, words as u64);
        writes(place, words * 8);
    }

    pub(crate) fn store_transient(&self, place: usize) {
        add(&self.totals.transient_stores, 1);
        writes(place, 8);
    }

    pub(crate) fn cas(&self, place: usize) {
        add(&self.totals.cas, 1);
        reads(place, 8);
    }

    /// The compare-and-swap was successful.
    pub(crate) fn swapped(&self, place: usize) {
        writes(place, 8);
    }

    pub(crate) fn flush(&self, place: usize, len: usize) {
        add(&self.totals.flush_calls, 1);
        add(&self.totals.lines_flushed, lines_of(place, len).len() as u64);
    }

    pub(crate) fn fence(&self) {
        add(&self.totals.fences, 1);
    }

    pub(crate) fn note(&self, note: Note) {
        match note {
            Note::Begin(_) => self.begin_op(),
            Note::End(_) => self.end_op(),
            Note::Scope(_) | Note::Harmless(_) => {}
        }
    }
}

fn add(total: &AtomicU64, count: u64) {
    total.fetch_add(count, Relaxed);
}

/// Returns the numbers of distinct lines and blocks in a list of lines. Reorders the list.
fn distinct(lines: &mut Vec<usize>) -> (u64, u64) {
    const LINES_PER_BLOCK: usize = (BLOCK / LINE) as usize;
    lines.sort_unstable();
    lines.dedup();
    let count = lines.len() as u64;
    lines.dedup_by_key(|line| *line / LINES_PER_BLOCK);
    (count, lines.len() as u64)
}

/// Returns the numbers of the lines that `len` bytes at `place` touch.
fn lines_of(place: usize, len: usize) -> Range<usize> {
    let line = LINE as usize;
    if len == 0 { 0..0 } else { place / line..(place + len).div_ceil(line) }
}

fn reads(place: usize, len: usize) {
    OP.with_borrow_mut(|op| {
        if op.open {
            op.read.extend(lines_of(place, len));
        }
    });
}

fn writes(place: usize, len: usize) {
    OP.with_borrow_mut(|op| {
        if op.open {
            op.written.extend(lines_of(place, len));
        }
    });
}

fn address(cell: &PmU64) -> usize {
    std::ptr::from_ref(cell).addr()
}

// SAFETY: `inner` guarantees 1 to 3; all calls about memory go to it.
unsafe impl<M: Medium> Medium for Counted<M> {
    forward_memory!();

    fn name(&self) -> &'static str {
        self.inner.name()
    }

    #[track_caller]
    fn flush_bytes(&self, addr: *const u8, len: usize) {
        self.counter.flush(addr.addr(), len);
        self.inner.flush_bytes(addr, len);
    }

    #[track_caller]
    fn fence(&self) {
        self.counter.fence();
        self.inner.fence();
    }

    fn note(&self, note: Note) {
        self.counter.note(note);
        self.inner.note(note);
    }

    #[track_caller]
    fn load(&self, cell: &PmU64) -> u64 {
        self.counter.load(address(cell), 1);
        self.inner.load(cell)
    }

    #[track_caller]
    fn load_relaxed(&self, cell: &PmU64) -> u64 {
        self.counter.load(address(cell), 1);
        self.inner.load_relaxed(cell)
    }

    #[track_caller]
    fn store(&self, cell: &PmU64, value: u64) {
        self.counter.store(address(cell), 1);
        self.inner.store(cell, value);
    }

    #[track_caller]
    fn store_transient(&self, cell: &PmU64, value: u64) {
        self.counter.store_transient(address(cell));
        self.inner.store_transient(cell, value);
    }

    #[track_caller]
    fn cas(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        let result = self.inner.cas(cell, old, new);
        self.count_cas(cell, result.is_ok());
        result
    }

    #[track_caller]
    fn cas_transient(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        let result = self.inner.cas_transient(cell, old, new);
        self.count_cas(cell, result.is_ok());
        result
    }

    #[track_caller]
    fn write_bytes(&self, cells: &[PmU64], bytes: &[u8]) {
        self.counter.store(cells.as_ptr().addr(), bytes.len().div_ceil(8));
        self.inner.write_bytes(cells, bytes);
    }

    #[track_caller]
    fn read_bytes(&self, cells: &[PmU64], out: &mut [u8]) {
        self.counter.load(cells.as_ptr().addr(), out.len().div_ceil(8));
        self.inner.read_bytes(cells, out);
    }

    fn prefetch(&self, offset: u64) {
        self.inner.prefetch(offset);
    }
}

impl<M: Medium> Counted<M> {
    fn count_cas(&self, cell: &PmU64, success: bool) {
        self.counter.cas(address(cell));
        if success {
            self.counter.swapped(address(cell));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium::{Dram, Pages};

    fn medium() -> Counted<Dram> {
        let medium = Counted::new(Dram::reserve(1 << 20, Pages::Base).unwrap());
        medium.grow(1 << 16).unwrap();
        medium
    }

    fn cells(medium: &Counted<Dram>) -> &[PmU64] {
        medium.slice(0, 1 << 13).unwrap()
    }

    #[test]
    fn an_operation_counts_each_line_and_block_once() {
        let medium = medium();
        let cells = cells(&medium);
        medium.begin_op();
        medium.load(&cells[0]); // line 0, block 0
        medium.load_relaxed(&cells[7]); // line 0
        medium.load(&cells[8]); // line 1
        medium.load(&cells[32]); // line 4, block 1
        medium.store(&cells[0], 1); // line 0, block 0
        medium.store_transient(&cells[1], 1); // line 0
        medium.store(&cells[24], 1); // line 3
        assert_eq!(medium.counts().lines_read, 0, "the operation has not ended");
        medium.end_op();
        assert_eq!(
            medium.counts(),
            Counts {
                ops: 1,
                loads: 4,
                stores: 2,
                transient_stores: 1,
                lines_read: 3,
                blocks_read: 2,
                lines_written: 2,
                blocks_written: 1,
                ..Counts::default()
            }
        );
    }

    #[test]
    fn operations_are_summed_without_accesses_between_them() {
        let medium = medium();
        let cells = cells(&medium);
        for _ in 0..3 {
            medium.note(Note::Begin(1));
            medium.load(&cells[0]);
            medium.note(Note::End(1));
            medium.load(&cells[64]);
        }
        medium.end_op();
        let counts = medium.counts();
        assert_eq!((counts.ops, counts.loads), (3, 6));
        assert_eq!((counts.lines_read, counts.blocks_read), (3, 3));
        medium.reset();
        assert_eq!(medium.counts(), Counts::default());
    }

    #[test]
    fn bytes_count_as_the_words_and_lines_they_cover() {
        let medium = medium();
        let cells = cells(&medium);
        let mut out = [0; 61];
        medium.begin_op();
        medium.write_bytes(&cells[6..], &[7; 17]); // words 6, 7, 8: lines 0 and 1
        medium.read_bytes(&cells[8..], &mut out); // words 8 to 15: line 1
        medium.write_bytes(&cells[100..], &[]);
        medium.end_op();
        let counts = medium.counts();
        assert_eq!((counts.stores, counts.loads), (3, 8));
        assert_eq!((counts.lines_written, counts.lines_read), (2, 1));
        assert_eq!(out[0], 7);
    }

    #[test]
    fn a_failed_swap_reads_and_a_successful_one_also_writes() {
        let medium = medium();
        let cells = cells(&medium);
        medium.begin_op();
        assert_eq!(medium.cas(&cells[0], 1, 2), Err(0));
        medium.end_op();
        assert_eq!((medium.counts().lines_read, medium.counts().lines_written), (1, 0));
        medium.begin_op();
        assert_eq!(medium.cas_transient(&cells[0], 0, 2), Ok(0));
        medium.end_op();
        let counts = medium.counts();
        assert_eq!((counts.cas, counts.lines_read, counts.lines_written), (2, 2, 1));
    }

    #[test]
    fn flushes_and_fences_of_helpers_are_counted() {
        let medium = medium();
        let cells = cells(&medium);
        medium.persist(&cells[0]);
        medium.flush(&cells[6..18]); // bytes 48 to 144: lines 0, 1 and 2
        medium.flush(&cells[0..0]);
        medium.fence();
        let counts = medium.counts();
        assert_eq!((counts.flush_calls, counts.lines_flushed, counts.fences), (3, 4, 2));
    }

    #[test]
    fn ordinary_memory_counts_and_operations_are_per_thread() {
        let medium = medium();
        let cells = cells(&medium);
        let side = [0_u8; 1];
        medium.begin_op();
        medium.note_dram_line(side.as_ptr());
        std::thread::scope(|threads| {
            threads.spawn(|| {
                medium.load(&cells[0]);
                medium.begin_op();
                medium.load(&cells[8]);
                medium.end_op();
            });
        });
        medium.load(&cells[0]);
        medium.end_op();
        let counts = medium.counts();
        assert_eq!((counts.ops, counts.loads, counts.lines_read), (2, 3, 3));
    }
}
