//! Tests of the crash simulator with a small structure: it must find nothing wrong in the correct
//! one, and every mistake in the wrong ones.

use std::fmt;
use std::str::FromStr;
use std::sync::Barrier;
use std::thread;

use evermap_pm::medium::{LINE, Note};
use evermap_pm::sim::detect::detect;
use evermap_pm::sim::mutants::{Fate, MutantSweep};
use evermap_pm::sim::oracle::{MapHistory, MapOp};
use evermap_pm::sim::rng::Rng;
use evermap_pm::sim::{
    Config, CrashPoint, Failure, ImageConfig, Model, Mutation, Nested, Replay, Sim, Strategy,
    Subject, campaign,
};
use evermap_pm::sync::Mutex;
use evermap_pm::{Medium, PmU64, pod};

const KEYS: u64 = 4;

pod! {
    /// A word on a line of its own.
    struct Line: 64 {
        word: PmU64,
        rest: [PmU64; 7],
    }
}

pod! {
    /// A table of pairs whose halves are always equal, although they are on different lines: an
    /// update first saves the old value.
    struct Table {
        /// Not zero while the saved value is valid.
        armed: Line,
        /// Key and old value.
        saved: [PmU64; 8],
        halves: [[Line; KEYS as usize]; 2],
    }
}

/// A mistake in the structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// The saved value is not flushed.
    MissingFlush,
    /// The saved value is not fenced before it becomes valid.
    MissingFence,
    /// The saved value becomes valid before it is written.
    CommitBeforeData,
    /// Recovery invalidates the saved value before the restored value is durable.
    RecoveryForgets,
    /// Recovery waits for a lock that no process holds any more.
    RecoveryWaits,
    /// Recovery assumes that what it finds is durable, although it may only be in a cache.
    RecoveryTrusts,
}

struct Pairs {
    sim: Sim,
    bug: Bug,
}

impl Pairs {
    fn table(&self) -> Result<&Table, String> {
        self.sim.at(0).ok_or_else(|| "the table does not exist".into())
    }

    fn put(&self, key: u64, value: u64) -> Result<u64, String> {
        let (m, table) = (&self.sim, self.table()?);
        let [first, second] = table.halves.each_ref().map(|half| &half[key as usize].word);
        let old = m.load(first);
        if self.bug == Bug::CommitBeforeData {
            m.store(&table.armed.word, 1);
            m.persist(&table.armed);
        }
        let saved: Vec<u8> = [key, old].iter().flat_map(|word| word.to_le_bytes()).collect();
        m.write_bytes(&table.saved[..2], &saved);
        if self.bug != Bug::MissingFlush {
            m.flush(&table.saved);
        }
        if self.bug != Bug::MissingFence {
            m.fence();
        }
        if self.bug != Bug::CommitBeforeData {
            m.store(&table.armed.word, 1);
            m.persist(&table.armed);
        }
        m.store(first, value);
        m.flush(first);
        m.store(second, value);
        m.flush(second);
        m.fence();
        m.store(&table.armed.word, 0);
        m.persist(&table.armed);
        Ok(old)
    }

    fn recover(&self) -> Result<(), String> {
        let (m, table) = (&self.sim, self.table()?);
        if self.bug != Bug::RecoveryTrusts {
            // The process that stored it may have died before it flushed it.
            m.persist(&table.armed);
        }
        if m.load(&table.armed.word) == 0 {
            return Ok(());
        }
        while self.bug == Bug::RecoveryWaits && m.load(&table.armed.word) != 0 {}
        let [key, old] = [0, 1].map(|at| m.load(&table.saved[at]));
        for half in &table.halves {
            let half = half.get(key as usize).ok_or_else(|| format!("saved key {key}"))?;
            m.store(&half.word, old);
            if self.bug != Bug::RecoveryForgets {
                m.flush(&half.word);
            }
        }
        m.fence();
        m.store(&table.armed.word, 0);
        m.persist(&table.armed);
        Ok(())
    }

    fn get(&self, key: u64) -> Result<Option<u64>, String> {
        let table = self.table()?;
        let words = table.halves.each_ref().map(|half| self.sim.load(&half[key as usize].word));
        match words {
            [0, 0] => Ok(None),
            [first, second] if first == second => Ok(Some(first)),
            [first, second] => Err(format!("key {key} is half {first} and half {second}")),
        }
    }

    fn puts(&self, calls: &[Put], history: &MapHistory<u64>) -> Result<(), String> {
        for &Put { key, value } in calls {
            let op = history.begin(&self.sim, key, MapOp::Upsert(value));
            let old = self.put(key, value)?;
            history.end(&self.sim, op, (old != 0).then_some(old));
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Put {
    key: u64,
    value: u64,
}

impl fmt::Display for Put {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "put {} {}", self.key, self.value)
    }
}

impl FromStr for Put {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (key, value) =
            text.strip_prefix("put ").and_then(|text| text.split_once(' ')).ok_or(())?;
        Ok(Put { key: key.parse().map_err(|_| ())?, value: value.parse().map_err(|_| ())? })
    }
}

fn puts(count: u64, seed: u64) -> Vec<Put> {
    let mut rng = Rng::new(seed);
    (0..count).map(|_| Put { key: rng.below(KEYS), value: 1 + rng.below(1 << 32) }).collect()
}

impl Subject for Bug {
    type Call = Put;
    type History = MapHistory<u64>;
    type Live = Pairs;

    fn workload(&self, seed: u64) -> Vec<Put> {
        puts(12, seed)
    }

    fn run(&self, sim: &Sim, calls: &[Put]) -> Result<Self::History, Failure> {
        sim.grow(4096).map_err(|error| error.to_string())?;
        let history = MapHistory::new([]);
        Pairs { sim: sim.clone(), bug: *self }.puts(calls, &history)?;
        Ok(history)
    }

    fn recover(
        &self,
        sim: &Sim,
        history: &Self::History,
        point: &CrashPoint,
    ) -> Result<Pairs, Failure> {
        let pairs = Pairs { sim: sim.clone(), bug: *self };
        if sim.len() == 0 {
            sim.grow(4096).map_err(|error| error.to_string())?;
        }
        pairs.recover()?;
        for key in 0..KEYS {
            history.check(&key, point, pairs.get(key)?)?;
        }
        Ok(pairs)
    }

    fn probe(&self, pairs: Pairs, seed: u64) -> Result<Self::History, Failure> {
        let mut found = Vec::new();
        for key in 0..KEYS {
            found.extend(pairs.get(key)?.map(|word| (key, word)));
        }
        let history = MapHistory::new(found);
        pairs.puts(&puts(2, seed), &history)?;
        Ok(history)
    }

    fn op_name(&self, history: &Self::History, op: u64) -> String {
        history.name(op)
    }
}

fn config() -> Config {
    Config { capacity: 1 << 16, ..Config::default() }
}

#[test]
fn the_correct_structure_survives_every_crash() {
    for model in [Model::Adr, Model::ProcessDeath] {
        let config = Config { images: ImageConfig::of(model), ..config() };
        let report = campaign::run(&Bug::None, &config, 0..3);
        report.assert_clean();
        assert_eq!((report.seeds, report.ops), (3, 36));
        assert_eq!(report.points, report.exhaustive_points);
        assert!(!report.truncated);
        assert!(report.images > 300 && report.nested_images > 100, "{report}");
    }
}

#[test]
fn without_syncs_the_page_cache_loses_acknowledged_operations() {
    let images = ImageConfig::of(Model::PageCache { granule: 512 });
    let report = campaign::run(&Bug::None, &Config { images, ..config() }, 0..1);
    assert!(!report.is_clean());
}

#[test]
fn every_planted_mistake_is_found_and_replays() {
    let bugs = [
        Bug::MissingFlush,
        Bug::MissingFence,
        Bug::CommitBeforeData,
        Bug::RecoveryForgets,
        Bug::RecoveryWaits,
    ];
    for bug in bugs {
        let config = Config { steps: 10_000, ..config() };
        let report = campaign::run(&bug, &config, 0..3);
        assert!(!report.is_clean(), "{bug:?} was not found");
        assert!(report.failed_images <= config.max_failed);
        for violation in &report.violations {
            let written: Replay = violation.replay.to_string().parse().unwrap();
            let again = campaign::replay(&bug, &config, &written).unwrap();
            assert_eq!(again.as_ref(), Some(violation), "{bug:?}");
            // If the correct structure has such a crash at all, it survives it.
            if let Ok(violation) = campaign::replay(&Bug::None, &config, &written) {
                assert_eq!(violation, None, "{bug:?}");
            }
        }
    }
}

#[test]
fn a_report_describes_lost_stores() {
    let report = campaign::run(&Bug::MissingFlush, &config(), 0..1);
    let text = report.to_string();
    let parts = [
        "just before the fence at",
        "crash_campaign.rs:",
        "by thread 0, in operation ",
        "Upsert(",
        "NOT persisted: store at",
        "replay:\nmodel adr\nseed 0\ncrash ",
    ];
    for part in parts {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    let hung = campaign::run(&Bug::RecoveryWaits, &Config { steps: 10_000, ..config() }, 0..1);
    assert!(hung.to_string().contains("stuck"), "{hung}");
}

#[test]
fn only_a_second_crash_shows_that_recovery_forgets() {
    let nested = Nested { depth: 0, ..config().nested };
    campaign::run(&Bug::RecoveryForgets, &Config { nested, ..config() }, 0..3).assert_clean();
    let report = campaign::run(&Bug::RecoveryForgets, &config(), 0..3);
    let story = &report.violations[0].story;
    assert!(story.contains("while recovering: crash"), "{report}");
    assert_eq!(story.matches("crash just before").count(), 2, "{report}");
}

#[test]
fn only_a_power_loss_after_a_death_shows_that_recovery_trusts_caches() {
    campaign::run(&Bug::RecoveryTrusts, &config(), 0..3).assert_clean();
    let config = Config { images: ImageConfig::of(Model::ProcessDeath), ..config() };
    let report = campaign::run(&Bug::RecoveryTrusts, &config, 0..3);
    assert!(report.violations[0].story.contains("by a process that died"), "{report}");
    let replayed = campaign::replay(&Bug::RecoveryTrusts, &config, &report.violations[0].replay);
    assert_eq!(replayed.unwrap().as_ref(), Some(&report.violations[0]));
}

#[test]
fn a_third_crash_is_tried_if_configured() {
    let nested = Nested { depth: 2, ..config().nested };
    let deep = campaign::run(&Bug::None, &Config { nested, ..config() }, 0..1);
    deep.assert_clean();
    let flat = campaign::run(&Bug::None, &config(), 0..1);
    assert!(deep.nested_images > flat.nested_images, "{deep}{flat}");
}

#[test]
fn campaigns_are_deterministic() {
    let run = || campaign::run(&Bug::RecoveryForgets, &config(), 0..2).to_string();
    assert_eq!(run(), run());
}

#[test]
fn a_budget_is_spread_over_all_crash_points_and_its_end_is_reported() {
    let run = |max_images| campaign::run(&Bug::None, &Config { max_images, ..config() }, 0..1);
    let (plenty, some, few) = (run(100_000), run(100), run(20));
    assert_eq!(plenty.nested_traces, plenty.nested_chosen);
    assert_eq!((some.images, some.points, some.truncated), (100, plenty.points, false), "{some}");
    assert!(some.exhaustive_points < some.points, "{some}");
    assert!(some.nested_traces < some.nested_chosen, "{some}");
    assert!(few.images <= 20 && few.truncated, "{few}");
}

/// Every flush and every fence of the structure is needed: omitting any one must be detected.
#[test]
fn every_omitted_flush_and_fence_is_detected() {
    let sites = campaign::run(&Bug::None, &config(), 0..1);
    // In `put` and `recover` together; the two halves share a flush there.
    assert_eq!((sites.flush_sites.len(), sites.fence_sites.len()), (8, 7), "{sites:#?}");
    let drop_flush = sites.flush_sites.iter().copied().map(Mutation::DropFlush);
    let drop_fence = sites.fence_sites.iter().copied().map(Mutation::DropFence);
    for mutation in drop_flush.chain(drop_fence) {
        let detected = |model| {
            let images = ImageConfig::of(model);
            let config = Config { mutation: Some(mutation), max_failed: 1, images, ..config() };
            !campaign::run(&Bug::None, &config, 0..3).is_clean()
        };
        // Only if just the process died can recovery find something that is only in a cache.
        let detected = detected(Model::Adr) || detected(Model::ProcessDeath);
        assert!(detected, "{mutation:?} was not detected");
    }
}

#[test]
fn a_delayed_flush_is_detected() {
    let (trace, _) = campaign::record(&Bug::None, &config(), 0).unwrap();
    let saved = *trace.flush_sites().first().unwrap();
    let config = Config { mutation: Some(Mutation::DelayFlush(saved)), ..config() };
    assert!(!campaign::run(&Bug::None, &config, 0..1).is_clean());
}

#[test]
fn detectors_find_mistakes_and_count_costs_without_a_crash() {
    let (trace, _) = campaign::record(&Bug::None, &config(), 0).unwrap();
    let findings = detect(&trace, |_| "put".into());
    assert!(findings.is_clean() && findings.never_persisted.is_empty(), "{findings}");
    assert!(findings.wrong_line.is_empty());
    assert!(findings.flushes.values().all(|flush| flush.redundant == 0), "{findings}");
    assert!(findings.fences.values().all(|fence| fence.redundant == 0), "{findings}");
    let cost = findings.costs["put"];
    assert_eq!((cost.ops, cost.fences, cost.most_fences), (12, 48, 4));
    assert_eq!((cost.flushes, cost.most_flushes, cost.stores), (60, 5, 60));

    let (trace, _) = campaign::record(&Bug::MissingFlush, &config(), 0).unwrap();
    let findings = detect(&trace, |_| "put".into());
    assert_eq!(findings.unpersisted.len(), 1, "{findings}");
    // The fence that followed the flush has nothing to wait for.
    assert_eq!(findings.fences.values().filter(|fence| fence.redundant == 12).count(), 1);
}

#[test]
fn detectors_distinguish_waste_from_the_wrong_line() {
    let sim = Sim::new(4096).unwrap();
    sim.grow(4096).unwrap();
    let at = |offset| sim.at::<PmU64>(offset).unwrap();
    sim.note(Note::Begin(0));
    sim.store(at(0), 1);
    sim.persist(at(0));
    sim.persist(at(0));
    sim.note(Note::End(0));
    sim.note(Note::Begin(1));
    sim.store(at(LINE), 1);
    sim.persist(at(2 * LINE));
    sim.note(Note::End(1));
    let findings = detect(&sim.trace(), |op| op.to_string());
    let wasted: Vec<_> =
        findings.flushes.values().map(|flush| (flush.redundant, flush.never_stored)).collect();
    assert_eq!(wasted, [(0, 0), (1, 0), (1, 1)]);
    let fences: Vec<_> = findings.fences.values().map(|fence| fence.redundant).collect();
    assert_eq!(fences, [0, 1, 1]);
    // The second operation flushed a clean line but not the line of its own store.
    assert_eq!(findings.wrong_line.len(), 1);
    let unpersisted: Vec<_> = findings.unpersisted.values().map(|found| found.op).collect();
    assert_eq!(unpersisted, [Some(1)]);
    assert_eq!(findings.never_persisted.len(), 1);
    let text = findings.to_string();
    assert!(text.contains("probably the wrong line") && text.contains("redundant"), "{text}");
}

/// A register that one thread writes while another reads it before it is durable.
struct Register {
    /// Whether the reader makes its result durable before it returns.
    helps: bool,
}

impl Register {
    fn get(&self, sim: &Sim, history: &MapHistory<u64>) -> Option<u64> {
        let cell: &PmU64 = sim.at(0).unwrap();
        let op = history.begin(sim, 0, MapOp::Get);
        let seen = Some(sim.load(cell)).filter(|word| *word != 0);
        if self.helps {
            sim.persist(cell);
        }
        history.end(sim, op, seen);
        seen
    }
}

impl Subject for Register {
    type Call = String;
    type History = MapHistory<u64>;
    type Live = Sim;

    fn workload(&self, _seed: u64) -> Vec<String> {
        Vec::new()
    }

    fn run(&self, sim: &Sim, _calls: &[String]) -> Result<Self::History, Failure> {
        sim.grow(4096).map_err(|error| error.to_string())?;
        let (history, turn) = (MapHistory::new([]), Barrier::new(2));
        thread::scope(|threads| {
            threads.spawn(|| {
                let cell: &PmU64 = sim.at(0).unwrap();
                let op = history.begin(sim, 0, MapOp::Insert(5));
                sim.store(cell, 5);
                turn.wait();
                turn.wait();
                sim.persist(cell);
                history.end(sim, op, None);
            });
            turn.wait();
            assert_eq!(self.get(sim, &history), Some(5));
            turn.wait();
        });
        Ok(history)
    }

    fn recover(
        &self,
        sim: &Sim,
        history: &Self::History,
        point: &CrashPoint,
    ) -> Result<Sim, Failure> {
        let found = sim.at::<PmU64>(0).map_or(0, |cell| sim.load(cell));
        history.check(&0, point, Some(found).filter(|word| *word != 0))?;
        Ok(sim.clone())
    }

    fn probe(&self, sim: Sim, _seed: u64) -> Result<Self::History, Failure> {
        let found = sim.at::<PmU64>(0).map_or(0, |cell| sim.load(cell));
        Ok(MapHistory::new((found != 0).then_some((0, found))))
    }

    fn op_name(&self, history: &Self::History, op: u64) -> String {
        history.name(op)
    }
}

#[test]
fn the_result_of_a_reader_must_survive() {
    campaign::run(&Register { helps: true }, &config(), 0..1).assert_clean();
    let report = campaign::run(&Register { helps: false }, &config(), 0..1);
    assert_eq!(report.violations[0].message, "recovery: key 0: found absent, allowed: 0x5");
}

/// Whether images are built or left undecided: the same mistakes are found.
#[test]
fn undecided_memory_shows_the_same_as_built_images() {
    for bug in [Bug::None, Bug::MissingFlush, Bug::MissingFence, Bug::CommitBeforeData] {
        let found = [true, false].map(|undecided| {
            let report = campaign::run(&bug, &Config { undecided, ..config() }, 0..2);
            (report.is_clean(), report.points == report.exhaustive_points)
        });
        assert_eq!(found[0].0, bug == Bug::None, "{bug:?}");
        assert_eq!(found[0].0, found[1].0, "{bug:?}");
        assert!(bug != Bug::None || (found[0].1 && found[1].1));
    }
}

/// Many lines that recovery does not read, and one word that it does: two alternatives, not two to
/// the number of lines.
struct Hidden;

const HIDDEN: u64 = 30;

impl Subject for Hidden {
    type Call = String;
    type History = ();
    type Live = ();

    fn workload(&self, _seed: u64) -> Vec<String> {
        Vec::new()
    }

    fn run(&self, sim: &Sim, _calls: &[String]) -> Result<(), Failure> {
        sim.grow(4096).map_err(|error| error.to_string())?;
        for line in 1..=HIDDEN {
            sim.store(sim.at(line * LINE).unwrap(), line);
        }
        sim.store(sim.at(0).unwrap(), 1);
        Ok(())
    }

    fn recover(&self, sim: &Sim, _: &(), _: &CrashPoint) -> Result<(), Failure> {
        let word: Option<&PmU64> = sim.at(0);
        // Only if the word is set is anything else read: one more line, of which both states are
        // correct.
        if word.is_some_and(|word| sim.load(word) == 1) {
            sim.load(sim.at::<PmU64>(LINE).unwrap());
        }
        Ok(())
    }

    fn probe(&self, (): (), _seed: u64) -> Result<(), Failure> {
        Ok(())
    }
}

#[test]
fn only_words_that_recovery_reads_are_decided() {
    let nested = Nested { depth: 0, ..config().nested };
    let report = campaign::run(&Hidden, &Config { nested, ..config() }, 0..1);
    report.assert_clean();
    assert_eq!(report.points, report.exhaustive_points, "{report}");
    // Three alternatives, and three more with another first decision and the same end, besides
    // those without the file.
    assert!(report.images <= 10, "{report}");
}

#[test]
fn a_violation_shrinks_to_the_calls_that_it_needs() {
    let config = Config { shrink: true, ..config() };
    let report = campaign::run(&Bug::MissingFlush, &config, 0..1);
    let violation = &report.violations[0];
    let text = violation.replay.to_string();
    assert!((1..=2).contains(&text.matches("call put").count()), "{text}");
    let again = campaign::replay(&Bug::MissingFlush, &config, &text.parse().unwrap()).unwrap();
    assert_eq!(again.map(|again| again.message), Some(violation.message.clone()));
    let repaired = campaign::run_replayed(&Bug::None, &config, &violation.replay).unwrap();
    repaired.assert_clean();
    let broken = campaign::run_replayed(&Bug::MissingFlush, &config, &violation.replay).unwrap();
    assert!(!broken.is_clean());
}

/// The same as omitting them one at a time.
#[test]
fn every_relevant_mutant_is_killed() {
    let sweeps = [Model::Adr, Model::ProcessDeath].map(|model| {
        let config = Config { images: ImageConfig::of(model), ..config() };
        MutantSweep::new(&Bug::None, &config, 0..2).unwrap()
    });
    let mutations = sweeps[0].mutations();
    let drops =
        |mutation: &&Mutation| matches!(mutation, Mutation::DropFlush(_) | Mutation::DropFence(_));
    assert_eq!(mutations.iter().filter(drops).count(), 15);
    for &mutation in mutations.iter().filter(drops) {
        let fates = sweeps.each_ref().map(|sweep| sweep.fate(mutation));
        let killed = fates.iter().any(|fate| matches!(fate, Fate::Killed(_)));
        assert!(killed, "{mutation}: {fates:?}");
    }
    // The words of the halves and the flag are small: half of one is the whole.
    let torn = mutations.iter().filter(|mutation| matches!(mutation, Mutation::TearStore(_)));
    assert!(torn.count() > 0);
    assert!(MutantSweep::new(&Bug::MissingFence, &config(), 0..2).is_err());
}

/// The register again, under the simulated scheduler: one thread stores, one reads.
struct Shared {
    helps: bool,
}

impl Subject for Shared {
    type Call = String;
    type History = MapHistory<u64>;
    type Live = Sim;

    fn workload(&self, _seed: u64) -> Vec<String> {
        Vec::new()
    }

    fn run(&self, sim: &Sim, _calls: &[String]) -> Result<Self::History, Failure> {
        sim.grow(4096).map_err(|error| error.to_string())?;
        let history = MapHistory::new([]);
        let register = Register { helps: self.helps };
        let bodies: Vec<Box<dyn FnOnce() + Send + '_>> = vec![
            Box::new(|| {
                let cell: &PmU64 = sim.at(0).unwrap();
                let op = history.begin(sim, 0, MapOp::Insert(5));
                sim.store(cell, 5);
                sim.persist(cell);
                history.end(sim, op, None);
            }),
            Box::new(|| {
                for _ in 0..3 {
                    register.get(sim, &history);
                }
            }),
        ];
        sim.in_parallel(bodies);
        Ok(history)
    }

    fn recover(
        &self,
        sim: &Sim,
        history: &MapHistory<u64>,
        point: &CrashPoint,
    ) -> Result<Sim, Failure> {
        Register { helps: self.helps }.recover(sim, history, point)
    }

    fn probe(&self, sim: Sim, seed: u64) -> Result<Self::History, Failure> {
        Register { helps: self.helps }.probe(sim, seed)
    }
}

#[test]
fn schedules_find_early_results_of_readers_and_repeat() {
    use Strategy::{Gap, Mixed, Priority, Random, Stall};
    for strategy in [Gap, Stall, Random, Priority, Mixed] {
        let config = Config { strategy, ..config() };
        campaign::run(&Shared { helps: true }, &config, 0..40).assert_clean();
        let report = campaign::run(&Shared { helps: false }, &config, 0..40);
        assert!(!report.is_clean(), "{strategy} finds nothing");
        let again = campaign::run(&Shared { helps: false }, &config, 0..40);
        assert_eq!(report.to_string(), again.to_string());
        assert!(report.schedules.len() > 1);
    }
}

#[test]
fn threads_that_wait_for_each_other_are_detected() {
    let sim = Sim::new(4096).unwrap();
    let (one, other) = (Mutex::new(()), Mutex::new(()));
    sim.grow(4096).unwrap();
    let body = |first: &'static str| -> Box<dyn FnOnce() + Send + '_> {
        let (first, second) = if first == "one" { (&one, &other) } else { (&other, &one) };
        let sim = &sim;
        Box::new(move || {
            let _first = first.lock().unwrap();
            for _ in 0..100 {
                sim.load(sim.at::<PmU64>(0).unwrap());
            }
            drop(second.lock());
        })
    };
    let run = || sim.in_parallel(vec![body("one"), body("other")]);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    let message = *result.unwrap_err().downcast::<&str>().unwrap();
    assert!(message.contains("deadlock"), "{message}");
}
