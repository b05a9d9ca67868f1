//! What the tables call in tests, between two accesses to shared words.

use std::cell::{Cell, RefCell};

use evermap_pm::sim::schedule::{self, Progress};

use super::super::steps::{Mistake, Planted};

/// After how many more steps a thread is interrupted, and by what.
type Interrupt = (u64, Box<dyn FnOnce()>);

thread_local! {
    static PLANTED: Cell<Planted> =
        const { Cell::new(Planted { mistake: None, keep_freed: false }) };
    /// The number of stores so far, and of the steps that the thread may still make.
    static STORES: Cell<u64> = const { Cell::new(0) };
    static STEPS_LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    static INTERRUPT: RefCell<Option<Interrupt>> = const { RefCell::new(None) };
}

/// Returns what is planted in tables that this thread creates.
pub(in super::super) fn planted() -> Planted {
    PLANTED.get()
}

/// Creates something with a mistake, or without one. What its tables free is only marked, so that a
/// later use is noticed.
pub(super) fn plant<R>(mistake: Option<Mistake>, create: impl FnOnce() -> R) -> R {
    let before = PLANTED.replace(Planted { mistake, keep_freed: true });
    let created = create();
    PLANTED.set(before);
    created
}

/// Returns the number of stores to shared words that this thread has made.
pub(super) fn stores() -> u64 {
    STORES.get()
}

/// Makes this thread panic after this number of steps: a mistake may have closed a chain.
pub(super) fn limit_steps(steps: u64) {
    STEPS_LEFT.set(steps);
}

/// Called before a load of a shared word, and after a store.
pub(in super::super) fn step(progress: Progress) {
    evermap_index::testkit::delays::step();
    schedule::after(progress);
    STORES.set(STORES.get() + u64::from(progress != Progress::Load));
    STEPS_LEFT.set(STEPS_LEFT.get() - 1);
    assert!(STEPS_LEFT.get() > 0, "no end after many steps");
    let due = INTERRUPT.with_borrow_mut(|interrupt| {
        let due = matches!(interrupt, Some((0, _)));
        if let Some((steps, _)) = interrupt {
            *steps = steps.saturating_sub(1);
        }
        if due { interrupt.take() } else { None }
    });
    if let Some((_, act)) = due {
        act();
    }
}

/// Calls `body`, and `act` in the middle of it, before its step number `step`. Returns what `body`
/// returns, and whether it has that many steps.
///
/// The same thread does both, so `body` must not hold a lock that `act` wants: lookups hold none.
pub(super) fn interrupted<'a, R>(
    step: u64,
    act: impl FnOnce() + 'a,
    body: impl FnOnce() -> R,
) -> (R, bool) {
    struct Clear;
    impl Drop for Clear {
        fn drop(&mut self) {
            drop(INTERRUPT.take());
        }
    }
    let act: Box<dyn FnOnce() + 'a> = Box::new(act);
    // SAFETY: only the lifetime differs. The closure is removed below, at the latest when this
    // function returns or unwinds, and so while what it borrows lives.
    let act: Box<dyn FnOnce()> = unsafe { std::mem::transmute(act) };
    INTERRUPT.set(Some((step, act)));
    let clear = Clear;
    let result = body();
    let reached = INTERRUPT.with_borrow(Option::is_none);
    drop(clear);
    (result, reached)
}
