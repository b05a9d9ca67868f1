//! Pages and changes beside which another thread changes the tree: at each moment between two
//! loads.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use evermap_pm::sim::{Access, Observer, Sim};

use super::trees::{SOUND, memory, tree_in};
use crate::ordered::{Cursor, Direction, OrderedIndex, Page, PersistentOrdered};

/// The time after which a change that waits for the reader is left to itself.
const PATIENCE: Duration = Duration::from_millis(40);

/// Lets another thread do something, once, before a load that was chosen.
#[derive(Default)]
struct Overtakes {
    /// The number of loads until then, or 0 for never.
    loads: AtomicU64,
    act: OnceLock<Box<dyn Fn() + Send + Sync>>,
    acted: AtomicBool,
    /// The other thread, if it waits for what the reader has locked: it comes after the page then,
    /// or amid it.
    waits: Mutex<Option<JoinHandle<()>>>,
}

impl Overtakes {
    /// Lets another thread act, and waits for that.
    fn overtake(self: &Arc<Self>, act: impl FnOnce() + Send + 'static) {
        let (done, is_done) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            act();
            let _ = done.send(());
        });
        match is_done.recv_timeout(PATIENCE) {
            Err(mpsc::RecvTimeoutError::Timeout) => *self.waits.lock().unwrap() = Some(thread),
            _ => thread.join().unwrap(),
        }
    }
}

impl Observer for Overtakes {
    fn observe(&self, access: Access) {
        if let Access::Load(_) = access {
            let loads = self.loads.load(SeqCst);
            self.loads.store(loads.saturating_sub(1), SeqCst);
            if let (1, Some(act)) = (loads, self.act.get()) {
                act();
                self.acted.store(true, SeqCst);
            }
        }
    }
}

/// What a tree has: numbers, and the words that they are bound to.
type Pairs = BTreeMap<u64, u64>;

/// A change of a number: the word that it is bound to from then on, if it is.
type Change = (u64, Option<u64>);

/// Makes changes in a tree.
fn change(tree: &dyn OrderedIndex, changes: &[Change]) {
    for &(number, word) in changes {
        let key = number.to_be_bytes();
        match word {
            Some(word) => assert!(tree.upsert(&key, word).unwrap().changed()),
            None => assert!(tree.remove(&key).unwrap().removed()),
        }
    }
}

/// Returns what there is after changes.
fn changed(mut pairs: Pairs, changes: &[Change]) -> Pairs {
    for &(number, word) in changes {
        match word {
            Some(word) => drop(pairs.insert(number, word)),
            None => drop(pairs.remove(&number)),
        }
    }
    pairs
}

/// Returns the pairs of a tree in ascending order.
fn pairs_of(tree: &dyn OrderedIndex) -> Pairs {
    let (mut cursor, mut pairs) = (Cursor::new(tree, .., Direction::Ascending), Pairs::new());
    while let Some((key, word)) = cursor.next().unwrap() {
        assert!(pairs.insert(number_of(key), word).is_none());
    }
    pairs
}

fn number_of(key: &[u8]) -> u64 {
    u64::from_be_bytes(key.try_into().expect("a key of eight bytes"))
}

/// Returns what a tree has at first.
fn at_first() -> Pairs {
    (0..120).map(|number| (number * 16, 1)).collect()
}

/// Lets another thread make changes in a tree that has what `at_first` returns, before one of the
/// loads of `operate`, which comes after `prepare`. Returns the tree, and whether the other thread
/// had to wait, or `None` if there were fewer loads.
fn overtaken<T: PersistentOrdered<Sim> + 'static>(
    load: u64,
    prepare: impl FnOnce(&T),
    changes: &[Change],
    operate: impl FnOnce(&T),
) -> Option<(Arc<T>, bool)> {
    let overtakes = Arc::new(Overtakes::default());
    let medium = memory().unwrap().observed_by(overtakes.clone());
    let tree: Arc<T> = Arc::new(tree_in(medium).unwrap());
    for (number, word) in at_first() {
        assert!(tree.insert(&number.to_be_bytes(), word).unwrap().inserted());
    }
    prepare(&tree);
    let (other, observer) = (Arc::downgrade(&tree), Arc::downgrade(&overtakes));
    let changes = changes.to_vec();
    let act = move || {
        let tree = other.upgrade().expect("it is in use");
        let changes = changes.clone();
        let observer = observer.upgrade().expect("it is in use");
        observer.overtake(move || change(&*tree, &changes));
    };
    assert!(overtakes.act.set(Box::new(act)).is_ok());
    overtakes.loads.store(load, SeqCst);
    operate(&tree);
    let waits = overtakes.waits.lock().unwrap().take();
    let has_waited = waits.map(|thread| thread.join().unwrap()).is_some();
    overtakes.acted.load(SeqCst).then_some((tree, has_waited))
}

/// Calls `each` with the number of a load, from 1 on, until it returns `false`: with every one at
/// first, as there may be some thousands.
fn each_load(mut each: impl FnMut(u64) -> bool) -> u64 {
    let mut load = 1;
    while each(load) {
        load += 1 + load / 15;
    }
    load
}

/// Reads pages beside changes of everything that they show, which come before each of their loads
/// in turn: from either end, and from keys that stay, that go and that come. Each page must have
/// what the tree had before the changes, or what it had after them, from its bound to the beginning
/// of the next page.
pub fn pages_that_are_overtaken_are_of_one_moment<T: PersistentOrdered<Sim> + 'static>() {
    let key = |number: u64| number.to_be_bytes().to_vec();
    let bounds = [
        Bound::Unbounded,
        Bound::Included(key(80 * 16)),
        Bound::Included(key(28 * 16)),
        Bound::Excluded(key(27 * 9)),
        Bound::Excluded(key(40 * 16)),
    ];
    // Changes of words, removals, and new keys that make nodes split.
    let mut changes: Vec<Change> = Vec::new();
    for number in (0..120u64).map(|number| number * 16) {
        let goes = number % 7 == 0 || (800..1000).contains(&number);
        changes.push((number, (!goes).then_some(2)));
    }
    let new = (0..1920u64).filter(|number| number % 16 != 0 && number % 9 == 0);
    changes.extend(new.map(|number| (number, Some(3))));
    for direction in [Direction::Ascending, Direction::Descending] {
        for bound in &bounds {
            let from = bound.as_ref().map(Vec::as_slice);
            let loads =
                each_load(|load| page_is_of_one_moment::<T>(load, &changes, from, direction));
            assert!(loads > 20, "{direction:?} from {bound:?}: {loads} loads");
        }
    }
}

/// Does so before one load. Returns `false` if there were fewer.
fn page_is_of_one_moment<T: PersistentOrdered<Sim> + 'static>(
    load: u64,
    changes: &[Change],
    from: Bound<&[u8]>,
    direction: Direction,
) -> bool {
    let mut page = Page::default();
    page.expect(70);
    let read = |tree: &T| tree.page(from, direction, &mut page).unwrap();
    let Some((tree, has_waited)) = overtaken::<T>(load, |_| (), changes, read) else {
        return false;
    };
    let shown: Vec<_> = page.pairs.iter().map(|(key, word)| (number_of(key), word)).collect();
    let next = page.next(direction);
    let is_covered = |number: &u64| {
        let (key, beyond) = (number.to_be_bytes(), (from, Bound::Unbounded));
        let is_beyond = |range: (Bound<&[u8]>, Bound<&[u8]>)| match direction {
            Direction::Ascending => range.contains(&key[..]),
            Direction::Descending => (range.1, range.0).contains(&key[..]),
        };
        is_beyond(beyond) && !next.is_some_and(|next| is_beyond((next, Bound::Unbounded)))
    };
    let due = |pairs: &Pairs| -> Vec<(u64, u64)> {
        let covered = pairs.iter().filter(|(number, _)| is_covered(number));
        covered.map(|(number, word)| (*number, *word)).collect()
    };
    let (before, after) = (at_first(), changed(at_first(), changes));
    // If the other thread had to wait, it may have come amid.
    assert!(
        has_waited || shown == due(&before) || shown == due(&after),
        "{direction:?} from {from:?}, overtaken before load {load}: {shown:?}"
    );
    assert_eq!(page.misplaced(), 0);
    assert_eq!(tree.check(), SOUND);
    assert_eq!(pairs_of(&*tree), after);
    true
}

/// Makes changes of all kinds, before each of whose loads in turn another thread changes other keys
/// of the same nodes. Scans and lookups must find all of it afterwards, and did so before: an index
/// may have copies of words where scans find them.
pub fn changes_that_are_overtaken_are_seen<T: PersistentOrdered<Sim> + 'static>() {
    let own: Vec<Change> = [(48, Some(5)), (64, None), (65, Some(5)), (66, Some(5)), (67, Some(5))]
        .into_iter()
        .chain([(65, Some(6)), (80, Some(5)), (68, Some(5)), (69, Some(5)), (80, Some(6))])
        .collect();
    let others: Vec<Change> =
        [(32, Some(7)), (96, None), (97, Some(7)), (98, Some(7)), (112, Some(7))]
            .into_iter()
            .chain([(99, Some(7)), (100, Some(7)), (32, Some(8)), (101, Some(7)), (112, Some(8))])
            .collect();
    let due = changed(changed(at_first(), &own), &others);
    let loads = each_load(|load| {
        let prepare = |tree: &T| assert_eq!(pairs_of(tree), at_first());
        let operate = |tree: &T| change(tree, &own);
        let Some((tree, _)) = overtaken::<T>(load, prepare, &others, operate) else { return false };
        assert_eq!(pairs_of(&*tree), due, "overtaken before load {load}");
        for number in 0..120u64 {
            let found = tree.get(&number.to_be_bytes()).unwrap();
            assert_eq!(found, due.get(&number).copied(), "{number}, before load {load}");
        }
        assert_eq!(tree.check(), SOUND);
        true
    });
    assert!(loads > 50, "{loads} loads");
}
