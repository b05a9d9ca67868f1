//! Figure 13: bytes in ordinary memory and in the medium.

use super::bench::{ADAPTIVE, Bench, FPTREE, NVSTORE, Part, table};
use crate::LabError;
use crate::driver::results::DriveReport;
use crate::driver::{Config, Plan, Quiet};
use crate::experiments::definition::drive;
use crate::report::{Figure, Output};
use crate::subject::MediumKind;
use crate::workload::{KeyValueLengths, Lengths, Phase};

/// Lengths of values, in bytes.
const VALUES: [u32; 5] = [64, 128, 256, 512, 1024];
/// HiKV, and NV-Tree with parents that are half full too.
const STORES: [&str; 4] = [ADAPTIVE, NVSTORE, "nv-tree", FPTREE];

/// Counts the bytes of stores with values of several lengths.
pub(super) fn space(bench: &Bench<'_>, out: &mut dyn Output) -> Result<Part, LabError> {
    let keys = bench.config.lengths.map_or(Lengths::Fixed(16), |lengths| lengths.keys);
    let mut drives = Vec::new();
    for bytes in VALUES {
        let config = Config {
            medium: MediumKind::Dram,
            lengths: Some(KeyValueLengths { keys, values: Lengths::Fixed(bytes) }),
            plan: Plan::Phases(vec![Phase::Insert]),
            rounds: 1,
            // Other programs do not change the space that a store takes.
            quiet: Quiet::NOT_NEEDED,
            ..bench.stores(&STORES)
        };
        drives.push(drive(&config, out)?);
    }
    let bytes = |store: &str, at: usize| {
        let driven: &DriveReport = &drives[at];
        let record = &driven.subject(store)?.phases.first()?.summary;
        let each = |bytes: Option<u64>| Some(bytes? as f64 / record.keys as f64);
        Some((each(record.dram_bytes)?, each(record.pm_bytes)?))
    };
    let columns = VALUES.map(|bytes| format!("{bytes} bytes"));
    let grid = table(
        "Figure 13: bytes for a key in ordinary memory + in the medium (their ratio, %), by values",
        &columns,
        &STORES,
        |store, at| {
            let (dram, pm) = bytes(store, at)?;
            Some(format!("{dram:.1} + {pm:.0} ({:.1})", 100.0 * dram / pm))
        },
    );
    let ratio = |store: &str, at: usize| bytes(store, at).map(|(dram, pm)| 100.0 * dram / pm);
    let figures = vec![
        Figure {
            what: format!("ordinary memory for a key, {ADAPTIVE}, bytes"),
            paper: "44 (2.21 GB)".into(),
            here: bytes(ADAPTIVE, 2).map(|(dram, _)| format!("{dram:.1}")),
        },
        Figure {
            what: format!("ordinary memory for a key, {NVSTORE}, bytes"),
            paper: "765 (38.27 GB)".into(),
            here: bytes(NVSTORE, 2).map(|(dram, _)| format!("{dram:.1}")),
        },
        Figure {
            what: format!("ordinary memory for a key, {FPTREE}, bytes"),
            paper: "less than HiKV".into(),
            here: bytes(FPTREE, 2).map(|(dram, _)| format!("{dram:.1}")),
        },
        Figure {
            what: format!("ordinary memory / medium, {ADAPTIVE}, values of 64, 256, 1024 bytes, %"),
            paper: "40, 15.8, 4".into(),
            here: [0, 2, 4]
                .map(|at| ratio(ADAPTIVE, at))
                .into_iter()
                .collect::<Option<Vec<_>>>()
                .map(|all| {
                    all.iter().map(|one| format!("{one:.1}")).collect::<Vec<_>>().join(", ")
                }),
        },
    ];
    Ok(Part { tables: vec![grid], figures, ..Part::default() })
}
