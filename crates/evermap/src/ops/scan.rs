//! Scans: records in the order of their keys.

use std::collections::VecDeque;
use std::iter::FusedIterator;
use std::ops::{
    Bound, ControlFlow, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo,
    RangeToInclusive,
};

use evermap_index::key::BytesRef;
use evermap_index::ordered::{Cursor, Direction, Run, prefix_end};
use evermap_index::{Guard, OrderedIndex};
use evermap_pm::Medium;
use evermap_pm::medium::Mapped;

use crate::ops::find_many::UnreadRecord;
use crate::ops::read::BATCH_KEYS;
use crate::ordered::Ordered;
use crate::{Error, Item, Map, Result};

/// Keys that are fetched from the tree at a time. While the records of one batch are copied, the
/// buckets of the next one are on their way to the cache.
const KEYS_AHEAD: usize = 4 * BATCH_KEYS;
/// Bytes of values after which an iterator copies no more of them ahead.
const AHEAD_BYTES: usize = 64 << 10;

const MISPLACED: &str =
    "keys of the ordered index are not where they belong, so scans may lack some";
const UNREAD: &str = "a part of the ordered index cannot be read, so scans lack what is there";

/// A range of keys, for scans.
///
/// It is made from any range of byte strings, or from a prefix. Keys are ordered byte by byte, a
/// key before all longer keys that begin with it. A range that ends before it begins has no keys.
///
/// ```
/// use evermap::KeyRange;
/// assert!(!KeyRange::from("b".."d").contains(b"d"));
/// assert!(KeyRange::from("b"..="d").contains(b"d"));
/// assert!(KeyRange::from(..).contains(b"anything"));
/// assert!(KeyRange::prefix("user:").contains(b"user:7"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
}

impl KeyRange {
    /// Returns the range of the keys between two bounds.
    pub fn new<K: AsRef<[u8]>>(lower: Bound<K>, upper: Bound<K>) -> Self {
        let owned = |bound: Bound<K>| bound.map(|key| key.as_ref().to_vec());
        KeyRange { lower: owned(lower), upper: owned(upper) }
    }

    /// Returns the range of the keys that begin with `prefix`, including `prefix` itself.
    pub fn prefix(prefix: impl AsRef<[u8]>) -> Self {
        let prefix = prefix.as_ref();
        KeyRange { lower: Bound::Included(prefix.to_vec()), upper: prefix_end(prefix) }
    }

    /// Returns `true` if `key` is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        RangeBounds::contains(self, key)
    }
}

impl RangeBounds<[u8]> for KeyRange {
    fn start_bound(&self) -> Bound<&[u8]> {
        self.lower.as_ref().map(Vec::as_slice)
    }

    fn end_bound(&self) -> Bound<&[u8]> {
        self.upper.as_ref().map(Vec::as_slice)
    }
}

impl From<RangeFull> for KeyRange {
    fn from(_: RangeFull) -> Self {
        KeyRange { lower: Bound::Unbounded, upper: Bound::Unbounded }
    }
}

macro_rules! from_ranges {
    ($($range:ty),+) => {$(
        impl<K: AsRef<[u8]>> From<$range> for KeyRange {
            fn from(range: $range) -> Self {
                KeyRange::new(range.start_bound(), range.end_bound())
            }
        }
    )+};
}

from_ranges!(
    Range<K>,
    RangeInclusive<K>,
    RangeFrom<K>,
    RangeTo<K>,
    RangeToInclusive<K>,
    (Bound<K>, Bound<K>)
);

/// # Scans in the order of the keys
impl<M: Medium> Map<M> {
    /// Returns the records whose keys are in `range`, in ascending order. Needs
    /// [`Options::ordered`](crate::Options::ordered): without it, this and everything else that
    /// goes by the order returns [`Error::NotOrdered`](crate::Error::NotOrdered), in an empty map
    /// too.
    ///
    /// Sees every change that was acknowledged before this call. A key that is present throughout
    /// is shown exactly once, one that is inserted or removed meanwhile at most once; each pair was
    /// stored at some moment during the scan. Not a snapshot: pairs are of different moments.
    /// Writers go on meanwhile, and nothing is locked.
    ///
    /// The first call after opening may wait until the ordered index is
    /// [built](Map::build_ordered), and each until the ordered index has changes that were
    /// acknowledged just before. O(log n), and then O(1) for a pair, the cost of a lookup whose
    /// cache misses overlap.
    ///
    /// If records may be missing, because a part of the file is damaged that would lead to them,
    /// the scan ends with an error that says so, after all that can be read: also where the missing
    /// ones may be beyond its range, because their keys are unknown. Records that are missing by
    /// [number](crate::Error::Incomplete) are noticed as by [`for_each`](Map::for_each). Such a
    /// scan may take a walk over the index at its end.
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// let map = Evermap::in_memory(Options::new().ordered(true))?.default_map();
    /// for name in ["cow", "ant", "dog", "bee"] {
    ///     map.put(name.as_bytes(), b"")?;
    /// }
    /// let keys = map.scan("b".."d")?.map(|pair| Ok(pair?.0));
    /// let keys = keys.collect::<evermap::Result<Vec<_>>>()?;
    /// assert_eq!(keys, [b"bee", b"cow"]);
    /// let last = map.scan(..)?.reverse().next().unwrap()?;
    /// assert_eq!(last.0, b"dog");
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Maps without an order
    ///
    /// Whether a map has an order is decided when its file is opened, so the compiler cannot know
    /// it. A handle of its own for scans would come from a call that fails where this one fails,
    /// and a program that stores and scans would have two handles of one map.
    ///
    /// # Errors
    /// [`Error::NotOrdered`](crate::Error::NotOrdered),
    /// [`Error::OrderedFailed`](crate::Error::OrderedFailed),
    /// [`Error::Closed`](crate::Error::Closed), and [`Error::Storage`](crate::Error::Storage) with
    /// `Forked` or `Poisoned`.
    pub fn scan(&self, range: impl Into<KeyRange>) -> Result<Scan<'_, M>> {
        Ok(Scan::new(self, self.tree(false)?, range.into()))
    }

    /// Returns the records whose keys begin with `prefix`, as [`scan`](Map::scan) does.
    ///
    /// ```
    /// # use evermap::{Evermap, Options};
    /// # let map = Evermap::in_memory(Options::new().ordered(true))?.default_map();
    /// map.put(b"user:1", b"ann")?;
    /// map.put(b"user:2", b"bob")?;
    /// map.put(b"visits", b"7")?;
    /// assert_eq!(map.scan_prefix("user:")?.count(), 2);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`scan`](Map::scan).
    pub fn scan_prefix(&self, prefix: impl AsRef<[u8]>) -> Result<Scan<'_, M>> {
        self.scan(KeyRange::prefix(prefix))
    }

    /// Scans as [`scan`](Map::scan) does, without waiting for changes that were acknowledged just
    /// before: some thousands of the most recent keys may be missing.
    ///
    /// ```
    /// # use evermap::{Evermap, Options};
    /// # let map = Evermap::in_memory(Options::new().ordered(true))?.default_map();
    /// map.put(b"key", b"value")?;
    /// assert!(map.scan_relaxed(..)?.count() <= 1);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`scan`](Map::scan).
    pub fn scan_relaxed(&self, range: impl Into<KeyRange>) -> Result<Scan<'_, M>> {
        Ok(Scan::new(self, self.tree(true)?, range.into()))
    }
}

/// Records in the order of their keys: see [`Map::scan`].
///
/// As an iterator it returns copies of keys and values, or the error of a damaged record;
/// [`visit`](Scan::visit) shows whole records and copies less. It holds nothing in the store
/// between two calls, so it may be kept for any time, and [`rest`](Scan::rest) even longer than the
/// store is open.
#[must_use = "a scan is lazy, and shows nothing unless it is iterated over"]
pub struct Scan<'s, M: Medium = Mapped> {
    map: &'s Map<M>,
    tree: &'s dyn OrderedIndex,
    cursor: Cursor<'s>,
    direction: Direction,
    /// Whether that is the direction of `next_back`.
    is_turned: bool,
    /// The end of the range at which the scan ends.
    until: Bound<Vec<u8>>,
    /// The maximum number of pairs that are still to be shown, those in `items` not counted.
    limit: u64,
    /// Keys from the tree; from `at` on they are still to be looked up.
    keys: Run,
    at: usize,
    /// Records that the iterator has looked up ahead.
    items: VecDeque<(Vec<u8>, Result<Vec<u8>>)>,
    /// The error that ends it when these are shown.
    failed: Option<Error>,
    /// Whether it has said so: then the iterator has ended.
    over: bool,
    found: Found,
    /// What is missing, to be shown at the end.
    losses: VecDeque<Error>,
}

/// What a scan has found so far, to see at its end whether anything is missing.
#[derive(Default)]
struct Found {
    /// Whether the range had no ends, and the scan began at one.
    is_whole: bool,
    /// Records that the hash index names, of them those that were unreadable, and keys that it does
    /// not name: counted while nothing has changed since opening.
    named: u64,
    unreadable: u64,
    absent: u64,
    /// Whether keys of the tree were not where they belong, and where a part of it cannot be read.
    misplaced: bool,
    unread: Option<u64>,
    /// Whether the losses were looked for.
    is_judged: bool,
}

impl Found {
    /// Counts keys that were looked up, of which some were shown.
    fn count<M: Medium>(
        &mut self,
        map: &Map<M>,
        keys: &[BytesRef<'_>],
        shown: &[bool],
        guard: &Guard<'_>,
    ) {
        for (key, shown) in keys.iter().zip(shown) {
            match *shown || !matches!(map.inner.index.get(*key, guard), Ok(None)) {
                true => self.named += 1,
                false => self.absent += 1,
            }
        }
    }
}

impl<'s, M: Medium> Scan<'s, M> {
    fn new(map: &'s Map<M>, tree: &'s dyn OrderedIndex, range: KeyRange) -> Self {
        Self::towards(Direction::Ascending, map, tree, range)
    }

    fn towards(
        direction: Direction,
        map: &'s Map<M>,
        tree: &'s dyn OrderedIndex,
        range: KeyRange,
    ) -> Self {
        let bounds = (range.start_bound(), range.end_bound());
        let cursor = Cursor::new(tree, bounds, direction);
        let is_whole = matches!(bounds, (Bound::Unbounded, Bound::Unbounded));
        let until = match direction {
            Direction::Ascending => range.upper,
            Direction::Descending => range.lower,
        };
        Scan {
            map,
            tree,
            cursor,
            direction,
            is_turned: false,
            until,
            limit: u64::MAX,
            keys: Run::new(),
            at: 0,
            items: VecDeque::new(),
            failed: None,
            over: false,
            found: Found { is_whole, ..Found::default() },
            losses: VecDeque::new(),
        }
    }

    /// Reverses the direction. A scan that has begun shows what it has not shown yet.
    ///
    /// ```
    /// # use evermap::{Evermap, Options};
    /// # let map = Evermap::in_memory(Options::new().ordered(true))?.default_map();
    /// for key in [b"a", b"b", b"c"] {
    ///     map.put(key, b"")?;
    /// }
    /// let mut scan = map.scan(..)?;
    /// assert_eq!(scan.next().unwrap()?.0, b"a");
    /// let keys: Vec<_> = scan.reverse().map(|pair| pair.unwrap().0).collect();
    /// assert_eq!(keys, [b"c", b"b"]);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn reverse(mut self) -> Self {
        self.face(true);
        self.is_turned = false;
        self
    }

    /// Goes on at the end at which `next` is, or with `turned` at the other end.
    fn face(&mut self, turned: bool) {
        if self.is_turned != turned {
            self.begin_again(match self.direction {
                Direction::Ascending => Direction::Descending,
                Direction::Descending => Direction::Ascending,
            });
            self.is_turned = turned;
        }
    }

    /// Limits the number of records that are still to be shown.
    ///
    /// ```
    /// # use evermap::{Evermap, Options};
    /// # let map = Evermap::in_memory(Options::new().ordered(true))?.default_map();
    /// for key in [b"a", b"b", b"c"] {
    ///     map.put(key, b"")?;
    /// }
    /// assert_eq!(map.scan(..)?.limit(2).count(), 2);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn limit(mut self, records: u64) -> Self {
        if !self.items.is_empty() {
            self.begin_again(self.direction);
        }
        self.limit = records;
        self
    }

    /// Returns the range of the keys that were not shown yet, regardless of the limit, from which a
    /// later scan can go on, even in another process.
    ///
    /// ```
    /// # use evermap::{Evermap, Options};
    /// # let map = Evermap::in_memory(Options::new().ordered(true))?.default_map();
    /// for key in [b"a", b"b", b"c"] {
    ///     map.put(key, b"")?;
    /// }
    /// let mut scan = map.scan(..)?.limit(2);
    /// assert_eq!(scan.by_ref().count(), 2);
    /// let rest = scan.rest();
    /// assert!(!rest.contains(b"b") && rest.contains(b"bb"));
    /// assert_eq!(map.scan(rest)?.next().unwrap()?.0, b"c");
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn rest(&self) -> KeyRange {
        let next = match self.items.front() {
            Some((key, _)) => Some(&key[..]),
            None => (self.at < self.keys.len()).then(|| self.keys.key(self.at)),
        };
        let from = next.map_or_else(|| self.cursor.position(), Bound::Included);
        let (from, until) = (from.map(<[u8]>::to_vec), self.until.clone());
        match self.direction {
            Direction::Ascending => KeyRange { lower: from, upper: until },
            Direction::Descending => KeyRange { lower: until, upper: from },
        }
    }

    /// Calls `each` with the records in order, copied and verified, or with the error if one is
    /// damaged, until it returns `Break`. A later call goes on behind the record that was shown
    /// last. A guard is held meanwhile, for 32 records at a time, so `each` should be quick; it may
    /// use the store, but not wait for guards.
    ///
    /// ```
    /// # use evermap::{Evermap, Options};
    /// # let map = Evermap::in_memory(Options::new().ordered(true))?.default_map();
    /// map.put(b"key", b"value")?;
    /// use std::ops::ControlFlow;
    /// let mut bytes = 0;
    /// map.scan(..)?.visit(|item| {
    ///     bytes += item.map_or(0, |item| item.value.len());
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(bytes, 5);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed), and [`Error::Storage`](crate::Error::Storage) with
    /// `Forked` or `Poisoned`. What is damaged is reported to `each`.
    pub fn visit(
        &mut self,
        mut each: impl FnMut(Result<Item<'_>>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.face(false);
        if !self.items.is_empty() {
            self.begin_again(self.direction);
        }
        let mut value = Vec::new();
        let mut flow = ControlFlow::Continue(());
        while flow.is_continue() && self.fetch_keys()? {
            self.look_up(&mut value, |_, item| {
                flow = each(item);
                flow
            })?;
        }
        if flow.is_continue() {
            self.judge()?;
        }
        while flow.is_continue()
            && let Some(error) = self.losses.pop_front()
        {
            flow = each(Err(error));
        }
        Ok(())
    }

    /// Calls `each` with the keys in order, whether or not their records can be read, until it
    /// fails. No guard is held meanwhile. The keys are those of the ordered index: some may have
    /// been removed.
    pub(crate) fn visit_keys(&mut self, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        while self.fetch_keys()? {
            while self.at < self.keys.len() {
                each(self.keys.key(self.at))?;
                self.at += 1;
            }
        }
        Ok(())
    }

    /// Counts the records that were not shown yet, and reads no values.
    ///
    /// # Errors
    /// Those of [`visit`](Scan::visit), and the first that it would report to `each`, but for
    /// values that do not verify.
    pub(crate) fn count_unread(mut self) -> Result<u64> {
        let (mut records, mut failed) = (0, None);
        while failed.is_none() && self.fetch_keys()? {
            self.find_ahead(|_, found| match found {
                Ok(_) => {
                    records += 1;
                    (true, ControlFlow::Continue(()))
                }
                Err(error) => {
                    failed = Some(error);
                    (false, ControlFlow::Break(()))
                }
            })?;
        }
        if failed.is_none() {
            self.judge()?;
        }
        failed.or(self.losses.pop_front()).map_or(Ok(records), Err)
    }

    /// Drops what was fetched ahead, and goes on in this direction with what was not shown.
    fn begin_again(&mut self, direction: Direction) {
        let (limit, over) = (self.limit.saturating_add(self.items.len() as u64), self.over);
        let found = std::mem::take(&mut self.found);
        let losses = std::mem::take(&mut self.losses);
        *self = Self::towards(direction, self.map, self.tree, self.rest());
        (self.limit, self.over, self.losses) = (limit, over, losses);
        // What it begins with again would be counted again.
        let is_whole = found.is_whole && found.named == 0 && found.absent == 0;
        self.found = Found { is_whole, ..found };
    }

    /// Looks for what is missing, at the end, unless that was done.
    fn judge(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.found.is_judged, true) {
            self.losses = self.find_losses()?.into();
        }
        Ok(())
    }

    /// Returns the errors of what this scan could not show.
    fn find_losses(&self) -> Result<Vec<Error>> {
        let (map, found) = (self.map, &self.found);
        let damaged = |at, what: &str| Error::from(evermap_pm::Error::damaged(at, what));
        let mut losses = Vec::new();
        losses.extend(found.misplaced.then(|| damaged(0, MISPLACED)));
        losses.extend(found.unread.map(|at| damaged(at, UNREAD)));
        let built = map.inner.ordered.as_ref();
        let (read, unread) = built.map_or((u64::MAX, 0), Ordered::keys_read);
        let lacks_keys = unread > 0 || map.unchanged_records().is_some_and(|all| read < all);
        if lacks_keys || found.absent > 0 {
            losses.extend(map.losses(unread > 0)?);
        }
        let is_counted = losses.iter().any(|error| matches!(error, Error::Incomplete { .. }));
        if found.is_whole && self.limit > 0 && !is_counted {
            losses.extend(map.incomplete(found.named, found.named - found.unreadable));
        }
        Ok(losses)
    }

    /// Fetches keys from the tree if there are none left. Returns `true` if there are any to be
    /// shown.
    fn fetch_keys(&mut self) -> Result<bool> {
        if self.limit == 0 {
            return Ok(false);
        }
        if self.at == self.keys.len() {
            // In a forked child, other threads may have been changing the tree.
            self.map.db.file.pool.region().ensure_writable()?;
            self.keys.clear();
            self.at = 0;
            let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
            let wanted = KEYS_AHEAD.min(limit);
            self.cursor.expect(limit);
            while self.keys.len() < wanted
                && let Some((key, hash)) = self.cursor.next()?
            {
                self.keys.push(key, hash);
            }
            self.note_damage();
        }
        Ok(!self.keys.is_empty())
    }

    /// Notes what the cursor has met.
    fn note_damage(&mut self) {
        let (misplaced, unread) = (self.cursor.misplaced() > 0, self.cursor.unreadable());
        if misplaced && !std::mem::replace(&mut self.found.misplaced, true) {
            self.map.met(evermap_pm::Error::damaged(0, MISPLACED).into());
        }
        if let Some(at) = unread
            && self.found.unread.replace(at).is_none()
        {
            self.map.met(evermap_pm::Error::damaged(at, UNREAD).into());
        }
    }

    /// Looks up keys that were fetched, and reads their records, until `each` returns `Break`.
    fn look_up(
        &mut self,
        value: &mut Vec<u8>,
        mut each: impl FnMut(&[u8], Result<Item<'_>>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.find_ahead(|key, found| match found {
            Ok(found) => {
                let item = found.read(value);
                (item.is_ok(), each(key, item))
            }
            Err(error) => (false, each(key, Err(error))),
        })
    }

    /// Looks up keys that were fetched, until `each` returns `Break`. It returns as well whether
    /// the record could be read.
    fn find_ahead(
        &mut self,
        mut each: impl FnMut(&[u8], Result<UnreadRecord<'_, M>>) -> (bool, ControlFlow<()>),
    ) -> Result<()> {
        let guard = self.map.enter()?;
        let places = self.at..self.keys.len().min(self.at + BATCH_KEYS);
        for at in places.end..self.keys.len().min(places.end + BATCH_KEYS) {
            let key = BytesRef { bytes: self.keys.key(at), hash: self.keys.word(at) };
            self.map.inner.index.prefetch_bucket(key);
        }
        let mut refs = [BytesRef { bytes: &[], hash: 0 }; BATCH_KEYS];
        for (key, at) in refs.iter_mut().zip(places.clone()) {
            *key = BytesRef { bytes: self.keys.key(at), hash: self.keys.word(at) };
        }
        let (refs, limit) = (&refs[..places.len()], self.limit);
        let (mut shown, mut last, mut unreadable) = (0, 0, 0);
        let mut are_shown = [false; BATCH_KEYS];
        let mut show = |at: usize, found: Result<UnreadRecord<'_, M>>| {
            (shown, last, are_shown[at]) = (shown + 1, at, true);
            let (is_readable, flow) = each(refs[at].bytes, found);
            unreadable += u64::from(!is_readable);
            flow?;
            if shown < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let looked_up = match self.map.find_batch(refs, &guard, Map::prior_access, &mut show) {
            // A part of the hash index cannot be read. It is reported for each key that leads
            // there, and only for those.
            Err(error) if error.is_damaged() => self.look_up_singly(refs, &guard, &mut show),
            looked_up => looked_up,
        };
        self.limit -= shown;
        let passed = match looked_up {
            Ok(ControlFlow::Continue(())) => refs.len(),
            // `each` wants no more, or what comes next cannot be looked up.
            Ok(ControlFlow::Break(())) | Err(_) if shown > 0 => last + 1,
            Ok(ControlFlow::Break(())) | Err(_) => 0,
        };
        self.at += passed;
        match self.map.unchanged_records() {
            Some(_) => {
                self.found.count(self.map, &refs[..passed], &are_shown, &guard);
                self.found.unreadable += unreadable;
            }
            // The number may be known later, but then not all of them were counted.
            None => self.found.is_whole = false,
        }
        looked_up.map(|_| ())
    }

    /// Looks keys up one by one. Returns what `show` returned last.
    #[cold]
    fn look_up_singly(
        &self,
        refs: &[BytesRef<'_>],
        guard: &Guard<'_>,
        show: &mut impl FnMut(usize, Result<UnreadRecord<'_, M>>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        for (at, key) in refs.chunks(1).enumerate() {
            let found = |_, found: Result<UnreadRecord<'_, M>>| show(at, found);
            let flow = match self.map.find_batch(key, guard, Map::prior_access, found) {
                Err(error) if error.is_damaged() => show(at, Err(error)),
                looked_up => looked_up?,
            };
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Copies some records ahead for the iterator. Returns `true` if there may be any.
    fn copy_ahead(&mut self) -> Result<bool> {
        if !self.fetch_keys()? {
            return Ok(false);
        }
        let mut items = std::mem::take(&mut self.items);
        let mut bytes = 0;
        let looked_up = self.look_up(&mut Vec::new(), |key, item| {
            let value = item.map(|item| item.value.to_vec());
            bytes += value.as_ref().map_or(0, Vec::len);
            items.push_back((key.to_vec(), value));
            if bytes < AHEAD_BYTES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        self.items = items;
        looked_up.map(|()| true)
    }
}

impl<M: Medium> Scan<'_, M> {
    fn step(&mut self) -> Option<Result<(Vec<u8>, Vec<u8>)>> {
        while !self.over {
            if !self.map.inner.is_open() {
                // What was copied ahead is not shown any more, as if it had been looked up only
                // now.
                self.over = true;
                return Some(Err(self.map.inner.refusal()));
            }
            if let Some((key, value)) = self.items.pop_front() {
                return Some(value.map(|value| (key, value)));
            }
            if let Some(error) = self.failed.take() {
                self.over = true;
                return Some(Err(error));
            }
            match self.copy_ahead() {
                Ok(true) => {}
                Ok(false) => match self.judge() {
                    Ok(()) => return self.losses.pop_front().map(Err),
                    Err(error) => self.failed = Some(error),
                },
                Err(error) => self.failed = Some(error),
            }
        }
        None
    }
}

impl<M: Medium> Iterator for Scan<'_, M> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    /// Returns the error of a damaged record, and goes on with the next. Returns any other error
    /// once, for example if the store was closed, and then ends.
    fn next(&mut self) -> Option<Self::Item> {
        self.face(false);
        self.step()
    }
}

impl<M: Medium> DoubleEndedIterator for Scan<'_, M> {
    /// Returns what comes last of what was not shown yet. O(log n) if [`next`](Iterator::next) was
    /// called before, as `next` is then after this; otherwise O(1).
    ///
    /// ```
    /// # use evermap::{Evermap, Options};
    /// # let map = Evermap::in_memory(Options::new().ordered(true))?.default_map();
    /// for key in ["a", "b", "c"] {
    ///     map.put(key, "")?;
    /// }
    /// let mut scan = map.scan(..)?;
    /// assert_eq!(scan.next_back().unwrap()?.0, b"c");
    /// assert_eq!(scan.next().unwrap()?.0, b"a");
    /// assert_eq!(scan.next_back().unwrap()?.0, b"b");
    /// assert!(scan.next().is_none() && scan.next_back().is_none());
    /// # Ok::<(), evermap::Error>(())
    /// ```
    fn next_back(&mut self) -> Option<Self::Item> {
        self.face(true);
        self.step()
    }
}

impl<M: Medium> FusedIterator for Scan<'_, M> {}
