//! A medium that calls a hook before every access, for example to let another thread run.

use std::cell::Cell;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, RwLock};

use evermap_pm::medium::Note;
use evermap_pm::{Medium, PmU64, Result};

/// What a thread is about to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Load,
    /// To the word at this offset.
    Store(u64),
    Flush,
    Fence,
}

type Hook = Arc<dyn Fn(Access) + Send + Sync>;

/// A medium with a hook that runs before each access, except for those of the hook itself.
pub(crate) struct Watched<M> {
    inner: M,
    hook: RwLock<Option<Hook>>,
}

thread_local! {
    static IN_HOOK: Cell<bool> = const { Cell::new(false) };
}

impl<M: Medium> Watched<M> {
    pub(crate) fn new(inner: M) -> Self {
        Watched { inner, hook: RwLock::new(None) }
    }

    pub(crate) fn watch(&self, hook: impl Fn(Access) + Send + Sync + 'static) {
        *self.hook.write().unwrap() = Some(Arc::new(hook));
    }

    pub(crate) fn unwatch(&self) {
        *self.hook.write().unwrap() = None;
    }

    fn before(&self, access: Access) {
        let hook = self.hook.read().unwrap().clone();
        let Some(hook) = hook else { return };
        if !IN_HOOK.replace(true) {
            hook(access);
            IN_HOOK.set(false);
        }
    }
}

// SAFETY: memory and lengths are those of the inner medium, which keeps the promises; all accesses
// go through it.
unsafe impl<M: Medium> Medium for Watched<M> {
    fn base(&self) -> NonNull<u8> {
        self.inner.base()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }

    #[track_caller]
    fn grow(&self, len: u64) -> Result<()> {
        self.inner.grow(len)
    }

    #[track_caller]
    fn discard(&self, range: Range<u64>) {
        self.inner.discard(range);
    }

    #[track_caller]
    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn name(&self) -> &'static str {
        "watched"
    }

    #[track_caller]
    fn note(&self, note: Note) {
        self.inner.note(note);
    }

    #[track_caller]
    fn flush_bytes(&self, addr: *const u8, len: usize) {
        self.before(Access::Flush);
        self.inner.flush_bytes(addr, len);
    }

    #[track_caller]
    fn fence(&self) {
        self.before(Access::Fence);
        self.inner.fence();
    }

    #[track_caller]
    fn load(&self, cell: &PmU64) -> u64 {
        self.before(Access::Load);
        self.inner.load(cell)
    }

    #[track_caller]
    fn load_relaxed(&self, cell: &PmU64) -> u64 {
        self.before(Access::Load);
        self.inner.load_relaxed(cell)
    }

    #[track_caller]
    fn store(&self, cell: &PmU64, value: u64) {
        self.before(Access::Store(self.inner.offset_of(cell)));
        self.inner.store(cell, value);
    }

    #[track_caller]
    fn store_transient(&self, cell: &PmU64, value: u64) {
        self.before(Access::Store(self.inner.offset_of(cell)));
        self.inner.store_transient(cell, value);
    }

    #[track_caller]
    fn cas(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        self.before(Access::Store(self.inner.offset_of(cell)));
        self.inner.cas(cell, old, new)
    }

    #[track_caller]
    fn cas_transient(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        self.before(Access::Store(self.inner.offset_of(cell)));
        self.inner.cas_transient(cell, old, new)
    }
}
