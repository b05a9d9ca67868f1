//! Crash points, and the possible contents after a crash at each of them.
//!
//! Between two points at which stores become durable the set of possible images only grows, and the
//! requirements on the contents, which come from acknowledged operations, only become stricter
//! until another operation begins. So it is enough to crash just before each such point, just
//! before an operation begins if anything happened since the last crash point, and at the end.

use std::collections::HashSet;
use std::fmt::{self, Write};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use super::choice::Choice;
use super::durable::{Durability, Entry, GrowthModel, Model};
use super::rng::{Rng, finish, fold};
use super::trace::{
    EARLIER_PROCESS, Event, LENGTH, Op, Ops, Site, Trace, TraceRecord, Word, get, look_of, put,
};
use super::undecided::Undecided;
use crate::medium::Note;

/// Which images to build.
#[derive(Clone, Copy, Debug)]
pub struct ImageConfig {
    /// How memory loses data.
    pub model: Model,
    /// When a new length of the file becomes durable.
    pub growth: GrowthModel,
    /// Maximum number of images at one point. If there are no more than that, all of them are
    /// built. Otherwise granules with only transient stores are varied less: all newest, all
    /// oldest, mixed. If even the combinations of the other granules are too many, a selection is
    /// built that detects what the loss or the survival of any single granule can break.
    pub per_point: u64,
    /// Number of random images at a point that has more than `per_point`.
    pub random: u64,
    /// Under [`Model::ProcessDeath`], crash only at every `stride`-th store.
    pub stride: u64,
    /// Seed of the random choices.
    pub seed: u64,
}

impl Default for ImageConfig {
    fn default() -> Self {
        ImageConfig {
            model: Model::Adr,
            growth: GrowthModel::Immediate,
            per_point: 512,
            random: 16,
            stride: 1,
            seed: 0,
        }
    }
}

impl ImageConfig {
    /// Returns the default configuration with another model.
    pub fn of(model: Model) -> Self {
        ImageConfig { model, ..Self::default() }
    }
}

/// Counts of what was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageStats {
    /// Number of crash points.
    pub points: u64,
    /// Number of crash points at which every combination of stores that need to persist was built.
    pub exhaustive: u64,
    /// Number of images that were visited.
    pub images: u64,
    /// Number of images that were skipped, because an equal one with the same requirements was
    /// visited.
    pub repeated: u64,
}

/// The moment of a crash, and the operations that were acknowledged until then.
#[derive(Clone)]
pub struct CrashPoint {
    record: usize,
    begun: u64,
    ended: u64,
    synced: usize,
    ops: Arc<Ops>,
}

impl CrashPoint {
    /// Returns the number of records of the trace before the crash.
    pub fn record(&self) -> usize {
        self.record
    }

    /// Returns the number of operations that had begun.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Returns the number of operations that had been acknowledged.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// Returns operation `number`, if it had begun.
    pub fn op(&self, number: u64) -> Option<&Op> {
        self.ops.get(number).filter(|op| op.begin < self.record)
    }

    /// Returns `true` if operation `number` had been acknowledged, so that its effect must be
    /// present.
    pub fn completed(&self, number: u64) -> bool {
        self.ended_before(number, self.record)
    }

    /// Returns `true` if operation `number` had been acknowledged before the last successful sync.
    pub fn synced(&self, number: u64) -> bool {
        self.ended_before(number, self.synced)
    }

    /// Returns `true` if operation `number` had begun but was not acknowledged, so that its effect
    /// is present as a whole or not at all.
    pub fn in_flight(&self, number: u64) -> bool {
        self.op(number).is_some() && !self.completed(number)
    }

    /// Returns the operations in flight: at most one per thread.
    pub fn ops_in_flight(&self) -> impl Iterator<Item = &Op> {
        let begun = self.ops.list.iter().take_while(|op| op.begin < self.record);
        begun.filter(|op| !self.completed(op.number))
    }

    /// Returns a number that differs if the requirements on the contents differ.
    pub(crate) fn requirements(&self) -> u64 {
        fold(fold(self.begun, self.ended), self.synced as u64)
    }

    fn ended_before(&self, number: u64, record: usize) -> bool {
        self.ops.get(number).and_then(|op| op.end).is_some_and(|end| end < record)
    }
}

impl fmt::Debug for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CrashPoint { record, begun, ended, .. } = self;
        write!(f, "record {record} ({begun} operations begun, {ended} acknowledged)")
    }
}

/// A granule whose contents after the crash are undecided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UndecidedGranule {
    /// First byte of the granule.
    pub(crate) offset: u64,
    bytes: u64,
    first: usize,
    count: usize,
    /// Whether nothing in it needs to persist.
    idle: bool,
}

impl UndecidedGranule {
    /// Returns the bytes of the granule.
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.bytes)
    }
}

/// One possible result of a crash.
pub struct Image<'w> {
    /// The contents: little-endian words.
    pub bytes: &'w [u8],
    /// The crash point.
    pub point: &'w CrashPoint,
    /// A hash of the contents.
    pub(crate) hash: u64,
    /// Offsets where `bytes` may differ from the last visited image.
    pub(crate) changed: &'w [u64],
    pub(crate) choices: &'w [Choice],
    walk: &'w Walk<'w>,
}

impl Image<'_> {
    /// Returns the undecided granules, ordered by first byte.
    pub(crate) fn items(&self) -> &[UndecidedGranule] {
        &self.walk.items
    }

    /// Describes the crash: where it happened, and which stores that might have been lost were lost
    /// or survived.
    ///
    /// `name` returns the name of an operation from its number.
    pub fn describe(&self, name: &dyn Fn(u64) -> String) -> String {
        let mut text = self.walk.describe_point(self.point, name);
        let (mut lost, mut kept) = (String::new(), String::new());
        // Stores that need not persist come last, because they seldom explain anything.
        for transient in [false, true] {
            for (item, choice) in self.walk.items.iter().zip(self.choices) {
                let entries = self.walk.entries_of(item).iter().enumerate();
                for (at, entry) in entries.filter(|(_, entry)| entry.transient == transient) {
                    let there = choice.of(at, entry);
                    self.walk.describe_entry(&mut kept, "persisted:    ", entry, there);
                    self.walk.describe_entry(
                        &mut lost,
                        "NOT persisted:",
                        entry,
                        entry.mask & !there,
                    );
                }
            }
        }
        text.push_str(&shorten(&lost));
        text.push_str(&shorten(&kept));
        text
    }
}

/// Shortens `text` to at most a dozen lines.
fn shorten(text: &str) -> String {
    const MOST: usize = 12;
    let lines = text.lines().count();
    let mut short = text.lines().take(MOST).fold(String::new(), |all, line| all + line + "\n");
    if lines > MOST {
        let _ = writeln!(short, "  ... and {} more like this", lines - MOST);
    }
    short
}

/// An image under construction.
struct Canvas {
    bytes: Vec<u8>,
    len: u64,
    /// A sum over all words, so that it can be updated with each change and does not depend on the
    /// order of changes.
    hash: u64,
    changed: Vec<u64>,
}

impl Canvas {
    fn new(base: &[u8]) -> Self {
        let words =
            (0..base.len() as u64).step_by(8).map(|offset| contribution(offset, get(base, offset)));
        let len = base.len() as u64;
        let hash = words.fold(contribution(LENGTH, len), u64::wrapping_add);
        Canvas { bytes: base.to_vec(), len, hash, changed: Vec::new() }
    }

    /// Sets a word and returns the previous value.
    fn put(&mut self, offset: u64, value: u64) -> u64 {
        let old = if offset == LENGTH {
            std::mem::replace(&mut self.len, value)
        } else {
            // Stores can be durable beyond a length that is not.
            self.extend(offset + 8);
            let old = get(&self.bytes, offset);
            put(&mut self.bytes, offset, value);
            old
        };
        self.extend(self.len);
        self.hash = self
            .hash
            .wrapping_add(contribution(offset, value))
            .wrapping_sub(contribution(offset, old));
        self.changed.push(offset);
        old
    }

    fn extend(&mut self, len: u64) {
        if len > self.bytes.len() as u64 {
            self.bytes.resize(len as usize, 0);
        }
    }
}

/// Returns the contribution of a word to the hash. It is 0 for a zero word, so that growth changes
/// the hash only through the length.
fn contribution(offset: u64, value: u64) -> u64 {
    if value == 0 { 0 } else { finish(finish(offset) ^ value) }
}

/// Walks through a trace from crash point to crash point, and builds images in place.
pub(crate) struct Walk<'t> {
    trace: &'t Trace,
    stride: u64,
    state: Durability<'t>,
    canvas: Canvas,
    /// Values that the applied choices overwrote.
    undo: Vec<(u64, u64)>,
    next: usize,
    /// Whether anything relevant happened since the last point.
    moved: bool,
    /// Whether the point before record `next` was returned.
    stopped: bool,
    stores: u64,
    begun: u64,
    ended: u64,
    synced: usize,
    items: Vec<UndecidedGranule>,
    entries: Vec<Entry>,
}

impl<'t> Walk<'t> {
    pub(crate) fn new(trace: &'t Trace, config: &ImageConfig) -> Self {
        let stride = if config.model == Model::ProcessDeath { config.stride.max(1) } else { 1 };
        Walk {
            trace,
            stride,
            state: Durability::new(trace, config.model, config.growth),
            canvas: Canvas::new(trace.base()),
            undo: Vec::new(),
            next: 0,
            moved: true,
            stopped: false,
            stores: 0,
            begun: 0,
            ended: 0,
            synced: 0,
            items: Vec::new(),
            entries: Vec::new(),
        }
    }

    /// Advances to the next crash point.
    pub(crate) fn next_point(&mut self) -> Option<CrashPoint> {
        while self.next < self.trace.records().len() {
            if !self.stopped && self.stops_here() {
                return Some(self.stop());
            }
            self.stopped = false;
            self.step();
        }
        (!self.stopped).then(|| self.stop())
    }

    fn stops_here(&self) -> bool {
        match self.trace.records()[self.next].event {
            Event::Note(Note::Begin(_)) => self.moved,
            _ => self.state.advances(self.next) && self.stores.is_multiple_of(self.stride),
        }
    }

    fn stop(&mut self) -> CrashPoint {
        (self.stopped, self.moved) = (true, false);
        self.items.clear();
        self.entries.clear();
        for (&granule, entries) in self.state.pending() {
            let first = self.entries.len();
            self.entries.extend(entries.iter().filter(|entry| entry.mask != 0));
            let (offset, count) = (self.state.offset_of(granule), self.entries.len() - first);
            if count > 0 {
                let bytes = self.state.granule_bytes();
                let idle = self.entries[first..].iter().all(|entry| entry.transient);
                self.items.push(UndecidedGranule { offset, bytes, first, count, idle });
            }
        }
        self.point()
    }

    fn point(&self) -> CrashPoint {
        CrashPoint {
            record: self.next,
            begun: self.begun,
            ended: self.ended,
            synced: self.synced,
            ops: self.trace.op_table().clone(),
        }
    }

    /// Advances to the crash point before `record`, or stays there.
    pub(crate) fn go_to(&mut self, record: usize) -> Option<CrashPoint> {
        while !(self.stopped && self.next == record) {
            self.next_point()?;
        }
        Some(self.point())
    }

    fn step(&mut self) {
        match self.trace.records()[self.next].event {
            Event::Store { .. } => (self.moved, self.stores) = (true, self.stores + 1),
            Event::Note(Note::Begin(_)) => self.begun += 1,
            Event::Note(Note::End(_)) => (self.moved, self.ended) = (true, self.ended + 1),
            Event::Sync => (self.moved, self.synced) = (true, self.next),
            Event::Fence | Event::FailedSync | Event::Grow { .. } | Event::Discard { .. } => {
                self.moved = true
            }
            Event::Flush { .. }
            | Event::Note(Note::Scope(_) | Note::Harmless(_))
            | Event::Omitted => {}
        }
        let canvas = &mut self.canvas;
        self.state.step(self.next, &mut |word: &Word| {
            canvas.put(word.offset, word.new);
        });
        self.next += 1;
    }

    pub(crate) fn entries_of(&self, item: &UndecidedGranule) -> &[Entry] {
        &self.entries[item.first..item.first + item.count]
    }

    /// Returns the number of the record before which the crash happens.
    pub(crate) fn next_record(&self) -> usize {
        self.next
    }

    /// Returns the site of the store of this entry.
    pub(crate) fn site_of(&self, entry: &Entry) -> Site {
        self.trace.records()[entry.record as usize].site
    }

    /// Returns a number that is equal for points that look the same: with the same site of the
    /// crash, and the same sites of undecided stores.
    pub(crate) fn look(&self) -> u64 {
        let here = self.trace.records().get(self.next).map(|record| record.site);
        let stored = self.entries.iter().filter(|entry| !entry.transient);
        fold(look_of(here.into_iter()), look_of(stored.map(|entry| self.site_of(entry))))
    }

    /// Returns the number of images.
    pub(crate) fn images(&self) -> u64 {
        self.ways(|_| true)
    }

    /// Returns `true` if recovery can run on the undecided memory. It cannot if the length is
    /// undecided, or if a granule has too many possible contents.
    pub(crate) fn can_stay_undecided(&self) -> bool {
        const MOST: u64 = 1 << 12;
        self.items
            .iter()
            .all(|item| item.offset < LENGTH && Choice::count(self.entries_of(item)) <= MOST)
    }

    /// Returns all undecided granules, with the preferred choice for each.
    pub(crate) fn undecided(&self, script: Vec<u16>, preferred: &[Choice]) -> Undecided {
        let mut undecided = Undecided::new(script);
        for (item, &preferred) in self.items.iter().zip(preferred) {
            undecided.add(self.trace, item.range(), self.entries_of(item), preferred);
        }
        undecided
    }

    /// Returns the granules that are undecided at this point.
    pub(crate) fn items(&self) -> &[UndecidedGranule] {
        &self.items
    }

    /// Returns the number of combinations of choices for the granules that `wanted` selects.
    fn ways(&self, wanted: impl Fn(&UndecidedGranule) -> bool) -> u64 {
        let items = self.items.iter().filter(|item| wanted(item));
        let counts = items.map(|item| Choice::count(self.entries_of(item)));
        counts.fold(1, u64::saturating_mul)
    }

    /// Returns the choice for granule `at` that loses nothing.
    pub(crate) fn whole(&self, at: usize) -> Choice {
        Choice::all(self.entries_of(&self.items[at]))
    }

    /// Returns a random choice for granule `at`.
    pub(crate) fn any_choice(&self, at: usize, rng: &mut Rng) -> Choice {
        Choice::random(self.entries_of(&self.items[at]), rng)
    }

    /// Returns `true` if `choice` is possible for granule `at`.
    pub(crate) fn allows(&self, at: usize, choice: Choice) -> bool {
        let entries = self.entries_of(&self.items[at]);
        match entries.get(choice.taken as usize) {
            Some(entry) => choice.partial & !entry.mask == 0,
            None => choice == Choice::all(entries),
        }
    }

    /// Builds the image with these choices, one for each undecided granule.
    pub(crate) fn apply(&mut self, choices: &[Choice]) {
        for (item, choice) in self.items.iter().zip(choices) {
            for (at, entry) in self.entries[item.first..][..item.count].iter().enumerate() {
                for word in entry.words(self.trace, choice.of(at, entry)) {
                    let old = self.canvas.put(word.offset, word.new);
                    self.undo.push((word.offset, old));
                }
            }
        }
    }

    /// Reverts the applied choices.
    pub(crate) fn revert(&mut self) {
        while let Some((offset, old)) = self.undo.pop() {
            self.canvas.put(offset, old);
        }
    }

    /// Returns the image with the applied choices.
    pub(crate) fn image<'w>(&'w self, point: &'w CrashPoint, choices: &'w [Choice]) -> Image<'w> {
        Image {
            bytes: &self.canvas.bytes[..self.canvas.len as usize],
            point,
            hash: self.canvas.hash,
            changed: &self.canvas.changed,
            choices,
            walk: self,
        }
    }

    /// Returns a hash of the contents with the applied choices.
    pub(crate) fn hash(&self) -> u64 {
        self.canvas.hash
    }

    /// Records that the current image was visited: the next one lists the changes since then.
    pub(crate) fn mark_visited(&mut self) {
        self.canvas.changed.clear();
    }

    /// Describes where the crash happened.
    fn describe_point(&self, point: &CrashPoint, name: &dyn Fn(u64) -> String) -> String {
        let at = point.record;
        let mut text = String::from("crash ");
        match self.trace.records().get(at) {
            None => text.push_str("at the end of the recording"),
            Some(record) => {
                let what = match record.event {
                    Event::Note(Note::Begin(op)) => format!("the begin of {}", name(op)),
                    Event::Note(Note::End(op)) => format!("the end of {}", name(op)),
                    Event::Note(Note::Scope(scope)) => format!("entering {scope}"),
                    Event::Note(Note::Harmless(_)) => "a note".into(),
                    Event::Store { .. } => "the store".into(),
                    Event::Flush { .. } => "the flush".into(),
                    Event::Fence => "the fence".into(),
                    Event::Sync | Event::FailedSync => "the sync".into(),
                    Event::Grow { .. } => "the growth".into(),
                    Event::Discard { .. } => "the discard".into(),
                    Event::Omitted => "what was left out".into(),
                };
                let _ = write!(
                    text,
                    "just before {what} at {} by thread {}",
                    record.site, record.thread
                );
            }
        }
        for op in point.ops_in_flight() {
            let _ = write!(text, ", in {}", name(op.number));
            if let Some(scope) = self.trace.scope(op.thread, at) {
                let _ = write!(text, " ({scope})");
            }
        }
        text + "\n"
    }

    /// Adds a line about the words `mask` of an entry.
    fn describe_entry(&self, text: &mut String, verdict: &str, entry: &Entry, mask: u8) {
        let mut words = entry.words(self.trace, mask);
        let Some(first) = words.next() else { return };
        let TraceRecord { site, thread, .. } = self.trace.records()[entry.record as usize];
        let more = words.count();
        let by = if thread == EARLIER_PROCESS { " by a process that died" } else { "" };
        let _ = if first.offset == LENGTH {
            writeln!(text, "  {verdict} growth to {:#x} bytes at {site}", first.new)
        } else {
            let kind = if entry.transient { "transient store" } else { "store" };
            let more = if more > 0 { format!(" and {more} words more") } else { String::new() };
            let Word { offset, old, new } = first;
            writeln!(
                text,
                "  {verdict} {kind}{by} at {site}: {offset:#x} from {old:#x} to {new:#x}{more}"
            )
        };
    }
}

/// A pattern for choosing an image when there are too many to build them all.
#[derive(Clone, Copy)]
pub(crate) enum Pattern {
    /// No undecided store survives.
    Nothing,
    /// All of them survive.
    Everything,
    /// All of them survive, except those of one granule.
    AllBut(usize),
    /// Only those of one granule survive.
    Only(usize),
    /// The oldest stores of one granule survive, and all or none of the others.
    Prefix { item: usize, taken: u32, rest: bool },
    /// Granules that end in a bulk write are older than those that end in a single store, which
    /// usually commits, or the other way round.
    Commits { first: bool },
    /// Random choices.
    Random,
}

/// The contents of granules in which nothing needs to persist.
#[derive(Clone, Copy)]
enum TransientState {
    Newest,
    Oldest,
    Mixed,
}

/// The images to build at one point.
pub(crate) enum ImagePlan {
    /// All of them.
    Every(u64),
    /// All combinations of stores that need to persist, each with some states of the others.
    EveryStore { combinations: u64, rounds: u64 },
    /// A selection.
    Some(Vec<Pattern>),
}

impl ImagePlan {
    pub(crate) fn of(walk: &Walk<'_>, config: &ImageConfig, rng: &mut Rng) -> Self {
        let every = walk.ways(|_| true);
        if every <= config.per_point {
            return ImagePlan::Every(every);
        }
        let combinations = walk.ways(|item| !item.idle);
        if combinations <= config.per_point {
            let rounds = (config.per_point / combinations).min(TRANSIENT_STATES.len() as u64);
            return ImagePlan::EveryStore { combinations, rounds };
        }
        let mut patterns = vec![Pattern::Nothing, Pattern::Everything];
        patterns.extend([true, false].map(|first| Pattern::Commits { first }));
        patterns.extend((0..config.random).map(|_| Pattern::Random));
        for (at, item) in walk.items.iter().enumerate().filter(|(_, item)| !item.idle) {
            patterns.extend([Pattern::AllBut(at), Pattern::Only(at)]);
            for taken in 1..item.count as u32 {
                patterns.extend([true, false].map(|rest| Pattern::Prefix {
                    item: at,
                    taken,
                    rest,
                }));
            }
        }
        // The two extremes are always built. If there are still too many, a random selection of the
        // others.
        let most = config.per_point.max(2) as usize;
        if patterns.len() > most {
            for at in 2..most {
                let other = at as u64 + rng.below((patterns.len() - at) as u64);
                patterns.swap(at, other as usize);
            }
            patterns.truncate(most);
        }
        ImagePlan::Some(patterns)
    }

    /// Returns `true` if every combination of stores that need to persist is built.
    pub(crate) fn is_exhaustive(&self) -> bool {
        !matches!(self, ImagePlan::Some(_))
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            ImagePlan::Every(combinations) => *combinations,
            ImagePlan::EveryStore { combinations, rounds } => combinations * rounds,
            ImagePlan::Some(patterns) => patterns.len() as u64,
        }
    }

    /// Makes the choices of the `number`-th image.
    pub(crate) fn choose(
        &self,
        number: u64,
        walk: &Walk<'_>,
        rng: &mut Rng,
        choices: &mut Vec<Choice>,
    ) {
        choices.clear();
        let mut digits = number;
        // Each combination has another state in each round; in a single round, its neighbours have.
        let turn = match self {
            ImagePlan::EveryStore { combinations, .. } => {
                number % combinations + number / combinations
            }
            _ => number,
        };
        let idle = TRANSIENT_STATES[turn as usize % TRANSIENT_STATES.len()];
        for (at, item) in walk.items.iter().enumerate() {
            let entries = walk.entries_of(item);
            choices.push(match self {
                ImagePlan::EveryStore { .. } | ImagePlan::Some(_) if item.idle => {
                    idle.choice(entries, rng)
                }
                ImagePlan::Every(_) | ImagePlan::EveryStore { .. } => {
                    let count = Choice::count(entries);
                    let choice = Choice::nth(entries, digits % count);
                    digits /= count;
                    choice
                }
                ImagePlan::Some(patterns) => patterns[number as usize].choice(at, entries, rng),
            });
        }
    }
}

const TRANSIENT_STATES: [TransientState; 3] =
    [TransientState::Newest, TransientState::Oldest, TransientState::Mixed];

impl TransientState {
    fn choice(self, entries: &[Entry], rng: &mut Rng) -> Choice {
        match self {
            TransientState::Newest => Choice::all(entries),
            TransientState::Oldest => Choice::default(),
            TransientState::Mixed => Choice::random(entries, rng),
        }
    }
}

impl Pattern {
    fn choice(self, at: usize, entries: &[Entry], rng: &mut Rng) -> Choice {
        let whole = match self {
            Pattern::Nothing => false,
            Pattern::Everything => true,
            Pattern::AllBut(item) => at != item,
            Pattern::Only(item) => at == item,
            Pattern::Prefix { item, taken, .. } if at == item => {
                return Choice { taken, partial: 0 };
            }
            Pattern::Prefix { rest, .. } => rest,
            Pattern::Commits { first } => {
                let commits =
                    entries.last().is_some_and(|e| e.mask.is_power_of_two() && !e.transient);
                commits == first
            }
            Pattern::Random => return Choice::random(entries, rng),
        };
        if whole { Choice::all(entries) } else { Choice::default() }
    }
}

/// Returns the maximum number of images per point so that points that want these numbers of images
/// have no more than `budget` together. Returns `None` if the budget is enough for all.
pub(crate) fn fair_share(mut wanted: Vec<u64>, budget: u64) -> Option<u64> {
    wanted.sort_unstable();
    let mut left = budget;
    for (at, &images) in wanted.iter().enumerate() {
        let share = left / (wanted.len() - at) as u64;
        if images > share {
            return Some(share.max(2));
        }
        left -= images;
    }
    None
}

/// Calls `visit` with the possible images at every crash point of `trace`, each once for the same
/// requirements.
///
/// Stops early when `visit` returns `Break`. Deterministic: the same trace and configuration
/// produce the same images.
pub fn for_each_image(
    trace: &Trace,
    config: &ImageConfig,
    mut visit: impl FnMut(&Image<'_>) -> ControlFlow<()>,
) -> ImageStats {
    let mut seen = HashSet::new();
    let mut walk = Walk::new(trace, config);
    let mut rng = Rng::new(config.seed);
    let mut stats = ImageStats::default();
    let mut choices = Vec::new();
    while let Some(point) = walk.next_point() {
        let plan = ImagePlan::of(&walk, config, &mut rng);
        stats.points += 1;
        stats.exhaustive += u64::from(plan.is_exhaustive());
        let requirements = point.requirements();
        for number in 0..plan.len() {
            plan.choose(number, &walk, &mut rng, &mut choices);
            walk.apply(&choices);
            if seen.insert(fold(walk.hash(), requirements)) {
                stats.images += 1;
                let flow = visit(&walk.image(&point, &choices));
                walk.mark_visited();
                if flow.is_break() {
                    return stats;
                }
            } else {
                stats.repeated += 1;
            }
            walk.revert();
        }
    }
    stats
}
