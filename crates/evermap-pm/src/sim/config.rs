//! The configuration of a campaign.

use super::coverage::Pruning;
use super::image::ImageConfig;
use super::mutation::Mutation;
use super::schedule::Strategy;

/// How much to try.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Maximum size of the structure's medium, in bytes.
    pub capacity: u64,
    /// Which images to build.
    pub images: ImageConfig,
    /// Whether recovery runs on undecided memory if there are many images, so that images that it
    /// cannot distinguish are tried once. Otherwise all are built, or a selection of them.
    pub undecided: bool,
    /// Which crash points to treat in full.
    pub pruning: Pruning,
    /// Crashes of recoveries.
    pub nested: Nested,
    /// Maximum number of images verified for one seed. The crash points of the workload share one
    /// half of it evenly (all of it without nested crashes); crashes of recoveries get the rest.
    pub max_images: u64,
    /// Number of failed images after which to stop.
    pub max_failed: u64,
    /// Number of accesses after which a recovery with its probe counts as hanging.
    pub steps: u64,
    /// How threads take turns that a workload starts [in parallel](super::Sim::in_parallel).
    pub strategy: Strategy,
    /// Whether the workload of a violation is made as short as possible, which takes up to some
    /// thousand images.
    pub shrink: bool,
    /// A deliberate mistake.
    pub mutation: Option<Mutation>,
}

/// Which recoveries to crash: the first eight of each kind, and a sample of the rest. Recoveries
/// are of the same kind if they execute the same sites (of stores, flushes and fences, in any
/// order) and follow crashes that look the same.
#[derive(Clone, Copy, Debug)]
pub struct Nested {
    /// Maximum number of crashes after the first. Of recoveries from a second crash, only the
    /// newest kind is crashed again.
    pub depth: usize,
    /// Maximum number of images at one point.
    pub per_point: u64,
    /// One in this many recoveries of a known kind is crashed.
    pub every: u64,
    /// Which of their crash points to treat in full.
    pub pruning: Pruning,
    /// Number of crash points after each recovery, in the probe.
    pub probe_points: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            capacity: 256 << 10,
            images: ImageConfig::default(),
            undecided: true,
            pruning: Pruning::default(),
            nested: Nested {
                depth: 1,
                per_point: 4,
                every: 64,
                pruning: Pruning { first: 2, every: 16, images: 0 },
                probe_points: 16,
            },
            max_images: 100_000,
            max_failed: 4,
            steps: 1_000_000,
            strategy: Strategy::default(),
            shrink: false,
            mutation: None,
        }
    }
}
