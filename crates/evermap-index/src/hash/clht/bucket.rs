//! One bucket: what readers see of it, its lock, and changing its pairs.
//!
//! Two words say which places hold pairs. `link` is what a crash goes by, and changes first. `control` is what
//! readers go by, and follows once the change is durable. So whatever a reader finds, or does not find, no crash
//! takes back, and no reader waits for a flush: but for one case, told at [`Held::replace`].

use std::sync::atomic::{Ordering, fence};

use evermap_pm::Medium;
use evermap_pm::medium::Note;

use super::layout::{Bucket, Control, Link, PAIRS, Pair, Places, free_place};
use crate::Key;
use crate::hash::probe::Probe;
use crate::recipe::{self, Preparation};

/// A pair as it is stored.
#[derive(Clone, Copy)]
pub(super) struct Stored {
    pub(super) slot_key: u64,
    pub(super) word: u64,
}

/// What a look at a bucket without its lock found.
pub(super) enum View {
    Found(u64),
    /// Not here: the rest of the chain, if there is any, is where this leads.
    Absent(Link),
    /// A pair went or changed meanwhile: look again.
    Again,
    /// The word is being replaced.
    Overwritten,
    /// The bucket was not recovered since the region was opened.
    Stale,
}

/// Looks for a key in one bucket without a lock or a store.
#[inline(always)]
pub(super) fn view<K: Key, M: Medium>(
    m: &M,
    bucket: &Bucket,
    probe: &Probe<'_, K>,
    generation: u64,
) -> View {
    // Acquire: the pairs that it calls visible were stored before it was.
    let control = Control(m.load(&bucket.control));
    if !control.is_of(generation) {
        return View::Stale;
    }
    let found = find(m, bucket, control.visible(), probe);
    // Acquire: what the link leads to was stored before it was.
    let link = Link(m.load(&bucket.link));
    // Acquire: whoever frees or changes a place says so in `control` before anybody stores to the place. So if a
    // key or word read above is younger than `control`, the change of `control` is seen below.
    fence(Ordering::Acquire);
    if !control.has_same_pairs(Control(m.load_relaxed(&bucket.control))) {
        return View::Again;
    }
    match found {
        Some((place, _)) if control.is_overwritten(place) => View::Overwritten,
        Some((_, word)) => View::Found(word),
        None => View::Absent(link),
    }
}

/// The pair with the probe's key among those in `places`, as place and word.
#[inline(always)]
pub(super) fn find<K: Key, M: Medium>(
    m: &M,
    bucket: &Bucket,
    places: Places,
    probe: &Probe<'_, K>,
) -> Option<(usize, u64)> {
    let mut candidates = matching(m, bucket, probe.slot_key) & places;
    while candidates != 0 {
        let place = candidates.trailing_zeros() as usize;
        let word = m.load_relaxed(&bucket.pairs[place].word);
        if K::matches(m, word, probe.key) {
            return Some((place, word));
        }
        candidates &= candidates - 1;
    }
    None
}

/// Places with this slot key, whether or not they hold a pair.
#[inline(always)]
pub(super) fn matching<M: Medium>(m: &M, bucket: &Bucket, slot_key: u64) -> Places {
    (0..PAIRS).fold(0, |places, place| {
        places | Places::from(m.load_relaxed(&bucket.pairs[place].key) == slot_key) << place
    })
}

/// The pairs in a bucket that nobody changes.
pub(super) fn pairs_in<'a, M: Medium>(
    m: &'a M,
    bucket: &'a Bucket,
) -> impl Iterator<Item = Stored> + 'a {
    let taken = Link(m.load(&bucket.link)).taken();
    (0..PAIRS).filter(move |place| taken >> place & 1 == 1).map(|place| {
        let Pair { key, word } = &bucket.pairs[place];
        Stored { slot_key: m.load_relaxed(key), word: m.load_relaxed(word) }
    })
}

/// Makes a bucket that an earlier opener left one of ours. Anybody who meets it may, readers too; all of them come
/// to the same.
#[cold]
pub(super) fn recover<M: Medium>(m: &M, bucket: &Bucket, generation: u64) -> bool {
    let stale = Control(m.load(&bucket.control));
    if stale.is_of(generation) {
        return false;
    }
    let taken = Link(m.load(&bucket.link)).taken();
    // The process that stored the link may have died before it flushed it.
    m.note(Note::Harmless(
        "met by chance: `what_recovery_finds_is_durable_before_it_is_used` fails without it",
    ));
    m.persist(bucket);
    // Only the first succeeds, so the link cannot have changed: whoever changes it recovers the bucket first.
    m.cas_transient(&bucket.control, stale.0, Control::fresh(generation, taken).0).is_ok()
}

/// What an attempt to lock a chain found.
pub(super) enum Locking<'m, M: Medium> {
    Held(Held<'m, M>),
    /// Another thread holds it.
    Busy,
    /// The table is being replaced, or was.
    Frozen,
    /// The home bucket was not recovered since the region was opened.
    Stale,
}

/// A chain that the calling thread has locked, by its home bucket.
#[must_use = "a chain stays locked until it is released"]
pub(super) struct Held<'m, M: Medium> {
    m: &'m M,
    pub(super) home: &'m Bucket,
    /// What the home bucket's control word becomes when the chain is released, but for the lock.
    control: Control,
}

#[inline(always)]
pub(super) fn try_lock<'m, M: Medium>(
    m: &'m M,
    home: &'m Bucket,
    generation: u64,
) -> Locking<'m, M> {
    let control = Control(m.load(&home.control));
    if control.is_lockable(generation)
        && m.cas_transient(&home.control, control.0, control.locked().0).is_ok()
    {
        return Locking::Held(Held { m, home, control });
    }
    if !control.is_of(generation) {
        Locking::Stale
    } else if control.is_frozen() {
        Locking::Frozen
    } else {
        Locking::Busy
    }
}

impl<'m, M: Medium> Held<'m, M> {
    #[inline(always)]
    pub(super) fn release(self) {
        self.m.store_transient(&self.home.control, self.control.0);
    }

    /// Leaves the chain locked because the table is being replaced.
    pub(super) fn freeze(self) {
        self.m.store_transient(&self.home.control, self.control.frozen().0);
    }

    /// Lets readers see what has become durable in a bucket of the chain.
    #[inline(always)]
    fn show(&mut self, bucket: &Bucket, change: impl Fn(Control) -> Control) {
        if std::ptr::eq(bucket, self.home) {
            // When the chain is released.
            self.control = change(self.control);
        } else {
            let control = Control(self.m.load_relaxed(&bucket.control));
            self.m.store_transient(&bucket.control, change(control).0);
        }
    }

    /// Puts a pair into a free place of a bucket of the chain, durably: one flush and one fence.
    #[inline(always)]
    pub(super) fn put(&mut self, bucket: &Bucket, place: usize, pair: Stored) {
        let link = Link(self.m.load_relaxed(&bucket.link));
        self.write(bucket, place, pair, link.with(place));
        self.show(bucket, |control| control.with(place));
    }

    /// Gives a pair another word, durably: one flush and one fence.
    ///
    /// The pair moves to a free place of its bucket, so that readers see the old word until the new one is durable.
    /// Where no place is free, the word has to be replaced in place, and readers of this pair wait meanwhile.
    #[inline(always)]
    pub(super) fn replace(&mut self, bucket: &Bucket, place: usize, pair: Stored) {
        let link = Link(self.m.load_relaxed(&bucket.link));
        if let Some(free) = free_place(link.taken()) {
            // One store takes the old place away and gives the new one, for a crash and then for readers.
            self.write(bucket, free, pair, link.with(free).without(place));
            self.show(bucket, |control| control.with(free).without(place));
        } else {
            self.replace_in_place(bucket, place, pair.word);
        }
    }

    fn replace_in_place(&mut self, bucket: &Bucket, place: usize, word: u64) {
        let m = self.m;
        // At once, even in the home bucket: the word is visible when it is stored.
        let control = Control(m.load_relaxed(&bucket.control)).overwriting(place);
        m.store_transient(&bucket.control, control.0);
        recipe::commit(m, &bucket.pairs[place].word, word);
        self.show(bucket, |control| control.overwritten(place));
    }

    /// Writes a pair into a place that nobody sees, and commits it by `link`.
    #[inline(always)]
    #[track_caller]
    fn write(&self, bucket: &Bucket, place: usize, pair: Stored, link: Link) {
        let cells = &bucket.pairs[place];
        let mut change = Preparation::new(self.m, &bucket.link);
        change.store(&cells.word, pair.word);
        change.store(&cells.key, pair.slot_key);
        change.commit(link.0);
    }

    /// Takes a pair out of a bucket of the chain, durably: one flush and one fence. Answers what the bucket still
    /// holds.
    #[inline(always)]
    pub(super) fn remove(&mut self, bucket: &Bucket, place: usize) -> Link {
        let link = Link(self.m.load_relaxed(&bucket.link)).without(place);
        recipe::commit(self.m, &bucket.link, link.0);
        self.show(bucket, |control| control.without(place));
        link
    }

    /// Makes a fresh bucket the second of the chain, holding one pair, durably: two flushes and two fences.
    pub(super) fn append(&mut self, bucket: &Bucket, pair: Stored, generation: u64) {
        let m = self.m;
        let link = Link(m.load_relaxed(&self.home.link));
        // Readers can reach it before the link that leads to it is durable, but see nothing in it.
        m.store_transient(&bucket.control, Control::fresh(generation, 0).0);
        let mut change = Preparation::new(m, &self.home.link);
        change.store(&bucket.pairs[0].word, pair.word);
        change.store(&bucket.pairs[0].key, pair.slot_key);
        change.store(&bucket.link, Link::default().with(0).followed_by(link.rest()).0);
        change.commit(link.followed_by(m.offset_of(bucket)).0);
        self.show(bucket, |control| control.with(0));
    }

    /// Takes the empty bucket `gone` out of the chain, durably. `before` is the one that leads to it. Readers that
    /// are in it go on from there, as long as their guards live.
    pub(super) fn unlink(&self, before: &Bucket, gone: &Bucket) {
        let m = self.m;
        let rest = Link(m.load_relaxed(&gone.link)).rest();
        let link = Link(m.load_relaxed(&before.link)).followed_by(rest);
        recipe::commit(m, &before.link, link.0);
    }
}
