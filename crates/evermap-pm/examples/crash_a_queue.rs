//! A persistent queue with a missing fence, and how the simulator finds the mistake.
//!
//! ```text
//! word 0      number of items that were ever pushed   \ each on a line of its own
//! word 8      number of items that were ever popped   /
//! word 16..   the items, one per line, reused in turn
//! ```

use std::collections::VecDeque;

use evermap_pm::medium::Note;
use evermap_pm::sim::{Config, CrashPoint, Failure, Sim, Subject, campaign};
use evermap_pm::{Medium, PmU64};

/// Maximum number of items in the queue.
const CAPACITY: u64 = 8;
/// Number of words in a line.
const LINE: u64 = 8;

struct Queue<'m> {
    sim: &'m Sim,
    words: &'m [PmU64],
    /// Whether to make the mistake.
    omits_fence: bool,
}

impl<'m> Queue<'m> {
    fn new(sim: &'m Sim, omits_fence: bool) -> Result<Self, String> {
        sim.grow(4096).map_err(|error| error.to_string())?;
        let words = sim.slice(0, (2 + CAPACITY) * LINE).ok_or("too small")?;
        Ok(Queue { sim, words, omits_fence })
    }

    fn pushed(&self) -> &'m PmU64 {
        &self.words[0]
    }

    fn popped(&self) -> &'m PmU64 {
        &self.words[LINE as usize]
    }

    fn item(&self, number: u64) -> &'m PmU64 {
        &self.words[((2 + number % CAPACITY) * LINE) as usize]
    }

    /// Adds an item. Returns `false` if the queue is full.
    fn push(&self, item: u64) -> bool {
        let (m, pushed) = (self.sim, self.sim.load(self.pushed()));
        if pushed - m.load(self.popped()) == CAPACITY {
            return false;
        }
        m.store(self.item(pushed), item);
        m.flush(self.item(pushed));
        if !self.omits_fence {
            // The item is durable before the counter includes it.
            m.fence();
        }
        m.store(self.pushed(), pushed + 1);
        m.persist(self.pushed());
        true
    }

    /// Removes the oldest item.
    fn pop(&self) -> Option<u64> {
        let (m, popped) = (self.sim, self.sim.load(self.popped()));
        if popped == m.load(self.pushed()) {
            return None;
        }
        let item = m.load(self.item(popped));
        m.store(self.popped(), popped + 1);
        m.persist(self.popped());
        Some(item)
    }

    fn items(&self) -> Vec<u64> {
        let m = self.sim;
        (m.load(self.popped())..m.load(self.pushed())).map(|at| m.load(self.item(at))).collect()
    }
}

/// The contents of the queue before each operation, and after the last one.
type States = Vec<Vec<u64>>;

struct Test {
    omits_fence: bool,
}

impl Test {
    /// Pushes the numbers, and pops after every third.
    fn execute(&self, sim: &Sim, calls: &[u64]) -> Result<States, String> {
        let queue = Queue::new(sim, self.omits_fence)?;
        let mut model = VecDeque::from(queue.items());
        let mut states = vec![model.iter().copied().collect()];
        let mut operation = |change: &mut dyn FnMut()| {
            let number = states.len() as u64 - 1;
            sim.note(Note::Begin(number));
            change();
            sim.note(Note::End(number));
            states.push(queue.items());
        };
        for &item in calls {
            operation(&mut || {
                if queue.push(item) {
                    model.push_back(item);
                }
            });
            if item % 3 == 0 {
                operation(&mut || assert_eq!(queue.pop(), model.pop_front()));
            }
        }
        Ok(states)
    }
}

impl Subject for Test {
    type Call = u64;
    type History = States;
    type Live = Sim;

    fn workload(&self, seed: u64) -> Vec<u64> {
        (1..20).map(|item| item + 100 * seed).collect()
    }

    fn run(&self, sim: &Sim, calls: &[u64]) -> Result<States, Failure> {
        Ok(self.execute(sim, calls)?)
    }

    fn recover(&self, sim: &Sim, states: &States, point: &CrashPoint) -> Result<Sim, Failure> {
        let found = Queue::new(sim, self.omits_fence)?.items();
        // The state after the last operation that was acknowledged, or after the one in flight.
        let allowed = &states[point.ended() as usize..=point.begun() as usize];
        if !allowed.contains(&found) {
            return Err(format!("holds {found:?}, must be one of {allowed:?}").into());
        }
        Ok(sim.clone())
    }

    fn probe(&self, sim: Sim, _seed: u64) -> Result<States, Failure> {
        Ok(self.execute(&sim, &[7, 9])?)
    }
}

fn main() {
    let config = Config { capacity: 4096, shrink: true, ..Config::default() };
    let report = campaign::run(&Test { omits_fence: true }, &config, 0..1);
    println!("Without the fence:\n\n{report}");
    assert!(!report.is_clean(), "the mistake was not found");
    let report = campaign::run(&Test { omits_fence: false }, &config, 0..4);
    println!("With the fence:\n\n{report}");
    report.assert_clean();
}
