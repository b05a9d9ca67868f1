//! Schedules combined with crashes: a second thread runs while a writer is between a store and its
//! fence.
//!
//! That something is visible too early is only noticed if a thread sees it, acts on it and
//! completes an operation before the crash. So the writer pauses before each of its flushes and
//! fences until the other thread has completed an operation (or waits for the writer itself). The
//! recording is then crashed everywhere, and what remains must agree with every result that was
//! returned.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use evermap_index::testkit::tier;
use evermap_index::{Change, Clht, Error, Index, Persistent};
use evermap_pm::medium::LINE;
use evermap_pm::region::{Identity, OnSuspect, Region};
use evermap_pm::sim::oracle::{MapHistory, MapOp};
use evermap_pm::sim::rng::Rng;
use evermap_pm::sim::{self, CrashPoint, Failure, ImageConfig, Sim, Subject};
use evermap_pm::{Medium, Pool};

use super::watched::{Access, Watch};
use super::{ROOT, tiny};

/// How long the writer waits for the other thread, which may be waiting for the writer.
const PATIENCE: Duration = Duration::from_micros(300);

thread_local! {
    /// Whether the calling thread is the writer.
    static WRITES: Cell<bool> = const { Cell::new(false) };
    /// Whether the last thing it stored is the word that names the table.
    static PUBLISHES: Cell<bool> = const { Cell::new(false) };
}

/// Passes turns from the writer to the other thread.
#[derive(Default)]
struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    given: u64,
    used: u64,
    over: bool,
}

impl Turns {
    /// Lets the other thread act once, unless its previous operation is still running.
    fn give(&self) {
        let idle = |state| {
            self.changed
                .wait_timeout_while(state, PATIENCE, |state: &mut State| state.used < state.given)
                .unwrap()
        };
        let (mut state, still_busy) = idle(self.state.lock().unwrap());
        if !still_busy.timed_out() {
            state.given += 1;
            self.changed.notify_all();
            drop(idle(state));
        }
    }

    /// Waits for the next turn. Returns `false` if there will be none.
    fn wait(&self) -> bool {
        let state = self.state.lock().unwrap();
        let state = self
            .changed
            .wait_while(state, |state| state.used == state.given && !state.over)
            .unwrap();
        state.used < state.given
    }

    fn done(&self) {
        self.state.lock().unwrap().used += 1;
        self.changed.notify_all();
    }
}

/// Ends the turns, even if the writer panics.
struct End<'a>(&'a Turns);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.state.lock().unwrap().over = true;
        self.0.changed.notify_all();
    }
}

/// What the other thread does.
#[derive(Clone, Copy)]
enum Other {
    Rests,
    Reads,
    Writes,
}

struct Gaps {
    universe: u64,
    ops: u64,
    other: Other,
    /// Whether the writer is making the table grow.
    grows: AtomicBool,
}

type Table = Clht<u64, Sim>;

fn text(error: Error) -> String {
    error.to_string()
}

impl Gaps {
    fn new(universe: u64, ops: u64, other: Other) -> Self {
        Gaps { universe, ops, other, grows: AtomicBool::new(true) }
    }

    /// The other thread acts in one of this number of gaps, and in all gaps while a new table is
    /// published. A writer that acts while the table is replaced waits until that is complete, and
    /// would miss these.
    fn rarely(&self) -> u64 {
        if matches!(self.other, Other::Writes) { 24 } else { 1 }
    }

    fn random_op(rng: &mut Rng, inserts: u64) -> MapOp {
        let word = rng.draw() | 1;
        match rng.below(100) {
            n if n < inserts => MapOp::Upsert(word),
            n if n < 90 => MapOp::Remove,
            _ => MapOp::Update(word),
        }
    }

    fn write(&self, index: &Table, history: &MapHistory<u64>, rng: &mut Rng) -> Result<(), String> {
        WRITES.set(true);
        for at in 0..self.ops {
            // The table grows, and then everything is removed.
            let phase = (at % (3 * self.universe)).checked_sub(2 * self.universe);
            self.grows.store(phase.is_none(), Relaxed);
            match phase {
                None => step(index, history, rng.below(self.universe), Self::random_op(rng, 80))?,
                Some(key) => step(index, history, key, MapOp::Remove)?,
            }
        }
        WRITES.set(false);
        Ok(())
    }

    fn act(&self, index: &Table, history: &MapHistory<u64>, rng: &mut Rng) -> Result<(), String> {
        let mut key = || rng.below(self.universe);
        match self.other {
            Other::Rests => Ok(()),
            Other::Reads => (0..4).try_for_each(|_| step(index, history, key(), MapOp::Get)),
            Other::Writes => {
                let inserts = if self.grows.load(Relaxed) { 60 } else { 0 };
                step(index, history, key(), Self::random_op(rng, inserts))
            }
        }
    }
}

fn step<M: Medium>(
    index: &Clht<u64, M>,
    history: &MapHistory<u64>,
    key: u64,
    op: MapOp,
) -> Result<(), String> {
    let guard = index.pool().pin();
    let number = history.begin(index.pool().medium(), key, op);
    let change = match op {
        MapOp::Upsert(word) => index.upsert(key, word, &guard),
        MapOp::Update(word) => index.update(key, word, &guard),
        MapOp::Remove => index.remove(key, &guard),
        _ => index.get(key, &guard).map(|old| Change { old, new: old }),
    };
    history.end(index.pool().medium(), number, change.map_err(text)?.old);
    Ok(())
}

impl Subject for Gaps {
    /// A seed, from which the whole workload follows: it cannot be divided.
    type Call = u64;
    type History = MapHistory<u64>;
    type Live = Option<Clht<u64, Sim>>;

    fn workload(&self, seed: u64) -> Vec<u64> {
        vec![seed]
    }

    fn run(&self, sim: &Sim, calls: &[u64]) -> Result<MapHistory<u64>, Failure> {
        let seed = calls[0];
        let history = MapHistory::new([]);
        let watch = Arc::new(Watch::default());
        let index: Table = tiny(sim.clone().observed_by(watch.clone()));
        // Crashes of the creation are covered by another test.
        sim.checkpoint();
        let turns = Arc::new(Turns::default());
        let (giver, root) = (turns.clone(), sim.load(index.pool().root(ROOT)));
        let (random, rarely) = (Mutex::new(Rng::new(seed)), self.rarely());
        watch.begin(move |access| match access {
            _ if !WRITES.get() => {}
            Access::Load => {}
            Access::Store(offset) => PUBLISHES.set(offset / LINE == root / LINE),
            Access::Flush | Access::Fence => {
                if PUBLISHES.get() || random.lock().unwrap().one_in(rarely) {
                    giver.give();
                }
            }
        });
        let both = std::thread::scope(|threads| {
            let other = threads.spawn(|| {
                let rng = &mut Rng::new(!seed);
                while turns.wait() {
                    let done = self.act(&index, &history, rng);
                    turns.done();
                    done?;
                }
                Ok(())
            });
            let end = End(&turns);
            let wrote = self.write(&index, &history, &mut Rng::new(seed));
            drop(end);
            wrote.and(other.join().map_err(|_| "the other thread panicked")?)
        });
        watch.end();
        let stats = index.stats(&index.pool().pin()).map_err(text)?;
        assert!(stats.splits > 0 && stats.merges > 0, "{stats:?}");
        both?;
        Ok(history)
    }

    fn recover(
        &self,
        sim: &Sim,
        history: &MapHistory<u64>,
        point: &CrashPoint,
    ) -> Result<Self::Live, Failure> {
        if Region::is_blank(sim) {
            return Err("the region is gone".into());
        }
        let (pool, _) =
            Pool::open(sim.clone(), Identity::default(), OnSuspect::Refuse).map_err(text)?;
        let index = Clht::open(pool.clone(), pool.root(ROOT)).map_err(text)?;
        for key in 0..self.universe {
            let found = index.get(key, &index.pool().pin()).map_err(text)?;
            history.check(&key, point, found)?;
        }
        Ok(Some(index))
    }

    fn probe(&self, live: Self::Live, _seed: u64) -> Result<MapHistory<u64>, Failure> {
        let problems = live.map_or(Vec::new(), |index| index.check());
        if problems.is_empty() { Ok(MapHistory::new([])) } else { Err(problems.join("; ").into()) }
    }

    fn op_name(&self, history: &MapHistory<u64>, op: u64) -> String {
        history.name(op)
    }
}

fn campaign(subject: &Gaps, depth: usize) {
    let config = sim::Config {
        capacity: 128 << 10,
        images: ImageConfig { per_point: 16, ..ImageConfig::default() },
        nested: sim::Nested { depth, ..sim::Config::default().nested },
        max_images: tier().choose(3000, 8000),
        ..sim::Config::default()
    };
    let report = sim::campaign::run(subject, &config, 0..4);
    println!("{report}");
    report.assert_clean();
    assert!(report.images > config.max_images / 2);
}

/// The workloads below without another thread, so that recoveries can be crashed too. The workloads
/// of the crash campaigns never make the table shrink.
#[test]
fn growing_and_shrinking_alone() {
    campaign(&Gaps::new(30, 270, Other::Rests), 1);
}

/// PC-5: no lookup returns what a crash can lose.
#[test]
fn pc5_readers_see_only_what_is_durable() {
    campaign(&Gaps::new(24, 216, Other::Reads), 0);
}

/// PC-2: no thread relies on what a crash can lose, in particular not on a new table.
#[test]
fn pc2_writers_build_only_on_what_is_durable() {
    campaign(&Gaps::new(40, 240, Other::Writes), 0);
}
