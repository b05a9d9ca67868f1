//! The tables and plots of a drive.

use crate::driver::limits::{Independent, Limits};
use crate::driver::results::{DriveReport, PhaseReport, Ratio, SubjectReport};
use crate::report::{Figure, Grid, Marks, Plot, Point, Row, Series};
use crate::report::{Record, counted, duration, significant};

/// Returns tables for throughput, latency, counters and space, then the ratios. Tables without any
/// figure are left out.
///
/// Figures marked `*` are from disturbed rounds, if there were no others.
pub(crate) fn grids(driven: &DriveReport) -> Vec<Grid> {
    let Some(first) = driven.subjects.first() else {
        return Vec::new();
    };
    let columns: Vec<_> = first.phases.iter().map(|phase| phase.name.to_owned()).collect();
    let mut grids = Vec::new();
    let mut table = |title: &str, cell: &dyn Fn(&PhaseReport) -> Option<String>| {
        let rows: Vec<_> =
            driven.subjects.iter().filter_map(|subject| row(subject, cell)).collect();
        if !rows.is_empty() {
            grids.push(Grid { title: title.to_owned(), columns: columns.clone(), rows });
        }
    };
    table("Million operations a second, medians", &|phase| speed(&phase.summary));
    table(
        "Processor time of an operation, ns: median, and the range that holds the true one",
        &|phase| {
            let Record { cpu_ns_per_op, cpu_low, cpu_high, .. } = phase.summary;
            let range = match phase.rounds.len() {
                0 | 1 => String::new(),
                _ => format!(" {:.0}-{:.0}", cpu_low?, cpu_high?),
            };
            Some(format!("{:.0}{range}{}", cpu_ns_per_op?, mark(phase.summary.void)))
        },
    );
    table(
        "Processor time of an operation, ns: what a twentieth of the rounds did not exceed",
        &|phase| {
            let least = phase.summary.cpu_least.filter(|_| phase.rounds.len() > 1)?;
            Some(format!("{least:.1}{}", mark(phase.summary.void)))
        },
    );
    type Quantile = (&'static str, fn(&Record) -> Option<u64>);
    let quantiles: [Quantile; 5] = [
        ("Median latency", |record| record.p50_ns),
        ("95th percentile of latency", |record| record.p95_ns),
        ("99th percentile of latency", |record| record.p99_ns),
        ("99.9th percentile of latency", |record| record.p999_ns),
        ("Longest latency", |record| record.max_ns),
    ];
    for (name, figure) in quantiles {
        let title = format!("{name}; get_many: of a batch");
        table(&title, &|phase| Some(latency(figure(&phase.summary)?, phase.summary.void)));
    }
    table("Flushes / fences of an operation", &|phase| persists(&phase.summary));
    table("Lines read / written in an operation", &|phase| lines(&phase.summary));
    table("Blocks of 256 bytes read / written in an operation", &|phase| blocks(&phase.summary));
    table("Load factor after the phase", &|phase| {
        Some(format!("{:.3}", phase.summary.load_factor?))
    });
    table("MiB in ordinary memory + in the medium, after the phase", &|phase| {
        let mib = |bytes: Option<u64>| bytes.unwrap_or(0) >> 20;
        let Record { dram_bytes, pm_bytes, .. } = phase.summary;
        dram_bytes.or(pm_bytes)?;
        Some(format!("{} + {}", mib(dram_bytes), mib(pm_bytes)))
    });
    if let Some(limits) = &driven.limits {
        table("Share of the machine's limit, %", &|phase| {
            Some(format!("{:.0}", 100.0 * limits.share(&phase.summary)?))
        });
    }
    grids.extend(places(driven));
    grids.extend(ratio_grid(&driven.ratios(), &columns));
    grids
}

/// Returns a throughput, marked if it was disturbed.
pub(crate) fn speed(record: &Record) -> Option<String> {
    Some(format!("{}{}", significant(record.mops?), mark(record.void)))
}

/// Returns a latency, marked if it was disturbed.
pub(crate) fn latency(ns: u64, void: bool) -> String {
    format!("{}{}", duration(ns as f64), mark(void))
}

/// Returns the flushes and fences of an operation, if they were counted.
pub(crate) fn persists(record: &Record) -> Option<String> {
    Some(format!("{:.2} / {:.2}", record.flushes_per_op?, record.fences_per_op?))
}

/// Returns the lines that an operation reads and writes, if they were counted.
pub(crate) fn lines(record: &Record) -> Option<String> {
    Some(format!("{:.2} / {:.2}", record.lines_read_per_op?, record.lines_written_per_op?))
}

/// Returns the blocks that an operation reads and writes, if they were counted.
pub(crate) fn blocks(record: &Record) -> Option<String> {
    Some(format!("{:.2} / {:.2}", record.blocks_read_per_op?, record.blocks_written_per_op?))
}

/// Returns the mark of a disturbed figure.
pub(crate) fn mark(void: bool) -> &'static str {
    if void { "*" } else { "" }
}

/// Returns the cells of a subject, or `None` if it has none.
fn row(subject: &SubjectReport, cell: &dyn Fn(&PhaseReport) -> Option<String>) -> Option<Row> {
    let cells: Vec<_> = subject.phases.iter().map(cell).collect();
    cells.iter().any(Option::is_some).then(|| {
        let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
        (subject.name.to_owned(), cells.collect())
    })
}

/// The title of the table of places.
pub(crate) const PLACES: &str = "Where they were";

/// Returns where each table really was: figures of different places do not compare.
pub(crate) fn places(driven: &DriveReport) -> Option<Grid> {
    let columns = ["medium", "a change survives", "a flush is", "page, KiB", "directory"];
    let mut grid = Grid::new(PLACES, &columns);
    for subject in &driven.subjects {
        let record = &subject.phases.first()?.summary;
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let location = record.location.as_ref().map(|path| path.display().to_string());
        grid.push(
            subject.name,
            vec![
                record.medium.clone(),
                record.survives.to_owned(),
                or_none(record.flush_kind.clone()),
                or_none(record.page_size.map(|bytes| (bytes >> 10).to_string())),
                or_none(location),
            ],
        );
    }
    Some(grid)
}

fn ratio_grid(ratios: &[Ratio], columns: &[String]) -> Option<Grid> {
    let mut rows: Vec<Row> = Vec::new();
    for ratio in ratios {
        let name = format!("{} / {}", ratio.of, ratio.to);
        let at = columns.iter().position(|phase| phase == ratio.phase);
        if rows.last().is_none_or(|row| row.0 != name || at == Some(0)) {
            rows.push((name, vec!["-".to_owned(); columns.len()]));
        }
        if let (Some(at), Some(row)) = (at, rows.last_mut()) {
            row.1[at] = times(ratio);
        }
    }
    let least = ratios.iter().map(|ratio| ratio.interval.coverage).min_by(f64::total_cmp)?;
    let title = match (100.0 * least).round() {
        // One round tells nothing about the next.
        0.0 => "Times as fast, in one round".to_owned(),
        percent => format!(
            "Times as fast: median, and the range that holds the true one with at least {percent} %"
        ),
    };
    Some(Grid { title, columns: columns.to_vec(), rows })
}

/// Formats a ratio with its range, if there is one.
pub(crate) fn times(ratio: &Ratio) -> String {
    let (low, high) = (ratio.interval.low, ratio.interval.high);
    let range = if ratio.rounds > 1 { format!(" {low:.2}-{high:.2}") } else { String::new() };
    format!("{:.2}{range}{}", ratio.median, mark(ratio.void))
}

/// Returns a ratio that a paper reports, and the one measured here.
pub(crate) fn ratio_figure(
    driven: &DriveReport,
    of: &str,
    to: &str,
    phase: &str,
    paper: &str,
) -> Figure {
    Figure {
        what: format!("{phase}: {of} / {to}"),
        paper: paper.to_owned(),
        here: driven.ratio(of, to, phase).map(|ratio| times(&ratio)),
    }
}

/// Returns the notes of several drives, each once.
pub(crate) fn notes_of_all<'d>(drives: impl Iterator<Item = &'d DriveReport>) -> Vec<String> {
    let mut all = Vec::new();
    for note in drives.flat_map(notes) {
        if !all.contains(&note) {
            all.push(note);
        }
    }
    all
}

/// Returns the limits of the machine, and how far the figures can be trusted.
pub(crate) fn notes(driven: &DriveReport) -> Vec<String> {
    let mut notes: Vec<_> = driven.limits.iter().flat_map(machine).collect();
    for subject in &driven.subjects {
        if subject.repeated > 0 {
            let runs = counted(subject.repeated, "disturbed run");
            notes.push(format!("{}: {runs} repeated", subject.name));
        }
    }
    let mut phases = driven.subjects.iter().flat_map(|subject| &subject.phases);
    let void = driven.limits.as_ref().is_some_and(|limits| limits.void);
    if void || phases.any(|phase| phase.summary.void) {
        let warning =
            "* other programs used the processors in every attempt: do not trust this figure";
        notes.push(warning.to_owned());
    }
    notes
}

fn machine(limits: &Limits) -> Vec<String> {
    let mut first = format!(
        "The machine{}, on {} MiB: a dependent load {:.0} ns; ",
        mark(limits.void),
        limits.bytes >> 20,
        limits.dependent_load_ns
    );
    if let Some(ns) = limits.persist_ns {
        first.push_str(&format!("an ordered persist {ns:.0} ns; "));
    }
    first.push_str("independent lines, million/s:");
    let lines = limits.independent.iter().map(|one| {
        let Independent { threads, distance, mlines } = one;
        format!("  {}, {distance:2} ahead: {mlines:.0}", counted(*threads, "thread"))
    });
    [first].into_iter().chain(lines).collect()
}

/// Returns the point of a summary's throughput.
pub(crate) fn point(x: f64, record: &Record) -> Option<Point> {
    let range = record.mops_low.zip(record.mops_high);
    Some(Point { x, y: record.mops?, range, void: record.void })
}

/// Returns the throughput of every table in every phase, as bars.
pub(crate) fn bars(driven: &DriveReport, title: &str) -> Plot {
    let groups = driven.subjects.first().map(|first| &first.phases[..]).unwrap_or(&[]);
    let series = driven.subjects.iter().map(|subject| {
        let points = subject.phases.iter().enumerate();
        Series {
            name: subject.name.to_owned(),
            points: points.filter_map(|(at, phase)| point(at as f64, &phase.summary)).collect(),
        }
    });
    Plot {
        title: title.to_owned(),
        x: String::new(),
        y: "million operations/s".into(),
        log_x: false,
        marks: Marks::Bars(groups.iter().map(|phase| phase.name.to_owned()).collect()),
        series: series.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Config, Quiet, drive};
    use crate::registry::subject;
    use crate::testing::{Fault, Kept, faulty};
    use crate::workload::Phase;

    #[test]
    fn tables_show_every_table_phase_and_ratio() {
        let entries = [faulty(Fault::None), subject("reference").unwrap()];
        let config =
            Config { keys: 1000, rounds: 1, quiet: Quiet::NOT_NEEDED, ..Config::default() };
        let driven = drive(&entries, &config, &mut Kept::default()).unwrap();
        let grids: Vec<_> = grids(&driven).iter().map(Grid::text).collect();
        let text = format!("{}\n{}", grids.concat(), notes(&driven).join("\n"));
        let titles = [
            "Million operations a second, medians",
            "Processor time of an operation, ns: median",
            "Median latency; get_many",
            "99.9th percentile of latency; get_many",
            "Longest latency; get_many",
            "Flushes / fences of an operation",
            "Lines read / written in an operation",
            "Blocks of 256 bytes read / written in an operation",
            "Load factor after the phase",
            "Share of the machine's limit, %",
            "Where they were",
            "Times as fast",
            "The machine, on 64 MiB: a dependent load ",
        ];
        for title in titles {
            assert!(text.contains(title), "no `{title}` in\n{text}");
        }
        assert!(text.contains("\nfaulty / reference  "), "{text}");
        assert!(text.contains("1.00 / 2.00"), "{text}");
        for phase in Phase::ALL {
            assert!(text.contains(phase.name()), "{phase}");
        }
        let bars = bars(&driven, "Speed");
        assert_eq!(bars.series.len(), 2);
        assert!(bars.series.iter().all(|series| series.points.len() == Phase::ALL.len()));
    }
}
