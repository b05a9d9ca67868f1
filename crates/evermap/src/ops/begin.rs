//! How operations begin: they find out whether they may, and take space for what they store.

use std::sync::atomic::Ordering::Relaxed;

use evermap_index::Guard;
use evermap_index::key::BytesRef;
use evermap_index::record::KEY_MAX;
use evermap_pm::Medium;

use crate::record::access::AccessState;
use crate::record::control::Control;
use crate::record::{Draft, ensure_length, record_bytes};
use crate::{Error, Map, Meta, Result};

impl<M: Medium> Map<M> {
    /// The key with its hash.
    #[inline]
    pub(crate) fn key<'k>(&self, key: &'k [u8]) -> Result<BytesRef<'k>> {
        if key.len() > KEY_MAX {
            return Err(Error::KeyTooLong { len: key.len(), max: KEY_MAX });
        }
        Ok(BytesRef::new(key, self.inner.header.seed()))
    }

    /// Begins an operation.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Guard<'_>> {
        let (file, map) = (&*self.db.file, &*self.inner);
        let guard = file.pool.pin();
        if !map.is_open() {
            return Err(map.refusal());
        }
        if map.flush.flush_if_due(file.pool.region(), &file.cas_counter, &file.clock) {
            self.flushed();
        }
        Ok(guard)
    }

    /// Reports a flush, and asks for a purge: it has left something to remove.
    pub(crate) fn flushed(&self) {
        self.inner.feed.report_cleared(self.inner.flush.mark());
        self.request_purge();
    }

    fn request_purge(&self) {
        self.inner.expiries.owe_walk();
        self.db.file.maintenance.want_purge();
    }

    /// Begins a mutation.
    #[inline]
    pub(crate) fn enter_writing(&self) -> Result<Guard<'_>> {
        // Before anything is allocated: in a forked child even a block is not ours to write.
        self.db.file.ensure_writable()?;
        self.enter()
    }

    /// Takes the space of a record, if the map has room for it; to be written before it is
    /// published.
    pub(crate) fn draft<'d>(
        &'d self,
        key: BytesRef<'d>,
        value: &'d [u8],
        meta: Meta,
    ) -> Result<Draft<'d, M>> {
        ensure_length(value)?;
        if self.inner.max_bytes.load(Relaxed) != u64::MAX {
            let bytes = record_bytes(key.bytes.len(), value.len());
            self.ensure_room(self.db.file.pool.block_size(bytes))?;
        }
        self.reserve(key, value, meta.flags(), Control::of(&meta)?.encode())
    }

    /// The same whether or not there is room for it, and with a control word that may differ from
    /// what it is to be.
    pub(crate) fn reserve<'d>(
        &'d self,
        key: BytesRef<'d>,
        value: &'d [u8],
        flags: u32,
        control: u64,
    ) -> Result<Draft<'d, M>> {
        ensure_length(value)?;
        let cas = self.db.file.cas_counter.take(self.db.file.pool.region())?;
        let (pool, owner) = (&self.db.file.pool, self.inner.header.owner());
        let draft = Draft::reserve(pool, owner, key.bytes, value, flags, control, cas)?;
        draft.set_access(self.new_access());
        Ok(draft)
    }

    /// Returns the access state of a record that is stored now.
    #[inline]
    pub(crate) fn new_access(&self) -> AccessState {
        match self.inner.evicts() {
            true => AccessState::new(self.db.file.clock.coarse()),
            false => AccessState::default(),
        }
    }
}
