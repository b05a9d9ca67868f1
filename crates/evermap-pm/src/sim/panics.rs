//! Panics of what is tested: caught, and told in words.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use super::subject::Failure;
use crate::sync::is_simulated;

thread_local! {
    /// Whether a panic of this thread is about to be caught.
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Keeps the process's panic hook from seeing panics that campaigns catch and report: for programs that run many of
/// them. Others it sees as before.
pub fn keep_panics_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !CATCHING.get() && !is_simulated() {
                before(panic);
            }
        }));
    });
}

/// Runs `code`; a panic in it is an error in words.
pub(crate) fn catch<R>(
    what: &str,
    code: impl FnOnce() -> Result<R, Failure>,
) -> Result<R, Failure> {
    CATCHING.set(true);
    let result = catch_unwind(AssertUnwindSafe(code));
    CATCHING.set(false);
    let result = result.unwrap_or_else(|payload| {
        let said = said(&*payload);
        let oracle = if said.contains("stuck") { "bounded steps" } else { "no panic" };
        Err(Failure::new(oracle, format!("panicked: {said}")))
    });
    result.map_err(|wrong| Failure { what: format!("{what}: {}", wrong.what), ..wrong })
}

/// What a panic said.
fn said(payload: &(dyn Any + Send)) -> &str {
    let owned = payload.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("something that is no text")
}
