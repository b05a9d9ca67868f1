//! Crash points, and the contents that a crash at one of them may leave behind.
//!
//! Between two durability advances the set of possible images only grows, and what the survivors owe to
//! acknowledged operations only gets stricter, until another operation begins. So it is enough to crash
//! just before each advance, just before an operation begins if anything happened since the last
//! crash, and at the end.

use std::collections::HashSet;
use std::fmt::{self, Write};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use super::coverage::look_of;
use super::durable::{Durability, Entry, GrowthModel, Model};
use super::rng::{Rng, finish, fold};
use super::trace::{Event, LENGTH, Op, Ops, Site, THE_DEAD, Trace, TraceRecord, Word, get, put};
use super::undecided::Undecided;
use crate::medium::Note;

/// Which images to build.
#[derive(Clone, Copy, Debug)]
pub struct ImageConfig {
    /// How memory loses data.
    pub model: Model,
    /// What becomes of the file's length.
    pub growth: GrowthModel,
    /// Most images at one point. Where there are no more than that, each is built. Else granules with nothing
    /// but transient stores are varied less: all newest, all oldest, mixed. Where even the combinations of
    /// the other granules are too many, it is a choice that finds what the loss or the survival of any one
    /// granule can break.
    pub per_point: u64,
    /// Random images at a point that has more than `per_point`.
    pub random: u64,
    /// Under [`Model::ProcessDeath`], crash at every so manieth store.
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
    /// The defaults with another model.
    pub fn of(model: Model) -> Self {
        ImageConfig { model, ..Self::default() }
    }
}

/// What was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageStats {
    /// Crash points.
    pub points: u64,
    /// Crash points at which every combination of stores that need to persist was built.
    pub exhaustive: u64,
    /// Images shown.
    pub images: u64,
    /// Images not shown because an equal one with the same obligations was.
    pub repeated: u64,
}

/// A moment at which everything stopped, and what was promised until then.
#[derive(Clone)]
pub struct CrashPoint {
    record: usize,
    begun: u64,
    ended: u64,
    synced: usize,
    ops: Arc<Ops>,
}

impl CrashPoint {
    /// How many records of the trace happened.
    pub fn record(&self) -> usize {
        self.record
    }

    /// Operations that had begun.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Operations that had been acknowledged.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// The operation, if it had begun.
    pub fn op(&self, number: u64) -> Option<&Op> {
        self.ops.get(number).filter(|op| op.begin < self.record)
    }

    /// Whether operation `number` had been acknowledged: its effect must be there.
    pub fn completed(&self, number: u64) -> bool {
        self.ended_before(number, self.record)
    }

    /// Whether operation `number` had been acknowledged before the last successful sync.
    pub fn synced(&self, number: u64) -> bool {
        self.ended_before(number, self.synced)
    }

    /// Whether operation `number` had begun but was not acknowledged: its effect may be there, wholly or
    /// not at all.
    pub fn in_flight(&self, number: u64) -> bool {
        self.op(number).is_some() && !self.completed(number)
    }

    /// The operations in flight: at most one a thread.
    pub fn ops_in_flight(&self) -> impl Iterator<Item = &Op> {
        let begun = self.ops.list.iter().take_while(|op| op.begin < self.record);
        begun.filter(|op| !self.completed(op.number))
    }

    /// Differs where what was promised differs.
    pub(crate) fn promises(&self) -> u64 {
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

/// How much of a granule's undecided stores a crash left behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Choice {
    /// The oldest so many are there entirely.
    pub(crate) taken: u32,
    /// Of the next one, these words are there.
    pub(crate) partial: u8,
}

/// A granule whose contents after the crash are undecided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    /// First byte of the granule.
    pub(crate) offset: u64,
    bytes: u64,
    first: usize,
    count: usize,
    /// Whether nothing in it needs to persist.
    idle: bool,
}

impl Item {
    /// The bytes of the granule.
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.bytes)
    }
}

/// One possible result of a crash.
pub struct Image<'w> {
    /// The contents: little-endian words.
    pub bytes: &'w [u8],
    /// The moment of the crash.
    pub point: &'w CrashPoint,
    /// Depends on the contents alone.
    pub(crate) hash: u64,
    /// Offsets where `bytes` may differ from the last image shown.
    pub(crate) changed: &'w [u64],
    pub(crate) choices: &'w [Choice],
    walk: &'w Walk<'w>,
}

impl Image<'_> {
    /// Granules that might have been otherwise, by first byte.
    pub(crate) fn items(&self) -> &[Item] {
        &self.walk.items
    }

    /// The crash in words: where, and which stores that might have been lost were, and were not.
    ///
    /// `name` tells an operation's name from its number.
    pub fn describe(&self, name: &dyn Fn(u64) -> String) -> String {
        let mut text = self.walk.place(self.point, name);
        let (mut lost, mut kept) = (String::new(), String::new());
        // What need not persist comes last: it seldom explains anything.
        for transient in [false, true] {
            for (item, choice) in self.walk.items.iter().zip(self.choices) {
                let entries = self.walk.entries_of(item).iter().enumerate();
                for (at, entry) in entries.filter(|(_, entry)| entry.transient == transient) {
                    let there = choice.of(at, entry);
                    self.walk.tell(&mut kept, "persisted:    ", entry, there);
                    self.walk.tell(&mut lost, "NOT persisted:", entry, entry.mask & !there);
                }
            }
        }
        text.push_str(&shorten(&lost));
        text.push_str(&shorten(&kept));
        text
    }
}

/// At most a dozen lines of `text`.
fn shorten(text: &str) -> String {
    const MOST: usize = 12;
    let lines = text.lines().count();
    let mut short = text.lines().take(MOST).fold(String::new(), |all, line| all + line + "\n");
    if lines > MOST {
        let _ = writeln!(short, "  ... and {} more like this", lines - MOST);
    }
    short
}

impl Choice {
    /// The words of the entry at position `at` that are there.
    fn of(&self, at: usize, entry: &Entry) -> u8 {
        match at.cmp(&(self.taken as usize)) {
            std::cmp::Ordering::Less => entry.mask,
            std::cmp::Ordering::Equal => entry.mask & self.partial,
            std::cmp::Ordering::Greater => 0,
        }
    }

    /// How many different choices `entries` allow.
    fn count(entries: &[Entry]) -> u64 {
        1 + entries.iter().map(|entry| ways(entry.mask)).sum::<u64>()
    }

    /// All that `entries` allow, from nothing to everything.
    pub(crate) fn every(entries: &[Entry]) -> Vec<Self> {
        (0..Choice::count(entries)).map(|number| Choice::nth(entries, number)).collect()
    }

    /// The `number`-th choice that `entries` allow, of [`count`](Choice::count).
    fn nth(entries: &[Entry], mut number: u64) -> Self {
        for (taken, entry) in entries.iter().enumerate() {
            let taken = taken as u32;
            if number < ways(entry.mask) {
                return Choice { taken, partial: deposit(number as u8, entry.mask) };
            }
            number -= ways(entry.mask);
        }
        Choice { taken: entries.len() as u32, partial: 0 }
    }

    /// A uniform choice would hardly ever be none or all where a granule has many stores: these get a third
    /// each.
    fn random(entries: &[Entry], rng: &mut Rng) -> Self {
        match rng.below(3) {
            0 => Choice::default(),
            1 => Choice::all(entries),
            _ => Choice::nth(entries, rng.below(Choice::count(entries))),
        }
    }

    fn all(entries: &[Entry]) -> Self {
        Choice { taken: entries.len() as u32, partial: 0 }
    }
}

/// Subsets of an entry's words, all of them excepted: that is where the next entry begins.
fn ways(mask: u8) -> u64 {
    (1 << mask.count_ones()) - 1
}

/// Spreads the low bits of `bits` over the set bits of `mask`.
fn deposit(mut bits: u8, mask: u8) -> u8 {
    let mut spread = 0;
    for bit in (0..8).filter(|bit| mask >> bit & 1 != 0) {
        spread |= (bits & 1) << bit;
        bits >>= 1;
    }
    spread
}

/// An image under construction.
struct Canvas {
    bytes: Vec<u8>,
    len: u64,
    /// A sum over all words, so that it follows each change and does not depend on the order of changes.
    hash: u64,
    changed: Vec<u64>,
}

impl Canvas {
    fn new(base: &[u8]) -> Self {
        let words =
            (0..base.len() as u64).step_by(8).map(|offset| share(offset, get(base, offset)));
        let len = base.len() as u64;
        let hash = words.fold(share(LENGTH, len), u64::wrapping_add);
        Canvas { bytes: base.to_vec(), len, hash, changed: Vec::new() }
    }

    /// Sets a word; returns what it was.
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
        self.hash = self.hash.wrapping_add(share(offset, value)).wrapping_sub(share(offset, old));
        self.changed.push(offset);
        old
    }

    fn extend(&mut self, len: u64) {
        if len > self.bytes.len() as u64 {
            self.bytes.resize(len as usize, 0);
        }
    }
}

/// A word's share of the hash. None for zero, so that growth changes the hash only through the length.
fn share(offset: u64, value: u64) -> u64 {
    if value == 0 { 0 } else { finish(finish(offset) ^ value) }
}

/// Goes through a trace from crash point to crash point, building images in place.
pub(crate) struct Walk<'t> {
    trace: &'t Trace,
    stride: u64,
    state: Durability<'t>,
    canvas: Canvas,
    /// What the applied choices overwrote.
    undo: Vec<(u64, u64)>,
    next: usize,
    /// Whether anything that matters happened since the last point.
    moved: bool,
    /// Whether the point before record `next` was given out.
    stopped: bool,
    stores: u64,
    begun: u64,
    ended: u64,
    synced: usize,
    items: Vec<Item>,
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

    /// Goes on to the next crash point.
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
                self.items.push(Item { offset, bytes, first, count, idle });
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

    /// Goes on to the crash point before `record`, or stays there.
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

    pub(crate) fn entries_of(&self, item: &Item) -> &[Entry] {
        &self.entries[item.first..item.first + item.count]
    }

    /// The record before which the crash comes.
    pub(crate) fn next_record(&self) -> usize {
        self.next
    }

    /// Where what this entry says was stored.
    pub(crate) fn site_of(&self, entry: &Entry) -> Site {
        self.trace.records()[entry.record as usize].site
    }

    /// The same at points that look the same: where the crash comes, and where what is undecided was stored.
    pub(crate) fn look(&self) -> u64 {
        let here = self.trace.records().get(self.next).map(|record| record.site);
        let stored = self.entries.iter().filter(|entry| !entry.transient);
        fold(look_of(here.into_iter()), look_of(stored.map(|entry| self.site_of(entry))))
    }

    /// How many images there are.
    pub(crate) fn images(&self) -> u64 {
        self.ways(|_| true)
    }

    /// Whether recovery can be let loose on what is undecided here: not where the length is, and not where a
    /// granule can hold too many different things.
    pub(crate) fn can_stay_undecided(&self) -> bool {
        const MOST: u64 = 1 << 12;
        self.items
            .iter()
            .all(|item| item.offset < LENGTH && Choice::count(self.entries_of(item)) <= MOST)
    }

    /// Everything that is undecided here, with what each granule is rather to hold.
    pub(crate) fn undecided(&self, script: Vec<u16>, preferred: &[Choice]) -> Undecided {
        let mut undecided = Undecided::new(script);
        for (item, &preferred) in self.items.iter().zip(preferred) {
            undecided.add(self.trace, item.range(), self.entries_of(item), preferred);
        }
        undecided
    }

    /// The granules undecided at this point.
    pub(crate) fn items(&self) -> &[Item] {
        &self.items
    }

    /// How many ways there are to choose for the granules that `wanted` picks.
    fn ways(&self, wanted: impl Fn(&Item) -> bool) -> u64 {
        let items = self.items.iter().filter(|item| wanted(item));
        let counts = items.map(|item| Choice::count(self.entries_of(item)));
        counts.fold(1, u64::saturating_mul)
    }

    /// The choice at granule `at` that loses nothing.
    pub(crate) fn whole(&self, at: usize) -> Choice {
        Choice::all(self.entries_of(&self.items[at]))
    }

    /// Any choice for granule `at`.
    pub(crate) fn any_choice(&self, at: usize, rng: &mut Rng) -> Choice {
        Choice::random(self.entries_of(&self.items[at]), rng)
    }

    /// Whether `choice` can be made for granule `at`.
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

    /// Takes the applied choices back.
    pub(crate) fn revert(&mut self) {
        while let Some((offset, old)) = self.undo.pop() {
            self.canvas.put(offset, old);
        }
    }

    /// The image as applied.
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

    /// Depends on the contents as applied, alone.
    pub(crate) fn hash(&self) -> u64 {
        self.canvas.hash
    }

    /// The image as applied was shown: the next one tells what has changed since.
    pub(crate) fn shown(&mut self) {
        self.canvas.changed.clear();
    }

    /// Where the crash happened, in words.
    fn place(&self, point: &CrashPoint, name: &dyn Fn(u64) -> String) -> String {
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
    fn tell(&self, text: &mut String, verdict: &str, entry: &Entry, mask: u8) {
        let mut words = entry.words(self.trace, mask);
        let Some(first) = words.next() else { return };
        let TraceRecord { site, thread, .. } = self.trace.records()[entry.record as usize];
        let more = words.count();
        let by = if thread == THE_DEAD { " by a process that died" } else { "" };
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

/// A way to choose an image where there are too many to build them all.
#[derive(Clone, Copy)]
pub(crate) enum Shape {
    /// Nothing undecided is there.
    Nothing,
    /// All of it is.
    Everything,
    /// All of it but one granule is.
    AllBut(usize),
    /// One granule's is.
    Only(usize),
    /// The oldest stores of one granule, and everything or nothing of the others.
    Prefix { item: usize, taken: u32, rest: bool },
    /// Granules that end in a bulk write lag behind those that end in a single store, which usually
    /// commits; or the other way round.
    Commits { first: bool },
    /// Anything.
    Random,
}

/// What the granules hold in which nothing needs to persist.
#[derive(Clone, Copy)]
enum Idle {
    Newest,
    Oldest,
    Mixed,
}

/// The images to build at one point.
pub(crate) enum Plan {
    /// All of them.
    Every(u64),
    /// All combinations of stores that need to persist, each with some states of the others.
    EveryStore { combinations: u64, rounds: u64 },
    /// A choice.
    Some(Vec<Shape>),
}

impl Plan {
    pub(crate) fn of(walk: &Walk<'_>, config: &ImageConfig, rng: &mut Rng) -> Self {
        let every = walk.ways(|_| true);
        if every <= config.per_point {
            return Plan::Every(every);
        }
        let combinations = walk.ways(|item| !item.idle);
        if combinations <= config.per_point {
            let rounds = (config.per_point / combinations).min(IDLE.len() as u64);
            return Plan::EveryStore { combinations, rounds };
        }
        let mut shapes = vec![Shape::Nothing, Shape::Everything];
        shapes.extend([true, false].map(|first| Shape::Commits { first }));
        shapes.extend((0..config.random).map(|_| Shape::Random));
        for (at, item) in walk.items.iter().enumerate().filter(|(_, item)| !item.idle) {
            shapes.extend([Shape::AllBut(at), Shape::Only(at)]);
            for taken in 1..item.count as u32 {
                shapes.extend([true, false].map(|rest| Shape::Prefix { item: at, taken, rest }));
            }
        }
        // The two extremes always; of the others a random choice if there are still too many.
        let most = config.per_point.max(2) as usize;
        if shapes.len() > most {
            for at in 2..most {
                let other = at as u64 + rng.below((shapes.len() - at) as u64);
                shapes.swap(at, other as usize);
            }
            shapes.truncate(most);
        }
        Plan::Some(shapes)
    }

    /// Whether it has every combination of stores that need to persist.
    pub(crate) fn is_exhaustive(&self) -> bool {
        !matches!(self, Plan::Some(_))
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Plan::Every(combinations) => *combinations,
            Plan::EveryStore { combinations, rounds } => combinations * rounds,
            Plan::Some(shapes) => shapes.len() as u64,
        }
    }

    /// Makes the `number`-th image's choices.
    pub(crate) fn choose(
        &self,
        number: u64,
        walk: &Walk<'_>,
        rng: &mut Rng,
        choices: &mut Vec<Choice>,
    ) {
        choices.clear();
        let mut digits = number;
        // Each combination meets another state in each round; in a single round, its neighbours do.
        let turn = match self {
            Plan::EveryStore { combinations, .. } => number % combinations + number / combinations,
            _ => number,
        };
        let idle = IDLE[turn as usize % IDLE.len()];
        for (at, item) in walk.items.iter().enumerate() {
            let entries = walk.entries_of(item);
            choices.push(match self {
                Plan::EveryStore { .. } | Plan::Some(_) if item.idle => idle.choice(entries, rng),
                Plan::Every(_) | Plan::EveryStore { .. } => {
                    let count = Choice::count(entries);
                    let choice = Choice::nth(entries, digits % count);
                    digits /= count;
                    choice
                }
                Plan::Some(shapes) => shapes[number as usize].choice(at, entries, rng),
            });
        }
    }
}

const IDLE: [Idle; 3] = [Idle::Newest, Idle::Oldest, Idle::Mixed];

impl Idle {
    fn choice(self, entries: &[Entry], rng: &mut Rng) -> Choice {
        match self {
            Idle::Newest => Choice::all(entries),
            Idle::Oldest => Choice::default(),
            Idle::Mixed => Choice::random(entries, rng),
        }
    }
}

impl Shape {
    fn choice(self, at: usize, entries: &[Entry], rng: &mut Rng) -> Choice {
        let whole = match self {
            Shape::Nothing => false,
            Shape::Everything => true,
            Shape::AllBut(item) => at != item,
            Shape::Only(item) => at == item,
            Shape::Prefix { item, taken, .. } if at == item => return Choice { taken, partial: 0 },
            Shape::Prefix { rest, .. } => rest,
            Shape::Commits { first } => {
                let commits =
                    entries.last().is_some_and(|e| e.mask.is_power_of_two() && !e.transient);
                commits == first
            }
            Shape::Random => return Choice::random(entries, rng),
        };
        if whole { Choice::all(entries) } else { Choice::default() }
    }
}

/// The most images at one point with which points that want so many have no more than `budget` together.
/// Nothing if there is enough for all.
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

/// Shows `visit` the possible images at every crash point of `trace`, each once for the same obligations.
///
/// Stops early when `visit` answers `Break`. Deterministic: the same trace and configuration show the same
/// images.
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
        let plan = Plan::of(&walk, config, &mut rng);
        stats.points += 1;
        stats.exhaustive += u64::from(plan.is_exhaustive());
        let owed = point.promises();
        for number in 0..plan.len() {
            plan.choose(number, &walk, &mut rng, &mut choices);
            walk.apply(&choices);
            if seen.insert(fold(walk.hash(), owed)) {
                stats.images += 1;
                let flow = visit(&walk.image(&point, &choices));
                walk.shown();
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
