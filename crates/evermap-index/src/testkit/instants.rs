//! The part of the kit that captures instants: crashes that do not happen.

use std::collections::{BTreeMap, HashMap};

use evermap_pm::medium::PageChange;
use evermap_pm::sim::rng::Rng;
use evermap_pm::sim::schedule::{self, Progress, Schedule};
use evermap_pm::sim::{Sim, Strategy};

use super::call::{Call, Driver, Records, Verb};
use super::concurrent::{audit, record, thread_seed};
use super::erased::AnyPoolSubject;
use super::keys::{Numbered, Universe};
use super::linearizability::{Clock, Event, check};
use super::persistence::{self, PoolInstance, PoolSubject};
use super::{Config, Failure, Instance};
use crate::Change;

/// The capacity of the pools, bytes.
const CAPACITY: u64 = 16 << 20;

/// What a medium has held at an instant, and when that was.
#[derive(Clone)]
pub struct Captured {
    /// The words of the medium.
    pub words: Vec<u64>,
    /// When the capture began, before the instant.
    pub begin: u64,
    /// A time after the instant.
    pub end: u64,
}

impl Captured {
    /// Stores what was captured in a blank medium.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn restore(&self, medium: &Sim) -> evermap_pm::Result<()> {
        persistence::restore(medium, &self.words)
    }
}

/// Captures instants of a medium.
pub struct Capture {
    medium: Sim,
    words: Vec<u64>,
}

impl Capture {
    /// Begins to record what is stored to a blank medium.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn of(medium: &Sim) -> evermap_pm::Result<Self> {
        medium.record_changes()?;
        Ok(Capture { medium: medium.clone(), words: Vec::new() })
    }

    /// Captures an instant. Other threads may run between two pages.
    ///
    /// # Errors
    /// `Io` if the system has no fence of all threads.
    pub fn take(&mut self, clock: &Clock) -> evermap_pm::Result<Captured> {
        let (begin, words, mut end) = (clock.tick(), &mut self.words, None);
        let (_, len) = self.medium.take_changes(&mut |change| {
            // What is shown is as of the instant, which has begun before.
            end.get_or_insert_with(|| clock.tick());
            apply(words, change);
            let_others_run(40);
        })?;
        words.resize(words.len().max(len as usize / 8), 0);
        let end = end.unwrap_or_else(|| clock.tick());
        Ok(Captured { words: words.clone(), begin, end })
    }
}

/// Lets the schedule, if there is one, choose this many times whether other threads run.
fn let_others_run(times: usize) {
    (0..times).for_each(|_| schedule::after(Progress::Begin));
}

#[cfg(test)]
impl Capture {
    /// Copies the words of the medium, while threads change them: no instant.
    pub(super) fn copy(&mut self, clock: &Clock) -> evermap_pm::Result<Captured> {
        use evermap_pm::{Medium, PmU64};
        let (begin, end, len) = (clock.tick(), clock.tick(), self.medium.len());
        let cells = self.medium.slice::<PmU64>(0, len / 8).expect("all of it");
        self.words.resize(cells.len(), 0);
        for (words, cells) in self.words.chunks_mut(8).zip(cells.chunks(8)) {
            let line = cells.iter().map(|cell| self.medium.load_relaxed(cell));
            let line: Vec<u64> = line.collect();
            if *words != line[..] {
                words.copy_from_slice(&line);
                let_others_run(60);
            }
        }
        Ok(Captured { words: self.words.clone(), begin, end })
    }
}

/// Copies the lines that have changed.
fn apply(words: &mut Vec<u64>, change: &PageChange<'_>) {
    let page = change.page as usize * 512;
    words.resize(words.len().max(page + 512), 0);
    for line in (0..64).filter(|line| change.lines >> line & 1 != 0) {
        let mut bytes = [0; 64];
        change.read_line(line, &mut bytes);
        let (new, _) = bytes.as_chunks::<8>();
        for (word, new) in words[page + line as usize * 8..].iter_mut().zip(new) {
            *word = u64::from_le_bytes(*new);
        }
    }
}

/// Captures instants while threads change an index. Each is opened as after the death of the
/// process, must pass every check, and must hold what was acknowledged before the capture began,
/// nothing that began after it had ended, and the rest wholly or not at all.
///
/// # Errors
/// A violation of one of these.
pub fn instants<K: Numbered, P: PoolSubject<K>>(
    subject: &P,
    config: &Config,
) -> Result<(), Failure> {
    instants_of::<K>(subject, config, Capture::take, |_| {})
}

/// A thread, which returns what it has done.
type Body<'a> = Box<dyn FnOnce() -> Result<Vec<Event>, String> + Send + 'a>;

/// How instants are captured.
pub(super) type Take = fn(&mut Capture, &Clock) -> evermap_pm::Result<Captured>;

/// Runs the part on media that `prepare` has prepared.
pub(super) fn instants_of<K: Numbered>(
    subject: &dyn AnyPoolSubject<K>,
    config: &Config,
    take: Take,
    prepare: impl Fn(&Sim),
) -> Result<(), Failure> {
    let rounds = config.rounds(6, 60);
    for (round, universe) in config.universes::<K>().iter().cycle().take(rounds).enumerate() {
        let seed = config.seed_of(round);
        run(subject, config, universe, seed, take, &prepare)
            .map_err(|what| Failure::new::<K>("instants", universe.name, seed, what))?;
    }
    Ok(())
}

fn run<K: Numbered>(
    subject: &dyn AnyPoolSubject<K>,
    config: &Config,
    universe: &Universe,
    seed: u64,
    take: Take,
    prepare: &impl Fn(&Sim),
) -> Result<(), String> {
    let text = |error: evermap_pm::Error| error.to_string();
    let medium = Sim::new(CAPACITY).map_err(text)?;
    medium.pause();
    medium.set_schedule(Schedule { strategy: Strategy::Random, seed });
    let mut capture = Capture::of(&medium).map_err(text)?;
    prepare(&medium);
    let instance = persistence::create(subject, medium.clone()).map_err(text)?;
    let (clock, records) = (Clock::default(), Records::default());
    let driver = Driver::new(&instance, &records);
    let hot = &universe.keys[..1 + (seed % 4) as usize];
    let mut taken = Vec::new();
    let mut bodies: Vec<Body<'_>> = Vec::new();
    for thread in 0..config.threads {
        let (driver, clock) = (&driver, &clock);
        bodies.push(Box::new(move || {
            let random = &mut Rng::new(thread_seed(seed, thread));
            record(driver, universe, hot, clock, thread, CALLS, random)
        }));
    }
    bodies.push(Box::new(|| {
        for _ in 0..CAPTURES {
            let_others_run(200);
            taken.push(take(&mut capture, &clock).map_err(text)?);
        }
        Ok(Vec::new())
    }));
    let history = medium.in_parallel(bodies).into_iter().collect::<Result<Vec<_>, String>>()?;
    let history = history.concat();
    let judge = |history: &[Event]| {
        check(history, &BTreeMap::new()).map_err(|violation| violation.to_string())
    };
    judge(&history)?;
    for captured in &taken {
        let found = examine(subject, universe, captured, config.threads)?;
        check_moment(&history, &found)?;
        judge(&until(captured, &history, found))?;
    }
    Ok(())
}

/// Returns the history that ended with the lookups of `found` after a crash at the instant: a call
/// that had not returned when the capture began may have taken effect or not. Recovery may complete
/// it, so nothing that happened later says which. Times are doubled, so that there is room.
fn until(captured: &Captured, history: &[Event], found: Vec<Event>) -> Vec<Event> {
    let crash = 2 * captured.end - 1;
    let before = history.iter().filter(|event| event.begin < captured.end);
    let before = before.map(|event| match event.end < captured.begin {
        true => Event { begin: 2 * event.begin, end: 2 * event.end, ..*event },
        false => Event { begin: 2 * event.begin, end: crash, answer: None, ..*event },
    });
    let lookups =
        found.into_iter().map(|event| Event { begin: crash + 1, end: crash + 2, ..event });
    before.chain(lookups).collect()
}

/// Checks that there is a moment at which all keys may have held what was found: no word was
/// replaced before another one was put. No word is put twice.
fn check_moment(history: &[Event], found: &[Event]) -> Result<(), String> {
    let word_of = |event: &Event| event.answer.and_then(|change| change.new);
    let found: HashMap<u64, u64> =
        found.iter().filter_map(|event| Some((event.call.key, word_of(event)?))).collect();
    let is_found = |event: &Event, word: Option<u64>| {
        word.is_some() && found.get(&event.call.key).copied() == word
    };
    let changes =
        || history.iter().filter_map(|event| Some((event, event.answer.filter(Change::changed)?)));
    let put = changes().filter(|(event, change)| is_found(event, change.new));
    let replaced = changes().filter(|(event, change)| is_found(event, change.old));
    let last_put = put.map(|(event, _)| event).max_by_key(|event| event.begin);
    let first_replaced = replaced.map(|(event, _)| event).min_by_key(|event| event.end);
    match (first_replaced, last_put) {
        (Some(replaced), Some(put)) if replaced.end < put.begin => {
            Err(format!("an instant before\n{replaced}\nand after\n{put}"))
        }
        _ => Ok(()),
    }
}

/// The number of calls of each thread, and of instants that are captured meanwhile.
const CALLS: usize = 250;
const CAPTURES: usize = 8;

/// Opens what was captured, checks it, and returns what a lookup of each key at that time found.
fn examine<K: Numbered>(
    subject: &dyn AnyPoolSubject<K>,
    universe: &Universe,
    captured: &Captured,
    thread: usize,
) -> Result<Vec<Event>, String> {
    let text = |error: evermap_pm::Error| format!("what was captured: {error}");
    let medium = Sim::in_memory(CAPACITY).map_err(text)?;
    captured.restore(&medium).map_err(text)?;
    let instance: PoolInstance<K> = persistence::open(subject, medium).map_err(text)?;
    let records = Records::default();
    let driver = Driver::new(&instance, &records);
    let found = universe.keys.iter().map(|&key| {
        let word = driver.get(key)?;
        let (call, answer) = (Call { key, verb: Verb::Get }, Some(Change { old: word, new: word }));
        Ok(Event { thread, call, begin: captured.begin, end: captured.end, answer })
    });
    let found = found.collect::<Result<Vec<_>, String>>()?;
    instance.sweep().map_err(text)?;
    audit(&instance).map_err(|what| format!("what was captured: {what}"))?;
    Ok(found)
}
