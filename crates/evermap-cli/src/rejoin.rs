//! What becomes of the items of a file when a server takes it up again.
//!
//! Three questions are decided before the first client is served: whether the contents can be
//! trusted ([`RejoinArguments::open`]), whether the server was away for so long that its items may
//! be stale, because it has missed deletes and overwrites ([`History::begin`]), and with which
//! counters its statistics begin ([`History::counters`]).

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evermap::{Error, Evermap, Options};
use evermap_server::{Cumulative, Namespaces, Server};

use crate::counters::{Found, Keeper, State};
use crate::failure::{Failure, warn};
use crate::open::OnSuspect;

/// What a server does with a file that holds items already.
#[derive(Clone, Copy, clap::Args)]
pub(crate) struct RejoinArguments {
    /// What to do with the items of the file, which may be stale if clients have deleted or changed
    /// them on other servers while this one was away: `keep` them, `flush` them, or
    /// `flush-after=SECONDS`: flush them if it was away for longer than that, or if that is not
    /// known
    #[arg(long, value_name = "WHAT", default_value_t = Rejoin::Keep)]
    rejoin: Rejoin,
    /// What to do with a store whose contents cannot be trusted: because the machine was restarted
    /// or the file was copied while the store was open, or because the file was truncated or is
    /// damaged. A file that is not a store is never overwritten
    #[arg(long, value_enum, default_value_t = OnSuspect::Discard, value_name = "WHAT")]
    on_suspect: OnSuspect,
}

/// The policy for items that may be stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rejoin {
    Keep,
    Flush,
    /// Flushes if the server was away for more than this number of seconds.
    FlushAfter(u64),
}

impl fmt::Display for Rejoin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejoin::Keep => f.write_str("keep"),
            Rejoin::Flush => f.write_str("flush"),
            Rejoin::FlushAfter(seconds) => write!(f, "flush-after={seconds}"),
        }
    }
}

impl FromStr for Rejoin {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let seconds = || text.strip_prefix("flush-after=")?.parse().ok();
        match text {
            "keep" => Ok(Rejoin::Keep),
            "flush" => Ok(Rejoin::Flush),
            _ => seconds()
                .map(Rejoin::FlushAfter)
                .ok_or("must be keep, flush, or flush-after=SECONDS, for example flush-after=60"),
        }
    }
}

/// For how long no server has served a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Away {
    /// The store is new.
    Never,
    Seconds(u64),
    Unknown,
}

impl Away {
    /// Returns the time between the last sign of life and now. It is not known if the clock shows
    /// an earlier time than it did then.
    fn between(alive: u64, now: u64) -> Self {
        now.checked_sub(alive).map_or(Away::Unknown, Away::Seconds)
    }
}

impl fmt::Display for Away {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Away::Never => f.write_str("0"),
            Away::Seconds(seconds) => seconds.fmt(f),
            Away::Unknown => f.write_str("unknown"),
        }
    }
}

impl Rejoin {
    /// Returns whether to flush.
    fn flushes(self, away: Away) -> bool {
        match (self, away) {
            (Rejoin::Keep, _) | (_, Away::Never) => false,
            (Rejoin::Flush, _) | (Rejoin::FlushAfter(_), Away::Unknown) => true,
            (Rejoin::FlushAfter(limit), Away::Seconds(seconds)) => seconds > limit,
        }
    }

    /// Returns a sentence about the decision and its reason, or `None` if there was nothing to
    /// decide.
    fn verdict(self, away: Away) -> Option<String> {
        let done = if self.flushes(away) { "flushed" } else { "kept" };
        match (self, away) {
            (Rejoin::Keep, _) | (_, Away::Never) => None,
            (Rejoin::Flush, _) => {
                Some(format!("all items are flushed, because of --rejoin {self}"))
            }
            (Rejoin::FlushAfter(_), Away::Unknown) => Some(format!(
                "all items are flushed, because of --rejoin {self}: for how long no server was \
                 running is not known"
            )),
            (Rejoin::FlushAfter(_), Away::Seconds(seconds)) => Some(format!(
                "all items are {done}, because of --rejoin {self}: no server was running for \
                 {seconds} s"
            )),
        }
    }
}

impl Default for RejoinArguments {
    fn default() -> Self {
        RejoinArguments { rejoin: Rejoin::Keep, on_suspect: OnSuspect::Discard }
    }
}

impl RejoinArguments {
    /// Opens the store at `path`, or creates it. With `--on-suspect discard`, a store that cannot
    /// be trusted is emptied, and standard error says why.
    pub(crate) fn open(&self, path: &Path, options: Options) -> Result<Evermap, Failure> {
        let chosen = options.clone().on_suspect(self.on_suspect.setting());
        // Refusing finds out whether there is something to discard, and why.
        let evidence = match self.on_suspect {
            OnSuspect::Discard => match Evermap::open(path, options) {
                Err(Error::Storage(error)) if let Some(evidence) = error.evidence() => evidence,
                opened => return Ok(opened?),
            },
            OnSuspect::Refuse | OnSuspect::Salvage => return Ok(Evermap::open(path, chosen)?),
        };
        let db = Evermap::open(path, chosen)?;
        warn(format_args!(
            "{}: starting empty, because the old contents cannot be trusted: {evidence}. To keep \
             what can be verified in such a case, use --on-suspect salvage",
            path.display()
        ));
        Ok(db)
    }

    /// Begins the next chapter in the history of a store, before any client is served: applies
    /// `--rejoin`, and leaves a sign of life. `took` is the time that opening the store has taken.
    pub(crate) fn begin(&self, db: &Evermap, took: Duration) -> Result<History, Failure> {
        History::begin(db, self.rejoin, took, unix_seconds())
    }
}

/// A store across the servers that serve it one after the other.
pub(crate) struct History {
    db: Evermap,
    /// `None` if the store has no file, or the file has no place for the record.
    keeper: Option<Keeper>,
    state: State,
    rejoin: Rejoin,
    away: Away,
    took: Duration,
    /// Whether the number of recovered records was reported.
    is_counted: bool,
}

impl History {
    fn begin(db: &Evermap, rejoin: Rejoin, took: Duration, now: u64) -> Result<Self, Failure> {
        let stat = db.stat();
        let (keeper, found) = match &stat.path {
            Some(_) => Keeper::open(db),
            None => (None, Found::New),
        };
        let path = stat.path.unwrap_or_default();
        let path = path.display();
        let (earlier, away) = match found {
            Found::New => (State { created: now, ..State::default() }, Away::Never),
            Found::State(state) => {
                let away = Away::between(state.alive, now);
                (state, away)
            }
            Found::Nothing(why) => {
                warn(format_args!("{path}: the counters in `stats` begin at 0: {why}"));
                (State { created: now, ..State::default() }, Away::Unknown)
            }
        };
        if let Some(verdict) = rejoin.verdict(away) {
            if rejoin.flushes(away) {
                Namespaces::clear_all(db)?;
            }
            warn(format_args!("{path}: {verdict}"));
        }
        let state = State { generation: stat.generation, ..earlier };
        let mut history =
            History { db: db.clone(), keeper, state, rejoin, away, took, is_counted: false };
        // Only after the flush: a server that is killed before it is complete would otherwise
        // appear to have been away only since now. And before the first client: if this one is
        // killed within a second, its successor must not flush what clients have stored here.
        history.write(now);
        Ok(history)
    }

    /// Returns the counters of earlier servers.
    pub(crate) fn counters(&self) -> Cumulative {
        self.state.counters.clone()
    }

    /// Adds what is known at the start to `stats`.
    pub(crate) fn announce(&mut self, server: &Server) {
        let stat = self.db.stat();
        let opened = match (stat.generation, stat.clean_open, stat.suspect) {
            (..=1, ..) => "created",
            (_, true, _) => "clean",
            (_, false, false) => "recovered",
            (_, false, true) => "salvaged",
        };
        server.set_stat("evermap_opened", opened);
        server.set_stat("evermap_open_ms", format!("{:.1}", self.took.as_secs_f64() * 1e3));
        server.set_stat("evermap_rejoin", self.rejoin);
        server.set_stat("evermap_away_seconds", self.away);
        server.set_stat("evermap_flushed_at_start", u8::from(self.rejoin.flushes(self.away)));
        self.show(server, unix_seconds());
    }

    /// Leaves a sign of life and the counters. To be called about once a second.
    pub(crate) fn continue_with(&mut self, server: &Server) {
        let now = unix_seconds();
        self.show(server, now);
        self.state.counters = server.cumulative();
        self.write(now);
    }

    /// Leaves the final counters of a server that has stopped.
    pub(crate) fn end(mut self, server: &Server) {
        self.state.counters = server.cumulative();
        self.write(unix_seconds());
    }

    /// Updates what changes in `stats`.
    fn show(&mut self, server: &Server, now: u64) {
        server.set_stat("evermap_age", now.saturating_sub(self.state.created));
        if !self.is_counted
            && let Some(records) = self.db.stat().records_at_open
        {
            server.set_stat("evermap_recovered_records", records);
            self.is_counted = true;
        }
    }

    fn write(&mut self, now: u64) {
        self.state.alive = now;
        if let Some(keeper) = &mut self.keeper {
            keeper.write(&self.state);
        }
    }
}

/// Returns the current time in seconds since 1970, by the wall clock: that of the next process is
/// compared with it.
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_parsed_as_they_are_shown() {
        for policy in [Rejoin::Keep, Rejoin::Flush, Rejoin::FlushAfter(0), Rejoin::FlushAfter(60)] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        for bad in ["", "Keep", "flush-after", "flush-after=", "flush-after=-1", "flush-after=1m"] {
            assert!(bad.parse::<Rejoin>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_server_that_was_away_for_longer_than_allowed_flushes() {
        let after = Rejoin::FlushAfter(60);
        for (policy, away, flushes) in [
            (Rejoin::Keep, Away::Seconds(1_000_000), false),
            (Rejoin::Keep, Away::Unknown, false),
            (Rejoin::Flush, Away::Seconds(0), true),
            (Rejoin::Flush, Away::Unknown, true),
            (Rejoin::Flush, Away::Never, false),
            (after, Away::Seconds(60), false),
            (after, Away::Seconds(61), true),
            (after, Away::Unknown, true),
            (after, Away::Never, false),
        ] {
            assert_eq!(policy.flushes(away), flushes, "{policy} {away}");
        }
    }

    #[test]
    fn a_clock_that_was_set_back_makes_the_time_unknown() {
        assert_eq!(Away::between(100, 160), Away::Seconds(60));
        assert_eq!(Away::between(100, 100), Away::Seconds(0));
        assert_eq!(Away::between(100, 99), Away::Unknown);
    }

    /// Serves a store at a time by this clock, as far as its history is concerned.
    fn visit(path: &Path, rejoin: Rejoin, now: u64, serve: impl FnOnce(&Evermap, &History)) {
        let db = Evermap::open(path, Options::new()).unwrap();
        let history = History::begin(&db, rejoin, Duration::ZERO, now).unwrap();
        serve(&db, &history);
        drop(history);
        db.close().unwrap();
    }

    #[test]
    fn items_are_flushed_after_a_long_absence_and_only_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        let has = |db: &Evermap, key: &[u8]| db.default_map().contains(key).unwrap();
        visit(&path, Rejoin::FlushAfter(60), 1_000, |db, history| {
            assert_eq!(history.away, Away::Never);
            db.default_map().put(b"a", b"1").unwrap();
        });
        visit(&path, Rejoin::FlushAfter(60), 1_060, |db, history| {
            assert_eq!(history.away, Away::Seconds(60));
            assert!(has(db, b"a"));
        });
        visit(&path, Rejoin::FlushAfter(60), 1_121, |db, _| {
            assert!(!has(db, b"a"));
            db.default_map().put(b"b", b"1").unwrap();
        });
        // What was stored after the flush stays, although nothing but the sign of life at the start
        // was left.
        visit(&path, Rejoin::FlushAfter(60), 1_122, |db, _| assert!(has(db, b"b")));
        // The clock was set back, so it is not known how long the server was away.
        visit(&path, Rejoin::FlushAfter(60), 1_000, |db, _| assert!(!has(db, b"b")));
    }

    #[test]
    fn age_and_counters_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        visit(&path, Rejoin::Keep, 1_000, |_, history| {
            assert_eq!((history.state.created, history.state.generation), (1_000, 1));
        });
        let db = Evermap::open(&path, Options::new()).unwrap();
        let mut history = History::begin(&db, Rejoin::Keep, Duration::ZERO, 1_005).unwrap();
        history.state.counters.set("get_hits", 7);
        history.write(1_010);
        drop(history);
        db.close().unwrap();
        visit(&path, Rejoin::Keep, 1_020, |_, history| {
            assert_eq!((history.state.created, history.state.generation), (1_000, 3));
            assert_eq!(history.away, Away::Seconds(10));
            assert_eq!(history.counters().get("get_hits"), 7);
        });
    }
}
