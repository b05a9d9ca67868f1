//! Operations on keys.

use std::borrow::Cow;
use std::ops::{Bound as End, ControlFlow};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evermap::cache::{BATCH_KEYS, NewRecord};
use evermap::{Expiry, KeyRange, Meta, Outcome};
use evermap_bindings::{StoreMap, Walk};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMapping, PyMemoryView, PyTuple};

use crate::coding::Coding;
use crate::cursor::{Cursor, Shown};
use crate::errors::raised;
use crate::held::Held;
use crate::store::{Slot, Store};

/// The interpreter's lock is released for values from this length on: what is copied takes longer
/// than that then.
const LONG: usize = 32 << 10;
/// Pairs that `update` collects before it stores them without the interpreter's lock.
const GROUP: usize = 256;

/// A map of bytes, or text, in a store.
#[pyclass(frozen, subclass, module = "evermap")]
pub(crate) struct Map {
    map: Arc<Slot<StoreMap>>,
    name: Option<String>,
    keys: Coding,
    values: Coding,
    /// Whether a change may wait for a disk.
    waits: bool,
}

impl Map {
    /// Returns the map, which stays open while the caller uses it.
    #[inline]
    pub(crate) fn open(&self, py: Python<'_>) -> PyResult<Arc<StoreMap>> {
        self.map.get(py)
    }

    /// The name of the map; `None` for the default map.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    #[inline]
    pub(crate) fn encode_key<'o>(&self, key: &'o Bound<'_, PyAny>) -> PyResult<Cow<'o, [u8]>> {
        self.keys.encode(key, "key")
    }

    #[inline]
    pub(crate) fn encode_value<'o>(&self, value: &'o Bound<'_, PyAny>) -> PyResult<Cow<'o, [u8]>> {
        self.values.encode(value, "value")
    }

    /// Returns the value of a key.
    #[inline]
    fn find<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = key.py();
        let key = self.encode_key(key)?;
        let map = self.open(py)?;
        let found = map.map().cache().find(&key, |record| self.values.read(py, &record));
        found.map_err(raised)?.transpose()
    }

    /// Makes a change, without the interpreter's lock if that may take long.
    #[inline]
    fn change<R: Send>(
        &self,
        py: Python<'_>,
        bytes: usize,
        change: impl FnOnce(&evermap::Map) -> evermap::Result<R> + Send,
    ) -> PyResult<R> {
        let map = self.open(py)?;
        let map = map.map();
        let done = match self.waits || bytes >= LONG {
            true => py.detach(|| change(map)),
            false => change(map),
        };
        done.map_err(raised)
    }

    fn scan_of(
        &self,
        py: Python<'_>,
        range: KeyRange,
        reverse: bool,
        limit: Option<u64>,
    ) -> PyResult<Cursor> {
        let walk = Walk::Scan { range, reverse, limit: limit.unwrap_or(u64::MAX) };
        self.cursor(py, walk, Shown::Pairs)
    }

    fn cursor(&self, py: Python<'_>, walk: Walk, shown: Shown) -> PyResult<Cursor> {
        let map = self.open(py)?;
        // The first scan after opening may wait until the order is built.
        let pairs = py.detach(|| map.pairs(walk)).map_err(raised)?;
        Ok(Cursor::new(pairs, shown, self.keys, self.values))
    }

    /// Returns the range from `start` to before `stop`.
    fn range(
        &self,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<KeyRange> {
        let key = |end: &Bound<'_, PyAny>| Ok::<_, PyErr>(self.encode_key(end)?.into_owned());
        let start = start.map(key).transpose()?.map_or(End::Unbounded, End::Included);
        let stop = stop.map(key).transpose()?.map_or(End::Unbounded, End::Excluded);
        Ok(KeyRange::new(start, stop))
    }

    fn pair<'py>(
        &self,
        py: Python<'py>,
        pair: Option<(Vec<u8>, Vec<u8>)>,
    ) -> PyResult<Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
        let Some((key, value)) = pair else { return Ok(None) };
        Ok(Some((self.keys.decode(py, &key)?, self.values.decode(py, &value)?)))
    }
}

/// A value, its version, its flags, and the seconds that it has to live.
type ItemParts<'py> = (Bound<'py, PyAny>, u64, u32, Option<f64>);

/// Returns the key and the value of a pair of any kind.
fn two<'py>(pair: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    if let Ok(pair) = pair.cast::<PyTuple>()
        && pair.len() == 2
    {
        return Ok((pair.get_item(0)?, pair.get_item(1)?));
    }
    let items = pair.try_iter()?.take(3).collect::<PyResult<Vec<_>>>()?;
    match <[_; 2]>::try_from(items) {
        Ok([key, value]) => Ok((key, value)),
        Err(_) => Err(PyValueError::new_err("update needs pairs of a key and a value")),
    }
}

/// Stores records. If some cannot be, returns the first error, and stores the others.
fn store_all(map: &evermap::Map, records: &[NewRecord<'_>]) -> evermap::Result<()> {
    let mut result = Ok(());
    map.cache().set_many(records, |_, stored| {
        if result.is_ok() {
            result = stored.map(drop);
        }
    });
    result
}

/// Returns what is stored beside a value that lives for `ttl` seconds.
pub(crate) fn meta(map: &evermap::Map, ttl: Option<f64>, flags: u32) -> PyResult<Meta> {
    Ok(Meta::new().with_flags(flags).with_expiry(expiry(map, ttl)?))
}

/// Returns when something expires that lives for `ttl` seconds by the clock of the store.
fn expiry(map: &evermap::Map, ttl: Option<f64>) -> PyResult<Expiry> {
    let Some(ttl) = ttl else { return Ok(Expiry::NEVER) };
    if ttl.is_nan() {
        return Err(PyValueError::new_err("ttl is not a number"));
    }
    if ttl <= 0.0 {
        // It has expired.
        return Ok(Expiry::from(UNIX_EPOCH + Duration::from_secs(1)));
    }
    // Whole seconds, by a clock that shows whole seconds: never too early.
    let at =
        Duration::try_from_secs_f64(ttl.ceil()).ok().and_then(|ttl| map.now().checked_add(ttl));
    match at {
        Some(at) => Ok(Expiry::from(at)),
        None => Err(PyValueError::new_err(format!("ttl of {ttl} seconds is too long"))),
    }
}

fn seconds_left(map: &evermap::Map, at: Option<SystemTime>) -> Option<f64> {
    at.map(|at| at.duration_since(map.now()).map_or(0.0, |left| left.as_secs_f64()))
}

#[pymethods]
impl Map {
    #[new]
    #[pyo3(signature = (store, name, create, text_keys, text_values, waits))]
    fn new(
        py: Python<'_>,
        store: &Store,
        name: Option<&str>,
        create: bool,
        text_keys: bool,
        text_values: bool,
        waits: bool,
    ) -> PyResult<Self> {
        let opened = store.get(py)?;
        let map = py.detach(|| opened.map(name, create)).map_err(raised)?;
        let (keys, values) = (Coding::new(text_keys), Coding::new(text_values));
        Ok(Map { map: store.slot(map), name: name.map(Into::into), keys, values, waits })
    }

    /// The name of the map; `None` for the default map.
    #[getter(name)]
    fn get_name(&self) -> Option<&str> {
        self.name()
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match self.find(key)? {
            Some(value) => Ok(value),
            None => Err(PyKeyError::new_err(key.clone().unbind())),
        }
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = key.py();
        let (key, value) = (self.encode_key(key)?, self.encode_value(value)?);
        self.change(py, value.len(), |map| map.put(&key, &value))
    }

    fn __delitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = self.encode_key(key)?;
        match self.change(key.py(), 0, |map| map.delete(&bytes))? {
            true => Ok(()),
            false => Err(PyKeyError::new_err(key.clone().unbind())),
        }
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let map = self.open(key.py())?;
        let key = self.encode_key(key)?;
        map.map().contains(&key).map_err(raised)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let map = self.open(py)?;
        let mut records = map.map().records();
        if !records.exact {
            // After a kill, they are counted in the background, and here without waiting for that.
            py.detach(|| map.store().recover()).map_err(raised)?;
            records = map.map().records();
        }
        Ok(records.value as usize)
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(!self.open(py)?.map().is_empty().map_err(raised)?)
    }

    fn __iter__(&self, py: Python<'_>) -> PyResult<Cursor> {
        self.cursor(py, Walk::Keys, Shown::Keys)
    }

    /// Walks over all values, or pairs, in no order.
    fn _walk(&self, py: Python<'_>, pairs: bool) -> PyResult<Cursor> {
        self.cursor(py, Walk::All, if pairs { Shown::Pairs } else { Shown::Values })
    }

    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.find(key)?.or(default))
    }

    #[pyo3(signature = (keys, default=None))]
    fn get_many<'py>(
        &self,
        keys: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let py = keys.py();
        let keys: Vec<Bound<'py, PyAny>> = match keys.cast::<PyList>() {
            Ok(list) => list.iter().collect(),
            Err(_) => keys.try_iter()?.collect::<PyResult<_>>()?,
        };
        let encoded = keys.iter().map(|key| self.encode_key(key)).collect::<PyResult<Vec<_>>>()?;
        let default = default.unwrap_or_else(|| py.None().into_bound(py));
        let (mut values, mut failed) = (Vec::with_capacity(keys.len()), None);
        self.open(py)?
            .map()
            .cache()
            .find_many(&encoded, |at, record| {
                let value = record.map_err(raised).and_then(|record| self.values.read(py, &record));
                // Those that are absent are not shown.
                values.resize(at, default.clone());
                match value {
                    Ok(value) => values.push(value),
                    Err(error) => failed = Some(error),
                }
                if failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .map_err(raised)?;
        if let Some(error) = failed {
            return Err(error);
        }
        values.resize(keys.len(), default);
        PyList::new(py, values)
    }

    /// Returns a `memoryview` of the value where it is stored, if the store lends its values, and
    /// of a copy otherwise; `None` if the key is absent.
    fn view<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyMemoryView>>> {
        let py = key.py();
        let map = self.open(py)?;
        let Some(held) = map.hold(&self.encode_key(key)?).map_err(raised)? else {
            return Ok(None);
        };
        let held = Bound::new(py, Held(held))?.into_any();
        PyMemoryView::from(&held).map(Some)
    }

    /// Returns the value, its version, its flags, and the seconds that it has to live.
    fn _item<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Option<ItemParts<'py>>> {
        let py = key.py();
        let key = self.encode_key(key)?;
        let map = self.open(py)?;
        let found = map.map().get_with(&key, |item| {
            let left = seconds_left(map.map(), item.expires_at());
            Ok((self.values.decode(py, item.value)?, item.cas, item.flags, left))
        });
        found.map_err(raised)?.transpose()
    }

    /// Stores a value. `when` is 0 for always, 1 for if absent, 2 for if present. Returns the
    /// version, if something was stored.
    fn _set(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        ttl: Option<f64>,
        flags: u32,
        when: u8,
    ) -> PyResult<Option<u64>> {
        let py = key.py();
        let meta = meta(self.open(py)?.map(), ttl, flags)?;
        let (key, value) = (self.encode_key(key)?, self.encode_value(value)?);
        self.change(py, value.len(), |map| {
            let set = map.set(&key).meta(meta);
            match when {
                0 => set.put(&value).map(Some),
                1 => set.try_insert(&value).map(Outcome::stored),
                _ => set.replace(&value).map(Outcome::stored),
            }
        })
    }

    /// Stores a value if the record has this version. Returns the new one, if it was stored.
    fn _exchange(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        version: u64,
        ttl: Option<f64>,
        flags: u32,
    ) -> PyResult<Option<u64>> {
        let py = key.py();
        let meta = meta(self.open(py)?.map(), ttl, flags)?;
        let (key, value) = (self.encode_key(key)?, self.encode_value(value)?);
        self.change(py, value.len(), |map| {
            map.set(&key).meta(meta).compare_exchange(version, &value).map(Outcome::stored)
        })
    }

    /// Removes a key. Returns whether it was there; with a version, whether it had that.
    #[pyo3(signature = (key, version=None))]
    fn delete(&self, key: &Bound<'_, PyAny>, version: Option<u64>) -> PyResult<bool> {
        let bytes = self.encode_key(key)?;
        self.change(key.py(), 0, |map| match version {
            None => map.delete(&bytes),
            Some(version) => map.remove_if(&bytes, version).map(Outcome::changed),
        })
    }

    /// Removes a key, and returns its value, or `None`.
    fn _pop<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = key.py();
        let key = self.encode_key(key)?;
        let value = self.change(py, 0, |map| map.remove(&key))?;
        value.map(|value| self.values.decode(py, &value)).transpose()
    }

    fn setdefault<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = key.py();
        let (key, value) = (self.encode_key(key)?, self.encode_value(default)?);
        let value = self.change(py, value.len(), |map| map.get_or_insert(&key, &value))?;
        self.values.decode(py, &value)
    }

    #[pyo3(signature = (key, delta=1))]
    fn incr(&self, key: &Bound<'_, PyAny>, delta: i64) -> PyResult<i64> {
        let bytes = self.encode_key(key)?;
        let before = self.change(key.py(), 0, |map| map.fetch_add(&bytes, delta))?;
        // The sum fits, or there was an error.
        Ok(before.wrapping_add(delta))
    }

    fn append(&self, key: &Bound<'_, PyAny>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = key.py();
        let (key, data) = (self.encode_key(key)?, self.encode_value(data)?);
        self.change(py, data.len(), |map| map.append(&key, &data)).map(drop)
    }

    /// Returns the seconds that a key has to live, or `None` if it does not expire.
    fn ttl(&self, key: &Bound<'_, PyAny>) -> PyResult<Option<f64>> {
        let map = self.open(key.py())?;
        let bytes = self.encode_key(key)?;
        match map.map().get_with(&bytes, |item| item.expires_at()).map_err(raised)? {
            Some(expires_at) => Ok(seconds_left(map.map(), expires_at)),
            None => Err(PyKeyError::new_err(key.clone().unbind())),
        }
    }

    #[pyo3(signature = (key, ttl))]
    fn expire(&self, key: &Bound<'_, PyAny>, ttl: Option<f64>) -> PyResult<bool> {
        let expiry = expiry(self.open(key.py())?.map(), ttl)?;
        let bytes = self.encode_key(key)?;
        self.change(key.py(), 0, |map| map.touch(&bytes, expiry))
    }

    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.change(py, 0, evermap::Map::clear)
    }

    /// Stores many pairs, each for itself: with a log, they share syncs.
    #[pyo3(signature = (other=None, /, *, ttl=None, **pairs))]
    fn _update(
        &self,
        py: Python<'_>,
        other: Option<&Bound<'_, PyAny>>,
        ttl: Option<f64>,
        pairs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let map = self.open(py)?;
        let meta = meta(map.map(), ttl, 0)?;
        let fast = self.without_waiting(map.store().db())?;
        let mut group: Vec<(Bound<'_, PyAny>, Bound<'_, PyAny>)> = Vec::with_capacity(GROUP);
        let mut add = |key, value| {
            group.push((key, value));
            if group.len() < GROUP { Ok(()) } else { self.store_group(py, &fast, &mut group, meta) }
        };
        if let Some(other) = other {
            if let Ok(dict) = other.cast::<PyDict>() {
                for (key, value) in dict.iter() {
                    add(key, value)?;
                }
            } else if other.cast::<PyMapping>().is_ok() || other.hasattr("keys")? {
                for key in other.call_method0("keys")?.try_iter()? {
                    let key = key?;
                    let value = other.get_item(&key)?;
                    add(key, value)?;
                }
            } else {
                for pair in other.try_iter()? {
                    let (key, value) = two(&pair?)?;
                    add(key, value)?;
                }
            }
        }
        for (key, value) in pairs.into_iter().flatten() {
            add(key, value)?;
        }
        self.store_group(py, &fast, &mut group, meta)?;
        if self.waits {
            py.detach(|| map.store().db().sync()).map_err(raised)?;
        }
        Ok(())
    }

    #[pyo3(signature = (start=None, stop=None, *, reverse=false, limit=None))]
    fn scan(
        &self,
        py: Python<'_>,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
        reverse: bool,
        limit: Option<u64>,
    ) -> PyResult<Cursor> {
        self.scan_of(py, self.range(start, stop)?, reverse, limit)
    }

    #[pyo3(signature = (prefix, *, reverse=false, limit=None))]
    fn prefix(
        &self,
        prefix: &Bound<'_, PyAny>,
        reverse: bool,
        limit: Option<u64>,
    ) -> PyResult<Cursor> {
        let range = KeyRange::prefix(self.encode_key(prefix)?);
        self.scan_of(prefix.py(), range, reverse, limit)
    }

    #[pyo3(signature = (start=None, stop=None))]
    fn remove_range(
        &self,
        py: Python<'_>,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let range = self.range(start, stop)?;
        let map = self.open(py)?;
        py.detach(|| map.map().remove_range(range)).map_err(raised)
    }

    fn remove_prefix(&self, prefix: &Bound<'_, PyAny>) -> PyResult<u64> {
        let bytes = self.encode_key(prefix)?;
        let map = self.open(prefix.py())?;
        prefix.py().detach(|| map.map().remove_prefix(&bytes)).map_err(raised)
    }

    fn first<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
        let map = self.open(py)?;
        self.pair(py, py.detach(|| map.map().first()).map_err(raised)?)
    }

    fn last<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
        let map = self.open(py)?;
        self.pair(py, py.detach(|| map.map().last()).map_err(raised)?)
    }

    fn pop_first<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
        let map = self.open(py)?;
        self.pair(py, py.detach(|| map.map().pop_first()).map_err(raised)?)
    }

    fn pop_last<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
        let map = self.open(py)?;
        self.pair(py, py.detach(|| map.map().pop_last()).map_err(raised)?)
    }

    fn stat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stat = self.open(py)?.map().stat();
        let dict = PyDict::new(py);
        dict.set_item("path", stat.path)?;
        dict.set_item("durability", stat.durability.to_string())?;
        dict.set_item("records", stat.records.value)?;
        dict.set_item("records_exact", stat.records.exact)?;
        dict.set_item("record_bytes", stat.record_bytes.value)?;
        dict.set_item("file_bytes", stat.file_bytes)?;
        dict.set_item("memory_used", stat.memory_used)?;
        dict.set_item("memory_limit", stat.memory_limit)?;
        dict.set_item("evictions", stat.evictions)?;
        dict.set_item("generation", stat.generation)?;
        dict.set_item("clean_open", stat.clean_open)?;
        dict.set_item("index", stat.index.to_string())?;
        Ok(dict)
    }
}

impl Map {
    /// Returns a handle of the map that does not wait for the log.
    fn without_waiting(&self, db: &evermap::Evermap) -> PyResult<evermap::Map> {
        let db = db.without_waiting();
        match self.name() {
            None => Ok(db.default_map()),
            Some(name) => db.map(name, evermap::MapOptions::new().create(false)).map_err(raised),
        }
    }

    /// Stores pairs, and empties the list of them.
    fn store_group(
        &self,
        py: Python<'_>,
        map: &evermap::Map,
        group: &mut Vec<(Bound<'_, PyAny>, Bound<'_, PyAny>)>,
        meta: Meta,
    ) -> PyResult<()> {
        // A wrong type is reported after what came before it was stored, as by a `dict`.
        let (mut pairs, mut failed) = (Vec::with_capacity(group.len()), None);
        for (key, value) in group.iter() {
            match (self.encode_key(key), self.encode_value(value)) {
                (Ok(key), Ok(value)) => pairs.push((key, value)),
                (Err(error), _) | (_, Err(error)) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        let records: Vec<_> =
            pairs.iter().map(|(key, value)| NewRecord { key, value, meta }).collect();
        let store = || records.chunks(BATCH_KEYS).try_for_each(|records| store_all(map, records));
        let stored =
            if pairs.len() < GROUP / 8 && !self.waits { store() } else { py.detach(store) };
        drop(records);
        drop(pairs);
        group.clear();
        stored.map_err(raised)?;
        failed.map_or(Ok(()), Err)
    }
}
