//! The two tables pass the conformance kit, the converted one survives every crash, and the page
//! about RECIPE says how many lines differ.

use std::sync::Arc;

use evermap_index::node_lock::Lock;
use evermap_index::testkit::crash::{Workload, assert_survives};
use evermap_index::testkit::crash_states::{
    are_kept, as_operation, created, is_durable_once_served,
};
use evermap_index::testkit::{Instance, PoolSubject, Subject};
use evermap_index::{Index, Result};
use evermap_pm::sim::{Model, Sim};
use evermap_pm::{Guard, Medium, PmU64, Pool};

use super::lines::{self, Converted};
use super::{after, before};

/// Creates tables before the conversion.
struct Before;

impl Instance<u64> for before::Chains {
    fn index(&self) -> &dyn Index<u64> {
        self
    }

    fn pin(&self) -> Guard<'_> {
        self.domain.pin()
    }
}

impl Subject<u64> for Before {
    type Instance = before::Chains;

    fn fresh(&self) -> Result<Self::Instance> {
        Ok(before::Chains::new())
    }
}

/// Creates converted tables.
struct After;

impl PoolSubject<u64> for After {
    type Index = after::Chains<Sim>;

    fn config(&self) {}
}

evermap_index::conformance!(volatile volatile, Before, [u64]);
evermap_index::conformance!(converted, After, [u64]);

#[test]
fn every_crash_is_survived() {
    assert_survives::<u64, _>(&After, Workload::FEW_KEYS, Model::Adr, 0..2);
    assert_survives::<u64, _>(&After, Workload::REOPENING, Model::ProcessDeath, 0..1);
}

#[test]
fn every_crash_of_several_threads_is_survived() {
    assert_survives::<u64, _>(&After, Workload::PARALLEL, Model::Adr, 0..5);
}

const KEY: u64 = 5;

/// Creates a converted table with one pair. Also returns the offset of its chain, and that of the
/// node.
fn one_pair() -> (Sim, Arc<Pool<Sim>>, after::Chains<Sim>, [u64; 2]) {
    let (sim, pool, table): (_, Arc<Pool<Sim>>, after::Chains<Sim>) = created(1 << 20, ());
    table.insert(KEY, 1, &pool.pin()).unwrap();
    let first = sim.load(pool.root(0)) + 64;
    let word = |at: &u64| sim.load(sim.at::<PmU64>(*at).unwrap());
    let chain = (first..).step_by(16).find(|at| word(at) != 0).unwrap();
    (sim.clone(), pool, table, [chain, word(&chain)])
}

/// What a process stored before it died is durable before the next one acts on it.
#[test]
fn what_recovery_finds_is_durable_before_it_is_used() {
    let (sim, pool, table, [chain, node]) = one_pair();
    let words = [chain, node, node + 8, node + 16];
    is_durable_once_served::<u64, _>(&sim, (pool, table), &words, KEY);
}

/// What a lookup finds while a change is under way does not vanish in a crash afterwards.
#[test]
fn a_lookup_makes_durable_what_it_acts_on() {
    for (is_removal, found) in [(false, Some(7)), (true, None)] {
        let (sim, pool, table, [chain, node]) = one_pair();
        assert_eq!(table.get(KEY, &pool.pin()).unwrap(), Some(1));
        let [lock, cell] = [chain + 8, if is_removal { chain } else { node + 8 }]
            .map(|at| sim.at::<PmU64>(at).unwrap());
        sim.checkpoint();
        sim.store_transient(lock, Lock::fresh(pool.generation()).locked().0);
        sim.store(cell, found.unwrap_or(0));
        as_operation(&sim, || assert_eq!(table.get(KEY, &pool.pin()).unwrap(), found));
        are_kept(&sim, [cell], !0);
    }
}

/// Returns the page about RECIPE, in one line.
fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/design/recipe.md");
    std::fs::read_to_string(path).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_page_says_how_many_lines_differ() {
    let stated = lines::of_example().to_string();
    assert!(page().contains(&stated), "the page should say: {stated}");
}

/// The page has the lines of each converted index, and how many of them make something durable. It
/// need not follow each edit.
#[test]
fn the_page_says_how_many_lines_make_indexes_durable() {
    let page = page();
    for index in Converted::ALL {
        let (lines, durable) = index.count();
        let row = page.split_once(&format!("| {} | `{}` | ", index.name, index.folder));
        let cells = row.expect(index.name).1.split(" | ").map(|cell| cell.replace(',', ""));
        let stated: Vec<usize> = cells.map_while(|cell| cell.parse().ok()).collect();
        let is_near = |at: usize, found: usize, by| stated[at].abs_diff(found) <= by;
        let found = format!("{}: {durable} of {lines} lines, and not {stated:?}", index.name);
        assert!(is_near(0, lines, lines / 10) && is_near(1, durable, 2 + durable / 10), "{found}");
    }
}
