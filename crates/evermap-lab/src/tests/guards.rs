//! How often a subject takes a guard.

use crate::subject::{Guards, Measured, Subject, Work};
use crate::testing::{Fault, Faulty, work};
use crate::workload::{Kind, Op, Phase};
use std::sync::atomic::Ordering::Relaxed;

#[test]
fn guards_are_kept_as_long_as_the_policy_says() {
    let inserts = vec![Op { kind: Kind::Insert, own: 0 }; 1000];
    let keys: Vec<_> = (0..1000).collect();
    let guards = |guards, phase, batch| {
        let subject = Measured { name: "faulty", table: Faulty::new(Fault::None), guards };
        let work = Work { batch, ..work(phase, &keys) };
        if phase == Phase::Mixed {
            subject.run(Work { ops: &inserts, ..work }).unwrap();
            return subject.table.guards.load(Relaxed);
        }
        subject.run(Work { phase: Phase::Insert, ..work }).unwrap();
        let before = subject.table.guards.load(Relaxed);
        if phase == Phase::Insert {
            return before;
        }
        subject.run(work).unwrap();
        subject.table.guards.load(Relaxed) - before
    };
    for phase in [Phase::Insert, Phase::Positive, Phase::Update, Phase::Mixed, Phase::Delete] {
        assert_eq!(guards(Guards::PerOperation, phase, 1), 1000, "{phase}");
        assert_eq!(guards(Guards::PerBatch(64), phase, 1), 16, "{phase}");
    }
    // Batches of 30 are 34 calls; three calls reach the 64 operations of a guard.
    assert_eq!(guards(Guards::PerOperation, Phase::GetMany, 30), 34);
    assert_eq!(guards(Guards::PerBatch(64), Phase::GetMany, 30), 12);
}
