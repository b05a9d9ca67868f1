//! The heterogeneous table as a store of byte strings, with the records in the table.

use evermap_papers::TrancheMap;
use evermap_papers::tranche::Geometry;
use evermap_pm::Medium;
use evermap_pm::medium::{Mapped, Note};

use super::builder::IndexBuilder;
use super::family::{ROOT, placement_of, tranche_config};
use super::media::{Memory, Watched};
use evermap_lab_core::LabError;
use evermap_lab_core::subject::store::{Result, Store, Stored};
use evermap_lab_core::subject::{Counts, Found, Guards, Place, Setup, Size, Subject};
use evermap_lab_core::workload::bytes::KeyValueLengths;

/// A map, and where it is.
struct Heterogeneous<M: Medium, G: Geometry> {
    map: TrancheMap<M, G>,
    /// Returns what the medium has counted.
    counts: fn(&M) -> Option<Counts>,
    place: Place,
}

/// Builds a map of byte strings with this geometry.
pub(super) fn build<G: Geometry>(
    name: &'static str,
    lengths: KeyValueLengths,
    setup: &Setup,
) -> std::result::Result<Box<dyn Subject>, LabError> {
    let builder = IndexBuilder { name, guards: Guards::PerOperation, setup };
    let built = builder.memory().and_then(|memory| match memory {
        Memory::Plain(medium) => subject::<Mapped, G>(&builder, medium, |_| None, lengths),
        Memory::Watched(medium) => subject::<_, G>(&builder, medium, Watched::counts, lengths),
    });
    built.map_err(|error| LabError::index(name, error))
}

fn subject<M: Medium, G: Geometry>(
    builder: &IndexBuilder<'_>,
    medium: M,
    counts: fn(&M) -> Option<Counts>,
    lengths: KeyValueLengths,
) -> evermap_pm::Result<Box<dyn Subject>> {
    let (pool, is_new) = builder.pool_in(medium)?;
    let map = if is_new {
        let config = tranche_config::<G>(builder.setup);
        TrancheMap::create(pool.clone(), pool.root(ROOT), config)?
    } else {
        TrancheMap::open(pool.clone(), pool.root(ROOT))?
    };
    let store = Heterogeneous::<M, G> { map, counts, place: builder.place() };
    Ok(Box::new(Stored::new(builder.name, store, lengths)))
}

impl<M: Medium, G: Geometry> Heterogeneous<M, G> {
    /// Announces an operation to a medium that counts, so that it counts each line once.
    #[inline(always)]
    fn operate<R>(&self, operation: impl FnOnce(&TrancheMap<M, G>) -> R) -> R {
        self.map.pool().medium().note(Note::Begin(0));
        let result = operation(&self.map);
        self.map.pool().medium().note(Note::End(0));
        result
    }
}

impl<M: Medium, G: Geometry> Store for Heterogeneous<M, G> {
    /// Lookups take guards themselves.
    type Reader<'a> = ();

    fn reader(&self) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn get(&self, key: &[u8], (): &(), value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.operate(|map| map.read(key, |bytes| value.extend_from_slice(bytes)))?;
        Ok(found.is_some())
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<Found> {
        let present = self.operate(|map| map.upsert(key, value))?;
        Ok(if present { Found::Present } else { Found::Absent })
    }

    fn remove(&self, key: &[u8]) -> Result<Found> {
        let present = self.operate(|map| map.remove(key))?;
        Ok(if present { Found::Present } else { Found::Absent })
    }

    /// Returns the size with the blocks of long records. Walks the map.
    fn size(&self) -> Result<Size> {
        let (stats, placement) = (self.map.stats()?, self.map.placement()?);
        Ok(Size {
            len: Some(placement.records),
            load_factor: Some(placement.fill),
            dram_bytes: Some(stats.dram_bytes),
            pm_bytes: Some(self.map.pool().heap_stats().allocated_bytes),
            placement: Some(placement_of(placement)),
        })
    }

    fn counts(&self) -> Option<Counts> {
        (self.counts)(self.map.pool().medium())
    }

    fn place(&self) -> Place {
        self.place.clone()
    }
}
