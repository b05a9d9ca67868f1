//! Walks over all records, and checks.

use std::collections::HashSet;

use evermap_pm::Result;

use super::header::damaged;
use super::page::{Hash, Record, STRIP_BYTES};
use super::write::{Portion, steps_to};
use super::{GROUP, TrancheFile};

/// The records of a table, as counted by a walk.
#[derive(Default)]
struct Count {
    records: u64,
    bytes: u64,
}

impl<const T: usize> TrancheFile<T> {
    /// Writes all changes, and calls `each` with every key and value until it returns `false`, in
    /// no particular order. O(n): reads the table once, and every long record.
    pub fn for_each(&mut self, mut each: impl FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.ensure_whole()?;
        self.flush()?;
        for group in 0..self.header.groups {
            let places: Vec<u64> = (group * GROUP..(group + 1) * GROUP).collect();
            let loaded = self.load(&places)?;
            for place in places {
                let page = loaded.page(place);
                for at in 0..page.count() {
                    let more = match page.record(at)? {
                        Record::Here { key, value } => each(key, value),
                        Record::Elsewhere(elsewhere) => self.read_long(elsewhere, &mut each)?,
                    };
                    if !more {
                        return Ok(());
                    }
                }
            }
            self.give_back(loaded);
        }
        Ok(())
    }

    /// Writes all changes, reads the whole table with every checksum, and describes each violated
    /// invariant; returns an empty list if there is none. O(n).
    pub fn verify(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Err(error) = self.ensure_whole().and_then(|()| self.flush()) {
            return vec![error.to_string()];
        }
        let mut count = Count::default();
        for group in 0..self.header.groups {
            if let Err(error) = self.check_group(group, &mut count, &mut problems) {
                problems.push(format!("group {group}: {error}"));
            }
        }
        if problems.is_empty()
            && (count.records, count.bytes) != (self.header.records, self.header.bytes)
        {
            let (found, header) = (count.records, self.header.records);
            problems.push(format!("{found} records, but the header says {header}"));
        }
        problems
    }

    fn check_group(
        &mut self,
        group: u64,
        count: &mut Count,
        problems: &mut Vec<String>,
    ) -> Result<()> {
        let places: Vec<u64> = (group * GROUP..(group + 1) * GROUP).collect();
        let loaded = self.load(&places)?;
        let (mut pass, mut keys) = ([0u32; GROUP as usize], HashSet::new());
        for tranche in 0..GROUP {
            let page = loaded.page(group * GROUP + tranche);
            for at in 0..page.count() {
                let (hash, key) = self.key_of(&loaded, group * GROUP + tranche, at)?;
                if self.groups().of(hash.first) != group {
                    problems.push(format!("tranche {tranche} of group {group}: a foreign record"));
                }
                if !keys.insert(key) {
                    problems.push(format!("tranche {tranche} of group {group}: a key twice"));
                }
                let steps = steps_to(hash, tranche);
                (0..steps)
                    .for_each(|step| pass[((super::home(hash) + step) % GROUP) as usize] += 1);
                count.records += 1;
                count.bytes += page.payload_bytes(at)?.len() as u64 + STRIP_BYTES;
            }
        }
        for (tranche, pass) in (0..GROUP).zip(pass) {
            let stored = loaded.page(group * GROUP + tranche).pass();
            if stored != pass {
                let what = format!("{stored} records passed, but {pass} did");
                problems.push(format!("tranche {tranche} of group {group}: {what}"));
            }
        }
        self.give_back(loaded);
        Ok(())
    }

    /// Returns the hash and the key of a record, verified against each other.
    fn key_of(&mut self, loaded: &Portion<T>, place: u64, at: usize) -> Result<(Hash, Vec<u8>)> {
        match loaded.page(place).record(at)? {
            Record::Here { key, .. } => Ok((self.hash(key), key.to_vec())),
            Record::Elsewhere(elsewhere) => {
                let key = self.read_long(elsewhere, |key, _| key.to_vec())?;
                let hash = self.hash(&key);
                if hash != elsewhere.hash {
                    return Err(damaged(elsewhere.offset, "a long record of another key"));
                }
                Ok((hash, key))
            }
        }
    }
}
