//! Checking a whole file, and reporting what is wrong.

use std::fmt;

use evermap_index::Visitor;
use evermap_index::key::BytesRef;
use evermap_index::record::OFFSET_MASK;
use evermap_pm::Medium;
use evermap_pm::region::DamageMark;

#[cfg(doc)]
use crate::Stat;
use crate::error::{CHECK_ADVICE, counted};
use crate::maintenance::sweep::{SweepState, mark_for};
use crate::ops::read::{MISMATCH, Walk};
use crate::record::Record;
use crate::{Error, Evermap, Map, Result};

/// The number of problems that are described; the rest are counted.
const DESCRIBED: usize = 1000;

/// The report of [`Evermap::check`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// A description of each problem, up to the first thousand.
    pub problems: Vec<String>,
    /// The number of problems beyond those.
    pub more_problems: u64,
    /// Whether the records were read, and their checksums verified.
    pub deep: bool,
    /// The number of records in all maps, plus one for each named map in the catalogue, including
    /// dead ones.
    pub records: u64,
    /// The number of records that are expired or flushed; 0 unless the check was deep.
    pub dead: u64,
    /// Bytes of the blocks that hold records.
    pub bytes: u64,
    /// The number of blocks that can be reached from an index, including its own.
    pub blocks: u64,
    /// The number of problems that are blocks which nothing refers to.
    leaks: u64,
}

impl CheckReport {
    /// Returns `true` if nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    fn problem(&mut self, text: impl Into<String>) {
        if self.problems.len() < DESCRIBED {
            // It is being checked.
            self.problems.push(text.into().replace(CHECK_ADVICE, ""));
        } else {
            self.more_problems += 1;
        }
    }
}

impl fmt::Display for CheckReport {
    /// Writes a line for each problem, then a summary.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.problems {
            writeln!(f, "{problem}")?;
        }
        if self.more_problems > 0 {
            writeln!(f, "and {} more", self.more_problems)?;
        }
        let (dead, verified) = match self.deep {
            true => (format!(" ({} dead)", self.dead), ", checksums verified"),
            false => (String::new(), ", which were not read"),
        };
        let verdict = match self.problems.len() as u64 + self.more_problems {
            0 => "sound".to_owned(),
            count => counted(count, "problem"),
        };
        let [records, bytes, blocks] =
            [(self.records, "record"), (self.bytes, "byte"), (self.blocks, "block")]
                .map(|(count, thing)| counted(count, thing));
        write!(f, "{verdict}: {records}{dead} in {bytes}, {blocks}{verified}")
    }
}

impl<M: Medium> Evermap<M> {
    /// Checks the whole file and describes everything that is wrong: the index of each map, that
    /// exactly the reachable blocks are allocated, the counts, that the ordered index, if it is
    /// ready, has the same keys, and if `deep`, every record with its checksum. Changes nothing but
    /// the [mark](Stat::damage) of damaged files: that is set if there are problems, and taken away
    /// by a deep check that finds none.
    ///
    /// Without `deep` no record is read, so that the time depends on the size of the indexes and
    /// not on that of the file.
    ///
    /// Records that are lost are noticed by the counts that a clean shutdown saves; after an
    /// unclean shutdown only where what is left of an index shows that something is missing, such
    /// as a page without any record among full ones.
    ///
    /// A map that is dropped meanwhile is passed over.
    ///
    /// Waits for the sweep after an unclean shutdown. Call it while no other thread changes the
    /// store: changes may look like problems. O(n) time, 16 bytes of memory a record.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"key", b"value")?;
    /// let report = map.db().check(true)?;
    /// assert!(report.is_sound(), "{report}");
    /// assert_eq!(report.records, 1);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed), [`Error::GuardHeld`](crate::Error::GuardHeld).
    /// Everything else is in the report. Of a store that is poisoned, or in a forked child, only
    /// the default map is checked.
    pub fn check(&self, deep: bool) -> Result<CheckReport> {
        self.ensure_no_guard("check")?;
        drop(self.default_map().enter()?);
        let mut report = CheckReport { deep, ..Default::default() };
        if let Err(error) = self.sweep_now() {
            report.problem(format!("sweep: {error}"));
        } else if let SweepState::Failed(why) = self.file.maintenance.sweep_state() {
            report.problem(format!("sweep: {why}"));
        }
        if let Err(error) = self.reclaim_drops() {
            report.problem(format!("dropped maps: {error}"));
        }
        // Records that are being moved would be seen twice, and records that are purged meanwhile
        // would be counted.
        let _sweeping = self.file.maintenance.sweeping();
        // So would records that are evicted.
        let _hand = self.file.maintenance.evictor.hold();
        // Retired blocks are allocated but not reachable.
        if let Err(error) = self.file.pool.epoch().try_drain() {
            report.problem(format!("retired blocks: {error}"));
        }
        // A map that is dropped is not checked, but its blocks are allocated until they are
        // reclaimed, which waits for this.
        let (maps, problem) = match self.all_maps_and_dropped() {
            Err(error) if !matches!(error, Error::Closed) => {
                (vec![self.default_map()], Some(error))
            }
            all => all?,
        };
        if let Some(problem) = &problem {
            report.problem(problem.to_string());
        }
        // Nothing names what is being written yet.
        let mut reachable = Reachable(self.file.partial.all());
        let mut whole = problem.is_none();
        for map in &maps {
            whole &= map.check_map(&mut report, &mut reachable)?;
        }
        if whole {
            self.check_blocks(&mut report, reachable);
        }
        self.mark(&report);
        Ok(report)
    }

    /// Calls `listener` whenever damage is found for the first time since the file was last
    /// verified, and when it turns out to be [widespread](DamageMark::Widespread), with a
    /// description of what was found. It must not use the store.
    pub fn on_damage(&self, listener: impl Fn(DamageMark, &str) + Send + Sync + 'static) {
        self.file.pool.region().on_damage(Box::new(listener));
    }

    /// Marks the file as damaged if there are problems, and takes the mark away if everything was
    /// verified and there are none.
    fn mark(&self, report: &CheckReport) {
        let region = self.file.pool.region();
        let problems = report.problems.len() as u64 + report.more_problems;
        match problems - report.leaks {
            0 if problems == 0 && report.deep => return region.clear_damage(),
            // Leaked blocks do no harm, and the next sweep finds them.
            0 if problems > 0 => return self.file.pool.require_sweep(),
            0 => return,
            _ => {}
        }
        let mark = mark_for(problems - report.leaks, report.records);
        region.mark_damage(mark, &report.problems[0]);
    }

    /// Compares what is reachable with what is allocated.
    fn check_blocks(&self, report: &mut CheckReport, reachable: Reachable) {
        let mut reachable = reachable.0;
        reachable.sort_unstable();
        for pair in reachable.windows(2).filter(|pair| pair[0] == pair[1]) {
            report.problem(format!("block at offset {:#x}: reachable twice", pair[0]));
        }
        reachable.dedup();
        report.blocks = reachable.len() as u64;
        if !self.file.pool.is_swept() {
            return;
        }
        let allocated = self.file.pool.allocated();
        let missing = |from: &[u64], of: &[u64]| -> Vec<u64> {
            of.iter().copied().filter(|block| from.binary_search(block).is_err()).collect()
        };
        for block in missing(&allocated, &reachable) {
            report.problem(format!("block at offset {block:#x}: reachable but not allocated"));
        }
        for block in missing(&reachable, &allocated) {
            report.leaks += 1;
            report
                .problem(format!("block at offset {block:#x}: leaked: allocated but unreachable"));
        }
        let faults = self.file.pool.heap_stats().faults;
        if faults > 0 {
            report.problem(format!(
                "heap: {}: impossible entries in its table, \
                 or frees or marks of something that is not a block",
                counted(faults, "fault")
            ));
        }
    }
}

impl<M: Medium> Map<M> {
    /// Checks one map. Returns `true` if all of its blocks were shown to `reachable`.
    fn check_map(&self, report: &mut CheckReport, reachable: &mut Reachable) -> Result<bool> {
        let prefix = self.name().map_or(String::new(), |name| format!("map \"{name}\": "));
        let before = (report.records, report.bytes, report.dead);
        match self.check_contents(report, &prefix) {
            // What was in it does not count.
            Err(Error::Dropped { .. }) => {
                (report.records, report.bytes, report.dead) = before;
            }
            checked => checked?,
        }
        reachable.0.extend(self.inner.header.block());
        match self.inner.saved.blocks(&self.db.file.pool) {
            Some(blocks) => reachable.0.extend(blocks),
            None => {
                report.problem(format!("{prefix}the keys that were saved in order cannot be read"))
            }
        }
        let order = self.inner.visit_order(&mut |block| reachable.0.push(block));
        if let Err(error) = &order {
            report.problem(format!("{prefix}ordered index: {error}"));
        }
        let visited = self.inner.index.visit(reachable);
        if let Err(error) = &visited {
            report.problem(format!("{prefix}index: {error}"));
        }
        Ok(visited.is_ok() && order.is_ok())
    }

    /// Checks what is in a map.
    ///
    /// # Errors
    /// `Closed`, `Dropped`.
    fn check_contents(&self, report: &mut CheckReport, prefix: &str) -> Result<()> {
        drop(self.enter()?);
        for problem in self.inner.index.check() {
            report.problem(format!("{prefix}index: {problem}"));
        }
        let before = (report.records, report.bytes);
        self.check_records(report)?;
        self.check_counts(report, before);
        match self.check_ordered(&mut |what| report.problem(format!("{prefix}{what}"))) {
            Err(error @ (Error::Closed | Error::Dropped { .. })) => Err(error),
            Err(error) => {
                report.problem(format!("{prefix}ordered index: {error}"));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn check_records(&self, report: &mut CheckReport) -> Result<()> {
        let mark = self.inner.flush.mark();
        let mut walk = Walk::new(self);
        let mut pairs = Vec::new();
        while let Some(_guard) = walk.next(&mut pairs)? {
            if let Err(error) = walk.take_error() {
                report.problem(format!("index: {error}"));
            }
            if report.deep {
                pairs.iter().for_each(|(_, word)| self.prefetch(*word));
            }
            for &(hash, word) in &pairs {
                report.records += 1;
                let place = word & OFFSET_MASK;
                match self.db.file.pool.block_size_at(place) {
                    Some(bytes) => report.bytes += bytes,
                    None => {
                        report.problem(format!("record at offset {place:#x}: there is no block"));
                        continue;
                    }
                }
                if !report.deep {
                    continue;
                }
                match self.check_record(hash, word) {
                    Ok(record) => {
                        report.dead += u64::from(self.is_dead(&record, mark) == Some(true))
                    }
                    Err(problem) => report.problem(problem),
                }
            }
        }
        Ok(())
    }

    fn check_record(&self, hash: u64, word: u64) -> Result<Record<'_, M>, String> {
        let place = word & OFFSET_MASK;
        let record = Record::at(self.db.file.pool.medium(), word)
            .map_err(|what| format!("record at offset {place:#x}: {what}"))?;
        let describe = |what| record.damaged(what).to_string();
        let mut key = Vec::new();
        record.append_key(&mut key).map_err(|error| error.to_string())?;
        if BytesRef::new(&key, self.inner.header.seed()).hash != hash {
            return Err(describe("it is stored under the hash of another key"));
        }
        if record.expires_at().is_none() {
            return Err(describe(record.why_unreadable()));
        }
        if !record.verify(self.inner.header.owner()) {
            return Err(describe(MISMATCH));
        }
        Ok(record)
    }

    /// Compares the counts of this map with what was found in it; `before` was found in the maps
    /// before.
    fn check_counts(&self, report: &mut CheckReport, before: (u64, u64)) {
        let (totals, exact) = self.inner.counters.totals();
        if !exact {
            return;
        }
        let (records, bytes) = (report.records - before.0, report.bytes - before.1);
        for (what, counted, found) in
            [("record", totals.records, records), ("byte", totals.bytes, bytes)]
        {
            if counted != found {
                let were = if counted == 1 { "was" } else { "were" };
                let counted = self::counted(counted, what);
                report.problem(format!("{counted} {were} counted but {found} found"));
            }
        }
    }
}

/// The blocks and records that an index names.
struct Reachable(Vec<u64>);

impl Visitor for Reachable {
    fn block(&mut self, offset: u64) {
        self.0.push(offset);
    }

    fn word(&mut self, word: u64) {
        self.0.push(word & OFFSET_MASK);
    }
}
