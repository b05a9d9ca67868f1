//! A file, or a snapshot of one.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use evermap::ErrorKind;
use evermap_bindings as common;
use evermap_bindings::{Fault, Settings, StoreMap};
use pyo3::prelude::*;

use crate::errors::raised;

/// An open file, or a store in memory.
///
/// What Python has closed must be closed, although other objects may refer to it: the file can be
/// opened again only when nobody in the process has it. So everything that Python refers to has a
/// [`Slot`], which closing empties.
#[pyclass(frozen, module = "evermap")]
pub(crate) struct Store {
    store: Slot<common::Store>,
    maps: Mutex<Vec<Weak<Slot<StoreMap>>>>,
}

/// A place from which something can be taken away while others refer to it.
pub(crate) struct Slot<T>(UnsafeCell<Option<Arc<T>>>);

// SAFETY: `get` and `take` are all that looks into it. Both have the interpreter's lock (the stable
// interface of Python 3.11 is for interpreters that have one), and neither releases it, nor runs
// anything that might, before it is done with the cell.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

impl<T> Slot<T> {
    pub(crate) fn new(object: Arc<T>) -> Self {
        Slot(UnsafeCell::new(Some(object)))
    }

    /// Returns what is there. It stays while the caller uses it.
    #[inline]
    pub(crate) fn get(&self, _: Python<'_>) -> PyResult<Arc<T>> {
        // SAFETY: see above.
        match unsafe { &*self.0.get() } {
            Some(object) => Ok(object.clone()),
            None => Err(raised(evermap::Error::Closed)),
        }
    }

    fn take(&self, _: Python<'_>) -> Option<Arc<T>> {
        // SAFETY: see above.
        unsafe { &mut *self.0.get() }.take()
    }
}

impl Store {
    fn of(store: Arc<common::Store>) -> Self {
        Store { store: Slot::new(store), maps: Mutex::default() }
    }

    /// Returns the store.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<Arc<common::Store>> {
        self.store.get(py)
    }

    /// Returns a place for a map, which closing empties.
    pub(crate) fn slot(&self, map: Arc<StoreMap>) -> Arc<Slot<StoreMap>> {
        let slot = Arc::new(Slot::new(map));
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        if maps.len() == maps.capacity() {
            maps.retain(|map| map.strong_count() > 0);
        }
        maps.push(Arc::downgrade(&slot));
        slot
    }
}

#[pymethods]
impl Store {
    #[new]
    fn new(
        py: Python<'_>,
        path: Option<PathBuf>,
        options: HashMap<String, String>,
    ) -> PyResult<Self> {
        let mut settings = Settings::new();
        for (name, value) in &options {
            settings.set(name, value).map_err(raised)?;
        }
        let opened = py.detach(|| common::Store::open(path.as_deref(), &settings));
        Ok(Store::of(opened.map_err(raised)?))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Ok(store) = self.store.get(py) else { return Ok(()) };
        let closed = py.detach(|| store.close());
        let kind = closed.as_ref().err().map(Fault::kind);
        if kind == Some(ErrorKind::WouldDeadlock) {
            return closed.map_err(raised);
        }
        let maps = std::mem::take(&mut *self.maps.lock().unwrap_or_else(PoisonError::into_inner));
        let slots = maps.iter().filter_map(Weak::upgrade);
        let handles: Vec<_> = slots.filter_map(|slot| slot.take(py)).collect();
        let own = self.store.take(py);
        // What is dropped last closes the file.
        py.detach(|| drop((handles, own, store)));
        match kind {
            // A child has nothing to close but its copies of the handles.
            Some(ErrorKind::Forked) => Ok(()),
            _ => closed.map_err(raised),
        }
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let store = self.store.get(py)?;
        py.detach(|| store.db().sync()).map_err(raised)
    }

    fn maps(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let store = self.store.get(py)?;
        py.detach(|| store.db().maps()).map_err(raised)
    }

    fn drop_map(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let store = self.store.get(py)?;
        py.detach(|| store.db().drop_map(name)).map_err(raised)
    }

    fn snapshot(&self, py: Python<'_>, limit: Option<u64>) -> PyResult<Store> {
        let store = self.store.get(py)?;
        Ok(Store::of(py.detach(|| store.snapshot(limit)).map_err(raised)?))
    }

    fn backup(&self, py: Python<'_>, path: PathBuf) -> PyResult<u64> {
        let store = self.store.get(py)?;
        py.detach(|| store.backup(&path)).map_err(raised)
    }

    fn check(&self, py: Python<'_>, deep: bool) -> PyResult<Vec<String>> {
        let store = self.store.get(py)?;
        let report = py.detach(|| store.check(deep)).map_err(raised)?;
        let mut problems = report.problems;
        if report.more_problems > 0 {
            problems.push(format!("and {} more", report.more_problems));
        }
        Ok(problems)
    }

    fn compact(&self, py: Python<'_>) -> PyResult<u64> {
        let store = self.store.get(py)?;
        py.detach(|| store.compact()).map_err(raised)
    }
}

/// Makes a store at `path` of a backup and of those that add to it.
#[pyfunction]
pub(crate) fn restore(py: Python<'_>, backups: Vec<PathBuf>, path: PathBuf) -> PyResult<()> {
    py.detach(|| common::Store::restore(&backups, &path)).map_err(raised)
}
