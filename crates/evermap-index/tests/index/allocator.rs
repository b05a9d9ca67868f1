//! The allocator of this program, which counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

/// The system's allocator, which counts what a thread allocates and frees while its `COUNTS` is
/// set.
struct Counting;

static LIVE: AtomicI64 = AtomicI64::new(0);

thread_local! {
    static COUNTS: Cell<bool> = const { Cell::new(false) };
}

fn count(bytes: i64) {
    if COUNTS.try_with(Cell::get).unwrap_or(false) {
        LIVE.fetch_add(bytes, SeqCst);
    }
}

// SAFETY: all calls are passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps the contract of the method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller keeps the contract of the method.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the number of bytes that `body` leaves allocated. Threads that it starts must
/// [count](counted) their own.
pub(crate) fn left_by(body: impl FnOnce()) -> i64 {
    let before = LIVE.load(SeqCst);
    counted(body);
    LIVE.load(SeqCst) - before
}

/// Counts what this thread allocates in `body`.
pub(crate) fn counted<T>(body: impl FnOnce() -> T) -> T {
    with_counts(true, body)
}

/// Does not count what this thread allocates in `body`.
pub(crate) fn uncounted<T>(body: impl FnOnce() -> T) -> T {
    with_counts(false, body)
}

fn with_counts<T>(counts: bool, body: impl FnOnce() -> T) -> T {
    let before = COUNTS.replace(counts);
    let result = body();
    COUNTS.set(before);
    result
}
