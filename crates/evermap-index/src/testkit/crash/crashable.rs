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
use crate::ordered::{art, fast_fair};
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
pub static CRASHABLE: [Crashable; 9] = [
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
        about: "FAST & FAIR, beginning with one node",
        battery: || battery("fast-fair", fast_fair::MUTANTS, tiny::FastFair),
        costs: |images| costs("fast-fair", tiny::FastFair, images),
    },
];
