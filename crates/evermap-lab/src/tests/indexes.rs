//! Every index on every medium, and what the counters say about Dash.

use evermap_index::testkit::tier;
use evermap_lab_indexes::entries::ENTRIES;

use crate::driver::Config;
use crate::experiments::drive;
use crate::subject::facts::MediumKind;
use crate::testing::Kept;
use crate::workload::Phase;
use crate::workload::bytes::KeyValueLengths;

fn config(medium: MediumKind, keys: u64) -> Config {
    Config {
        indexes: ENTRIES.iter().map(|entry| entry.name.to_owned()).collect(),
        keys,
        threads: 2,
        rounds: 1,
        medium,
        persist_ns: 50,
        foreign_limit: f64::INFINITY,
        patience: std::time::Duration::ZERO,
        limits: false,
        ..Config::default()
    }
}

#[test]
fn our_indexes_pass_on_every_medium_and_leave_no_file() {
    let directory = std::env::temp_dir().join(format!("lab-media-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    for medium in MediumKind::ALL {
        for lengths in [None, Some(KeyValueLengths::default())] {
            let mut config = Config { lengths, ..config(medium, tier().choose(500, 10_000)) };
            config.location = Some(directory.clone());
            if lengths.is_some() {
                config.indexes = vec!["dash-eh".into()];
                if matches!(medium, MediumKind::Dram | MediumKind::Process) {
                    config.indexes.push("evermap".into());
                }
            }
            let driven = drive(&config, &mut Kept::default()).unwrap();
            for phase in driven.subjects.into_iter().flat_map(|subject| subject.phases) {
                let record = phase.summary;
                let flushes = matches!(medium, MediumKind::Forced | MediumKind::Emulated);
                assert_eq!(record.medium, medium.name());
                assert_eq!(record.flush_kind.is_some(), flushes, "{}", medium.name());
                assert_eq!(record.location.is_some(), medium != MediumKind::Dram);
                assert!(record.load_factor.is_some() && record.pm_bytes.is_some());
            }
        }
    }
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    std::fs::remove_dir(&directory).unwrap();
}

/// Counts are equal on every machine: higher ones would be a regression of the index or of the
/// counting.
#[test]
fn counters_of_dash_are_in_their_bounds() {
    let config = Config { threads: 1, latency: false, ..config(MediumKind::Dram, 3000) };
    let driven = drive(&config, &mut Kept::default()).unwrap();
    for phase in &driven.subjects[0].phases {
        let record = &phase.summary;
        let (flushes, fences) = (record.flushes_per_op.unwrap(), record.fences_per_op.unwrap());
        let (read, written) =
            (record.lines_read_per_op.unwrap(), record.lines_written_per_op.unwrap());
        match phase.name.parse().unwrap() {
            Phase::Positive | Phase::Negative | Phase::GetMany => {
                assert_eq!((flushes, fences, written), (0.0, 0.0, 0.0), "{}", phase.name);
                assert!(read > 0.9, "{}: {read}", phase.name);
            }
            Phase::Update | Phase::Delete | Phase::Insert => {
                assert!(flushes >= 1.0 && fences >= 1.0 && written >= 1.0, "{}", phase.name);
                assert!(flushes < 8.0 && fences < 4.0, "{}: {flushes} {fences}", phase.name);
            }
            Phase::Mixed => assert!(flushes > 0.2 && flushes < 2.0, "{flushes}"),
        }
    }
}
