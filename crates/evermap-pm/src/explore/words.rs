//! Words and locks whose accesses are steps.

use std::ops::{Deref, DerefMut};
use std::sync::LockResult;
use std::sync::atomic::{self, Ordering};

use super::group::{Kind, Write, with_member};
use crate::sync;

macro_rules! explored {
    ($($name:ident of $value:ty, $from_bits:expr;)+) => {$(
        /// The type of the standard library with this name.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub(crate) struct $name(atomic::$name);

        #[allow(dead_code)]
        impl $name {
            pub(crate) const fn new(value: $value) -> Self {
                $name(atomic::$name::new(value))
            }

            fn place(&self) -> usize {
                self.0.as_ptr().expose_provenance()
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                let load = || self.0.load(order);
                with_member(|member| {
                    $from_bits(member.load(self.place(), size_of::<Self>(), || load() as u64))
                })
                .unwrap_or_else(load)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                let write: Write = |place, bits| {
                    let word = std::ptr::with_exposed_provenance::<atomic::$name>(place);
                    // SAFETY: what explored threads store to exists until all of them have ended
                    // and their buffers are empty.
                    unsafe { &*word }.store($from_bits(bits), Ordering::Release);
                };
                let place = (self.place(), size_of::<Self>());
                with_member(|member| member.store(place, value as u64, write))
                    .unwrap_or_else(|| self.0.store(value, order))
            }

            /// Does what reads and writes the word at once.
            fn at_once<T>(&self, act: impl Fn(&atomic::$name) -> T) -> T {
                let before = || self.0.load(Ordering::Relaxed) as u64;
                with_member(|member| {
                    member.swap(self.place(), size_of::<Self>(), before, || act(&self.0))
                })
                .unwrap_or_else(|| act(&self.0))
            }

            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                self.at_once(|word| word.swap(value, order))
            }

            pub(crate) fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.at_once(|word| word.compare_exchange(old, new, success, failure))
            }

            pub(crate) fn fetch_or(&self, bits: $value, order: Ordering) -> $value {
                self.at_once(|word| word.fetch_or(bits, order))
            }
        }
    )+};
}

explored! {
    AtomicU64 of u64, |bits: u64| bits;
    AtomicU8 of u8, |bits: u64| bits as u8;
    AtomicUsize of usize, |bits: u64| bits as usize;
    AtomicBool of bool, |bits: u64| bits != 0;
}

impl AtomicU64 {
    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.at_once(|word| word.fetch_add(value, order))
    }
}

impl AtomicUsize {
    pub(crate) fn fetch_add(&self, value: usize, order: Ordering) -> usize {
        self.at_once(|word| word.fetch_add(value, order))
    }
}

/// A [`sync::Mutex`] of which both ends of the lock are steps.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

/// A [`sync::RwLock`] of which both ends of a lock are steps.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(sync::RwLock<T>);

/// The guard of a lock.
pub(crate) struct Guard<G> {
    guard: Option<G>,
    place: usize,
    end: Kind,
}

pub(crate) type MutexGuard<'a, T> = Guard<sync::MutexGuard<'a, T>>;
pub(crate) type RwLockReadGuard<'a, T> = Guard<sync::RwLockReadGuard<'a, T>>;

impl<G> Guard<G> {
    fn new(place: usize, kinds: (Kind, Kind), lock: impl FnOnce() -> G) -> LockResult<Self> {
        with_member(|member| member.lock(place, kinds.0));
        Ok(Guard { guard: Some(lock()), place, end: kinds.1 })
    }
}

impl<T> Mutex<T> {
    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let place = std::ptr::from_ref(self).expose_provenance();
        Guard::new(place, (Kind::Lock, Kind::Unlock), || {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        })
    }
}

impl<T> RwLock<T> {
    pub(crate) fn read(&self) -> LockResult<Guard<sync::RwLockReadGuard<'_, T>>> {
        let place = std::ptr::from_ref(self).expose_provenance();
        Guard::new(place, (Kind::LockShared, Kind::UnlockShared), || {
            self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner)
        })
    }

    pub(crate) fn write(&self) -> LockResult<Guard<sync::RwLockWriteGuard<'_, T>>> {
        let place = std::ptr::from_ref(self).expose_provenance();
        Guard::new(place, (Kind::Lock, Kind::Unlock), || {
            self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner)
        })
    }
}

impl<G> Drop for Guard<G> {
    fn drop(&mut self) {
        with_member(|member| member.lock(self.place, self.end));
        self.guard = None;
    }
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        self.guard.as_ref().expect("until it is dropped")
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        self.guard.as_mut().expect("until it is dropped")
    }
}
