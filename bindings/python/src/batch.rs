//! Changes that happen together or not at all.

use std::sync::{Mutex, MutexGuard, PoisonError};

use evermap::Applied;
use pyo3::prelude::*;

use crate::errors::raised;
use crate::map::{Map, meta};
use crate::store::Store;

/// Changes and conditions. Each names the map that it concerns.
#[pyclass(frozen, module = "evermap")]
pub(crate) struct Batch(Mutex<evermap::Batch>);

impl Batch {
    /// Locks the batch for a moment, in which no other thread waits for anything.
    fn lock(&self) -> MutexGuard<'_, evermap::Batch> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Batch {
    #[new]
    fn new() -> Self {
        Batch(Mutex::default())
    }

    fn put(
        &self,
        map: &Map,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        ttl: Option<f64>,
        flags: u32,
    ) -> PyResult<()> {
        let meta = meta(map.open(key.py())?.map(), ttl, flags)?;
        let (key, value) = (map.encode_key(key)?, map.encode_value(value)?);
        self.lock().in_map(map.name()).put_with(key, value, meta);
        Ok(())
    }

    fn remove(&self, map: &Map, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let key = map.encode_key(key)?;
        self.lock().in_map(map.name()).remove(key);
        Ok(())
    }

    fn incr(&self, map: &Map, key: &Bound<'_, PyAny>, delta: i64) -> PyResult<()> {
        let key = map.encode_key(key)?;
        self.lock().in_map(map.name()).add(key, delta);
        Ok(())
    }

    fn expect(&self, map: &Map, key: &Bound<'_, PyAny>, version: Option<u64>) -> PyResult<()> {
        let key = map.encode_key(key)?;
        self.lock().in_map(map.name()).expect(key, version);
        Ok(())
    }

    fn clear(&self) {
        self.lock().clear();
    }

    fn __len__(&self) -> usize {
        self.lock().len()
    }

    /// Makes all changes, or none. Returns `None`, or the key whose condition does not hold.
    fn apply(&self, py: Python<'_>, store: &Store) -> PyResult<Option<Vec<u8>>> {
        // A copy, so that others can add while this waits.
        let batch = self.lock().clone();
        let store = store.get(py)?;
        match py.detach(|| store.db().apply(&batch)).map_err(raised)? {
            Applied::Refused { key, .. } => Ok(Some(key)),
            _ => Ok(None),
        }
    }
}
