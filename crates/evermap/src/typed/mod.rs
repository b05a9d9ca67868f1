//! Maps with keys and values of Rust types.

mod key;

use std::any::type_name;
use std::borrow::Borrow;
use std::fmt;
use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use evermap_pm::Medium;
use evermap_pm::medium::Mapped;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::counted;
use crate::{Error, Iter, KeyRange, Map, Result, Scan};

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
/// [`Error::Undecodable`], and do not keep others from being read. All that this view lacks, as
/// batches and expiry, can be done to the [map](TypedMap::map) itself.
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

    /// Returns whether `key` is present. Does not look at the value. Expected O(1).
    ///
    /// # Errors
    /// See [`Map`].
    pub fn contains<Q: EncodeKey + ?Sized>(&self, key: &Q) -> Result<bool>
    where
        K: Borrow<Q>,
    {
        self.map.contains(&encoded(key))
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
        let key = encoded(key);
        let value = postcard::to_stdvec(value)
            .map_err(|error| Error::unencodable(&key, type_name::<V>(), error.to_string()))?;
        self.map.put(&key, &value)
    }

    /// Removes `key`; returns whether it was present. Expected O(1).
    ///
    /// # Errors
    /// See [`Map`].
    pub fn remove<Q: EncodeKey + ?Sized>(&self, key: &Q) -> Result<bool>
    where
        K: Borrow<Q>,
    {
        self.map.remove(&encoded(key))
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
