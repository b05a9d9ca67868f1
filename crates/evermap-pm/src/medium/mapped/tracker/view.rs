//! A view: the pages of a file as they were at one instant.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{Arc, OnceLock, PoisonError};

use super::page::PAGE;
use crate::PmU64;
use crate::explore::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, RwLock};
use crate::medium::mapped::mapping::Mapping;
use crate::sync::Backoff;

/// The page is that of the file: it has not changed since the instant.
const SHARED: u8 = 0;
/// A thread makes it private.
const COPYING: u8 = 1;
/// The page belongs to the view.
const PRIVATE: u8 = 2;

/// The pages of a view.
///
/// They are a private mapping of the file. The kernel shares the pages of the file with it until
/// one is stored to through the mapping: then it copies the page. So a thread that is about to
/// change a page of the file makes it private in the view first, and reading a view is reading
/// memory.
pub(super) struct ViewPages {
    /// The instant.
    number: u64,
    /// The address of the private mapping. It exists until the view is not registered any more.
    base: usize,
    /// The number of pages.
    count: u64,
    /// One byte for each page.
    states: Mapping,
    /// The number of private pages.
    copied: AtomicU64,
    limit: OnceLock<Limit>,
}

/// How many pages a view may have to itself.
struct Limit {
    pages: u64,
    /// Is called when there are more. Returns whether nobody reads the view any more.
    on_full: OnFull,
    /// Whether nobody does.
    is_over: AtomicBool,
}

/// See [`Mapped::limit_private_bytes`](super::super::Mapped::limit_private_bytes).
pub(crate) type OnFull = Box<dyn Fn() -> bool + Send + Sync>;

impl ViewPages {
    /// Makes the view keep what `page` holds, as [`make_private`](ViewPages::make_private), for a
    /// thread that is about to change the page in the file.
    pub(super) fn keep(&self, page: u64) {
        let limit = self.limit.get();
        if limit.is_some_and(|limit| limit.is_over.load(Relaxed)) {
            return;
        }
        self.make_private(page);
        if let Some(limit) = limit.filter(|limit| self.copied.load(Relaxed) > limit.pages)
            && (limit.on_full)()
        {
            limit.is_over.store(true, Relaxed);
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    fn state(&self, page: u64) -> &AtomicU8 {
        // SAFETY: `states` has a byte for every page below `count`, which the callers check, and
        // zero is a valid state.
        unsafe { self.states.base().add(page as usize).cast().as_ref() }
    }

    /// Makes the view keep what `page` holds now. The caller makes sure that nothing was stored
    /// there since the instant, but for one late store a thread, which may be kept or not. Pages
    /// beyond the view are ignored.
    pub(super) fn make_private(&self, page: u64) {
        if page >= self.count {
            return;
        }
        let (state, mut backoff) = (self.state(page), Backoff::new());
        loop {
            match state.compare_exchange(SHARED, COPYING, AcqRel, Acquire) {
                Ok(_) => break,
                Err(PRIVATE) => return,
                Err(_) => _ = backoff.wait(),
            }
        }
        let word = std::ptr::with_exposed_provenance::<PmU64>(self.base + (page * PAGE) as usize);
        // SAFETY: the mapping exists as long as the view is registered, has this page, and holds
        // nothing but words.
        let word = unsafe { &*word }.atomic();
        // A store makes the kernel copy the page. It copies words as a whole, and this one stays as
        // it is. The compiler would replace an addition of zero by a load.
        let held = word.load(Relaxed);
        let _ = word.compare_exchange(held, held, Relaxed, Relaxed);
        self.copied.fetch_add(1, Relaxed);
        state.store(PRIVATE, Release);
    }
}

/// The views of a file.
#[derive(Default)]
pub(super) struct Views {
    all: RwLock<Vec<Arc<ViewPages>>>,
    /// Their number.
    count: AtomicUsize,
}

impl Views {
    fn add(&self, pages: Arc<ViewPages>) {
        self.all.write().unwrap_or_else(PoisonError::into_inner).push(pages);
        self.count.fetch_add(1, Release);
    }

    fn remove(&self, pages: &Arc<ViewPages>) {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| !Arc::ptr_eq(other, pages));
        self.count.store(all.len(), Release);
    }

    /// Keeps what `page` holds, before it is changed in interval `now`, for all views since its
    /// last change, which was in interval `last`. A view may be registered already whose instant
    /// has not begun: the change belongs to it.
    pub(super) fn keep(&self, page: u64, last: u64, now: u64) {
        if self.count.load(Acquire) == 0 {
            return;
        }
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let older = all.iter().filter(|view| view.number() > last && view.number() <= now);
        older.for_each(|view| view.keep(page));
    }
}

/// A view, registered with those who store to its file.
pub(crate) struct View {
    pages: Arc<ViewPages>,
    views: Arc<Views>,
}

impl View {
    /// Registers a view of the first `count` pages at instant `number`, mapped privately at `base`.
    /// `states` has a zeroed byte for every page.
    pub(super) fn register(
        views: &Arc<Views>,
        number: u64,
        base: usize,
        count: u64,
        states: Mapping,
    ) -> Self {
        let copied = AtomicU64::new(0);
        let limit = OnceLock::new();
        let pages = Arc::new(ViewPages { number, base, count, states, copied, limit });
        views.add(pages.clone());
        View { pages, views: views.clone() }
    }

    /// The view stores to a page of its own.
    pub(super) fn make_private(&self, page: u64) {
        if self.pages.state(page).load(Acquire) != PRIVATE {
            self.pages.make_private(page);
        }
    }

    pub(crate) fn set_limit(&self, bytes: u64, on_full: OnFull) {
        let limit = Limit { pages: bytes / PAGE, on_full, is_over: AtomicBool::new(false) };
        let _ = self.pages.limit.set(limit);
    }

    pub(crate) fn instant(&self) -> u64 {
        self.pages.number
    }

    /// Returns the number of bytes of pages that the view has to itself.
    pub(crate) fn private_bytes(&self) -> u64 {
        self.pages.copied.load(Relaxed) * PAGE
    }
}

impl Drop for View {
    /// Waits for threads that are copying a page, about a microsecond.
    fn drop(&mut self) {
        self.views.remove(&self.pages);
    }
}
