//! Transactions: reads and changes of several keys, as if no other thread changed them meanwhile.
//!
//! A transaction is optimistic. What it reads becomes the conditions of a [`Batch`], what it
//! changes becomes the changes, and [applying](Map::apply) that is its end: backward validation.
//! So it holds no lock and no guard while it runs, and needs nothing that batches do not have.

use std::sync::Arc;

use evermap_pm::Medium;
use evermap_pm::medium::Mapped;
use evermap_pm::sync::Backoff;

use crate::batch::{Applied, BATCH_MAX, Base, Batch, Change, Part};
use crate::ops::atomic::sum;
use crate::record::ensure_length;
use crate::{Error, Evermap, Map, MapOptions, Meta, Result, Snapshot};

/// How a [transaction](Evermap::transaction_with) is run.
///
/// ```
/// use evermap::{Evermap, Options, TransactionOptions};
/// let db = Evermap::in_memory(Options::new())?;
/// let map = db.default_map();
/// let thrice = TransactionOptions::new().attempts(3);
/// db.transaction_with(thrice, |tx| tx.put(&map, "key", "value"))?;
/// # Ok::<(), evermap::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct TransactionOptions {
    /// `None`: any number.
    attempts: Option<u32>,
}

impl TransactionOptions {
    /// Runs a transaction again until nothing comes in between.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how often a transaction is run, at least once, before it ends with
    /// [`Error::Conflict`]. The default is no limit.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = Some(attempts.max(1));
        self
    }
}

/// A transaction that is running: see [`Evermap::transaction`].
pub struct Transaction<'s, M: Medium = Mapped> {
    db: &'s Evermap<M>,
    default: Map<M>,
    /// Where it reads, if not in the store as it is.
    snapshot: Option<&'s Evermap<M>>,
    batch: Batch,
    /// The maps that the batch names, in its order.
    named: Vec<Map<M>>,
    /// A key that was changed between two reads of it.
    conflict: Option<Error>,
}

impl<M: Medium> std::fmt::Debug for Transaction<'_, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction").field("batch", &self.batch).finish_non_exhaustive()
    }
}

/// How an attempt to run a transaction ended.
enum Ended<T, E> {
    Returned(Result<T, E>),
    /// Something that was read has changed. The error says what.
    Overtaken(Error),
}

/// # Transactions
impl<M: Medium> Evermap<M> {
    /// Runs `body`, and makes the changes that it has requested, all of them or none; as if nobody
    /// else changed anything from its first read to its last change.
    ///
    /// ```
    /// use evermap::{Error, Evermap, MapOptions, Options};
    /// let db = Evermap::in_memory(Options::new())?;
    /// let (stock, orders) = (db.default_map(), db.map("orders", MapOptions::new())?);
    /// stock.put("books", "1")?;
    /// db.transaction(|tx| {
    ///     if tx.get(&stock, "books")?.as_deref() == Some(b"1") {
    ///         tx.remove(&stock, "books")?;
    ///         tx.put(&orders, "17", "a book")?;
    ///     }
    ///     Ok::<_, Error>(())
    /// })?;
    /// assert!(orders.contains("17")? && !stock.contains("books")?);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// `body` reads and changes through the [`Transaction`], with handles of any maps of this file.
    /// It is run again if something that it has read was changed before its changes were made. So
    /// it should do nothing else that others can see, and must not change the keys in another way:
    /// it would be run again without end. No lock or guard is held while it runs.
    ///
    /// What is guaranteed:
    /// * When the changes are made, every key that was read has the record that was read, or is
    ///   absent if it was: checked atomically with the changes, as the conditions of a
    ///   [`Batch`] are. So transactions that return `Ok`, those that change nothing included,
    ///   are serializable over the keys that they name, together with all operations on single
    ///   keys and with batches.
    /// * If `body` returns an error, nothing is changed, and it is returned, if what was read is
    ///   still so; otherwise `body` is run again. If it panics, nothing is changed.
    /// * After a crash at any moment all changes are there or none; when this returns, all are
    ///   durable.
    ///
    /// What is not:
    /// * While `body` runs, two reads may be of different moments, and show something that never
    ///   was. It is run again then, but must not panic, loop or allocate without limit on it.
    ///   [`snapshot_transaction`](Evermap::snapshot_transaction) has no such reads.
    /// * Only keys that were named are protected. A walk, a scan or a count in `body` may miss what
    ///   comes meanwhile, or show what goes.
    /// * [`touch`](Map::touch) changes no version, so it is no conflict.
    /// * A transaction that reads many keys which others change often may be run again and again:
    ///   some other change is made each time, but there is no queue.
    ///   [`attempts`](TransactionOptions::attempts) bounds that.
    ///
    /// A transaction may name [`BATCH_MAX`] keys. Expected O(keys) for each attempt.
    ///
    /// # Errors
    /// What `body` returns; otherwise those of [`Map::apply`].
    pub fn transaction<T, E: From<Error>>(
        &self,
        body: impl FnMut(&mut Transaction<'_, M>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.transaction_with(TransactionOptions::new(), body)
    }

    /// Runs a [transaction](Evermap::transaction) with options.
    ///
    /// # Errors
    /// See [`transaction`](Evermap::transaction); [`Error::Conflict`] after as many
    /// [attempts](TransactionOptions::attempts) as there may be.
    pub fn transaction_with<T, E: From<Error>>(
        &self,
        options: TransactionOptions,
        mut body: impl FnMut(&mut Transaction<'_, M>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut transaction = Transaction::new(self, None);
        retry(options, || {
            transaction.clear();
            let result = body(&mut transaction);
            transaction.end(result)
        })
    }
}

impl Evermap {
    /// Runs a [transaction](Evermap::transaction) that reads from a [snapshot](Evermap::snapshot),
    /// a new one for each attempt: everything that `body` reads is of one moment. It may look at
    /// anything else in the snapshot too; only what it reads through the [`Transaction`] is
    /// protected.
    ///
    /// A transaction that changes nothing is never run again: it takes place at the moment of its
    /// snapshot. Taking a snapshot waits for operations that are running, and costs more than the
    /// usual transaction by far.
    ///
    /// ```
    /// use evermap::{Error, Evermap, Options, TransactionOptions};
    /// # let dir = tempfile::tempdir()?;
    /// let db = Evermap::open(dir.path().join("map"), Options::new())?;
    /// let map = db.default_map();
    /// map.put("a", "1")?;
    /// db.snapshot_transaction(TransactionOptions::new(), |tx, snapshot| {
    ///     let count = snapshot.default_map().iter().count();
    ///     assert!(tx.get(&map, "a")?.is_some() && count == 1);
    ///     tx.put(&map, "count", count.to_string())
    /// })?;
    /// assert_eq!(map.get("count")?.as_deref(), Some(&b"1"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`transaction_with`](Evermap::transaction_with) and of
    /// [`snapshot`](Evermap::snapshot).
    pub fn snapshot_transaction<T, E: From<Error>>(
        &self,
        options: TransactionOptions,
        mut body: impl FnMut(&mut Transaction<'_>, &Snapshot) -> Result<T, E>,
    ) -> Result<T, E> {
        retry(options, || match self.snapshot() {
            Err(error) => Ended::Returned(Err(error.into())),
            Ok(snapshot) => {
                let mut transaction = Transaction::new(self, Some(&snapshot));
                let result = body(&mut transaction, &snapshot);
                transaction.end(result)
            }
        })
    }
}

/// Makes attempts until one is not overtaken, or there were too many.
fn retry<T, E: From<Error>>(
    options: TransactionOptions,
    mut attempt: impl FnMut() -> Ended<T, E>,
) -> Result<T, E> {
    let mut backoff = Backoff::new();
    let mut attempts = 0_u32;
    loop {
        let conflict = match attempt() {
            Ended::Returned(result) => return result,
            Ended::Overtaken(conflict) => conflict,
        };
        attempts = attempts.saturating_add(1);
        if options.attempts.is_some_and(|most| attempts >= most) {
            return Err(conflict.after(attempts).into());
        }
        backoff.wait_long();
    }
}

impl<'s, M: Medium> Transaction<'s, M> {
    fn new(db: &'s Evermap<M>, snapshot: Option<&'s Evermap<M>>) -> Self {
        let (batch, named, conflict) = (Batch::new(), Vec::new(), None);
        Transaction { db, default: db.default_map(), snapshot, batch, named, conflict }
    }

    fn clear(&mut self) {
        self.batch.clear();
        self.named.clear();
        self.conflict = None;
    }

    /// Returns the value of `key` in `map`, or `None` if the key is absent: with the changes that
    /// this transaction has requested so far.
    ///
    /// ```
    /// # let db = evermap::Evermap::in_memory(evermap::Options::new())?;
    /// # let map = db.default_map();
    /// db.transaction(|tx| {
    ///     assert_eq!(tx.get(&map, "key")?, None);
    ///     tx.put(&map, "key", "value")?;
    ///     assert_eq!(tx.get(&map, "key")?, Some(b"value".to_vec()));
    ///     Ok::<_, evermap::Error>(())
    /// })?;
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// A key that this transaction has put or removed is not read in the store, and so is not
    /// protected from changes of others, which come before the transaction then.
    ///
    /// # Errors
    /// See [`Map`]; [`Error::OtherStore`] for a map of another store or of a snapshot;
    /// [`Error::BatchTooLarge`]; [`Error::NotACounter`] and [`Error::Overflow`] if something was
    /// [added](Transaction::add) to what is no counter. [`Error::Conflict`] if the key was read
    /// before and has changed since: whatever `body` does about it, it is run again.
    pub fn get(&mut self, map: &Map<M>, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        Ok(self.get_with_meta(map, key)?.map(|(value, _)| value))
    }

    /// Returns the value of `key`, as [`get`](Transaction::get) does, with its flags, expiry and
    /// marks.
    ///
    /// # Errors
    /// Those of [`get`](Transaction::get).
    pub fn get_with_meta(
        &mut self,
        map: &Map<M>,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<(Vec<u8>, Meta)>> {
        let key = key.as_ref();
        let Change { base, added } = &self.part(map, key)?.change;
        let added = *added;
        let before = match base {
            Base::Put(value, meta) => Some((value.clone(), *meta)),
            Base::Remove => None,
            Base::Keep => self.read(map, key)?,
        };
        let Some(delta) = added else { return Ok(before) };
        let (_, after) = sum(key, before.as_ref().map(|(value, _)| &value[..]), delta)?;
        let meta = before.map_or_else(Meta::default, |(_, meta)| meta);
        Ok(Some((after.to_le_bytes().to_vec(), meta)))
    }

    /// Requests that `key` in `map` be bound to `value`, whether or not it is present.
    ///
    /// # Errors
    /// [`Error::ValueTooLong`], and those of [`remove`](Transaction::remove).
    pub fn put(
        &mut self,
        map: &Map<M>,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.put_with(map, key, value, Meta::default())
    }

    /// Requests that `key` be bound to `value`, as [`put`](Transaction::put) does, with flags and
    /// expiry.
    ///
    /// # Errors
    /// [`Error::ExpiryTooLate`], and those of [`put`](Transaction::put).
    pub fn put_with(
        &mut self,
        map: &Map<M>,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        meta: Meta,
    ) -> Result<()> {
        let value = value.as_ref();
        ensure_length(value)?;
        meta.expiry.encode()?;
        self.part(map, key.as_ref())?.change = Base::Put(value.to_vec(), meta).into();
        Ok(())
    }

    /// Requests that `delta` be added to the counter under `key`. The counter is not read, so two
    /// transactions that add to it are no conflict; if it is no counter, or the sum does not fit,
    /// the transaction fails with that error at its end.
    ///
    /// # Errors
    /// Those of [`remove`](Transaction::remove).
    pub fn add(&mut self, map: &Map<M>, key: impl AsRef<[u8]>, delta: i64) -> Result<()> {
        let added = &mut self.part(map, key.as_ref())?.change.added;
        *added.get_or_insert(0) += i128::from(delta);
        Ok(())
    }

    /// Requests that `key` be removed from `map`, if it is present.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`], [`Error::BatchTooLarge`], [`Error::Dropped`], [`Error::Closed`];
    /// [`Error::OtherStore`] for a map of another store or of a snapshot.
    pub fn remove(&mut self, map: &Map<M>, key: impl AsRef<[u8]>) -> Result<()> {
        self.part(map, key.as_ref())?.change = Base::Remove.into();
        Ok(())
    }

    /// Returns what the transaction does to a key.
    fn part(&mut self, map: &Map<M>, key: &[u8]) -> Result<&mut Part> {
        map.key(key)?;
        self.select(map)?;
        // Kept if it is one too many, so that it is refused whatever the caller does now.
        self.batch.part(key);
        let len = self.batch.len();
        if len > BATCH_MAX {
            return Err(Error::BatchTooLarge { len, max: BATCH_MAX });
        }
        Ok(self.batch.part(key))
    }

    /// Makes the batch continue with this map.
    fn select(&mut self, map: &Map<M>) -> Result<()> {
        if !Arc::ptr_eq(&map.db.file, &self.db.file) {
            return Err(Error::OtherStore { map: map.name().map(Into::into) });
        }
        if !map.inner.is_open() {
            return Err(map.inner.refusal());
        }
        self.batch.in_map(map.name());
        let Some(at) = self.batch.map.checked_sub(1) else { return Ok(()) };
        match self.named.get(at) {
            None => self.named.push(map.clone()),
            Some(known) if Arc::ptr_eq(&known.inner, &map.inner) => {}
            // Of two maps of one name, the first one was dropped.
            Some(known) => return Err(known.inner.refusal()),
        }
        Ok(())
    }

    /// Reads a key, and notes which version was found.
    fn read(&mut self, map: &Map<M>, key: &[u8]) -> Result<Option<(Vec<u8>, Meta)>> {
        let found = match self.snapshot {
            None => map.read_version(key)?,
            Some(snapshot) => read_in(snapshot, map.name(), key)?,
        };
        let (found, cas) = match found {
            None => (None, None),
            Some((value, meta, cas)) => (Some((value, meta)), Some(cas)),
        };
        let expected = &mut self.part(map, key)?.expected;
        match expected.first() {
            None => expected.push(cas),
            Some(before) if *before == cas => {}
            Some(_) => {
                self.conflict = Some(Error::conflict(map.name(), key));
                return Err(Error::conflict(map.name(), key));
            }
        }
        Ok(found)
    }

    /// Ends the transaction, for which its body has returned this.
    fn end<T, E: From<Error>>(&mut self, result: Result<T, E>) -> Ended<T, E> {
        if let Some(conflict) = self.conflict.take() {
            return Ended::Overtaken(conflict);
        }
        if result.is_err() {
            // Only what was read has to be confirmed.
            self.batch.parts.iter_mut().for_each(|part| part.change = Change::default());
        }
        match self.commit() {
            Ok(Applied::Refused { map, key, .. }) => {
                Ended::Overtaken(Error::conflict(map.as_deref(), &key))
            }
            Err(error) if result.is_ok() => Ended::Returned(Err(error.into())),
            _ => Ended::Returned(result),
        }
    }

    fn commit(&self) -> Result<Applied> {
        let changes = self.batch.parts.iter().any(Part::is_changed);
        if !changes && self.has_read_one_moment() {
            return Ok(Applied::Done(Vec::new()));
        }
        let applied = self.default.apply_unsettled(&self.batch, || Ok(self.named.clone()))?;
        if changes && applied.is_done() {
            self.db.settle()?;
        }
        Ok(applied)
    }

    /// Returns `true` if it is known that everything was read at one moment.
    fn has_read_one_moment(&self) -> bool {
        let is_fixed = self.snapshot.is_some() || self.db.file.read_only;
        is_fixed || self.batch.parts.iter().filter(|part| !part.expected.is_empty()).count() <= 1
    }
}

/// A value, what is stored beside it, and its CAS id.
type Version = (Vec<u8>, Meta, u64);

impl<M: Medium> Map<M> {
    /// Returns the value of a key, and which version it is.
    fn read_version(&self, key: &[u8]) -> Result<Option<Version>> {
        let key = self.key(key)?;
        let guard = self.enter()?;
        let Some((record, control)) = self.find_to_read(key, &guard)? else { return Ok(None) };
        self.accessed(&record);
        let mut value = Vec::new();
        self.copy(key.bytes, &record, &mut value)?;
        Ok(Some((value, control.meta(record.flags()), record.cas())))
    }
}

/// Reads a key in the map of this name in a snapshot.
fn read_in<M: Medium>(
    snapshot: &Evermap<M>,
    name: Option<&str>,
    key: &[u8],
) -> Result<Option<Version>> {
    let map = match name {
        None => snapshot.default_map(),
        Some(name) => match snapshot.map(name, MapOptions::new().create(false)) {
            // It was created later.
            Err(Error::NoSuchMap { .. }) => return Ok(None),
            map => map?,
        },
    };
    map.read_version(key)
}
