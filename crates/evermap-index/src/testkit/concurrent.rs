//! Parts of the kit in which several threads use one index.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::ScopedJoinHandle;

use super::call::{Call, Driver, InWords, Records, Verb};
use super::delays::ThreadGroup;
use super::erased::AnySubject;
use super::keys::{Numbered, Universe};
use super::linearizability::{Clock, Event, check};
use super::model::panicked;
use super::{Config, Failure, Instance, Subject, Tier, chance};
use crate::{Action, Change, MutateMode};
use evermap_pm::sim::rng::Rng;

/// Runs `body` with each thread number in parallel, and collects the results. A panic is an error.
pub(crate) fn threads<T: Send>(
    count: usize,
    body: impl Fn(usize) -> Result<T, String> + Sync,
) -> Result<Vec<T>, String> {
    let (start, group) = (Barrier::new(count), Arc::new(ThreadGroup::default()));
    std::thread::scope(|scope| {
        let run = |thread| {
            let (start, group, body) = (&start, &group, &body);
            scope.spawn(move || {
                let _member = group.join(thread as u64);
                start.wait();
                body(thread)
            })
        };
        let handles: Vec<_> = (0..count).map(run).collect();
        let join = |handle: ScopedJoinHandle<'_, Result<T, String>>| {
            handle.join().unwrap_or_else(|panic| Err(panicked(panic)))
        };
        // Joins all threads first: a scope panics if a thread that panicked was not joined.
        let results: Vec<_> = handles.into_iter().map(join).collect();
        results.into_iter().collect()
    })
}

/// Creates an index and runs `body` on it with its own seed, `rounds` times, with the universes in
/// turn.
fn rounds<K: Numbered>(
    part: &str,
    rounds: usize,
    subject: &dyn AnySubject<K>,
    config: &Config,
    body: impl Fn(&Driver<'_, K>, &Universe, u64) -> Result<(), String>,
) -> Result<(), Failure> {
    for (round, universe) in config.universes::<K>().iter().cycle().take(rounds).enumerate() {
        let seed = config.seed_of(round);
        let fail = |what| Failure::new::<K>(part, universe.name, seed, what);
        let made = subject.fresh().map_err(|error| fail(error.to_string()))?;
        let (instance, records) = (made.instance(), Records::default());
        body(&Driver::new(instance, &records), universe, seed).map_err(fail)?;
        audit(instance).map_err(fail)?;
    }
    Ok(())
}

pub(super) fn audit<K: Numbered>(instance: &dyn Instance<K>) -> Result<(), String> {
    match instance.audit() {
        found if found.is_empty() => Ok(()),
        found => Err(format!("audit: {}", found.join("; "))),
    }
}

/// Returns the seed of one thread.
pub fn thread_seed(seed: u64, thread: usize) -> u64 {
    seed.rotate_left(20) ^ thread as u64
}

/// Returns a word that no other thread puts: the thread's number followed by its own count.
fn unique_word(thread: usize, count: &mut u64) -> u64 {
    *count += 1;
    (thread as u64 + 1) << 40 | *count
}

/// Records what threads see that work on a few hot keys while others make the index grow and
/// shrink, and [checks](check) it.
///
/// # Errors
/// Calls whose results no order explains.
pub fn histories<K: Numbered, S: Subject<K>>(subject: &S, config: &Config) -> Result<(), Failure> {
    histories_of::<K>(subject, config)
}

fn histories_of<K: Numbered>(subject: &dyn AnySubject<K>, config: &Config) -> Result<(), Failure> {
    rounds("histories", config.rounds(4, 80), subject, config, |driver, universe, seed| {
        let clock = Clock::default();
        let hot = &universe.keys[..1 + (seed % 4) as usize];
        let mut history: Vec<Event> = threads(config.threads, |thread| {
            let random = &mut Rng::new(thread_seed(seed, thread));
            record(driver, universe, hot, &clock, thread, 1000, random)
        })?
        .concat();
        // The final state is part of the history.
        let keys = universe.keys.clone();
        history.extend(timed_many(driver, &clock, config.threads, keys)?);
        check(&history, &BTreeMap::new()).map_err(|violation| violation.to_string())
    })
}

/// Makes `calls` calls of one thread, most of them on `hot` keys, and returns them as events.
pub(super) fn record<K: Numbered>(
    driver: &Driver<'_, K>,
    universe: &Universe,
    hot: &[u64],
    clock: &Clock,
    thread: usize,
    calls: usize,
    random: &mut Rng,
) -> Result<Vec<Event>, String> {
    let mut events = Vec::new();
    let mut known: HashMap<u64, u64> = HashMap::new();
    let mut words = 0;
    while events.len() < calls {
        if chance(random, 5) {
            let keys: BTreeSet<u64> =
                hot.iter().copied().chain((0..12).map(|_| *random.pick(&universe.keys))).collect();
            events.extend(timed_many(driver, clock, thread, keys.into_iter().collect())?);
            continue;
        }
        // Phases of growth and of shrinkage.
        let grow = if events.len() % 300 < 180 { 60 } else { 20 };
        if chance(random, 3) {
            let keys: BTreeSet<u64> =
                hot.iter().copied().chain((0..20).map(|_| *random.pick(&universe.keys))).collect();
            let mut draw = |key| {
                let current = known.get(&key).copied();
                let word = &mut |_: &mut Rng| unique_word(thread, &mut words);
                Call { key, verb: Verb::random(random, current, grow, word) }
            };
            let calls: Vec<Call> = keys.into_iter().map(&mut draw).collect();
            events.extend(timed_changes(driver, universe, clock, thread, &calls)?);
            continue;
        }
        let key = if chance(random, 60) { *random.pick(hot) } else { *random.pick(&universe.keys) };
        let current = known.get(&key).copied();
        let verb = Verb::random(random, current, grow, &mut |_| unique_word(thread, &mut words));
        let call = Call { key, verb };
        let begin = clock.tick();
        let answer = driver.call(&call).map_err(|what| format!("{call}: {what}"))?;
        let end = clock.tick();
        match answer {
            Some(Change { new, .. }) => {
                new.map(|word| known.insert(key, word));
                events.push(Event { thread, call, begin, end, answer });
            }
            // Nothing has changed, so nothing has to be explained.
            None if universe.hostile => {}
            None => return Err(format!("{call}: no space")),
        }
    }
    Ok(events)
}

/// Runs a `mutate_many` of different keys, and returns the equivalent single calls.
fn timed_changes<K: Numbered>(
    driver: &Driver<'_, K>,
    universe: &Universe,
    clock: &Clock,
    thread: usize,
    calls: &[Call],
) -> Result<Vec<Event>, String> {
    let begin = clock.tick();
    let changes = driver.change_many(calls)?;
    let end = clock.tick();
    if changes.contains(&None) && !universe.hostile {
        return Err("mutate_many: no space".into());
    }
    let event = |(&call, answer): (&Call, Option<Change>)| {
        answer.map(|change| Event { thread, call, begin, end, answer: Some(change) })
    };
    Ok(calls.iter().zip(changes).filter_map(event).collect())
}

/// Runs a `get_many`, and returns the equivalent gets.
fn timed_many<K: Numbered>(
    driver: &Driver<'_, K>,
    clock: &Clock,
    thread: usize,
    keys: Vec<u64>,
) -> Result<Vec<Event>, String> {
    let begin = clock.tick();
    let found = driver.get_many(&keys)?;
    let end = clock.tick();
    let event = |(&key, word)| Event {
        thread,
        call: Call { key, verb: Verb::Get },
        begin,
        end,
        answer: Some(Change { old: word, new: word }),
    };
    Ok(keys.iter().zip(found).map(event).collect())
}

/// Lets threads put and remove unique words on a few keys, and checks the account: every word that
/// was put is seen as old exactly once, or is present at the end.
///
/// # Errors
/// A word that was lost, or seen as old twice.
pub fn storm<K: Numbered, S: Subject<K>>(subject: &S, config: &Config) -> Result<(), Failure> {
    storm_of::<K>(subject, config)
}

fn storm_of<K: Numbered>(subject: &dyn AnySubject<K>, config: &Config) -> Result<(), Failure> {
    let calls = config.tier.choose(3000, 8000);
    rounds("storm", config.rounds(2, 6), subject, config, |driver, universe, seed| {
        let keys = &universe.keys[..8];
        let changes = threads(config.threads, |thread| {
            storm_thread(
                driver,
                keys,
                calls,
                thread,
                false,
                &mut Rng::new(thread_seed(seed, thread)),
            )
        })?;
        check_account(driver, keys, &changes.concat())
    })
}

/// Runs one thread of a storm: changes of random keys. If `may_refuse` is set, the index may return
/// `NoSpace`, because other threads use the space.
pub(crate) fn storm_thread<K: Numbered>(
    driver: &Driver<'_, K>,
    keys: &[u64],
    calls: usize,
    thread: usize,
    may_refuse: bool,
    random: &mut Rng,
) -> Result<Vec<(u64, Change)>, String> {
    let mut words = 0;
    let mut seen = 0;
    let mut changes = Vec::new();
    for _ in 0..calls {
        let word = unique_word(thread, &mut words);
        let verb = match random.below(8) {
            0 => Verb::Insert(word),
            1 => Verb::Update(word),
            2 | 3 => Verb::Upsert(word),
            4 => Verb::CompareExchange { expected: seen, new: word },
            5 => Verb::Remove,
            6 => Verb::RemoveIf(seen),
            _ => Verb::Mutate {
                mode: *random.pick(&[MutateMode::MayInsert, MutateMode::ExistingOnly]),
                absent: Action::Put(word),
                present: *random.pick(&[Action::Put(word), Action::Remove]),
            },
        };
        let call = Call { key: *random.pick(keys), verb };
        let answer = driver.call(&call).map_err(|what| format!("{call}: {what}"))?;
        let change = match answer {
            Some(change) => change,
            // Nothing has changed.
            None if may_refuse => continue,
            None => return Err(format!("{call}: no space")),
        };
        if change != verb.apply(change.old) {
            return Err(format!("{call}: {} is an impossible result", InWords(change)));
        }
        seen = change.new.unwrap_or(seen);
        if change.changed() {
            changes.push((call.key, change));
        }
    }
    Ok(changes)
}

/// Checks the account of a storm.
pub(crate) fn check_account<K: Numbered>(
    driver: &Driver<'_, K>,
    keys: &[u64],
    changes: &[(u64, Change)],
) -> Result<(), String> {
    for &key in keys {
        let mut put = BTreeSet::new();
        let mut gone = BTreeSet::new();
        let last = driver.get(key)?;
        let of_key = changes.iter().filter(|(of, _)| *of == key).map(|(_, change)| change);
        let end = Change { old: last, new: None };
        for change in of_key.chain([&end]) {
            put.extend(change.new);
            if let Some(old) = change.old
                && !gone.insert(old)
            {
                return Err(format!("key {key}: word {old} was seen as old twice"));
            }
        }
        if let Some(lost) = put.difference(&gone).next() {
            return Err(format!("key {key}: word {lost} was put and then lost"));
        }
        if let Some(unknown) = gone.difference(&put).next() {
            return Err(format!("key {key}: word {unknown} was seen as old but never put"));
        }
    }
    Ok(())
}

/// Lets some threads insert and remove keys, so that the index splits and merges, while others look
/// up keys that stay.
///
/// # Errors
/// A key or word that a reader missed, saw twice, or cannot have seen.
pub fn growth<K: Numbered, S: Subject<K>>(subject: &S, config: &Config) -> Result<(), Failure> {
    growth_of::<K>(subject, config)
}

fn growth_of<K: Numbered>(subject: &dyn AnySubject<K>, config: &Config) -> Result<(), Failure> {
    let count = config.universes::<K>().len() * config.scale;
    rounds("growth", count, subject, config, |driver, universe, seed| {
        let roles = KeyRoles::new(universe, subject.always_holds(), config.tier);
        roles.insert_stable(driver)?;
        let writers = config.threads.div_ceil(2);
        let writing = AtomicUsize::new(writers);
        threads(config.threads.max(2), |thread| {
            let random = &mut Rng::new(thread_seed(seed, thread));
            if thread < writers {
                let _done = WriterDone(&writing);
                let own: Vec<u64> =
                    roles.transient.iter().skip(thread).step_by(writers).copied().collect();
                roles.write(driver, &own, 1, random)
            } else {
                roles.read_while(driver, &writing, random)
            }
        })?;
        Ok(())
    })
}

/// Runs walks concurrently with writers that keep the index as full as it was just before it last
/// grew, when it has to move most records. Each index reaches that state at another number of keys,
/// so this is repeated for several numbers within a factor of two.
///
/// # Errors
/// A key that stayed and that a walk missed or showed twice, or a word that it showed twice.
pub fn walks<K: Numbered, S: Subject<K>>(subject: &S, config: &Config) -> Result<(), Failure> {
    walks_of::<K>(subject, config)
}

fn walks_of<K: Numbered>(subject: &dyn AnySubject<K>, config: &Config) -> Result<(), Failure> {
    let sizes = config.tier.choose(2, 10);
    let large = |universe: &Universe| !universe.hostile && universe.keys.len() >= LARGE;
    for universe in config.universes::<K>().into_iter().filter(large) {
        for round in 0..sizes * config.scale {
            let seed = config.seed_of(round);
            let share = (-((round % sizes) as f64) / sizes as f64).exp2();
            let mut universe = universe.clone();
            universe.keys.truncate((universe.keys.len() as f64 * share) as usize);
            let fail = |what| Failure::new::<K>("walks", universe.name, seed, what);
            let made = subject.fresh().map_err(|error| fail(error.to_string()))?;
            walk_beside(made.instance(), &universe, config, seed).map_err(fail)?;
            audit(made.instance()).map_err(fail)?;
        }
    }
    Ok(())
}

/// The smallest number of keys that [`walks`] uses.
const LARGE: usize = 700;

fn walk_beside<K: Numbered>(
    instance: &dyn Instance<K>,
    universe: &Universe,
    config: &Config,
    seed: u64,
) -> Result<(), String> {
    let records = Records::default();
    let driver = &Driver::new(instance, &records);
    let roles = KeyRoles::new(universe, usize::MAX, config.tier);
    roles.insert_stable(driver)?;
    let writers = config.threads.div_ceil(2);
    let writing = AtomicUsize::new(writers);
    threads(config.threads.max(2), |thread| {
        if thread < writers {
            let _done = WriterDone(&writing);
            let own: Vec<u64> =
                roles.transient.iter().skip(thread).step_by(writers).copied().collect();
            roles.oscillate(driver, &own, &mut Rng::new(thread_seed(seed, thread)))
        } else {
            while writing.load(Ordering::Acquire) > 0 {
                roles.check_walk(&driver.pairs(usize::MAX)?)?;
                roles.check_walk(&driver.pairs_by_units()?)?;
            }
            Ok(())
        }
    })?;
    Ok(())
}

/// Counts a writer as finished when dropped, even if it panics: readers wait for zero.
pub(crate) struct WriterDone<'a>(pub &'a AtomicUsize);

impl Drop for WriterDone<'_> {
    fn drop(&mut self) {
        // Release: a reader that sees zero also sees everything that was written.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// The keys that stay, and those that are inserted and removed.
pub(crate) struct KeyRoles {
    stable: Vec<u64>,
    pub(crate) transient: Vec<u64>,
    /// The index of each key in the universe, from 1.
    places: HashMap<u64, u64>,
    hostile: bool,
    /// The approximate number of calls of a writer.
    calls: usize,
    /// The smallest number of times that a writer inserts and removes its keys.
    cycles_min: usize,
}

/// The number of bits of a word below the index of its key.
const NONCE_BITS: u32 = 20;

impl KeyRoles {
    pub(crate) fn new(universe: &Universe, always_holds: usize, tier: Tier) -> Self {
        // With bad hashes, no more keys must stay than the index has promised to hold.
        let most = if universe.hostile { always_holds / 2 } else { usize::MAX };
        let every = if universe.keys.len() > 100 { 8 } else { 3 };
        let (mut stable, mut transient, mut places) = (Vec::new(), Vec::new(), HashMap::new());
        for (place, &key) in universe.keys.iter().enumerate() {
            places.insert(key, place as u64 + 1);
            let stays = place % every == 0 && stable.len() < most;
            if stays { stable.push(key) } else { transient.push(key) }
        }
        let (calls, cycles_min) = (tier.choose(2_500, 20_000), tier.choose(1, 2));
        KeyRoles { stable, transient, places, hostile: universe.hostile, calls, cycles_min }
    }

    /// Returns a word that is unique for the key and `nonce`.
    fn word_of(&self, key: u64, nonce: u64) -> u64 {
        self.places[&key] << NONCE_BITS | nonce
    }

    /// Inserts the stable keys.
    pub(crate) fn insert_stable<K: Numbered>(&self, driver: &Driver<'_, K>) -> Result<(), String> {
        match self.fill(driver, &self.stable, 0)?.len() {
            len if len == self.stable.len() => Ok(()),
            len => Err(format!("no space for key {}", len + 1)),
        }
    }

    /// Inserts keys that are absent. Returns those for which there was space.
    pub(crate) fn fill<K: Numbered>(
        &self,
        driver: &Driver<'_, K>,
        keys: &[u64],
        nonce: u64,
    ) -> Result<Vec<u64>, String> {
        let mut inserted = Vec::new();
        for &key in keys {
            let call = Call { key, verb: Verb::Insert(self.word_of(key, nonce)) };
            match driver.call(&call).map_err(|what| format!("{call}: {what}"))? {
                Some(change) if change == call.verb.apply(None) => inserted.push(key),
                None if self.hostile => {}
                None => return Err(format!("{call}: no space")),
                Some(change) => return Err(format!("{call}: {} is impossible", InWords(change))),
            }
        }
        Ok(inserted)
    }

    /// Removes keys that were inserted with `nonce`, in random order.
    pub(crate) fn clear<K: Numbered>(
        &self,
        driver: &Driver<'_, K>,
        mut keys: Vec<u64>,
        nonce: u64,
        random: &mut Rng,
    ) -> Result<(), String> {
        while !keys.is_empty() {
            let key = keys.swap_remove(random.below(keys.len() as u64) as usize);
            let call = Call { key, verb: Verb::Remove };
            let due = call.verb.apply(Some(self.word_of(key, nonce)));
            match driver.call(&call).map_err(|what| format!("{call}: {what}"))? {
                Some(change) if change == due => {}
                Some(other) => {
                    return Err(format!(
                        "{call}: returned {}, must return {}",
                        InWords(other),
                        InWords(due)
                    ));
                }
                None => return Err(format!("{call}: no space")),
            }
        }
        Ok(())
    }

    /// Inserts keys and removes them again, several times, with nonces from `nonce` on.
    pub(crate) fn write<K: Numbered>(
        &self,
        driver: &Driver<'_, K>,
        keys: &[u64],
        nonce: u64,
        random: &mut Rng,
    ) -> Result<(), String> {
        let cycles = (self.calls / 2 / keys.len()).clamp(self.cycles_min, 40) as u64;
        for nonce in nonce..nonce + cycles {
            let inserted = self.fill(driver, keys, nonce)?;
            self.update_stable(driver, nonce, random)?;
            self.clear(driver, inserted, nonce, random)?;
        }
        Ok(())
    }

    /// Inserts keys, and then removes a third of them and inserts it again, several times.
    fn oscillate<K: Numbered>(
        &self,
        driver: &Driver<'_, K>,
        keys: &[u64],
        random: &mut Rng,
    ) -> Result<(), String> {
        const SWINGS: u64 = 6;
        self.fill(driver, keys, 1)?;
        let mut nonces = [1; 3];
        for nonce in 2..2 + SWINGS {
            let third = nonce as usize % 3;
            let keys: Vec<u64> = keys.iter().skip(third).step_by(3).copied().collect();
            self.clear(driver, keys.clone(), nonces[third], random)?;
            self.fill(driver, &keys, nonce)?;
            nonces[third] = nonce;
        }
        Ok(())
    }

    /// Replaces the words of some stable keys.
    fn update_stable<K: Numbered>(
        &self,
        driver: &Driver<'_, K>,
        nonce: u64,
        random: &mut Rng,
    ) -> Result<(), String> {
        for _ in 0..20 {
            let key = *random.pick(&self.stable);
            let call = Call { key, verb: Verb::Update(self.word_of(key, nonce)) };
            let answer = driver.call(&call).map_err(|what| format!("{call}: {what}"))?;
            let change = answer.ok_or_else(|| format!("{call}: no space"))?;
            self.check_word(key, change.old).map_err(|what| format!("{call}: {what}"))?;
        }
        Ok(())
    }

    /// Reads until all writers have finished.
    pub(crate) fn read_while<K: Numbered>(
        &self,
        driver: &Driver<'_, K>,
        writing: &AtomicUsize,
        random: &mut Rng,
    ) -> Result<(), String> {
        let either = |random: &mut Rng| {
            let keys = *random.pick(&[&self.stable, &self.transient]);
            *random.pick(keys)
        };
        loop {
            // Acquire: pairs with `WriterDone`, so that the last round reads the final state.
            let last = writing.load(Ordering::Acquire) == 0;
            for _ in 0..300 {
                let key = *random.pick(&self.stable);
                self.check_word(key, driver.get(key)?)?;
            }
            for _ in 0..30 {
                let keys: Vec<u64> = (0..random.below(24)).map(|_| either(random)).collect();
                for (&key, word) in keys.iter().zip(driver.get_many(&keys)?) {
                    self.check_word(key, word).map_err(|what| format!("get_many: {what}"))?;
                }
            }
            self.check_walk(&driver.pairs(usize::MAX)?)?;
            if last {
                return Ok(());
            }
        }
    }

    /// Checks that a reader may find `word` at `key`.
    fn check_word(&self, key: u64, word: Option<u64>) -> Result<(), String> {
        let possible = match word {
            None => self.transient.binary_search(&key).is_ok(),
            Some(word) => word >> NONCE_BITS == self.places[&key],
        };
        match possible {
            true => Ok(()),
            false => Err(format!(
                "key {key}: found {}, its words begin at {}",
                InWords(word),
                self.word_of(key, 0)
            )),
        }
    }

    /// Checks how often a walk has shown each key. A transient key may be shown twice, but not with
    /// the same word.
    fn check_walk(&self, pairs: &[(u64, u64)]) -> Result<(), String> {
        let mut shown = HashSet::new();
        for &(slot_key, word) in pairs {
            if !shown.insert(word) {
                return Err(format!("a walk shows slot key {slot_key}, word {word} twice"));
            }
        }
        let mut times: HashMap<u64, u32> = HashMap::new();
        shown.iter().for_each(|word| *times.entry(word >> NONCE_BITS).or_default() += 1);
        for key in &self.stable {
            match times.get(&self.places[key]) {
                Some(1) => {}
                times => {
                    let times = times.copied().unwrap_or(0);
                    return Err(format!("a walk shows key {key}, which stays, {times} times"));
                }
            }
        }
        Ok(())
    }
}
