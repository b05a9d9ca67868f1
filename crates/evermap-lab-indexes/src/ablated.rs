//! Dash-EH without one of its techniques, to measure the gain of each.

use std::marker::PhantomData;

use evermap_index::key::Quotient;
use evermap_index::{Action, Bytes, Index, Key, MutateMode, Result, Without};
use evermap_pm::{Guard, Medium};

use super::builder::IndexBuilder;
use super::family::Dash;
use super::indexed::Indexed;
use super::media::{Memory, Watched};
use evermap_lab_core::LabError;
use evermap_lab_core::subject::{
    Counts, Entry, Found, Guards, Measured, Place, Setup, Size, Subject, Table,
};

/// Every table that lacks an idea.
pub static ENTRIES: [Entry; 4] = [
    Entry {
        name: "dash-eh-no-fingerprints",
        about: "Dash-EH that compares every record of a bucket, whatever its fingerprint",
        rival: false,
        factory: |name, setup| build::<2, NO_FINGERPRINTS>(name, setup),
    },
    Entry {
        name: "dash-eh-no-metadata",
        about: "Dash-EH that searches the whole stash, whatever the bucket says about it",
        rival: false,
        factory: |name, setup| build::<2, NO_METADATA>(name, setup),
    },
    Entry {
        name: "dash-eh-4-stash-no-metadata",
        about: "the same with four stash buckets a segment",
        rival: false,
        factory: |name, setup| build::<4, NO_METADATA>(name, setup),
    },
    Entry {
        name: "dash-eh-locked-reads",
        about: "Dash-EH whose lookups take the lock of the bucket, as changes do",
        rival: false,
        factory: |name, setup| locked_reads(name, setup),
    },
];

const NO_FINGERPRINTS: u8 = 1;
const NO_METADATA: u8 = 2;

/// Keys of kind `K`, in an index without some of its ideas.
struct Lacking<K, const WHAT: u8>(PhantomData<K>);

impl<K: Key, const WHAT: u8> Key for Lacking<K, WHAT> {
    type Ref<'a> = K::Ref<'a>;
    const FORMAT: u16 = K::FORMAT;
    const WORDS_ARE_RECORDS: bool = K::WORDS_ARE_RECORDS;
    const WITHOUT: Without = Without {
        fingerprints: WHAT & NO_FINGERPRINTS != 0,
        overflow_metadata: WHAT & NO_METADATA != 0,
    };

    #[inline(always)]
    fn hash(key: K::Ref<'_>, seed: u64) -> u64 {
        K::hash(key, seed)
    }

    #[inline(always)]
    fn slot_key(key: K::Ref<'_>, hash: u64) -> u64 {
        K::slot_key(key, hash)
    }

    #[inline(always)]
    fn slot_hash(slot_key: u64, seed: u64) -> u64 {
        K::slot_hash(slot_key, seed)
    }

    #[inline(always)]
    fn matches<M: Medium>(medium: &M, word: u64, key: K::Ref<'_>) -> bool {
        K::matches(medium, word, key)
    }

    #[inline(always)]
    fn prefetch<M: Medium>(medium: &M, word: u64, bytes: u64) {
        K::prefetch(medium, word, bytes);
    }
}

impl<K: Quotient, const WHAT: u8> Quotient for Lacking<K, WHAT> {
    #[inline(always)]
    fn image(key: K::Ref<'_>, seed: u64) -> u64 {
        K::image(key, seed)
    }

    #[inline(always)]
    fn slot_key_of(image: u64, seed: u64) -> u64 {
        K::slot_key_of(image, seed)
    }
}

fn build<const STASHES: usize, const WHAT: u8>(
    name: &'static str,
    setup: &Setup,
) -> Result<Box<dyn Subject>, LabError> {
    let builder = IndexBuilder { name, guards: Guards::PerOperation, setup };
    let built = builder.memory().and_then(|memory| match setup.lengths {
        Some(lengths) => builder.store_in::<Dash<STASHES>, Lacking<Bytes, WHAT>>(memory, lengths),
        None => builder.table_in::<Dash<STASHES>, Lacking<u64, WHAT>>(memory),
    });
    built.map_err(|error| LabError::index(name, error))
}

fn locked_reads(name: &'static str, setup: &Setup) -> Result<Box<dyn Subject>, LabError> {
    setup.words_only(name)?;
    let builder = IndexBuilder { name, guards: Guards::PerOperation, setup };
    let built = builder.memory().and_then(|memory| match memory {
        Memory::Plain(medium) => locked_reads_in(&builder, medium, |_| None),
        Memory::Watched(medium) => locked_reads_in(&builder, medium, Watched::counts),
    });
    built.map_err(|error| LabError::index(name, error))
}

fn locked_reads_in<M: Medium>(
    builder: &IndexBuilder<'_>,
    medium: M,
    counts: fn(&M) -> Option<Counts>,
) -> Result<Box<dyn Subject>> {
    let (pool, index) = builder.pool::<Dash<2>, u64, M>(medium)?;
    let (place, keys) = (builder.place(), PhantomData::<fn() -> u64>);
    let (placement, grow_ahead) = (|_: &_| Ok(None), |_: &_, _| Ok(None));
    let table = LockedReads(Indexed { pool, index, counts, placement, grow_ahead, place, keys });
    Ok(Box::new(Measured { name: builder.name, table, guards: builder.guards }))
}

/// An index whose lookups are mutations that change nothing.
struct LockedReads<M: Medium, I>(Indexed<M, I, u64>);

impl<M: Medium, I: Index<u64> + 'static> Table for LockedReads<M, I> {
    type Guard<'a> = Guard<'a>;

    #[inline(always)]
    fn guard(&self) -> Guard<'_> {
        self.0.guard()
    }

    #[inline(always)]
    fn insert(&self, key: u64, word: u64, guard: &Guard<'_>) -> Result<Found> {
        self.0.insert(key, word, guard)
    }

    #[inline(always)]
    fn get(&self, key: u64, guard: &Guard<'_>) -> Result<Option<u64>> {
        let keep = &mut |_| Action::Keep;
        self.0.begin();
        Ok(self.0.end(self.0.index.mutate(key, MutateMode::ExistingOnly, guard, keep))?.old)
    }

    #[inline(always)]
    fn update(&self, key: u64, word: u64, guard: &Guard<'_>) -> Result<Found> {
        self.0.update(key, word, guard)
    }

    #[inline(always)]
    fn remove(&self, key: u64, guard: &Guard<'_>) -> Result<Found> {
        self.0.remove(key, guard)
    }

    fn size(&self) -> Result<Size> {
        self.0.size()
    }

    fn counts(&self) -> Option<Counts> {
        self.0.counts()
    }

    fn place(&self) -> Place {
        self.0.place()
    }
}
