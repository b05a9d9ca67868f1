//! Every index on every medium, and what the counters say about Dash.

use evermap_index::testkit::tier;
use evermap_lab_indexes::entries::ENTRIES;
use evermap_pm::medium::Speed;

use crate::crash::CRASHABLE;
use crate::driver::{Config, Plan, Quiet};
use crate::experiments::drive;
use crate::registry::subject;
use crate::subject::facts::MediumKind;
use crate::testing::{Kept, media_everywhere};
use crate::workload::{Blend, KeyValueLengths, Mix, Phase, Zipf};

fn config(medium: MediumKind, keys: u64) -> Config {
    Config {
        indexes: ENTRIES.iter().map(|entry| entry.name.to_owned()).collect(),
        keys,
        threads: 2,
        rounds: 1,
        medium,
        speed: Speed { persist_ns: 50, ..Speed::CUSTOMARY },
        quiet: Quiet::NOT_NEEDED,
        limits: false,
        ..Config::default()
    }
}

#[test]
fn our_indexes_pass_on_every_medium_and_leave_no_file() {
    let directory = std::env::temp_dir().join(format!("lab-media-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    for medium in media_everywhere() {
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
                let flushes = medium.flushes();
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

/// The trees take keys of any length, and scan in their order; what they persist is counted.
#[test]
fn trees_take_byte_strings() {
    let names = [
        "bplus",
        "p-art",
        "fast-fair",
        "fast-fair-paper",
        "nv-tree",
        "nv-tree-paper",
        "fp-tree",
        "fp-tree-paper",
        "p-bwtree",
        "p-masstree",
        "p-hot",
        "rwlock-btreemap",
    ];
    let lengths = KeyValueLengths { keys: "8-40".parse().unwrap(), ..Default::default() };
    let mix = |name: &str| {
        let mix: Mix = name.parse().unwrap();
        Plan::Blend(Blend { mix, keys: mix.keys, theta: Zipf::YCSB, ops: 500 })
    };
    let config = Config {
        indexes: names.map(str::to_owned).to_vec(),
        lengths: Some(lengths),
        ..config(MediumKind::Dram, tier().choose(500, 10_000))
    };
    for plan in [Plan::Phases(Phase::ALL.to_vec()), mix("recipe-a"), mix("scans")] {
        let driven = drive(&Config { plan, ..config.clone() }, &mut Kept::default()).unwrap();
        for subject in &driven.subjects {
            let persists = !["bplus", "rwlock-btreemap"].contains(&subject.name);
            for phase in &subject.phases {
                let counted = phase.summary.flushes_per_op;
                assert_eq!(counted.is_some(), persists, "{} {}", subject.name, phase.name);
            }
        }
    }
    // Values of any length, some of them behind a cache.
    let lengths = KeyValueLengths { values: "9-300".parse().unwrap(), ..lengths };
    let indexes = ["nv-tree", "nv-tree-paper", "fp-tree", "fp-tree-paper", "fp-tree-cache"];
    let valued = Config {
        indexes: indexes.map(str::to_owned).to_vec(),
        lengths: Some(lengths),
        threads: 2,
        ..config.clone()
    };
    for plan in [Plan::Phases(Phase::ALL.to_vec()), mix("ycsb-a"), mix("scans")] {
        let driven = drive(&Config { plan, ..valued.clone() }, &mut Kept::default()).unwrap();
        for phase in driven.subjects.iter().flat_map(|subject| &subject.phases) {
            assert!(phase.summary.flushes_per_op.is_some());
        }
        let hits = driven.subject("fp-tree-cache").unwrap().phases[0].summary.cache_hits_per_op;
        assert!(hits.is_some());
    }
    let lengths = KeyValueLengths { values: "9".parse().unwrap(), ..lengths };
    let refused = Config { indexes: vec!["p-hot".into()], lengths: Some(lengths), ..config };
    let error = drive(&refused, &mut Kept::default()).unwrap_err().to_string();
    assert!(error.contains("p-hot only takes values of 8 bytes"), "{error}");
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
            Phase::InsertMany => {
                assert!(flushes >= 1.0 && written >= 1.0, "{}", phase.name);
                assert!(flushes < 8.0 && fences < 1.0, "{}: {flushes} {fences}", phase.name);
            }
            Phase::Mixed => assert!(flushes > 0.2 && flushes < 2.0, "{flushes}"),
        }
    }
}

/// What can be crashed can be measured, by the same name or a shorter one.
#[test]
fn one_structure_has_one_name() {
    for name in CRASHABLE.iter().map(|crashable| crashable.name).chain(["line", "tranche"]) {
        subject(name).unwrap();
    }
}
