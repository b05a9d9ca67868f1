//! Parts of the kit for indexes in pools: reopening, sweeping, running out of space.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use evermap_pm::medium::Note;
use evermap_pm::pool::Pool;
use evermap_pm::region::{Identity, OnSuspect, RegionConfig};
use evermap_pm::sim::Sim;
use evermap_pm::{Guard, Medium, PmU64, Result};

use super::call::{Call, Driver, InWords, Records, Verb};
use super::concurrent::{KeyRoles, WriterDone, check_account, storm_thread, thread_seed, threads};
use super::erased::{AnyIndex, AnyPoolSubject, AnySubject};
use super::keys::{Numbered, Universe};
use super::observers::Stops;
use super::{Config, Failure, Instance, Stop, Subject, tier};
use crate::record::{self, Header, OFFSET_MASK};
use crate::{Index, Persistent, Visitor};
use evermap_pm::sim::rng::Rng;

/// How to create an index that lives in a pool.
pub trait PoolSubject<K: Numbered>: Sync {
    /// The type of the index, on any medium.
    type Index: Index<K> + Persistent<Sim> + 'static;

    /// Returns a configuration that is so small that a few dozen keys cause every structural
    /// change.
    fn config(&self) -> <Self::Index as Persistent<Sim>>::Config;

    /// See [`Subject::always_holds`].
    fn always_holds(&self) -> usize {
        32
    }

    /// Returns the size of an extent in the kit's pools, bytes.
    fn extent_size(&self) -> u64 {
        16 << 10
    }
}

/// A [`PoolSubject`] as a [`Subject`]: pools in ordinary memory. Reopening copies that memory.
pub struct Pooled<P>(pub P);

impl<K: Numbered, P: PoolSubject<K>> PoolSubject<K> for &P {
    type Index = P::Index;

    fn config(&self) -> <Self::Index as Persistent<Sim>>::Config {
        (**self).config()
    }

    fn always_holds(&self) -> usize {
        (**self).always_holds()
    }

    fn extent_size(&self) -> u64 {
        (**self).extent_size()
    }
}

impl<K: Numbered, P: PoolSubject<K> + Send> PoolSubject<K> for Arc<P> {
    type Index = P::Index;

    fn config(&self) -> <Self::Index as Persistent<Sim>>::Config {
        (**self).config()
    }

    fn always_holds(&self) -> usize {
        (**self).always_holds()
    }

    fn extent_size(&self) -> u64 {
        (**self).extent_size()
    }
}

impl<K: Numbered, P: PoolSubject<K>> Subject<K> for Pooled<P> {
    type Instance = PoolInstance<K>;

    fn fresh(&self) -> Result<Self::Instance> {
        Subject::fresh(&AnyPooled::<K>(&self.0))
    }

    fn reopen(&self, instance: Self::Instance, stop: Stop) -> Result<Self::Instance> {
        AnyPooled::<K>(&self.0).reopen(instance, stop)
    }

    fn always_holds(&self) -> usize {
        self.0.always_holds()
    }
}

/// [`Pooled`] without the type of the index. Its medium lets threads pause at any access.
struct AnyPooled<'p, K>(&'p dyn AnyPoolSubject<K>);

impl<K: Numbered> Subject<K> for AnyPooled<'_, K> {
    type Instance = PoolInstance<K>;

    fn fresh(&self) -> Result<Self::Instance> {
        create(self.0, Sim::in_memory(CAPACITY)?.observed_by(Arc::new(Stops)))
    }

    fn reopen(&self, instance: Self::Instance, stop: Stop) -> Result<Self::Instance> {
        if stop == Stop::Clean {
            instance.close()?;
        }
        let medium = Sim::in_memory(CAPACITY)?.observed_by(Arc::new(Stops));
        restore(&medium, &image(instance.pool.medium()))?;
        drop(instance);
        open(self.0, medium)
    }

    fn always_holds(&self) -> usize {
        self.0.always_holds()
    }
}

/// The capacity of the kit's pools, bytes.
const CAPACITY: u64 = 64 << 20;
/// The root slot of the index under test.
pub(crate) const ROOT: usize = 3;

/// Creates a pool that takes all of a medium, with an index in it.
pub(super) fn create<K: Numbered>(
    subject: &dyn AnyPoolSubject<K>,
    medium: Sim,
) -> Result<PoolInstance<K>> {
    let (extent_size, capacity) = (subject.extent_size(), medium.capacity());
    let region = RegionConfig { extent_size, capacity, seed: Some(7) };
    let pool = Pool::create(medium, &region, Identity::default())?;
    let index = subject.create(pool.clone())?;
    Ok(PoolInstance { pool, index })
}

/// Opens the pool and the index that [`create`] made.
pub(super) fn open<K: Numbered>(
    subject: &dyn AnyPoolSubject<K>,
    medium: Sim,
) -> Result<PoolInstance<K>> {
    let (pool, _) = Pool::open(medium, Identity::default(), OnSuspect::Refuse)?;
    let index = subject.open(pool.clone())?;
    Ok(PoolInstance { pool, index })
}

/// Returns every word of a medium that is not changed concurrently.
pub(super) fn image(medium: &Sim) -> Vec<u64> {
    let cells = medium.slice::<PmU64>(0, medium.len() / 8).expect("all of it");
    cells.iter().map(|cell| medium.load_relaxed(cell)).collect()
}

/// Stores an image in a blank medium.
pub(super) fn restore(medium: &Sim, image: &[u64]) -> Result<()> {
    medium.grow(image.len() as u64 * 8)?;
    let cells = medium.slice::<PmU64>(0, image.len() as u64).expect("just grown");
    // Blank memory is zero: pages without other words stay untouched.
    for (cell, &word) in cells.iter().zip(image).filter(|&(_, &word)| word != 0) {
        medium.store(cell, word);
    }
    Ok(())
}

/// An index in a pool.
pub struct PoolInstance<K> {
    pub(super) pool: Arc<Pool<Sim>>,
    pub(super) index: Box<dyn AnyIndex<K>>,
}

impl<K: Numbered> PoolInstance<K> {
    /// Closes the index and its pool.
    pub(super) fn close(&self) -> Result<()> {
        self.index.close()?;
        self.pool.close()
    }

    /// Compares a walk by units with a walk over everything. Returns `None` if they show the same.
    fn compare_walks(&self) -> Option<String> {
        let guard = self.pool.pin();
        let (mut at_once, mut by_units) = (Vec::new(), Vec::new());
        let whole = self.index.for_each(&guard, &mut |key, word| {
            at_once.push((key, word));
            true
        });
        let (mut from, mut parts) = (Some(0), Ok(()));
        while let Some(here) = from {
            let (shown, next) =
                self.index.scan(here, &guard, &mut |key, word| by_units.push((key, word)));
            parts = parts.and(shown);
            from = next;
        }
        at_once.sort_unstable();
        by_units.sort_unstable();
        match whole.and(parts) {
            Err(error) => Some(format!("walking: {error}")),
            Ok(()) if at_once != by_units => Some(format!(
                "for_each shows {} pairs, scan {} or others",
                at_once.len(),
                by_units.len()
            )),
            Ok(()) => None,
        }
    }

    /// Calls `mark` with every reachable block, as often as it is named.
    fn visit(&self, mark: &mut dyn FnMut(u64)) -> Result<()> {
        struct Marker<'a>(bool, &'a mut dyn FnMut(u64));
        impl Visitor for Marker<'_> {
            fn block(&mut self, offset: u64) {
                (self.1)(offset);
            }
            fn word(&mut self, word: u64) {
                if self.0 {
                    (self.1)(word & OFFSET_MASK);
                }
            }
        }
        self.index.visit(&mut Marker(K::WORDS_ARE_RECORDS, mark))
    }
}

impl<K: Numbered> Instance<K> for PoolInstance<K> {
    fn index(&self) -> &dyn Index<K> {
        &*self.index
    }

    fn pin(&self) -> Guard<'_> {
        self.pool.pin()
    }

    fn scan(
        &self,
        from: u64,
        guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        self.index.scan(from, guard, each)
    }

    fn seed(&self) -> u64 {
        self.pool.seed()
    }

    fn word(&self, key: K::Ref<'_>, tag: u64) -> Result<u64> {
        new_word::<K>(&self.pool, key, tag)
    }

    fn tag(&self, word: u64) -> u64 {
        if !K::WORDS_ARE_RECORDS {
            return word;
        }
        let m = self.pool.medium();
        m.at::<Header>(word & OFFSET_MASK).map_or(u64::MAX, |header| m.load(&header.cas))
    }

    fn discard(&self, word: u64) {
        if K::WORDS_ARE_RECORDS {
            self.pool.free_unpublished(word);
        }
    }

    fn retire(&self, word: u64, guard: &Guard<'_>) {
        retire_word::<K>(&self.pool, word, guard);
    }

    fn sweep(&self) -> Result<()> {
        self.pool.sweep(|mark| self.visit(mark))
    }

    fn audit(&self) -> Vec<String> {
        let mut wrong = self.index.check();
        wrong.extend(self.compare_walks());
        self.pool.epoch().drain();
        let faults = self.pool.heap_stats().faults;
        if faults > 0 {
            wrong.push(format!("{faults} frees or marks of blocks that are not allocated"));
        }
        // Before the sweep, old blocks are neither allocated nor free.
        if self.pool.is_swept() {
            let mut reachable = Vec::new();
            match self.visit(&mut |block| reachable.push(block)) {
                Ok(()) => wrong.extend(compare_blocks(reachable, self.pool.allocated())),
                Err(error) => wrong.push(format!("visit: {error}")),
            }
        }
        wrong
    }
}

/// Returns the word to put for `key` that has the number `tag`. See [`Instance::word`].
pub(super) fn new_word<K: Numbered>(pool: &Pool<Sim>, key: K::Ref<'_>, tag: u64) -> Result<u64> {
    if !K::WORDS_ARE_RECORDS {
        return Ok(tag);
    }
    let bytes = K::record_key(key);
    let (m, len) = (pool.medium(), bytes.len() as u64);
    let offset = pool.allocate(record::HEADER + len)?;
    let header = m.at::<Header>(offset).expect("just allocated");
    m.store(&header.control, 0);
    m.store(&header.cas, tag);
    m.store(&header.check, 0);
    m.store(&header.lengths, len);
    let cells = m.slice(offset + record::HEADER, len.div_ceil(8)).expect("just allocated");
    m.write_bytes(cells, bytes);
    m.flush(header);
    m.note(Note::Harmless("trees do not read the key of a record: they have a copy"));
    m.flush(cells);
    m.fence();
    Ok(offset)
}

/// Retires a word that was replaced or removed under `guard`.
pub(super) fn retire_word<K: Numbered>(pool: &Pool<Sim>, word: u64, guard: &Guard<'_>) {
    if K::WORDS_ARE_RECORDS {
        pool.retire(word & OFFSET_MASK, record::HEADER, guard);
    }
}

/// Describes the differences between the reachable and the allocated blocks.
fn compare_blocks(mut reachable: Vec<u64>, allocated: Vec<u64>) -> Vec<String> {
    let mut wrong = Vec::new();
    reachable.sort_unstable();
    let twice = reachable.windows(2).filter(|pair| pair[0] == pair[1]);
    wrong.extend(twice.map(|pair| format!("block {:#x} is named twice", pair[0])));
    let (reachable, allocated): (BTreeSet<u64>, BTreeSet<u64>) =
        (reachable.into_iter().collect(), allocated.into_iter().collect());
    for (these, those, what) in [
        (&allocated, &reachable, "allocated but not reachable"),
        (&reachable, &allocated, "reachable but not allocated"),
    ] {
        let odd: Vec<u64> = these.difference(those).copied().collect();
        if let Some(first) = odd.first() {
            wrong.push(format!("{} blocks are {what}, {first:#x} first", odd.len()));
        }
    }
    wrong
}

/// Stops an index uncleanly several times, and runs mutations and readers concurrently with the
/// sweep each time.
///
/// # Errors
/// A block that was lost, leaked or allocated twice; a wrong word or key.
pub fn sweep<K: Numbered, P: PoolSubject<K>>(subject: &P, config: &Config) -> Result<(), Failure> {
    sweep_of::<K>(&AnyPooled(subject), config)
}

fn sweep_of<K: Numbered>(subject: &dyn AnySubject<K>, config: &Config) -> Result<(), Failure> {
    for universe in config.universes::<K>() {
        for round in 0..config.scale {
            let seed = config.seed_of(round);
            live_and_sweep(subject, config, &universe, seed)
                .map_err(|what| Failure::new::<K>("sweep", universe.name, seed, what))?;
        }
    }
    Ok(())
}

/// Runs several lives of one index. In each life one thread sweeps, one makes a storm on a few
/// keys, one removes what the previous life has left and then makes the index grow and shrink, and
/// one reads.
fn live_and_sweep<K: Numbered>(
    subject: &dyn AnySubject<K>,
    config: &Config,
    universe: &Universe,
    seed: u64,
) -> Result<(), String> {
    let lives = config.tier.choose(2, 4);
    const STORMED: usize = 4;
    let stormed = &universe.keys[..STORMED];
    let rest = Universe { keys: universe.keys[STORMED..].to_vec(), ..universe.clone() };
    let roles = KeyRoles::new(&rest, subject.always_holds(), config.tier);
    let records = Records::default();
    let mut changes = Vec::new();
    let mut made = subject.fresh().map_err(|error| error.to_string())?;
    roles.insert_stable(&Driver::new(made.instance(), &records))?;
    let mut left = Vec::new();
    for life in 0..lives {
        let instance = made.instance();
        let driver = &Driver::new(instance, &records);
        let (left_over, writing) = (&left, AtomicUsize::new(1));
        let stormy = threads(4, |thread| {
            let random = &mut Rng::new(thread_seed(seed, thread + life as usize * 4));
            match thread {
                0 => instance.sweep().map_err(|error| format!("sweep: {error}"))?,
                1 => {
                    return storm_thread(
                        driver,
                        stormed,
                        config.tier.choose(1000, 2000),
                        life as usize,
                        universe.hostile,
                        random,
                    );
                }
                2 => {
                    let _done = WriterDone(&writing);
                    roles.clear(driver, Vec::clone(left_over), life * 100, random)?;
                    roles.write(driver, &roles.transient, life * 100 + 1, random)?;
                }
                _ => roles.read_while(driver, &writing, random)?,
            }
            Ok(Vec::new())
        })?;
        changes.extend(stormy.concat());
        check_account(driver, stormed, &changes)?;
        match instance.audit() {
            wrong if wrong.is_empty() => {}
            wrong => return Err(format!("audit in life {life}: {}", wrong.join("; "))),
        }
        left = roles.fill(driver, &roles.transient, (life + 1) * 100)?;
        made = made.reopen(Stop::Unclean).map_err(|error| format!("cannot be opened: {error}"))?;
    }
    Ok(())
}

/// Returns numbers of keys with hashes that are as uniform as the kind allows.
pub(crate) fn spread_keys<K: Numbered>(seed: u64) -> impl Iterator<Item = u64> {
    let mut random = Rng::new(seed);
    // Above this limit the kit's byte strings have bad hashes.
    let limit = if K::WORDS_ARE_RECORDS { u64::MAX >> 1 } else { u64::MAX };
    std::iter::repeat_with(move || random.draw() & limit)
}

/// Fills a small pool until it is full, and checks that every result stays correct, that an error
/// changes nothing, and that removals free space again.
///
/// # Errors
/// A violation of one of these.
pub fn full<K: Numbered, P: PoolSubject<K>>(subject: &P, config: &Config) -> Result<(), Failure> {
    full_of::<K>(subject, config)
}

fn full_of<K: Numbered>(subject: &dyn AnyPoolSubject<K>, config: &Config) -> Result<(), Failure> {
    for round in 0..config.scale {
        let seed = config.seed_of(round);
        fill_up(subject, seed).map_err(|what| Failure::new::<K>("full", "spread", seed, what))?;
    }
    Ok(())
}

/// Returns the number of extents in small pools.
fn few_extents() -> u64 {
    tier().choose(20, 40)
}

/// Fills a small pool with records of one size, removes most of them, and checks that their space
/// can be used for records of another size: the structure must not keep it. Does nothing if words
/// are not records.
///
/// # Errors
/// If less than a third of the space can be used.
pub fn reuse<K: Numbered, P: PoolSubject<K>>(subject: &P, config: &Config) -> Result<(), Failure> {
    reuse_of::<K>(subject, config)
}

fn reuse_of<K: Numbered>(subject: &dyn AnyPoolSubject<K>, config: &Config) -> Result<(), Failure> {
    // Records of one, two and four cache lines: the sizes of which structures are made.
    for tail in [17, 77, 207].into_iter().filter(|_| K::WORDS_ARE_RECORDS) {
        fill_anew(subject, tail)
            .map_err(|what| Failure::new::<K>("reuse", "spread", config.seed, what))?;
    }
    Ok(())
}

/// Returns the numbers of byte strings that all have about `tail` bytes.
fn keys_of_length(tail: u64) -> impl Iterator<Item = u64> {
    // See `Bytes::owned`.
    (0..).map(move |number| (1 << 40) + number * 250 + (tail + 250 - (1 << 40) % 250) % 250)
}

fn fill_anew<K: Numbered>(subject: &dyn AnyPoolSubject<K>, tail: u64) -> Result<(), String> {
    const OTHER_TAIL: u64 = 137;
    let instance = small_pool(subject).map_err(|error| error.to_string())?;
    let records = Records::default();
    let driver = Driver::new(&instance, &records);
    let mut tags = 0;
    let mut fill = |tail| -> Result<Vec<u64>, String> {
        let mut fitted = Vec::new();
        for key in keys_of_length(tail) {
            tags += 1;
            match driver.call(&Call { key, verb: Verb::Insert(tags) })? {
                Some(_) => fitted.push(key),
                None => break,
            }
        }
        Ok(fitted)
    };
    let bytes = |key: u64| {
        let owned = K::owned(key, instance.pool.seed());
        instance.pool.block_size(record::HEADER + K::record_key(K::lend(&owned)).len() as u64)
    };
    let first = fill(tail)?;
    // All of the first half, so that whole extents become free, and most of the second.
    let gone = |&(place, _): &(usize, &u64)| place < first.len() / 2 || place % 5 != 0;
    let mut freed = 0;
    for (place, &key) in first.iter().enumerate().filter(gone) {
        let call = Call { key, verb: Verb::Remove };
        if !driver.call(&call)?.is_some_and(|change| change.removed()) {
            return Err(format!("{call}: removed nothing"));
        }
        freed += bytes(key);
        if place % 64 == 0 {
            // There are no readers: what was unlinked is freed.
            instance.pool.epoch().drain();
        }
    }
    instance.pool.epoch().drain();
    let second = fill(OTHER_TAIL)?;
    let used: u64 = second.iter().map(|&key| bytes(key)).sum();
    if used * 3 < freed {
        return Err(format!(
            "{freed} bytes of records of {} bytes were freed, but only {used} took records of {}",
            bytes(first[0]),
            keys_of_length(OTHER_TAIL).next().map_or(0, bytes)
        ));
    }
    match instance.audit() {
        wrong if wrong.is_empty() => Ok(()),
        wrong => Err(format!("audit: {}", wrong.join("; "))),
    }
}

/// Creates an index in a pool that is soon full.
pub(super) fn small_pool<K: Numbered>(subject: &dyn AnyPoolSubject<K>) -> Result<PoolInstance<K>> {
    let medium = Sim::in_memory(few_extents() * subject.extent_size())?;
    create(subject, medium.observed_by(Arc::new(Stops)))
}

fn fill_up<K: Numbered>(subject: &dyn AnyPoolSubject<K>, seed: u64) -> Result<(), String> {
    let mut instance = small_pool(subject).map_err(|error| error.to_string())?;
    let records = Records::default();
    let put = |driver: &Driver<'_, K>, keys: &[u64], tag: u64| -> Result<usize, String> {
        for (place, &key) in keys.iter().enumerate() {
            let call = Call { key, verb: Verb::Insert(tag + place as u64) };
            match driver.call(&call)? {
                None => return Ok(place),
                Some(change) if change.inserted() => {}
                Some(change) => return Err(format!("{call}: {} is impossible", InWords(change))),
            }
        }
        Ok(keys.len())
    };
    let holds = |driver: &Driver<'_, K>, keys: &[u64], tag: u64| -> Result<(), String> {
        for (place, &key) in keys.iter().enumerate() {
            let (found, due) = (driver.get(key)?, Some(tag + place as u64));
            if found != due {
                return Err(format!(
                    "get({key}) returned {}, must return {}",
                    InWords(found),
                    InWords(due)
                ));
            }
        }
        let len = driver.stats()?.len;
        if len == keys.len() as u64 {
            Ok(())
        } else {
            Err(format!("{len} pairs, not {}", keys.len()))
        }
    };
    let sound = |instance: &dyn Instance<K>| match instance.audit() {
        wrong if wrong.is_empty() => Ok(()),
        wrong => Err(format!("audit: {}", wrong.join("; "))),
    };
    // Every pair takes at least 8 bytes, so this is more than fits.
    let most = few_extents() * subject.extent_size() / 8;
    let mut keys: Vec<u64> = spread_keys::<K>(seed).take(most as usize).collect();
    let driver = Driver::new(&instance, &records);
    let fitted = put(&driver, &keys, 1)?;
    if fitted == keys.len() {
        return Err(format!("{fitted} pairs fit into {most} words"));
    }
    keys.truncate(fitted);
    holds(&driver, &keys, 1)?;
    sound(&instance)?;
    // Operations that add no key need no space.
    for &key in keys.iter().filter(|_| !K::WORDS_ARE_RECORDS) {
        let call = Call { key, verb: Verb::Update(7) };
        if driver.call(&call)?.is_none() {
            return Err(format!("{call}: no space"));
        }
    }
    for &key in &keys {
        let call = Call { key, verb: Verb::Remove };
        if !driver.call(&call)?.is_some_and(|change| change.removed()) {
            return Err(format!("{call}: removed nothing"));
        }
    }
    sound(&instance)?;
    // Only half of the keys: words, records and structure must find space again.
    keys.truncate(fitted / 2);
    let again = put(&driver, &keys, most)?;
    if again < keys.len() {
        return Err(format!("only {again} of {fitted} pairs fit again after all were removed"));
    }
    holds(&driver, &keys, most)?;
    sound(&instance)?;
    for stop in [Stop::Clean, Stop::Unclean] {
        instance = AnyPooled(subject).reopen(instance, stop).map_err(|error| error.to_string())?;
        instance.sweep().map_err(|error| error.to_string())?;
        holds(&Driver::new(&instance, &records), &keys, most)?;
        sound(&instance)?;
    }
    Ok(())
}
