//! Tests of epochs.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::sim::schedule::{Schedule, Strategy, run};

mod deferred;
#[cfg(test)] // It uses the pool, which uses epochs.
mod fences;
mod forks;
mod grace;
mod guards;
mod quiescent;

fn counting() -> (Domain, Arc<Mutex<Vec<u64>>>) {
    counting_with(register_process_fence())
}

fn counting_with(process_fence: bool) -> (Domain, Arc<Mutex<Vec<u64>>>) {
    let freed = Arc::new(Mutex::new(Vec::new()));
    let log = freed.clone();
    let reclaim = Box::new(move |token| log.lock().unwrap().push(token));
    (Domain::with(reclaim, process_fence), freed)
}

/// Returns a domain whose tokens mean nothing.
fn plain(process_fence: bool) -> Domain {
    Domain::with(Box::new(|_| {}), process_fence && register_process_fence())
}

/// Returns a domain that makes the deliberate mistake `mistake`.
fn mistaken(mistake: Option<&'static str>, process_fence: bool) -> Domain {
    let mut domain = plain(process_fence);
    domain.mistake = mistake;
    domain
}

/// Guards with fences by the kernel, if it has them, and guards that execute fences themselves.
fn ways_to_fence() -> impl Iterator<Item = bool> {
    [false, true].into_iter().filter(|&process_fence| !process_fence || register_process_fence())
}

type Body<'env> = Box<dyn FnOnce() + Send + 'env>;

/// Runs `bodies` as threads, one at a time, in an order that follows from the seed.
fn simulate(seed: u64, bodies: Vec<Body<'_>>) {
    let strategy = if seed.is_multiple_of(2) { Strategy::Random } else { Strategy::Mixed };
    run(Schedule { strategy, seed }, bodies);
}

/// Runs `test`, which is meant to fail, and returns what its panic said.
fn panic_of(test: impl FnOnce()) -> Option<String> {
    let payload = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test)).err()?;
    let message = payload.downcast_ref::<String>().cloned();
    message.or_else(|| payload.downcast_ref::<&str>().map(|&text| text.to_owned()))
}

/// Waits, under the simulated scheduler or without, until `condition` holds.
fn wait_until(condition: impl Fn() -> bool) {
    let mut backoff = Backoff::new();
    while !condition() {
        backoff.wait();
    }
}

/// Objects that are replaced one after the other in one place, and freed after a grace period. A
/// reader of a freed object panics.
struct Place {
    current: AtomicU64,
    alive: Vec<AtomicBool>,
}

impl Place {
    fn new(objects: u64) -> Arc<Self> {
        let alive = (0..=objects).map(|_| AtomicBool::new(true)).collect();
        Arc::new(Place { current: AtomicU64::new(0), alive })
    }

    /// Reads the current object in a few steps. The guard is one of any kind.
    fn read(&self, _guard: &Guard<'_>) {
        let seen = self.current.load(Acquire) as usize;
        for _ in 0..6 {
            schedule_point();
            assert!(self.alive[seen].load(SeqCst), "object {seen} was freed under a reader");
        }
    }

    /// Stores the next object. Returns the previous one, which readers may still read.
    fn replace(&self) -> u64 {
        schedule_point();
        let old = self.current.fetch_add(1, SeqCst);
        schedule_point();
        old
    }

    fn free(&self, object: u64) {
        let was_alive = self.alive[object as usize].swap(false, SeqCst);
        assert!(was_alive, "object {object} was freed twice");
    }
}
