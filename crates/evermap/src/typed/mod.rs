//! Maps with keys and values of Rust types.

mod key;

use std::any::type_name;
use std::borrow::Borrow;
use std::fmt;
use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::ops::{Bound, ControlFlow, RangeBounds};

use evermap_pm::Medium;
use evermap_pm::medium::Mapped;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::counted;
use crate::{Batch, Edit, Error, Expiry, Item, Iter, KeyRange, Map, Outcome, Result, Scan, Set};

pub use key::{DecodeKey, EncodeKey};

impl<M: Medium> Map<M> {
    /// Returns a view of this map with keys of type `K` and values of type `V`; see [`TypedMap`].
    /// O(1).
    pub fn typed<K, V>(&self) -> TypedMap<K, V, M> {
        TypedMap { map: self.clone(), types: PhantomData }
    }
}

/// A map with keys of type `K` and values of type `V`: a view of a map of bytes.
///
/// Needs the feature `serde`. Keys are encoded by [`EncodeKey`], which keeps their order. Values
/// are encoded by [`serde`] in the [format of
/// `postcard`](https://postcard.jamesmunns.com/wire-format) 1, which is small, stable, and does not
/// describe itself: what is stored has to be read as the type as which it was written. Fields and
/// variants may be renamed, and variants added at the end; every other change of a type is a new
/// format, for which an `enum` of versions is one way.
///
/// The types are not stored. Bytes that are not of the type are an error where they are met,
/// [`Error::Undecodable`], and do not keep others from being read. All that this view lacks can
/// be done to the [map](TypedMap::map) itself.
///
/// ```
/// use evermap::{Evermap, Options, TypedMap};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize)]
/// struct User { name: String, age: Option<u8> }
///
/// let map = Evermap::in_memory(Options::new().ordered(true))?.default_map();
/// let users: TypedMap<u32, User> = map.typed();
/// users.put(&7, &User { name: "ann".into(), age: None })?;
/// users.put(&70, &User { name: "bob".into(), age: Some(33) })?;
/// assert_eq!(users.get(&7)?.unwrap().name, "ann");
/// let (key, last) = users.range(8..)?.next().unwrap()?;
/// assert_eq!((key, last.age), (70, Some(33)));
/// # Ok::<(), evermap::Error>(())
/// ```
pub struct TypedMap<K, V, M: Medium = Mapped> {
    map: Map<M>,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V, M: Medium> Clone for TypedMap<K, V, M> {
    fn clone(&self) -> Self {
        self.map.typed()
    }
}

impl<K, V, M: Medium> fmt::Debug for TypedMap<K, V, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedMap")
            .field("map", &self.map.name())
            .field("key", &type_name::<K>())
            .field("value", &type_name::<V>())
            .finish()
    }
}

impl<K, V, M: Medium> TypedMap<K, V, M> {
    /// Returns the map of bytes.
    pub fn map(&self) -> &Map<M> {
        &self.map
    }
}

impl<K: DecodeKey, V: Serialize + DeserializeOwned, M: Medium> TypedMap<K, V, M> {
    /// Returns the value of `key`, or `None` if the key is absent. Expected O(length of the value).
    ///
    /// ```
    /// # use evermap::{Evermap, Options, TypedMap};
    /// # let map = Evermap::in_memory(Options::new())?.default_map();
    /// let names: TypedMap<String, (u8, f32)> = map.typed();
    /// names.put("pi", &(3, 3.14))?;
    /// assert_eq!(names.get("pi")?, Some((3, 3.14)));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Undecodable`] if the value is not of type `V`; and see [`Map`].
    pub fn get<Q: EncodeKey + ?Sized>(&self, key: &Q) -> Result<Option<V>>
    where
        K: Borrow<Q>,
    {
        let key = encoded(key);
        let Some(value) = self.map.get(&key)? else { return Ok(None) };
        decoded_value(&key, &value).map(Some)
    }

    /// Returns the value of each of these keys, or `None` for those that are absent, in one pass
    /// over the index: faster than one [`get`](TypedMap::get) after the other. Expected O(keys +
    /// length of the values).
    ///
    /// ```
    /// # use evermap::{Evermap, Options, TypedMap};
    /// # let map = Evermap::in_memory(Options::new())?.default_map();
    /// let names: TypedMap<u32, String> = map.typed();
    /// names.put(&7, &"ann".into())?;
    /// assert_eq!(names.get_many(&[7, 8])?, [Some("ann".into()), None]);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`get`](TypedMap::get): the first error.
    pub fn get_many<Q: EncodeKey>(&self, keys: &[Q]) -> Result<Vec<Option<V>>>
    where
        K: Borrow<Q>,
    {
        let keys: Vec<_> = keys.iter().map(encoded).collect();
        let mut values: Vec<_> = keys.iter().map(|_| None).collect();
        let mut failed = Ok(());
        self.map.get_many(&keys, |at, item| {
            match item.and_then(|item| decoded_value(&keys[at], item.value)) {
                Ok(value) => values[at] = Some(value),
                Err(error) => failed = Err(error),
            }
            if failed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        failed.map(|()| values)
    }

    /// Returns whether `key` is present. Does not look at the value. Expected O(1).
    ///
    /// # Errors
    /// See [`Map`].
    pub fn contains<Q: EncodeKey + ?Sized>(&self, key: &Q) -> Result<bool>
    where
        K: Borrow<Q>,
    {
        self.map.contains(encoded(key))
    }

    /// Binds `key` to `value`, whatever was there. Expected O(length of the value).
    ///
    /// # Errors
    /// [`Error::Unencodable`] if `value` refuses to be serialized; and see [`Map`]. Nothing has
    /// changed then.
    pub fn put<Q: EncodeKey + ?Sized>(&self, key: &Q, value: &V) -> Result<()>
    where
        K: Borrow<Q>,
    {
        self.set(key).put(value).map(drop)
    }

    /// Begins to store a value with flags or an expiry: see [`TypedSet`].
    ///
    /// ```
    /// use std::time::Duration;
    /// # use evermap::{Evermap, Options, TypedMap};
    /// # let map = Evermap::in_memory(Options::new())?.default_map();
    /// let sessions: TypedMap<u64, String> = map.typed();
    /// sessions.set(&7).expires(Duration::from_secs(3600)).put(&"ann".into())?;
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn set<Q: EncodeKey + ?Sized>(&self, key: &Q) -> TypedSet<'_, V, M>
    where
        K: Borrow<Q>,
    {
        TypedSet { set: self.map.set(encoded(key)), value: PhantomData }
    }

    /// Binds `key` to `value` if it is absent: see [`Map::try_insert`].
    ///
    /// ```
    /// # use evermap::{Evermap, Options, TypedMap};
    /// # let map = Evermap::in_memory(Options::new())?.default_map();
    /// let owners: TypedMap<String, u32> = map.typed();
    /// assert!(owners.try_insert("lock", &1)?.changed());
    /// assert!(!owners.try_insert("lock", &2)?.changed());
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`put`](TypedMap::put).
    pub fn try_insert<Q: EncodeKey + ?Sized>(&self, key: &Q, value: &V) -> Result<Outcome>
    where
        K: Borrow<Q>,
    {
        self.set(key).try_insert(value)
    }

    /// Returns the value of `key` with its CAS id, for
    /// [`compare_exchange`](TypedMap::compare_exchange), or `None` if the key is absent.
    ///
    /// # Errors
    /// See [`get`](TypedMap::get).
    pub fn get_with_cas<Q: EncodeKey + ?Sized>(&self, key: &Q) -> Result<Option<(V, u64)>>
    where
        K: Borrow<Q>,
    {
        let key = encoded(key);
        let read = |item: Item<'_>| Ok((decoded_value(&key, item.value)?, item.cas));
        self.map.get_with(&key, read)?.transpose()
    }

    /// Binds `key` to `value` if its record has this CAS id: see [`Map::compare_exchange`].
    ///
    /// ```
    /// # use evermap::{Evermap, Options, TypedMap};
    /// # let map = Evermap::in_memory(Options::new())?.default_map();
    /// let counts: TypedMap<String, u32> = map.typed();
    /// counts.put("visits", &1)?;
    /// let (count, cas) = counts.get_with_cas("visits")?.unwrap();
    /// assert!(counts.compare_exchange("visits", cas, &(count + 1))?.changed());
    /// assert!(!counts.compare_exchange("visits", cas, &(count + 1))?.changed());
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`put`](TypedMap::put).
    pub fn compare_exchange<Q: EncodeKey + ?Sized>(
        &self,
        key: &Q,
        cas: u64,
        value: &V,
    ) -> Result<Outcome>
    where
        K: Borrow<Q>,
    {
        self.set(key).compare_exchange(cas, value)
    }

    /// Binds `key` to what `edit` makes of its value, or of `None` if it is absent; removes it if
    /// `edit` returns `None`. The expiry stays. Other threads see the old value or the new one;
    /// `edit` may be called again if one of them was faster: see [`Map::modify`].
    ///
    /// ```
    /// # use evermap::{Evermap, Options, TypedMap};
    /// # let map = Evermap::in_memory(Options::new())?.default_map();
    /// let visits: TypedMap<String, u64> = map.typed();
    /// for _ in 0..3 {
    ///     visits.modify("/", |count| Some(count.unwrap_or(0) + 1))?;
    /// }
    /// assert_eq!(visits.get("/")?, Some(3));
    /// visits.modify("/", |_| None)?;
    /// assert_eq!(visits.get("/")?, None);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Undecodable`] if the value is not of type `V`, [`Error::Unencodable`] if the new
    /// one refuses to be serialized; nothing has changed then. And see [`Map`].
    pub fn modify<Q: EncodeKey + ?Sized>(
        &self,
        key: &Q,
        mut edit: impl FnMut(Option<V>) -> Option<V>,
    ) -> Result<()>
    where
        K: Borrow<Q>,
    {
        let key = encoded(key);
        let mut failed = Ok(());
        self.map.modify(&key, |item| {
            failed = Ok(());
            let before = item.map(|item| decoded_value(&key, item.value)).transpose();
            let edited = before.and_then(|before| {
                let Some(after) = edit(before) else { return Ok(Edit::Remove) };
                encoded_value(&key, &after).map(Edit::Value)
            });
            edited.unwrap_or_else(|error| {
                failed = Err(error);
                Edit::Keep
            })
        })?;
        failed
    }

    /// Removes `key`, and returns the value that it had, or `None` if it was absent.
    ///
    /// # Errors
    /// See [`get`](TypedMap::get) and [`Map::remove`]. The key is removed even if its value is not
    /// of type `V`.
    pub fn remove<Q: EncodeKey + ?Sized>(&self, key: &Q) -> Result<Option<V>>
    where
        K: Borrow<Q>,
    {
        let key = encoded(key);
        self.map.remove(&key)?.map(|value| decoded_value(&key, &value)).transpose()
    }

    /// Adds to `batch` that `key` is bound to `value`. A batch that names maps is
    /// [applied](crate::Evermap::apply) to the file, any other to [this map](Map::apply).
    ///
    /// ```
    /// use evermap::Batch;
    /// # use evermap::{Evermap, MapOptions, Options, TypedMap};
    /// # let db = Evermap::in_memory(Options::new())?;
    /// let jobs: TypedMap<u64, String> = db.map("jobs", MapOptions::new())?.typed();
    /// let done: TypedMap<u64, u32> = db.map("done", MapOptions::new())?.typed();
    /// jobs.put(&7, &"sweep".into())?;
    /// let mut batch = Batch::new();
    /// jobs.remove_in(&mut batch, &7);
    /// done.put_in(&mut batch, &7, &1)?;
    /// assert!(db.apply(&batch)?.is_done());
    /// assert_eq!((jobs.get(&7)?, done.get(&7)?), (None, Some(1)));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unencodable`] if `value` refuses to be serialized.
    pub fn put_in<Q: EncodeKey + ?Sized>(&self, batch: &mut Batch, key: &Q, value: &V) -> Result<()>
    where
        K: Borrow<Q>,
    {
        let key = encoded(key);
        let value = encoded_value(&key, value)?;
        batch.in_map(self.map.name()).put(&key, value);
        Ok(())
    }

    /// Adds to `batch` that `key` is removed: see [`put_in`](TypedMap::put_in).
    pub fn remove_in<Q: EncodeKey + ?Sized>(&self, batch: &mut Batch, key: &Q)
    where
        K: Borrow<Q>,
    {
        batch.in_map(self.map.name()).remove(encoded(key));
    }

    /// Returns the number of keys: see [`Map::len`].
    #[allow(clippy::len_without_is_empty)] // it can fail
    pub fn len(&self) -> u64 {
        self.map.len()
    }

    /// Returns `true` if no key is present: see [`Map::is_empty`].
    ///
    /// # Errors
    /// See [`Map::is_empty`].
    pub fn is_empty(&self) -> Result<bool> {
        self.map.is_empty()
    }

    /// Removes `key`, and does not look at its value. Returns `true` if it was present. Expected
    /// O(1).
    ///
    /// # Errors
    /// See [`Map`].
    pub fn delete<Q: EncodeKey + ?Sized>(&self, key: &Q) -> Result<bool>
    where
        K: Borrow<Q>,
    {
        self.map.delete(encoded(key))
    }

    /// Returns all keys and values, in no particular order; see [`Map::iter`].
    ///
    /// ```
    /// # use evermap::{Evermap, Options, TypedMap};
    /// # let map = Evermap::in_memory(Options::new())?.default_map();
    /// let squares: TypedMap<u64, u64> = map.typed();
    /// (0..10).try_for_each(|number| squares.put(&number, &(number * number)))?;
    /// let sum: u64 = squares.iter().map(|pair| pair.map_or(0, |(_, square)| square)).sum();
    /// assert_eq!(sum, 285);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn iter(&self) -> TypedIter<Iter<'_, M>, K, V> {
        TypedIter { pairs: self.map.iter(), types: PhantomData }
    }

    /// Returns the keys in `keys` with their values, in ascending order; see [`Map::scan`]. Needs
    /// [`Options::ordered`](crate::Options::ordered).
    ///
    /// ```
    /// # use evermap::{Evermap, Options, TypedMap};
    /// # let map = Evermap::in_memory(Options::new().ordered(true))?.default_map();
    /// let names: TypedMap<i32, String> = map.typed();
    /// for number in [-10, -1, 0, 1, 10] {
    ///     names.put(&number, &number.to_string())?;
    /// }
    /// let keys: Vec<_> = names.range(-5..=1)?.map(|pair| pair.unwrap().0).collect();
    /// assert_eq!(keys, [-1, 0, 1]);
    /// let (last, _) = names.range(..)?.reverse().next().unwrap()?;
    /// assert_eq!(last, 10);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map::scan`].
    pub fn range(&self, keys: impl RangeBounds<K>) -> Result<TypedIter<Scan<'_, M>, K, V>> {
        let bytes = |bound: Bound<&K>| bound.map(encoded);
        let range = KeyRange::new(bytes(keys.start_bound()), bytes(keys.end_bound()));
        Ok(TypedIter { pairs: self.map.scan(range)?, types: PhantomData })
    }

    /// Returns the keys whose first elements are those of `prefix`, a shorter tuple, with their
    /// values, in ascending order; see [`Map::scan_prefix`].
    ///
    /// ```
    /// # use evermap::{Evermap, Options, TypedMap};
    /// # let map = Evermap::in_memory(Options::new().ordered(true))?.default_map();
    /// let orders: TypedMap<(String, u32), f64> = map.typed();
    /// orders.put(&("ann".to_owned(), 1), &9.5)?;
    /// orders.put(&("ann".to_owned(), 2), &0.5)?;
    /// orders.put(&("anna".to_owned(), 3), &7.0)?;
    /// assert_eq!(orders.prefix(&("ann",))?.count(), 2);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map::scan`].
    pub fn prefix(&self, prefix: &impl EncodeKey) -> Result<TypedIter<Scan<'_, M>, K, V>> {
        let pairs = self.map.scan_prefix(encoded(prefix))?;
        Ok(TypedIter { pairs, types: PhantomData })
    }
}

/// A value that is to be stored, with its flags and its expiry: see [`TypedMap::set`]. Like
/// [`Set`], it ends with the operation that stores the value.
#[must_use = "nothing is stored before the operation that comes last"]
pub struct TypedSet<'m, V, M: Medium = Mapped> {
    set: Set<'m, Vec<u8>, M>,
    value: PhantomData<fn(V)>,
}

impl<V: Serialize, M: Medium> TypedSet<'_, V, M> {
    /// Sets when the record expires: see [`Set::expires`].
    pub fn expires(mut self, expiry: impl Into<Expiry>) -> Self {
        self.set = self.set.expires(expiry);
        self
    }

    /// Sets the flags: see [`Set::flags`].
    pub fn flags(mut self, flags: u32) -> Self {
        self.set = self.set.flags(flags);
        self
    }

    /// Binds the key to `value`, whether or not it is present. Returns the CAS id of the new
    /// record.
    ///
    /// # Errors
    /// See [`TypedMap::put`].
    pub fn put(self, value: &V) -> Result<u64> {
        let value = self.encoded(value)?;
        self.set.put(value)
    }

    /// Binds the key to `value` if it is absent: see [`Map::try_insert`].
    ///
    /// # Errors
    /// See [`TypedMap::put`].
    pub fn try_insert(self, value: &V) -> Result<Outcome> {
        let value = self.encoded(value)?;
        self.set.try_insert(value)
    }

    /// Binds the key to `value` if it is present: see [`Map::replace`].
    ///
    /// # Errors
    /// See [`TypedMap::put`].
    pub fn replace(self, value: &V) -> Result<Outcome> {
        let value = self.encoded(value)?;
        self.set.replace(value)
    }

    /// Binds the key to `value` if its record has this CAS id: see [`Map::compare_exchange`].
    ///
    /// # Errors
    /// See [`TypedMap::put`].
    pub fn compare_exchange(self, cas: u64, value: &V) -> Result<Outcome> {
        let value = self.encoded(value)?;
        self.set.compare_exchange(cas, value)
    }

    fn encoded(&self, value: &V) -> Result<Vec<u8>> {
        encoded_value(self.set.key(), value)
    }
}

/// Keys and values, decoded: see [`TypedMap::iter`] and [`TypedMap::range`].
pub struct TypedIter<I, K, V> {
    pairs: I,
    types: PhantomData<fn() -> (K, V)>,
}

impl<M: Medium, K, V> TypedIter<Scan<'_, M>, K, V> {
    /// Returns the same keys in the opposite order.
    pub fn reverse(self) -> Self {
        TypedIter { pairs: self.pairs.reverse(), types: PhantomData }
    }
}

impl<I, K, V> Iterator for TypedIter<I, K, V>
where
    I: Iterator<Item = Result<(Vec<u8>, Vec<u8>)>>,
    K: DecodeKey,
    V: DeserializeOwned,
{
    type Item = Result<(K, V)>;

    /// Returns the next pair. If one cannot be read or is not of these types, returns the error,
    /// and then what comes next.
    fn next(&mut self) -> Option<Self::Item> {
        let decoded = |(key, value): (Vec<u8>, Vec<u8>)| {
            Ok((decoded_key(&key)?, decoded_value(&key, &value)?))
        };
        Some(self.pairs.next()?.and_then(decoded))
    }
}

impl<I, K, V> FusedIterator for TypedIter<I, K, V>
where
    I: FusedIterator<Item = Result<(Vec<u8>, Vec<u8>)>>,
    K: DecodeKey,
    V: DeserializeOwned,
{
}

fn encoded<K: EncodeKey + ?Sized>(key: &K) -> Vec<u8> {
    let mut bytes = Vec::new();
    key.encode_key(&mut bytes);
    bytes
}

fn encoded_value<V: Serialize>(key: &[u8], value: &V) -> Result<Vec<u8>> {
    postcard::to_stdvec(value)
        .map_err(|error| Error::unencodable(key, type_name::<V>(), error.to_string()))
}

fn decoded_key<K: DecodeKey>(bytes: &[u8]) -> Result<K> {
    let mut rest = bytes;
    let key = K::decode_key(&mut rest).filter(|_| rest.is_empty());
    key.ok_or_else(|| {
        Error::undecodable(bytes, "key", type_name::<K>(), "no key has these bytes".into())
    })
}

fn decoded_value<V: DeserializeOwned>(key: &[u8], bytes: &[u8]) -> Result<V> {
    let refused = |why| Error::undecodable(key, "value", type_name::<V>(), why);
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(refused(format!("{} left over", counted(rest.len() as u64, "byte")))),
        Err(error) => Err(refused(error.to_string())),
    }
}
