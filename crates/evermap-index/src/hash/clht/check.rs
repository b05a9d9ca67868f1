//! The invariants of P-CLHT, checked one by one.

use std::collections::{HashMap, HashSet};

use evermap_pm::Medium;

use super::Clht;
use super::bucket::pairs_in;
use super::layout::{Bucket, Control, Link, PAIRS, Table};
use crate::Key;
use crate::hash::vacancy::Vacancy;

const PAGE: u64 = 4096;
/// A bucket behind a home bucket goes when it becomes empty, so that a crash leaves one for each thread that was about to
/// remove it. So many in one page are not left by that.
const HOLLOW: u64 = 16;

impl<K: Key, M: Medium> Clht<K, M> {
    pub(super) fn check_everything(&self) -> Vec<String> {
        let (m, table) = (self.medium(), self.table());
        let mut problems = Vec::new();
        if Table::decode(m.load(&self.root().table)) != table {
            problems.push("the root names another table than lookups follow".into());
        }
        let (mut offsets, mut vacancy) = (HashSet::new(), Vacancy::default());
        let mut hollow = HashMap::new();
        for number in 0..table.buckets() {
            match self.home(table, number) {
                Ok(home) => {
                    vacancy.count(table.home(number), pairs_in(m, home).count());
                    self.check_chain(table, number, home, &mut offsets, &mut hollow, &mut problems);
                }
                Err(error) => problems.push(error.to_string()),
            }
        }
        vacancy.describe(&mut problems);
        for (page, empty) in hollow.into_iter().filter(|&(_, empty)| empty >= HOLLOW) {
            problems.push(format!(
                "page at offset {:#x}: {empty} buckets of chains are empty; the page was overwritten, and what was in \
                 them and behind them is lost",
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
        hollow: &mut HashMap<u64, u64>,
        problems: &mut Vec<String>,
    ) {
        let m = self.medium();
        let mut wrong = |what: String| problems.push(format!("home bucket {number}: {what}"));
        let mut seen: HashMap<(u64, u64), usize> = HashMap::new();
        for bucket in std::iter::once(Ok(home)).chain(self.behind(home)) {
            let bucket = match bucket {
                Ok(bucket) => bucket,
                Err(error) => return wrong(error.to_string()),
            };
            let offset = m.offset_of(bucket);
            if !offsets.insert(offset) {
                return wrong(format!("bucket {offset:#x} is in two places"));
            }
            if !std::ptr::eq(bucket, home) && Link(m.load(&bucket.link)).taken() == 0 {
                *hollow.entry(offset / PAGE).or_default() += 1;
            }
            let control = Control(m.load(&bucket.control));
            if control.is_of(self.generation) {
                if control.visible() != Link(m.load(&bucket.link)).taken() {
                    wrong(format!("bucket {offset:#x}: readers do not see what it holds"));
                }
                if (0..PAIRS).any(|place| control.is_overwritten(place)) {
                    wrong(format!("bucket {offset:#x}: a word stays between two values"));
                }
                if control.is_locked() {
                    wrong(format!("bucket {offset:#x} is locked"));
                }
            }
            for pair in pairs_in(m, bucket) {
                if table.home_of(K::slot_hash(pair.slot_key, self.seed)) != number {
                    wrong(format!("key {:#x} belongs elsewhere", pair.slot_key));
                }
                // Two pairs may share a hash; two places may not hold the same pair.
                let identity = (pair.slot_key, if K::WORDS_ARE_RECORDS { pair.word } else { 0 });
                let times = seen.entry(identity).or_default();
                *times += 1;
                if *times > 1 {
                    wrong(format!("key {:#x} is there twice", pair.slot_key));
                }
            }
        }
    }
}
