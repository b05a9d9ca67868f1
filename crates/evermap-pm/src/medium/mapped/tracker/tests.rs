//! Tests of instants: what is in the cut, whatever threads do around it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::Duration;

use crate::medium::{Mapped, MappedOptions, Marks, Medium, PageChange};
use crate::sim::rng::Rng;
use crate::{PmU64, Result};

/// What a thread is about to do when a test holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// It knows the number of the interval, and has not marked yet.
    Mark,
    /// It has marked, and not stored yet.
    Store,
    /// It has stored, and not looked whether that was late.
    Stored,
    /// It has prepared everything for an instant, and not raised the number yet.
    Raise,
    /// It has raised the number, and not fenced yet.
    Fence,
}

type Reached = Box<dyn FnMut(Moment)>;

thread_local! {
    static REACHED: RefCell<Option<Reached>> = const { RefCell::new(None) };
}

/// The calling thread has come to a moment at which tests hold it.
pub(super) fn reach(moment: Moment) {
    REACHED.with_borrow_mut(|reached| {
        if let Some(reached) = reached {
            reached(moment);
        }
    });
}

/// Holds the calling thread the first time that it reaches `moment`: it says so, and waits until it
/// is let go.
fn hold_at(moment: Moment) -> (mpsc::Receiver<()>, mpsc::Sender<()>, Reached) {
    let ((says, said), (lets, is_let)) = (mpsc::channel(), mpsc::channel());
    let mut is_held = false;
    let reached = Box::new(move |reached| {
        if reached == moment && !std::mem::replace(&mut is_held, true) {
            says.send(()).unwrap();
            is_let.recv().unwrap();
        }
    });
    (said, lets, reached)
}

struct Fixture {
    medium: Mapped,
    directory: tempfile::TempDir,
}

const PAGES: u64 = 64;

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let options = MappedOptions { create: true, capacity: 64 << 20, ..Default::default() };
        let medium = Mapped::open(directory.path().join("file"), &options).unwrap();
        medium.grow(PAGES * 4096).unwrap();
        Fixture { medium, directory }
    }

    fn recording() -> Self {
        let fixture = Self::new();
        fixture.medium.record_changes(fixture.new_marks()).unwrap();
        fixture
    }

    fn new_marks(&self) -> Marks {
        Marks::create(&self.marks_path(), [1, 2], 1, 64 << 20).unwrap()
    }

    fn marks_path(&self) -> std::path::PathBuf {
        self.directory.path().join("marks")
    }

    fn word(&self, page: u64, word: u64) -> &PmU64 {
        word_of(&self.medium, page, word)
    }
}

pub(super) fn word_of(medium: &Mapped, page: u64, word: u64) -> &PmU64 {
    medium.at(page * 4096 + word * 8).unwrap()
}

/// The contents of a medium that are known from its changes.
#[derive(Default)]
pub(super) struct Replica {
    pages: HashMap<u64, Vec<u8>>,
    lines_shown: u64,
}

impl Replica {
    pub(super) fn take(&mut self, medium: &Mapped) -> Result<(u64, u64)> {
        medium.take_changes(&mut |change| self.apply(change))
    }

    fn apply(&mut self, change: &PageChange<'_>) {
        let page = self.pages.entry(change.page).or_insert_with(|| vec![0; 4096]);
        for line in (0..64).filter(|line| change.lines >> line & 1 != 0) {
            let mut bytes = [0; 64];
            change.read_line(line, &mut bytes);
            page[line as usize * 64..][..64].copy_from_slice(&bytes);
            self.lines_shown += 1;
        }
    }

    pub(super) fn word(&self, page: u64, word: u64) -> u64 {
        let at = word as usize * 8;
        self.pages
            .get(&page)
            .map_or(0, |page| u64::from_le_bytes(page[at..at + 8].try_into().unwrap()))
    }

    fn expect_equal(&self, medium: &Mapped) {
        for page in 0..PAGES {
            for word in 0..512 {
                let expected = medium.load(word_of(medium, page, word));
                assert_eq!(self.word(page, word), expected, "word {word} of page {page}");
            }
        }
    }
}

#[test]
fn lines_are_those_of_the_bytes() {
    assert_eq!(super::page::lines_of(0, 8), 1);
    assert_eq!(super::page::lines_of(56, 8), 1);
    assert_eq!(super::page::lines_of(56, 9), 3);
    assert_eq!(super::page::lines_of(4088, 8), 1 << 63);
    assert_eq!(super::page::lines_of(0, 4096), u64::MAX);
}

/// Every way to store must be noticed, by a view and by the recorder.
#[test]
fn no_store_passes_unnoticed() {
    type Store = (&'static str, fn(&Mapped, u64));
    let stores: [Store; 7] = [
        ("store", |m, page| m.store(word_of(m, page, 3), 9)),
        ("store_transient", |m, page| m.store_transient(word_of(m, page, 3), 9)),
        ("cas", |m, page| _ = m.cas(word_of(m, page, 3), 5, 9)),
        ("cas_transient", |m, page| _ = m.cas_transient(word_of(m, page, 3), 5, 9)),
        ("write_bytes", |m, page| {
            m.write_bytes(m.slice(page * 4096 + 24, 2).unwrap(), &9_u64.to_le_bytes());
        }),
        ("write_bytes over a border", |m, page| {
            m.write_bytes(m.slice(page * 4096 - 16, 6).unwrap(), &[9; 48]);
        }),
        ("discard", |m, page| m.discard(page * 4096..(page + 1) * 4096)),
    ];
    let fixture = Fixture::recording();
    let medium = &fixture.medium;
    for (page, (name, store)) in (1..).step_by(2).zip(stores) {
        medium.store(fixture.word(page, 3), 5);
        let mut replica = Replica::default();
        replica.take(medium).unwrap();
        let view = medium.snapshot().unwrap();
        store(medium, page);
        assert_ne!(medium.load(fixture.word(page, 3)), 5, "{name}");
        assert_eq!(view.load(word_of(&view, page, 3)), 5, "{name} changed a view");
        assert_eq!(replica.word(page, 3), 5, "{name}");
        replica.take(medium).unwrap();
        assert_eq!(replica.word(page, 3), medium.load(fixture.word(page, 3)), "{name} is lost");
    }
}

#[test]
fn a_view_keeps_what_was_there_and_what_it_stores_itself() {
    let fixture = Fixture::new();
    let medium = &fixture.medium;
    let (one, two) = (fixture.word(1, 0), fixture.word(2, 0));
    medium.store(one, 1);
    medium.store(two, 1);
    let first = medium.snapshot().unwrap();
    medium.store(one, 2);
    let second = medium.snapshot().unwrap();
    // Its own store comes before the one that changes the page of the file, or after it.
    second.store(word_of(&second, 2, 1), 7);
    medium.store(two, 3);
    second.store(word_of(&second, 1, 1), 8);
    let seen = |view: &Mapped| {
        [(1, 0), (1, 1), (2, 0), (2, 1)].map(|(page, word)| view.load(word_of(view, page, word)))
    };
    assert_eq!(seen(&first), [1, 0, 1, 0]);
    assert_eq!(seen(&second), [2, 8, 1, 7]);
    assert_eq!(seen(medium), [2, 0, 3, 0]);
    assert_eq!((first.private_bytes(), second.private_bytes()), (2 * 4096, 2 * 4096));
    drop(first);
    medium.store(fixture.word(3, 0), 1);
    assert_eq!(second.load(word_of(&second, 3, 0)), 0);
    assert!(second.is_read_only() && second.snapshot().is_err());
}

/// The view outlives the medium, and keeps others from writing to the file.
#[test]
fn a_view_holds_the_lock_of_the_file() {
    let fixture = Fixture::new();
    let path = fixture.medium.path().unwrap().to_owned();
    fixture.medium.store(fixture.word(1, 0), 1);
    let view = fixture.medium.snapshot().unwrap();
    let Fixture { medium, directory: _directory } = fixture;
    drop(medium);
    let options = MappedOptions { lock_wait: Duration::ZERO, ..Default::default() };
    assert!(Mapped::open(&path, &options).is_err());
    assert_eq!(view.load(word_of(&view, 1, 0)), 1);
    drop(view);
    Mapped::open(&path, &options).map(|_| ()).unwrap();
}

#[test]
fn pages_of_a_file_that_grows_later_are_not_in_a_view() {
    let fixture = Fixture::new();
    let view = fixture.medium.snapshot().unwrap();
    fixture.medium.grow(40 << 20).unwrap();
    fixture.medium.store(fixture.word(9000, 0), 1);
    assert_eq!(view.len(), PAGES * 4096);
    assert_eq!(fixture.medium.snapshot().unwrap().len(), 40 << 20);
}

/// A thread that was about to store when changes were taken is not forgotten.
#[test]
fn a_late_store_is_shown_the_next_time() {
    let fixture = Fixture::recording();
    let (medium, word) = (&fixture.medium, fixture.word(5, 0));
    let mut replica = Replica::default();
    for moment in [Moment::Mark, Moment::Store] {
        let value = medium.load(word) + 1;
        std::thread::scope(|scope| {
            let (held, let_go, reached) = hold_at(moment);
            let reached = SendBox(reached);
            let thread = scope.spawn(move || {
                REACHED.set(Some({ reached }.0));
                medium.store(word, value);
            });
            held.recv().unwrap();
            replica.take(medium).unwrap();
            assert_eq!(replica.word(5, 0), value - 1, "{moment:?}");
            let_go.send(()).unwrap();
            thread.join().unwrap();
        });
        assert!(medium.has_changes());
        replica.take(medium).unwrap();
        assert_eq!(replica.word(5, 0), value, "{moment:?}");
    }
}

/// Calls `act` while a thread is held that has stored 1 to `late` after the instant of the changes
/// that `replica` has taken, and has not marked it again. `act` gets what lets it go.
fn while_a_store_is_late(
    fixture: &Fixture,
    replica: &mut Replica,
    late: &PmU64,
    act: impl FnOnce(&mut Replica, &mpsc::Sender<()>),
) {
    let medium = &fixture.medium;
    std::thread::scope(|scope| {
        let (mut held, mut let_go, mut reached) = (Vec::new(), Vec::new(), Vec::new());
        for moment in [Moment::Store, Moment::Stored] {
            let (one_held, one_let_go, one_reached) = hold_at(moment);
            held.push(one_held);
            let_go.push(one_let_go);
            reached.push(SendBox(one_reached));
        }
        scope.spawn(move || {
            let mut reached = reached;
            REACHED.set(Some(Box::new(move |at| {
                reached.iter_mut().for_each(|reached| reached.0(at));
            })));
            medium.store(late, 1);
        });
        held[0].recv().unwrap();
        replica.take(medium).unwrap();
        let_go[0].send(()).unwrap();
        held[1].recv().unwrap();
        assert_eq!(medium.load(late), 1);
        act(replica, &let_go[1]);
    });
}

/// What depends on a late store is in no cut without it.
#[test]
fn a_late_store_is_waited_for_before_the_next_instant() {
    let fixture = Fixture::recording();
    let medium = &fixture.medium;
    let (late, after) = (fixture.word(5, 0), fixture.word(6, 0));
    let mut replica = Replica::default();
    while_a_store_is_late(&fixture, &mut replica, late, |replica, let_go| {
        assert_eq!(replica.word(5, 0), 0);
        medium.store(after, medium.load(late));
        let is_taken = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                replica.take(medium).unwrap();
                is_taken.store(true, Relaxed);
            });
            std::thread::sleep(Duration::from_millis(20));
            assert!(!is_taken.load(Relaxed), "it did not wait");
            let_go.send(()).unwrap();
        });
        assert_eq!((replica.word(5, 0), replica.word(6, 0)), (1, 1));
    });
}

/// A process may be killed before a late store is marked again: until then the interval that it is
/// marked with must not count as durable.
#[test]
fn a_late_store_is_waited_for_before_its_interval_is_durable() {
    let fixture = Fixture::recording();
    let medium = &fixture.medium;
    let mut replica = Replica::default();
    let durable = || medium.tracker.live().unwrap().marks().durable();
    while_a_store_is_late(&fixture, &mut replica, fixture.word(5, 0), |_, let_go| {
        let ended = medium.interval() - 1;
        std::thread::scope(|scope| {
            scope.spawn(|| medium.set_changes_durable(ended, [9; 5]));
            std::thread::sleep(Duration::from_millis(20));
            assert!(durable() < ended, "it did not wait");
            let_go.send(()).unwrap();
        });
        assert_eq!(durable(), ended);
    });
    assert!(medium.has_changes());
}

/// Threads that have no count of their own are waited for, too.
#[test]
fn stores_of_any_number_of_threads_are_waited_for() {
    let running = super::running::RunningStores::default();
    let number = crate::explore::AtomicU64::new(7);
    let (is_over, threads) = (&AtomicBool::new(false), std::sync::Barrier::new(9));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let (store, _) = running.begin(7, &number);
                threads.wait();
                std::thread::sleep(Duration::from_millis(20));
                is_over.store(true, Relaxed);
                threads.wait();
                drop(store);
            });
        }
        threads.wait();
        // These are of no earlier interval.
        running.wait(7);
        scope.spawn(|| {
            running.wait(8);
            assert!(is_over.load(Relaxed), "it did not wait");
        });
        threads.wait();
    });
}

struct SendBox(Reached);
// SAFETY: what the tests pass holds only channels and a flag, which may change threads.
unsafe impl Send for SendBox {}

/// Nothing may be kept for an instant before all threads have executed a fence.
#[test]
fn a_thread_that_meets_a_new_number_waits_for_the_fence() {
    let fixture = Fixture::recording();
    let (medium, word) = (&fixture.medium, fixture.word(5, 0));
    let is_stored = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (held, let_go, reached) = hold_at(Moment::Fence);
        let reached = SendBox(reached);
        scope.spawn(move || {
            REACHED.set(Some({ reached }.0));
            Replica::default().take(medium).unwrap();
        });
        held.recv().unwrap();
        scope.spawn(move || {
            medium.store(word, 1);
            is_stored.store(true, Relaxed);
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!is_stored.load(Relaxed), "it did not wait");
        let_go.send(()).unwrap();
    });
    assert!(is_stored.load(Relaxed));
}

/// What is stored while a view is prepared is in it.
#[test]
fn a_store_before_the_number_is_raised_is_in_the_view() {
    let fixture = Fixture::new();
    let medium = &fixture.medium;
    drop(medium.snapshot().unwrap());
    medium.store(fixture.word(1, 0), 1);
    let view = std::thread::scope(|scope| {
        let (held, let_go, reached) = hold_at(Moment::Raise);
        let reached = SendBox(reached);
        let taker = scope.spawn(move || {
            REACHED.set(Some({ reached }.0));
            medium.snapshot().unwrap()
        });
        held.recv().unwrap();
        // To a page that was not changed in this interval, and to one that was.
        medium.store(fixture.word(2, 0), 2);
        medium.store(fixture.word(1, 0), 2);
        let_go.send(()).unwrap();
        taker.join().unwrap()
    });
    assert_eq!(view.load(word_of(&view, 2, 0)), 2);
    assert_eq!(view.load(word_of(&view, 1, 0)), 2);
    medium.store(fixture.word(2, 0), 3);
    assert_eq!(view.load(word_of(&view, 2, 0)), 2);
}

#[test]
fn marks_survive_the_process() {
    let fixture = Fixture::recording();
    let medium = &fixture.medium;
    let mut replica = Replica::default();
    medium.store(fixture.word(1, 0), 1);
    let (interval, _) = replica.take(medium).unwrap();
    medium.set_changes_durable(interval, [9; 5]);
    // Durable: page 1. Changed afterwards: page 2 once, and page 3 in two intervals.
    medium.store(fixture.word(2, 100), 2);
    medium.store(fixture.word(3, 0), 3);
    Replica::default().take(medium).unwrap();
    medium.store(fixture.word(3, 511), 4);
    let path = medium.path().unwrap().to_owned();
    let (marks_path, options) = (fixture.marks_path(), MappedOptions::default());
    let Fixture { medium, directory: _directory } = fixture;
    drop(medium);

    let options = MappedOptions { capacity: 64 << 20, ..options };
    assert!(Marks::open(&marks_path, [1, 3], 1, 64 << 20).unwrap().is_none());
    assert!(Marks::open(&marks_path, [1, 2], 2, 64 << 20).unwrap().is_none());
    let marks = Marks::open(&marks_path, [1, 2], 1, 64 << 20).unwrap().unwrap();
    let medium = Mapped::open(&path, &options).unwrap();
    medium.record_changes(marks).unwrap();
    assert_eq!(medium.durable_place(), Some([9; 5]));
    let shown = replica.lines_shown;
    medium.store(word_of(&medium, 4, 0), 5);
    replica.take(&medium).unwrap();
    replica.expect_equal(&medium);
    // One line of page 2 if it is known to be one, the whole page 3, and the new line.
    assert!(replica.lines_shown - shown <= 64 + 64 + 1, "{}", replica.lines_shown - shown);
    assert!(!medium.has_changes());
}

/// Ends the threads of a scope also when the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Threads store numbers that rise, each after what it depends on. In every cut, what was stored
/// earlier is at least as new.
#[test]
fn cuts_are_consistent_while_threads_store() {
    let fixture = Fixture::recording();
    let (medium, stop) = (&fixture.medium, &AtomicBool::new(false));
    let chain = |link: u64| fixture.word(1 + link * 3 % 50, link * 7 % 512);
    const LINKS: u64 = 12;
    let mut replica = Replica::default();
    std::thread::scope(|scope| {
        let _stops = StopOnDrop(stop);
        // Thread `i` reads link 4i - 1, and stores it to links 4i, 4i + 1, ...; the first counts.
        for thread in 0..3 {
            scope.spawn(move || {
                let mut value = 0;
                while !stop.load(Relaxed) {
                    value = match thread {
                        0 => value + 1,
                        _ => medium.load(chain(4 * thread - 1)),
                    };
                    for link in 4 * thread..4 * thread + 4 {
                        medium.store(chain(link), value);
                    }
                }
            });
        }
        let (mut random, mut last) = (Rng::new(1), 0);
        let until = std::time::Instant::now() + Duration::from_millis(600);
        while std::time::Instant::now() < until {
            let view = (random.below(4) == 0).then(|| medium.snapshot().unwrap());
            replica.take(medium).unwrap();
            let at = |link: u64| replica.word(1 + link * 3 % 50, link * 7 % 512);
            let cut: Vec<u64> = (0..LINKS).map(at).collect();
            assert!(cut.is_sorted_by(|before, after| before >= after), "{cut:?}");
            assert!(cut[0] >= last, "time goes back");
            last = cut[0];
            if let Some(view) = view {
                let at = |link| view.load(word_of(&view, 1 + link * 3 % 50, link * 7 % 512));
                let seen: Vec<u64> = (0..LINKS).map(at).collect();
                assert!(seen.is_sorted_by(|before, after| before >= after), "view: {seen:?}");
            }
        }
        assert!(last > 0);
    });
    replica.take(medium).unwrap();
    replica.expect_equal(medium);
}
