//! How full the heterogeneous table is while it grows, and how many tranches lookups parse, beside
//! a simulation.

use crate::LabError;
use crate::driver::Config;
use crate::experiments::load_factor::insertion;
use crate::experiments::settings::Settings;
use crate::registry::subject;
use crate::report::{Grid, Output};
use crate::subject::{Setup, Size};
use crate::workload::{KeyValueLengths, Lengths, Phase, Stream, Workload};

/// What a simulation with ideal hashes and groups of sixteen (eight) tranches has found: the share
/// of displaced records, and the tranches that a hit and a miss parse.
struct Simulated {
    index: &'static str,
    /// Lengths of keys and values, unless both are words.
    lengths: Option<(u32, u32)>,
    fill: f64,
    displaced: f64,
    hit: f64,
    miss: f64,
}

const WORDS: Simulated = Simulated {
    index: "tranche-256",
    lengths: None,
    fill: 0.0,
    displaced: 0.0,
    hit: 0.0,
    miss: 0.0,
};
const LONGER: Simulated = Simulated { index: "tranche-4k", lengths: Some((16, 256)), ..WORDS };
/// In the simulation, records with keys and values of 8 bytes are in truth ones of 8 to 24 bytes
/// together, all equally often.
const SIMULATED: [Simulated; 9] = [
    Simulated { fill: 0.6, displaced: 0.012, hit: 1.013, miss: 1.07, ..WORDS },
    Simulated { fill: 0.7, displaced: 0.030, hit: 1.04, miss: 1.24, ..WORDS },
    Simulated { fill: 0.8, displaced: 0.064, hit: 1.11, miss: 1.99, ..WORDS },
    Simulated { fill: 0.9, displaced: 0.115, hit: 1.31, miss: 6.1, ..WORDS },
    Simulated { index: "tranche-512", fill: 0.8, displaced: 0.022, hit: 1.03, miss: 1.30, ..WORDS },
    Simulated {
        index: "tranche-4k",
        fill: 0.9,
        displaced: 0.0028,
        hit: 1.003,
        miss: 1.10,
        ..WORDS
    },
    Simulated {
        index: "tranche-32k",
        fill: 0.95,
        displaced: 0.0002,
        hit: 1.0,
        miss: 1.02,
        ..WORDS
    },
    Simulated { fill: 0.7, displaced: 0.026, hit: 1.03, miss: 1.2, ..LONGER },
    Simulated { fill: 0.8, displaced: 0.059, hit: 1.11, miss: 1.96, ..LONGER },
];

/// The most by which a sample's fill may differ from that of a simulation.
const NEAR: f64 = 0.02;
/// The number of samples while a table grows to the experiment's number of records.
const SAMPLES: u64 = 60;

/// Grows a table of each kind to the experiment's number of records, and compares the sample that
/// is nearest in fill with each simulation.
pub(super) fn compare(
    settings: &Settings,
    config: &Config,
    out: &mut dyn Output,
) -> Result<Grid, LabError> {
    let columns = ["fill", "displaced, %", "tranches/hit", "tranches/miss"];
    let title = "Tranches by fill: the simulation's figure, and the one found here";
    let mut grid = Grid::new(title, &columns);
    let mut grown: Vec<(&Simulated, Vec<Size>)> = Vec::new();
    for simulated in &SIMULATED {
        let (index, lengths) = (simulated.index, simulated.lengths);
        if settings.indexes.as_ref().is_some_and(|names| !names.iter().any(|name| name == index)) {
            continue;
        }
        let same =
            |(one, _): &&(&Simulated, Vec<Size>)| (one.index, one.lengths) == (index, lengths);
        let name = match lengths {
            None => format!("{index}, 8/8"),
            Some((key, value)) => format!("{index}, {key}/{value}"),
        };
        if grown.iter().find(same).is_none() {
            out.step(&format!("short-records: {name}, by fill"));
            grown.push((simulated, samples(simulated, config)?));
        }
        let cells = grown.iter().find(same).and_then(|(_, samples)| cells(simulated, samples));
        grid.push(name, cells.unwrap_or_else(|| beside_nothing(simulated)));
    }
    Ok(grid)
}

/// Returns the sizes of a table at samples evenly spaced in the second half of its growth.
fn samples(simulated: &Simulated, config: &Config) -> Result<Vec<Size>, LabError> {
    let fixed =
        |(key, value)| KeyValueLengths { keys: Lengths::Fixed(key), values: Lengths::Fixed(value) };
    let (entry, lengths) = (subject(simulated.index)?, simulated.lengths.map(fixed));
    let location = config.location.clone();
    let setup = Setup::new(config.medium, location, config.pages, config.keys, lengths)?;
    let table = entry.build(&setup)?;
    let workload = Workload { keys: config.keys, threads: 1, seed: config.seed };
    let mut stream = Stream::default();
    stream.fill(&workload, Phase::Insert, 0);
    table.speller().iter().for_each(|speller| stream.spell(speller));
    let work = insertion(&stream);
    let mut sizes = Vec::new();
    let (mut inserted, keys) = (0, config.keys as usize);
    for sample in 0..=SAMPLES {
        let until = keys / 2 + (keys - keys / 2) * sample as usize / SAMPLES as usize;
        table.run(work.part(inserted, until))?;
        inserted = until;
        sizes.push(table.size()?);
    }
    Ok(sizes)
}

/// Returns the cells for the sample that is nearest to a simulation, if one is near.
fn cells(simulated: &Simulated, samples: &[Size]) -> Option<Vec<String>> {
    let far = |size: &Size| size.load_factor.map_or(f64::MAX, |fill| (fill - simulated.fill).abs());
    let nearest = samples.iter().min_by(|one, other| far(one).total_cmp(&far(other)))?;
    if far(nearest) > NEAR {
        return None;
    }
    let (fill, found) = (nearest.load_factor?, nearest.placement?);
    let both =
        |simulated: f64, found: f64, digits| format!("{simulated:.digits$} / {found:.digits$}");
    Some(vec![
        both(simulated.fill, fill, 2),
        both(100.0 * simulated.displaced, 100.0 * found.displaced, 2),
        both(simulated.hit, found.tranches_per_hit, 3),
        both(simulated.miss, found.tranches_per_miss, 2),
    ])
}

fn beside_nothing(simulated: &Simulated) -> Vec<String> {
    let Simulated { fill, displaced, hit, miss, .. } = simulated;
    [format!("{fill:.2}"), format!("{:.2}", 100.0 * displaced), format!("{hit:.3}"), {
        format!("{miss:.2}")
    }]
    .map(|simulated| format!("{simulated} / -"))
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::Placement;

    #[test]
    fn the_nearest_sample_is_compared_if_it_is_near() {
        let size = |fill: f64| Size {
            load_factor: Some(fill),
            placement: Some(Placement {
                displaced: fill / 10.0,
                tranches_per_hit: 1.0 + fill / 10.0,
                tranches_per_miss: 1.0 + fill,
            }),
            ..Size::default()
        };
        let samples = [size(0.5), size(0.69), size(0.75)];
        let near = cells(&SIMULATED[1], &samples).unwrap();
        assert_eq!(near, ["0.70 / 0.69", "3.00 / 6.90", "1.040 / 1.069", "1.24 / 1.69"]);
        assert_eq!(cells(&SIMULATED[0], &samples), None);
        let alone = beside_nothing(&SIMULATED[0]);
        assert_eq!(alone, ["0.60 / -", "1.20 / -", "1.013 / -", "1.07 / -"]);
    }
}
