//! delete and md.

use crate::cache::{CacheError, Item, Marks, Update};
use crate::latency::Command;
use crate::protocol::Context;
use crate::stats::Count;
use crate::watch::DeleteCommand;

/// A command that deletes an item, or a part of it. By default nothing is left, whatever there is.
#[derive(Default)]
pub(in crate::protocol) struct Delete<'a> {
    pub(in crate::protocol) key: &'a [u8],
    /// The CAS id that the item must have.
    pub(in crate::protocol) compare: Option<u64>,
    /// What is left of the item.
    pub(in crate::protocol) rest: Rest,
    /// Whether it is md, which is counted apart.
    pub(in crate::protocol) meta: bool,
}

/// What is left of an item.
#[derive(Clone, Copy, Default)]
pub(in crate::protocol) enum Rest {
    #[default]
    Nothing,
    /// A new version, which is not marked as won.
    Version {
        /// Whether it is marked as stale.
        stale: bool,
        /// The flags of a version without a value; `None`: value and flags are left.
        emptied: Option<u32>,
        /// The absolute expiry; `None`: that of the item.
        expiry: Option<u32>,
        /// The CAS id that the client chose; `None`: a new one.
        new_cas: Option<u64>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::protocol) enum DeleteOutcome {
    Done,
    OtherVersion,
    NotFound,
}

impl Delete<'_> {
    pub(in crate::protocol) fn execute(
        &self,
        context: &Context<'_>,
    ) -> Result<DeleteOutcome, CacheError> {
        let len = context.len_before_delete(self.key);
        let (latency, command) = match self.meta {
            true => (Command::MetaDelete, DeleteCommand::Meta),
            false => (Command::Delete, DeleteCommand::Delete),
        };
        context.executed(latency, 1);
        let outcome = self.apply(context)?;
        let (count, deleted) = match outcome {
            // An item that is marked as stale is not deleted.
            DeleteOutcome::Done if matches!(self.rest, Rest::Version { stale: true, .. }) => {
                return Ok(outcome);
            }
            DeleteOutcome::Done => (Count::DeleteHits, Some(len)),
            // memcached counts another version as a miss of md, and not at all of delete.
            DeleteOutcome::OtherVersion if !self.meta => return Ok(outcome),
            DeleteOutcome::OtherVersion | DeleteOutcome::NotFound => (Count::DeleteMisses, None),
        };
        context.deleted(self.key, command, deleted);
        context.counters.add(count, 1);
        Ok(outcome)
    }

    fn apply(&self, context: &Context<'_>) -> Result<DeleteOutcome, CacheError> {
        if let (None, Rest::Nothing) = (self.compare, self.rest) {
            let deleted = context.cache.delete(self.key)?;
            return Ok(if deleted { DeleteOutcome::Done } else { DeleteOutcome::NotFound });
        }
        let mut outcome = DeleteOutcome::NotFound;
        context.cache.update(self.key, &mut |item| {
            let update;
            (outcome, update) = match item {
                None => (DeleteOutcome::NotFound, Update::Keep),
                Some(item) if self.compare.is_some_and(|cas| cas != item.cas) => {
                    (DeleteOutcome::OtherVersion, Update::Keep)
                }
                Some(item) => (DeleteOutcome::Done, self.rest.of(item)?),
            };
            Ok(update)
        })?;
        Ok(outcome)
    }
}

impl Rest {
    /// Returns what becomes of an item.
    fn of(self, item: &Item<'_>) -> Result<Update, CacheError> {
        let Rest::Version { stale, emptied, expiry, new_cas: cas } = self else {
            return Ok(Update::Remove);
        };
        let mut value = Vec::new();
        if emptied.is_none() {
            item.value.append_to(&mut value)?;
        }
        let (flags, expiry) = (emptied.unwrap_or(item.flags), expiry.unwrap_or(item.expiry));
        Ok(Update::Put { value, flags, expiry, marks: Marks { stale, won: false }, cas })
    }
}
