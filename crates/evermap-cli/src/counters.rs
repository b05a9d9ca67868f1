//! What a server leaves in its file for the next one: when it was last alive, and its cumulative
//! statistics.
//!
//! It is one record of the named map `server`, so it is replaced as a whole. It is text, so that
//! `evermap get --map server FILE state` shows it:
//!
//! ```text
//! evermap-server 1
//! created 1764000000
//! alive 1764003600
//! generation 7
//! stat cmd_get 123
//! stat cmd_set 45
//! end 6
//! ```
//!
//! The first line has the version of the format, and the last one the number of lines before it.
//! Times are in seconds since 1970. A later version may add statistics without a new format.

use std::fmt::Write as _;

use evermap::{Error, Evermap, Map, MapOptions};
use evermap_server::Cumulative;

use crate::failure::warn;

const MAP: &str = "server";
const KEY: &[u8] = b"state";
const NAME: &str = "evermap-server";
const VERSION: u32 = 1;

/// What the record says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// When the store was created, or first served if that is not known.
    pub(crate) created: u64,
    /// When the server was last known to be alive.
    pub(crate) alive: u64,
    /// How often the file had been opened when this was written, that opening included.
    pub(crate) generation: u64,
    /// The cumulative statistics since the last `stats reset`.
    pub(crate) counters: Cumulative,
}

impl State {
    fn encode(&self) -> String {
        let State { created, alive, generation, counters } = self;
        let mut text = format!(
            "{NAME} {VERSION}\ncreated {created}\nalive {alive}\ngeneration {generation}\n"
        );
        for (name, value) in counters.iter() {
            // Writing to a string does not fail.
            let _ = writeln!(text, "stat {name} {value}");
        }
        let lines = text.lines().count();
        let _ = writeln!(text, "end {lines}");
        text
    }

    /// Parses a record.
    ///
    /// # Errors
    /// What is wrong with it, for a message. Nothing is taken from a record that is not wholly
    /// right.
    fn decode(bytes: &[u8]) -> Result<State, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not text".to_owned())?;
        let count = text.lines().count();
        let mut lines = text.lines();
        let version = number_after(lines.next(), NAME)?;
        if version != u64::from(VERSION) {
            return Err(format!("it has format {version}, and this program knows {VERSION}"));
        }
        let mut state = State {
            created: number_after(lines.next(), "created")?,
            alive: number_after(lines.next(), "alive")?,
            generation: number_after(lines.next(), "generation")?,
            counters: Cumulative::default(),
        };
        for (i, line) in lines.enumerate() {
            // The first four lines are consumed.
            let before = 4 + i;
            let Some(stat) = line.strip_prefix("stat ") else {
                let is_end = number_after(Some(line), "end") == Ok(before as u64);
                return match is_end && before + 1 == count {
                    true => Ok(state),
                    false => Err(format!("line {} is {line:?}", before + 1)),
                };
            };
            let (name, value) = stat.rsplit_once(' ').unwrap_or((stat, ""));
            let value = value.parse().map_err(|_| format!("line {} is {line:?}", before + 1))?;
            state.counters.set(name, value);
        }
        Err("it has no end".to_owned())
    }
}

/// Returns the number in a line that begins with `name`.
fn number_after(line: Option<&str>, name: &str) -> Result<u64, String> {
    let line = line.unwrap_or_default();
    let number = line.strip_prefix(name).and_then(|rest| rest.strip_prefix(' '));
    number
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| format!("it has {line:?} in place of `{name} N`"))
}

/// What was found in a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// No record, in a store that was created just now.
    New,
    /// The record of an earlier server.
    State(State),
    /// No record that can be used, for this reason.
    Nothing(String),
}

/// Reads and replaces the record.
pub(crate) struct Keeper {
    map: Map,
    /// Whether the last attempt to write failed, so that a failure is reported once.
    failing: bool,
}

impl Keeper {
    /// Opens the map of the record, or creates it, and reads the record. Without a keeper, the file
    /// has no place for a record.
    pub(crate) fn open(db: &Evermap) -> (Option<Keeper>, Found) {
        let (map, damage) = match db.map(MAP, MapOptions::new()) {
            // The map holds nothing but this record, so another one can take its place.
            Err(Error::MapDamaged { why, .. }) => {
                let dropped = db.drop_map(MAP);
                (dropped.and_then(|_| db.map(MAP, MapOptions::new())), Some(why))
            }
            map => (map, None),
        };
        let map = match map {
            Ok(map) => map,
            Err(error) => return (None, Found::Nothing(error.to_string())),
        };
        let generation = db.stat().generation;
        let found = match (damage, map.get(KEY)) {
            (Some(why), _) => Found::Nothing(why),
            (None, Err(error)) => Found::Nothing(error.to_string()),
            (None, Ok(None)) if generation <= 1 => Found::New,
            (None, Ok(None)) => Found::Nothing("no server has left any".to_owned()),
            (None, Ok(Some(bytes))) => match State::decode(&bytes) {
                Ok(state) if state.generation >= generation => {
                    Found::Nothing("they belong to another state of the file".to_owned())
                }
                Ok(state) => Found::State(state),
                Err(why) => Found::Nothing(why),
            },
        };
        (Some(Keeper { map, failing: false }), found)
    }

    /// Replaces the record. If that fails, because the file is full for instance, the old one stays
    /// and standard error says so once.
    pub(crate) fn write(&mut self, state: &State) {
        let written = self.map.put(KEY, state.encode().as_bytes());
        if let Err(error) = &written
            && !self.failing
        {
            warn(format_args!(
                "the counters and the time of the last sign of life cannot be saved ({error}); \
                 trying again every second"
            ));
        }
        self.failing = written.is_err();
    }
}

#[cfg(test)]
mod tests {
    use evermap::Options;

    use super::*;

    fn state() -> State {
        let mut counters = Cumulative::default();
        counters.set("cmd_get", 5);
        counters.set("evictions", u64::MAX);
        State { created: 10, alive: 20, generation: 3, counters }
    }

    #[test]
    fn a_record_is_readable_text() {
        let text = state().encode();
        assert_eq!(
            text,
            "evermap-server 1\ncreated 10\nalive 20\ngeneration 3\nstat cmd_get 5\n\
             stat evictions 18446744073709551615\nend 6\n"
        );
        assert_eq!(State::decode(text.as_bytes()), Ok(state()));
        let empty = State::default();
        assert_eq!(State::decode(empty.encode().as_bytes()), Ok(empty));
    }

    #[test]
    fn statistics_of_other_versions_are_passed_over() {
        let text = state().encode().replace("cmd_get 5", "cmd_divine 5");
        let decoded = State::decode(text.as_bytes()).unwrap();
        assert_eq!(decoded.counters.iter().count(), 1);
    }

    #[test]
    fn every_damage_is_noticed() {
        let text = state().encode();
        for end in 0..text.len() - 1 {
            assert!(State::decode(&text.as_bytes()[..end]).is_err(), "{:?}", &text[..end]);
        }
        for (right, wrong) in [
            ("evermap-server 1", "evermap-server 2"),
            ("evermap-server 1", "evermap-server one"),
            ("evermap-server", "another-server"),
            ("created 10", "created"),
            ("alive 20", "alive -1"),
            ("alive 20\n", ""),
            ("cmd_get 5", "cmd_get 18446744073709551616"),
            ("stat cmd_get 5", "stat cmd_get"),
            ("stat cmd_get 5\n", ""),
            ("stat cmd_get", "cmd_get"),
            ("end 6", "end 5"),
            ("end 6\n", "end 6\nend 7\n"),
        ] {
            let text = text.replace(right, wrong);
            assert!(State::decode(text.as_bytes()).is_err(), "{text:?}");
        }
        assert!(State::decode(b"\xff\xfe").is_err());
    }

    #[test]
    fn the_record_is_found_by_the_next_opening() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        let mut state = state();
        state.generation = 1;
        for generation in 1..4 {
            let db = Evermap::open(&path, Options::new()).unwrap();
            let (keeper, found) = Keeper::open(&db);
            let expected = match generation {
                1 => Found::New,
                _ => Found::State(state.clone()),
            };
            assert_eq!(found, expected);
            state.generation = generation;
            keeper.unwrap().write(&state);
            db.close().unwrap();
        }
    }

    /// Another program may have used the map, or the record may come from another file.
    #[test]
    fn a_record_that_cannot_be_used_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        Evermap::open(&path, Options::new()).unwrap().close().unwrap();
        let later = State { generation: 1000, ..state() }.encode();
        for (record, reason) in [
            (None, "no server has left any"),
            (Some("something else"), "it has \"something else\" in place of `evermap-server N`"),
            (Some(later.as_str()), "they belong to another state of the file"),
        ] {
            let db = Evermap::open(&path, Options::new()).unwrap();
            if let Some(record) = record {
                let map = db.map(MAP, MapOptions::new()).unwrap();
                map.put(KEY, record.as_bytes()).unwrap();
            }
            let (keeper, found) = Keeper::open(&db);
            assert_eq!(found, Found::Nothing(reason.to_owned()));
            assert!(keeper.is_some());
            db.close().unwrap();
        }
    }
}
