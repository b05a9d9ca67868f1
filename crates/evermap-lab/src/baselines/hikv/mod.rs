//! HiKV and the variants that its evaluation compares, as stores: see [`evermap_papers::hikv`].

use std::sync::Arc;

use evermap_papers::hikv::{Backends, Config, Trees};
use evermap_papers::names;
use evermap_pm::medium::Note;
use evermap_pm::{Medium, Pool};

use crate::LabError;
use crate::indexes::builder::IndexBuilder;
use crate::indexes::media::{Memory, Watched};
use crate::subject::store::{Result, Store, Stored};
use crate::subject::{Counts, Entry, Found, Guards, Place, Setup, Size, Subject};
use crate::workload::KeyValueLengths;

#[cfg(test)]
mod tests;

/// The root slot of the store in its pool.
const ROOT: usize = 0;
/// The number of logs of HiKV-wal.
const LOGS: u64 = 16;

fn hikv() -> Config {
    Config::default()
}

fn fixed() -> Config {
    Config { backends: Some(Backends::Fixed(1)), ..hikv() }
}

fn sync() -> Config {
    Config { backends: None, ..hikv() }
}

fn par() -> Config {
    Config { trees: Trees::Ranges, ..hikv() }
}

fn wal() -> Config {
    Config { logs: LOGS, ..hikv() }
}

fn transactional() -> Config {
    Config { trees: Trees::Transactional, ..hikv() }
}

/// Every variant.
pub(crate) const ENTRIES: [Entry; 6] = [
    Entry {
        name: names::HIKV,
        about: "HiKV's design: a hash index in the medium, a B+tree updated by backend threads",
        rival: true,
        factory: |name, setup| build(name, hikv(), setup),
    },
    Entry {
        name: "hikv-1-1",
        about: "HiKV with one backend thread, whatever the load",
        rival: true,
        factory: |name, setup| build(name, fixed(), setup),
    },
    Entry {
        name: "hikv-sync",
        about: "HiKV whose serving threads update the B+tree themselves",
        rival: true,
        factory: |name, setup| build(name, sync(), setup),
    },
    Entry {
        name: "hikv-par",
        about: "HiKV with locked B+trees by key range, and a thread that evens them out",
        rival: true,
        factory: |name, setup| build(name, par(), setup),
    },
    Entry {
        name: "hikv-htm",
        about: "HiKV with a tree used by hardware transactions, as published, where there are any",
        rival: true,
        factory: |name, setup| build(name, transactional(), setup),
    },
    Entry {
        name: names::HIKV_WAL,
        about: "HiKV with a log record before each change: one persist more",
        rival: true,
        factory: |name, setup| build(name, wal(), setup),
    },
];

/// Creates a store of this variant for as many keys as the setup has, or opens the one in its
/// file.
fn build(
    name: &'static str,
    variant: Config,
    setup: &Setup,
) -> std::result::Result<Box<dyn Subject>, LabError> {
    let builder = IndexBuilder { name, guards: Guards::PerOperation, setup };
    let built = builder.memory().and_then(|memory| match memory {
        Memory::Plain(medium) => subject(variant, &builder, medium, |_| None),
        Memory::Watched(medium) => subject(variant, &builder, medium, Watched::counts),
    });
    built.map_err(|error| LabError::index(name, error))
}

fn subject<M: Medium>(
    variant: Config,
    builder: &IndexBuilder<'_>,
    medium: M,
    counts: fn(&M) -> Option<Counts>,
) -> evermap_pm::Result<Box<dyn Subject>> {
    let lengths = builder.setup.lengths.unwrap_or(KeyValueLengths::WORDS);
    let (pool, is_new) = builder.pool_in(medium)?;
    let (root, config) = (pool.root(ROOT), variant.presized_for(builder.setup.keys));
    let open =
        if is_new { evermap_papers::hikv::HiKv::create } else { evermap_papers::hikv::HiKv::open };
    let store = open(pool.clone(), root, config)?;
    let store = HiKv { store, pool, counts, place: builder.place() };
    Ok(Box::new(Stored::new(builder.name, store, lengths)))
}

/// A store, and where it is.
struct HiKv<M: Medium> {
    store: evermap_papers::hikv::HiKv<M>,
    pool: Arc<Pool<M>>,
    counts: fn(&M) -> Option<Counts>,
    place: Place,
}

impl<M: Medium> HiKv<M> {
    /// Announces to the medium where an operation begins and ends, for media that count.
    #[inline(always)]
    fn operation<R>(&self, operate: impl FnOnce(&evermap_papers::hikv::HiKv<M>) -> R) -> R {
        self.pool.medium().note(Note::Begin(0));
        let result = operate(&self.store);
        self.pool.medium().note(Note::End(0));
        result
    }
}

fn presence(found: bool) -> Found {
    if found { Found::Present } else { Found::Absent }
}

impl<M: Medium> Store for HiKv<M> {
    /// The store pins what it reads.
    type Reader<'a> = ();

    fn reader(&self) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn get(&self, key: &[u8], (): &(), value: &mut Vec<u8>) -> Result<bool> {
        Ok(self.operation(|store| store.get(key, value))?)
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<Found> {
        Ok(presence(self.operation(|store| store.put(key, value))?))
    }

    fn remove(&self, key: &[u8]) -> Result<Found> {
        Ok(presence(self.operation(|store| store.remove(key))?))
    }

    fn scan(
        &self,
        from: &[u8],
        count: usize,
        (): &(),
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        Ok(self.operation(|store| store.scan(from, count, each))?)
    }

    fn is_ordered(&self) -> bool {
        true
    }

    /// Walks over the hash index, once the tree is complete.
    fn size(&self) -> Result<Size> {
        self.store.settle(1)?;
        let stats = self.store.stats()?;
        let census = stats.census;
        if census.keys != stats.tree_keys {
            let (hashed, sorted) = (census.keys, stats.tree_keys);
            return Err(format!("the hash index holds {hashed} keys, the tree {sorted}").into());
        }
        Ok(Size {
            len: Some(census.keys),
            load_factor: Some(census.keys as f64 / census.entries as f64),
            dram_bytes: Some(stats.dram_bytes),
            pm_bytes: Some(self.pool.heap_stats().allocated_bytes),
            placement: None,
        })
    }

    fn counts(&self) -> Option<Counts> {
        (self.counts)(self.pool.medium())
    }

    fn place(&self) -> Place {
        self.place.clone()
    }
}
