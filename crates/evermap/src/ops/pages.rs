//! A walk through all records that holds no guard while it shows them.
//!
//! The records of one segment of the index are a *page*. Its keys are copied under one guard, with
//! their values up to a limit. The other values are looked up by their keys when their turn comes.
//! So a caller that pauses keeps nothing but its own memory from being reused.

use std::ops::Range;

use evermap_index::Guard;
use evermap_index::key::BytesRef;
use evermap_pm::Medium;

use crate::item::Access;
use crate::ops::read::{RECORDS_AHEAD, Walk};
use crate::record::Record;
use crate::record::control::Control;
use crate::{Error, Item, Map, Result};

/// Bytes of keys and values after which further values are copied when their turn comes.
const AT_ONCE: usize = 256 << 10;

/// Shows all records of a map, with the guarantees of [`Map::for_each`].
pub(crate) struct Pages<'s, M: Medium> {
    walk: Walk<'s, M>,
    /// The slot keys and words of the page. Empty between two calls.
    pairs: Vec<(u64, u64)>,
    /// The records of the page. From `at` on they are still to be shown.
    records: Vec<Copied>,
    at: usize,
    keys: Vec<u8>,
    values: Vec<u8>,
    keys_only: bool,
    /// The number of records that the index has named so far, and of those that could not be read.
    met: u64,
    unreadable: u64,
    /// Whether the whole index was walked over, and it was seen whether records are missing.
    walked: bool,
    over: bool,
}

/// A record of a page.
struct Copied {
    /// The range of its key in `keys`.
    key: Range<usize>,
    hash: u64,
    rest: Rest,
}

/// What is known of a record beside its key.
enum Rest {
    /// Everything: its value is at this range in `values`.
    Whole { value: Range<usize>, flags: u32, cas: u64, control: Control, prior: Access },
    /// Nothing, because only its key is asked for.
    KeyOnly,
    /// Nothing yet.
    Later,
    /// It was removed since its key was copied.
    Gone,
    /// It cannot be read.
    Unreadable(Box<Error>),
    /// It stands for records that were not found.
    Missing(Box<Error>),
}

impl Rest {
    fn unreadable(error: Error) -> Self {
        Rest::Unreadable(Box::new(error))
    }
}

impl<'s, M: Medium> Pages<'s, M> {
    pub(crate) fn new(map: &'s Map<M>) -> Self {
        Pages {
            walk: Walk::new(map),
            pairs: Vec::new(),
            records: Vec::new(),
            at: 0,
            keys: Vec::new(),
            values: Vec::new(),
            keys_only: false,
            met: 0,
            unreadable: 0,
            walked: false,
            over: false,
        }
    }

    /// Shows keys only: for [`next_key`](Pages::next_key).
    pub(crate) fn of_keys(map: &'s Map<M>) -> Self {
        Pages { keys_only: true, ..Pages::new(map) }
    }

    /// Returns the next record, or the error of a damaged one; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Closed`] or [`Error::Dropped`], once: that is the end.
    pub(crate) fn next(&mut self) -> Result<Option<Result<Item<'_>>>> {
        let Some(at) = self.find_next_once()? else { return Ok(None) };
        let Copied { key, rest, .. } = &mut self.records[at];
        let key = &self.keys[key.clone()];
        Ok(Some(match std::mem::replace(rest, Rest::Gone) {
            Rest::Whole { value, flags, cas, control, prior } => {
                let item = Item::new(key, &self.values[value], cas, control.meta(flags));
                Ok(item.with_access(prior))
            }
            Rest::Unreadable(error) | Rest::Missing(error) => Err(*error),
            Rest::KeyOnly | Rest::Later | Rest::Gone => unreachable!("those are not found"),
        }))
    }

    /// Returns the key of the next record, or the error of a damaged one; `None` at the end.
    ///
    /// # Errors
    /// As for [`next`](Pages::next).
    pub(crate) fn next_key(&mut self) -> Result<Option<Result<&[u8]>>> {
        let Some(at) = self.find_next_once()? else { return Ok(None) };
        let Copied { key, rest, .. } = &mut self.records[at];
        Ok(Some(match std::mem::replace(rest, Rest::Gone) {
            Rest::Unreadable(error) | Rest::Missing(error) => Err(*error),
            _ => Ok(&self.keys[key.clone()]),
        }))
    }

    /// Returns where the next record is that can be shown. After an error, and after the end, there
    /// is none.
    fn find_next_once(&mut self) -> Result<Option<usize>> {
        let found = self.find_next();
        self.over |= !matches!(found, Ok(Some(_)));
        found
    }

    /// Returns where the next record is that can be shown, or `None` at the end.
    fn find_next(&mut self) -> Result<Option<usize>> {
        while !self.over {
            if !self.map().inner.is_open() {
                // What was copied is not shown any more, as if it had been looked up only now.
                return Err(self.map().inner.refusal());
            }
            let Some(record) = self.records.get(self.at) else {
                if self.next_page()? {
                    continue;
                }
                break;
            };
            match record.rest {
                Rest::Later => self.copy_values()?,
                Rest::Gone => self.at += 1,
                _ => {
                    self.unreadable += u64::from(matches!(record.rest, Rest::Unreadable(_)));
                    self.at += 1;
                    return Ok(Some(self.at - 1));
                }
            }
        }
        Ok(None)
    }

    fn map(&self) -> &'s Map<M> {
        self.walk.map
    }

    /// Copies the next page. Returns `true` if there was one.
    fn next_page(&mut self) -> Result<bool> {
        self.records.clear();
        self.keys.clear();
        self.values.clear();
        self.at = 0;
        let Some(guard) = self.walk.next(&mut self.pairs)? else { return Ok(self.find_losses()) };
        if let Err(error) = self.walk.take_error() {
            self.push_error(error);
        }
        self.met += self.pairs.len() as u64;
        let pairs = std::mem::take(&mut self.pairs);
        for (at, &(hash, word)) in pairs.iter().enumerate() {
            if let Some((_, ahead)) = pairs.get(at + RECORDS_AHEAD) {
                self.map().prefetch(*ahead);
            }
            self.copy(hash, word, &guard);
        }
        self.pairs = pairs;
        Ok(true)
    }

    /// Shows an error that is not about one record.
    fn push_error(&mut self, error: Error) {
        self.records.push(Copied { key: 0..0, hash: 0, rest: Rest::Missing(Box::new(error)) });
    }

    /// Shows, after everything else, that records are missing. Returns `true` if they are.
    fn find_losses(&mut self) -> bool {
        let walked = std::mem::replace(&mut self.walked, true);
        let readable = self.met.saturating_sub(self.unreadable);
        let lost = (!walked).then(|| self.map().incomplete(self.met, readable)).flatten();
        lost.map(|error| self.push_error(error)).is_some()
    }

    /// Copies the record that `word` names, or at least its key, unless it is dead. `guard` is the
    /// one under which the word was found.
    fn copy(&mut self, hash: u64, word: u64, guard: &Guard<'_>) {
        let from = self.keys.len();
        let rest = match self.walk.named(hash, word, guard, &mut self.keys) {
            Ok(Some(_)) if self.keys_only => Rest::KeyOnly,
            Ok(Some(_)) if self.keys.len() + self.values.len() >= AT_ONCE => Rest::Later,
            Ok(Some((record, control))) => {
                copy_value(self.map(), &self.keys[from..], &record, control, &mut self.values)
            }
            Ok(None) => return self.keys.truncate(from),
            Err(error) => Rest::unreadable(error),
        };
        self.records.push(Copied { key: from..self.keys.len(), hash, rest });
    }

    /// Copies values of records that are still to be shown, at least one.
    fn copy_values(&mut self) -> Result<()> {
        let map = self.map();
        let guard = map.enter()?;
        // All values that were there have been shown.
        self.values.clear();
        for Copied { key, hash, rest } in &mut self.records[self.at..] {
            if self.values.len() >= AT_ONCE {
                break;
            }
            if matches!(rest, Rest::Later) {
                let key = BytesRef { bytes: &self.keys[key.clone()], hash: *hash };
                *rest = match map.find_to_read(key, &guard) {
                    Ok(Some((record, control))) => {
                        copy_value(map, key.bytes, &record, control, &mut self.values)
                    }
                    Ok(None) => Rest::Gone,
                    Err(error) => Rest::unreadable(error),
                };
            }
        }
        Ok(())
    }
}

fn copy_value<M: Medium>(
    map: &Map<M>,
    key: &[u8],
    record: &Record<'_, M>,
    control: Control,
    values: &mut Vec<u8>,
) -> Rest {
    let from = values.len();
    match map.copy(key, record, values) {
        Ok(()) => Rest::Whole {
            value: from..values.len(),
            flags: record.flags(),
            cas: record.cas(),
            control,
            prior: map.prior_access(record),
        },
        Err(error) => {
            values.truncate(from);
            Rest::unreadable(error)
        }
    }
}
