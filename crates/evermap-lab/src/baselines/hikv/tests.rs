//! Every variant through the driver, on every medium.

use evermap_pm::medium::{Pages, Speed};

use super::*;
use crate::driver::{Config, Plan, Quiet, drive};
use crate::subject::{File, MediumKind};
use crate::testing::{Kept, media_everywhere, mixes};
use crate::workload::{Blend, KeyValueLengths, Phase, Zipf};

fn config(medium: MediumKind, plan: Plan) -> Config {
    Config {
        keys: 800,
        threads: 2,
        rounds: 1,
        medium,
        speed: Speed { persist_ns: 50, ..Speed::CUSTOMARY },
        quiet: Quiet::NOT_NEEDED,
        limits: false,
        latency: false,
        counts: false,
        plan,
        lengths: Some(KeyValueLengths {
            keys: "8-40".parse().unwrap(),
            values: "8-300".parse().unwrap(),
        }),
        ..Config::default()
    }
}

#[test]
fn variants_pass_all_phases_on_every_medium_and_leave_no_file() {
    let location = std::env::temp_dir().join(format!("lab-hikv-{}", std::process::id()));
    std::fs::create_dir(&location).unwrap();
    for medium in media_everywhere() {
        let phases = config(medium, Plan::Phases(Phase::ALL.to_vec()));
        let speed = Speed { read_ns: 20, ..phases.speed };
        let config = Config { location: Some(location.clone()), speed, ..phases };
        let driven = drive(&ENTRIES, &config, &mut Kept::default()).unwrap();
        assert_eq!(driven.subjects.len(), ENTRIES.len());
        for subject in &driven.subjects {
            let record = &subject.phases[0].summary;
            assert_eq!(record.medium, medium.name());
            assert!(record.load_factor.unwrap() > 0.05 && record.pm_bytes.unwrap() > 0);
            assert!(record.dram_bytes.unwrap() > 0);
        }
    }
    assert_eq!(std::fs::read_dir(&location).unwrap().count(), 0);
    std::fs::remove_dir(&location).unwrap();
}

#[test]
fn variants_pass_every_mix() {
    for mix in mixes() {
        let blend = Blend { mix, keys: mix.keys, theta: Zipf::YCSB, ops: 1500 };
        drive(&ENTRIES, &config(MediumKind::Dram, Plan::Blend(blend)), &mut Kept::default())
            .unwrap();
    }
}

/// A file that a store has left is opened again, and there are as many keys in it.
#[test]
fn files_are_opened_again() {
    let path = std::env::temp_dir().join(format!("lab-hikv-file-{}", std::process::id()));
    for entry in ENTRIES {
        let setup = Setup::new(MediumKind::Process, None, Pages::Base, 10, None).unwrap();
        let lengths = Some(KeyValueLengths::WORDS);
        let new = Setup { file: File::New(path.clone()), lengths, ..setup };
        let old = Setup { file: File::Existing(path.clone()), ..new.clone() };
        drop(entry.build(&new).unwrap());
        assert_eq!(entry.build(&old).unwrap().size().unwrap().len, Some(0));
        std::fs::remove_file(&path).unwrap();
    }
}
