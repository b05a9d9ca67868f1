//! A recording: every store, flush and fence in the order in which they took effect.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use super::rng::fold;
use crate::medium::{Note, OFFSET_LIMIT};

/// The length of the medium is recorded as a word at this offset, which no real word has.
pub(crate) const LENGTH: u64 = OFFSET_LIMIT;

/// The thread number of stores by an earlier process that died.
pub(crate) const EARLIER_PROCESS: u16 = u16::MAX;

/// A place in the program where a store, flush or fence was called.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site(&'static Location<'static>);

impl Site {
    /// Returns the place where the calling function was called.
    #[track_caller]
    #[inline(always)]
    pub fn caller() -> Self {
        Site(Location::caller())
    }

    /// Returns the source file, as the compiler names it.
    pub fn file(&self) -> &'static str {
        self.0.file()
    }

    /// Returns the line.
    pub fn line(&self) -> u32 {
        self.0.line()
    }

    /// Returns the column.
    pub fn column(&self) -> u32 {
        self.0.column()
    }

    /// Returns a number that is very likely unique to this place.
    pub(crate) fn number(&self) -> u64 {
        (self.file().len() as u64) << 48 | u64::from(self.line()) << 16 | u64::from(self.column())
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Returns a number for a set of sites.
pub(crate) fn look_of(sites: impl Iterator<Item = Site>) -> u64 {
    let mut numbers: Vec<u64> = sites.map(|site| site.number()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.into_iter().fold(0, fold)
}

/// A word that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// Its offset in bytes.
    pub offset: u64,
    /// The value before.
    pub old: u64,
    /// The value after.
    pub new: u64,
}

/// Consecutive words of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// An event of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A word was stored, or several by a bulk write: until all of these are durable, any subset of
    /// them may be.
    Store {
        /// The changed words.
        words: Span,
        /// Whether the program declared that it need not persist.
        transient: bool,
    },
    /// Lines were flushed: the current contents of their words become durable at this thread's next
    /// fence.
    Flush {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Everything that this thread has flushed is durable.
    Fence,
    /// Everything is durable.
    Sync,
    /// The system failed to make everything durable.
    FailedSync,
    /// The medium grew.
    Grow {
        /// The length as a word.
        words: Span,
    },
    /// Pages were discarded, and are zero now.
    Discard {
        /// The changed words.
        words: Span,
    },
    /// Information from the program.
    Note(Note),
    /// A flush or fence that a [`Mutation`](super::Mutation) has omitted.
    Omitted,
}

/// An event, with its thread and place in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// The event.
    pub event: Event,
    /// The thread: 0 is the first that accessed the medium.
    pub thread: u16,
    /// The place in the program.
    pub site: Site,
}

/// An operation of the workload: the part of the trace between its two notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Its number.
    pub number: u64,
    /// The thread that ran it.
    pub thread: u16,
    /// Index of the record that began it.
    pub begin: usize,
    /// Index of the record that acknowledged it.
    pub end: Option<usize>,
}

/// All operations of a trace, in the order in which they began.
#[derive(Debug, Default)]
pub(crate) struct Ops {
    pub(crate) list: Vec<Op>,
    index: HashMap<u64, usize>,
}

impl Ops {
    fn of(records: &[TraceRecord]) -> Self {
        let mut ops = Ops::default();
        for (at, record) in records.iter().enumerate() {
            match record.event {
                Event::Note(Note::Begin(number)) => {
                    let thread = record.thread;
                    let again = ops.index.insert(number, ops.list.len());
                    assert!(again.is_none(), "operation {number} began twice in one recording");
                    ops.list.push(Op { number, thread, begin: at, end: None });
                }
                Event::Note(Note::End(number)) => {
                    let index = ops.index.get(&number);
                    let index = index.unwrap_or_else(|| {
                        panic!("operation {number} ended but never began in this recording")
                    });
                    ops.list[*index].end = Some(at);
                }
                _ => {}
            }
        }
        ops
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Op> {
        // Numbers usually count from zero.
        match self.list.get(number as usize) {
            Some(op) if op.number == number => Some(op),
            _ => self.index.get(&number).map(|&at| &self.list[at]),
        }
    }
}

/// A recording: the initial contents and everything that happened afterwards.
#[derive(Clone, Debug)]
pub struct Trace {
    base: Vec<u8>,
    records: Vec<TraceRecord>,
    words: Vec<Word>,
    ops: Arc<Ops>,
}

impl Trace {
    /// Creates a trace. `now` holds the contents after all `records`; `words` are the words that
    /// they changed.
    ///
    /// # Panics
    ///
    /// If an operation began twice, or ended without having begun.
    pub(crate) fn new(now: Vec<u8>, records: Vec<TraceRecord>, words: Vec<Word>) -> Self {
        let mut base = now;
        for word in words.iter().rev() {
            if word.offset == LENGTH {
                base.truncate(word.old as usize);
            } else {
                put(&mut base, word.offset, word.old);
            }
        }
        let ops = Arc::new(Ops::of(&records));
        Trace { base, records, words, ops }
    }

    /// Returns the contents before the first record.
    pub fn base(&self) -> &[u8] {
        &self.base
    }

    /// Returns all records, in order.
    pub fn records(&self) -> &[TraceRecord] {
        &self.records
    }

    /// Returns the words that a store, growth or discard changed.
    pub fn words(&self, span: Span) -> &[Word] {
        &self.words[span.first as usize..(span.first + span.count) as usize]
    }

    /// Returns the word at index `at` of all words.
    pub(crate) fn word(&self, at: u32) -> &Word {
        &self.words[at as usize]
    }

    /// Returns the operations, in the order in which they began.
    pub fn ops(&self) -> &[Op] {
        &self.ops.list
    }

    pub(crate) fn op_table(&self) -> &Arc<Ops> {
        &self.ops
    }

    /// Returns the sites of flushes. Each can be omitted or delayed by a
    /// [`Mutation`](super::Mutation).
    pub fn flush_sites(&self) -> BTreeSet<Site> {
        self.sites(|event| matches!(event, Event::Flush { .. }))
    }

    /// Returns the sites of fences. Each can be omitted by a [`Mutation`](super::Mutation).
    pub fn fence_sites(&self) -> BTreeSet<Site> {
        self.sites(|event| matches!(event, Event::Fence))
    }

    /// Returns the sites of stores that commit something: stores of one word that were the only
    /// ones of their thread between two of its fences, except for transient ones.
    pub fn commit_sites(&self) -> BTreeSet<Site> {
        /// The stores of a thread since its last fence.
        #[derive(Clone, Copy)]
        enum Since {
            Nothing,
            One(Site),
            More,
        }
        let mut threads: HashMap<u16, Since> = HashMap::new();
        let mut sites = BTreeSet::new();
        for record in &self.records {
            let since = threads.entry(record.thread).or_insert(Since::Nothing);
            match record.event {
                Event::Store { words, transient: false } => {
                    *since = match (*since, words.count) {
                        (Since::Nothing, 1) => Since::One(record.site),
                        _ => Since::More,
                    };
                }
                Event::Fence | Event::Sync => {
                    if let Since::One(site) = std::mem::replace(since, Since::Nothing) {
                        sites.insert(site);
                    }
                }
                _ => {}
            }
        }
        sites
    }

    /// Returns the sites at which a mutation would make no difference, and [why](Note::Harmless).
    pub fn harmless(&self) -> HashMap<Site, &'static str> {
        let mut notes: HashMap<u16, &'static str> = HashMap::new();
        let mut harmless = HashMap::new();
        for record in &self.records {
            if let Event::Note(Note::Harmless(why)) = record.event {
                notes.insert(record.thread, why);
            } else if let Some(why) = notes.remove(&record.thread) {
                harmless.insert(record.site, why);
            }
        }
        harmless
    }

    fn sites(&self, wanted: impl Fn(&Event) -> bool) -> BTreeSet<Site> {
        self.records.iter().filter(|r| wanted(&r.event)).map(|r| r.site).collect()
    }

    /// Returns this recording with other records, which may refer to the words in `more`, appended
    /// to its own.
    pub(crate) fn with(&self, records: Vec<TraceRecord>, more: Vec<Word>) -> Self {
        let words = self.words.iter().copied().chain(more).collect();
        let ops = Arc::new(Ops::of(&records));
        Trace { base: self.base.clone(), records, words, ops }
    }

    /// Returns this recording as one that follows the recording of another process, which left
    /// these stores in the caches when it died.
    pub(crate) fn after_stores(self, left: Vec<(TraceRecord, Vec<Word>)>) -> Self {
        let Trace { mut base, mut words, .. } = self;
        for word in left.iter().rev().flat_map(|(_, words)| words.iter().rev()) {
            put(&mut base, word.offset, word.old);
        }
        let mut records = Vec::with_capacity(left.len() + self.records.len());
        for (record, stored) in left {
            let Event::Store { transient, .. } = record.event else { continue };
            let span = Span { first: words.len() as u32, count: stored.len() as u32 };
            words.extend(stored);
            records.push(TraceRecord {
                event: Event::Store { words: span, transient },
                thread: EARLIER_PROCESS,
                ..record
            });
        }
        records.extend(self.records);
        let ops = Arc::new(Ops::of(&records));
        Trace { base, records, words, ops }
    }

    /// Returns the total number of words.
    pub(crate) fn word_count(&self) -> u32 {
        self.words.len() as u32
    }

    /// Returns the last named part of the current operation that `thread` entered before record
    /// `at`.
    pub(crate) fn scope(&self, thread: u16, at: usize) -> Option<&'static str> {
        let notes = self.records[..at].iter().rev().filter(|r| r.thread == thread);
        notes
            .filter_map(|record| match record.event {
                Event::Note(Note::Scope(name)) => Some(Some(name)),
                Event::Note(Note::Begin(_) | Note::End(_)) => Some(None),
                _ => None,
            })
            .next()
            .flatten()
    }
}

/// Writes a word into an image. Images are little-endian on every machine.
pub(crate) fn put(bytes: &mut [u8], offset: u64, value: u64) {
    bytes[offset as usize..offset as usize + 8].copy_from_slice(&value.to_le_bytes());
}

/// Reads a word of an image.
pub(crate) fn get(bytes: &[u8], offset: u64) -> u64 {
    let word = &bytes[offset as usize..offset as usize + 8];
    u64::from_le_bytes(word.try_into().expect("8 bytes"))
}
