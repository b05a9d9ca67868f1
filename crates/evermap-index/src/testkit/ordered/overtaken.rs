//! Pages that other threads change the tree beside: at each moment between two loads.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use evermap_pm::sim::{Access, Observer, Sim};

use super::trees::{SOUND, memory, tree_in};
use crate::ordered::{Direction, Page, PersistentOrdered};

/// The time after which a change that waits for the reader is left to itself.
const PATIENCE: Duration = Duration::from_millis(300);

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

/// Returns what the tree has at first.
fn before() -> Pairs {
    (0..120).map(|number| (number * 16, 1)).collect()
}

/// Changes words, removes keys, and adds so many that nodes are split.
fn overtake(tree: &dyn crate::OrderedIndex, pairs: &mut Pairs) {
    for number in (0..120u64).map(|number| number * 16) {
        let key = number.to_be_bytes();
        if number % 7 == 0 || (800..1000).contains(&number) {
            assert!(tree.remove(&key).unwrap().removed());
            pairs.remove(&number);
        } else {
            assert!(tree.update(&key, 2).unwrap().changed());
            pairs.insert(number, 2);
        }
    }
    for number in (0..1920u64).filter(|number| number % 16 != 0 && number % 9 == 0) {
        assert!(tree.insert(&number.to_be_bytes(), 3).unwrap().inserted());
        pairs.insert(number, 3);
    }
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
    for direction in [Direction::Ascending, Direction::Descending] {
        for bound in &bounds {
            let mut load = 1;
            while overtaken::<T>(load, bound.as_ref().map(Vec::as_slice), direction) {
                // Every load at first; there may be some thousands.
                load += 1 + load / 40;
            }
            assert!(load > 20, "{direction:?} from {bound:?}: {load} loads");
        }
    }
}

/// Does so before one load. Returns `false` if there were fewer.
fn overtaken<T: PersistentOrdered<Sim> + 'static>(
    load: u64,
    from: Bound<&[u8]>,
    direction: Direction,
) -> bool {
    let overtakes = Arc::new(Overtakes::default());
    let medium = memory().unwrap().observed_by(overtakes.clone());
    let tree: Arc<T> = Arc::new(tree_in(medium).unwrap());
    let before = before();
    for (number, word) in &before {
        assert!(tree.insert(&number.to_be_bytes(), *word).unwrap().inserted());
    }
    let after = Arc::new(OnceLock::new());
    let (other, result, first) = (Arc::downgrade(&tree), after.clone(), before.clone());
    let observer = Arc::downgrade(&overtakes);
    let act = move || {
        let tree = other.upgrade().expect("it is in use");
        let (mut pairs, result) = (first.clone(), result.clone());
        observer.upgrade().expect("it is in use").overtake(move || {
            overtake(&*tree, &mut pairs);
            assert!(result.set(pairs).is_ok());
        });
    };
    assert!(overtakes.act.set(Box::new(act)).is_ok());
    overtakes.loads.store(load, SeqCst);
    let mut page = Page::default();
    page.expect(70);
    tree.page(from, direction, &mut page).unwrap();
    if !overtakes.acted.load(SeqCst) {
        return false;
    }
    let waits = overtakes.waits.lock().unwrap().take();
    let was_amid = waits.map(|thread| thread.join().unwrap()).is_some();
    let number = |key: &[u8]| u64::from_be_bytes(key.try_into().expect("a key of eight bytes"));
    let shown: Vec<_> = page.pairs.iter().map(|(key, word)| (number(key), word)).collect();
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
    let after = after.get().expect("the tree was changed");
    assert!(
        was_amid || shown == due(&before) || shown == due(after),
        "{direction:?} from {from:?}, overtaken before load {load}: {shown:?}"
    );
    assert_eq!(page.misplaced(), 0);
    assert_eq!(tree.check(), SOUND);
    true
}
