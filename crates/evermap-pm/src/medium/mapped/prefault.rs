//! Touches new pages before they are needed.
//!
//! The first store to a page costs microseconds, because the kernel has to find or zero memory and
//! map it. A helper thread does that ahead of use.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use rustix::mm::{Advice, madvise};

use crate::fork::ForkDetector;

/// Number of requests that may wait. Further ones are dropped, because they are only hints.
const QUEUE: usize = 64;
/// Bytes touched by one system call: a huge page, which holds the mapping's lock for about a
/// millisecond.
const PIECE: usize = 2 << 20;

/// The helper thread of one mapping. Must be dropped before the mapping.
#[derive(Default)]
pub(super) struct Prefaulter {
    /// Started by the first request. `None` if the system refused to start it.
    helper: OnceLock<Option<Helper>>,
}

struct Helper {
    queue: Arc<Queue>,
    thread: JoinHandle<()>,
    fork: ForkDetector,
}

/// What the helper thread has to do.
#[derive(Default)]
struct Queue {
    requests: Mutex<Requests>,
    /// Notified when there is something new to do, and at the end of a piece.
    changed: Condvar,
}

#[derive(Default)]
struct Requests {
    /// Addresses, the next ones last.
    waiting: Vec<Range<usize>>,
    /// What is being touched.
    current: Range<usize>,
    stops: bool,
}

impl Prefaulter {
    /// Requests the pages at these addresses, and returns without waiting. The addresses must
    /// belong to the mapping, in whole pages.
    pub(super) fn request(&self, addresses: Range<usize>) {
        let Some(helper) = self.helper.get_or_init(Helper::start) else { return };
        if helper.fork.is_child() {
            return;
        }
        let mut requests = helper.queue.lock();
        if requests.waiting.len() < QUEUE {
            requests.waiting.insert(0, addresses);
            helper.queue.changed.notify_all();
        }
    }

    /// Takes back what was requested of the pages at these addresses. Afterwards they are not
    /// touched. Waits for a piece that is being touched, about a millisecond.
    pub(super) fn withdraw(&self, addresses: Range<usize>) {
        let Some(Some(helper)) = self.helper.get() else { return };
        // In a forked child the thread does not exist, and may have left the lock locked.
        if helper.fork.is_child() {
            return;
        }
        let mut requests = helper.queue.lock();
        requests.waiting = requests
            .waiting
            .iter()
            .flat_map(|range| {
                [
                    range.start..range.end.min(addresses.start),
                    range.start.max(addresses.end)..range.end,
                ]
            })
            .filter(|left| left.start < left.end)
            .collect();
        while requests.current.start < addresses.end && addresses.start < requests.current.end {
            let waited = helper.queue.changed.wait(requests);
            requests = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Prefaulter {
    fn drop(&mut self) {
        let Some(Some(helper)) = self.helper.take() else { return };
        // In a forked child the thread does not exist, so joining it would never return.
        if helper.fork.is_child() {
            return;
        }
        helper.queue.lock().stops = true;
        helper.queue.changed.notify_all();
        let _ = helper.thread.join();
    }
}

impl Helper {
    fn start() -> Option<Self> {
        let fork = ForkDetector::new().ok()?;
        let queue = Arc::<Queue>::default();
        let served = queue.clone();
        let thread = std::thread::Builder::new()
            .name("evermap-touch".into())
            .spawn(move || served.serve())
            .ok()?;
        Some(Helper { queue, thread, fork })
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Touches what is requested, until it is to stop.
    fn serve(&self) {
        let mut requests = self.lock();
        while !requests.stops {
            let Some(addresses) = requests.waiting.pop() else {
                let waited = self.changed.wait(requests);
                requests = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let end = addresses.end.min(addresses.start.saturating_add(PIECE));
            requests.current = addresses.start..end;
            if end < addresses.end {
                requests.waiting.push(end..addresses.end);
            }
            drop(requests);
            let touched = touch(addresses.start..end);
            requests = self.lock();
            requests.current = 0..0;
            if !touched {
                requests.waiting.retain(|rest| rest.start != end);
            }
            self.changed.notify_all();
        }
    }
}

/// Touches pages. Returns `false` if that is impossible: the file is shorter now, the disk is full,
/// or the kernel is older than 5.14.
fn touch(addresses: Range<usize>) -> bool {
    let page = std::ptr::with_exposed_provenance_mut(addresses.start);
    // SAFETY: the mapping outlives the helper thread, because its owner joins the thread first.
    // Populating maps pages without changing a byte, and returns an error where a store would be
    // killed.
    unsafe { madvise(page, addresses.end - addresses.start, Advice::LinuxPopulateWrite) }.is_ok()
}
