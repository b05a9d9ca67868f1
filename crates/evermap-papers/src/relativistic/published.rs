//! Objects that readers reach through one word.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use evermap_pm::{Domain, Guard};

use super::steps::{load_step, store_step};

/// A word that owns an object, or nothing. An object that is replaced lives on for a grace period.
pub(super) struct Published<T> {
    word: AtomicPtr<T>,
    owns: PhantomData<T>,
}

// SAFETY: it owns a `T` and lends references to it.
unsafe impl<T: Send + Sync> Send for Published<T> {}
// SAFETY: as above; an object that is replaced may be dropped on another thread.
unsafe impl<T: Send + Sync> Sync for Published<T> {}

/// An object that was published, until the last reader is gone. If it is dropped without
/// [`after_grace_period`](Retired::after_grace_period), it is leaked.
pub(super) struct Retired<T>(NonNull<T>);

// SAFETY: it owns a `T`, although other threads may still use references to it.
unsafe impl<T: Send + Sync> Send for Retired<T> {}

impl<T> Published<T> {
    pub(super) fn new(object: Option<Box<T>>) -> Self {
        let word = AtomicPtr::new(object.map_or(ptr::null_mut(), Box::into_raw));
        Published { word, owns: PhantomData }
    }

    /// Returns the object.
    #[inline(always)]
    pub(super) fn load<'s>(&self, _guard: &'s Guard<'_>) -> Option<&'s T> {
        load_step();
        // Acquire: pairs with the release in `replace`, so that the object is initialised.
        //
        // SAFETY: from `Box::into_raw`. The guard was created before this load, and what is
        // replaced is dropped a grace period later at the earliest. There are only shared
        // references to it until then.
        unsafe { self.word.load(Acquire).as_ref() }
    }

    /// Publishes another object, and returns the former one.
    pub(super) fn replace(&self, object: Option<Box<T>>) -> Option<Retired<T>> {
        let new = object.map_or(ptr::null_mut(), Box::into_raw);
        // AcqRel: see `load`; the former object may come from another thread.
        let old = self.word.swap(new, AcqRel);
        store_step();
        NonNull::new(old).map(Retired)
    }

    /// Exchanges the objects of two words. Other threads see the change of `self` first, and must
    /// not change either meanwhile.
    pub(super) fn exchange(&self, other: &Published<T>) {
        let new = other.word.load(Acquire);
        let old = self.word.swap(new, AcqRel);
        store_step();
        // Release: as in `replace`.
        other.word.store(old, Release);
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        let object = *self.word.get_mut();
        if !object.is_null() {
            // SAFETY: from `Box::into_raw`. References from `load` live as long as a guard of their
            // caller; this word is only dropped together with its table, which no thread uses any
            // more, or a grace period after it was replaced itself.
            drop(unsafe { Box::from_raw(object) });
        }
    }
}

impl<T: Send + Sync + 'static> Retired<T> {
    /// Drops the object after a grace period. It counts as `bytes` bytes until then.
    pub(super) fn after_grace_period(self, domain: &Domain, bytes: usize) {
        domain.defer(bytes, move || {
            let retired = self;
            // SAFETY: from `Box::into_raw`, retired once, and the references that existed when it
            // was replaced are gone, because the grace period began later.
            drop(unsafe { Box::from_raw(retired.0.as_ptr()) });
        });
    }

    /// Calls `mark` with the object instead of dropping it, at once: for planted mistakes.
    pub(super) fn leak(self, mark: impl FnOnce(&T)) {
        // SAFETY: from `Box::into_raw`, and not dropped, now or later.
        mark(unsafe { self.0.as_ref() });
    }
}

/// A second word for an object that a [`Published`] owns.
pub(super) struct Alias<T>(AtomicPtr<T>);

impl<T> Alias<T> {
    pub(super) const fn new() -> Self {
        Alias(AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns the object.
    #[inline(always)]
    pub(super) fn load<'s>(&self, _guard: &'s Guard<'_>) -> Option<&'s T> {
        load_step();
        // Acquire: as in `Published::load`.
        //
        // SAFETY: the owner of the object is replaced, and the object is dropped, a grace period
        // after this word was cleared at the earliest: see `clear`.
        unsafe { self.0.load(Acquire).as_ref() }
    }

    /// Names the object that `owner` owns.
    ///
    /// # Safety
    /// The object is not retired before this word is [cleared](Alias::clear).
    pub(super) unsafe fn set(&self, owner: &Published<T>) {
        // Release: as in `Published::replace`.
        self.0.store(owner.word.load(Acquire), Release);
        store_step();
    }

    /// Names nothing.
    pub(super) fn clear(&self) {
        // Release: a reader that sees nothing here sees what was done before.
        self.0.store(ptr::null_mut(), Release);
        store_step();
    }
}
