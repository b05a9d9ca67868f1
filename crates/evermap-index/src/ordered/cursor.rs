//! Walking over an ordered index while others change it.

use std::ops::{Bound, Range, RangeBounds};

use evermap_pm::{Error, Result};

use super::{OrderedIndex, Page};

/// Which way a cursor goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To larger keys.
    Ascending,
    /// To smaller keys.
    Descending,
}

impl Direction {
    /// The bound from which to go on where `edge` is the first key not to be shown in descending order, or the first
    /// to be shown in ascending order.
    pub(super) fn on_from<T>(self, edge: T) -> Bound<T> {
        match self {
            Direction::Ascending => Bound::Included(edge),
            Direction::Descending => Bound::Excluded(edge),
        }
    }
}

/// Shows the pairs of a range in order, a page at a time.
///
/// A cursor holds no guard and no place in the index between two pages, only a key; so it may be kept for as long as
/// one likes. Its pages cover the range from one end to the other without gap or overlap, and each is what the index
/// held at one moment. So a key that stays is shown exactly once, one that comes or goes meanwhile at most once, keys
/// come strictly in order, and each pair was there at some moment while its page was read. It is no snapshot: pages
/// are of different moments.
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
    page: Page,
    /// Pairs of the page that are still to be shown.
    left: Range<usize>,
    /// The pair of the page that was shown last.
    shown: Option<usize>,
    /// Where the page began; before the first, where it is to begin.
    from: Bound<Vec<u8>>,
    /// The far end of the range.
    until: Bound<Vec<u8>>,
    /// Whether there is a page to read after this one.
    more: bool,
    /// Whether `page` was read.
    read: bool,
}

impl<'i> Cursor<'i> {
    /// Over the keys in `range`, from its lower end up or from its upper end down.
    pub fn new(
        index: &'i dyn OrderedIndex,
        range: impl RangeBounds<[u8]>,
        direction: Direction,
    ) -> Self {
        let (lower, upper) = (owned(range.start_bound()), owned(range.end_bound()));
        let (from, until) = match direction {
            Direction::Ascending => (lower, upper),
            Direction::Descending => (upper, lower),
        };
        let (page, left) = (Page::default(), 0..0);
        Cursor { index, direction, page, left, shown: None, from, until, more: true, read: false }
    }

    /// Over the keys that begin with `prefix`.
    pub fn with_prefix(index: &'i dyn OrderedIndex, prefix: &[u8], direction: Direction) -> Self {
        let upper = prefix_end(prefix);
        Self::new(index, (Bound::Included(prefix), borrowed(&upper)), direction)
    }

    /// The next pair, or nothing at the end. Amortised O(1), and O(log n) once a page.
    ///
    /// # Errors
    /// What the index answers to reading a page; calling again tries again. `Damaged` if that leads nowhere.
    #[allow(clippy::should_implement_trait)] // the key is borrowed from the cursor
    pub fn next(&mut self) -> Result<Option<(&[u8], u64)>> {
        loop {
            let next = match self.direction {
                Direction::Ascending => self.left.next(),
                Direction::Descending => self.left.next_back(),
            };
            if let Some(at) = next {
                self.shown = Some(at);
                return Ok(Some((self.page.pairs.key(at), self.page.pairs.word(at))));
            }
            if !self.more {
                return Ok(None);
            }
            self.turn()?;
        }
    }

    /// The bound from which another cursor in the same direction would show what this one has not shown yet: the key
    /// shown last, excluded, or something equivalent.
    pub fn position(&self) -> Bound<&[u8]> {
        match self.shown {
            Some(at) => Bound::Excluded(self.page.pairs.key(at)),
            None => borrowed(&self.from),
        }
    }

    /// Reads the next page.
    fn turn(&mut self) -> Result<()> {
        if self.read {
            // Everything up to the edge has been shown.
            let edge = std::mem::take(&mut self.page.edge);
            let old = std::mem::replace(&mut self.from, self.direction.on_from(edge));
            if let Bound::Included(room) | Bound::Excluded(room) = old {
                self.page.edge = room;
            }
            (self.read, self.shown) = (false, None);
        }
        self.page.clear();
        self.index.page(borrowed(&self.from), self.direction, &mut self.page)?;
        if self.page.more && !self.comes_forward() {
            return Err(Error::damaged(0, "a scan of an ordered index goes round in a circle"));
        }
        self.read = true;
        self.narrow();
        Ok(())
    }

    /// Whether the next page begins beyond where this one did. Otherwise a scan of a damaged index might never end.
    fn comes_forward(&self) -> bool {
        let edge = &self.page.edge[..];
        match (self.direction, borrowed(&self.from)) {
            (_, Bound::Unbounded) => true,
            (Direction::Ascending, Bound::Included(from) | Bound::Excluded(from)) => edge > from,
            (Direction::Descending, Bound::Included(from)) => edge <= from,
            (Direction::Descending, Bound::Excluded(from)) => edge < from,
        }
    }

    /// Leaves out what is beyond the far end of the range.
    fn narrow(&mut self) {
        let (pairs, edge) = (&self.page.pairs, &self.page.edge[..]);
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
        self.more = self.page.more && !reached;
    }
}

/// The upper bound of the keys that begin with `prefix`.
pub fn prefix_end(prefix: &[u8]) -> Bound<Vec<u8>> {
    // The prefix, with its last byte that can be raised raised.
    match prefix.iter().rposition(|&byte| byte != u8::MAX) {
        Some(last) => {
            let mut key = prefix[..=last].to_vec();
            key[last] += 1;
            Bound::Excluded(key)
        }
        None => Bound::Unbounded,
    }
}

fn owned(bound: Bound<&[u8]>) -> Bound<Vec<u8>> {
    bound.map(<[u8]>::to_vec)
}

fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}
