//! What goes into a store and what comes out of it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What is stored beside a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// 32 bits of the caller's own.
    pub flags: u32,
    /// When the record expires, in seconds since 1970; 0: never. From that second on it counts as absent.
    pub expires_at: u32,
}

impl Meta {
    /// Expires `after` from now by the system's clock, in whole seconds, at least one. A duration that is too long to be
    /// represented means the last second that can be, in the year 2106.
    ///
    /// ```
    /// use std::time::Duration;
    /// use evermap::{Evermap, Meta, Options};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("map");
    /// let map = Evermap::open(path, Options::new())?;
    /// map.put_with(b"session", b"alice", Meta::expiring(Duration::from_secs(3600)))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn expiring(after: Duration) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs());
        let at = now.saturating_add(after.as_secs().max(1));
        Meta { flags: 0, expires_at: u32::try_from(at).unwrap_or(u32::MAX) }
    }
}

/// A record, copied out of the store and verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// The caller's own 32 bits.
    pub flags: u32,
    /// Identifies this version of the record: no other version of any key ever has the same id. Never 0.
    pub cas: u64,
    /// When it expires, in seconds since 1970; 0: never.
    pub expires_at: u32,
}

/// How a mutation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "whether something was stored may depend on what was there"]
pub enum Outcome {
    /// The key was absent, and is stored now.
    Inserted {
        /// CAS id of the new record.
        cas: u64,
    },
    /// The key was present, and has a new value now.
    Updated {
        /// CAS id of the new record.
        cas: u64,
    },
    /// The key was present, and is gone now.
    Removed,
    /// The key is present; nothing was changed.
    Kept {
        /// CAS id of the record.
        cas: u64,
    },
    /// The key is absent; nothing was changed.
    Absent,
}

impl Outcome {
    /// CAS id of the new record, if one was stored.
    ///
    /// ```
    /// use evermap::{Evermap, Meta, Options};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("map");
    /// let map = Evermap::open(path, Options::new())?;
    /// assert!(map.insert(b"k", b"v", Meta::default())?.stored().is_some());
    /// assert!(map.insert(b"k", b"w", Meta::default())?.stored().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stored(self) -> Option<u64> {
        match self {
            Outcome::Inserted { cas } | Outcome::Updated { cas } => Some(cas),
            Outcome::Removed | Outcome::Kept { .. } | Outcome::Absent => None,
        }
    }

    /// Whether anything was changed.
    pub fn changed(self) -> bool {
        !matches!(self, Outcome::Kept { .. } | Outcome::Absent)
    }
}

/// What the closure of [`modify`](crate::Store::modify) decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Leave things as they are.
    Keep,
    /// Store this value. Flags and expiry stay as they are; an absent key gets [`Meta::default`].
    Value(Vec<u8>),
    /// Store this value with these flags and this expiry.
    Record(Vec<u8>, Meta),
    /// Remove the key.
    Remove,
}
