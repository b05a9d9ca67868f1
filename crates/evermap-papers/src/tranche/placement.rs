//! Where the records are, and how many tranches lookups parse: by walking and counting.

use evermap_index::Key;
use evermap_pm::{Medium, Result};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::TrancheMap;
use super::geometry::Geometry;
use super::group::{Groups, Reach, Search};
use super::image::{home, nth, steps_to};
use super::table::{Format, Table};
use super::{Tranche, arrays};

/// How records are spread over the tranches of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Placement {
    /// The number of records.
    pub records: u64,
    /// The share of the space for records that is taken, 0 to 1. Overflow blocks of groups do not
    /// count as space, so it could be more than 1.
    pub fill: f64,
    /// The share of the records that are not in their home tranche.
    pub displaced: f64,
    /// Tranches that a lookup of a present key parses, on average over all keys.
    pub tranches_per_hit: f64,
    /// Tranches that a lookup of an absent key parses, on average over 20,000 of them.
    pub tranches_per_miss: f64,
}

/// The number of absent keys that are looked up.
const MISSES: u64 = 20_000;

impl<F: Format, M: Medium, G: Geometry> Table<F, M, G> {
    fn placement(&self) -> Result<Placement> {
        let (mut records, mut displaced, mut steps, mut bytes) = (0u64, 0u64, 0u64, 0u64);
        self.walk(
            |stored| {
                let home = home::<G>(self.hash_of(stored)?);
                Ok((steps_to::<G>(home, stored.place) as u64, stored.bytes()))
            },
            |page| {
                for &(more, size) in &page.records {
                    records += 1;
                    bytes += size;
                    displaced += u64::from(more > 0);
                    steps += more;
                }
                true
            },
        )?;
        let mut parsed = 0;
        for number in 0..MISSES {
            let hash = xxh3_64_with_seed(&number.to_le_bytes(), self.seed);
            let search = |group: arrays::Group<'_>, reach| match reach {
                Reach::Home => Ok(Search::GoesOn),
                Reach::Group => parsed_without_a_hit(&self.groups(), group, hash)
                    .map(|parsed| Search::Ended(Some(parsed))),
            };
            parsed += self.read(hash, search)?.unwrap_or_default();
        }
        let per_record = |count: u64| count as f64 / records.max(1) as f64;
        Ok(Placement {
            records,
            fill: bytes as f64 / self.total_capacity(),
            displaced: per_record(displaced),
            tranches_per_hit: 1.0 + per_record(steps),
            tranches_per_miss: parsed as f64 / MISSES as f64,
        })
    }
}

/// Returns the number of tranches that a search for an absent key parses.
fn parsed_without_a_hit<M: Medium, G: Geometry>(
    groups: &Groups<'_, M, G>,
    group: arrays::Group<'_>,
    hash: u64,
) -> Result<u64> {
    let mut parsed = 0;
    while let Some(tranche) = groups.tranche(group, nth::<G>(home::<G>(hash), parsed))? {
        parsed += 1;
        if groups.commit(tranche)?.pass == 0 {
            break;
        }
    }
    Ok(parsed as u64)
}

impl<K: Key, M: Medium, G: Geometry> Tranche<K, M, G> {
    /// Returns how the records are spread. O(n).
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`, `Forked`.
    pub fn placement(&self) -> Result<Placement> {
        self.table.placement()
    }
}

impl<M: Medium, G: Geometry> TrancheMap<M, G> {
    /// Returns how the records are spread: long ones with what they take in the table, without
    /// their blocks. O(n).
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`, `Forked`.
    pub fn placement(&self) -> Result<Placement> {
        self.table.placement()
    }
}
