//! What commands do to the state, before it is applied as one batch.

use std::collections::HashMap;

use evermap::{Batch, Error, KEY_MAX, Map, VALUE_MAX};

/// A request that is replicated, and then applied by every node.
///
/// ```
/// use evermap_raft::{Changes, Command};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Clone, Debug, Serialize, Deserialize)]
/// struct Append { key: String, text: String }
///
/// impl Command for Append {
///     type Reply = Option<u64>; // The new length; `None` for entries that are no commands.
///     fn apply(self, state: &mut Changes<'_>) -> evermap::Result<Option<u64>> {
///         let mut value = state.get(&self.key)?.unwrap_or_default();
///         value.extend_from_slice(self.text.as_bytes());
///         let len = value.len() as u64;
///         state.put(self.key, value)?;
///         Ok(Some(len))
///     }
/// }
/// ```
pub trait Command {
    /// What the client that has made the request is answered. The default answers entries of the
    /// log that have no request in them.
    type Reply: Default;

    /// Changes the state. What it does may depend on nothing but the request and the state: not on
    /// the time, on chance, or on which node it is, because all nodes have to come to the same
    /// state.
    ///
    /// # Errors
    /// An error stops the node, because it could not go on as the others do. What is wrong with a
    /// request is told in the reply instead.
    fn apply(self, state: &mut Changes<'_>) -> evermap::Result<Self::Reply>;
}

/// The state of the state machine, with changes that are not applied yet.
#[derive(Debug)]
pub struct Changes<'m> {
    map: &'m Map,
    /// New values by key; `None` for a key that is removed.
    values: HashMap<Vec<u8>, Option<Vec<u8>>>,
    /// How long all of them are, about.
    bytes: usize,
}

/// From this number of keys on, or of bytes, changes are applied before the next command, so that a
/// long run of entries does not become a batch that is too long.
const MANY_KEYS: usize = 4096;
const MANY_BYTES: usize = 8 << 20;

impl<'m> Changes<'m> {
    pub(crate) fn new(map: &'m Map) -> Self {
        Changes { map, values: HashMap::new(), bytes: 0 }
    }

    /// Returns the value under `key`, as the commands before have left it.
    ///
    /// # Errors
    /// Those of [`Map::get`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> evermap::Result<Option<Vec<u8>>> {
        match self.values.get(key.as_ref()) {
            Some(value) => Ok(value.clone()),
            None => self.map.get(key),
        }
    }

    /// Binds `key` to `value`.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`] and [`Error::ValueTooLong`].
    pub fn put(
        &mut self,
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
    ) -> evermap::Result<()> {
        let (key, value) = (key.into(), value.into());
        if key.len() > KEY_MAX {
            return Err(Error::KeyTooLong { len: key.len(), max: KEY_MAX });
        }
        if value.len() > VALUE_MAX {
            return Err(Error::ValueTooLong { len: value.len(), max: VALUE_MAX });
        }
        self.change(key, Some(value));
        Ok(())
    }

    /// Removes `key`, and returns whether it was there.
    ///
    /// # Errors
    /// Those of [`Map::get`].
    pub fn remove(&mut self, key: impl Into<Vec<u8>>) -> evermap::Result<bool> {
        let key = key.into();
        let was_there = match self.values.get(&key) {
            Some(value) => value.is_some(),
            None => self.map.contains(&key)?,
        };
        if was_there {
            self.change(key, None);
        }
        Ok(was_there)
    }

    fn change(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.bytes += key.len() + value.as_ref().map_or(0, Vec::len);
        self.values.insert(key, value);
    }

    pub(crate) fn is_many(&self) -> bool {
        self.values.len() >= MANY_KEYS || self.bytes >= MANY_BYTES
    }

    /// Moves the changes to a batch.
    pub(crate) fn drain_to(&mut self, batch: &mut Batch) {
        for (key, value) in self.values.drain() {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.remove(key),
            };
        }
        self.bytes = 0;
    }
}
