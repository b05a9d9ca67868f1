//! HiKV's design, to be measured beside Evermap's: Xia, Jiang, Xiong, Sun: "HiKV: A Hybrid Index
//! Key-Value Store for DRAM-NVM Memory Systems", USENIX ATC 2017, and the variants that its
//! evaluation compares.
//!
//! ```text
//! put, get, update, remove                         scan
//!        |                                           |
//!   hash index (medium)  --- queues, backends --->  tree (ordinary memory)
//!        |        signature -> position              |   key -> position
//!        +------------>  items (medium)  <-----------+
//! ```
//!
//! A change is durable when the hash index names the new [item](item): one persist for the item,
//! one for the [entry](hash). The [tree](tree) is updated later, through [queues](queue) that
//! [backends](backend) serve. A scan waits for the changes that were sent before it started. A tree
//! holds positions, so every update reaches it too. The thread that has updated the tree retires
//! the item that nothing names any more.
//!
//! The design is only measured: there is no recovery, and a file of it cannot be opened again.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use evermap_index::ordered::Run;
use evermap_index::ordered::bplus::BPlus;
use evermap_index::record::KEY_MAX;
use evermap_pm::medium::Note;
use evermap_pm::region::{Identity, RegionConfig};
use evermap_pm::{Error, ErrorKind, Guard, Medium, Pool};

use self::backend::{Backends, Number};
use self::balance::Kind;
use self::hash::Hash;
use self::helpers::HelperThreads;
use self::item::Item;
use self::log::Log;
use self::parts::Parts;
use self::queue::{Request, Reservation};
use self::tree::Tree;
use crate::LabError;
use crate::indexes::builder::IndexBuilder;
use crate::indexes::media::{Memory, Watched};
use crate::subject::store::{Result, Store, Stored};
use crate::subject::{Counts, Entry, File, Found, Guards, Place, Setup, Size, Subject};
use crate::workload::KeyValueLengths;

mod backend;
mod balance;
mod hash;
mod helpers;
mod item;
mod log;
mod parts;
mod queue;
#[cfg(test)]
mod tests;
mod tree;

/// How long the thread that moves ranges sleeps while they are balanced.
const MIGRATION_NAP: Duration = Duration::from_millis(2);

/// What distinguishes a variant.
#[derive(Clone, Copy, Debug)]
struct Variant {
    /// The threads that update the tree; `None` if the serving thread does.
    backends: Option<Number>,
    /// Whether there are several trees.
    parts: bool,
    /// Whether a log is written first.
    log: bool,
}

const HIKV: Variant = Variant { backends: Some(Number::Adaptive), parts: false, log: false };
const FIXED: Variant = Variant { backends: Some(Number::Fixed(1)), ..HIKV };
const SYNC: Variant = Variant { backends: None, ..HIKV };
const PAR: Variant = Variant { parts: true, ..HIKV };
const WAL: Variant = Variant { log: true, ..HIKV };

/// Every variant.
pub(crate) const ENTRIES: [Entry; 5] = [
    Entry {
        name: "hikv",
        about: "HiKV's design: a hash index in the medium, a B+tree updated by backend threads",
        rival: true,
        factory: |name, setup| build(name, HIKV, setup),
    },
    Entry {
        name: "hikv-1-1",
        about: "HiKV with one backend thread, whatever the load",
        rival: true,
        factory: |name, setup| build(name, FIXED, setup),
    },
    Entry {
        name: "hikv-sync",
        about: "HiKV whose serving threads update the B+tree themselves",
        rival: true,
        factory: |name, setup| build(name, SYNC, setup),
    },
    Entry {
        name: "hikv-par",
        about: "HiKV with locked B+trees by key range, and a thread that evens them out",
        rival: true,
        factory: |name, setup| build(name, PAR, setup),
    },
    Entry {
        name: "hikv-wal",
        about: "HiKV with a log record before each change: one persist more",
        rival: true,
        factory: |name, setup| build(name, WAL, setup),
    },
];

fn build(
    name: &'static str,
    variant: Variant,
    setup: &Setup,
) -> std::result::Result<Box<dyn Subject>, LabError> {
    if setup.file != File::Nameless {
        return Err(LabError::Config(format!(
            "{name} does not recover, so its file cannot be kept; leave out the file"
        )));
    }
    let builder = IndexBuilder { name, guards: Guards::PerOperation, setup };
    let built = builder.memory().map_err(Into::into).and_then(|memory| match memory {
        Memory::Plain(medium) => subject(variant, &builder, medium, |_| None),
        Memory::Watched(medium) => subject(variant, &builder, medium, Watched::counts),
    });
    built.map_err(|error| LabError::index(name, error))
}

fn subject<M: Medium>(
    variant: Variant,
    builder: &IndexBuilder<'_>,
    medium: M,
    counts: fn(&M) -> Option<Counts>,
) -> Result<Box<dyn Subject>> {
    let store = HiKv::create(variant, medium, builder.setup.keys, builder.place(), counts)?;
    let lengths = builder.setup.lengths.unwrap_or(KeyValueLengths::WORDS);
    Ok(Box::new(Stored::new(builder.name, store, lengths)))
}

/// The state that all threads share.
struct Core<M: Medium> {
    pool: Arc<Pool<M>>,
    hash: Hash<M>,
    tree: Tree,
    log: Option<Log>,
    backends: Option<Backends>,
    helpers: HelperThreads,
}

/// The store, with its threads.
struct HiKv<M: Medium> {
    core: Arc<Core<M>>,
    threads: Vec<JoinHandle<()>>,
    counts: fn(&M) -> Option<Counts>,
    place: Place,
}

impl<M: Medium> HiKv<M> {
    /// Creates an empty store for about `keys` keys.
    fn create(
        variant: Variant,
        medium: M,
        keys: u64,
        place: Place,
        counts: fn(&M) -> Option<Counts>,
    ) -> Result<Self> {
        let config =
            RegionConfig { capacity: medium.capacity(), seed: Some(0), ..Default::default() };
        let pool = Pool::create(medium, &config, Identity::default())?;
        let core = Arc::new(Core {
            hash: Hash::create(pool.clone(), keys)?,
            tree: if variant.parts { Tree::Parts(Parts::new()) } else { Tree::One(BPlus::new()) },
            log: variant.log.then(|| Log::create(&pool)).transpose()?,
            backends: variant.backends.map(Backends::new),
            helpers: HelperThreads::default(),
            pool,
        });
        // The threads are started when there is a store that stops them.
        let mut store = HiKv { core, threads: Vec::new(), counts, place };
        for number in 0..store.core.backends.as_ref().map_or(0, Backends::most) {
            store.start(format!("hikv-{number}"), move |core| core.serve(number))?;
        }
        if variant.parts {
            store.start("hikv-migration".into(), Core::migrate)?;
        }
        Ok(store)
    }

    fn start(
        &mut self,
        name: String,
        work: impl FnOnce(&Core<M>) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let core = self.core.clone();
        let thread = std::thread::Builder::new().name(name);
        self.threads.push(thread.spawn(move || core.helpers.run(|| work(&core)))?);
        Ok(())
    }
}

impl<M: Medium> Drop for HiKv<M> {
    fn drop(&mut self) {
        self.core.helpers.stop();
        for thread in self.threads.drain(..) {
            // Its error was already reported to the threads that waited for it.
            let _ = thread.join();
        }
    }
}

impl<M: Medium> Core<M> {
    /// Serves as a backend.
    fn serve(&self, number: usize) -> Result<()> {
        let Some(backends) = &self.backends else { return Ok(()) };
        let mut key = Vec::new();
        backends.run(number, &self.helpers, |request| {
            // The item exists: only this thread retires it, below.
            let named = if request.new == 0 { request.old } else { request.new };
            Item::at(self.pool.medium(), named)?.read_key(&mut key);
            self.apply(&key, request, &self.pool.pin())
        })
    }

    /// Balances ranges until the helper threads stop.
    fn migrate(&self) -> Result<()> {
        let Tree::Parts(parts) = &self.tree else { return Ok(()) };
        while !self.helpers.is_stopped() {
            if !parts.balance()? {
                self.helpers.sleep(MIGRATION_NAP);
            }
        }
        Ok(())
    }

    /// Makes the tree agree with the hash index about `key`, and retires the item that neither
    /// names any more.
    fn apply(&self, key: &[u8], request: Request, guard: &Guard<'_>) -> Result<()> {
        let before = self.tree.set(key, request.new)?;
        if before != request.old {
            return Err("the changes of a key reached the tree in another order".into());
        }
        if before != 0 {
            Item::at(self.pool.medium(), before)?.retire(&self.pool, guard);
        }
        Ok(())
    }

    /// Propagates a change to the tree. The stripe of the key is locked, so that changes of a key
    /// are propagated in order.
    fn propagate(
        &self,
        key: &[u8],
        request: Request,
        reservation: Option<Reservation<'_>>,
        guard: &Guard<'_>,
    ) -> Result<()> {
        match reservation {
            Some(reservation) => {
                reservation.send(request);
                Ok(())
            }
            None => self.apply(key, request, guard),
        }
    }

    /// Binds `key` to `value`, or removes it. Returns `true` if it was bound.
    fn change(&self, key: &[u8], value: Option<&[u8]>) -> Result<bool> {
        if key.len() > KEY_MAX {
            return Err(Error::from(ErrorKind::KeyTooLong { len: key.len(), max: KEY_MAX }).into());
        }
        let (pool, hash) = (&*self.pool, &self.hash);
        let place = hash.place(key);
        // First, because a thread that waits for a reservation must hold nothing.
        let backends = self.backends.as_ref();
        let reservation =
            backends.map(|all| all.reserve(place.partition, &self.helpers)).transpose()?;
        // After that wait, which is no cost of a write.
        let _sample = backends.and_then(|all| all.sample(Kind::Write));
        let _record = self.log.as_ref().map(|log| log.append(pool, key, value)).transpose()?;
        let new = value.map(|value| item::write(pool, key, value)).transpose()?;
        let guard = pool.pin();
        let stripe = hash.lock(place)?;
        let old = match new {
            // No other thread knows the item, so it is freed immediately if there is no entry for
            // it.
            Some(new) => stripe.bind(key, new).inspect_err(|_| pool.free_unpublished(new))?,
            None => stripe.unbind(key)?,
        };
        if old.is_some() || new.is_some() {
            let request = Request { old: old.unwrap_or(0), new: new.unwrap_or(0) };
            self.propagate(key, request, reservation, &guard)?;
        }
        Ok(old.is_some())
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let _sample = self.backends.as_ref().and_then(|all| all.sample(Kind::Get));
        let Some(position) = self.hash.find(self.hash.place(key), key)? else { return Ok(false) };
        Item::at(self.pool.medium(), position)?.read_value(value);
        Ok(true)
    }

    /// Waits until the tree shows all acknowledged changes.
    fn settle(&self) -> Result<()> {
        self.backends.as_ref().map_or(Ok(()), |backends| backends.settle(&self.helpers))
    }

    /// Calls `each` with up to `count` pairs from `from` on. The caller has held a guard since
    /// before this call.
    fn scan(&self, from: &[u8], count: usize, each: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        self.settle()?;
        // As in `change`.
        let _sample = self.backends.as_ref().and_then(|all| all.sample(Kind::Scan));
        let (mut run, mut value) = (Run::new(), Vec::new());
        self.tree.collect(from, count, &mut run)?;
        for (key, position) in run.iter() {
            let item = Item::at(self.pool.medium(), position)?;
            // Under the guard no item is reused whose position the tree still held; this would
            // detect it.
            if !item.has_key(key) {
                return Err(Error::damaged(position, "the tree names another key's item").into());
            }
            item.read_value(&mut value);
            each(key, &value);
        }
        Ok(())
    }

    /// Announces to the medium where an operation begins and ends, for media that count.
    #[inline(always)]
    fn operation<R>(&self, operate: impl FnOnce() -> R) -> R {
        self.pool.medium().note(Note::Begin(0));
        let result = operate();
        self.pool.medium().note(Note::End(0));
        result
    }
}

fn presence(found: bool) -> Found {
    if found { Found::Present } else { Found::Absent }
}

impl<M: Medium> Store for HiKv<M> {
    type Reader<'a> = Guard<'a>;

    fn reader(&self) -> Result<Guard<'_>> {
        Ok(self.core.pool.pin())
    }

    #[inline]
    fn get(&self, key: &[u8], _: &Guard<'_>, value: &mut Vec<u8>) -> Result<bool> {
        self.core.operation(|| self.core.get(key, value))
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<Found> {
        Ok(presence(self.core.operation(|| self.core.change(key, Some(value)))?))
    }

    fn remove(&self, key: &[u8]) -> Result<Found> {
        Ok(presence(self.core.operation(|| self.core.change(key, None))?))
    }

    fn scan(
        &self,
        from: &[u8],
        count: usize,
        _: &Guard<'_>,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        self.core.operation(|| self.core.scan(from, count, each))
    }

    fn is_ordered(&self) -> bool {
        true
    }

    /// Walks the hash index, and compares it with the tree, which must hold as many keys.
    fn size(&self) -> Result<Size> {
        let core = &*self.core;
        core.settle()?;
        let (census, keys) = (core.hash.census()?, core.tree.len()?);
        if census.keys != keys {
            let text = format!("the hash index holds {} keys, the tree {keys}", census.keys);
            return Err(text.into());
        }
        let queues = core.backends.as_ref().map_or(0, Backends::dram_bytes);
        Ok(Size {
            len: Some(keys),
            load_factor: Some(keys as f64 / census.entries as f64),
            dram_bytes: Some(core.tree.dram_bytes()? + core.hash.dram_bytes() + queues),
            pm_bytes: Some(core.pool.heap_stats().allocated_bytes),
            placement: None,
        })
    }

    fn counts(&self) -> Option<Counts> {
        (self.counts)(self.core.pool.medium())
    }

    fn place(&self) -> Place {
        self.place.clone()
    }
}
