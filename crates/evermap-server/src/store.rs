//! The implementation of [`Cache`] for the store.
//!
//! Every method is one operation of the store, and as atomic and durable as that operation. A store
//! that is a cache evicts items where another one rejects those that do not fit.
//!
//! The marks of an item are those of its record. The ids of the store's records are unique and
//! rise, so they are the CAS ids of the items, with one exception: a client may choose the CAS id
//! of an item. Such a record has the mark [`CHOSEN_CAS`], and its value begins with the id, in 8
//! bytes.

use std::fmt::{self, Display};
use std::ops::ControlFlow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evermap::cache::{
    Access, BATCH_KEYS, CacheEdit, Marks as RecordMarks, NewRecord, UnreadRecord,
};
use evermap::{Edit, Error, ErrorKind, Expiry, Map, Meta, Outcome};

use crate::cache::{
    Arithmetic, Cache, CacheError, Hit, Item, Marks, NewItem, Side, StoreMode, StoreOutcome,
    StoreRequest, Stored, Update, Value, apply_delta, seconds_of,
};

/// The item is [stale](Marks::stale).
const STALE: RecordMarks = RecordMarks::from_bits_truncate(1);
/// A client has [won](Marks::won) the item.
const WON: RecordMarks = RecordMarks::from_bits_truncate(2);
/// The value begins with the CAS id of the item.
const CHOSEN_CAS: RecordMarks = RecordMarks::from_bits_truncate(4);

impl Cache for Map {
    fn now(&self) -> u32 {
        seconds_of(Map::now(self))
    }

    fn is_unsettled(&self) -> bool {
        self.db().owes_sync()
    }

    fn settle(&self) -> Result<(), CacheError> {
        Ok(self.db().sync()?)
    }

    fn get_many(
        &self,
        keys: &[&[u8]],
        hit: &mut dyn FnMut(usize, Item<'_>) -> Hit,
    ) -> Result<(), CacheError> {
        let mut result = Ok(());
        self.cache().find_many(keys, |i, record| {
            let hit = record
                .map_err(CacheError::from)
                .and_then(|record| with_unread(&record, |item| hit(i, item))?);
            hit.unwrap_or_else(|error| {
                result = Err(error);
                ControlFlow::Break(())
            })
        })?;
        result
    }

    fn peek(
        &self,
        key: &[u8],
        hit: &mut dyn FnMut(Item<'_>) -> Result<(), CacheError>,
    ) -> Result<bool, CacheError> {
        let hit = self.cache().peek(key, |item| with_read(&item, hit)?)?;
        Ok(hit.transpose()?.is_some())
    }

    fn get_and_touch(
        &self,
        key: &[u8],
        expiry: u32,
        hit: &mut dyn FnMut(Item<'_>) -> Result<(), CacheError>,
    ) -> Result<bool, CacheError> {
        let hit =
            self.cache().get_and_touch(key, expiry_of(expiry), |item| with_read(&item, hit)?)?;
        Ok(hit.transpose()?.is_some())
    }

    fn store(
        &self,
        key: &[u8],
        value: &[u8],
        request: &StoreRequest,
    ) -> Result<Stored, CacheError> {
        let &StoreRequest { flags, expiry, mode, cas: chosen } = request;
        let prefixed;
        let (value, marks) = match chosen {
            None => (value, RecordMarks::NONE),
            Some(cas) => {
                prefixed = prefixed_by(cas, value);
                (&prefixed[..], CHOSEN_CAS)
            }
        };
        let meta = Meta::new().with_flags(flags).with_expiry(expiry_of(expiry)).with_marks(marks);
        let stored = |cas| Stored { outcome: StoreOutcome::Stored, cas: chosen.unwrap_or(cas) };
        let set = self.set(key).meta(meta);
        let outcome = match mode {
            StoreMode::Set => return Ok(stored(set.put(value)?)),
            StoreMode::Add => set.try_insert(value),
            StoreMode::Replace => set.replace(value),
            StoreMode::Cas(cas) => self.cache().compare_exchange(key, cas, CHOSEN_CAS, value, meta),
        }?;
        Ok(match (outcome, mode) {
            (Outcome::Inserted { cas } | Outcome::Updated { cas }, _) => stored(cas),
            // The CAS id of the item may be one that a client has chosen.
            (Outcome::Kept { .. }, StoreMode::Cas(cas)) => {
                let (outcome, cas) = compare_exchange_chosen(self, key, cas, value, meta)?;
                match cas {
                    Some(cas) => stored(cas),
                    None => outcome.into(),
                }
            }
            (_, StoreMode::Cas(_)) => StoreOutcome::NotFound.into(),
            _ => StoreOutcome::NotStored.into(),
        })
    }

    fn set_many(
        &self,
        items: &[NewItem<'_>],
        each: &mut dyn FnMut(usize, Result<Stored, CacheError>),
    ) {
        for (chunk, items) in items.chunks(BATCH_KEYS).enumerate() {
            let mut records = [NewRecord { key: &[], value: &[], meta: Meta::new() }; BATCH_KEYS];
            for (record, &NewItem { key, value, flags, expiry }) in records.iter_mut().zip(items) {
                let meta = Meta::new().with_flags(flags).with_expiry(expiry_of(expiry));
                *record = NewRecord { key, value, meta };
            }
            self.cache().set_many(&records[..items.len()], |at, stored| {
                let stored = stored.map(|cas| Stored { outcome: StoreOutcome::Stored, cas });
                each(chunk * BATCH_KEYS + at, stored.map_err(CacheError::from));
            });
        }
    }

    fn update(
        &self,
        key: &[u8],
        decide: &mut dyn FnMut(Option<&Item<'_>>) -> Result<Update, CacheError>,
    ) -> Result<Option<u64>, CacheError> {
        let (mut chosen, mut result) = (None, Ok(()));
        let cas = self.cache().modify(key, |record| {
            // The closure is called again if another thread changes the item in between. Only the
            // last call counts.
            (chosen, result) = (None, Ok(()));
            let decided = match &record {
                None => decide(None),
                Some(record) => with_read(record, |item| {
                    chosen = Some(item.cas);
                    decide(Some(&item))
                })
                .and_then(|decided| decided),
            };
            match decided {
                Err(error) => {
                    result = Err(error);
                    Edit::Keep.into()
                }
                Ok(update) => {
                    if let Update::Put { cas, .. } = update {
                        chosen = cas;
                    }
                    edit_of(update, record.map(|record| record.meta().marks()))
                }
            }
        })?;
        result?;
        Ok(cas.map(|cas| chosen.unwrap_or(cas)))
    }

    fn concat(
        &self,
        key: &[u8],
        data: &[u8],
        side: Side,
        value_max: usize,
    ) -> Result<Stored, CacheError> {
        let join = |old: Option<&[u8]>| match (old, side) {
            (None, _) => Ok(None),
            (Some(old), _) if old.len() + data.len() > value_max => Err(CacheError::TooLarge),
            (Some(old), Side::Append) => Ok(Some([old, data].concat())),
            (Some(old), Side::Prepend) => Ok(Some([data, old].concat())),
        };
        Ok(match revalue(self, key, join)? {
            Some(cas) => Stored { outcome: StoreOutcome::Stored, cas },
            None => StoreOutcome::NotStored.into(),
        })
    }

    fn arithmetic(&self, key: &[u8], delta: u64, up: bool) -> Result<Arithmetic, CacheError> {
        let mut unchanged = Arithmetic::NotFound;
        let mut after = 0;
        let cas = revalue(self, key, |old| {
            unchanged = if old.is_some() { Arithmetic::NonNumeric } else { Arithmetic::NotFound };
            let mut new = Vec::new();
            let number = old.and_then(|old| apply_delta(old, delta, up, &mut new));
            after = number.unwrap_or(0);
            Ok(number.map(|_| new))
        })?;
        Ok(cas.map_or(unchanged, |cas| Arithmetic::Changed { number: after, cas }))
    }

    fn delete(&self, key: &[u8]) -> Result<bool, CacheError> {
        Ok(Map::delete(self, key)?)
    }

    fn touch(&self, key: &[u8], expiry: u32) -> Result<bool, CacheError> {
        Ok(Map::touch(self, key, expiry_of(expiry))?)
    }

    fn flush_all(&self, at: Option<u32>) -> Result<(), CacheError> {
        match at {
            None => Ok(self.clear()?),
            Some(at) => Ok(self.expire_all_at(time_of(at))?),
        }
    }

    fn page(
        &self,
        position: u64,
        each: &mut dyn FnMut(&[u8], Item<'_>),
    ) -> Result<Option<u64>, CacheError> {
        Ok(self.cache().find_page(position, |record| {
            if let Ok(record) = record {
                // A damaged value is left out, like a damaged record.
                let _ = with_unread(&record, |item| each(record.key(), item));
            }
        })?)
    }

    fn damage_met(&self) -> u64 {
        self.stat().damage_met
    }

    fn memory_limit(&self) -> u64 {
        let stat = self.stat();
        stat.memory_limit.or(stat.max_bytes).unwrap_or(0)
    }

    fn set_memory_limit(&self, bytes: u64) -> Result<(), CacheError> {
        Ok(self.db().set_memory_limit(bytes)?)
    }

    /// The names are memcached's where it has them. `limit_maxbytes` is 0 if there is no limit.
    fn stats(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        let stat = self.stat();
        each("curr_items", &stat.records.value);
        each("bytes", &stat.record_bytes.value);
        each("limit_maxbytes", &stat.memory_limit.or(stat.max_bytes).unwrap_or(0));
        each("evictions", &stat.evictions);
        each("evicted_unfetched", &stat.evicted_unfetched);
        each("expired_unfetched", &stat.expired_unfetched);
        // What has expired or was flushed is removed in the background.
        each("crawler_reclaimed", &stat.purged);
        each("lru_crawler_starts", &stat.purges);
        each("evermap_memory_used", &stat.memory_used);
        each("evermap_eviction_age", &stat.eviction_age);
        each("evermap_evicted_bytes", &stat.evicted_bytes);
        each("evermap_evicted_directly", &stat.evicted_directly);
        each("evermap_moved_for_space", &stat.moved_for_space);
        each("evermap_file_bytes", &stat.file_bytes);
        each("evermap_durability", &OneWord(&stat.durability));
        if let Some(log) = self.db().log_stat() {
            each("evermap_log_commits", &log.commits);
            each("evermap_log_bytes", &log.log_bytes);
            each("evermap_log_checkpoints", &log.checkpoints);
            each("evermap_log_full", &u8::from(log.is_full));
        }
        each("evermap_generation", &stat.generation);
        each("evermap_clean_open", &u8::from(stat.clean_open));
        each("evermap_counts_exact", &u8::from(stat.records.exact));
        each("evermap_sweep", &OneWord(&stat.sweep));
        each("evermap_damage_met", &stat.damage_met);
        if let Some(ordered) = &stat.ordered {
            each("evermap_ordered", &OneWord(&ordered.state));
            each("evermap_ordered_keys", &ordered.keys);
            each("evermap_ordered_bytes", &ordered.bytes);
            each("evermap_ordered_keys_read", &ordered.keys_read);
            each("evermap_ordered_notices_waiting", &ordered.notices_waiting);
        }
        if let Some(state) = &stat.persistent_order {
            each("evermap_persistent_order", &OneWord(state));
        }
    }

    fn cost_stats(&self, each: &mut dyn FnMut(&str, &dyn Display)) -> Result<(), CacheError> {
        let cost = self.cost()?;
        each("evermap_item_bytes", &format_args!("{:.1}", cost.total()));
        each("evermap_item_index_bytes", &format_args!("{:.1}", cost.index_bytes));
        each("evermap_item_header_bytes", &format_args!("{:.1}", cost.header_bytes));
        each("evermap_item_content_bytes", &format_args!("{:.1}", cost.content_bytes));
        each("evermap_item_slack_bytes", &format_args!("{:.1}", cost.slack_bytes));
        each("evermap_items_sampled", &cost.sampled);
        each("evermap_index", &cost.index);
        for (kind, bytes) in &cost.kinds {
            each(&format!("evermap_index_bytes:{kind}"), &format_args!("{bytes:.1}"));
        }
        let smaller = cost.smaller().map_or(cost.index, |(kind, _)| kind);
        each("evermap_smallest_index", &smaller);
        Ok(())
    }
}

impl Value for UnreadRecord<'_> {
    fn len(&self) -> usize {
        self.value_len()
    }

    fn append_to(&self, out: &mut Vec<u8>) -> Result<(), CacheError> {
        Ok(UnreadRecord::append_to(self, out)?)
    }
}

/// Stores `value` if the CAS id of the item is `expected`, whether or not a client has chosen it.
/// Returns the outcome, and the id of the new record.
#[cold]
fn compare_exchange_chosen(
    map: &Map,
    key: &[u8],
    expected: u64,
    value: &[u8],
    meta: Meta,
) -> Result<(StoreOutcome, Option<u64>), CacheError> {
    let mut outcome = StoreOutcome::NotFound;
    let cas = map.modify(key, |record| {
        let found = record.map(|record| with_read(&record, |item| item.cas));
        outcome = match found {
            None => StoreOutcome::NotFound,
            Some(Ok(cas)) if cas == expected => StoreOutcome::Stored,
            Some(_) => StoreOutcome::Exists,
        };
        match outcome {
            StoreOutcome::Stored => Edit::Record(value.to_vec(), meta),
            _ => Edit::Keep,
        }
    })?;
    Ok((outcome, cas.filter(|_| outcome == StoreOutcome::Stored)))
}

/// Replaces the value of an item by the one that `change` returns, and leaves flags, expiry and
/// marks. The item gets an id of the store. Returns it, or `None` if `change` returned `None`, as
/// it has to if it is given no value because there is no item.
fn revalue(
    map: &Map,
    key: &[u8],
    mut change: impl FnMut(Option<&[u8]>) -> Result<Option<Vec<u8>>, CacheError>,
) -> Result<Option<u64>, CacheError> {
    let (mut changed, mut result) = (false, Ok(()));
    let cas = map.cache().modify(key, |record| {
        // Called again if another thread was faster; only the last call counts.
        (changed, result) = (false, Ok(()));
        let marks = record.map(|record| record.meta().marks()).unwrap_or_default();
        let old = record.map(|record| split(marks, record.cas, record.value)).transpose();
        match old.and_then(|old| change(old.map(|(_, value)| value))) {
            Err(error) => {
                result = Err(error);
                Edit::Keep.into()
            }
            Ok(None) => Edit::Keep.into(),
            Ok(Some(new)) => {
                changed = true;
                match marks.intersects(CHOSEN_CAS) {
                    false => Edit::Value(new).into(),
                    // The new value does not begin with an id.
                    true => CacheEdit::MarkedValue(new, marks_of(marks_in(marks))),
                }
            }
        }
    })?;
    result?;
    Ok(cas.filter(|_| changed))
}

/// Returns the edit that carries out `update` on a record with these marks.
fn edit_of(update: Update, before: Option<RecordMarks>) -> CacheEdit {
    match update {
        Update::Keep => Edit::Keep.into(),
        Update::Remove => Edit::Remove.into(),
        Update::Mark { expiry, marks } => {
            // What the value begins with does not change.
            let kept = before.unwrap_or_default().bits() & CHOSEN_CAS.bits();
            let marks = RecordMarks::from_bits_truncate(marks_of(marks).bits() | kept);
            CacheEdit::Mark { expiry: expiry_of(expiry), marks }
        }
        Update::Put { value, flags, expiry, marks, cas } => {
            let meta = Meta::new().with_flags(flags).with_expiry(expiry_of(expiry));
            let marks = marks_of(marks);
            let (value, marks) = match cas {
                None => (value, marks),
                Some(cas) => {
                    let bits = marks.bits() | CHOSEN_CAS.bits();
                    (prefixed_by(cas, &value), RecordMarks::from_bits_truncate(bits))
                }
            };
            Edit::Record(value, meta.with_marks(marks)).into()
        }
    }
}

/// A text with `_` instead of spaces. Programs that read statistics expect lines of three words,
/// and some stop at another line.
struct OneWord<T>(T);

impl<T: Display> Display for OneWord<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_string().replace(' ', "_"))
    }
}

/// Returns the time of the protocol's seconds since 1970.
fn time_of(seconds: u32) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds.into())
}

/// Converts an expiry of the protocol, where 0 means never, to one of the store.
fn expiry_of(expiry: u32) -> Expiry {
    (expiry != 0).then(|| time_of(expiry)).into()
}

/// Converts an expiry of the store to one of the protocol.
fn expiry_in(expires_at: Option<SystemTime>) -> u32 {
    expires_at.map_or(0, seconds_of)
}

/// Returns the seconds since an item was accessed, as the protocol has them.
fn idle_of(access: Access) -> u32 {
    u32::try_from(access.idle.as_secs()).unwrap_or(u32::MAX)
}

/// Converts marks of an item to those of a record.
fn marks_of(marks: Marks) -> RecordMarks {
    let bit = |set: bool, mark: RecordMarks| if set { mark.bits() } else { 0 };
    RecordMarks::from_bits_truncate(bit(marks.stale, STALE) | bit(marks.won, WON))
}

/// Converts marks of a record to those of an item.
fn marks_in(marks: RecordMarks) -> Marks {
    Marks { stale: marks.intersects(STALE), won: marks.intersects(WON) }
}

/// Returns a value that begins with the CAS id that a client has chosen.
fn prefixed_by(cas: u64, value: &[u8]) -> Vec<u8> {
    [&cas.to_le_bytes()[..], value].concat()
}

/// Returns the CAS id and the value of an item, given the marks, the id and the value of its
/// record.
fn split(marks: RecordMarks, cas: u64, value: &[u8]) -> Result<(u64, &[u8]), CacheError> {
    if !marks.intersects(CHOSEN_CAS) {
        return Ok((cas, value));
    }
    let (cas, value) = value.split_first_chunk().ok_or_else(|| {
        CacheError::Other("the value is too short to begin with its CAS id".into())
    })?;
    Ok((u64::from_le_bytes(*cas), value))
}

/// Calls `f` with a record of the store, whose value was read, as an item of the cache.
///
/// # Errors
/// If the record cannot be an item.
fn with_read<R>(
    record: &evermap::Item<'_>,
    f: impl FnOnce(Item<'_>) -> R,
) -> Result<R, CacheError> {
    let (meta, access) = (record.meta(), record.access());
    let (cas, value) = split(meta.marks(), record.cas, record.value)?;
    Ok(f(Item {
        flags: record.flags,
        cas,
        expiry: expiry_in(record.expires_at()),
        marks: marks_in(meta.marks()),
        fetched: access.fetched,
        idle: idle_of(access),
        value: &value,
    }))
}

/// Calls `f` with a record of the store, whose value was not read, as an item of the cache.
///
/// # Errors
/// If the record cannot be an item, or its value is damaged.
#[inline]
fn with_unread<R>(
    record: &UnreadRecord<'_>,
    f: impl FnOnce(Item<'_>) -> R,
) -> Result<R, CacheError> {
    if record.marks().intersects(CHOSEN_CAS) {
        return with_unread_chosen(record, f);
    }
    Ok(f(Item {
        flags: record.flags(),
        cas: record.cas(),
        expiry: expiry_in(record.expires_at()),
        marks: marks_in(record.marks()),
        fetched: record.access().fetched,
        idle: idle_of(record.access()),
        value: record,
    }))
}

/// [`with_unread`] for an item whose CAS id was chosen by a client. The value is copied once more,
/// because the id before it is not part of it.
#[cold]
fn with_unread_chosen<R>(
    record: &UnreadRecord<'_>,
    f: impl FnOnce(Item<'_>) -> R,
) -> Result<R, CacheError> {
    let mut bytes = Vec::new();
    UnreadRecord::append_to(record, &mut bytes)?;
    let (cas, value) = split(record.marks(), record.cas(), &bytes)?;
    Ok(f(Item {
        flags: record.flags(),
        cas,
        expiry: expiry_in(record.expires_at()),
        marks: marks_in(record.marks()),
        fetched: record.access().fetched,
        idle: idle_of(record.access()),
        value: &value,
    }))
}

impl From<Error> for CacheError {
    #[cold]
    fn from(error: Error) -> Self {
        match error {
            Error::KeyTooLong { .. } | Error::ValueTooLong { .. } => CacheError::TooLarge,
            error if error.is_no_space() => CacheError::OutOfMemory,
            error => match error.kind() {
                ErrorKind::Poisoned => CacheError::Poisoned,
                _ => CacheError::Other(error.to_string()),
            },
        }
    }
}
