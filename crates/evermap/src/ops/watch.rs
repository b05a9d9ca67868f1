//! Watching a map: the changes of its keys, as they are made.
//!
//! What is in the file anyway, the CAS ids of the records, tells a later process which of them are
//! newer than a position.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evermap_pm::Medium;
use evermap_pm::medium::Mapped;

#[cfg(doc)]
use crate::Error;
use crate::watch::queue::Queue;
use crate::watch::{ChangeKind, WatchEvent};
use crate::{Map, Result};

/// The changes of the keys of a map that begin with a prefix: see [`Map::watch`].
///
/// Dropping it ends the watching. It is a handle of the map, and keeps the file open as one.
pub struct Watch<M: Medium = Mapped> {
    map: Map<M>,
    queue: Arc<Queue>,
    /// Records that are newer than the position that it began with, until all were shown.
    newer: Option<NewerRecords>,
    /// The number of events that were taken from the queue.
    taken: u64,
    /// What [`position`](Watch::position) returns.
    position: u64,
    /// The position after this number of events.
    next_position: Option<(u64, u64)>,
}

/// # Watching changes
impl<M: Medium> Map<M> {
    /// Watches the keys that begin with `prefix`: returns what tells of each change that is made
    /// from now on. The consumer reads the values.
    ///
    /// ```
    /// use evermap::{ChangeKind, Evermap, Options, WatchEvent};
    /// let map = Evermap::in_memory(Options::new())?.default_map();
    /// let mut watch = map.watch("user:")?;
    /// map.put("user:1", "ann")?;
    /// map.put("visits", "7")?;
    /// map.delete("user:1")?;
    /// let mut changes = Vec::new();
    /// while let Some(event) = watch.try_recv()? {
    ///     if let WatchEvent::Changed { key, kind, .. } = event {
    ///         changes.push((key, kind));
    ///     }
    /// }
    /// let key = b"user:1".to_vec();
    /// assert_eq!(changes, [(key.clone(), ChangeKind::Stored), (key, ChangeKind::Removed)]);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Guarantees
    ///
    /// * Each change that begins after this has returned, and is acknowledged, is reported before
    ///   it is acknowledged, in the order in which the changes of its key are made. Changes of
    ///   different keys, of a batch too, may be in any order. One that was not acknowledged,
    ///   because of an error or because the process ended, may have been reported as well.
    /// * When a change is reported it can be read. Who reads the key may find a later one already.
    /// * Writers never wait for a consumer. One that is too slow is [told](WatchEvent::Missed) that
    ///   it has missed changes, and where it can go on.
    /// * What moves records, such as compaction, changes nothing and is not reported.
    /// * With a log, a change can be reported before it is in the log, so loss of power can undo
    ///   what was reported, unless the consumer calls [`sync`](crate::Evermap::sync) first.
    ///
    /// # Cost
    ///
    /// While nobody watches, a change loads one flag. While the map is watched, it takes a lock
    /// that it shares with a sixteenth of the keys, and copies its key for each watch whose prefix
    /// it has; and [`put_many`](Map::put_many) stores one record after the other. A watch keeps at
    /// most 8,192 changes with 1 MiB of keys, or [what it was told](Watch::set_limits).
    ///
    /// This call waits until all operations and [readers](crate::Reader) that run have ended.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::GuardHeld`]; [`Error::Closed`], [`Error::Dropped`], and
    /// [`Error::Storage`] with `Forked` or `Poisoned`.
    pub fn watch(&self, prefix: impl AsRef<[u8]>) -> Result<Watch<M>> {
        self.begin_watch(prefix.as_ref(), None)
    }

    /// Watches as [`watch`](Map::watch) does, and reports first what has changed since
    /// [`position`](Watch::position), which may be of an earlier process: each record that is there
    /// and has at least that CAS id as [`Stored`](ChangeKind::Stored), in no particular order, and
    /// before all of them that the map was [cleared](WatchEvent::Cleared), if it was since. At
    /// least once: some will have been reported before. Position 0 shows all records.
    ///
    /// Which keys were **removed** since that position, have expired or were evicted, is not known:
    /// a consumer that keeps what it was shown has to look its keys up. Neither is it known which
    /// records were touched. O(records in the map), as the records are in no order of time.
    ///
    /// ```
    /// use evermap::{Evermap, Options, WatchEvent};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("map");
    /// let map = Evermap::open(&path, Options::new())?.default_map();
    /// map.put("old", "")?;
    /// let position = map.watch("")?.position()?;
    /// map.put("new", "")?;
    /// map.into_db().close()?;
    ///
    /// let map = Evermap::open(&path, Options::new())?.default_map();
    /// let mut watch = map.watch_since("", position)?;
    /// let Some(WatchEvent::Changed { key, .. }) = watch.try_recv()? else { panic!() };
    /// assert_eq!(key, b"new");
    /// assert_eq!(watch.try_recv()?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A position that is ahead of the store, because loss of power or restoring a backup has
    /// brought it back to an earlier state, counts as 0 until the store has passed it.
    ///
    /// # Errors
    /// See [`watch`](Map::watch).
    pub fn watch_since(&self, prefix: impl AsRef<[u8]>, position: u64) -> Result<Watch<M>> {
        self.begin_watch(prefix.as_ref(), Some(position))
    }

    fn begin_watch(&self, prefix: &[u8], since: Option<u64>) -> Result<Watch<M>> {
        self.db.ensure_no_guard("watch")?;
        self.db.file.ensure_writable()?;
        if !self.inner.is_open() {
            return Err(self.inner.refusal());
        }
        let given = self.db.file.cas_counter.mark();
        let since = since.map(|since| if since > given { 0 } else { since });
        let queue = Arc::new(Queue::new(prefix));
        self.inner.feed.add(&queue);
        // From here on, dropping it removes the queue.
        let mut watch = Watch {
            map: self.clone(),
            queue,
            newer: None,
            taken: 0,
            position: since.unwrap_or(given),
            next_position: None,
        };
        self.wait_for_writers()?;
        if let Some(since) = since {
            watch.newer = Some(NewerRecords::new(since, self.inner.flush.mark()));
        }
        Ok(watch)
    }

    /// Waits until all operations that run now have ended.
    fn wait_for_writers(&self) -> Result<()> {
        Ok(self.db.file.pool.epoch().synchronize().map_err(evermap_pm::Error::from)?)
    }
}

impl<M: Medium> Watch<M> {
    /// Returns the next event, and waits until there is one.
    ///
    /// # Errors
    /// [`Error::Closed`] and [`Error::Dropped`] after everything was returned, and before that the
    /// error of each record that [`watch_since`](Map::watch_since) cannot read.
    pub fn recv(&mut self) -> Result<WatchEvent> {
        loop {
            if let Some(event) = self.next_before(None)? {
                return Ok(event);
            }
        }
    }

    /// Returns the next event, if there is one before this time is over.
    ///
    /// # Errors
    /// See [`recv`](Watch::recv).
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Option<WatchEvent>> {
        self.next_before(Instant::now().checked_add(timeout))
    }

    /// Returns the next event, if there is one.
    ///
    /// # Errors
    /// See [`recv`](Watch::recv).
    pub fn try_recv(&mut self) -> Result<Option<WatchEvent>> {
        self.recv_timeout(Duration::ZERO)
    }

    /// Returns the next event; `None` if there is none before `deadline`.
    fn next_before(&mut self, deadline: Option<Instant>) -> Result<Option<WatchEvent>> {
        loop {
            if let Some(event) = self.take() {
                return event.map(Some);
            }
            if !self.map.inner.is_open() {
                // Operations that began before may still report something.
                self.map.wait_for_writers()?;
                return self.take().unwrap_or_else(|| Err(self.map.inner.refusal())).map(Some);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            self.queue.wait(left, &|| self.map.inner.is_open());
        }
    }

    /// Returns what is there.
    fn take(&mut self) -> Option<Result<WatchEvent>> {
        if let Some(newer) = &mut self.newer {
            match newer.next(&self.map, self.queue.prefix()) {
                Some(event) => return Some(event),
                None => self.newer = None,
            }
        }
        let event = self.queue.pop()?;
        self.taken += 1;
        Some(Ok(event))
    }

    /// Returns a position from which [`watch_since`](Map::watch_since) can go on, in this process
    /// or a later one, once the consumer is done with everything that was returned: every record
    /// with a smaller CAS id was reported.
    ///
    /// It moves on when the queue is empty, or else at the first call after what is in it now was
    /// returned. Waits as [`watch`](Map::watch) does, so it should not be called for each change.
    ///
    /// # Errors
    /// [`Error::GuardHeld`], and [`Error::Storage`] with `Forked` or `Poisoned`.
    pub fn position(&mut self) -> Result<u64> {
        self.map.db.ensure_no_guard("position")?;
        self.map.db.file.pool.region().ensure_writable()?;
        if self.newer.is_some() {
            return Ok(self.position);
        }
        if self.next_position.is_none() {
            // Who has taken an id below it is a writer that runs, or has ended and reported.
            let given = self.map.db.file.cas_counter.mark();
            self.map.wait_for_writers()?;
            self.next_position = Some((self.queue.added(), given));
        }
        if let Some((events, position)) = self.next_position.filter(|next| next.0 <= self.taken) {
            debug_assert!(events <= self.taken);
            (self.position, self.next_position) = (position, None);
        }
        Ok(self.position)
    }

    /// Sets how many changes, and how many bytes of their keys, it keeps at most. More are
    /// [missed](WatchEvent::Missed).
    pub fn set_limits(&mut self, changes: usize, key_bytes: usize) {
        self.queue.set_limits(changes, key_bytes);
    }
}

impl<M: Medium> Drop for Watch<M> {
    fn drop(&mut self) {
        self.map.inner.feed.remove(&self.queue);
    }
}

/// A walk over the records of a map, one page at a time. No guard is held between two pages.
struct NewerRecords {
    /// The smallest CAS id of the records that are shown.
    since: u64,
    /// Where the next page is, unless there is none.
    position: Option<u64>,
    found: VecDeque<Result<WatchEvent>>,
}

impl NewerRecords {
    /// `mark` is the CAS id below which everything was cleared.
    fn new(since: u64, mark: u64) -> Self {
        let cleared = (mark > since).then_some(Ok(WatchEvent::Cleared { below: mark }));
        NewerRecords { since, position: Some(0), found: cleared.into_iter().collect() }
    }

    /// Returns the next of them that has a key with `prefix`, or the error of what cannot be read.
    fn next<M: Medium>(&mut self, map: &Map<M>, prefix: &[u8]) -> Option<Result<WatchEvent>> {
        loop {
            if let Some(event) = self.found.pop_front() {
                return Some(event);
            }
            let (since, found) = (self.since, &mut self.found);
            let next = map.find_page(self.position?, |record| match record {
                Ok(record) if record.cas() < since || !record.key().starts_with(prefix) => {}
                Ok(record) => {
                    let (key, kind, cas) =
                        (record.key().to_vec(), ChangeKind::Stored, record.cas());
                    found.push_back(Ok(WatchEvent::Changed { key, kind, cas }));
                }
                Err(error) => found.push_back(Err(error)),
            });
            match next {
                Ok(next) => self.position = next,
                Err(error) => {
                    self.position = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Evermap, Options};

    #[test]
    fn nobody_watches_when_the_last_watch_is_dropped() {
        let map = Evermap::in_memory(Options::new()).unwrap().default_map();
        let feed = &map.inner.feed;
        assert!(!feed.is_watched());
        let (first, second) = (map.watch("a").unwrap(), map.watch("b").unwrap());
        drop(first);
        assert!(feed.is_watched());
        drop(second);
        assert!(!feed.is_watched());
    }
}
