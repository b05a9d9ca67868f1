//! Helpers for several tests.

pub(crate) mod child;

use std::collections::HashSet;
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use evermap::{Evermap, IndexKind, Map, Meta, Options};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use evermap_index::testkit::Tier;
use evermap_pm::medium::Medium;
use evermap_pm::region::Identity;
use evermap_pm::sim::{Access, Mutation, Observer, Sim};

/// Returns the index of the stores in the tests: that in `EVERMAP_TEST_INDEX`, otherwise the
/// default one.
pub(crate) fn index() -> IndexKind {
    std::env::var("EVERMAP_TEST_INDEX").map_or_else(
        |_| IndexKind::default(),
        |name| name.parse().unwrap_or_else(|error| panic!("EVERMAP_TEST_INDEX: {error}")),
    )
}

/// Returns the indexes for tests of all of them: only [`index`] if `EVERMAP_TEST_INDEX` is set,
/// because the run without it tests the others.
pub(crate) fn every_index() -> Vec<IndexKind> {
    match std::env::var_os("EVERMAP_TEST_INDEX") {
        Some(_) => vec![index()],
        None => IndexKind::ALL.to_vec(),
    }
}

/// Returns the indexes for campaigns that take seconds for each: only [`index`] in the default
/// tier.
pub(crate) fn campaign_indexes() -> Vec<IndexKind> {
    match evermap_index::testkit::tier() {
        Tier::Default => vec![index()],
        Tier::Full => every_index(),
    }
}

/// Returns [`Options::new`] with the index of the tests.
pub(crate) fn options() -> Options {
    Options::new().index(index())
}

/// Returns [`Options::small`] with the index of the tests.
pub(crate) fn small(bytes: u64) -> Options {
    Options::small(bytes).index(index())
}

/// Opens the default map of the file at `path`.
pub(crate) fn open_file(path: impl AsRef<Path>, options: Options) -> evermap::Result<Map> {
    Evermap::open(path, options).map(|db| db.default_map())
}

/// Opens the default map of a new store in memory.
pub(crate) fn in_memory(options: Options) -> evermap::Result<Map> {
    Evermap::in_memory(options).map(|db| db.default_map())
}

/// Opens the default map of the store in `medium`.
pub(crate) fn open_medium<M: Medium>(
    medium: M,
    identity: Identity,
    options: &Options,
) -> evermap::Result<Map<M>> {
    Evermap::open_medium(medium, identity, options.clone()).map(|db| db.default_map())
}

/// Opens the default map of a new store in `medium`.
pub(crate) fn create_medium<M: Medium>(
    medium: M,
    identity: Identity,
    options: &Options,
) -> evermap::Result<Map<M>> {
    Evermap::create_medium(medium, identity, options.clone()).map(|db| db.default_map())
}

/// Checks every invariant of a store.
pub(crate) fn assert_sound<M: Medium>(store: &Map<M>) {
    let report = store.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
}

/// Returns metadata with these flags and this expiry, where 0 means never.
pub(crate) fn meta(flags: u32, expires_at: u64) -> Meta {
    Meta::new().with_flags(flags).with_expiry((expires_at != 0).then(|| at(expires_at)))
}

/// The latest expiry, in seconds since 1970.
pub(crate) const EXPIRY_MAX: u64 = u32::MAX as u64;

/// Returns the time that is this number of seconds after the beginning of 1970.
pub(crate) fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// Returns the seconds since 1970.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// Returns memory that reports that it belongs to one store only.
pub(crate) fn exclusive(capacity: u64) -> Sim {
    // SAFETY: the tests have no other handle.
    unsafe { Sim::in_memory(capacity).unwrap().into_exclusive() }
}

/// Memory that outlives the stores in it: dropping a store without closing it is the death of its
/// process between two operations.
#[derive(Clone)]
pub(crate) struct Kept {
    memory: Sim,
    interruptions: Arc<Interruptions>,
}

/// What happens at accesses to the memory.
struct Interruptions {
    /// The number of flushes until one panics; none does if it is negative.
    flushes_until_panic: AtomicI64,
    fences: AtomicU64,
    at_fence: Mutex<Option<Interruption>>,
    at_prefetch: Mutex<Option<Interruption>>,
    at_read_ahead: Mutex<Option<Interruption>>,
    /// The lines whose loads and prefetches are counted.
    watched: OnceLock<HashSet<u64>>,
    touched: AtomicU64,
}

impl Interruptions {
    /// Counts an access to these bytes, if a watched line is among them.
    fn touch(&self, at: u64, bytes: u64) {
        let Some(lines) = self.watched.get() else { return };
        let touched = (at / LINE..(at + bytes).div_ceil(LINE)).any(|line| lines.contains(&line));
        self.touched.fetch_add(u64::from(touched), SeqCst);
    }
}

/// The size of a cache line, bytes.
pub(crate) const LINE: u64 = 64;

type Interruption = Box<dyn FnOnce() + Send>;

impl Kept {
    pub(crate) fn new(capacity: u64) -> Self {
        let interruptions = Arc::new(Interruptions {
            flushes_until_panic: AtomicI64::new(-1),
            fences: AtomicU64::new(0),
            at_fence: Mutex::default(),
            at_prefetch: Mutex::default(),
            at_read_ahead: Mutex::default(),
            watched: OnceLock::new(),
            touched: AtomicU64::new(0),
        });
        let memory = Sim::in_memory(capacity).unwrap().observed_by(interruptions.clone());
        Kept { memory, interruptions }
    }

    /// Returns the same memory, which reports that it belongs to one store only.
    pub(crate) fn claiming_to_be_exclusive(self) -> Self {
        // SAFETY: the tests that call this store through nothing else while a store is open.
        Kept { memory: unsafe { self.memory.into_exclusive() }, ..self }
    }

    pub(crate) fn open(&self, options: &Options) -> evermap::Result<Map<Sim>> {
        open_medium(self.memory.clone(), Identity::default(), options)
    }

    /// Returns the word at this offset.
    pub(crate) fn word(&self, at: u64) -> u64 {
        self.memory.load(self.memory.at(at).expect("inside"))
    }

    pub(crate) fn set_word(&self, at: u64, word: u64) {
        self.memory.store(self.memory.at(at).expect("inside"), word);
    }

    /// Copies the contents to new memory.
    pub(crate) fn copy(&self) -> Kept {
        let copy = Kept::new(self.capacity());
        copy.grow(self.len()).unwrap();
        (0..self.len()).step_by(8).for_each(|at| copy.set_word(at, self.word(at)));
        copy
    }

    /// Counts accesses to these lines from now on.
    pub(crate) fn watch(&self, lines: HashSet<u64>) {
        self.interruptions.watched.set(lines).expect("watched once");
    }

    /// Returns the number of loads and prefetches of watched lines so far.
    pub(crate) fn touched(&self) -> u64 {
        self.interruptions.touched.load(SeqCst)
    }

    /// Returns the number of ordered persists so far.
    pub(crate) fn fences(&self) -> u64 {
        self.interruptions.fences.load(SeqCst)
    }

    /// Calls `interruption` at the next fence, in the middle of the operation that executes it.
    pub(crate) fn at_next_fence(&self, interruption: impl FnOnce() + Send + 'static) {
        *self.interruptions.at_fence.lock().unwrap() = Some(Box::new(interruption));
    }

    /// Calls `interruption` when the next record is prefetched, in the middle of a walk that has
    /// shown some records.
    pub(crate) fn at_next_prefetch(&self, interruption: impl FnOnce() + Send + 'static) {
        *self.interruptions.at_prefetch.lock().unwrap() = Some(Box::new(interruption));
    }

    /// Calls `interruption` when a sweep next reads a part of an index ahead: after it has listed
    /// the maps, and before it visits them.
    pub(crate) fn at_next_read_ahead(&self, interruption: impl FnOnce() + Send + 'static) {
        *self.interruptions.at_read_ahead.lock().unwrap() = Some(Box::new(interruption));
    }

    /// Sets whether an index reports after each change that it is damaged.
    pub(crate) fn fail_after_changes(&self, fail: bool) {
        self.memory.mutate(fail.then_some(Mutation::Planted("ST-1")));
    }

    /// Makes the flush after the next `flushes` panic.
    pub(crate) fn panic_at_flush(&self, flushes: i64) {
        self.interruptions.flushes_until_panic.store(flushes, SeqCst);
    }

    /// Removes the planned panic. Returns whether it has happened.
    pub(crate) fn cancel_panic(&self) -> bool {
        self.interruptions.flushes_until_panic.swap(-1, SeqCst) < 0
    }
}

impl Deref for Kept {
    type Target = Sim;

    fn deref(&self) -> &Sim {
        &self.memory
    }
}

impl Observer for Interruptions {
    fn observe(&self, access: Access) {
        match access {
            Access::Load(at) => self.touch(at, 8),
            Access::Prefetch(at) => {
                interrupt(&self.at_prefetch);
                self.touch(at, 1);
            }
            Access::ReadAhead => interrupt(&self.at_read_ahead),
            Access::Flush(..) if self.flushes_until_panic.load(SeqCst) >= 0 => {
                assert_ne!(self.flushes_until_panic.fetch_sub(1, SeqCst), 0, "the planned panic");
            }
            Access::Fence => {
                self.fences.fetch_add(1, SeqCst);
                interrupt(&self.at_fence);
            }
            _ => {}
        }
    }
}

fn interrupt(place: &Mutex<Option<Interruption>>) {
    let interruption = place.lock().unwrap().take();
    interruption.into_iter().for_each(|interrupt| interrupt());
}

/// A random number generator with a fixed seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }
}

/// Returns a value that shows its key and its version.
pub(crate) fn value_of(key: &[u8], version: u64, len: usize) -> Vec<u8> {
    let mut value = key.to_vec();
    value.extend_from_slice(&version.to_le_bytes());
    let mut random = Random::new(version ^ key.len() as u64);
    while value.len() < len {
        value.push(random.next() as u8);
    }
    value
}

/// Returns whether `value` is any version of the value that [`value_of`] returns for `key`.
pub(crate) fn is_value_of(key: &[u8], value: &[u8]) -> bool {
    let Some(rest) = value.strip_prefix(key) else { return false };
    let Some(version) = rest.first_chunk::<8>() else { return false };
    value_of(key, u64::from_le_bytes(*version), value.len()) == value
}

/// Ends the threads of a scope also when the test fails.
pub(crate) struct StopOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
