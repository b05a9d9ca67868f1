//! What sessions report while they execute commands.

use super::Context;
use crate::cache::Item;
use crate::latency::Command;
use crate::stats::Count;
use crate::watch::{CloseReason, DeleteCommand, StoreCommand, StoreStatus, Topic};

impl Context<'_> {
    /// Counts `count` commands, or keys of commands, whose latency is that of the present turn.
    #[inline]
    pub(super) fn executed(&self, command: Command, count: u64) {
        self.latencies.executed(command, count);
    }

    /// Reports that a key was looked up, and what was found.
    #[inline]
    pub(super) fn fetched(&self, key: &[u8], item: Option<&Item<'_>>) {
        if self.watch.wants(Topic::FETCHES) {
            let len = item.map(|item| item.value.len());
            self.watch.fetched(self.connection, key, len);
        }
    }

    /// Counts and reports that a command that stores was executed. `expiry` is the absolute expiry
    /// of the new item, 0 if it never expires; `len` is the length of its value.
    #[inline]
    pub(super) fn stored(
        &self,
        key: &[u8],
        command: StoreCommand,
        status: StoreStatus,
        expiry: u32,
        len: usize,
    ) {
        if status == StoreStatus::Stored {
            self.counters.add(Count::TotalItems, 1);
        }
        self.report_stored(key, command, status, expiry, len);
    }

    #[inline]
    fn report_stored(
        &self,
        key: &[u8],
        command: StoreCommand,
        status: StoreStatus,
        expiry: u32,
        len: usize,
    ) {
        if self.watch.wants(Topic::STORES) {
            let ttl = expiry.saturating_sub(self.now);
            self.watch.stored(self.connection, key, command, status, ttl, len);
        }
    }

    /// Reports that the value of an item was incremented, or decremented, to `number`.
    #[inline]
    pub(super) fn counted(&self, key: &[u8], number: u64, up: bool) {
        let command = if up { StoreCommand::Incr } else { StoreCommand::Decr };
        // The length is that of the number, without the spaces that may follow it.
        let len = number.checked_ilog10().unwrap_or(0) as usize + 1;
        self.report_stored(key, command, StoreStatus::Stored, 0, len);
    }

    /// Returns the length of the value of an item that is about to be deleted, if that has to be
    /// reported.
    #[inline]
    pub(super) fn len_before_delete(&self, key: &[u8]) -> usize {
        if self.watch.wants_deleted_len() { self.value_len(key) } else { 0 }
    }

    /// Returns the length of the value of an item to which `added` bytes were to be appended or
    /// prepended, if that has to be reported.
    #[inline]
    pub(super) fn len_after_concat(&self, key: &[u8], added: usize, status: StoreStatus) -> usize {
        let grown = status == StoreStatus::Stored && self.watch.wants(Topic::STORES);
        if grown { self.value_len(key) } else { added }
    }

    #[cold]
    fn value_len(&self, key: &[u8]) -> usize {
        let mut len = 0;
        // If the lookup fails, so does the deletion, which reports the error.
        let _ = self.cache.peek(key, &mut |item| {
            len = item.value.len();
            Ok(())
        });
        len
    }

    /// Reports that a key was to be deleted. `deleted` is the length of the value, if there was
    /// such an item: see [`len_before_delete`](Context::len_before_delete).
    #[inline]
    pub(super) fn deleted(&self, key: &[u8], command: DeleteCommand, deleted: Option<usize>) {
        if self.watch.wants(Topic::DELETIONS) {
            self.watch.deleted(self.connection, key, command, deleted);
        }
    }

    /// Says that the session ends because the client asked for it. A session that ends without
    /// saying so reports a violation of the protocol.
    pub(super) fn quitting(&self) {
        self.watch.set_reason(CloseReason::Normal);
    }
}
