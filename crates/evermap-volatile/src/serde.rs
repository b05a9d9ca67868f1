//! Serialization as a map, behind the feature `serde`.

use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::map::VolatileMap;
use crate::pinned::{Pinned, Protect};

/// The largest number of entries for which room is made because the input says so. It may be
/// wrong.
const EXPECTED_MAX: usize = 1 << 16;

impl<K, V, S> Serialize for VolatileMap<K, V, S>
where
    K: Hash + Eq + Serialize,
    V: Serialize,
    S: BuildHasher,
{
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        self.pin().serialize(serializer)
    }
}

impl<K, V, S, G> Serialize for Pinned<'_, K, V, S, G>
where
    K: Hash + Eq + Serialize,
    V: Serialize,
    S: BuildHasher,
    G: Protect,
{
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        // Some formats write the number of pairs first, and other threads may change it. So the
        // pairs are collected before they are counted.
        let pairs: Vec<(&K, &V)> = self.iter().collect();
        let mut map = serializer.serialize_map(Some(pairs.len()))?;
        for (key, value) in pairs {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de, K, V, S> Deserialize<'de> for VolatileMap<K, V, S>
where
    K: Hash + Eq + Deserialize<'de>,
    V: Deserialize<'de>,
    S: BuildHasher + Default,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Pairs(PhantomData))
    }
}

/// Builds a map from pairs.
struct Pairs<K, V, S>(PhantomData<(K, V, S)>);

impl<'de, K, V, S> Visitor<'de> for Pairs<K, V, S>
where
    K: Hash + Eq + Deserialize<'de>,
    V: Deserialize<'de>,
    S: BuildHasher + Default,
{
    type Value = VolatileMap<K, V, S>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Self::Value, A::Error> {
        let map = VolatileMap::default();
        map.reserve(pairs.size_hint().unwrap_or(0).min(EXPECTED_MAX));
        while let Some((key, value)) = pairs.next_entry()? {
            map.pin().insert(key, value);
        }
        Ok(map)
    }
}
