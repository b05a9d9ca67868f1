//! A walk that is interrupted where schedules of threads seldom interrupt it.

use std::sync::{Arc, Mutex};

use evermap_index::testkit::Plain;
use evermap_index::{Index, Persistent};
use evermap_pm::Medium;
use evermap_pm::sim::{Access, Observer, Sim};

use super::super::group::Stored;
use super::super::layout::GROUP_WORD;
use super::super::place::{Division, State};
use super::super::table::Table;
use super::super::{Config, Pairs, Tiny, TinySizes};
use super::pool;

type TinyTable = Table<Pairs<Plain>, Sim, TinySizes>;

const DIVISION: Division = TinyTable::DIVISION;

/// What is done before the next load of a word.
type Interruption = (u64, Box<dyn FnOnce() + Send>);

#[derive(Default)]
struct Interrupts(Mutex<Option<Interruption>>);

impl Interrupts {
    fn before_load_of(&self, offset: u64, work: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap() = Some((offset, Box::new(work)));
    }
}

impl Observer for Interrupts {
    fn observe(&self, access: Access) {
        let Access::Load(offset) = access else { return };
        let due = self.0.lock().unwrap().take_if(|next| next.0 == offset);
        if let Some((_, work)) = due {
            work();
        }
    }
}

/// A key of the upper half of the last set that a round divides, whose last piece moves it from one
/// group of that half to another.
fn key_of_the_last_piece(divided: State) -> (u64, [u64; 2]) {
    let step = divided.retreated(DIVISION).unwrap();
    let (old, part) = step.next_part(DIVISION);
    let is_moved = |&hash: &u64| {
        let groups = (step.old_group_of(hash, DIVISION), divided.group_of(hash, DIVISION));
        DIVISION.part(hash) == part && groups == (old, step.target())
    };
    let mut hashes = (1u64..).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (hashes.find(is_moved).unwrap(), [old, step.target()])
}

/// The division of all sets is taken back and made again while a page of the upper half of one of
/// them is read. The depth is the same before and after.
#[test]
fn a_walk_notices_that_a_division_was_taken_back_meanwhile() {
    let interrupts = Arc::new(Interrupts::default());
    let medium = Sim::in_memory(1 << 20).unwrap().observed_by(interrupts.clone());
    let pool = pool(medium, 1);
    let config = Config { initial_depth: 0 };
    let index = Tiny::<Plain, _>::create(pool.clone(), pool.root(0), config).unwrap();
    let index = Arc::new(index);
    while index.table.arrays.state().depth == 0 {
        index.table.advance(1, &pool.pin()).unwrap();
    }
    let (key, [old, new]) = key_of_the_last_piece(index.table.arrays.state());
    index.insert(key, 7, &pool.pin()).unwrap();

    let lock_of = |group| {
        let group = index.table.arrays.group(group).unwrap();
        pool.medium().offset_of(&group.words[GROUP_WORD])
    };
    let (locks, parts) = ([old, new].map(lock_of), (pool.clone(), index.clone()));
    let interrupted = interrupts.clone();
    interrupts.before_load_of(locks[0], move || {
        let (pool, index) = parts;
        index.table.retreat(&pool.pin()).unwrap();
        interrupted.before_load_of(locks[1], move || {
            index.table.advance(1, &pool.pin()).unwrap();
        });
    });

    let parts = TinyTable::WALK.parts;
    let rank = TinyTable::WALK.part(key) << (64 - parts) | key.reverse_bits() >> parts;
    let load_key = |stored: &Stored<'_>| Ok(pool.medium().load(&stored.payload[0]));
    let (read, page, _) = index.table.page(&(rank..=u64::MAX), load_key);
    read.unwrap();
    assert_eq!(page.records, [key]);
    assert!(interrupts.0.lock().unwrap().is_none(), "the walk was not interrupted");
}
