//! HiKV.

use evermap_index::testkit::crash::battery;
use evermap_index::testkit::ordered::trees::{Costs, Make};
use evermap_index::testkit::{Coarse, Plain, Pooled};
use evermap_index::{Bytes, crash_campaign, ordered_conformance};
use evermap_papers::hikv::{
    Indexed, LOG_MUTANTS, MUTANTS, NOTICED_ELSEWHERE, Tiny, Usual, mistakes,
};
use evermap_papers::testkit::tiny;
use evermap_pm::sim::{Sim, mutants::Fate};

ordered_conformance!(ordered, Make::<Indexed<Sim, Tiny<false>>>::new());
crash_campaign!(hikv, tiny::HiKv);
crash_campaign!(variant hikv_wal, tiny::HiKvWal);

/// The parts of the kit that ask for what HiKV promises.
mod numbers {
    use super::*;

    evermap_index::conformance!(@parts Pooled(tiny::HiKv), [u64, Plain, Coarse], {
        model::model, concurrent::histories, concurrent::storm, concurrent::growth,
        concurrent::walks
    });
    // Words are not records to the store, so it cannot tell a damaged one from another.
    evermap_index::conformance!(@parts tiny::HiKv, [u64, Plain, Coarse], {
        persistence::sweep, damage::damage
    });
    // An update needs a new item. So a full store refuses updates of words, which `full` asks for;
    // where words are records, it does not.
    evermap_index::conformance!(@parts tiny::HiKv, [Bytes], {
        persistence::full, persistence::reuse
    });
}

mod numbers_with_log {
    use super::*;

    evermap_index::conformance!(@parts Pooled(tiny::HiKvWal), [u64], {
        model::model, concurrent::histories, concurrent::storm, concurrent::growth
    });
    evermap_index::conformance!(@parts tiny::HiKvWal, [u64], {
        persistence::sweep, damage::damage
    });
}

/// Each in the campaign that is the first to notice it.
#[test]
fn planted_mistakes_are_noticed() {
    evermap_pm::sim::keep_panics_quiet();
    let plain = battery("hikv", MUTANTS, tiny::HiKv);
    let logged = battery("hikv-wal", LOG_MUTANTS, tiny::HiKvWal);
    let others = NOTICED_ELSEWHERE.iter().map(|&(mistake, _)| mistake);
    let others: Vec<_> = others.collect();
    for battery in [plain, logged] {
        for mistake in battery.planted.iter().filter(|mistake| !others.contains(mistake)) {
            let trial = match *mistake {
                mistakes::FLAG_STAYS => "reopening",
                _ => "few-keys",
            };
            let mut trials = battery.trials.iter();
            let trial = trials.find(|other| other.name() == trial).unwrap();
            let fate = trial.fate_of_planted(mistake, 2);
            println!("{mistake}: {fate}");
            assert!(!matches!(fate, Fate::Survived(_)), "{mistake}: {fate}");
        }
    }
}

/// One line of the item, or two, and one of the entry, with one fence each; a removal has one.
#[test]
fn changes_flush_an_item_and_an_entry() {
    let costs = Costs::of::<Indexed<Sim, Usual>>();
    let found = costs.found;
    assert_eq!((found.lines_flushed, found.fences, found.stores, found.cas), (0, 0, 0, 0));
    let (lines, fences) = Costs::of_each("update", &costs.updated);
    assert!(lines <= 2.1 && fences <= 2.01, "{:?}", costs.updated);
    let (lines, fences) = Costs::of_each("removal", &costs.removed);
    assert!(lines <= 1.01 && fences <= 1.01, "{:?}", costs.removed);
    // And what splits take.
    let (lines, fences) = Costs::of_each("insert", &costs.inserted);
    assert!(lines <= 4.0 && fences <= 2.6, "{:?}", costs.inserted);
}
