//! What the records of a map cost, and what they would cost with another kind of index.

use std::fmt;

use evermap_index::Stats;
use evermap_pm::{ErrorKind, Medium};

use crate::ops::read::Walk;
use crate::record::Record;
use crate::{IndexKind, Map, Result};

/// The number of records whose lengths are read: their means are within a few percent of those of
/// all.
const SAMPLE: usize = 1024;

/// What the records of a map cost, in bytes a record: what [`Map::cost`] returns. A record takes
/// [`total`](CostStat::total) bytes: a slot of the index, and a block with the record's header, its
/// key and value, and what is left of the block.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct CostStat {
    /// The kind of index.
    pub index: IndexKind,
    /// Number of records in the index.
    pub records: u64,
    /// Number of records whose lengths were read.
    pub sampled: u64,
    /// Bytes of the index, as it is now.
    pub index_bytes: f64,
    /// Bytes of the header of a record.
    pub header_bytes: f64,
    /// Bytes of key and value.
    pub content_bytes: f64,
    /// Bytes of a block that nothing uses.
    pub slack_bytes: f64,
    /// For each kind of index, the bytes that it would take for this number of records, which are
    /// between the most and the least because of the steps in which it grows: the smallest first.
    pub kinds: Vec<(IndexKind, f64)>,
}

impl CostStat {
    /// Returns the bytes that a record takes.
    pub fn total(&self) -> f64 {
        self.index_bytes + self.header_bytes + self.content_bytes + self.slack_bytes
    }

    /// Returns the kind of index that would take the least space on average, and the bytes a record
    /// that it would save compared to the average of the map's own; `None` if that one takes the
    /// least.
    pub fn smaller(&self) -> Option<(IndexKind, f64)> {
        let (least, bytes) = *self.kinds.first()?;
        let (_, own) = *self.kinds.iter().find(|(kind, _)| *kind == self.index)?;
        (own > bytes).then_some((least, own - bytes))
    }
}

impl<M: Medium> Map<M> {
    /// Returns what the records of this map cost. Walks the index, and reads the lengths of a
    /// thousand records: O(n / 1000). They are those that the index shows first, which the hashes
    /// have chosen at random.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"key", b"value")?;
    /// let cost = map.cost()?;
    /// assert_eq!((cost.records, cost.content_bytes), (1, 8.0));
    /// println!("{cost}");
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed), [`Error::Dropped`](crate::Error::Dropped). What is
    /// damaged is left out of the means.
    pub fn cost(&self) -> Result<CostStat> {
        let stats = {
            let guard = self.enter()?;
            match self.inner.index.stats(&guard) {
                // It counts as damage that was met, as in `space`.
                Err(error) if matches!(error.kind(), ErrorKind::Damaged { .. }) => Stats::default(),
                known => known?,
            }
        };
        let sample = self.sample()?;
        let per_record = |bytes: u64| bytes as f64 / stats.len.max(1) as f64;
        let mean = |bytes: u64| bytes as f64 / sample.records.max(1) as f64;
        let mut kinds: Vec<_> = IndexKind::ALL
            .iter()
            .map(|&kind| (kind, kind.expected_bytes(stats.len) / stats.len.max(1) as f64))
            .collect();
        kinds.sort_by(|one, other| one.1.total_cmp(&other.1));
        Ok(CostStat {
            index: self.inner.index.kind(),
            records: stats.len,
            sampled: sample.records,
            index_bytes: per_record(stats.pm_bytes),
            header_bytes: mean(sample.headers),
            content_bytes: mean(sample.contents),
            slack_bytes: mean(sample.blocks - sample.headers - sample.contents),
            kinds,
        })
    }

    /// Adds up the lengths of the records that the index shows first.
    fn sample(&self) -> Result<Sample> {
        let (pool, mut walk) = (&self.db.file.pool, Walk::new(self));
        let (mut pairs, mut sample) = (Vec::new(), Sample::default());
        while sample.records < SAMPLE as u64
            && let Some(_guard) = walk.next(&mut pairs)?
        {
            for &(_, word) in &pairs {
                let Ok(record) = Record::at(pool.medium(), word) else { continue };
                let Some(block) = pool.block_size_at(record.offset()) else { continue };
                sample.add(&record, block);
            }
        }
        Ok(sample)
    }
}

/// Sums over records.
#[derive(Default)]
struct Sample {
    records: u64,
    headers: u64,
    contents: u64,
    blocks: u64,
}

impl Sample {
    fn add<M: Medium>(&mut self, record: &Record<'_, M>, block: u64) {
        let (header, content) = (record.header_bytes(), record.content_bytes());
        // Otherwise the lengths are damaged, or the block has another use by now.
        if header + content <= block {
            self.records += 1;
            self.headers += header;
            self.contents += content;
            self.blocks += block;
        }
    }
}

impl fmt::Display for CostStat {
    /// Writes a line about the records, and one about the kinds of index.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<16}{:.1} bytes: index {:.1}, header {:.1}, key and value {:.1}, slack {:.1}",
            "a record takes",
            self.total(),
            self.index_bytes,
            self.header_bytes,
            self.content_bytes,
            self.slack_bytes
        )?;
        write!(f, "{:<16}", "index, expected")?;
        for (place, (kind, bytes)) in self.kinds.iter().enumerate() {
            let separator = if place == 0 { "" } else { ", " };
            write!(f, "{separator}{kind} {bytes:.1}")?;
        }
        match self.smaller() {
            Some((kind, saved)) => writeln!(f, " ({kind} would save {saved:.1} a record)"),
            None => writeln!(f, " ({} is the smallest)", self.index),
        }
    }
}
