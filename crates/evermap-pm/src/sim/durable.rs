//! Which stores are certainly durable, and which only may be.

use std::collections::BTreeMap;

use super::trace::{Event, Span, Trace, TraceRecord, Word, get};
use crate::medium::LINE;

/// How memory loses stores that were not made durable.
///
/// One rule covers all models: memory is divided into granules, and after a crash each granule
/// holds the effect of some *prefix* of the stores to it, at least those that are certainly
/// durable, independently of every other granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// Power loss with volatile caches. A granule is a 64-byte line. A flush captures the contents
    /// of its lines; the same thread's next fence makes them durable. Any line may also be written
    /// back at any other time.
    Adr,
    /// Death of the process. There is one granule: everything stored so far is present, so crashes
    /// happen after every store. But caches outlive a process: while the next one recovers, and
    /// later, power can fail, and then everything that neither of them has made durable is
    /// undecided.
    ProcessDeath,
    /// Power loss above the kernel's page cache. Only a sync makes anything durable.
    PageCache {
        /// Bytes that reach the disk together: a page (4096), or a sector (512) if pages may tear.
        granule: u64,
    },
}

impl Model {
    /// Returns the model for crashes of recoveries.
    pub(crate) fn of_recoveries(self) -> Model {
        match self {
            // Another death could leave nothing that a power loss cannot.
            Model::ProcessDeath => Model::Adr,
            other => other,
        }
    }
}

/// How a crash affects the length of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrowthModel {
    /// Growth is durable when it returns.
    Immediate,
    /// Growth is durable at the next sync. Until then the length may be any that the file has had
    /// since the last sync, and stores beyond it are lost.
    UntilSync,
}

/// Stores that become durable together or, if there are several words, in any subset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Index of the record in the trace.
    pub(crate) record: u32,
    /// Index of the first word in the trace.
    pub(crate) first: u32,
    /// The words, of the eight from `first`, that belong to this entry and change anything. Zero if
    /// the store changed nothing.
    pub(crate) mask: u8,
    /// Whether it need not persist.
    pub(crate) transient: bool,
}

impl Entry {
    /// Returns the words selected by `mask`.
    pub(crate) fn words<'t>(
        self,
        trace: &'t Trace,
        mask: u8,
    ) -> impl Iterator<Item = &'t Word> + use<'t> {
        (0..8).filter(move |bit| mask >> bit & 1 != 0).map(move |bit| trace.word(self.first + bit))
    }
}

/// The granules with stores that are not certainly durable, at one moment of a trace.
pub(crate) struct Durability<'t> {
    trace: &'t Trace,
    model: Model,
    growth: GrowthModel,
    /// By granule, in the order of the stores.
    pending: BTreeMap<u64, Vec<Entry>>,
    /// By thread: the granules it has flushed since its last fence, each with the record of the
    /// flush.
    captured: Vec<Vec<(u64, u32)>>,
    /// Granules that a failed sync left clean: only a later store makes them dirty again.
    abandoned: BTreeMap<u64, u32>,
}

impl<'t> Durability<'t> {
    pub(crate) fn new(trace: &'t Trace, model: Model, growth: GrowthModel) -> Self {
        let (pending, captured, abandoned) = Default::default();
        Durability { trace, model, growth, pending, captured, abandoned }
    }

    pub(crate) fn pending(&self) -> &BTreeMap<u64, Vec<Entry>> {
        &self.pending
    }

    /// Returns the granule's first byte.
    pub(crate) fn offset_of(&self, granule: u64) -> u64 {
        granule * self.granule_bytes()
    }

    /// Returns the number of bytes in a granule.
    pub(crate) fn granule_bytes(&self) -> u64 {
        match self.model {
            Model::Adr => LINE,
            Model::ProcessDeath => u64::MAX,
            Model::PageCache { granule } => granule,
        }
    }

    fn granule_of(&self, offset: u64) -> u64 {
        offset / self.granule_bytes()
    }

    /// Returns `true` if the event at `index` makes something durable that was not: the last moment
    /// at which it may be lost.
    pub(crate) fn advances(&self, index: usize) -> bool {
        let record = &self.trace.records()[index];
        match (self.model, record.event) {
            (_, Event::Grow { .. }) if self.grows_immediately() => true,
            (_, Event::Discard { .. }) => true,
            (Model::ProcessDeath, _) => self.any_pending(),
            (Model::Adr, Event::Fence) => {
                self.captures(record.thread).iter().any(|&(granule, flush)| {
                    self.entries(granule).iter().any(|e| e.record < flush && e.mask != 0)
                })
            }
            (_, Event::Sync) => self.any_pending(),
            _ => false,
        }
    }

    /// Applies the event at `index`, and calls `durable` with every word that it makes certainly
    /// durable.
    pub(crate) fn step(&mut self, index: usize, durable: &mut dyn FnMut(&Word)) {
        let record = &self.trace.records()[index];
        let at = index as u32;
        if self.model == Model::ProcessDeath {
            // Only the store during which the process died can be incomplete.
            self.settle(0, u32::MAX, durable);
        }
        match record.event {
            Event::Store { words, transient } => self.store(at, words, transient),
            Event::Grow { words } if self.grows_immediately() => {
                self.trace.words(words).iter().for_each(durable);
            }
            Event::Grow { words } => self.store(at, words, false),
            Event::Discard { words } => {
                for word in self.trace.words(words) {
                    self.settle(self.granule_of(word.offset), u32::MAX, durable);
                    durable(word);
                }
            }
            Event::Flush { offset, len } if self.model == Model::Adr => {
                self.capture(record.thread, offset, len, at);
            }
            Event::Fence if self.model == Model::Adr => {
                // A fence of another thread does not affect the flushes of this one, so captures
                // are per thread.
                for (granule, flush) in std::mem::take(self.captured_by(record.thread)) {
                    self.settle(granule, flush, durable);
                }
            }
            Event::Sync if self.model != Model::ProcessDeath => {
                for granule in self.pending.keys().copied().collect::<Vec<_>>() {
                    if !self.is_abandoned(granule) {
                        self.settle(granule, u32::MAX, durable);
                    }
                }
            }
            Event::FailedSync => {
                // Each granule was written, or was not and is never retried: it stays pending, so
                // any prefix may be present, until a new store makes it dirty.
                self.abandoned.extend(self.pending.keys().map(|&granule| (granule, at)));
            }
            Event::Flush { .. } | Event::Fence | Event::Sync | Event::Note(_) | Event::Omitted => {}
        }
    }

    /// Returns `true` if growth is durable immediately. The length of a file belongs to the kernel
    /// and outlives the process.
    fn grows_immediately(&self) -> bool {
        self.growth == GrowthModel::Immediate || self.model == Model::ProcessDeath
    }

    /// Returns the number of lines of a flush with a store that this thread has not flushed yet.
    pub(crate) fn useful_lines(&self, thread: u16, offset: u64, len: u64) -> u64 {
        let fresh = |line: &u64| {
            let seen = self.captures(thread).iter().rev().find(|(granule, _)| granule == line);
            self.entries(*line)
                .last()
                .is_some_and(|e| seen.is_none_or(|(_, flush)| *flush < e.record))
        };
        lines(offset, len).filter(fresh).count() as u64
    }

    /// Returns `true` if this thread has flushed anything since its last fence.
    pub(crate) fn has_captures(&self, thread: u16) -> bool {
        !self.captures(thread).is_empty()
    }

    fn store(&mut self, record: u32, span: Span, transient: bool) {
        let words = self.trace.words(span);
        let mut at = 0;
        // Words of a bulk write that share a line form one entry, in every model; so do the halves
        // of a torn store.
        for line in words.chunk_by(|a, b| a.offset / LINE == b.offset / LINE) {
            let changed = line.iter().enumerate().filter(|(_, word)| word.old != word.new);
            let mask = changed.fold(0, |mask, (bit, _)| mask | 1 << bit);
            let entry = Entry { record, first: span.first + at, mask, transient };
            let granule = self.granule_of(line[0].offset);
            let entries = self.pending.entry(granule).or_default();
            entries.push(entry);
            thin_out(self.trace, entries);
            at += line.len() as u32;
        }
    }

    fn capture(&mut self, thread: u16, offset: u64, len: u64, record: u32) {
        for line in lines(offset, len) {
            if self.pending.contains_key(&line) {
                self.captured_by(thread).push((line, record));
            }
        }
    }

    /// Makes the entries of `granule` that are older than record `upto` durable.
    fn settle(&mut self, granule: u64, upto: u32, durable: &mut dyn FnMut(&Word)) {
        let Some(entries) = self.pending.get_mut(&granule) else { return };
        let count = entries.partition_point(|entry| entry.record < upto);
        for entry in entries.drain(..count) {
            entry.words(self.trace, entry.mask).for_each(&mut *durable);
        }
        if entries.is_empty() {
            self.pending.remove(&granule);
            self.abandoned.remove(&granule);
        }
    }

    fn any_pending(&self) -> bool {
        self.pending.values().flatten().any(|entry| entry.mask != 0)
    }

    fn is_abandoned(&self, granule: u64) -> bool {
        let Some(sync) = self.abandoned.get(&granule) else { return false };
        self.entries(granule).iter().all(|entry| entry.record < *sync)
    }

    fn entries(&self, granule: u64) -> &[Entry] {
        self.pending.get(&granule).map_or(&[], |entries| entries)
    }

    fn captures(&self, thread: u16) -> &[(u64, u32)] {
        self.captured.get(usize::from(thread)).map_or(&[], |captured| captured)
    }

    fn captured_by(&mut self, thread: u16) -> &mut Vec<(u64, u32)> {
        let thread = usize::from(thread);
        if self.captured.len() <= thread {
            self.captured.resize_with(thread + 1, Vec::new);
        }
        &mut self.captured[thread]
    }
}

/// Returns the stores that are not certainly durable just before record `at`, in their order, as
/// far as they are in `image`: what a process that dies there leaves in the caches.
pub(crate) fn left_in_caches(
    trace: &Trace,
    at: usize,
    image: &[u8],
) -> Vec<(TraceRecord, Vec<Word>)> {
    let mut state = Durability::new(trace, Model::Adr, GrowthModel::Immediate);
    (0..at).for_each(|record| state.step(record, &mut |_| {}));
    let mut entries: Vec<Entry> = state.pending.into_values().flatten().collect();
    entries.sort_unstable_by_key(|entry| (entry.record, entry.first));
    let left = entries.into_iter().map(|entry| {
        // The store during which the process died may be incomplete.
        let happened =
            |word: &&Word| entry.record as usize + 1 < at || get(image, word.offset) == word.new;
        let words = entry.words(trace, entry.mask).filter(happened).copied().collect();
        (trace.records()[entry.record as usize], words)
    });
    left.filter(|(_, words): &(_, Vec<_>)| !words.is_empty()).collect()
}

/// Drops stores that the next one overwrites, if nothing in the granule needs to persist, as in a
/// line of locks that is never flushed: only the state before all of them and the last few states
/// can matter.
fn thin_out(trace: &Trace, entries: &mut Vec<Entry>) {
    const KEPT: usize = 8;
    if entries.len() <= KEPT || !entries.iter().all(|entry| entry.transient) {
        return;
    }
    let middle = KEPT / 2;
    let [old, next] =
        [entries[middle], entries[middle + 1]].map(|entry| trace.word(entry.first).offset);
    if old == next {
        entries.remove(middle);
    }
}

/// Returns the numbers of the lines that `len` bytes at `offset` touch.
fn lines(offset: u64, len: u64) -> std::ops::Range<u64> {
    offset / LINE..(offset + len).div_ceil(LINE)
}
