//! A store: maps, batches, an order in the file, compaction.

use std::time::Instant;

use evermap::{Batch, Evermap, IndexKind, Map, MapOptions, Options, Order};
use evermap_pm::medium::MappedOptions;
use evermap_pm::region::Region;

use crate::moment::{self, Moment};
use crate::mortal::Mortal;
use crate::subject::{self, Result, STEPS, Subject, expect};

/// A batch changes a key that was stored this many steps before; one that was stored twice as many
/// steps before is removed.
const AGE: u64 = 150;
/// Acknowledgements between two compactions, and between two maps that come and go.
const TIDY: u64 = 5;
/// The name of the second map.
const SECONDS: &str = "seconds";
/// The name of the map that comes and goes.
const PASSING: &str = "passing";

/// Opens or creates a store, checks it and changes it.
pub(crate) fn run(index: IndexKind, level: &str, file: &str) -> Result<()> {
    let began = Instant::now();
    let (flush, capacity) = (level.parse()?, 1 << 32);
    let mapped = MappedOptions { flush, create: true, capacity, ..Default::default() };
    let medium = Mortal::open(file, &mapped)?;
    let identity = medium.identity();
    moment::enter(match Region::is_blank(&medium) {
        true => Moment::Creation,
        false => Moment::Opening,
    });
    let mut options = Options::new().index(index).ordered(Order::Persistent).capacity(capacity);
    // Small ones, which become more all the time. A file that is filled has the usual ones.
    if !subject::is_filled() {
        options = options.extent_size(1 << 18);
    }
    let db = Evermap::open_medium(medium, identity, options)?;
    let (map, seconds) = (db.default_map(), db.map(SECONDS, MapOptions::new())?);
    subject::run(&Store { db, map, seconds }, file, began)
}

/// Step `n` stores a record. A batch puts another value in its place, and the same one into the
/// second map, for every third of them; every fourth is removed from both.
struct Store {
    db: Evermap<Mortal>,
    map: Map<Mortal>,
    seconds: Map<Mortal>,
}

fn key_of(step: u64) -> Vec<u8> {
    format!("key {:016x}", step.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes()
}

/// Returns a value of up to 900 bytes, which tells what it belongs to.
fn value_of(step: u64, version: u64) -> Vec<u8> {
    let unit = format!("{step} in version {version}; ").into_bytes();
    let bytes = (step * 7 + version * 311) % 900 + 24;
    unit.iter().copied().cycle().take(bytes as usize).collect()
}

/// Returns the values of both maps for the key of `step` when the steps before `next` are done.
fn wanted(step: u64, next: u64) -> [Option<Vec<u8>>; 2] {
    let Some(age) = next.checked_sub(step + 1) else { return [None, None] };
    if step.is_multiple_of(4) && age >= 2 * AGE {
        return [None, None];
    }
    match step.is_multiple_of(3) && age >= AGE {
        true => [Some(value_of(step, 1)), Some(value_of(step, 1))],
        false => [Some(value_of(step, 0)), None],
    }
}

impl Store {
    fn found(&self, step: u64) -> Result<[Option<Vec<u8>>; 2]> {
        let key = key_of(step);
        Ok([self.map.get(&key)?, self.seconds.get(&key)?])
    }
}

impl Subject for Store {
    fn is_present(&self, step: u64) -> Result<bool> {
        Ok(self.map.get(key_of(step))?.is_some())
    }

    fn check(&self, next: u64) -> Result<()> {
        for step in 0..next + 8 {
            let states = match step + 1 == next {
                true => vec![wanted(step, next)],
                false => vec![wanted(step, next), wanted(step, next.saturating_sub(1))],
            };
            let found = self.found(step)?;
            match states[0] == [None, None] {
                // Two changes, one after the other; a batch makes both at once.
                true => (0..2).try_for_each(|map| {
                    let states: Vec<_> = states.iter().map(|state| state[map].clone()).collect();
                    expect(format!("step {step} of {next}"), found[map].clone(), &states)
                })?,
                false => expect(format!("step {step} of {next}"), found, &states)?,
            }
        }
        moment::enter(Moment::Sweep);
        self.db.recover()?;
        moment::enter(Moment::Recovery);
        for map in [&self.map, &self.seconds] {
            let (all, ordered) = (map.iter().count(), map.scan(..)?.count());
            expect("the number of keys in order", ordered, &[all])?;
        }
        let (report, stat) = (self.db.check(true)?, self.db.stat());
        match report.is_sound() && stat.damage == evermap::DamageMark::None {
            true => Ok(()),
            false => Err(format!("{report}; {stat}").into()),
        }
    }

    fn step(&self, step: u64) -> Result<()> {
        self.map.put(key_of(step), value_of(step, 0))?;
        if let Some(old) = step.checked_sub(AGE)
            && old.is_multiple_of(3)
        {
            let (key, value) = (key_of(old), value_of(old, 1));
            let mut batch = Batch::new();
            batch.put(&key, &value).in_map(SECONDS).put(&key, &value);
            expect("the batch", self.db.apply(&batch)?.is_done(), &[true])?;
        }
        if let Some(old) = step.checked_sub(2 * AGE)
            && old.is_multiple_of(4)
        {
            let key = key_of(old);
            self.seconds.delete(&key)?;
            self.map.delete(&key)?;
        }
        Ok(())
    }

    /// Nothing runs in the background of a store on a medium that the caller has chosen.
    fn tidy_up(&self, step: u64) -> Result<()> {
        if !((step + 1) / STEPS).is_multiple_of(TIDY) {
            return Ok(());
        }
        let passing = self.db.map(PASSING, MapOptions::new())?;
        (0..STEPS).try_for_each(|key| passing.put(key_of(key), value_of(key, 0)))?;
        drop(passing);
        moment::enter(Moment::Compaction);
        self.db.drop_map(PASSING)?;
        self.db.reclaim_dropped()?;
        self.db.compact()?;
        Ok(())
    }
}
