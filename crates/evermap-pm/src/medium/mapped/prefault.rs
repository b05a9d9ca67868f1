//! Touches new pages before they are needed.
//!
//! The first store to a page costs microseconds, because the kernel has to find or zero memory and
//! map it. A helper thread does that ahead of use.

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
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
    requests: SyncSender<Range<usize>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    fork: ForkDetector,
}

impl Prefaulter {
    /// Requests the pages at these addresses, and returns without waiting. The addresses must
    /// belong to the mapping, in whole pages.
    pub(super) fn request(&self, addresses: Range<usize>) {
        if let Some(helper) = self.helper.get_or_init(Helper::start) {
            let _ = helper.requests.try_send(addresses);
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
        helper.stop.store(true, Relaxed);
        drop(helper.requests);
        let _ = helper.thread.join();
    }
}

impl Helper {
    fn start() -> Option<Self> {
        let fork = ForkDetector::new().ok()?;
        let (requests, queue) = sync_channel(QUEUE);
        let stop = Arc::new(AtomicBool::new(false));
        let seen_by_thread = stop.clone();
        let thread = std::thread::Builder::new()
            .name("evermap-touch".into())
            .spawn(move || serve(&queue, &seen_by_thread))
            .ok()?;
        Some(Helper { requests, stop, thread, fork })
    }
}

fn serve(queue: &Receiver<Range<usize>>, stop: &AtomicBool) {
    for addresses in queue {
        for start in addresses.clone().step_by(PIECE) {
            // Relaxed: only says that the work is no longer needed; joining the thread orders the
            // rest.
            if stop.load(Relaxed) {
                return;
            }
            let bytes = PIECE.min(addresses.end - start);
            let page = std::ptr::with_exposed_provenance_mut(start);
            // SAFETY: the mapping outlives this thread, because its owner joins the thread first.
            // Populating maps pages without changing a byte, and returns an error where a store
            // would be killed.
            if unsafe { madvise(page, bytes, Advice::LinuxPopulateWrite) }.is_err() {
                // The file is shorter now, the disk is full, or the kernel is older than 5.14.
                break;
            }
        }
    }
}
