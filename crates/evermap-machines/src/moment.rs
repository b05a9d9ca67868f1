//! At which moment, and at which step of it, the machine ends: `DIE=MOMENT:STEP`.
//!
//! A step is a call of the medium that changes something. They are counted for each moment, over
//! the whole run, and the program says how many it has counted: a line `STEPS MOMENT n`.

use std::fmt;
use std::io::Write;
use std::str::FromStr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// The steps that begin with the growth of a file: the table of its extents changes in them.
const STEPS_OF_GROWTH: u64 = 24;

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The file has no structure in it yet.
    Creation,
    /// From opening a file to the first answer.
    Opening,
    /// Everything is looked up, and so recovered.
    Recovery,
    /// What is not reachable becomes free.
    Sweep,
    /// The file becomes longer.
    Growth,
    /// Records are moved together, and maps that were dropped are cleared away.
    Compaction,
    /// Everything else.
    Use,
}

const ALL: [Moment; 7] = [
    Moment::Creation,
    Moment::Opening,
    Moment::Recovery,
    Moment::Sweep,
    Moment::Growth,
    Moment::Compaction,
    Moment::Use,
];

static CURRENT: AtomicUsize = AtomicUsize::new(Moment::Use as usize);
static COUNTS: [AtomicU64; ALL.len()] = [const { AtomicU64::new(0) }; ALL.len()];
/// Steps that still belong to a growth.
static GROWING: AtomicU64 = AtomicU64::new(0);
static END: LazyLock<Option<(Moment, u64)>> = LazyLock::new(end);

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}").to_lowercase())
    }
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let named = ALL.into_iter().find(|moment| moment.to_string() == name);
        named.ok_or_else(|| format!("there is no moment {name}"))
    }
}

/// Reads at which step the machine is to end.
fn end() -> Option<(Moment, u64)> {
    let text = std::env::var("DIE").ok()?;
    let (moment, step) = text.split_once(':').expect("DIE=MOMENT:STEP");
    Some((moment.parse().expect("a moment"), step.parse().expect("a number")))
}

/// Begins a moment, which lasts until the next one begins.
pub(crate) fn enter(moment: Moment) {
    let before = ALL[CURRENT.swap(moment as usize, Relaxed)];
    if before != moment && before != Moment::Use {
        println!("STEPS {before} {}", COUNTS[before as usize].load(Relaxed));
    }
}

/// The file is about to become longer.
pub(crate) fn grows() {
    if CURRENT.load(Relaxed) == Moment::Use as usize {
        GROWING.store(STEPS_OF_GROWTH, Relaxed);
    }
}

/// Counts a step that is about to be made, and ends the machine if it is the one.
#[inline]
pub(crate) fn step() {
    let mut moment = CURRENT.load(Relaxed);
    if moment == Moment::Use as usize {
        let left = GROWING.load(Relaxed);
        if left == 0 {
            return;
        }
        GROWING.store(left - 1, Relaxed);
        moment = Moment::Growth as usize;
    }
    let count = COUNTS[moment].fetch_add(1, Relaxed) + 1;
    if *END == Some((ALL[moment], count)) {
        die(ALL[moment], count);
    }
}

/// Ends the machine: nothing is written back, and no file system is told.
fn die(moment: Moment, step: u64) -> ! {
    println!("DIED {moment} {step}");
    let _ = std::io::stdout().flush();
    // Until the console has sent the line.
    std::thread::sleep(Duration::from_millis(50));
    let ended = std::fs::write("/proc/sysrq-trigger", "b");
    println!("WRONG the machine goes on: {ended:?}");
    std::process::exit(1)
}
