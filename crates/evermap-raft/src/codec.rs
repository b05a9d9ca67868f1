//! Values as bytes: [postcard](https://docs.rs/postcard), which is compact and has no names in it.

use evermap::Map;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Result;

pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    Ok(postcard::to_stdvec(value)?)
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    Ok(postcard::from_bytes(bytes)?)
}

/// Returns the value under a key, if there is one.
pub(crate) fn read<T: DeserializeOwned>(map: &Map, key: impl AsRef<[u8]>) -> Result<Option<T>> {
    map.get(key)?.map(|bytes| decode(&bytes)).transpose()
}
