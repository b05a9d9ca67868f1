//! Crashes of the log, everywhere, with an oracle that knows which states are right.

use std::sync::Arc;

use super::super::*;
use super::model::{Model, UUID, options};
use super::simfs::{Data, Disk, Event, Fault, Misdeed, Note, SimFs, Walk};
use crate::sim::rng::Rng;
use crate::sim::tier;
use crate::{Error, ErrorKind};

/// Pages of the region at first.
const PAGES: usize = 6;

/// Which states may be found after a crash.
#[derive(Clone, Default)]
struct Oracle {
    /// The state with each sequence number that was begun.
    begun: Vec<Arc<Vec<u8>>>,
    /// The newest one that must not be lost. `None` before the log is created.
    durable: Option<u64>,
}

impl Oracle {
    fn take(&mut self, note: &Note) {
        match note {
            Note::Begin(sequence, state) => {
                self.begun.truncate(*sequence as usize);
                self.begun.push(state.clone());
            }
            Note::Durable(sequence) => {
                self.begun.truncate(*sequence as usize + 1);
                self.durable = Some(*sequence);
            }
        }
    }

    /// Judges what was found, where `lost` durable records may be missing.
    fn check(&self, found: &Rebuilt, bytes: &[u8], lost: u64) -> Result<(), String> {
        let least = self.durable.unwrap_or(0).saturating_sub(lost);
        if found.sequence < least {
            return Err(format!("found state {}, but {least} was durable", found.sequence));
        }
        match self.begun.get(found.sequence as usize) {
            None => Err(format!("found state {}, which was never begun", found.sequence)),
            Some(state) if state.as_slice() != bytes => {
                Err(format!("state {} is wrong", found.sequence))
            }
            Some(_) if found.uuid != UUID => Err("a wrong identity".into()),
            Some(_) => Ok(()),
        }
    }
}

/// Opens the log, or creates it, as a program does at its start.
fn start(fs: &SimFs, model: &mut Model) -> Result<RedoLog, Error> {
    let storage: Arc<dyn Storage> = Arc::new(fs.clone());
    if RedoLog::exists(fs)? {
        let log = RedoLog::open(storage, options())?;
        model.truncate(log.last_sequence());
        fs.note(Note::Durable(log.last_sequence()));
        return Ok(log);
    }
    let first = model.last().clone();
    fs.note(Note::Begin(0, first.clone()));
    let log = RedoLog::create(storage, UUID, first.len() as u64, options(), |at, bytes| {
        bytes.copy_from_slice(&first[at as usize..][..bytes.len()]);
    })?;
    fs.note(Note::Durable(0));
    Ok(log)
}

fn append(fs: &SimFs, log: &RedoLog, model: &mut Model) -> Result<(), Error> {
    let mut record = RecordBuilder::new();
    let region_len = model.change(&mut record);
    fs.note(Note::Begin(model.sequence(), model.last().clone()));
    match log.append(&record, region_len) {
        Ok(sequence) if sequence != model.sequence() => {
            Err(Error::damaged(0, format!("state {} is numbered {sequence}", model.sequence())))
        }
        Ok(sequence) => {
            fs.note(Note::Durable(sequence));
            Ok(())
        }
        Err(error) => {
            if matches!(error.kind(), ErrorKind::Io { .. }) {
                assert!(log.append(&record, region_len).is_err(), "{error} was forgotten");
            }
            Err(error)
        }
    }
}

/// Does one thing with the log. Returns whether it is to be opened again.
fn one_call(
    fs: &SimFs,
    log: &Arc<RedoLog>,
    model: &mut Model,
    rng: &mut Rng,
) -> Result<bool, Error> {
    match rng.below(16) {
        0 | 1 => log.checkpoint().map(|()| false),
        2 => log.reserve().map(|()| false),
        3 => Ok(true),
        4 => {
            // A checkpoint while an append has written, and not synced yet.
            let beside = log.clone();
            fs.before_sync(move || {
                let _ = beside.checkpoint();
            });
            let appended = append(fs, log, model);
            fs.without_hook();
            appended.map(|()| false)
        }
        _ => append(fs, log, model).map(|()| false),
    }
}

/// Uses the log for `calls` calls. Faults of the file system are met like a program does that opens
/// the log again after an error, or like one that goes on.
fn work(fs: &SimFs, model: &mut Model, calls: usize, rng: &mut Rng) -> Result<(), String> {
    let mut left = calls;
    // One fault takes one attempt, and the last call needs none.
    for _ in 0..calls + 4 {
        let log = match start(fs, model) {
            Ok(log) => Arc::new(log),
            Err(error) if fs.is_faulty() => {
                fs.revive();
                assert!(!error.to_string().is_empty());
                continue;
            }
            Err(error) => return Err(format!("opening: {error}")),
        };
        loop {
            if left == 0 {
                return Ok(());
            }
            left -= 1;
            match one_call(fs, &log, model, rng) {
                Ok(false) => {}
                Ok(true) => break,
                Err(error) if fs.is_faulty() => {
                    let text = error.to_string();
                    let goes_on = rng.one_in(2) && !fs.is_dead() && !text.contains(".redo");
                    if !goes_on {
                        fs.revive();
                        break;
                    }
                    model.truncate(log.last_sequence());
                }
                Err(error) => return Err(format!("a call: {error}")),
            }
        }
    }
    Ok(())
}

/// How images are made and judged.
#[derive(Clone, Copy)]
struct Plan {
    /// Images after each event.
    images: u64,
    /// One image in this number is used on, and one in this number of those crashes again.
    used: u64,
    crashed_again: u64,
    depth: u32,
}

/// Judges what a crash has left. Returns the number of images.
fn judge(disk: &Disk, oracle: &Oracle, plan: Plan, rng: &mut Rng) -> Result<u64, String> {
    let fs = SimFs::new(disk.clone());
    if !RedoLog::exists(&fs).map_err(|error| error.to_string())? {
        return match oracle.durable {
            None => Ok(1),
            Some(_) => Err("the log is gone".into()),
        };
    }
    let found = check_rebuilt(&fs, oracle, 0)?;
    if !rng.one_in(plan.used) {
        return Ok(1);
    }
    let mut model = Model::after(&oracle.begun[..=found.sequence as usize], rng.draw());
    work(&fs, &mut model, 3, rng).map_err(|error| format!("used again: {error}"))?;
    let mut bytes = Vec::new();
    let last = rebuild(&fs, &mut bytes, None, &mut |_, _| {}).map_err(|error| error.to_string())?;
    if last.sequence != model.sequence() || bytes != **model.last() {
        return Err(format!("used again: state {} is wrong", last.sequence));
    }
    let mut images = 1;
    if plan.depth > 0 && rng.one_in(plan.crashed_again) {
        let again = Plan { images: 1, depth: plan.depth - 1, ..plan };
        images += crash_everywhere(disk, oracle, &fs.trace(), again, rng)
            .map_err(|error| format!("crashed again: {error}"))?;
    }
    Ok(images)
}

fn check_rebuilt(fs: &SimFs, oracle: &Oracle, lost: u64) -> Result<Rebuilt, String> {
    let mut bytes = vec![0xaa; 5000];
    let found = rebuild(fs, &mut bytes, None, &mut |_, _| {}).map_err(|error| error.to_string())?;
    oracle.check(&found, &bytes, lost)?;
    Ok(found)
}

/// Crashes after every event of a recording. Returns the number of images.
fn crash_everywhere(
    disk: &Disk,
    oracle: &Oracle,
    trace: &[Event],
    plan: Plan,
    rng: &mut Rng,
) -> Result<u64, String> {
    let (mut walk, mut oracle) = (Walk::new(disk.clone()), oracle.clone());
    let mut images = 0;
    for (number, event) in trace.iter().enumerate() {
        if let Event::Note(note) = event {
            oracle.take(note);
        }
        walk.step(number, event, rng);
        for _ in 0..plan.images {
            images += judge(&walk.crash(rng), &oracle, plan, rng)
                .map_err(|error| format!("event {number}: {error}"))?;
        }
    }
    Ok(images)
}

/// Runs one workload, with a fault at one of its calls, and crashes it. Returns the number of
/// images.
fn campaign(seed: u64, fault: Option<(u64, Fault)>, plan: Plan) -> Result<u64, String> {
    let (fs, _) = record(seed, fault)?;
    let mut rng = Rng::new(!seed);
    crash_everywhere(&Disk::default(), &Oracle::default(), &fs.trace(), plan, &mut rng)
}

/// Runs one workload. Returns its file system, and the number of its calls.
fn record(seed: u64, fault: Option<(u64, Fault)>) -> Result<(SimFs, u64), String> {
    let fs = SimFs::default();
    if let Some((calls, fault)) = fault {
        fs.fail(calls, fault);
    }
    let mut model = Model::new(seed, PAGES);
    work(&fs, &mut model, 24, &mut Rng::new(seed))?;
    let calls = fs.calls();
    Ok((fs, calls))
}

/// Runs campaigns for these seeds, every third with a fault. Returns the number of images.
pub(super) fn campaigns(seeds: std::ops::Range<u64>, images: u64) -> Result<u64, String> {
    let plan = Plan { images, used: 4, crashed_again: 16, depth: 2 };
    let mut total = 0;
    for seed in seeds {
        let mut rng = Rng::new(seed ^ 0x5eed);
        let (_, calls) = record(seed, None)?;
        let kinds = [Fault::Eio, Fault::Enospc, Fault::Kill];
        let fault = (!rng.one_in(4)).then(|| (rng.below(calls), *rng.pick(&kinds)));
        total += campaign(seed, fault, plan)
            .map_err(|error| format!("seed {seed}, fault {fault:?}: {error}"))?;
    }
    Ok(total)
}

#[test]
fn every_crash_leaves_a_state() {
    let images = campaigns(0..tier().choose(12, 2200), tier().choose(1, 2));
    let images = images.unwrap_or_else(|error| panic!("{error}"));
    println!("{images} images");
    assert!(images > tier().choose(2_000, 1_000_000), "only {images} images");
}

#[test]
fn errors_of_every_call_leave_a_state() {
    let plan = Plan { images: 1, used: 8, crashed_again: 64, depth: 1 };
    let seeds = tier().choose(1, 2);
    for seed in 1000..1000 + seeds {
        let (_, calls) = record(seed, None).unwrap();
        let step = tier().choose(7, 1);
        for (call, fault) in (0..calls)
            .step_by(step)
            .flat_map(|call| [Fault::Eio, Fault::Enospc, Fault::Kill].map(|fault| (call, fault)))
        {
            if let Err(error) = campaign(seed, Some((call, fault)), plan) {
                panic!("seed {seed}, {fault:?} at call {call}: {error}");
            }
        }
    }
}

/// A device that loses, or misdirects, what it has reported as durable.
fn misdeed(seed: u64) -> Result<bool, String> {
    let (fs, _) = record(seed, None)?;
    let (trace, mut rng) = (fs.trace(), Rng::new(seed ^ 0xbad));
    let writes = trace.iter().enumerate().filter_map(|(number, event)| match event {
        Event::Data(_, Data::Write(_, bytes)) => Some((number, bytes.starts_with(b"EVREDO01"))),
        _ => None,
    });
    let writes: Vec<_> = writes.collect();
    let (number, is_record) = *rng.pick(&writes);
    let kind = match rng.below(3) {
        0 => Misdeed::Lost,
        1 => Misdeed::Stale,
        _ => Misdeed::Misdirected(1 + rng.below(4)),
    };
    let (mut walk, mut oracle) = (Walk::new(Disk::default()), Oracle::default());
    walk.misdeed = Some((number, kind));
    let end = trace.len() as u64;
    let last = number as u64 + rng.below(end - number as u64 + 1);
    for (number, event) in trace.iter().enumerate() {
        if let Event::Note(note) = event {
            oracle.take(note);
        }
        walk.step(number, event, &mut rng);
        if walk.is_misdeed_done() && number as u64 >= last {
            break;
        }
    }
    // The last record cannot be told from one that was torn.
    let lost = u64::from(is_record);
    judge_damaged(&walk.crash(&mut rng), &oracle, lost)
        .map_err(|error| format!("{kind:?} write {number}: {error}"))
}

/// Judges what a crash of a bad device has left: the right state, or an error. Returns whether it
/// is the state.
fn judge_damaged(disk: &Disk, oracle: &Oracle, lost: u64) -> Result<bool, String> {
    let fs = SimFs::new(disk.clone());
    if !RedoLog::exists(&fs).map_err(|error| error.to_string())? {
        return if oracle.durable.is_none() { Ok(true) } else { Err("the log is gone".into()) };
    }
    for step in 0..3 {
        let mut bytes = Vec::new();
        match rebuild(&fs, &mut bytes, None, &mut |_, _| {}) {
            Ok(found) => oracle.check(&found, &bytes, lost)?,
            Err(_) => return Ok(false),
        }
        // An opening, and a checkpoint, must not hide the damage.
        let Ok(log) = RedoLog::open(Arc::new(fs.clone()), options()) else { return Ok(false) };
        if step == 1 && log.checkpoint().is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}

#[test]
fn a_device_that_loses_writes_is_noticed() {
    let seeds = tier().choose(400, 60_000);
    let mut noticed = 0;
    for seed in 0..seeds {
        match misdeed(seed) {
            Ok(is_state) => noticed += u64::from(!is_state),
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    println!("{noticed} of {seeds} were errors");
    assert!(noticed > seeds / 20, "{noticed} of {seeds}");
}
