//! Section 4.9: how soon a killed store can be used again.

use super::{ADAPTIVE, Bench, FPTREE, NVSTORE, Part, table};
use crate::LabError;
use crate::experiments::killed::{ChildLine, Job, KillPlan};
use crate::registry::subject;
use crate::report::interval::median;
use crate::report::{Figure, Output, Record, grouped};

/// HiKV, and those that the paper shows beside it; NV-Tree with parents that are half full too.
const STORES: [&str; 4] = [ADAPTIVE, NVSTORE, "nv-tree", FPTREE];
/// Recoveries of each file.
const OPENINGS: u64 = 3;

/// Fills stores in processes that are killed, and opens them in others.
pub(super) fn reopening(bench: &Bench<'_>, out: &mut dyn Output) -> Result<Part, LabError> {
    let sizes = [bench.config.keys / 4, bench.config.keys].map(|keys| keys.max(1));
    let plan = KillPlan::new(bench.settings, bench.config.lengths, bench.config.keys)?;
    out.begin((STORES.len() * sizes.len()) as u64);
    let mut times = Vec::new();
    for store in STORES {
        let entry = subject(store)?;
        for keys in sizes {
            out.step(&format!("hikv: {store}, {keys} keys, recovery"));
            let left = plan.place();
            plan.run_and_kill(&entry, keys, &left, Job::Overwrite)?;
            let (mut gets, mut scans) = (Vec::new(), Vec::new());
            for time in 1..=OPENINGS {
                for line in plan.run_and_kill(&entry, keys, &left, Job::Open(time))? {
                    if let ChildLine::FirstAnswers { get, scan } = line {
                        gets.push(get * 1e3);
                        scans.extend(scan.map(|seconds| seconds * 1e3));
                    }
                }
            }
            let (get, scan) = (median(&gets), median(&scans));
            for (phase, ms) in [("first get", get), ("first scan", scan)] {
                out.record(&Record {
                    seconds: ms.map(|ms| ms / 1e3),
                    ops: 1,
                    ..plan.record("hikv", &entry, keys, phase)
                })?;
            }
            times.push((store, keys, get, scan));
        }
    }
    let of = |store: &str, keys: u64| {
        let found = times.iter().find(|one| one.0 == store && one.1 == keys)?;
        Some((found.2?, found.3?))
    };
    let columns = sizes.map(|keys| format!("{} keys", grouped(keys)));
    let grid = table(
        "Section 4.9: ms from opening a killed store to the first answer; and to the first scan",
        &columns,
        &STORES,
        |store, at| {
            let (get, scan) = of(store, sizes[at])?;
            Some(format!("{get:.2}; {scan:.1}"))
        },
    );
    let rate = |store: &str, paper: &str| Figure {
        what: format!("recovery up to the first scan, {store}, million keys a second"),
        paper: paper.into(),
        here: of(store, sizes[1]).map(|(_, scan)| format!("{:.2}", sizes[1] as f64 / scan / 1e3)),
    };
    let figures = vec![
        rate(ADAPTIVE, "0.57 with one thread, 8.0 with 16"),
        rate(NVSTORE, "4.5"),
        rate(FPTREE, "28.7"),
    ];
    Ok(Part { tables: vec![grid], figures, ..Part::default() })
}
