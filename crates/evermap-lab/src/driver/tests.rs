//! The driver with right and wrong tables.

use super::*;
use evermap_index::testkit::tier;

use crate::experiments::drive as drive_by_name;
use crate::registry::{subject, subjects};
use crate::subject::Factory;
use crate::testing::{Fault, Kept, faulty, mixes};
use crate::workload::Distribution;
use crate::workload::Phase;
use crate::workload::mix::Blend;
use crate::workload::part::{Act, Part};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// A small configuration that does not judge the machine.
fn config(threads: usize) -> Config {
    Config {
        keys: 10_000,
        threads,
        rounds: 2,
        quiet: Quiet::NOT_NEEDED,
        limits: false,
        ..Config::default()
    }
}

fn run(fault: Fault, config: &Config) -> Result<(DriveReport, Kept), LabError> {
    let mut kept = Kept::default();
    let report = drive(&[faulty(fault)], config, &mut kept)?;
    Ok((report, kept))
}

/// All but other projects' stores, which have separate tests, because syncing is slow.
fn indexes() -> Vec<String> {
    // Other tests load plugins, also wrong ones.
    let plugins = crate::baselines::plugin::entries();
    let is_plugin = |name: &str| plugins.iter().any(|plugin| plugin.name == name);
    let names = subjects().into_iter().map(|entry| entry.name);
    let names = names.filter(|name| !is_plugin(name));
    #[cfg(feature = "stores")]
    let names =
        names.filter(|name| crate::baselines::stores::ENTRIES.iter().all(|one| one.name != *name));
    names.map(str::to_owned).collect()
}

/// Returns all of them in the full tier, otherwise one of three.
fn some_indexes() -> Vec<String> {
    indexes().into_iter().step_by(tier().choose(3, 1)).collect()
}

#[test]
fn every_registered_table_passes_all_phases() {
    for &threads in tier().choose(&[2][..], &[1, 2, 3]) {
        let indexes = indexes();
        // Enough for every table to grow several times.
        let config = Config { indexes, keys: 3000, rounds: 1, ..config(threads) };
        let report = drive_by_name(&config, &mut Kept::default()).unwrap();
        assert!(report.subjects.len() >= 8);
        for subject in report.subjects {
            for phase in subject.phases {
                assert!(phase.summary.mops.unwrap() > 0.0, "{} {}", subject.name, phase.name);
                assert!(phase.summary.cpu_ns_per_op.unwrap() > 0.0);
            }
        }
    }
}

#[test]
fn presized_tables_pass_too() {
    let indexes = some_indexes();
    let config = Config { indexes, presize: true, keys: 3000, rounds: 1, ..config(2) };
    drive_by_name(&config, &mut Kept::default()).unwrap();
}

#[test]
fn a_wrong_answer_fails_the_run_in_the_phase_where_it_shows() {
    let faults = [
        (Fault::LosesInsert, Phase::Positive),
        (Fault::WrongWord, Phase::Positive),
        (Fault::InventsKey, Phase::Negative),
        (Fault::MixesBatch, Phase::GetMany),
        (Fault::LosesUpdate, Phase::Mixed),
        (Fault::KeepsRemoved, Phase::Negative),
    ];
    for (fault, shows_in) in faults {
        for threads in [1, 2] {
            match run(fault, &config(threads)) {
                Err(LabError::WrongAnswer { index: "faulty", phase, .. }) => {
                    assert_eq!(phase, shows_in.name(), "{fault:?}");
                }
                other => panic!("{fault:?}: {:?}", other.map(|both| both.0)),
            }
        }
    }
}

/// Where no phase detects the fault, the check of the whole content does.
#[test]
fn a_wrong_table_fails_the_run_whatever_the_phases() {
    let alone = |phase| Config { plan: Plan::Phases(vec![phase]), ..config(1) };
    for (fault, phase) in [
        (Fault::LosesInsert, Phase::Insert),
        (Fault::LosesUpdate, Phase::Update),
        (Fault::KeepsRemoved, Phase::Delete),
    ] {
        let error = run(fault, &alone(phase)).unwrap_err();
        assert!(matches!(error, LabError::WrongAnswer { .. }), "{fault:?}: {error}");
    }
    let error = run(Fault::Miscounts, &alone(Phase::Insert)).unwrap_err().to_string();
    assert_eq!(error, "faulty says that it holds 10001 pairs, but 10000 were left in it");
}

#[test]
fn a_failing_operation_names_the_table_and_keeps_the_reason() {
    let error = run(Fault::Fails, &config(2)).unwrap_err().to_string();
    assert!(error.starts_with("faulty failed: damaged at offset"), "{error}");
    assert!(error.contains("the test's doing"), "{error}");
}

#[test]
fn counters_are_divided_by_operations() {
    let (report, _) = run(Fault::None, &config(2)).unwrap();
    for phase in &report.subjects[0].phases {
        let record = &phase.summary;
        assert_eq!(record.flushes_per_op, Some(1.0), "{}", phase.name);
        assert_eq!(record.fences_per_op, Some(2.0));
        assert_eq!(record.lines_read_per_op, Some(3.0));
        let written = match phase.name.parse().unwrap() {
            Phase::Insert | Phase::InsertMany => 1.0,
            Phase::Mixed => 0.2,
            _ => 0.0,
        };
        assert_eq!(record.lines_written_per_op, Some(written), "{}", phase.name);
        let blocks = (record.blocks_read_per_op, record.blocks_written_per_op);
        assert_eq!(blocks, (Some(2.0), Some(written)), "{}", phase.name);
    }
}

#[test]
fn space_is_reported_as_it_is_after_the_phase() {
    let (report, _) = run(Fault::None, &config(1)).unwrap();
    let of = |at: usize| {
        let record = &report.subjects[0].phases[at].summary;
        (record.load_factor.unwrap(), record.pm_bytes.unwrap())
    };
    // 10,000 pairs in 16,384 places, 12,000 after the mixed phase, and the 2,000 it added after
    // deletion.
    assert_eq!(of(0), (10_000.0 / 16_384.0, 16 * 16_384));
    assert_eq!(of(4), of(0));
    assert_eq!(of(5), (12_000.0 / 16_384.0, 16 * 16_384));
    assert_eq!(of(6), (2_000.0 / 2_048.0, 16 * 2_048));
}

#[test]
fn every_table_has_a_turn_and_every_round_an_order() {
    let orders: Vec<_> = (0..9).map(|round| turns(5, 1, round)).collect();
    assert_eq!(orders[0], [0, 1, 2, 3, 4]);
    for order in &orders {
        assert!((0..5).all(|at| order.contains(&at)), "{order:?}");
    }
    assert!(orders.windows(2).all(|two| two[0] != two[1]), "{orders:?}");
}

#[test]
fn tables_take_turns() {
    let entries = [faulty(Fault::None), subject("reference").unwrap()];
    let config = Config { plan: Plan::Phases(vec![Phase::Insert, Phase::Delete]), ..config(1) };
    let mut kept = Kept::default();
    drive(&entries, &config, &mut kept).unwrap();
    let order: Vec<_> = kept
        .records
        .iter()
        .map(|record| (record.index.as_str(), record.phase.as_str(), record.round))
        .collect();
    let both = |index, round| [(index, "insert", round), (index, "delete", round)];
    let names = ["faulty", "reference"];
    let second = turns(2, config.seed, 1);
    let expected = [
        both(names[0], Some(0)),
        both(names[1], Some(0)),
        both(names[second[0]], Some(1)),
        both(names[second[1]], Some(1)),
        both(names[0], None),
        both(names[1], None),
    ];
    assert_eq!(order, expected.concat());
    assert_eq!(kept.steps, kept.stepped.len() as u64);
}

/// No machine is quiet enough for this limit, so every attempt is void, and the number of attempts
/// is bounded.
#[test]
fn disturbed_rounds_are_repeated_and_then_marked() {
    static BUILT: AtomicUsize = AtomicUsize::new(0);
    let factory: Factory = |_, setup| {
        BUILT.fetch_add(1, Relaxed);
        faulty(Fault::None).build(setup)
    };
    let entry = Entry { factory, ..faulty(Fault::None) };
    let config = Config {
        quiet: Quiet { limit: -1.0, retries: 2, ..Quiet::NOT_NEEDED },
        plan: Plan::Phases(vec![Phase::Insert, Phase::Positive]),
        ..config(1)
    };
    let report = drive(&[entry], &config, &mut Kept::default()).unwrap();
    // Two rounds and the latencies, three times each; the counters once.
    assert_eq!(BUILT.load(Relaxed), 3 * 3 + 1);
    let subject = &report.subjects[0];
    assert_eq!(subject.repeated, 3 * 2);
    for phase in &subject.phases {
        assert!(phase.summary.void && phase.rounds.iter().all(|record| record.void));
        assert!(phase.summary.mops.is_some());
    }
}

#[test]
fn short_phases_are_judged_together() {
    let used = |seconds, foreign| CpuUse { seconds, own: 0.0, foreign };
    let long = [used(1.0, Some(0.5)), used(0.1, Some(0.1)), used(0.9, Some(0.0))];
    // The second took ten ticks, too few to be judged alone: 0.6 s of 2 s together.
    assert_eq!(foreign_shares(&long), [Some(0.5), Some(0.3), Some(0.0)]);
    assert_eq!(foreign_shares(&[used(1.0, None), used(0.1, Some(0.0))]), [None, None]);
    assert_eq!(foreign_shares(&[]), []);
}

#[test]
fn impossible_settings_are_explained() {
    let message = |config: Config| run(Fault::None, &config).map(drop).unwrap_err().to_string();
    let base = || config(1);
    assert!(message(Config { keys: 0, ..base() }).contains("at least one key"));
    let many = message(Config { keys: u64::MAX, ..base() });
    assert!(many.contains("MiB are free; take fewer keys"), "{many}");
    assert!(message(Config { threads: 0, ..base() }).contains("at least one thread"));
    assert!(message(Config { threads: 257, ..base() }).contains("at most 256 threads"));
    assert!(message(Config { rounds: 0, counts: false, ..base() }).contains("at least one round"));
    assert!(message(Config { batch: 0, ..base() }).contains("at least one key in a batch"));
    assert!(
        message(Config { plan: Plan::Phases(vec![]), ..base() }).contains("at least one phase")
    );
    let parts =
        |keys, threads| message(Config { keys, plan: Plan::Parts(parts(500)), ..config(threads) });
    assert!(parts(1999, 2).contains("1999 keys are too few for this number of operations"));
    assert!(parts(2000, 1).contains("more threads than there are"));
    let nowhere = Some("/no/such/place".into());
    let lost = Config { medium: MediumKind::Process, location: nowhere, ..base() };
    assert!(message(lost).contains("/no/such/place is no directory; medium `process`"));
    let none = drive_by_name(&base(), &mut Kept::default()).unwrap_err().to_string();
    assert!(none.contains("at least one index"), "{none}");
}

#[test]
fn errors_about_unknown_names_list_the_known_ones() {
    let config = Config { indexes: vec!["refernce".into()], ..config(1) };
    let error = drive_by_name(&config, &mut Kept::default()).unwrap_err().to_string();
    assert!(error.starts_with("unknown index `refernce`; known are: "), "{error}");
    for entry in subjects() {
        assert!(error.contains(entry.name), "{error}");
    }
    let medium = "drum".parse::<MediumKind>().unwrap_err().to_string();
    assert!(medium.contains("`drum`; known are: dram, process, forced, emulated"), "{medium}");
}

#[test]
fn limits_are_measured_in_the_same_rounds() {
    let config = Config { limits: true, plan: Plan::Phases(vec![Phase::GetMany]), ..config(2) };
    let (report, kept) = run(Fault::None, &config).unwrap();
    let limits = report.limits.unwrap();
    assert!(limits.dependent_load_ns > 0.0 && limits.mlines(1).unwrap() > 0.0);
    let figures = &report.subjects[0].phases[0].summary;
    assert!(limits.share(figures).unwrap() > 0.0);
    assert!(kept.records.iter().any(|record| record.index == "machine"));
    assert_eq!(kept.steps, kept.stepped.len() as u64);
}

fn blend(name: &str, keys: Distribution, ops: u64) -> Plan {
    Plan::Blend(Blend { mix: name.parse().unwrap(), keys, theta: 0.99, ops })
}

#[test]
fn every_table_passes_every_mix() {
    for mix in mixes() {
        let indexes: Vec<_> = match mix.scans() {
            true => vec!["rwlock-btreemap".to_owned()],
            // A lookup there may miss a key that is being updated.
            false => some_indexes().into_iter().filter(|name| name != "scc-hashindex").collect(),
        };
        let plan = blend(mix.name, mix.keys, 6000);
        let config = Config { indexes, keys: 1000, rounds: 1, plan, ..config(3) };
        let driven = drive_by_name(&config, &mut Kept::default()).unwrap();
        for subject in driven.subjects {
            let summary = &subject.phases[0].summary;
            assert_eq!((subject.phases.len(), subject.phases[0].name), (1, mix.name));
            assert_eq!((summary.ops, summary.keys), (6000, 1000));
            assert_eq!(summary.distribution, Some(mix.keys.name()));
        }
    }
}

fn parts(ops: u64) -> Vec<Part> {
    let part = |name, act, threads| Part { name, act, ops, threads, after: 0 };
    let again = |name, act| Part { after: ops, ..part(name, act, 2) };
    vec![
        part("insert", Act::Insert, 1),
        part("get", Act::Positive, 1),
        part("miss", Act::Negative, 1),
        part("update", Act::Update, 1),
        again("insert", Act::Insert),
        again("update", Act::Update),
    ]
}

#[test]
fn every_table_passes_all_parts() {
    let mut parts = parts(500);
    let scan = |threads| Part { name: "scan", act: Act::Scan(50), threads, ..parts[1] };
    parts.extend([scan(1), scan(2)]);
    let (indexes, plan) = (indexes(), Plan::Parts(parts.clone()));
    let config = Config { indexes, keys: 2000, rounds: 1, plan, ..config(2) };
    let mut ordered = Vec::new();
    for subject in drive_by_name(&config, &mut Kept::default()).unwrap().subjects {
        let (load, phases) = subject.phases.split_first().unwrap();
        assert_eq!((load.name, load.summary.ops, load.summary.threads), (LOAD, 2000, 2));
        let scanned = phases.last().unwrap().summary.mops.is_some();
        ordered.extend(scanned.then_some(subject.name));
        for (phase, part) in phases.iter().zip(&parts) {
            assert_eq!((phase.name, phase.summary.ops), (part.name, 500));
            assert_eq!(phase.summary.threads, part.threads);
            // Tables without an order are not asked to scan, and have no figures for scans.
            let asked = scanned || part.name != "scan";
            assert_eq!(phase.summary.mops.is_some_and(|mops| mops > 0.0), asked);
            assert_eq!(phase.summary.p50_ns.is_some(), asked);
        }
    }
    assert!(ordered.contains(&"bplus") && !ordered.contains(&"dash-eh"), "{ordered:?}");
}

/// The fault shows in a part, or when all parts are over.
#[test]
fn a_wrong_answer_fails_parts() {
    // A fault strikes one key in a thousand.
    let all = parts(5000);
    let of = |act| all.iter().copied().filter(|part| part.act == act).collect::<Vec<_>>();
    let faults = [
        (Fault::LosesInsert, all.clone()),
        (Fault::LosesInsert, of(Act::Insert)),
        (Fault::LosesUpdate, of(Act::Update)),
        (Fault::InventsKey, of(Act::Negative)),
        (Fault::WrongWord, of(Act::Positive)),
        (Fault::Miscounts, of(Act::Positive)),
    ];
    for (fault, parts) in faults {
        let config = Config { keys: 20_000, plan: Plan::Parts(parts), ..config(2) };
        let error = run(fault, &config).map(drop).unwrap_err();
        let expected = matches!(error, LabError::WrongAnswer { .. } | LabError::WrongLength { .. });
        assert!(expected, "{fault:?}: {error}");
    }
}

#[test]
fn what_has_no_order_cannot_scan() {
    let plan = blend("e", Distribution::Zipfian, 100);
    let error = run(Fault::None, &Config { plan, ..config(1) });
    assert!(matches!(error, Err(LabError::Unordered { index: "faulty" })));
}

/// A lost update shows at the next read of the same thread, or at the end, whatever the
/// distribution of the keys.
#[test]
fn a_wrong_answer_fails_a_mix() {
    let faults = [
        (Fault::LosesInsert, "c"),
        (Fault::WrongWord, "c"),
        (Fault::LosesUpdate, "a"),
        (Fault::LosesUpdate, "f"),
        (Fault::LosesInsert, "d"),
        (Fault::Miscounts, "c"),
    ];
    for (fault, mix) in faults {
        for distribution in [Distribution::Uniform, Distribution::Scrambled] {
            for threads in [1, 3] {
                let plan = blend(mix, distribution, 40_000);
                let config = Config { plan, ..config(threads) };
                let error = run(fault, &config).map(drop).unwrap_err();
                let expected = matches!(
                    error,
                    LabError::WrongAnswer { .. }
                        | LabError::WrongEnd { .. }
                        | LabError::WrongLength { .. }
                );
                assert!(expected, "{fault:?} {mix} {distribution}: {error}");
            }
        }
    }
}
