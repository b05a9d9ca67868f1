//! Correct and faulty tables that count, for the tests of the driver.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use evermap_index::testkit::tier;

use crate::LabError;
use crate::baselines::tables::reference::Reference;
use crate::report::Report;
use crate::report::{Output, Record};
use crate::subject::{
    Counts, Entry, Factory, Found, Guards, Measured, MediumKind, Setup, Size, Subject, Table, Work,
};
use crate::workload::bytes::Spelled;
use crate::workload::{Mix, Phase, Writer};

/// Returns the mixes to test: by default one with updates, one with insertions, and one with scans.
pub(crate) fn mixes() -> Vec<Mix> {
    let some = ["ycsb-a", "ycsb-d", "ycsb-e"];
    tier().choose(some.map(|name| name.parse().unwrap()).to_vec(), Mix::ALL.to_vec())
}

/// Returns the media that every machine has.
pub(crate) fn media_everywhere() -> impl Iterator<Item = MediumKind> {
    MediumKind::ALL.into_iter().filter(|medium| !medium.needs_persistent_memory())
}

/// The fault of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No fault.
    None,
    /// Acknowledges one insertion in a thousand without doing it.
    LosesInsert,
    /// Returns one wrong word in a thousand.
    WrongWord,
    /// Finds one absent key in a thousand.
    InventsKey,
    /// Acknowledges one update in a thousand without doing it.
    LosesUpdate,
    /// Acknowledges one removal in a thousand without doing it.
    KeepsRemoved,
    /// Returns for one key in a thousand of a batch the result of its neighbour.
    MixesBatch,
    /// Counts one pair too many.
    Miscounts,
    /// Reports damage at every thousandth key.
    Fails,
}

/// The reference with a fault, which counts the operations.
pub(crate) struct Faulty {
    inner: Reference,
    fault: Fault,
    /// The number of guards taken.
    pub(crate) guards: AtomicU64,
    /// The number of operations: each counts as one flush, two fences and three lines read; each
    /// insertion as a line written.
    ops: AtomicU64,
    inserts: AtomicU64,
}

impl Faulty {
    pub(crate) fn new(fault: Fault) -> Self {
        let zero = || AtomicU64::new(0);
        let inner = Reference::new(0);
        Faulty { inner, fault, guards: zero(), ops: zero(), inserts: zero() }
    }

    /// Returns `true` if the fault shows with this key.
    fn strikes(&self, fault: Fault, key: u64) -> bool {
        self.fault == fault && key.is_multiple_of(1000)
    }

    fn operation(&self, key: u64) -> evermap_pm::Result<()> {
        self.ops.fetch_add(1, Relaxed);
        if self.strikes(Fault::Fails, key) {
            return Err(evermap_pm::Error::damaged(key, "the test's doing"));
        }
        Ok(())
    }
}

impl Table for Faulty {
    type Guard<'a> = ();

    fn guard(&self) {
        self.guards.fetch_add(1, Relaxed);
    }

    fn insert(&self, key: u64, word: u64, (): &()) -> evermap_pm::Result<Found> {
        self.operation(key)?;
        self.inserts.fetch_add(1, Relaxed);
        if self.strikes(Fault::LosesInsert, key) {
            return Ok(Found::Absent);
        }
        self.inner.insert(key, word, &())
    }

    fn get(&self, key: u64, (): &()) -> evermap_pm::Result<Option<u64>> {
        self.operation(key)?;
        let found = self.inner.get(key, &())?;
        Ok(match found {
            Some(word) if self.strikes(Fault::WrongWord, key) => Some(word ^ 1),
            None if self.strikes(Fault::InventsKey, key) => Some(7),
            _ => found,
        })
    }

    fn get_many(&self, keys: &[u64], out: &mut [Option<u64>], (): &()) -> evermap_pm::Result<()> {
        for at in 0..keys.len() {
            self.operation(keys[at])?;
            let key = match keys.get(at + 1) {
                Some(&next) if self.strikes(Fault::MixesBatch, keys[at]) => next,
                _ => keys[at],
            };
            out[at] = self.inner.get(key, &())?;
        }
        Ok(())
    }

    fn update(&self, key: u64, word: u64, (): &()) -> evermap_pm::Result<Found> {
        self.operation(key)?;
        if self.strikes(Fault::LosesUpdate, key) {
            return Ok(self.inner.get(key, &())?.into());
        }
        self.inner.update(key, word, &())
    }

    fn remove(&self, key: u64, (): &()) -> evermap_pm::Result<Found> {
        self.operation(key)?;
        if self.strikes(Fault::KeepsRemoved, key) {
            return Ok(self.inner.get(key, &())?.into());
        }
        self.inner.remove(key, &())
    }

    /// Reports as many slots as the next power of two, with 16 bytes for each.
    fn size(&self) -> evermap_pm::Result<Size> {
        let len = self.inner.size()?.len.unwrap_or(0);
        let places = len.next_power_of_two();
        Ok(Size {
            len: Some(len + u64::from(self.fault == Fault::Miscounts)),
            load_factor: Some(len as f64 / places as f64),
            dram_bytes: Some(0),
            pm_bytes: Some(16 * places),
            placement: None,
        })
    }

    fn counts(&self) -> Option<Counts> {
        let ops = self.ops.load(Relaxed);
        let lines_written = self.inserts.load(Relaxed);
        Some(Counts {
            flushes: ops,
            fences: 2 * ops,
            lines_read: 3 * ops,
            lines_written,
            blocks_read: 2 * ops,
            blocks_written: lines_written,
            cache_hits: 0,
        })
    }
}

/// Returns the entry of a table with this fault.
pub(crate) fn faulty(fault: Fault) -> Entry {
    fn build<const FAULT: usize>(
        name: &'static str,
        _: &Setup,
    ) -> Result<Box<dyn Subject>, LabError> {
        let table = Faulty::new(FAULTS[FAULT].0);
        Ok(Box::new(Measured { name, table, guards: Guards::PerOperation }))
    }
    const FAULTS: [(Fault, Factory); 9] = [
        (Fault::None, build::<0>),
        (Fault::LosesInsert, build::<1>),
        (Fault::WrongWord, build::<2>),
        (Fault::InventsKey, build::<3>),
        (Fault::LosesUpdate, build::<4>),
        (Fault::KeepsRemoved, build::<5>),
        (Fault::MixesBatch, build::<6>),
        (Fault::Miscounts, build::<7>),
        (Fault::Fails, build::<8>),
    ];
    let (_, factory) = FAULTS.into_iter().find(|known| known.0 == fault).expect("listed above");
    Entry { name: "faulty", about: "for tests", rival: false, factory }
}

/// Returns the work of one thread in a phase on a table of words, one key at a time.
pub(crate) fn work(phase: Phase, keys: &[u64]) -> Work<'_> {
    static NONE: Spelled = Spelled::new();
    Work {
        name: phase.name(),
        phase,
        keys,
        spelled: NONE.all(),
        ops: &[],
        version: 0,
        batch: 1,
        writer: Writer { thread: 0, threads: 1, first: 0, most: 0 },
        bulk: false,
    }
}

/// Keeps all output.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) steps: u64,
    pub(crate) stepped: Vec<String>,
    pub(crate) records: Vec<Record>,
    pub(crate) reports: Vec<Report>,
}

impl Output for Kept {
    fn begin(&mut self, steps: u64) {
        self.steps = steps;
    }

    fn step(&mut self, what: &str) {
        self.stepped.push(what.to_owned());
    }

    fn record(&mut self, record: &Record) -> Result<(), LabError> {
        self.records.push(record.clone());
        Ok(())
    }

    fn report(&mut self, report: &Report) -> Result<(), LabError> {
        self.reports.push(report.clone());
        Ok(())
    }
}
