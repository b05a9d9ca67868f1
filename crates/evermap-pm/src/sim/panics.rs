//! Catches panics of the code under test.

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

/// Suppresses the output of panics that campaigns catch and report, for programs that run many of
/// them. Other panics still reach the process's panic hook.
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

/// Runs `code`, and converts a panic to an error.
pub(crate) fn catch<R>(
    what: &str,
    code: impl FnOnce() -> Result<R, Failure>,
) -> Result<R, Failure> {
    CATCHING.set(true);
    let result = catch_unwind(AssertUnwindSafe(code));
    CATCHING.set(false);
    let result = result.unwrap_or_else(|payload| {
        let message = message_of(&*payload);
        let oracle = if message.contains("stuck") { "bounded steps" } else { "no panic" };
        Err(Failure::new(oracle, format!("panicked: {message}")))
    });
    result.map_err(|failure| Failure { what: format!("{what}: {}", failure.what), ..failure })
}

/// Returns the message of a panic.
fn message_of(payload: &(dyn Any + Send)) -> &str {
    let owned = payload.downcast_ref::<String>().map(String::as_str);
    owned
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("a payload that is not text")
}
