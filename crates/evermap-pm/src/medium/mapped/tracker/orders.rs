//! What is in the cut, in every order of the steps of a few threads: the code of
//! [`Mapped`](crate::medium::Mapped), [explored](crate::explore).

use std::collections::BTreeMap;

use super::Tracker;
use super::mistakes::{Mistake, PLANTED};
use super::tests::{Replica, word_of};
use crate::explore::{Event, Kind, Search};
use crate::medium::{Mapped, MappedOptions, Marks, Medium};
use crate::sim::rng::Rng;
use crate::sim::{Tier, tier};

/// A word: its page, and its place there.
type Place = (u64, u64);

/// What a thread does. Each store is of a value that no other one has.
#[derive(Clone, Copy, Debug)]
enum Act {
    Load(Place),
    Store(Place),
    Cas(Place),
    /// Stores to this word and the next one.
    Fill(Place),
    /// Discards the page of this word.
    Discard(Place),
}

/// What an instant is captured by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    View,
    Changes,
}

use Act::{Cas, Discard, Fill, Load, Store};

/// What threads do beside one that captures an instant.
#[derive(Debug)]
struct Plan {
    /// Words that have changed since the last instant, if stores are tracked before.
    changed: Vec<Place>,
    threads: Vec<Vec<Act>>,
    /// What the thread that captures does before and after.
    around: [Vec<Act>; 2],
    /// Unless it is empty, there is an instant before the one that is checked, and the thread that
    /// captures does this between them.
    between: Vec<Act>,
}

fn plan<const N: usize>(changed: &[Place], threads: [&[Act]; N]) -> Plan {
    Plan {
        changed: changed.to_vec(),
        threads: threads.iter().map(|acts| acts.to_vec()).collect(),
        around: [vec![], vec![]],
        between: vec![],
    }
}

/// The value of each word at the beginning.
const FIRST: u64 = 1;
const PAGES: u64 = 8;

enum Captured {
    View(Mapped),
    Changes(Replica),
}

impl Captured {
    fn word(&self, (page, word): Place) -> u64 {
        match self {
            Captured::View(view) => view.load(word_of(view, page, word)),
            Captured::Changes(replica) => replica.word(page, word),
        }
    }
}

/// The stores of a run, and what happens before each.
#[derive(Default)]
struct Stores {
    /// The number of the store of each value to each word.
    numbers: BTreeMap<(usize, u64), usize>,
    /// A set for each: all that happen before it, and itself.
    before: Vec<u64>,
    /// Those to each word, in the order in which they have reached memory.
    of_word: BTreeMap<usize, Vec<usize>>,
    /// What happens before the next step of each thread.
    known: BTreeMap<usize, u64>,
}

impl Stores {
    fn read(&mut self, thread: usize, word: usize, value: u64) {
        if let Some(&number) = self.numbers.get(&(word, value)) {
            *self.known.entry(thread).or_default() |= self.before[number];
        }
    }

    fn store(&mut self, thread: usize, word: usize, value: u64) {
        let number = self.before.len();
        assert!(number < 64 && self.numbers.insert((word, value), number).is_none());
        let known = self.known.entry(thread).or_default();
        // Words that are filled in together have no order: nothing refers to them yet.
        let fellow = self.numbers.get(&(word - 8, value.wrapping_sub(1)));
        let fellow = fellow.map_or(0, |fellow| 1 << fellow);
        self.before.push(*known & !fellow | 1 << number);
        *known |= 1 << number;
    }

    fn land(&mut self, word: usize, value: u64) {
        let number = self.numbers[&(word, value)];
        self.of_word.entry(word).or_default().push(number);
    }

    /// Takes what is data from the steps of a run.
    fn of(events: &[Event], words: &[usize]) -> Self {
        let mut stores = Stores::default();
        for event in events {
            let places = words.iter().copied().filter(|word| event.place().contains(word));
            for word in places {
                let (thread, written) = (event.thread, event.written);
                let is_word = event.place().len() == 8;
                match event.kind() {
                    Kind::Load if is_word => stores.read(thread, word, event.read),
                    Kind::Store => stores.store(thread, word, written),
                    Kind::Drain => stores.land(word, written),
                    Kind::Swap if event.read != written => {
                        if is_word {
                            stores.read(thread, word, event.read);
                        }
                        stores.store(thread, word, written);
                        stores.land(word, written);
                    }
                    _ => {}
                }
            }
        }
        stores
    }

    /// Returns the set of those that are in a cut.
    fn within(&self, cut: impl Fn(usize) -> u64) -> Result<u64, String> {
        let mut within = 0;
        for (&word, stores) in &self.of_word {
            let value = cut(word);
            if value == FIRST {
                continue;
            }
            let last = self.numbers.get(&(word, value));
            let last = last.and_then(|last| stores.iter().position(|store| store == last));
            let last = last.ok_or_else(|| format!("nobody has stored {value} to {word:#x}"))?;
            stores[..=last].iter().for_each(|store| within |= 1 << store);
        }
        Ok(within)
    }
}

impl Plan {
    fn words(&self) -> Vec<Place> {
        let acts = self.threads.iter().chain(&self.around).flatten().chain(&self.between);
        let mut words: Vec<Place> = acts
            .flat_map(|act| match *act {
                Load(place) | Store(place) | Cas(place) | Discard(place) => vec![place],
                Fill((page, word)) => {
                    vec![(page, word), (page + (word + 1) / 512, (word + 1) % 512)]
                }
            })
            .collect();
        words.sort_unstable();
        words.dedup();
        words
    }

    /// Tries the orders of `search`. Returns the first failure.
    fn explore(&self, by: By, mistake: Option<Mistake>, search: &mut Search) -> Result<(), String> {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let options = MappedOptions { create: true, capacity: 1 << 20, ..Default::default() };
        let mut medium = Mapped::open(directory.path().join("file"), &options).unwrap();
        medium.grow(PAGES * 4096).unwrap();
        while search.has_next() {
            self.run(&mut medium, by, mistake, search)
                .map_err(|what| format!("{mistake:?}, by {by:?}, run {}: {what}", search.runs()))?;
        }
        Ok(())
    }

    fn run(
        &self,
        medium: &mut Mapped,
        by: By,
        mistake: Option<Mistake>,
        search: &mut Search,
    ) -> Result<(), String> {
        medium.tracker = Tracker::default();
        let words = self.words();
        let medium = &*medium;
        let store = |&(page, word): &Place, value| medium.store(word_of(medium, page, word), value);
        let mut replica = Replica::default();
        if by != By::View {
            let marks = Marks::in_memory(medium.capacity()).map_err(|error| error.to_string())?;
            medium.record_changes(marks).map_err(|error| error.to_string())?;
        }
        words.iter().for_each(|place| store(place, FIRST));
        if by != By::View {
            replica.take(medium).unwrap();
        } else if !self.changed.is_empty() {
            medium.begin_tracking().unwrap();
        }
        self.changed.iter().for_each(|place| store(place, FIRST));
        let (results, events) = search.run(self.bodies(medium, by, mistake, replica))?;
        let mut captured = results.into_iter().flatten().next().expect("one captures");
        let address = |&(page, word): &Place| {
            std::ptr::from_ref(word_of(medium, page, word)).expose_provenance()
        };
        let places: BTreeMap<usize, Place> =
            words.iter().map(|place| (address(place), *place)).collect();
        let stores = Stores::of(&events, &places.keys().copied().collect::<Vec<_>>());
        let within = stores.within(|word| captured.word(places[&word]))?;
        self.check(&stores, within)?;
        if let Captured::Changes(replica) = &mut captured {
            replica.take(medium).unwrap();
            for &(page, word) in &words {
                let (shown, is) = (replica.word(page, word), word_of(medium, page, word));
                if shown != medium.load(is) {
                    return Err(format!("a change of {:?} was not shown", (page, word)));
                }
            }
        }
        Ok(())
    }

    /// Checks that a cut is consistent, and has what was done before it and nothing that was done
    /// after it.
    fn check(&self, stores: &Stores, within: u64) -> Result<(), String> {
        for (number, before) in stores.before.iter().enumerate() {
            if within >> number & 1 != 0 && before & !within != 0 {
                return Err(format!("store {number} is in the cut, and not what is before it"));
            }
        }
        let own = |acts: &[Act], first: u64| -> u64 {
            let values = first..first + 2 * acts.len() as u64;
            let numbers = stores.numbers.iter().filter(|((_, value), _)| values.contains(value));
            numbers.fold(0, |set, (_, number)| set | 1 << number)
        };
        if own(&self.around[0], BEFORE) & !within != 0 {
            return Err("what was stored before the instant is not in the cut".into());
        }
        match own(&self.around[1], AFTER) & within {
            0 => Ok(()),
            _ => Err("what was stored after the instant is in the cut".into()),
        }
    }

    fn bodies<'env>(
        &'env self,
        medium: &'env Mapped,
        by: By,
        mistake: Option<Mistake>,
        mut replica: Replica,
    ) -> Vec<Box<dyn FnOnce() -> Option<Captured> + 'env>> {
        let mut bodies: Vec<Box<dyn FnOnce() -> Option<Captured> + 'env>> = Vec::new();
        for (thread, acts) in self.threads.iter().enumerate() {
            bodies.push(Box::new(move || {
                PLANTED.set(mistake);
                perform(medium, acts, 1000 * (thread as u64 + 1));
                None
            }));
        }
        let ([before, after], between) = (&self.around, &self.between);
        bodies.push(Box::new(move || {
            PLANTED.set(mistake);
            perform(medium, before, BEFORE);
            let captured = match by {
                By::View => Captured::View(medium.snapshot().unwrap()),
                By::Changes => {
                    if !between.is_empty() {
                        replica.take(medium).unwrap();
                        perform(medium, between, BETWEEN);
                    }
                    replica.take(medium).unwrap();
                    Captured::Changes(replica)
                }
            };
            perform(medium, after, AFTER);
            Some(captured)
        }));
        bodies
    }
}

/// The first values that the capturing thread stores before and after the instant.
const BEFORE: u64 = 100;
const BETWEEN: u64 = 150;
const AFTER: u64 = 200;

/// Does what `acts` say. Each stores values of its own.
fn perform(medium: &Mapped, acts: &[Act], first: u64) {
    for (act, value) in acts.iter().zip((first..).step_by(2)) {
        let (Load((page, word))
        | Store((page, word))
        | Cas((page, word))
        | Fill((page, word))
        | Discard((page, word))) = *act;
        let cell = word_of(medium, page, word);
        match act {
            Load(_) => _ = medium.load(cell),
            Store(_) => medium.store(cell, value),
            Cas(_) => {
                let found = medium.load(cell);
                let _ = medium.cas(cell, found, value);
            }
            Fill(_) => {
                let cells = medium.slice(page * 4096 + word * 8, 2).unwrap();
                let bytes = [value.to_le_bytes(), (value + 1).to_le_bytes()];
                medium.write_bytes(cells, bytes.as_flattened());
            }
            Discard(_) => medium.discard(page * 4096..(page + 1) * 4096),
        }
    }
}

/// Words of three pages.
const A: Place = (1, 0);
const A_TOO: Place = (1, 9);
const B: Place = (2, 0);
const C: Place = (3, 0);

/// A store that may be late for one instant, and what depends on it before the next one.
fn late_for_the_first() -> Plan {
    Plan { between: vec![Load(A), Store(B)], ..plan(&[A], [&[Store(A)]]) }
}

/// Tries all orders of plans, and returns the number of runs.
fn explore_all(by: By, plans: impl IntoIterator<Item = Plan>) -> u64 {
    let runs = plans.into_iter().map(|plan| {
        let mut search = Search::all();
        // Late stores are waited for before the next instant: one alone has nothing to wait for.
        let alone = plan.between.is_empty().then_some(Mistake::LateNotAwaited);
        plan.explore(by, alone, &mut search).unwrap();
        println!("{} runs by {by:?}: {plan:?}", search.runs());
        search.runs()
    });
    runs.sum()
}

#[test]
fn every_order_gives_a_consistent_view() {
    let mut plans = vec![
        plan(&[], [&[Store(A), Store(B)]]),
        plan(&[A, B], [&[Store(A), Store(B)], &[Store(A_TOO)]]),
        plan(&[A], [&[Store(A)], &[Load(A), Store(B)]]),
        plan(&[], [&[Cas(A)], &[Cas(A)]]),
        plan(&[B], [&[Fill((1, 511)), Store(B)]]),
        plan(&[A], [&[Store(B), Discard(A)]]),
        Plan { around: [vec![Store(A)], vec![Store(B)]], ..plan(&[A], [&[Load(B), Store(A_TOO)]]) },
    ];
    if tier() == Tier::Full {
        plans.push(plan(&[A], [&[Store(B), Discard(A)], &[Store(A_TOO)]]));
        plans.push(plan(&[A, B], [&[Store(A), Store(B)], &[Store(A_TOO), Store(C)]]));
        plans.push(plan(&[], [&[Store(A), Store(B)], &[Load(B), Store(A_TOO)]]));
        plans.push(plan(&[A], [&[Store(A)], &[Load(A), Store(B)], &[Load(B), Store(C)]]));
    }
    println!("{} runs", explore_all(By::View, plans));
}

#[test]
fn every_order_gives_consistent_changes() {
    let mut plans = vec![
        plan(&[], [&[Store(A), Store(B)]]),
        plan(&[A, B], [&[Store(A), Store(B)]]),
        plan(&[A], [&[Cas(A)]]),
        plan(&[A], [&[Discard(A)]]),
        Plan { around: [vec![Store(A)], vec![Store(B)]], ..plan(&[A], [&[Store(A_TOO)]]) },
    ];
    if tier() == Tier::Full {
        plans.push(late_for_the_first());
        plans.push(plan(&[B], [&[Fill((1, 511))]]));
        plans.push(plan(&[A, B], [&[Store(A)], &[Store(B)]]));
        plans.push(plan(&[A], [&[Store(A)], &[Load(A), Store(A_TOO)]]));
        plans.push(plan(&[B], [&[Store(A), Discard(B)]]));
    }
    println!("{} runs", explore_all(By::Changes, plans));
}

/// Larger plans than all orders of which could be tried.
#[test]
fn orders_by_chance_give_consistent_cuts() {
    for seed in 0..tier().choose(60, 1000) {
        let mut random = Rng::new(seed);
        let mut acts = |count: u64| -> Vec<Act> {
            let acts = (0..count).map(|_| {
                let place = *random.pick(&[A, A_TOO, B, C]);
                match random.below(10) {
                    0..3 => Load(place),
                    3..7 => Store(place),
                    7 => Cas(place),
                    8 => Fill(place),
                    _ => Store((4, 0)),
                }
            });
            acts.collect()
        };
        let threads = vec![acts(7), acts(7), acts(7)];
        let mut around = [acts(2), acts(2)];
        if seed % 3 == 0 {
            around[1][0] = Discard((4, 0));
        }
        let between = if seed % 2 == 0 { acts(3) } else { vec![] };
        let plan = Plan { changed: vec![A, B], threads, around, between };
        for by in [By::View, By::Changes] {
            let mut rng = Rng::new(seed);
            let mut search = Search::random(20, move |limit| rng.below(limit));
            plan.explore(by, None, &mut search).unwrap_or_else(|what| panic!("{seed}: {what}"));
        }
    }
}

#[test]
fn mistakes_are_noticed() {
    let around = |acts: [&[Act]; 2]| acts.map(<[Act]>::to_vec);
    let two_and_one = || plan(&[A, B], [&[Store(A), Store(B)], &[Store(A_TOO)]]);
    let cases = [
        (Mistake::NoFence, By::View, two_and_one()),
        (Mistake::NoFence, By::Changes, plan(&[A], [&[Store(A)]])),
        (Mistake::NoWait, By::View, two_and_one()),
        (Mistake::RaisedLate, By::Changes, plan(&[A, B], [&[Store(A), Store(B)]])),
        (Mistake::ListedEarly, By::Changes, plan(&[B], [&[Store(A), Store(B)]])),
        (Mistake::MarkedEarly, By::View, plan(&[], [&[Store(A)], &[Store(B), Store(A_TOO)]])),
        (Mistake::MarkedEarly, By::Changes, plan(&[A], [&[Store(A)], &[Store(A_TOO)]])),
        (Mistake::LateUnmarked, By::Changes, plan(&[A], [&[Store(A)]])),
        (Mistake::LateNotAwaited, By::Changes, late_for_the_first()),
        (
            Mistake::NoSecondLook,
            By::Changes,
            Plan { around: around([&[Store(A)], &[]]), ..plan(&[A], [&[Store(A_TOO)]]) },
        ),
        (Mistake::CasUnmarked, By::View, plan(&[], [&[Store(A), Cas(B)]])),
        (Mistake::CasUnmarked, By::Changes, plan(&[], [&[Store(A), Cas(B)]])),
        (Mistake::FillUnmarked, By::View, plan(&[], [&[Store(A), Fill(B)]])),
        (Mistake::FillUnmarked, By::Changes, plan(&[], [&[Store(A), Fill(B)]])),
        (Mistake::DiscardUnmarked, By::View, plan(&[], [&[Store(A), Discard(B)]])),
        (Mistake::DiscardUnmarked, By::Changes, plan(&[], [&[Store(A), Discard(B)]])),
    ];
    for (mistake, by, plan) in cases {
        let mut search = Search::all();
        match plan.explore(by, Some(mistake), &mut search) {
            Err(what) => println!("{what}"),
            Ok(()) => panic!("{mistake:?} is not noticed by {by:?}, in {} runs", search.runs()),
        }
    }
}
