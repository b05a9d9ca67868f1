//! All interleavings of a few threads, with the store buffers of their processors.
//!
//! Only one thread runs at a time, and it waits for its turn before each access to an explored
//! [word](AtomicU64) or lock. A store goes to the buffer of its thread, from which it reaches
//! memory at any later moment, in order; a load finds its own thread's last store there. What
//! reads and writes at once waits until its buffer is empty, and a fence of all threads until all
//! are. This is the memory model of x86 (total store order), the strongest one in which a fence of
//! all threads is needed.
//!
//! A [`Search`] runs the threads once for each order of their steps. Orders that only exchange
//! steps which do not depend on each other count as one, and are tried once: dynamic partial-order
//! reduction with source sets and sleep sets, after Abdulla, Aronis, Jonsson and Sagonas (2014). A
//! thread that waits in a loop ([`Backoff`](crate::sync::Backoff)) goes on when a word has changed
//! that it has read last.
//!
//! Outside of the tests of this crate, the words and locks are those of the standard library and of
//! [`sync`](crate::sync).

#[cfg(test)]
mod fibers;
#[cfg(test)]
mod group;
#[cfg(test)]
mod search;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod words;

#[cfg(test)]
pub(crate) use group::{Event, Kind, copies_pages, fence_all_threads, overwrite};
#[cfg(test)]
pub(crate) use search::Search;
#[cfg(test)]
pub(crate) use words::{
    AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Mutex, MutexGuard, RwLock, RwLockReadGuard,
};

/// Returns a small number that no other living thread has, explored or not.
#[inline]
pub(crate) fn thread_ordinal() -> usize {
    #[cfg(test)]
    if let Some(number) = fibers::current() {
        return number;
    }
    crate::epoch::thread_ordinal()
}

/// Calls `act`, which makes a range of bytes zero.
#[cfg(not(test))]
#[inline]
pub(crate) fn overwrite(_: std::ops::Range<usize>, act: impl Fn()) {
    act();
}

#[cfg(not(test))]
pub(crate) use crate::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
#[cfg(not(test))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};
