//! An object that readers reach through one word, without a lock and without a store.

use std::sync::Arc;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use evermap_pm::Domain;

/// A word that owns an object. One that is replaced lives on for a grace period.
pub(super) struct Published<T>(AtomicPtr<T>);

impl<T: Send + Sync + 'static> Published<T> {
    pub(super) fn new(object: T) -> Self {
        Published(AtomicPtr::new(Arc::into_raw(Arc::new(object)).cast_mut()))
    }

    /// Calls `read` with the object. The calling thread has a guard of the domain that
    /// [`replace`](Self::replace) is called with, which `read` does not drop.
    ///
    /// # Panics
    /// If the thread has no guard.
    pub(super) fn with<R>(&self, domain: &Domain, read: impl FnOnce(&T) -> R) -> R {
        assert!(domain.is_pinned(), "read without a guard");
        // Acquire: pairs with the release in `replace`, so that the object is initialised.
        //
        // SAFETY: from `Arc::into_raw`. The thread has had a guard since before this load, and
        // keeps it until `read` returns; an object that is replaced later is dropped when that
        // guard is gone. All references to it are shared.
        read(unsafe { &*self.0.load(Acquire) })
    }

    /// Publishes another object, and drops the former one after a grace period of `domain`. It
    /// counts as `bytes` bytes until then.
    pub(super) fn replace(&self, object: T, domain: &Domain, bytes: usize) {
        let new = Arc::into_raw(Arc::new(object)).cast_mut();
        // AcqRel: see `with`; the former object may come from another thread.
        let old = self.0.swap(new, AcqRel);
        // SAFETY: from `Arc::into_raw`, and taken out of the word once. Readers still have
        // references to the object, which an `Arc` allows, and until the call below is executed.
        let old = unsafe { Arc::from_raw(old) };
        domain.defer(bytes, move || drop(old));
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        // SAFETY: from `Arc::into_raw`. References from `with` have ended, because they borrow this
        // word.
        drop(unsafe { Arc::from_raw(*self.0.get_mut()) });
    }
}
