//! Detecting pages of an index that are empty where many records are expected.
//!
//! A page of zeros looks like empty buckets, and recovery makes valid empty buckets of it. But a
//! hash function fills all buckets of a segment or a table evenly. So a page that never held a
//! record, among others that do, was most likely overwritten, and its records are lost. A check can
//! detect this without a stored count of records. It cannot if a page has few buckets, or if the
//! index holds few records.
//!
//! Records are not always removed evenly: a sweep or an eviction removes them in the order of their
//! buckets, and a crash can stop it between two pages. But a removal leaves the words of the slot
//! in place, so only a bucket whose slots are all zero counts as one that never held a record. (A
//! split copies records only: after a crash that follows a split that came between two pages of a
//! sweep, a page can be mistaken for an overwritten one. The next records to be inserted end that.)

use evermap_pm::{Medium, PmU64};

/// The unit that storage loses at a time, in bytes.
const PAGE: u64 = 4096;
/// If at least this many records are expected in a page, the probability that it is empty is e^-36.
const MANY: u64 = 36;

#[derive(Default)]
struct Tally {
    buckets: u64,
    /// Buckets that hold a record.
    occupied: u64,
    /// Buckets that hold no record, but held one.
    emptied: u64,
    records: u64,
}

/// Counts the records in the pages of one segment or table.
#[derive(Default)]
pub struct Vacancy {
    page: u64,
    current: Tally,
    /// The sums over the earlier pages that hold a record.
    filled: Tally,
    /// The numbers of the earlier pages that never held a record, and the number of buckets in
    /// each.
    vacant: Vec<(u64, u64)>,
}

impl Vacancy {
    /// Counts the bucket at `offset`, which must be greater than those of the buckets counted
    /// before. `words` are those of its slots.
    pub fn count<'a>(
        &mut self,
        m: &impl Medium,
        offset: u64,
        records: usize,
        mut words: impl Iterator<Item = &'a PmU64>,
    ) {
        let emptied = records == 0 && words.any(|word| m.load_relaxed(word) != 0);
        self.add(offset, records, emptied);
    }

    fn add(&mut self, offset: u64, records: usize, emptied: bool) {
        if offset / PAGE != self.page {
            self.end_page();
            self.page = offset / PAGE;
        }
        self.current.buckets += 1;
        self.current.occupied += u64::from(records > 0);
        self.current.emptied += u64::from(emptied);
        self.current.records += records as u64;
    }

    fn end_page(&mut self) {
        let Tally { buckets, occupied, emptied, records } = std::mem::take(&mut self.current);
        if records > 0 {
            self.filled.buckets += buckets;
            self.filled.occupied += occupied;
            self.filled.records += records;
        } else if buckets > 0 && emptied == 0 {
            self.vacant.push((self.page, buckets));
        }
    }

    /// Describes the pages that are empty though many records are expected in them.
    pub fn describe(mut self, problems: &mut Vec<String>) {
        self.end_page();
        let Tally { buckets, occupied, records, .. } = self.filled;
        // Keys that were chosen to have equal hashes fill few buckets completely and can leave most
        // pages empty. Then no page is reported.
        let vacant: u64 = self.vacant.iter().map(|(_, buckets)| buckets).sum();
        if buckets < vacant || 3 * occupied < buckets {
            return;
        }
        for (page, empty) in self.vacant {
            let expected = (u128::from(records) * u128::from(empty) / u128::from(buckets)) as u64;
            if expected >= MANY {
                let are = if empty == 1 { "bucket is" } else { "buckets are" };
                problems.push(format!(
                    "page at offset {:#x}: {empty} {are} empty where about {expected} \
                     records are expected; the page was overwritten, and its records are lost",
                    page * PAGE
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the descriptions for pages of 16 buckets with these numbers of records.
    fn described(pages: &[usize]) -> Vec<String> {
        let mut vacancy = Vacancy::default();
        for (page, &records) in (1u64..).zip(pages) {
            for bucket in 0..16 {
                let share = records / 16 + usize::from(bucket < records % 16);
                vacancy.add(page * PAGE + bucket as u64 * 256, share, false);
            }
        }
        let mut problems = Vec::new();
        vacancy.describe(&mut problems);
        problems
    }

    #[test]
    fn an_empty_page_among_full_ones_is_described() {
        let problems = described(&[90, 80, 0, 100]);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].starts_with("page at offset 0x3000: 16 buckets"), "{}", problems[0]);
        assert!(problems[0].contains("about 90 records"), "{}", problems[0]);
        assert_eq!(described(&[0, 50, 50, 50, 50, 0]).len(), 2);
    }

    #[test]
    fn what_can_be_chance_or_choice_is_not_described() {
        assert!(described(&[]).is_empty());
        assert!(described(&[0, 0, 0]).is_empty());
        assert!(described(&[10, 0, 12, 9]).is_empty(), "few records");
        assert!(described(&[200, 0, 0, 0]).is_empty(), "most of it is empty");
        assert!(described(&[1, 100, 100]).is_empty());
        let mut vacancy = Vacancy::default();
        for bucket in 0..64 {
            vacancy.add(bucket * 256, if bucket % 40 < 3 { 100 } else { 0 }, false);
        }
        let mut problems = Vec::new();
        vacancy.describe(&mut problems);
        assert!(problems.is_empty(), "keys with equal hashes: {problems:?}");
        let mut vacancy = Vacancy::default();
        for bucket in 0..64 {
            vacancy.add(bucket * 256, if bucket < 16 { 0 } else { 5 }, bucket == 7);
        }
        vacancy.describe(&mut problems);
        assert!(problems.is_empty(), "a page whose records were removed: {problems:?}");
    }
}
