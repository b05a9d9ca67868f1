//! Builds indexes of any family, over any kind of keys, on any medium.

use std::marker::PhantomData;
use std::sync::Arc;

use evermap_index::key::{BytesRef, Quotient};
use evermap_index::{Persistent, Result};
use evermap_pm::medium::{Counted, Emulated, FlushKind, Mapped, MappedOptions, line_flush};
use evermap_pm::region::{Identity, OnSuspect, RegionConfig};
use evermap_pm::{Error, Medium, Pool};

use super::family::{Family, ROOT};
use super::indexed::Indexed;
use super::media::{Memory, Watched};
use super::records::Recorded;
use evermap_lab_core::subject::facts::{Counts, MediumKind, Place};
use evermap_lab_core::subject::setup::{File, Setup, unique_path};
use evermap_lab_core::subject::store::Stored;
use evermap_lab_core::subject::table::Measured;
use evermap_lab_core::subject::view::Subject;
use evermap_lab_core::subject::work::Guards;
use evermap_lab_core::workload::bytes::KeyValueLengths;

/// Address space for a key, in bytes. Memory is taken only when it is used.
const ADDRESSES_PER_KEY: u64 = 256;
/// Address space for an empty index, in bytes.
const ADDRESSES_MIN: u64 = 1 << 30;

/// Memory for a key that is populated beforehand, in bytes: most indexes take less.
const POPULATED_PER_KEY: u64 = 64;
/// Memory of an empty index that is populated beforehand, in bytes.
const POPULATED_MIN: u64 = 16 << 20;

/// An index of a pool, with the pool.
type Pooled<M, I> = (Arc<Pool<M>>, I);

/// Gives pages to the first `bytes` bytes of the memory of `medium`, which is anonymous. If the
/// system refuses, they come with the first access, as usual.
fn populate(medium: &Mapped, bytes: usize) {
    // SAFETY: the whole capacity of anonymous memory is mapped to be read and written, and this
    // changes no byte of it.
    let result = unsafe {
        rustix::mm::madvise(
            medium.base().as_ptr().cast(),
            bytes,
            rustix::mm::Advice::LinuxPopulateWrite,
        )
    };
    let _ = result;
}

/// Builds the medium, the pool and the index of a subject.
pub struct IndexBuilder<'a> {
    /// The name of the subject.
    pub name: &'static str,
    /// How long it keeps a guard.
    pub guards: Guards,
    /// What it is built from.
    pub setup: &'a Setup,
}

impl IndexBuilder<'_> {
    /// Returns the address space for everything, in bytes.
    pub fn capacity(&self) -> u64 {
        let records = self.setup.lengths.map_or(0, |lengths| 4 * lengths.most_bytes());
        let each = ADDRESSES_PER_KEY + records;
        ADDRESSES_MIN.saturating_add(self.setup.keys.saturating_mul(each))
    }

    /// Creates or opens the medium that the setup names. A counting medium counts calls before
    /// they reach the medium inside, so that one does not have to carry them out.
    pub fn memory(&self) -> Result<Memory> {
        if self.setup.counted {
            return Ok(Memory::Watched(Watched::Counted(Counted::new(self.anonymous()?))));
        }
        Ok(match self.setup.medium {
            MediumKind::Dram => Memory::Plain(self.anonymous()?),
            MediumKind::Process => Memory::Plain(self.file(FlushKind::Process)?),
            MediumKind::Forced => Memory::Plain(self.file(FlushKind::Forced)?),
            MediumKind::Emulated => {
                let delayed = Emulated::new(self.file(FlushKind::Forced)?, self.setup.speed);
                Memory::Watched(Watched::Emulated(delayed))
            }
            MediumKind::Adr => Memory::Plain(self.file(FlushKind::Adr)?),
            MediumKind::Eadr => Memory::Plain(self.file(FlushKind::Eadr)?),
        })
    }

    /// Creates anonymous memory.
    pub fn anonymous(&self) -> Result<Mapped> {
        let medium = Mapped::anonymous(self.capacity(), self.setup.pages, FlushKind::Process)?;
        if self.setup.populate {
            let bytes = POPULATED_MIN + self.setup.keys * POPULATED_PER_KEY;
            populate(&medium, bytes.min(medium.capacity()) as usize);
        }
        Ok(medium)
    }

    /// Opens the file that the setup names, or creates one that is freed when it is closed or the
    /// process dies.
    pub fn file(&self, flush: FlushKind) -> Result<Mapped> {
        let create = !matches!(self.setup.file, File::Existing(_));
        let options =
            MappedOptions { capacity: self.capacity(), flush, create, ..Default::default() };
        match &self.setup.file {
            File::New(path) | File::Existing(path) => Mapped::open(path, &options),
            File::Nameless => {
                let path = unique_path(&self.setup.location);
                let medium = Mapped::open(&path, &options)?;
                std::fs::remove_file(&path).map_err(|error| Error::io("removing", &path, error))?;
                Ok(medium)
            }
        }
    }

    /// Returns where the subject is stored.
    pub fn place(&self) -> Place {
        let medium = self.setup.medium;
        Place {
            medium: medium.name().to_owned(),
            flush_kind: medium.flushes().then(|| line_flush().to_string()),
            location: (medium != MediumKind::Dram).then(|| self.setup.location.clone()),
            survives: medium.survives(),
        }
    }

    /// Creates an empty index over words in `memory`, or opens the one in it.
    pub fn table_in<F: Family, Keys>(&self, memory: Memory) -> Result<Box<dyn Subject>>
    where
        Keys: for<'k> Quotient<Ref<'k> = u64>,
    {
        match memory {
            Memory::Plain(medium) => self.table::<F, Keys, _>(medium, |_| None),
            Memory::Watched(medium) => self.table::<F, Keys, _>(medium, Watched::counts),
        }
    }

    /// As [`table_in`](Self::table_in), on a medium of one type.
    pub fn table<F: Family, Keys, M: Medium>(
        &self,
        medium: M,
        counts: fn(&M) -> Option<Counts>,
    ) -> Result<Box<dyn Subject>>
    where
        Keys: for<'k> Quotient<Ref<'k> = u64>,
    {
        let (pool, index) = self.pool::<F, Keys, M>(medium)?;
        let (place, keys) = (self.place(), PhantomData::<fn() -> Keys>);
        let (placement, grow_ahead) = (F::placement::<Keys, M>, F::grow_ahead::<Keys, M>);
        let table = Indexed { pool, index, counts, placement, grow_ahead, place, keys };
        Ok(Box::new(Measured { name: self.name, table, guards: self.guards }))
    }

    /// As [`table_in`](Self::table_in), over byte strings.
    pub fn store_in<F: Family, Keys>(
        &self,
        memory: Memory,
        lengths: KeyValueLengths,
    ) -> Result<Box<dyn Subject>>
    where
        Keys: for<'k> Quotient<Ref<'k> = BytesRef<'k>>,
    {
        match memory {
            Memory::Plain(medium) => self.store::<F, Keys, _>(medium, lengths, |_| None),
            Memory::Watched(medium) => self.store::<F, Keys, _>(medium, lengths, Watched::counts),
        }
    }

    /// As [`table`](Self::table), over byte strings.
    pub fn store<F: Family, Keys, M: Medium>(
        &self,
        medium: M,
        lengths: KeyValueLengths,
        counts: fn(&M) -> Option<Counts>,
    ) -> Result<Box<dyn Subject>>
    where
        Keys: for<'k> Quotient<Ref<'k> = BytesRef<'k>>,
    {
        let (pool, index) = self.pool::<F, Keys, M>(medium)?;
        let store = Recorded::<_, _, Keys>::new(pool, index, counts, self.place());
        Ok(Box::new(Stored::new(self.name, store, lengths)))
    }

    /// Creates the pool and the index, or opens those in the medium.
    pub fn pool<F: Family, Keys: Quotient, M: Medium>(
        &self,
        medium: M,
    ) -> Result<Pooled<M, F::On<Keys, M>>> {
        let (pool, is_new) = self.pool_in(medium)?;
        let index = match is_new {
            true => F::create(&pool, self.setup)?,
            false => Persistent::open(pool.clone(), pool.root(ROOT))?,
        };
        Ok((pool, index))
    }

    /// Creates the pool, or opens the one in the medium. Returns whether it is new.
    pub fn pool_in<M: Medium>(&self, medium: M) -> Result<(Arc<Pool<M>>, bool)> {
        if matches!(self.setup.file, File::Existing(_)) {
            let (pool, _) = Pool::open(medium, Identity::default(), OnSuspect::Refuse)?;
            return Ok((pool, false));
        }
        // The rivals hash without a seed, too.
        let config =
            RegionConfig { capacity: medium.capacity(), seed: Some(0), ..Default::default() };
        Ok((Pool::create(medium, &config, Identity::default())?, true))
    }
}
