//! Scanning an ordered index while it is being changed.

use std::cell::Cell;
use std::ops::{Bound, Range, RangeBounds};

use evermap_pm::{Error, Result};

use super::{OrderedIndex, Page};

/// The direction of a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Towards larger keys.
    Ascending,
    /// Towards smaller keys.
    Descending,
}

impl Direction {
    /// Returns the bound at which a scan continues. In ascending order `edge` is the first key that
    /// is still to be returned, in descending order the last one that is not.
    pub(super) fn next_bound<T>(self, edge: T) -> Bound<T> {
        match self {
            Direction::Ascending => Bound::Included(edge),
            Direction::Descending => Bound::Excluded(edge),
        }
    }
}

/// Returns the pairs of a range in order, and reads them a page at a time.
///
/// Between two pages a cursor holds only a key, no guard and no position in the index, so it may be
/// kept for any length of time. Its pages cover the range from one end to the other without gap or
/// overlap, and each page is what the index held at one moment. So a key that is present throughout
/// is returned exactly once, a key that is inserted or removed meanwhile is returned at most once,
/// keys are returned in strict order, and each pair was present at some moment while its page was
/// read. A cursor is not a snapshot: its pages are of different moments.
///
/// ```
/// use evermap_index::ordered::{Cursor, Direction, OrderedIndex, bplus::BPlus};
/// let index = BPlus::<40>::new();
/// for (key, word) in [("ant", 1), ("bee", 2), ("beetle", 3), ("cow", 4)] {
///     index.insert(key.as_bytes(), word)?;
/// }
/// let mut bees = Cursor::with_prefix(&index, b"bee", Direction::Descending);
/// assert_eq!(bees.next()?, Some((&b"beetle"[..], 3)));
/// assert_eq!(bees.next()?, Some((&b"bee"[..], 2)));
/// assert_eq!(bees.next()?, None);
/// # Ok::<(), evermap_pm::Error>(())
/// ```
pub struct Cursor<'i> {
    index: &'i dyn OrderedIndex,
    direction: Direction,
    /// The page, and where it begins.
    buffers: Buffers,
    /// The pairs of the page that are still to be returned.
    left: Range<usize>,
    /// The pair of the page that was returned last.
    shown: Option<usize>,
    /// The far end of the range.
    until: Bound<Vec<u8>>,
    /// Whether there is a page to read after this one.
    more: bool,
    /// Whether `page` was read.
    read: bool,
    /// The pairs that the pages so far have left out.
    misplaced: u64,
    /// Where something is that could not be read, so that the pages so far lack what is below it.
    unreadable: Option<u64>,
}

/// The most bytes of buffers that a thread keeps for its next cursor.
const SPARE_BYTES: usize = 64 << 10;

/// What cursors have allocated, without contents.
#[derive(Default)]
struct Spare {
    page: Page,
    from: Vec<u8>,
}

thread_local! {
    /// The buffers of the last cursor of this thread that is gone, for its next one: a short scan
    /// would spend much of its time on allocating some.
    static SPARE: Cell<Option<Spare>> = const { Cell::new(None) };
}

impl Spare {
    fn take() -> Self {
        // Not while the thread ends.
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        spare.unwrap_or_default()
    }
}

/// What a cursor has allocated. Dropping it keeps the memory for the next one. Apart from the
/// cursor, so that this borrows nothing when it is dropped.
struct Buffers {
    page: Page,
    /// The beginning of the page; before the first page was read, the beginning of the scan.
    from: Bound<Vec<u8>>,
}

impl Drop for Buffers {
    fn drop(&mut self) {
        let mut page = std::mem::take(&mut self.page);
        let mut from = match std::mem::replace(&mut self.from, Bound::Unbounded) {
            Bound::Included(buffer) | Bound::Excluded(buffer) => buffer,
            Bound::Unbounded => Vec::new(),
        };
        if page.capacity_bytes() + from.capacity() <= SPARE_BYTES {
            page.reset();
            from.clear();
            // Not while the thread ends.
            let _ = SPARE.try_with(|spare| spare.set(Some(Spare { page, from })));
        }
    }
}

impl<'i> Cursor<'i> {
    /// Creates a cursor over the keys in `range`: from its lower end up, or from its upper end
    /// down.
    pub fn new(
        index: &'i dyn OrderedIndex,
        range: impl RangeBounds<[u8]>,
        direction: Direction,
    ) -> Self {
        let (near, far) = match direction {
            Direction::Ascending => (range.start_bound(), range.end_bound()),
            Direction::Descending => (range.end_bound(), range.start_bound()),
        };
        let Spare { page, from: mut buffer } = Spare::take();
        let from = near.map(|key| {
            buffer.extend_from_slice(key);
            buffer
        });
        let (until, left) = (far.map(<[u8]>::to_vec), 0..0);
        let (shown, more, read, misplaced, unreadable) = (None, true, false, 0, None);
        Cursor {
            index,
            direction,
            buffers: Buffers { page, from },
            left,
            shown,
            until,
            more,
            read,
            misplaced,
            unreadable,
        }
    }

    /// Creates a cursor over the keys that begin with `prefix`.
    pub fn with_prefix(index: &'i dyn OrderedIndex, prefix: &[u8], direction: Direction) -> Self {
        let upper = prefix_end(prefix);
        Self::new(index, (Bound::Included(prefix), borrowed(&upper)), direction)
    }

    /// Returns the next pair, or `None` at the end. Amortised O(1), and O(log n) once a page.
    ///
    /// # Errors
    /// The error of the index if a page cannot be read; the next call tries again. `Damaged` if the
    /// scan does not advance.
    #[allow(clippy::should_implement_trait)] // the key is borrowed from the cursor
    #[inline]
    pub fn next(&mut self) -> Result<Option<(&[u8], u64)>> {
        loop {
            let next = match self.direction {
                Direction::Ascending => self.left.next(),
                Direction::Descending => self.left.next_back(),
            };
            if let Some(at) = next {
                self.shown = Some(at);
                return Ok(Some((
                    self.buffers.page.pairs.key(at),
                    self.buffers.page.pairs.word(at),
                )));
            }
            if !self.more {
                return Ok(None);
            }
            self.read_next_page()?;
        }
    }

    /// Says how many more pairs the caller has use for, as far as it knows. Pages that are read
    /// from now on need not have more, so a short scan reads less. It may still return more.
    pub fn expect(&mut self, pairs: usize) {
        self.buffers.page.expect(pairs);
    }

    /// Returns the number of pairs that were left out so far because they were not where they
    /// belong: damage.
    pub fn misplaced(&self) -> u64 {
        self.misplaced
    }

    /// Returns the offset of a part of the index that could not be read and was passed over, if
    /// there was one so far: damage.
    pub fn unreadable(&self) -> Option<u64> {
        self.unreadable
    }

    /// Returns the bound at which another cursor in the same direction would continue this scan:
    /// the key returned last, excluded, or an equivalent bound.
    pub fn position(&self) -> Bound<&[u8]> {
        match self.shown {
            Some(at) => Bound::Excluded(self.buffers.page.pairs.key(at)),
            None => borrowed(&self.buffers.from),
        }
    }

    /// Reads the next page.
    #[cold]
    fn read_next_page(&mut self) -> Result<()> {
        if self.read {
            // All pairs up to the edge have been returned.
            let edge = std::mem::take(&mut self.buffers.page.edge);
            let old = std::mem::replace(&mut self.buffers.from, self.direction.next_bound(edge));
            if let Bound::Included(buffer) | Bound::Excluded(buffer) = old {
                self.buffers.page.edge = buffer;
            }
            (self.read, self.shown) = (false, None);
        }
        self.buffers.page.clear();
        self.index.page(borrowed(&self.buffers.from), self.direction, &mut self.buffers.page)?;
        self.misplaced += self.buffers.page.misplaced();
        self.unreadable = self.unreadable.or(self.buffers.page.unreadable());
        if self.buffers.page.more && !self.advances() {
            return Err(Error::damaged(0, "a scan of an ordered index does not advance"));
        }
        self.read = true;
        self.restrict_to_range();
        Ok(())
    }

    /// Returns `true` if the next page begins beyond the beginning of this one. Otherwise a scan of
    /// a damaged index might never end.
    fn advances(&self) -> bool {
        let edge = &self.buffers.page.edge[..];
        match (self.direction, borrowed(&self.buffers.from)) {
            (_, Bound::Unbounded) => true,
            (Direction::Ascending, Bound::Included(from) | Bound::Excluded(from)) => edge > from,
            (Direction::Descending, Bound::Included(from)) => edge <= from,
            (Direction::Descending, Bound::Excluded(from)) => edge < from,
        }
    }

    /// Drops the pairs beyond the far end of the range.
    fn restrict_to_range(&mut self) {
        let (pairs, edge) = (&self.buffers.page.pairs, &self.buffers.page.edge[..]);
        let until = borrowed(&self.until);
        let (left, reached) = match (self.direction, until) {
            (_, Bound::Unbounded) => (0..pairs.len(), false),
            (Direction::Ascending, Bound::Included(last)) => {
                (0..pairs.partition_point(0..pairs.len(), |key| key <= last), edge > last)
            }
            (Direction::Ascending, Bound::Excluded(end)) => {
                (0..pairs.partition_point(0..pairs.len(), |key| key < end), edge >= end)
            }
            (Direction::Descending, Bound::Included(first)) => (
                pairs.partition_point(0..pairs.len(), |key| key < first)..pairs.len(),
                edge <= first,
            ),
            (Direction::Descending, Bound::Excluded(end)) => {
                (pairs.partition_point(0..pairs.len(), |key| key <= end)..pairs.len(), edge <= end)
            }
        };
        self.left = left;
        self.more = self.buffers.page.more && !reached;
    }
}

/// Returns the upper bound of the keys that begin with `prefix`.
pub fn prefix_end(prefix: &[u8]) -> Bound<Vec<u8>> {
    // The prefix up to the last byte that can be incremented, with that byte incremented.
    match prefix.iter().rposition(|&byte| byte != u8::MAX) {
        Some(last) => {
            let mut key = prefix[..=last].to_vec();
            key[last] += 1;
            Bound::Excluded(key)
        }
        None => Bound::Unbounded,
    }
}

fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}
