//! The experiments, by name.

use crate::LabError;

mod allocation;
pub(crate) mod counts;
mod definition;
mod durable;
mod hikv;
pub mod killed;
mod large_values;
mod load_factor;
mod model;
mod on_disk;
mod queues;
mod recovery;
mod resize;
mod segment;
mod servers;
mod settings;
mod short_records;
mod stores;
mod sweeps;
mod tables;
mod words;
mod ycsb;

pub use definition::{Experiment, drive};
pub use servers::serve_engine;
pub use settings::{Setting, Settings, speed_called};

/// Every experiment, in the order in which `all` runs them.
pub const EXPERIMENTS: &[Experiment] = &[
    words::MICRO,
    counts::COUNTS,
    words::SCALE,
    words::DATASET_SIZE,
    words::VARIABLE_KEYS,
    load_factor::LOAD_FACTOR,
    segment::SEGMENT_SIZE,
    words::FINGERPRINTS,
    words::OVERFLOW_METADATA,
    words::LOCKING,
    sweeps::LATENCY_SWEEP,
    sweeps::MEMORY,
    ycsb::YCSB,
    stores::STORES,
    durable::DURABLE,
    large_values::LARGE_VALUES,
    short_records::SHORT_RECORDS,
    on_disk::ON_DISK,
    servers::SERVERS,
    servers::ENGINES,
    hikv::HIKV,
    resize::RESIZE,
    model::MODEL,
    recovery::RECOVERY,
    recovery::AFTER_RECOVERY,
    allocation::ALLOCATION,
];

/// Returns the experiment called `name`.
///
/// # Errors
///
/// `UnknownExperiment`, with the names that are known.
pub fn experiment(name: &str) -> Result<Experiment, LabError> {
    EXPERIMENTS.iter().find(|one| one.name == name).copied().ok_or_else(|| {
        LabError::UnknownExperiment {
            name: name.to_owned(),
            known: EXPERIMENTS.iter().map(|one| one.name).collect(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Kept;

    #[test]
    fn names_are_unique_and_errors_list_the_known_ones() {
        for one in EXPERIMENTS {
            assert_eq!(experiment(one.name).unwrap().about, one.about);
            assert_eq!(EXPERIMENTS.iter().filter(|other| other.name == one.name).count(), 1);
        }
        let error = experiment("mikro").err().unwrap().to_string();
        assert!(
            error.starts_with("unknown experiment `mikro`; known are: micro, counts, scale"),
            "{error}"
        );
    }

    #[test]
    fn settings_that_mean_nothing_are_refused() {
        let settings = Settings { batch: Some(8), ..Settings::default() };
        let error = experiment("memory").unwrap().run(&settings, &mut Kept::default());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("`--batch` does not apply to memory; it takes --index"), "{error}");
    }
}
