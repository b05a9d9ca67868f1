//! Every persistent index, ready to be crashed.
//!
//! A `static`, so that the campaigns are compiled with this crate and not with each program that
//! runs them.

use evermap_index::hash::dash;
use evermap_index::ordered::art;
use evermap_index::testkit::crash::{battery, costs};
use evermap_index::testkit::tiny as kit;
use evermap_pm::sim::battery::Battery;

use super::tiny;
use crate::cceh::{Locking, Recovery};
use crate::level::Resize;
use crate::{bwtree, dash_lh, fast_fair, hot, masstree, tranche};

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

macro_rules! crashable {
    ($name:literal, $about:literal, $mutants:expr, $subject:expr) => {
        Crashable {
            name: $name,
            about: $about,
            battery: || battery($name, $mutants, $subject),
            costs: |images| costs($name, $subject, images),
        }
    };
}

/// Everything that can be crashed, each with its heap and its region.
pub static CRASHABLE: [Crashable; 12] = [
    crashable!("dash-eh", "Dash-EH with segments of 4 buckets", dash::EH_MUTANTS, kit::DashEh),
    crashable!("dash-lh", "Dash-LH with segments of 4 buckets", dash_lh::MUTANTS, tiny::DashLh),
    crashable!(
        "cceh",
        "CCEH with tiny segments, optimistic locks, lazy recovery",
        &[],
        tiny::Cceh(Locking::Optimistic, Recovery::Lazy)
    ),
    crashable!(
        "level",
        "Level hashing with levels of four and two buckets, incremental resizing",
        &[],
        tiny::Level(Resize::Incremental)
    ),
    crashable!("p-clht", "P-CLHT with four buckets", &[], kit::PClht),
    crashable!("line", "the line hash, beginning with one segment", &[], tiny::Line),
    crashable!(
        "tranche",
        "the heterogeneous table, beginning with one group of two tranches",
        tranche::MUTANTS,
        tiny::Tranche
    ),
    crashable!("p-art", "P-ART, beginning with its root", art::MUTANTS, kit::PArt),
    crashable!(
        "fast-fair",
        "FAST & FAIR with up to nine records in a node",
        fast_fair::MUTANTS,
        tiny::FastFair
    ),
    crashable!(
        "p-bwtree",
        "P-BwTree with up to eight keys in a leaf node",
        bwtree::MUTANTS,
        tiny::PBwTree
    ),
    crashable!(
        "p-masstree",
        "P-Masstree, beginning with one node",
        masstree::MUTANTS,
        tiny::PMasstree
    ),
    crashable!("p-hot", "P-HOT with nodes of up to five entries", hot::MUTANTS, tiny::PHot),
];
