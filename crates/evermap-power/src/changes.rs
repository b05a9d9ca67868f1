//! What each thread does to the store, change by change, and what must be there after it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evermap::{Batch, Evermap, MapOptions};

use crate::result::Result;

/// The number of threads that change the store.
pub(crate) const THREADS: usize = 2;
/// Of these accounts every second one is in the second map. Their sum is always 0.
pub(crate) const ACCOUNTS: u64 = 8;
/// The name of the second map.
pub(crate) const SECONDS: &str = "seconds";
/// Changes between two batches.
pub(crate) const BETWEEN_BATCHES: u64 = 8;

/// Records with their expiry, by map and key.
pub(crate) type Contents = BTreeMap<(String, String), (Vec<u8>, Option<SystemTime>)>;

/// The change that has a number, of a thread. It follows from both.
pub(crate) struct Change {
    thread: usize,
    number: u64,
}

/// What a change does.
enum Kind {
    Put {
        key: String,
        version: u64,
    },
    Touch {
        key: String,
    },
    Remove {
        key: String,
    },
    /// Puts its number into both maps, removes two keys, and transfers between two accounts.
    Batch {
        gone: Vec<String>,
    },
    /// Puts a record into a map that is created for it.
    Pass,
    /// Drops this map.
    Drop,
}

/// Returns a value of up to 900 bytes, which tells what it belongs to.
fn value_of(key: &str, version: u64, number: u64) -> Vec<u8> {
    let unit = format!("{key} in version {version}; ").into_bytes();
    let bytes = (number * 7 + version * 311) % 900 + 24;
    unit.iter().copied().cycle().take(bytes as usize).collect()
}

fn passing(thread: usize) -> String {
    format!("passing {thread}")
}

/// Returns the key under which the number of the last batch of a thread is, in both maps.
pub(crate) fn mark(thread: usize) -> String {
    format!("{thread} mark")
}

pub(crate) fn account(number: u64) -> String {
    format!("account {number}")
}

impl Change {
    pub(crate) fn new(thread: usize, number: u64) -> Self {
        Change { thread, number }
    }

    fn key(&self, number: u64) -> String {
        format!("{} key {number:08}", self.thread)
    }

    /// Keys that change again are of a fixed age; the first changes find none that old, and put.
    fn kind(&self) -> Kind {
        let number = self.number;
        let old = |age: u64| number.checked_sub(age).map(|old| self.key(old));
        let put = || Kind::Put { key: self.key(number), version: 0 };
        match number % BETWEEN_BATCHES {
            1 => old(33).map_or_else(put, |key| Kind::Put { key, version: 1 }),
            3 => old(65).map_or_else(put, |key| Kind::Touch { key }),
            5 => old(129).map_or_else(put, |key| Kind::Remove { key }),
            6 => Kind::Batch { gone: [old(262), old(260)].into_iter().flatten().collect() },
            7 if number / BETWEEN_BATCHES % 8 == 7 => Kind::Drop,
            7 => Kind::Pass,
            _ => put(),
        }
    }

    fn expiry(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(4_000_000_000 + self.number)
    }

    /// Makes the change in the store. It is acknowledged when this returns.
    pub(crate) fn make(&self, db: &Evermap) -> Result<()> {
        let map = db.default_map();
        match self.kind() {
            Kind::Put { key, version } => map.put(&key, value_of(&key, version, self.number))?,
            Kind::Touch { key } => {
                ensure(map.touch(&key, self.expiry())?, || format!("{key} is not there"))?;
            }
            Kind::Remove { key } => ensure(map.delete(&key)?, || format!("{key} is not there"))?,
            Kind::Batch { gone } => {
                let applied = db.apply(&self.batch(&gone))?;
                ensure(applied.is_done(), || format!("batch {} is refused", self.number))?;
            }
            Kind::Pass => {
                let map = db.map(&passing(self.thread), MapOptions::new())?;
                let key = self.key(self.number);
                map.put(&key, value_of(&key, 0, self.number))?;
            }
            Kind::Drop => _ = db.drop_map(&passing(self.thread))?,
        }
        Ok(())
    }

    fn batch(&self, gone: &[String]) -> Batch {
        let (mark, number) = (mark(self.thread), self.number.to_le_bytes());
        let from = self.number / BETWEEN_BATCHES % ACCOUNTS;
        let to = (from + 1 + self.number % 5) % ACCOUNTS;
        let amount = (self.number % 1000) as i64;
        let mut batch = Batch::new();
        batch.put(&mark, number);
        gone.iter().for_each(|key| _ = batch.remove(key));
        let both = [(from, -amount), (to, amount)];
        let (firsts, seconds): (Vec<_>, Vec<_>) = both.into_iter().partition(|(at, _)| at % 2 == 0);
        firsts.into_iter().for_each(|(at, amount)| _ = batch.add(account(at), amount));
        batch.in_map(SECONDS).put(&mark, number);
        seconds.into_iter().for_each(|(at, amount)| _ = batch.add(account(at), amount));
        batch
    }

    /// Makes the change in what is wanted.
    pub(crate) fn note(&self, contents: &mut Contents) {
        let first = |key: &str| (String::new(), key.to_owned());
        match self.kind() {
            Kind::Put { key, version } => {
                let value = value_of(&key, version, self.number);
                contents.insert(first(&key), (value, None));
            }
            Kind::Touch { key } => {
                let record = contents.get_mut(&first(&key)).expect("of a fixed age");
                record.1 = Some(self.expiry());
            }
            Kind::Remove { key } => _ = contents.remove(&first(&key)),
            Kind::Batch { gone } => {
                gone.iter().for_each(|key| _ = contents.remove(&first(key)));
                for map in ["", SECONDS] {
                    let record = (self.number.to_le_bytes().to_vec(), None);
                    contents.insert((map.to_owned(), mark(self.thread)), record);
                }
            }
            Kind::Pass => {
                let key = self.key(self.number);
                let value = value_of(&key, 0, self.number);
                contents.insert((passing(self.thread), key), (value, None));
            }
            Kind::Drop => contents.retain(|(map, _), _| *map != passing(self.thread)),
        }
    }
}

fn ensure(is_right: bool, what: impl Fn() -> String) -> Result<()> {
    if is_right { Ok(()) } else { Err(what().into()) }
}
