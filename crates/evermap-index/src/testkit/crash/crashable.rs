//! Every index of this crate, ready to be crashed.
//!
//! A `static`, so that the campaigns are compiled with this crate and not with each program that
//! runs them.

use evermap_pm::sim::battery::Battery;

use super::{battery, costs};
use crate::hash::cceh::{Locking, Recovery};
use crate::hash::dash;
use crate::hash::level::Resize;
use crate::hash::tranche;
use crate::ordered::{art, bwtree, fast_fair, hot, masstree};
use crate::testkit::tiny;

/// An index that can be crashed, in its smallest form.
pub struct Crashable {
    /// The name.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Creates all campaigns, in full length.
    pub battery: fn() -> Battery,
    /// Creates the campaigns of [`costs`], with this number of images for each seed.
    pub costs: fn(u64) -> Battery,
}

/// Everything that can be crashed, each with its heap and its region.
pub static CRASHABLE: [Crashable; 12] = [
    Crashable {
        name: "dash-eh",
        about: "Dash-EH with segments of 4 buckets",
        battery: || battery("dash-eh", dash::EH_MUTANTS, tiny::DashEh),
        costs: |images| costs("dash-eh", tiny::DashEh, images),
    },
    Crashable {
        name: "dash-lh",
        about: "Dash-LH with segments of 4 buckets",
        battery: || battery("dash-lh", dash::LH_MUTANTS, tiny::DashLh),
        costs: |images| costs("dash-lh", tiny::DashLh, images),
    },
    Crashable {
        name: "cceh",
        about: "CCEH with tiny segments, optimistic locks, lazy recovery",
        battery: || battery("cceh", &[], tiny::Cceh(Locking::Optimistic, Recovery::Lazy)),
        costs: |images| costs("cceh", tiny::Cceh(Locking::Optimistic, Recovery::Lazy), images),
    },
    Crashable {
        name: "level",
        about: "Level hashing with levels of four and two buckets, incremental resizing",
        battery: || battery("level", &[], tiny::Level(Resize::Incremental)),
        costs: |images| costs("level", tiny::Level(Resize::Incremental), images),
    },
    Crashable {
        name: "p-clht",
        about: "P-CLHT with four buckets",
        battery: || battery("p-clht", &[], tiny::PClht),
        costs: |images| costs("p-clht", tiny::PClht, images),
    },
    Crashable {
        name: "line",
        about: "the line hash, beginning with one segment",
        battery: || battery("line", &[], tiny::Line),
        costs: |images| costs("line", tiny::Line, images),
    },
    Crashable {
        name: "tranche",
        about: "the heterogeneous table, beginning with one group of two tranches",
        battery: || battery("tranche", tranche::MUTANTS, tiny::Tranche),
        costs: |images| costs("tranche", tiny::Tranche, images),
    },
    Crashable {
        name: "p-art",
        about: "P-ART, beginning with its root",
        battery: || battery("p-art", art::MUTANTS, tiny::PArt),
        costs: |images| costs("p-art", tiny::PArt, images),
    },
    Crashable {
        name: "fast-fair",
        about: "FAST & FAIR with up to nine records in a node",
        battery: || battery("fast-fair", fast_fair::MUTANTS, tiny::FastFair),
        costs: |images| costs("fast-fair", tiny::FastFair, images),
    },
    Crashable {
        name: "p-bwtree",
        about: "P-BwTree with up to eight keys in a leaf node",
        battery: || battery("p-bwtree", bwtree::MUTANTS, tiny::PBwTree),
        costs: |images| costs("p-bwtree", tiny::PBwTree, images),
    },
    Crashable {
        name: "p-masstree",
        about: "P-Masstree, beginning with one node",
        battery: || battery("p-masstree", masstree::MUTANTS, tiny::PMasstree),
        costs: |images| costs("p-masstree", tiny::PMasstree, images),
    },
    Crashable {
        name: "p-hot",
        about: "P-HOT with nodes of up to five entries",
        battery: || battery("p-hot", hot::MUTANTS, tiny::PHot),
        costs: |images| costs("p-hot", tiny::PHot, images),
    },
];
