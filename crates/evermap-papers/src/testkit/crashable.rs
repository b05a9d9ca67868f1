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
use crate::level::{self, Resize};
use crate::{bwtree, dash_lh, fast_fair, fptree, hikv, hot, masstree, names, nvtree, tranche};

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
    ($name:expr, $about:literal, $mutants:expr, $subject:expr) => {
        Crashable {
            name: $name,
            about: $about,
            battery: || battery($name, $mutants, $subject),
            costs: |images| costs($name, $subject, images),
        }
    };
}

/// Everything that can be crashed, each with its heap and its region.
pub static CRASHABLE: [Crashable; 16] = [
    crashable!(names::DASH_EH, "Dash-EH with segments of 4 buckets", dash::EH_MUTANTS, kit::DashEh),
    crashable!(
        names::DASH_LH,
        "Dash-LH with segments of 4 buckets",
        dash_lh::MUTANTS,
        tiny::DashLh
    ),
    crashable!(
        names::CCEH,
        "CCEH with tiny segments, optimistic locks, lazy recovery",
        &[],
        tiny::Cceh(Locking::Optimistic, Recovery::Lazy)
    ),
    crashable!(
        names::LEVEL,
        "Level hashing with levels of four and two buckets, incremental resizing",
        &[],
        tiny::Level(Resize::Incremental, level::Locking::Optimistic)
    ),
    crashable!(names::P_CLHT, "P-CLHT with four buckets", &[], kit::PClht),
    crashable!(names::LINE_HASH, "the line hash, beginning with one segment", &[], tiny::Line),
    crashable!(
        names::TRANCHE_256,
        "the heterogeneous table, beginning with one group of two tranches",
        tranche::MUTANTS,
        tiny::Tranche
    ),
    crashable!(names::P_ART, "P-ART, beginning with its root", art::MUTANTS, kit::PArt),
    crashable!(
        names::FAST_FAIR,
        "FAST & FAIR with up to nine records in a node",
        fast_fair::MUTANTS,
        tiny::FastFair
    ),
    crashable!(
        names::FP_TREE,
        "FPTree with up to eight entries in a leaf",
        fptree::MUTANTS,
        tiny::FpTree
    ),
    crashable!(
        names::P_BWTREE,
        "P-BwTree with up to eight keys in a leaf node",
        bwtree::MUTANTS,
        tiny::PBwTree
    ),
    crashable!(
        names::P_MASSTREE,
        "P-Masstree, beginning with one node",
        masstree::MUTANTS,
        tiny::PMasstree
    ),
    crashable!(
        names::NV_TREE,
        "NV-Tree with up to eight entries in a leaf",
        nvtree::MUTANTS,
        tiny::NvTree
    ),
    crashable!(
        names::HIKV,
        "HiKV with two partitions, beginning with one bucket each",
        hikv::MUTANTS,
        tiny::HiKv
    ),
    crashable!(
        names::HIKV_WAL,
        "HiKV with a log, in the same size",
        hikv::LOG_MUTANTS,
        tiny::HiKvWal
    ),
    crashable!(names::P_HOT, "P-HOT with nodes of up to five entries", hot::MUTANTS, tiny::PHot),
];
