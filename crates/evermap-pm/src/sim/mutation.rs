//! Mutations: deliberate mistakes, which a good test must detect.

use std::fmt;

use super::trace::{Event, Site, Span, Trace, TraceRecord, Word};

/// A deliberate mistake, made whenever the program executes one site.
///
/// All but the last affect only durability: the program does the same, so they are applied to a
/// recording after it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutation {
    /// Flushes at this site do nothing.
    DropFlush(Site),
    /// Fences at this site do nothing.
    DropFence(Site),
    /// Flushes at this site happen only after the same thread's next store.
    DelayFlush(Site),
    /// Words stored at this site become durable in two steps.
    TearStore(Site),
    /// The planted mistake with this name: see [`Medium::mutant`](crate::Medium::mutant).
    Planted(&'static str),
}

impl Mutation {
    /// Returns the site of the mutation. Planted mistakes have none.
    pub fn site(self) -> Option<Site> {
        match self {
            Mutation::DropFlush(site)
            | Mutation::DropFence(site)
            | Mutation::DelayFlush(site)
            | Mutation::TearStore(site) => Some(site),
            Mutation::Planted(_) => None,
        }
    }

    /// Returns `true` if this flush or fence is omitted, so that earlier stores stay undecided.
    pub(crate) fn omits(self, event: Event, site: Site) -> bool {
        match (self, event) {
            (Mutation::DropFlush(at) | Mutation::DelayFlush(at), Event::Flush { .. })
            | (Mutation::DropFence(at), Event::Fence) => at == site,
            _ => false,
        }
    }

    /// Returns the recording with this mutation applied.
    pub fn apply(self, trace: &Trace) -> Trace {
        match self {
            Mutation::DropFlush(_) | Mutation::DropFence(_) => {
                let omit = |record: &TraceRecord| {
                    let event = record.event;
                    let event = if self.omits(event, record.site) { Event::Omitted } else { event };
                    TraceRecord { event, ..*record }
                };
                trace.with(trace.records().iter().map(omit).collect(), Vec::new())
            }
            Mutation::DelayFlush(site) => delay(trace, site),
            Mutation::TearStore(site) => tear(trace, site),
            Mutation::Planted(_) => trace.clone(),
        }
    }
}

fn delay(trace: &Trace, site: Site) -> Trace {
    let mut delayed: Vec<TraceRecord> = Vec::new();
    let mut records = Vec::with_capacity(trace.records().len());
    for &record in trace.records() {
        if Mutation::DelayFlush(site).omits(record.event, record.site) {
            delayed.push(record);
            continue;
        }
        records.push(record);
        if matches!(record.event, Event::Store { .. }) {
            records.extend(delayed.extract_if(.., |flush| flush.thread == record.thread));
        }
    }
    trace.with(records, Vec::new())
}

fn tear(trace: &Trace, site: Site) -> Trace {
    let mut halves = Vec::new();
    let mut records = trace.records().to_vec();
    for (at, record) in records.iter_mut().enumerate() {
        let Event::Store { words, transient: false } = record.event else { continue };
        let &[word] = trace.words(words) else { continue };
        let Some(half) = half_of(word, at % 2 == 0).filter(|_| record.site == site) else {
            continue;
        };
        // The words of one store become durable in any subset: none, the half, or all.
        let first = trace.word_count() + halves.len() as u32;
        halves.extend([half, Word { old: half.new, ..word }]);
        record.event = Event::Store { words: Span { first, count: 2 }, transient: false };
    }
    trace.with(records, halves)
}

/// Returns the store of the lower, or the higher, half of the bytes that change. Returns `None` if
/// a single byte changes.
fn half_of(word: Word, lower: bool) -> Option<Word> {
    let changed = (word.old ^ word.new).to_le_bytes();
    let changed: Vec<usize> = (0..8).filter(|&at| changed[at] != 0).collect();
    let (low, high) = changed.split_at(changed.len() / 2);
    let taken = if lower { low } else { high };
    let mask = taken.iter().fold(0, |mask, at| mask | 0xff << (8 * at));
    (!low.is_empty()).then_some(Word { new: word.old & !mask | word.new & mask, ..word })
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mutation::DropFlush(site) => write!(f, "drop the flush at {site}"),
            Mutation::DropFence(site) => write!(f, "drop the fence at {site}"),
            Mutation::DelayFlush(site) => write!(f, "delay the flush at {site}"),
            Mutation::TearStore(site) => write!(f, "tear the store at {site}"),
            Mutation::Planted(name) => write!(f, "make mistake {name}"),
        }
    }
}
