//! Stores from byte strings to byte strings as subjects.
//!
//! As [`table`](super::table) does for words: a store implements [`Store`], and [`Stored`] turns it
//! into a [`Subject`]. Byte keys are written before the clock starts. Values are made, and values
//! that are read are compared byte by byte, while it runs, for every store alike.

use super::facts::{Counts, Place, Size};
use super::view::Subject;
use super::work::{Expected, Reading, ScanCheck, Work};
use crate::LabError;
use crate::error::{Failure, Found};
use crate::workload::bytes::{KeyValueLengths, Speller};
use crate::workload::op::{Kind, Op};
use crate::workload::{Phase, version_of, word};

/// The result of a store's operation.
pub type Result<T> = std::result::Result<T, Failure>;

/// The number of pairs in one batch while a store is filled without being measured.
const BULK: usize = 1000;

/// A concurrent store from byte strings to byte strings, called as its author intends.
pub trait Store: Send + Sync + 'static {
    /// What lookups need to hold: a guard or a read transaction. `()` if they need nothing.
    type Reader<'a>;

    /// Takes a reader.
    ///
    /// # Errors
    ///
    /// The store's own.
    fn reader(&self) -> Result<Self::Reader<'_>>;

    /// Replaces the contents of `value` with the value of `key`. Returns `false` if the key is
    /// absent.
    ///
    /// # Errors
    ///
    /// The store's own.
    fn get(&self, key: &[u8], reader: &Self::Reader<'_>, value: &mut Vec<u8>) -> Result<bool>;

    /// Looks up many keys, and calls `each` with the place of the key and the value of each key
    /// that is present. The default looks them up one by one.
    ///
    /// # Errors
    ///
    /// The store's own.
    fn get_many(
        &self,
        keys: &[&[u8]],
        reader: &Self::Reader<'_>,
        each: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<()> {
        let mut value = Vec::new();
        for (place, key) in keys.iter().enumerate() {
            if self.get(key, reader, &mut value)? {
                each(place, &value);
            }
        }
        Ok(())
    }

    /// Looks up many keys, as [`get_many`](Store::get_many) does, and calls `each` with the values
    /// where they are: in the store's memory or in its cache.
    ///
    /// # Errors
    ///
    /// The store's own. It is only called if [`can_lend`](Store::can_lend) returns `true`.
    fn lend(
        &self,
        _keys: &[&[u8]],
        _reader: &Self::Reader<'_>,
        _each: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<()> {
        Ok(())
    }

    /// Returns `true` if [`lend`](Store::lend) is supported.
    fn can_lend(&self) -> bool {
        false
    }

    /// Binds `key` to `value`, whether or not it was bound. Returns what it was bound to, if the
    /// store reports that. The change is as durable on return as the store promises.
    ///
    /// # Errors
    ///
    /// The store's own.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<Found>;

    /// Binds many keys, not necessarily durably.
    ///
    /// # Errors
    ///
    /// The store's own.
    fn load(&self, pairs: &[(&[u8], &[u8])]) -> Result<()> {
        for (key, value) in pairs {
            self.put(key, value)?;
        }
        Ok(())
    }

    /// Removes `key`. Returns whether it was bound, if the store reports that.
    ///
    /// # Errors
    ///
    /// The store's own.
    fn remove(&self, key: &[u8]) -> Result<Found>;

    /// Calls `each` with up to `count` pairs in ascending order of their keys, starting at `from`.
    ///
    /// # Errors
    ///
    /// The store's own. It is only called if [`is_ordered`](Store::is_ordered) returns `true`.
    fn scan(
        &self,
        _from: &[u8],
        _count: usize,
        _reader: &Self::Reader<'_>,
        _each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        Ok(())
    }

    /// Returns `true` if [`scan`](Store::scan) is supported.
    fn is_ordered(&self) -> bool {
        false
    }

    /// Returns size and load, as far as the store knows them. May walk the whole store.
    ///
    /// # Errors
    ///
    /// The store's own.
    fn size(&self) -> Result<Size>;

    /// Returns what the medium has counted since it was created, or `None` if it does not count.
    fn counts(&self) -> Option<Counts> {
        None
    }

    /// Returns where the store is.
    fn place(&self) -> Place;
}

/// A store with a name and the lengths of its keys and values. Every lookup takes a reader.
pub struct Stored<S> {
    name: &'static str,
    store: S,
    speller: Speller,
}

type Done = std::result::Result<(), LabError>;

impl<S: Store> Stored<S> {
    /// Creates a subject that is called `name` in errors and reports.
    pub fn new(name: &'static str, store: S, lengths: KeyValueLengths) -> Self {
        Stored { name, store, speller: Speller::new(lengths) }
    }

    #[cold]
    fn failed(&self, source: Failure) -> LabError {
        LabError::index(self.name, source)
    }

    /// Compares what was found for the key of `work` at `place` with what it is expected to be
    /// bound to.
    #[inline(always)]
    fn check(
        &self,
        work: &Work<'_>,
        place: usize,
        value: Option<&[u8]>,
        expected: Option<u64>,
    ) -> Done {
        let key = work.keys[place];
        let word = value.map(|value| self.speller.word_of(key, value));
        if word == expected.map(Some) {
            return Ok(());
        }
        Err(work.wrong(self.name, key, expected.into(), found_of(word)))
    }

    /// Looks up the key at `place`.
    #[inline(always)]
    fn get_at<'v>(
        &self,
        work: &Work<'_>,
        place: usize,
        value: &'v mut Vec<u8>,
    ) -> std::result::Result<Option<&'v [u8]>, LabError> {
        let reader = self.store.reader().map_err(|error| self.failed(error))?;
        let found = self.store.get(work.spelled.at(place), &reader, value);
        Ok(found.map_err(|error| self.failed(error))?.then_some(&value[..]))
    }

    // As for tables of words: the lookup is compiled into its loop, and once more for all other
    // uses; every other operation is compiled once.

    /// Looks up one key outside of [`look_up`](Self::look_up).
    #[inline(never)]
    fn get_one<'v>(
        &self,
        work: &Work<'_>,
        place: usize,
        value: &'v mut Vec<u8>,
    ) -> std::result::Result<Option<&'v [u8]>, LabError> {
        self.get_at(work, place, value)
    }

    /// Binds one key to `value`.
    #[inline(never)]
    fn put_one(&self, key: &[u8], value: &[u8]) -> std::result::Result<Found, LabError> {
        self.store.put(key, value).map_err(|error| self.failed(error))
    }

    /// Looks up every key.
    #[inline(never)]
    fn look_up(&self, work: &Work<'_>, expected: Expected) -> Done {
        let mut value = Vec::new();
        for (place, &key) in work.keys.iter().enumerate() {
            let found = self.get_at(work, place, &mut value)?;
            self.check(work, place, found, expected.of(key))?;
        }
        Ok(())
    }

    fn look_up_many(&self, work: &Work<'_>) -> Done {
        let (batch, count) = (work.batch.max(1), work.keys.len());
        let (mut spelled, mut found) = (Vec::new(), Vec::new());
        for first in (0..count).step_by(batch) {
            let places = first..(first + batch).min(count);
            spelled.clear();
            spelled.extend(places.clone().map(|place| work.spelled.at(place)));
            found.clear();
            found.resize(places.len(), None);
            let reader = self.store.reader().map_err(|error| self.failed(error))?;
            self.store
                .get_many(&spelled, &reader, &mut |at, value| {
                    found[at] = Some(self.speller.word_of(work.keys[first + at], value));
                })
                .map_err(|error| self.failed(error))?;
            self.check_many(work, &work.keys[places], &found)?;
        }
        Ok(())
    }

    /// Compares the words of what was found for `keys` with those that they are bound to.
    fn check_many(&self, work: &Work<'_>, keys: &[u64], found: &[Option<Option<u64>>]) -> Done {
        for (&key, &found) in keys.iter().zip(found) {
            let expected = Some(word(key, work.version));
            if found != expected.map(Some) {
                return Err(work.wrong(self.name, key, expected.into(), found_of(found)));
            }
        }
        Ok(())
    }

    /// Looks up every key, and checks the ends of the copies.
    fn read_copies(&self, work: &Work<'_>) -> Done {
        let mut value = Vec::new();
        for (place, &key) in work.keys.iter().enumerate() {
            let found = self.get_at(work, place, &mut value)?;
            let found = found.map(|value| self.speller.word_at_ends(key, value));
            self.check_many(work, &[key], &[found])?;
        }
        Ok(())
    }

    /// Looks up every key, `batch` of them with one reader, and checks the ends of the values that
    /// the store lends.
    fn read_lent(&self, work: &Work<'_>, batch: usize) -> Done {
        let (batch, count) = (batch.max(1), work.keys.len());
        let (mut spelled, mut found) = (Vec::new(), Vec::new());
        for first in (0..count).step_by(batch) {
            let places = first..(first + batch).min(count);
            spelled.clear();
            spelled.extend(places.clone().map(|place| work.spelled.at(place)));
            found.clear();
            found.resize(places.len(), None);
            let reader = self.store.reader().map_err(|error| self.failed(error))?;
            self.store
                .lend(&spelled, &reader, &mut |at, value| {
                    found[at] = Some(self.speller.word_at_ends(work.keys[first + at], value));
                })
                .map_err(|error| self.failed(error))?;
            self.check_many(work, &work.keys[places], &found)?;
        }
        Ok(())
    }

    /// Binds every key of `work` to its word of `version`.
    fn put_all(&self, work: &Work<'_>, version: u64, expected: Expected) -> Done {
        let mut value = Vec::new();
        for (place, &key) in work.keys.iter().enumerate() {
            value.clear();
            self.speller.append_value(key, version, &mut value);
            let found = self.put_one(work.spelled.at(place), &value)?;
            if !found.agrees(expected.of(key)) {
                return Err(work.wrong(self.name, key, expected.of(key).into(), found));
            }
        }
        Ok(())
    }

    /// Binds every key of `work` to its word of `version`, in batches.
    fn load_all(&self, work: &Work<'_>, version: u64) -> Done {
        let (mut values, mut ends) = (Vec::new(), Vec::new());
        let places: Vec<_> = (0..work.keys.len()).collect();
        for places in places.chunks(BULK) {
            values.clear();
            ends.clear();
            for &place in places {
                let start = values.len();
                self.speller.append_value(work.keys[place], version, &mut values);
                ends.push(start..values.len());
            }
            let pairs: Vec<_> = places
                .iter()
                .zip(&ends)
                .map(|(&place, range)| (work.spelled.at(place), &values[range.clone()]))
                .collect();
            self.store.load(&pairs).map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    fn remove_all(&self, work: &Work<'_>) -> Done {
        for (place, &key) in work.keys.iter().enumerate() {
            let found = self.store.remove(work.spelled.at(place));
            let found = found.map_err(|error| self.failed(error))?;
            let expected = Some(word(key, work.version));
            if !found.agrees(expected) {
                return Err(work.wrong(self.name, key, expected.into(), found));
            }
        }
        Ok(())
    }

    fn mix(&self, work: &Work<'_>) -> Done {
        let mut value = Vec::new();
        for (place, &op) in work.ops.iter().enumerate() {
            if let Kind::Scan(count) = op.kind {
                self.scan(work, place, usize::from(count))?;
                continue;
            }
            if matches!(op.kind, Kind::Read | Kind::ReadModifyWrite) {
                self.read(work, place, op, &mut value)?;
            }
            let (version, before) = match op.kind {
                Kind::Insert => (work.version, Found::Absent),
                Kind::Update | Kind::ReadModifyWrite => {
                    (work.version + work.writes(place + 1), Found::Present)
                }
                Kind::Read | Kind::Scan(_) => continue,
            };
            self.write(work, place, version, before, &mut value)?;
        }
        Ok(())
    }

    /// Reads the key at `place` in a mix, and checks what is found.
    fn read(&self, work: &Work<'_>, place: usize, op: Op, value: &mut Vec<u8>) -> Done {
        let key = work.keys[place];
        let found = self.get_one(work, place, value)?;
        let bound = found.map(|value| self.speller.word_of(key, value));
        match bound {
            Some(Some(bound)) if work.may_find(version_of(key, bound), op) => Ok(()),
            _ => {
                let own = work.version + work.writer.version(u64::from(op.own));
                let expected = Found::Word(word(key, own));
                Err(work.wrong(self.name, key, expected, found_of(bound)))
            }
        }
    }

    /// Binds the key at `place` in a mix; the key was `before`.
    fn write(
        &self,
        work: &Work<'_>,
        place: usize,
        version: u64,
        before: Found,
        value: &mut Vec<u8>,
    ) -> Done {
        let key = work.keys[place];
        value.clear();
        self.speller.append_value(key, version, value);
        let found = self.put_one(work.spelled.at(place), value)?;
        if found == Found::Unsaid || found == before {
            return Ok(());
        }
        Err(work.wrong(self.name, key, before, found))
    }

    fn scan(&self, work: &Work<'_>, place: usize, count: usize) -> Done {
        if !self.store.is_ordered() {
            return Err(LabError::Unordered { index: self.name });
        }
        let mut check = ScanCheck::new(work.keys[place], work);
        let mut pair = |bytes: &[u8], value: &[u8]| match self.speller.key_of(bytes) {
            Some(key) => check.pair(key, self.speller.word_of(key, value)),
            None => check.pair(0, None),
        };
        self.store
            .reader()
            .and_then(|reader| self.store.scan(work.spelled.at(place), count, &reader, &mut pair))
            .map_err(|error| self.failed(error))?;
        check.finish(self.name, count)
    }
}

fn found_of(word: Option<Option<u64>>) -> Found {
    match word {
        None => Found::Absent,
        Some(None) => Found::Garbled,
        Some(Some(word)) => Found::Word(word),
    }
}

impl<S: Store> Subject for Stored<S> {
    fn get(&self, key: u64) -> std::result::Result<Option<u64>, LabError> {
        let (mut bytes, mut value) = (Vec::new(), Vec::new());
        self.speller.append_key(key, &mut bytes);
        let found = self
            .store
            .reader()
            .and_then(|reader| self.store.get(&bytes, &reader, &mut value))
            .map_err(|error| self.failed(error))?;
        if !found {
            return Ok(None);
        }
        let garbled = || LabError::WrongAnswer {
            index: self.name,
            phase: "a lookup",
            key,
            expected: Found::Present,
            found: Found::Garbled,
        };
        self.speller.word_of(key, &value).map(Some).ok_or_else(garbled)
    }

    fn run(&self, work: Work<'_>) -> Done {
        let version = work.version;
        let (absent, bound) = (Expected::Absent, Expected::Bound(version));
        match work.phase {
            Phase::Insert if work.bulk => self.load_all(&work, version),
            Phase::Update if work.bulk => self.load_all(&work, version + 1),
            Phase::Insert | Phase::InsertMany => self.put_all(&work, version, absent),
            Phase::Positive => self.look_up(&work, bound),
            Phase::Negative => self.look_up(&work, absent),
            Phase::GetMany => self.look_up_many(&work),
            Phase::Update => self.put_all(&work, version + 1, bound),
            Phase::Mixed => self.mix(&work),
            Phase::Delete => self.remove_all(&work),
        }
    }

    fn read(&self, work: Work<'_>, reading: Reading) -> std::result::Result<bool, LabError> {
        match reading {
            Reading::Copied => self.read_copies(&work)?,
            Reading::Lent(_) if !self.store.can_lend() => return Ok(false),
            Reading::Lent(batch) => self.read_lent(&work, batch)?,
        }
        Ok(true)
    }

    fn speller(&self) -> Option<Speller> {
        Some(self.speller.clone())
    }

    fn is_ordered(&self) -> bool {
        self.store.is_ordered()
    }

    fn size(&self) -> std::result::Result<Size, LabError> {
        self.store.size().map_err(|error| self.failed(error))
    }

    fn counts(&self) -> Option<Counts> {
        self.store.counts()
    }

    fn place(&self) -> Place {
        self.store.place()
    }
}
