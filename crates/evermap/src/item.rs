//! What is stored in a map and what is read from it.

use std::time::{Duration, SystemTime};

use crate::clock::{Clock, seconds_of, time_of};
use crate::{Error, Result};

/// What is stored beside a value: [`Meta::default`] has no flags and no marks and never expires.
///
/// ```
/// use std::time::Duration;
/// use evermap::Meta;
/// let meta = Meta::expiring(Duration::from_secs(60)).with_flags(7);
/// assert_eq!(meta.flags(), 7);
/// assert!(meta.expires_at().is_some());
/// assert_eq!(Meta::new().expires_at(), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    flags: u32,
    pub(crate) expiry: Expiry,
    marks: Marks,
}

impl Meta {
    /// Returns metadata without flags that never expires.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns metadata that expires then, for example a [`Duration`] from now.
    pub fn expiring(expiry: impl Into<Expiry>) -> Self {
        Self::new().with_expiry(expiry)
    }

    /// Sets the flags: 32 bits that belong to the caller.
    #[must_use]
    pub fn with_flags(mut self, flags: u32) -> Self {
        self.flags = flags;
        self
    }

    /// Sets when the record expires: from then on it counts as absent. Storing a record fails with
    /// [`Error::ExpiryTooLate`] if that is later than [`Expiry::MAX`].
    #[must_use]
    pub fn with_expiry(mut self, expiry: impl Into<Expiry>) -> Self {
        self.expiry = expiry.into();
        self
    }

    /// Sets the marks.
    #[must_use]
    pub fn with_marks(mut self, marks: Marks) -> Self {
        self.marks = marks;
        self
    }

    /// Returns the flags.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Returns when the record expires, or `None` if it never does.
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.expiry.time()
    }

    /// Returns the marks: see [`cache`](crate::cache).
    pub fn marks(&self) -> Marks {
        self.marks
    }
}

/// When a record expires: made from a [`Duration`] from now, or a [`SystemTime`], of which `None`
/// is [never](Expiry::NEVER).
///
/// Expiries are whole seconds: a time within a second is the end of that second.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use evermap::Expiry;
/// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
/// map.put("session", "alice")?;
/// assert!(map.touch("session", Duration::from_secs(3600))?);
/// assert!(map.touch("session", SystemTime::now() + Duration::from_secs(3600))?);
/// assert!(map.touch("session", Expiry::NEVER)?);
/// # Ok::<(), evermap::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expiry(
    /// In seconds since 1970.
    Option<u64>,
);

impl Expiry {
    /// The record does not expire.
    pub const NEVER: Expiry = Expiry(None);
    /// The latest time at which a record can expire, in February 2106. In the file an expiry has 32
    /// bits.
    pub const MAX: Expiry = Expiry(Some(u32::MAX as u64));

    /// Returns the time, or `None` if it is never.
    pub fn time(self) -> Option<SystemTime> {
        self.0.map(time_of)
    }

    /// Returns an expiry as it is stored, in seconds since 1970: 0 is never. One of 0 is stored as
    /// 1.
    ///
    /// # Errors
    /// [`Error::ExpiryTooLate`].
    pub(crate) fn encode(self) -> Result<u32> {
        self.0.map_or(Ok(0), |seconds| {
            u32::try_from(seconds.max(1)).map_err(|_| Error::ExpiryTooLate {
                at: time_of(seconds),
                max: time_of(u32::MAX.into()),
            })
        })
    }

    /// Returns the expiry that is stored so.
    #[inline]
    pub(crate) fn decode(stored: u32) -> Self {
        Expiry((stored != 0).then_some(u64::from(stored)))
    }
}

impl From<Duration> for Expiry {
    /// From now by the [clock of the system](Clock::system), at least one second.
    fn from(after: Duration) -> Self {
        let seconds = after.as_secs().saturating_add(u64::from(after.subsec_nanos() > 0));
        Expiry(Some(Clock::system().seconds().saturating_add(seconds.max(1))))
    }
}

impl From<SystemTime> for Expiry {
    fn from(time: SystemTime) -> Self {
        // What expired before 1970 has expired.
        let (seconds, is_later) = seconds_of(time);
        Expiry(Some(seconds + u64::from(is_later)))
    }
}

impl From<Option<SystemTime>> for Expiry {
    fn from(time: Option<SystemTime>) -> Self {
        time.map_or(Expiry::NEVER, Expiry::from)
    }
}

/// Three bits that belong to the caller, and that can be changed in place, like the expiry: the
/// value is not written again, and the CAS id stays. See [`CacheEdit::Mark`].
///
/// A record that is stored anew has the marks of its [`Meta`]: none, unless they are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Marks(u8);

impl Marks {
    /// No mark.
    pub const NONE: Marks = Marks(0);
    /// All marks.
    pub const ALL: Marks = Marks(0b111);

    /// Returns the marks with these bits; others than the lowest three are dropped.
    pub const fn from_bits_truncate(bits: u8) -> Self {
        Marks(bits & Marks::ALL.0)
    }

    /// Returns the bits.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns `true` if both have a mark in common.
    pub const fn intersects(self, other: Marks) -> bool {
        self.0 & other.0 != 0
    }
}

/// How a record was accessed before the access that shows it. A map that
/// [evicts](crate::Options::evict) nothing does not keep that, and shows the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Access {
    /// Whether it was read.
    pub fetched: bool,
    /// The time since the last access, or since it was stored, up to 8 seconds too short or too
    /// long; zero if that is not known. After nine hours without access it may begin anew.
    pub idle: Duration,
}

/// A record, copied out of the store and verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Item<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// 32 bits that belong to the caller.
    pub flags: u32,
    /// Identifies this version of the record: no other version of any key ever has the same id.
    /// Never 0.
    pub cas: u64,
    expiry: Expiry,
    marks: Marks,
    access: Access,
}

impl<'a> Item<'a> {
    /// Returns a record of these parts, for programs that show records from elsewhere.
    pub fn new(key: &'a [u8], value: &'a [u8], cas: u64, meta: Meta) -> Self {
        let Meta { flags, expiry, marks } = meta;
        Item { key, value, flags, cas, expiry, marks, access: Access::default() }
    }

    /// Sets how it was accessed before.
    pub(crate) fn with_access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Returns when it expires, or `None` if it never does.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.set("session").expires(Duration::from_secs(3600)).put("alice")?;
    /// let expires_at = map.get_with("session", |item| item.expires_at())?.flatten();
    /// assert!(expires_at.unwrap() > SystemTime::now());
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.expiry.time()
    }

    /// Returns what is stored beside the value: flags, expiry and marks.
    pub fn meta(&self) -> Meta {
        Meta { flags: self.flags, expiry: self.expiry, marks: self.marks }
    }

    /// Returns how it was accessed before, in a map that [evicts](crate::Options::evict).
    pub fn access(&self) -> Access {
        self.access
    }
}

/// How a conditional operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "whether something was changed depends on what was there"]
#[non_exhaustive]
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
    /// The key was present, and is absent now.
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
    /// Returns the CAS id of the new record, if one was stored.
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// let map = Evermap::in_memory(Options::new())?.default_map();
    /// assert!(map.try_insert(b"k", b"v")?.stored().is_some());
    /// assert!(map.try_insert(b"k", b"w")?.stored().is_none());
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn stored(self) -> Option<u64> {
        match self {
            Outcome::Inserted { cas } | Outcome::Updated { cas } => Some(cas),
            Outcome::Removed | Outcome::Kept { .. } | Outcome::Absent => None,
        }
    }

    /// Returns the CAS id of the record that the key has now, or `None` if it is absent.
    pub fn cas(self) -> Option<u64> {
        match self {
            Outcome::Inserted { cas } | Outcome::Updated { cas } | Outcome::Kept { cas } => {
                Some(cas)
            }
            Outcome::Removed | Outcome::Absent => None,
        }
    }

    /// Returns `true` if anything was changed.
    pub fn changed(self) -> bool {
        !matches!(self, Outcome::Kept { .. } | Outcome::Absent)
    }
}

/// What the closure of [`modify`](crate::Map::modify) decides.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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

/// What the closure of [`CacheMap::modify`](crate::cache::CacheMap::modify) decides.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheEdit {
    /// What a closure of [`modify`](crate::Map::modify) can decide. [`Edit::Value`] leaves the
    /// marks as they are; [`Edit::Record`] sets those of its [`Meta`].
    Edit(Edit),
    /// Store this value with these marks. Flags and expiry stay as they are; an absent key gets no
    /// flags and no expiry.
    MarkedValue(Vec<u8>, Marks),
    /// Change when the key expires and its marks, and nothing else: it is the same version, with
    /// the same CAS id. An absent key stays absent. O(1).
    Mark {
        /// When it expires.
        expiry: Expiry,
        /// Its marks.
        marks: Marks,
    },
}

impl From<Edit> for CacheEdit {
    fn from(edit: Edit) -> Self {
        CacheEdit::Edit(edit)
    }
}
