//! What the maps of a file have in common.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use evermap_pm::{Medium, Pool};

use crate::batch::reservations::KeyReservations;
use crate::clock::Time;
use crate::maintenance::Maintenance;
use crate::map::catalog::Maps;
use crate::map::header::{Map, OpenContext};
use crate::record::cas::CasCounter;
use crate::record::partial::PartialBlocks;
use crate::{Durability, Error, Options, Result};

/// An open file, or memory that is used like one.
pub(crate) struct File<M: Medium> {
    pub(crate) pool: Arc<Pool<M>>,
    pub(crate) cas_counter: CasCounter,
    pub(crate) reservations: KeyReservations,
    pub(crate) clock: Time,
    /// Whether nothing may be changed.
    pub(crate) read_only: bool,
    pub(crate) verify: bool,
    /// Whether values may be borrowed from where they are: nothing outside of this store changes a byte, and
    /// no two records overlap.
    pub(crate) lends: bool,
    /// What the control words of records become that are unbound in this opening.
    pub(crate) tombstone: u64,
    pub(crate) maintenance: Maintenance,
    /// Values that are being written piece by piece.
    pub(crate) partial: PartialBlocks,
    pub(crate) origin: Origin,
    pub(crate) options: Options,
    pub(crate) closed: AtomicBool,
    pub(crate) default: Arc<Map<M>>,
    pub(crate) maps: Maps<M>,
}

/// What the file was opened from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    pub(crate) path: Option<PathBuf>,
    pub(crate) file_system: String,
    pub(crate) durability: Durability,
    pub(crate) clean: bool,
    pub(crate) suspect: bool,
}

impl<M: Medium> File<M> {
    /// Begins a change.
    ///
    /// # Errors
    /// `ReadOnly`; `Storage` with `Forked` or `Poisoned`.
    #[inline]
    pub(crate) fn ensure_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        Ok(self.pool.region().ensure_writable()?)
    }

    /// What maps are opened with.
    pub(crate) fn open_context(&self) -> OpenContext<'_, M> {
        OpenContext {
            pool: &self.pool,
            cas_counter: &self.cas_counter,
            options: &self.options,
            clean: self.origin.clean,
        }
    }
}
