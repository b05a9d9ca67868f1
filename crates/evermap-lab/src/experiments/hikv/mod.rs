//! The evaluation of HiKV's paper, figure by figure: HiKV beside what it was compared with.
//!
//! * [`bench`]: what all sections measure with;
//! * [`kinds`]: figure 1, a hash table, a skip list and a B+tree in ordinary memory;
//! * [`operations`]: figures 5 and 6, each operation beside NVStore, FPTree and FPTree_C;
//! * [`mixes`]: figure 7, YCSB; [`model`]: the same on as many processors as the paper had, from
//!   what both sides of HiKV take [`alone`];
//! * [`sweeps`]: figures 8, 9 and 12, by the time of a write, the number of keys, and the time of a
//!   read;
//! * [`ablations`]: figure 10, HiKV without each of its ideas;
//! * [`adaption`]: figure 11, how the threads of a [`pool`] are divided;
//! * [`space`]: figure 13, bytes in both memories;
//! * [`reopening`]: section 4.9, recovery.

use super::definition::Experiment;
use super::settings::{Scale, Setting, Settings, circumstances};
use crate::LabError;
use crate::driver::Config;
use crate::report::{Output, Report, counted};
use crate::subject::MediumKind;
use crate::workload::{KeyValueLengths, Lengths};

mod ablations;
mod adaption;
mod alone;
mod bench;
mod kinds;
mod mixes;
mod model;
mod operations;
mod pool;
mod reopening;
mod space;
mod sweeps;
#[cfg(test)]
mod tests;

use bench::{Bench, Part};

pub(super) const HIKV: Experiment = Experiment {
    name: "hikv",
    about: "HiKV beside NVStore, FPTree, FPTree_C and its own variants: the paper's figures",
    takes: &[
        Setting::FIGURES,
        Setting::KEYS,
        Setting::THREADS,
        Setting::ROUNDS,
        Setting::MEDIUM,
        Setting::PM,
        Setting::HUGE_PAGES,
        Setting::KEY_BYTES,
        Setting::VALUE_BYTES,
        Setting::NO_COUNTS,
        Setting::NO_LATENCIES,
    ],
    run: hikv,
};

/// One or more figures of the paper.
struct Section {
    /// The numbers of the figures.
    figures: &'static [&'static str],
    run: fn(&Bench<'_>, &mut dyn Output) -> Result<Part, LabError>,
}

/// All sections, in the order of the paper.
const SECTIONS: [Section; 9] = [
    Section { figures: &["1"], run: kinds::kinds },
    Section { figures: &["5", "6"], run: operations::operations },
    Section { figures: &["7"], run: mixes::mixes },
    Section { figures: &["8"], run: sweeps::write_latency },
    Section { figures: &["9"], run: sweeps::sizes },
    Section { figures: &["10"], run: ablations::ablations },
    Section { figures: &["11"], run: adaption::adaption },
    Section { figures: &["12"], run: sweeps::read_latency },
    Section { figures: &["13"], run: space::space },
];
/// The last section, which starts processes.
const RECOVERY: &str = "recovery";

fn hikv(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let scale = Scale { keys: 500_000, rounds: 5, quick_keys: 20_000, quick_rounds: 1 };
    let config = settings.config("hikv", &[], scale);
    let lengths = KeyValueLengths {
        keys: settings.key_bytes.unwrap_or(Lengths::Fixed(16)),
        values: settings.value_bytes.unwrap_or(Lengths::Fixed(256)),
    };
    let medium = settings.medium(MediumKind::Emulated);
    let config = Config { medium, threads: 1, lengths: Some(lengths), limits: false, ..config };
    let bench = Bench::new(settings, config);
    let mut report = Report {
        experiment: "hikv",
        title: "a hash index in the medium, a B+tree beside it".into(),
        about: circumstances(&bench.config),
        notes: vec![company()],
        ..Report::default()
    };
    let wanted = wanted(settings)?;
    for section in &SECTIONS {
        if section.figures.iter().any(|figure| wanted.contains(figure)) {
            add(&mut report, (section.run)(&bench, out)?);
        }
    }
    if wanted.contains(&RECOVERY) {
        match settings.program {
            Some(_) => add(&mut report, reopening::reopening(&bench, out)?),
            None => {
                report.notes.push("recovery was not measured: there is no program to kill".into())
            }
        }
    }
    Ok(report)
}

/// Returns the names of the sections that are requested, or of all.
fn wanted(settings: &Settings) -> Result<Vec<&'static str>, LabError> {
    let known = || SECTIONS.iter().flat_map(|one| one.figures).copied().chain([RECOVERY]);
    let Some(names) = &settings.figures else { return Ok(known().collect()) };
    let find = |name: &String| {
        known().find(|figure| figure == name).ok_or_else(|| {
            let known: Vec<_> = known().collect();
            LabError::Config(format!("no figure `{name}`; known are: {}", known.join(", ")))
        })
    };
    names.iter().map(find).collect()
}

fn add(report: &mut Report, part: Part) {
    report.tables.extend(part.tables);
    report.plots.extend(part.plots);
    report.figures.extend(part.figures);
    for note in part.notes {
        if !report.notes.contains(&note) {
            report.notes.push(note);
        }
    }
}

/// Describes how threads share the processors, without which the figures cannot be interpreted.
fn company() -> String {
    format!(
        "{} here; in the paper 16 threads had 16 cores. Backends (all but hikv-sync) and the \
         thread that moves ranges (hikv-par) are threads of their own. If threads share \
         processors, work that is passed to another thread still delays its sender in wall-clock \
         time, so the processor time of the serving thread is the figure that compares.",
        counted(Settings::processors(), "processor"),
    )
}
