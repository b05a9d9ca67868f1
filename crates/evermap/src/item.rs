//! What is stored in a map and what is read from it.

use std::time::{Duration, SystemTime};

use crate::clock::Clock;
use crate::record::access::PriorAccess;

/// What is stored beside a value: [`Meta::default`] has no flags and no marks and never expires.
///
/// ```
/// use evermap::Meta;
/// let meta = Meta::new().with_flags(7).with_expiry(2_000_000_000);
/// assert_eq!((meta.flags, meta.expires_at), (7, Some(2_000_000_000)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Meta {
    /// 32 bits that belong to the caller.
    pub flags: u32,
    /// When the record expires, in seconds since 1970; `None`: never. From that second on it counts
    /// as absent.
    pub expires_at: Option<u64>,
    /// Marks that belong to the caller.
    pub marks: Marks,
}

/// Three bits that belong to the caller, and that can be changed in place, like the expiry: the
/// value is not written again, and the CAS id stays. See [`Edit::Mark`].
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

/// When a record expires: made from a [`Duration`] from now, a [`SystemTime`], or seconds since
/// 1970, of which `None` is [never](Expiry::NEVER).
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
pub struct Expiry(Option<u64>);

impl Expiry {
    /// The record does not expire.
    pub const NEVER: Expiry = Expiry(None);

    /// Returns the expiry in seconds since 1970, or `None` if it is never.
    pub fn seconds(self) -> Option<u64> {
        self.0
    }
}

impl From<Duration> for Expiry {
    /// From now by the [clock of the system](Clock::system), at least one second.
    fn from(after: Duration) -> Self {
        let seconds = after.as_secs().saturating_add(u64::from(after.subsec_nanos() > 0));
        Expiry(Some(Clock::system().now().saturating_add(seconds.max(1))))
    }
}

impl From<SystemTime> for Expiry {
    fn from(time: SystemTime) -> Self {
        // What expired before 1970 has expired.
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Expiry(Some(since.as_secs().saturating_add(u64::from(since.subsec_nanos() > 0))))
    }
}

impl From<u64> for Expiry {
    fn from(seconds: u64) -> Self {
        Expiry(Some(seconds))
    }
}

impl From<Option<u64>> for Expiry {
    fn from(seconds: Option<u64>) -> Self {
        Expiry(seconds)
    }
}

impl Meta {
    /// Returns metadata without flags that never expires.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns metadata that expires then, for example a [`Duration`] from now.
    ///
    /// ```
    /// use std::time::Duration;
    /// use evermap::{Evermap, Meta, Options};
    /// let map = Evermap::in_memory(Options::new())?.default_map();
    /// map.put_with(b"session", b"alice", Meta::expiring(Duration::from_secs(3600)))?;
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn expiring(expiry: impl Into<Expiry>) -> Self {
        Self::new().with_expiry(expiry)
    }

    /// Sets the flags.
    #[must_use]
    pub fn with_flags(mut self, flags: u32) -> Self {
        self.flags = flags;
        self
    }

    /// Sets when the record expires. Storing a record fails with
    /// [`Error::ExpiryTooLate`](crate::Error::ExpiryTooLate) if that is later than
    /// [`EXPIRY_MAX`](crate::EXPIRY_MAX).
    #[must_use]
    pub fn with_expiry(mut self, expiry: impl Into<Expiry>) -> Self {
        self.expires_at = expiry.into().seconds();
        self
    }

    /// Sets the marks.
    #[must_use]
    pub fn with_marks(mut self, marks: Marks) -> Self {
        self.marks = marks;
        self
    }
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
    /// When it expires, in seconds since 1970; `None`: never.
    pub expires_at: Option<u64>,
    /// Marks that belong to the caller.
    pub marks: Marks,
    /// Whether it was read before this access. `false` in a map that [evicts] nothing, which does
    /// not keep that.
    ///
    /// [evicts]: crate::Options::evict
    pub fetched: bool,
    /// Seconds since the last access before this one, or since it was stored, up to 8 too few or
    /// too many; 0 if that is not known. After nine hours without access the time may begin anew.
    pub idle: u32,
}

impl<'a> Item<'a> {
    /// Returns a record of these parts, for programs that show records from elsewhere.
    pub fn new(key: &'a [u8], value: &'a [u8], cas: u64, meta: Meta) -> Self {
        let Meta { flags, expires_at, marks } = meta;
        Item { key, value, flags, cas, expires_at, marks, fetched: false, idle: 0 }
    }

    /// Sets how it was read before.
    pub(crate) fn with_access(mut self, prior: PriorAccess) -> Self {
        (self.fetched, self.idle) = (prior.fetched, prior.idle);
        self
    }

    /// Returns when it expires, or `None` if it never does.
    pub fn expiry(&self) -> Option<SystemTime> {
        self.expires_at.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
    }

    /// Returns its flags, expiry and marks: what is stored beside the value.
    pub fn meta(&self) -> Meta {
        Meta { flags: self.flags, expires_at: self.expires_at, marks: self.marks }
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
    /// Store this value. Flags, expiry and marks stay as they are; an absent key gets
    /// [`Meta::default`].
    Value(Vec<u8>),
    /// Store this value with these marks. Flags and expiry stay as they are; an absent key gets no
    /// flags and no expiry.
    MarkedValue(Vec<u8>, Marks),
    /// Store this value with these flags, this expiry and these marks.
    Record(Vec<u8>, Meta),
    /// Change when the key expires (seconds since 1970; `None`: never) and its marks, and nothing
    /// else: it is the same version, with the same CAS id. An absent key stays absent. O(1).
    Mark {
        /// When it expires.
        expires_at: Option<u64>,
        /// Its marks.
        marks: Marks,
    },
    /// Remove the key.
    Remove,
}
