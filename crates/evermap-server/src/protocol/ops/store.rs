//! set, add, replace, append, prepend and cas.

use crate::cache::{
    BATCH_KEYS, CacheError, Item, Marks, NewItem, Side, StoreMode, StoreOutcome, StoreRequest,
    Stored, Update,
};
use crate::latency::Command;
use crate::protocol::{Context, ITEM_OVERHEAD};
use crate::stats::Count;
use crate::watch::{StoreCommand, StoreStatus};

/// What a storage command does with its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::protocol) enum Verb {
    #[default]
    Set,
    Add,
    Replace,
    Concat(Side),
}

/// A storage command without its value. By default it has no condition, and the item that it stores
/// has no flags and never expires.
#[derive(Default)]
pub(in crate::protocol) struct Store<'a> {
    pub(in crate::protocol) key: &'a [u8],
    pub(in crate::protocol) verb: Verb,
    /// The CAS id that the item must have.
    pub(in crate::protocol) compare: Option<u64>,
    /// The CAS id that the client chose for the new version; `None`: a new one.
    pub(in crate::protocol) new_cas: Option<u64>,
    pub(in crate::protocol) flags: u32,
    /// The absolute expiry of the new item.
    pub(in crate::protocol) expiry: u32,
    /// Whether the value is stored as a stale one if the CAS id of the item is greater than
    /// `compare`: the item was invalidated or replaced since the client read it.
    pub(in crate::protocol) or_stale: bool,
    /// The absolute expiry of the item that append and prepend create if there is none.
    pub(in crate::protocol) create: Option<u32>,
    /// Whether the reply says how long the value is after append and prepend.
    pub(in crate::protocol) wants_len: bool,
    /// Whether it is ms, whose latency is counted apart.
    pub(in crate::protocol) meta: bool,
}

/// Executes commands that [only set](Store::only_sets), at most [`BATCH_KEYS`] of them, as
/// [`Store::execute`] does one after the other. Calls `each` with the position of each command and
/// its result.
pub(in crate::protocol) fn set_many(
    commands: &[(Store<'_>, &[u8])],
    context: &Context<'_>,
    each: &mut dyn FnMut(usize, Result<Stored, CacheError>),
) {
    context.counters.add(Count::CmdSet, commands.len() as u64);
    for is_meta in [false, true] {
        let count = commands.iter().filter(|(store, _)| store.meta == is_meta).count();
        if count > 0 {
            let command = if is_meta { Command::MetaSet } else { Command::Set };
            context.executed(command, count as u64);
        }
    }
    let mut items = [NewItem::default(); BATCH_KEYS];
    for (item, (store, value)) in items.iter_mut().zip(commands) {
        let Store { key, flags, expiry, .. } = *store;
        *item = NewItem { key, value, flags, expiry };
    }
    context.cache.set_many(&items[..commands.len()], &mut |at, stored| {
        let (store, value) = &commands[at];
        match &stored {
            Ok(stored) => {
                let status = StoreStatus::from(stored.outcome);
                context.stored(store.key, store.command(), status, store.expiry, value.len());
            }
            Err(error) => store.refuse(error, value.len(), context),
        }
        each(at, stored);
    });
}

impl Store<'_> {
    /// Returns whether the value is stored whatever there is.
    pub(in crate::protocol) fn only_sets(&self) -> bool {
        self.verb == Verb::Set && self.compare.is_none() && self.new_cas.is_none()
    }

    /// Stores the value, which has arrived completely. Returns the result with the length that the
    /// value of the item has, which for append and prepend may be that of what was added, unless it
    /// is wanted.
    ///
    /// # Errors
    /// If the cache fails. The command is [refused](Store::refuse) then.
    pub(in crate::protocol) fn execute(
        &self,
        value: &[u8],
        context: &Context<'_>,
    ) -> Result<(Stored, usize), CacheError> {
        context.counters.add(Count::CmdSet, 1);
        context.executed(if self.meta { Command::MetaSet } else { Command::Set }, 1);
        let (stored, len) = match self.apply(value, context) {
            Ok(done) => done,
            Err(error) => {
                self.refuse(&error, value.len(), context);
                return Err(error);
            }
        };
        let status = StoreStatus::from(stored.outcome);
        context.stored(self.key, self.command(), status, self.expiry, len);
        // As in memcached, append and prepend do not count as cas.
        if self.compare.is_some() && !matches!(self.verb, Verb::Concat(_)) {
            count_compared(stored.outcome, context);
        }
        Ok((stored, len))
    }

    /// Counts and reports a command that fails, with a value of `len` bytes that may not have
    /// arrived.
    #[cold]
    pub(in crate::protocol) fn refuse(
        &self,
        error: &CacheError,
        len: usize,
        context: &Context<'_>,
    ) {
        let (count, status) = match error {
            CacheError::TooLarge => (Count::StoreTooLarge, StoreStatus::TooLarge),
            CacheError::OutOfMemory => (Count::StoreNoMemory, StoreStatus::NoMemory),
            _ => return,
        };
        context.counters.add(count, 1);
        context.stored(self.key, self.command(), status, self.expiry, len);
        if self.verb == Verb::Set && self.compare.is_none() {
            // The client meant to replace the item, so the old value must not be returned any more.
            // If it cannot be deleted either, the reply reports the failure anyway.
            let _ = context.cache.delete(self.key);
        }
    }

    /// Returns the name in log streams.
    fn command(&self) -> StoreCommand {
        match self.verb {
            Verb::Concat(Side::Append) => StoreCommand::Append,
            Verb::Concat(Side::Prepend) => StoreCommand::Prepend,
            _ if self.compare.is_some() => StoreCommand::Cas,
            Verb::Set => StoreCommand::Set,
            Verb::Add => StoreCommand::Add,
            Verb::Replace => StoreCommand::Replace,
        }
    }

    fn apply(&self, value: &[u8], context: &Context<'_>) -> Result<(Stored, usize), CacheError> {
        let mode = match (self.verb, self.compare) {
            (Verb::Concat(side), _) => return self.concat(value, side, context),
            (_, Some(cas)) if self.or_stale => {
                return Ok((self.store_or_invalidate(value, cas, context)?, value.len()));
            }
            (_, Some(cas)) => StoreMode::Cas(cas),
            (Verb::Set, None) => StoreMode::Set,
            (Verb::Add, None) => StoreMode::Add,
            (Verb::Replace, None) => StoreMode::Replace,
        };
        let Store { flags, expiry, new_cas: cas, .. } = *self;
        let request = StoreRequest { flags, expiry, mode, cas };
        Ok((context.cache.store(self.key, value, &request)?, value.len()))
    }

    /// Stores the value if the CAS id of the item is `expected`, and as a stale one, which another
    /// client will replace, if it is greater.
    fn store_or_invalidate(
        &self,
        value: &[u8],
        expected: u64,
        context: &Context<'_>,
    ) -> Result<Stored, CacheError> {
        let mut outcome = StoreOutcome::NotFound;
        let cas = context.cache.update(self.key, &mut |item| {
            let (decided, expiry, marks) = match item {
                None => (StoreOutcome::NotFound, 0, Marks::default()),
                Some(item) if item.cas == expected => {
                    (StoreOutcome::Stored, self.expiry, Marks::default())
                }
                // The time to live is still that of the value that was invalidated.
                Some(item) if item.cas > expected => {
                    (StoreOutcome::Stored, item.expiry, Marks { stale: true, ..item.marks })
                }
                Some(_) => (StoreOutcome::Exists, 0, Marks::default()),
            };
            outcome = decided;
            if outcome != StoreOutcome::Stored {
                return Ok(Update::Keep);
            }
            let (value, flags, cas) = (value.to_vec(), self.flags, self.new_cas);
            Ok(Update::Put { value, flags, expiry, marks, cas })
        })?;
        Ok(stored(outcome, cas))
    }

    /// Adds data to an item. Returns the length of the value too.
    fn concat(
        &self,
        data: &[u8],
        side: Side,
        context: &Context<'_>,
    ) -> Result<(Stored, usize), CacheError> {
        let Store { key, compare, new_cas, create, wants_len, .. } = *self;
        if compare.is_some() || new_cas.is_some() || create.is_some() || wants_len {
            return self.concat_if(data, side, context);
        }
        let stored = context.cache.concat(key, data, side, context.value_max(key))?;
        let status = StoreStatus::from(stored.outcome);
        Ok((stored, context.len_after_concat(key, data.len(), status)))
    }

    /// Adds data to an item under a condition, or creates it. Returns the length of the value too.
    fn concat_if(
        &self,
        data: &[u8],
        side: Side,
        context: &Context<'_>,
    ) -> Result<(Stored, usize), CacheError> {
        let value_max = context.value_max(self.key);
        let (mut outcome, mut len) = (StoreOutcome::NotStored, data.len());
        let cas = context.cache.update(self.key, &mut |item| {
            (outcome, len) = (StoreOutcome::NotStored, data.len());
            let Some(item) = item else {
                // The item is created as if it were set, but for its expiry.
                let Some(expiry) = self.create else { return Ok(Update::Keep) };
                outcome = StoreOutcome::Stored;
                let (value, flags, cas) = (data.to_vec(), self.flags, self.new_cas);
                return Ok(Update::Put { value, flags, expiry, marks: Marks::default(), cas });
            };
            if self.compare.is_some_and(|cas| cas != item.cas) {
                outcome = StoreOutcome::Exists;
                return Ok(Update::Keep);
            }
            let value = joined(item, data, side, value_max)?;
            (outcome, len) = (StoreOutcome::Stored, value.len());
            let Item { flags, expiry, marks, .. } = *item;
            Ok(Update::Put { value, flags, expiry, marks, cas: self.new_cas })
        })?;
        Ok((stored(outcome, cas), len))
    }
}

impl Context<'_> {
    /// Returns `true` if an item may have this key and a value of `len` bytes.
    pub(in crate::protocol) fn fits(&self, key: &[u8], len: usize) -> bool {
        key.len() + len + ITEM_OVERHEAD <= self.item_size_max
    }

    /// Returns the length that a value with this key may have.
    fn value_max(&self, key: &[u8]) -> usize {
        self.item_size_max.saturating_sub(ITEM_OVERHEAD + key.len())
    }
}

/// Returns a result with the CAS id that the item has if it is stored.
fn stored(outcome: StoreOutcome, cas: Option<u64>) -> Stored {
    let cas = cas.filter(|_| outcome == StoreOutcome::Stored).unwrap_or(0);
    Stored { outcome, cas }
}

/// Returns the value of `item` with `data` on one side of it.
fn joined(
    item: &Item<'_>,
    data: &[u8],
    side: Side,
    value_max: usize,
) -> Result<Vec<u8>, CacheError> {
    if item.value.len().saturating_add(data.len()) > value_max {
        return Err(CacheError::TooLarge);
    }
    let mut value = Vec::with_capacity(item.value.len() + data.len());
    if side == Side::Prepend {
        value.extend_from_slice(data);
    }
    item.value.append_to(&mut value)?;
    if side == Side::Append {
        value.extend_from_slice(data);
    }
    Ok(value)
}

fn count_compared(outcome: StoreOutcome, context: &Context<'_>) {
    let count = match outcome {
        StoreOutcome::Stored => Count::CasHits,
        StoreOutcome::Exists => Count::CasBadval,
        StoreOutcome::NotFound => Count::CasMisses,
        StoreOutcome::NotStored => return,
    };
    context.counters.add(count, 1);
}
