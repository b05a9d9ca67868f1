//! How full one segment gets, by its size and by the technique.

use evermap_index::hash::dash;
use evermap_index::{DashEh, Index, Persistent};
use evermap_pm::Pool;
use evermap_pm::medium::{FlushKind, Mapped, Medium, Pages};
use evermap_pm::region::{Identity, RegionConfig};

use super::definition::{Experiment, drive};
use super::settings::{Scale, Setting, Settings, circumstances};
use crate::LabError;
use crate::driver::{Config, Plan};
use crate::experiments::tables::{bars, notes};
use crate::report::Output;
use crate::report::{Figure, Grid, Marks, Plot, Point, Report, Series};
use crate::workload::Phase;
use crate::workload::bytes::draw;

/// The number of slots of a bucket.
const SLOTS: usize = 14;
/// Sizes of segments, in buckets of 256 bytes: 1 to 128 KiB.
const BUCKETS: [usize; 8] = [4, 8, 16, 32, 64, 128, 256, 512];

pub(super) const SEGMENT_SIZE: Experiment = Experiment {
    name: "segment-size",
    about: "how full one segment gets by size and technique, and the speed of each size",
    takes: &[
        Setting::KEYS,
        Setting::THREADS,
        Setting::ROUNDS,
        Setting::HUGE_PAGES,
        Setting::SAMPLES,
    ],
    run: segment_size,
};

fn segment_size(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let seed = settings.seed.unwrap_or(1);
    let trials = settings.samples.unwrap_or(if settings.quick { 20 } else { 200 });
    if trials == 0 {
        return Err(LabError::Config("there must be at least one sample".into()));
    }
    let mean = |fill: &dyn Fn(u64) -> f64| {
        (0..trials).map(|trial| fill(draw(seed, 11, trial))).sum::<f64>() / trials as f64
    };
    let columns: Vec<_> = BUCKETS.iter().map(|buckets| format!("{} KiB", buckets / 4)).collect();
    let columns: Vec<_> = columns.iter().map(String::as_str).collect();
    let title = "Load factor of a segment when the first record does not fit (mean)";
    let mut grid = Grid::new(title, &columns);
    let mut lines = Vec::new();
    for technique in Technique::ALL {
        let full: Vec<_> =
            BUCKETS.iter().map(|&buckets| mean(&|seed| technique.fill(buckets, seed))).collect();
        add(&mut grid, &mut lines, technique.name(), &full);
    }
    let here: [Fill; 5] = [fill::<4, 2>, fill::<8, 2>, fill::<16, 2>, fill::<32, 2>, fill::<64, 2>];
    let mut full = Vec::new();
    for fill in here {
        let mut sum = 0.0;
        for trial in 0..trials {
            sum +=
                fill(draw(seed, 12, trial)).map_err(|error| LabError::index("dash-eh", error))?;
        }
        full.push(sum / trials as f64);
    }
    add(&mut grid, &mut lines, "dash-eh, as built (2 stash buckets)", &full);
    let at = |row: usize, column: usize| grid.rows[row].1.get(column).cloned();
    let figures = vec![
        figure("bucketized, 1 KiB", "0.80 at most", at(0, 0)),
        figure("bucketized, 128 KiB", "0.40 at most", at(0, 7)),
        figure("+ probing, 128 KiB", "0.20 more", at(1, 7)),
        figure("+ balanced insert and displacement, 128 KiB", "0.20 more", at(2, 7)),
        figure(
            "+ stash, 1 to 16 KiB",
            "close to 1",
            at(3, 0).zip(at(3, 4)).map(|(small, large)| format!("{small} to {large}")),
        ),
    ];
    let plot = Plot {
        title: "Load factor of one segment".into(),
        x: "KiB".into(),
        y: "load factor".into(),
        log_x: true,
        marks: Marks::Lines,
        series: lines,
    };
    let driven_config = speed(settings);
    let driven = drive(&driven_config, out)?;
    let mut tables = vec![grid];
    tables.extend(crate::experiments::tables::grids(&driven));
    let mut notes = notes(&driven);
    notes.insert(
        0,
        "All rows but the last are a model: it only counts records into buckets of 14 by hash."
            .into(),
    );
    Ok(Report {
        experiment: "segment-size",
        title: "what fits into a segment".into(),
        about: format!("{trials} trials each; speed: {}", circumstances(&driven_config)),
        figures,
        tables,
        plots: vec![plot, bars(&driven, "Speed of Dash-EH by size of segment")],
        notes,
    })
}

fn figure(what: &str, paper: &str, here: Option<String>) -> Figure {
    Figure { what: what.into(), paper: paper.into(), here }
}

fn add(grid: &mut Grid, lines: &mut Vec<Series>, name: &str, full: &[f64]) {
    let mut cells: Vec<_> = full.iter().map(|full| format!("{full:.2}")).collect();
    cells.resize(BUCKETS.len(), "-".into());
    grid.push(name, cells);
    let points = BUCKETS.iter().zip(full);
    let points = points.map(|(&buckets, &full)| Point::new(buckets as f64 / 4.0, full)).collect();
    lines.push(Series { name: name.into(), points });
}

/// Returns how to measure the speed of the index with segments of 1 to 16 KiB.
fn speed(settings: &Settings) -> Config {
    let usual = ["dash-eh-1k", "dash-eh-2k", "dash-eh-4k", "dash-eh-8k", "dash-eh"];
    let scale = Scale { keys: 4_000_000, rounds: 5, quick_keys: 1_000_000, quick_rounds: 3 };
    Config {
        plan: Plan::Phases(vec![Phase::Insert, Phase::Positive, Phase::Negative]),
        latency: false,
        limits: false,
        ..settings.config("segment-size", &usual, scale)
    }
}

type Fill = fn(u64) -> evermap_pm::Result<f64>;

/// Fills one segment of `B` buckets and `S` stash buckets until it is split. Returns its load.
fn fill<const B: usize, const S: usize>(seed: u64) -> evermap_pm::Result<f64> {
    // The medium that the indexes are compiled for anyway.
    let medium = Mapped::anonymous(64 << 20, Pages::Base, FlushKind::Process)?;
    let config =
        RegionConfig { capacity: medium.capacity(), seed: Some(seed), ..Default::default() };
    let pool = Pool::create(medium, &config, Identity::default())?;
    let config = dash::Config { initial_depth: 0 };
    let index = DashEh::<u64, _, dash::Sizes<B, S>>::create(pool.clone(), pool.root(0), config)?;
    let guard = pool.pin();
    let capacity = index.stats(&guard)?.capacity;
    // More records than slots force a split.
    for records in 0..=capacity {
        index.insert(draw(seed, 13, records), 0, &guard)?;
        if index.stats(&guard)?.splits > 0 {
            return Ok(records as f64 / capacity as f64);
        }
    }
    Ok(1.0)
}

/// What is done to fit a record in. Each technique includes those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Technique {
    /// Nothing but the home bucket.
    Bucketized,
    /// Then the next bucket.
    Probing,
    /// The emptier of the two; if both are full, a record of one of them is displaced.
    Balanced,
    /// If that fails, two stash buckets.
    Stash,
}

impl Technique {
    const ALL: [Technique; 4] =
        [Technique::Bucketized, Technique::Probing, Technique::Balanced, Technique::Stash];

    fn name(self) -> &'static str {
        match self {
            Technique::Bucketized => "bucketized",
            Technique::Probing => "+ probing",
            Technique::Balanced => "+ balanced insert and displacement",
            Technique::Stash => "+ stash of two buckets",
        }
    }

    /// Fills a segment of this many buckets with random records until one does not fit. Returns its
    /// load.
    fn fill(self, buckets: usize, seed: u64) -> f64 {
        let stash = if self >= Technique::Stash { 2 * SLOTS } else { 0 };
        let places = buckets * SLOTS + stash;
        // Records of each bucket that are in their home bucket, and that belong to the bucket
        // before.
        let (mut native, mut guest) = (vec![0usize; buckets], vec![0usize; buckets]);
        let mut stashed = 0;
        for records in 0..places {
            let home = (draw(seed, 14, records as u64) % buckets as u64) as usize;
            let (before, next) = ((home + buckets - 1) % buckets, (home + 1) % buckets);
            let after = (next + 1) % buckets;
            let full = |bucket: usize| native[bucket] + guest[bucket] == SLOTS;
            let count = |bucket: usize| native[bucket] + guest[bucket];
            let to_next = match self {
                Technique::Bucketized => false,
                Technique::Probing => full(home),
                _ => count(next) < count(home),
            };
            if to_next && !full(next) {
                guest[next] += 1;
            } else if !full(home) {
                native[home] += 1;
            } else if self >= Technique::Balanced && native[next] > 0 && !full(after) {
                // A record whose home is the next bucket is displaced, and frees its slot.
                native[next] -= 1;
                guest[after] += 1;
                guest[next] += 1;
            } else if self >= Technique::Balanced && guest[home] > 0 && !full(before) {
                // A record of the bucket before returns to its home.
                guest[home] -= 1;
                native[before] += 1;
                native[home] += 1;
            } else if stashed < stash {
                stashed += 1;
            } else {
                return records as f64 / places as f64;
            }
        }
        1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(technique: Technique, buckets: usize) -> f64 {
        (0..50).map(|seed| technique.fill(buckets, seed)).sum::<f64>() / 50.0
    }

    /// Each technique fits more in, and the more so the larger the segment is, as in the paper.
    #[test]
    fn techniques_add_up() {
        for buckets in BUCKETS {
            for pair in Technique::ALL.windows(2) {
                assert!(mean(pair[0], buckets) < mean(pair[1], buckets) + 0.01);
            }
        }
        assert!(mean(Technique::Bucketized, 4) > mean(Technique::Bucketized, 512) + 0.2);
        assert!((0.3..0.5).contains(&mean(Technique::Bucketized, 512)));
        assert!(mean(Technique::Stash, 64) > 0.9);
    }

    /// A segment of the index fits as much in as the model of all techniques, or more.
    #[test]
    fn the_model_and_the_index_agree() {
        let built: f64 = (0..20).map(|seed| fill::<64, 2>(seed).unwrap()).sum::<f64>() / 20.0;
        let model = mean(Technique::Stash, 64);
        assert!(built > model - 0.03 && built <= 1.0, "{built} {model}");
    }
}
