//! The invariants of P-CLHT.

use std::collections::{HashMap, HashSet};

use evermap_pm::Medium;

use super::Clht;
use super::bucket::pairs_in;
use super::layout::{Bucket, Control, Link, PAIRS, Table};
use crate::Key;
use crate::hash::vacancy::Vacancy;

const PAGE: u64 = 4096;
/// The number of empty overflow buckets in one page that indicate damage. An overflow bucket is
/// removed when it becomes empty, so a crash leaves at most one for each thread that was about to
/// remove it.
const EMPTY_MAX: u64 = 16;

impl<K: Key, M: Medium> Clht<K, M> {
    pub(super) fn check_everything(&self) -> Vec<String> {
        let (m, table) = (self.medium(), self.table());
        let mut problems = Vec::new();
        if Table::decode(m.load(&self.root().table)) != table {
            problems.push("the root names another table than lookups follow".into());
        }
        let (mut offsets, mut vacancy) = (HashSet::new(), Vacancy::default());
        let mut empty_overflow = HashMap::new();
        for number in 0..table.buckets() {
            match self.home(table, number) {
                Ok(home) => {
                    let words = home.pairs.iter().flat_map(|pair| [&pair.key, &pair.word]);
                    vacancy.count(m, table.home(number), pairs_in(m, home).count(), words);
                    self.check_chain(
                        table,
                        number,
                        home,
                        &mut offsets,
                        &mut empty_overflow,
                        &mut problems,
                    );
                }
                Err(error) => problems.push(error.to_string()),
            }
        }
        vacancy.describe(&mut problems);
        for (page, empty) in empty_overflow.into_iter().filter(|&(_, empty)| empty >= EMPTY_MAX) {
            problems.push(format!(
                "page at offset {:#x}: {empty} buckets of chains are empty; the page was \
                 overwritten, and its pairs and those of the buckets after it are lost",
                page * PAGE
            ));
        }
        problems
    }

    fn check_chain(
        &self,
        table: Table,
        number: u64,
        home: &Bucket,
        offsets: &mut HashSet<u64>,
        empty_overflow: &mut HashMap<u64, u64>,
        problems: &mut Vec<String>,
    ) {
        let m = self.medium();
        let mut wrong = |what: String| problems.push(format!("home bucket {number}: {what}"));
        let mut seen: HashMap<(u64, u64), usize> = HashMap::new();
        for bucket in std::iter::once(Ok(home)).chain(self.overflow(home)) {
            let bucket = match bucket {
                Ok(bucket) => bucket,
                Err(error) => return wrong(error.to_string()),
            };
            let offset = m.offset_of(bucket);
            if !offsets.insert(offset) {
                return wrong(format!("bucket {offset:#x} is in two chains"));
            }
            if !std::ptr::eq(bucket, home) && Link(m.load(&bucket.link)).taken() == 0 {
                *empty_overflow.entry(offset / PAGE).or_default() += 1;
            }
            let control = Control(m.load(&bucket.control));
            if control.is_of(self.generation) {
                if control.visible() != Link(m.load(&bucket.link)).taken() {
                    wrong(format!("bucket {offset:#x}: readers do not see what it holds"));
                }
                if (0..PAIRS).any(|slot| control.is_overwritten(slot)) {
                    wrong(format!("bucket {offset:#x}: a replacement of a word is incomplete"));
                }
                if control.is_locked() {
                    wrong(format!("bucket {offset:#x} is locked"));
                }
            }
            for pair in pairs_in(m, bucket) {
                if !self.is_in(pair.slot_key, table, number) {
                    wrong(format!("key {:#x} belongs to another home bucket", pair.slot_key));
                }
                // Two pairs may share a hash; two slots may not hold the same pair.
                let identity = (pair.slot_key, if K::WORDS_ARE_RECORDS { pair.word } else { 0 });
                let times = seen.entry(identity).or_default();
                *times += 1;
                if *times > 1 {
                    wrong(format!("key {:#x} is stored twice", pair.slot_key));
                }
            }
        }
    }
}
