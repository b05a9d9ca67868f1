//! Mistakes and waste that a recording shows without any crash.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::durable::{Durability, Entry, GrowthModel, Model};
use super::trace::{Event, Site, Trace};
use crate::medium::{LINE, Note};

/// The results of the analysis of a recording. They assume [`Model::Adr`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Stores that were not durable when the operation that made them was acknowledged, by their
    /// site.
    pub unpersisted: BTreeMap<Site, Instances>,
    /// Stores that were not durable when the recording ended, by their site.
    pub never_persisted: BTreeMap<Site, Instances>,
    /// Flushes without effect in an operation that left a store unpersisted, probably because they
    /// flush the wrong line. The number of times, by the sites of flush and store.
    pub wrong_line: BTreeMap<(Site, Site), u64>,
    /// The use of flushes, by their site.
    pub flushes: BTreeMap<Site, FlushUse>,
    /// The use of fences, by their site.
    pub fences: BTreeMap<Site, FenceUse>,
    /// The costs of operations, by their kind.
    pub costs: BTreeMap<String, Cost>,
}

/// How often something happened, and the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instances {
    /// The number of times.
    pub count: u64,
    /// Number of the first operation in which it happened, if any.
    pub op: Option<u64>,
    /// Offset of the first word.
    pub offset: u64,
}

/// The use of the flushes at one site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushUse {
    /// Number of calls.
    pub calls: u64,
    /// Number of lines flushed.
    pub lines: u64,
    /// Number of lines without any store that this thread had not already flushed.
    pub redundant_lines: u64,
    /// Number of calls that flushed only such lines.
    pub redundant: u64,
    /// Number of calls that flushed only lines without a store since the recording began.
    pub never_stored: u64,
}

/// The use of the fences at one site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FenceUse {
    /// Number of calls.
    pub calls: u64,
    /// Number of calls with nothing flushed since this thread's last fence.
    pub redundant: u64,
}

/// The cost of one kind of operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Number of operations.
    pub ops: u64,
    /// Number of stores in all of them. A bulk write counts once.
    pub stores: u64,
    /// Number of lines flushed in all of them.
    pub flushes: u64,
    /// Number of fences in all of them.
    pub fences: u64,
    /// Maximum number of lines flushed in one.
    pub most_flushes: u64,
    /// Maximum number of fences in one.
    pub most_fences: u64,
}

/// An operation that is running.
struct Running {
    number: u64,
    begin: u32,
    kind: String,
    flushes: u64,
    fences: u64,
    stores: u64,
    /// Sites of its flushes that had no effect.
    idle: BTreeSet<Site>,
}

/// Analyses `trace`. `kind` returns an operation's kind from its number.
pub fn detect(trace: &Trace, kind: impl Fn(u64) -> String) -> Findings {
    let mut findings = Findings::default();
    let mut state = Durability::new(trace, Model::Adr, GrowthModel::Immediate);
    let mut running: BTreeMap<u16, Running> = BTreeMap::new();
    let mut stored: BTreeSet<u64> = BTreeSet::new();
    for (at, record) in trace.records().iter().enumerate() {
        let op = running.get_mut(&record.thread);
        match record.event {
            Event::Store { words, .. } => {
                stored.extend(trace.words(words).iter().map(|word| word.offset / LINE));
                if let Some(op) = op {
                    op.stores += 1;
                }
            }
            Event::Flush { offset, len } => {
                let lines = offset / LINE..(offset + len).div_ceil(LINE);
                let (count, useful) =
                    (lines.end - lines.start, state.useful_lines(record.thread, offset, len));
                let site = findings.flushes.entry(record.site).or_default();
                site.calls += 1;
                site.lines += count;
                site.redundant_lines += count - useful;
                site.redundant += u64::from(useful == 0);
                site.never_stored += u64::from(stored.range(lines).next().is_none());
                if let Some(op) = op {
                    op.flushes += count;
                    if useful == 0 {
                        op.idle.insert(record.site);
                    }
                }
            }
            Event::Fence => {
                let site = findings.fences.entry(record.site).or_default();
                site.calls += 1;
                site.redundant += u64::from(!state.has_captures(record.thread));
                if let Some(op) = op {
                    op.fences += 1;
                }
            }
            Event::Note(Note::Begin(number)) => {
                let (flushes, fences, stores, idle) = Default::default();
                let (begin, kind) = (at as u32, kind(number));
                let op = Running { number, begin, kind, flushes, fences, stores, idle };
                running.insert(record.thread, op);
            }
            Event::Note(Note::End(_)) => {
                if let Some(op) = running.remove(&record.thread) {
                    findings.finish(trace, &state, record.thread, &op);
                }
            }
            _ => {}
        }
        state.step(at, &mut |_| {});
    }
    let all = state.pending().values().flatten();
    for entry in all.filter(|entry| entry.mask != 0 && !entry.transient) {
        let record = trace.records()[entry.record as usize];
        let op = trace.ops().iter().rev().find(|op| {
            let begun = op.thread == record.thread && op.begin < entry.record as usize;
            begun && op.end.is_none_or(|end| end > entry.record as usize)
        });
        note(&mut findings.never_persisted, trace, entry, op.map(|op| op.number));
    }
    findings
}

impl Findings {
    /// Returns `true` if no store was acknowledged before it was durable.
    pub fn is_clean(&self) -> bool {
        self.unpersisted.is_empty()
    }

    /// Adds an operation that is being acknowledged to the results.
    fn finish(&mut self, trace: &Trace, state: &Durability<'_>, thread: u16, op: &Running) {
        let cost = self.costs.entry(op.kind.clone()).or_default();
        cost.ops += 1;
        cost.stores += op.stores;
        cost.flushes += op.flushes;
        cost.fences += op.fences;
        cost.most_flushes = cost.most_flushes.max(op.flushes);
        cost.most_fences = cost.most_fences.max(op.fences);
        let entries = state.pending().values().flatten();
        for entry in entries.filter(|e| e.mask != 0 && !e.transient && e.record > op.begin) {
            let store = trace.records()[entry.record as usize];
            if store.thread != thread {
                continue;
            }
            note(&mut self.unpersisted, trace, entry, Some(op.number));
            for &flush in &op.idle {
                *self.wrong_line.entry((flush, store.site)).or_default() += 1;
            }
        }
    }
}

fn note(found: &mut BTreeMap<Site, Instances>, trace: &Trace, entry: &Entry, op: Option<u64>) {
    let offset = trace.word(entry.first).offset;
    let site = trace.records()[entry.record as usize].site;
    found.entry(site).or_insert(Instances { count: 0, op, offset }).count += 1;
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (site, Instances { count, op, offset }) in &self.unpersisted {
            let op = op.map_or(String::new(), |op| format!(" (first: operation {op})"));
            writeln!(
                f,
                "not durable at the end of its operation, {count} times: \
                 store at {site} to {offset:#x}{op}"
            )?;
        }
        for ((flush, store), count) in &self.wrong_line {
            writeln!(
                f,
                "probably the wrong line, {count} times: \
                 flush at {flush}, while the store at {store} is left"
            )?;
        }
        for (site, Instances { count, offset, .. }) in &self.never_persisted {
            writeln!(f, "not durable at the end, {count} times: store at {site} to {offset:#x}")?;
        }
        for (site, flush) in self.flushes.iter().filter(|(_, flush)| flush.redundant > 0) {
            let FlushUse { calls, redundant, never_stored, .. } = flush;
            writeln!(
                f,
                "redundant {redundant} times of {calls} ({never_stored} of lines never stored to): \
                 flush at {site}"
            )?;
        }
        for (site, FenceUse { calls, redundant }) in
            self.fences.iter().filter(|(_, fence)| fence.redundant > 0)
        {
            writeln!(f, "redundant {redundant} times of {calls}: fence at {site}")?;
        }
        for (kind, cost) in &self.costs {
            let per_op = |n: u64| n as f64 / cost.ops as f64;
            writeln!(
                f,
                "{kind}: {} operations, each {:.2} stores, {:.2} lines flushed (at most {}), \
                 {:.2} fences (at most {})",
                cost.ops,
                per_op(cost.stores),
                per_op(cost.flushes),
                cost.most_flushes,
                per_op(cost.fences),
                cost.most_fences,
            )?;
        }
        Ok(())
    }
}
