//! What operations flush, read and write: counts, which do not depend on the machine and repeat
//! exactly. The documents quote these tables, and a test compares them.

use std::collections::BTreeMap;

use super::definition::{Experiment, drive};
use super::settings::{Scale, Setting, Settings, circumstances};
use super::tables;
use crate::LabError;
use crate::driver::{Config, Plan, Quiet};
use crate::report::{Grid, Output, Record, Report};
use crate::workload::{Blend, KeyValueLengths, Lengths, Mix, Phase, Zipf};

pub(crate) const NAME: &str = "counts";
/// The number of keys of the tables that documents quote.
pub(crate) const KEYS: u64 = 100_000;

pub(super) const COUNTS: Experiment = Experiment {
    name: NAME,
    about: "flushes, fences, lines and blocks of every operation: they repeat exactly",
    takes: &[Setting::INDEX, Setting::KEYS],
    run: counts,
};

/// One table: subjects by operations.
struct Section {
    title: &'static str,
    indexes: &'static [&'static str],
    what: What,
    presize: bool,
    /// Lengths of keys and values; `None` for words.
    bytes: Option<(u32, u32)>,
}

/// What is done to the subjects.
#[derive(Clone, Copy)]
enum What {
    /// Each of these phases.
    Phases(&'static [Phase]),
    /// Each of these mixes, on a table that was filled before.
    Mixes(&'static [&'static str]),
}

const HASH_TABLES: &[&str] = &[
    "dash-eh",
    "dash-eh-paper",
    "dash-lh",
    "cceh",
    "cceh-paper",
    "level",
    "level-paper",
    "line-hash",
    "p-clht",
    "tranche-256",
];
const TREES: &[&str] = &[
    "p-art",
    "p-hot",
    "p-bwtree",
    "p-masstree",
    "fast-fair",
    "fast-fair-paper",
    "nv-tree",
    "nv-tree-paper",
    "fp-tree",
    "fp-tree-paper",
];
/// HiKV without threads of its own, which would do their part at any time; and what it is compared
/// with.
const HIKV: &[&str] = &["hikv-sync", "nv-tree-paper", "fp-tree-paper"];
const OF_RECIPE: &[&str] = &[
    "p-art",
    "p-hot",
    "p-bwtree",
    "p-masstree",
    "fast-fair",
    "fast-fair-paper",
    "dash-eh",
    "cceh",
    "level",
    "p-clht",
];
const TRANCHES: &[&str] = &["tranche-256", "tranche-512", "tranche-4k", "tranche-32k"];
const PHASES: What =
    What::Phases(&[Phase::Insert, Phase::Positive, Phase::Negative, Phase::Update, Phase::Delete]);
const MIXES: What = What::Mixes(&["recipe-a", "recipe-b", "recipe-c"]);

const SECTIONS: [Section; 9] = [
    Section::words("Hash tables that grow from their default size", HASH_TABLES, PHASES),
    Section {
        presize: true,
        ..Section::words("Hash tables that start at their final size", HASH_TABLES, PHASES)
    },
    Section::words("Trees", TREES, PHASES),
    Section::words("RECIPE's mixes, keys of 8 bytes", OF_RECIPE, MIXES),
    Section {
        bytes: Some((24, 8)),
        ..Section::words("RECIPE's mixes, keys of 24 bytes", OF_RECIPE, MIXES)
    },
    Section {
        bytes: Some((16, 256)),
        ..Section::words("HiKV and its rivals, records of 272 bytes", HIKV, PHASES)
    },
    Section {
        bytes: Some((8, 8)),
        ..Section::words("The heterogeneous table, records of 16 bytes", TRANCHES, PHASES)
    },
    Section {
        bytes: Some((10, 100)),
        ..Section::words("The heterogeneous table, records of 110 bytes", TRANCHES, PHASES)
    },
    Section {
        bytes: Some((16, 256)),
        ..Section::words("The heterogeneous table, records of 272 bytes", TRANCHES, PHASES)
    },
];

impl Section {
    const fn words(title: &'static str, indexes: &'static [&'static str], what: What) -> Self {
        Section { title, indexes, what, presize: false, bytes: None }
    }

    /// Returns what is to be run, one after the other.
    fn plans(&self, keys: u64) -> Result<Vec<Plan>, LabError> {
        let blend = |name: &&str| -> Result<Plan, LabError> {
            let mix: Mix = name.parse()?;
            Ok(Plan::Blend(Blend { mix, keys: mix.keys, theta: Zipf::YCSB, ops: keys }))
        };
        match self.what {
            What::Phases(phases) => Ok(vec![Plan::Phases(phases.to_vec())]),
            What::Mixes(names) => names.iter().map(blend).collect(),
        }
    }

    /// Counts, and returns the table.
    fn count(
        &self,
        settings: &Settings,
        base: &Config,
        out: &mut dyn Output,
    ) -> Result<Option<Grid>, LabError> {
        let named = settings.indexes(self.indexes);
        let indexes: Vec<_> =
            named.into_iter().filter(|name| self.indexes.contains(&name.as_str())).collect();
        if indexes.is_empty() {
            return Ok(None);
        }
        let lengths = self.bytes.map(|(keys, values)| KeyValueLengths {
            keys: Lengths::Fixed(keys),
            values: Lengths::Fixed(values),
        });
        let config = Config { indexes, lengths, presize: self.presize, ..base.clone() };
        let (mut columns, mut rows) = (Vec::new(), BTreeMap::<usize, Vec<String>>::new());
        for plan in self.plans(base.keys)? {
            let driven = drive(&Config { plan, ..config.clone() }, out)?;
            let first = driven.subjects.first().map(|subject| &subject.phases[..]);
            columns.extend(first.unwrap_or_default().iter().map(|phase| phase.name));
            for (at, subject) in driven.subjects.iter().enumerate() {
                let cells = subject.phases.iter().map(|phase| cell(&phase.summary));
                rows.entry(at).or_default().extend(cells);
            }
        }
        let mut grid = Grid::new(self.title, &columns);
        rows.into_iter().for_each(|(at, cells)| grid.push(config.indexes[at].clone(), cells));
        Ok(Some(grid))
    }
}

/// Returns what was counted of an operation.
fn cell(record: &Record) -> String {
    let counts = [tables::persists(record), tables::lines(record), tables::blocks(record)];
    counts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn counts(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let scale = Scale { keys: KEYS, rounds: 1, quick_keys: KEYS / 10, quick_rounds: 1 };
    let base = Config {
        rounds: 0,
        latency: false,
        limits: false,
        // Other programs change no count.
        quiet: Quiet::NOT_NEEDED,
        ..settings.config(NAME, &[], scale)
    };
    let mut tables = Vec::new();
    for section in &SECTIONS {
        tables.extend(section.count(settings, &base, out)?);
    }
    Ok(Report {
        experiment: NAME,
        title: "flushes / fences; lines read / written; blocks of 256 bytes read / written".into(),
        about: circumstances(&base),
        tables,
        ..Report::default()
    })
}
