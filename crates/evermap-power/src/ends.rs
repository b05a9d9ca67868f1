//! When the process, or the machine, ends: `DIE=MOMENT:COUNT`.
//!
//! A thread watches what a moment leaves behind, and ends everything when it has counted enough of
//! it. It polls, so the end comes somewhere in what follows the chosen step. With `END=machine` the
//! machine is reset, and nothing is written back; otherwise the process is killed.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use evermap::Evermap;
use rustix::process::{Signal, getpid, kill_process};

use crate::result::Result;

/// Time between two looks at what is watched.
const ROUND: Duration = Duration::from_micros(20);

/// What is being done, and what is counted then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Commits of the log.
    Commit,
    /// Changes of the files of the image.
    Checkpoint,
    /// Changes of the working copy that is made of image and log.
    Rebuild,
    /// Rounds of 20 microseconds since closing began.
    Close,
    /// Changes of the file that a restored store is made in.
    Restore,
}

/// How everything ends, if it does not end by itself.
#[derive(Debug)]
pub(crate) struct End {
    moment: Moment,
    count: u64,
    /// What resets the machine.
    trigger: Option<File>,
}

impl End {
    /// Reads from the environment how everything is to end.
    pub(crate) fn from_environment() -> Result<Option<Self>> {
        let Ok(text) = std::env::var("DIE") else { return Ok(None) };
        let (moment, count) = text.split_once(':').ok_or("DIE=MOMENT:COUNT")?;
        let moment = match moment {
            "commit" => Moment::Commit,
            "checkpoint" => Moment::Checkpoint,
            "rebuild" => Moment::Rebuild,
            "close" => Moment::Close,
            "restore" => Moment::Restore,
            _ => return Err(format!("there is no moment {moment}").into()),
        };
        let trigger = match std::env::var("END").as_deref() {
            Ok("machine") => Some(File::options().write(true).open("/proc/sysrq-trigger")?),
            _ => None,
        };
        Ok(Some(End { moment, count: count.parse()?, trigger }))
    }

    pub(crate) fn is_in(&self, moment: Moment) -> bool {
        self.moment == moment
    }

    /// Ends everything when `count` returns enough.
    fn when(self, mut count: impl FnMut() -> u64 + Send + 'static) {
        std::thread::spawn(move || {
            while count() < self.count {
                std::thread::sleep(ROUND);
            }
            self.now();
        });
    }

    /// Ends everything in the commit after the chosen one.
    pub(crate) fn in_commit(self, db: &Evermap) {
        let db = db.clone();
        let commits = move || db.log_stat().map_or(0, |stat| stat.commits);
        let first = commits();
        self.when(move || commits() - first);
    }

    /// Ends everything when the files have changed as often as was chosen.
    pub(crate) fn when_changed(self, files: Vec<PathBuf>) {
        let mut seen = states(&files);
        let mut changes = 0;
        self.when(move || {
            let now = states(&files);
            changes += u64::from(now != seen);
            seen = now;
            changes
        });
    }

    /// Ends everything a time after now.
    pub(crate) fn after_rounds(self) {
        let began = Instant::now();
        self.when(move || (began.elapsed().as_micros() / ROUND.as_micros()) as u64);
    }

    fn now(&self) -> ! {
        if let Some(mut trigger) = self.trigger.as_ref() {
            let ended = trigger.write_all(b"b");
            println!("WRONG the machine goes on: {ended:?}");
        }
        let ended = kill_process(getpid(), Signal::KILL);
        unreachable!("{ended:?}")
    }
}

/// Returns what tells that a file has changed.
fn states(files: &[PathBuf]) -> Vec<Option<(u64, SystemTime)>> {
    let state = |file: &PathBuf| {
        let metadata = std::fs::metadata(file).ok()?;
        Some((metadata.len(), metadata.modified().ok()?))
    };
    files.iter().map(state).collect()
}
