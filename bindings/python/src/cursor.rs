//! Walks and scans.

use std::sync::{Mutex, MutexGuard, PoisonError};

use evermap_bindings::{Page, Pairs};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::coding::Coding;
use crate::errors::raised;

/// Pairs of the first page, and of later ones: the first is small, because many walks look at a few
/// pairs only.
const FIRST: usize = 32;
const LATER: usize = 512;
/// Bytes of a page.
const BYTES: usize = 256 << 10;

/// What a cursor shows of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Keys,
    Values,
    Pairs,
}

/// A walk over the pairs of a map.
#[pyclass(frozen, module = "evermap")]
pub(crate) struct Cursor {
    state: Mutex<State>,
    shown: Shown,
    keys: Coding,
    values: Coding,
}

struct State {
    pairs: Pairs,
    page: Page,
    at: usize,
    /// Pairs of the next page.
    next: usize,
}

impl Cursor {
    pub(crate) fn new(pairs: Pairs, shown: Shown, keys: Coding, values: Coding) -> Self {
        let state = State { pairs, page: Page::new(), at: 0, next: FIRST };
        Cursor { state: Mutex::new(state), shown, keys, values }
    }

    /// Locks the state. Another thread that has it may wait for the interpreter's lock, so that is
    /// not held meanwhile.
    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, State> {
        match self.state.try_lock() {
            Ok(state) => state,
            Err(_) => {
                py.detach(|| drop(self.state.lock()));
                // A thread that comes in between keeps the interpreter's lock only for an object.
                self.state.lock().unwrap_or_else(PoisonError::into_inner)
            }
        }
    }
}

#[pymethods]
impl Cursor {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut guard = self.lock(py);
        let state = &mut *guard;
        if state.at == state.page.len() {
            state.page.take_fault().map_err(raised)?;
            state.at = 0;
            let most = std::mem::replace(&mut state.next, LATER);
            let filled = py.detach(|| state.pairs.next_page(&mut state.page, most, BYTES));
            filled.map_err(raised)?;
            if state.page.is_empty() {
                state.page.take_fault().map_err(raised)?;
                return Ok(None);
            }
        }
        let (key, value) = state.page.pair(state.at);
        let shown = match self.shown {
            Shown::Keys => self.keys.decode(py, key)?,
            Shown::Values => self.values.decode(py, value)?,
            Shown::Pairs => {
                let pair = [self.keys.decode(py, key)?, self.values.decode(py, value)?];
                PyTuple::new(py, pair)?.into_any()
            }
        };
        state.at += 1;
        Ok(Some(shown))
    }
}
