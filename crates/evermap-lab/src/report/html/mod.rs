//! A report as one page that needs nothing else: no network, no script. It follows the light or
//! dark setting of the reader, and can be printed.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::LabError;
use crate::machine::Portrait;
use crate::report::Output;
use crate::report::{Grid, Marks, Plot, Report};

mod plot;

/// The style sheet.
const STYLE: &str = include_str!("style.css");

/// Writes the page again whenever an experiment is complete, so that an interrupted run keeps what
/// it had.
pub struct Html {
    path: PathBuf,
    command: String,
    portrait: Portrait,
    reports: Vec<Report>,
}

impl Html {
    /// Creates the page at `path` and writes it immediately. `command` is the command line that the
    /// reader can repeat.
    ///
    /// # Errors
    ///
    /// `Io` if the file cannot be written.
    pub fn create(path: PathBuf, command: String) -> Result<Self, LabError> {
        let html = Html { path, command, portrait: Portrait::take(), reports: Vec::new() };
        html.write()?;
        Ok(html)
    }

    fn write(&self) -> Result<(), LabError> {
        let page = page(&self.command, &self.portrait, &self.reports);
        // A reader sees the old page or the new one. Files that are not regular are written in
        // place.
        let beside = self.path.with_extension("html.new");
        let in_place = self.path.exists() && !self.path.is_file();
        let written = if in_place {
            std::fs::write(&self.path, page)
        } else {
            std::fs::write(&beside, page).and_then(|()| std::fs::rename(&beside, &self.path))
        };
        written.map_err(|source| LabError::Io {
            action: "write",
            path: Some(self.path.clone()),
            source,
        })
    }
}

impl Output for Html {
    fn report(&mut self, report: &Report) -> Result<(), LabError> {
        self.reports.push(report.clone());
        self.write()
    }
}

/// Returns the whole page.
fn page(command: &str, portrait: &Portrait, reports: &[Report]) -> String {
    let mut html = String::new();
    let _ = write!(
        html,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>Evermap laboratory</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <header>\n<h1>Evermap laboratory</h1>\n"
    );
    let _ = writeln!(html, "<p class=\"command\"><code>{}</code></p>", escape(command));
    html.push_str("<dl class=\"machine\">\n");
    for (what, value) in portrait.lines() {
        let _ = writeln!(html, "<div><dt>{}</dt><dd>{}</dd></div>", escape(what), escape(&value));
    }
    html.push_str("</dl>\n");
    if reports.len() > 1 {
        html.push_str("<nav><ul>\n");
        for report in reports {
            let name = escape(report.experiment);
            let title = escape(&report.title);
            let _ = writeln!(html, "<li><a href=\"#{name}\">{name}</a> {title}</li>");
        }
        html.push_str("</ul></nav>\n");
    }
    html.push_str("</header>\n<main>\n");
    if reports.is_empty() {
        html.push_str("<p>No experiment is complete yet.</p>\n");
    }
    reports.iter().for_each(|report| section(report, &mut html));
    html.push_str("</main>\n</body>\n</html>\n");
    html
}

fn section(report: &Report, html: &mut String) {
    let name = escape(report.experiment);
    let _ = writeln!(html, "<section id=\"{name}\">\n<h2>{name}</h2>");
    let _ = writeln!(html, "<p class=\"title\">{}</p>", escape(&report.title));
    for line in report.about.lines() {
        let _ = writeln!(html, "<p>{}</p>", escape(line));
    }
    if let Some(figures) = report.figures_table() {
        grid(&figures, "figures", html);
    }
    html.push_str("<div class=\"plots\">\n");
    report.plots.iter().for_each(|plot| figure(plot, html));
    html.push_str("</div>\n");
    html.push_str("<div class=\"tables\">\n");
    report.tables.iter().for_each(|table| grid(table, "", html));
    html.push_str("</div>\n");
    if !report.notes.is_empty() {
        html.push_str("<ul class=\"notes\">\n");
        for note in &report.notes {
            let _ = writeln!(html, "<li>{}</li>", escape(note));
        }
        html.push_str("</ul>\n");
    }
    html.push_str("</section>\n");
}

fn figure(plot: &Plot, html: &mut String) {
    let _ = writeln!(html, "<figure>\n<figcaption>{}</figcaption>", escape(&plot.title));
    html.push_str("<ul class=\"legend\">\n");
    for (nth, series) in plot.series.iter().enumerate() {
        let colour = nth % plot::COLOURS;
        let _ = writeln!(
            html,
            "<li><span class=\"swatch s{colour}\"></span>{}</li>",
            escape(&series.name)
        );
    }
    html.push_str("</ul>\n");
    html.push_str(&plot::svg(plot));
    html.push_str("<details><summary>The numbers</summary>\n");
    grid(&numbers(plot), "", html);
    html.push_str("</details>\n</figure>\n");
}

/// Returns the numbers of a plot.
fn numbers(plot: &Plot) -> Grid {
    let mut xs: Vec<f64> =
        plot.series.iter().flat_map(|one| &one.points).map(|one| one.x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let across = |x: &f64| match &plot.marks {
        Marks::Lines => number(*x),
        Marks::Bars(groups) => groups.get(*x as usize).cloned().unwrap_or_default(),
    };
    let rows = xs.iter().map(|x| {
        let cells = plot.series.iter().map(|series| {
            let point = series.points.iter().find(|point| point.x == *x);
            point.map_or_else(
                || "-".to_owned(),
                |point| match point.range {
                    Some((low, high)) if low != high => {
                        format!("{} ({} to {})", number(point.y), number(low), number(high))
                    }
                    _ => number(point.y),
                },
            )
        });
        (across(x), cells.collect())
    });
    Grid {
        title: if plot.x.is_empty() { plot.y.clone() } else { format!("{} by {}", plot.y, plot.x) },
        columns: plot.series.iter().map(|series| series.name.clone()).collect(),
        rows: rows.collect(),
    }
}

/// Returns a number with as many digits as are significant.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn grid(grid: &Grid, class: &str, html: &mut String) {
    let _ = writeln!(
        html,
        "<div class=\"table {class}\"><table>\n<caption>{}</caption>",
        escape(&grid.title)
    );
    html.push_str("<thead><tr><td></td>");
    for column in &grid.columns {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escape(column));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for (name, cells) in &grid.rows {
        let _ = write!(html, "<tr><th scope=\"row\">{}</th>", escape(name));
        for cell in cells {
            let _ = write!(html, "<td>{}</td>", escape(cell));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody>\n</table></div>\n");
}

/// Returns `text` with the characters that have a meaning in HTML replaced.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Figure, Point, Series};

    fn report() -> Report {
        let line = |name: &str, factor: f64| Series {
            name: name.into(),
            points: (0..5)
                .map(|x| {
                    let y = factor * f64::from(x * x);
                    Point { x: f64::from(x), y, range: Some((0.9 * y, 1.2 * y)) }
                })
                .collect(),
        };
        let plot = |marks| Plot {
            title: "Speed <by> threads".into(),
            x: "threads".into(),
            y: "Mops/s".into(),
            log_x: false,
            marks,
            series: vec![line("dash-eh", 1.0), line("a & b", 2.5)],
        };
        let groups = (0..5).map(|x| format!("phase {x}")).collect();
        let mut table = Grid::new("A table", &["one", "two"]);
        table.push("row <1>", vec!["1".into(), "2".into()]);
        Report {
            experiment: "scale",
            title: "more and more threads".into(),
            about: "10 keys\n1 thread".into(),
            figures: [None, Some("2.0".into())]
                .map(|here| Figure { what: "w".into(), paper: "1.9".into(), here })
                .into(),
            tables: vec![table],
            plots: vec![plot(Marks::Lines), plot(Marks::Bars(groups))],
            notes: vec!["A note.".into()],
        }
    }

    /// Checks that every tag that is opened is closed, in order.
    fn check_nesting(html: &str) {
        let mut open = Vec::new();
        let mut rest = html;
        while let Some(at) = rest.find('<') {
            rest = &rest[at + 1..];
            let end = rest.find('>').expect("a tag ends");
            let tag = &rest[..end];
            rest = &rest[end + 1..];
            let name = |tag: &str| {
                tag.trim_start_matches('/').split([' ', '/', '\n']).next().unwrap().to_owned()
            };
            if tag.starts_with('!') || tag.ends_with('/') || name(tag) == "meta" {
                continue;
            }
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(name(tag)), "closed before it was opened");
            } else {
                open.push(name(tag));
            }
        }
        assert_eq!(open, Vec::<String>::new());
    }

    #[test]
    fn pages_are_whole_and_need_nothing_else() {
        let reports = [report(), Report { experiment: "micro", ..report() }];
        let html = page("evermap lab run scale --html <x>", &Portrait::take(), &reports);
        check_nesting(&html[html.find("<body>").unwrap()..html.find("</html>").unwrap()]);
        for outside in ["src=", "@import", "url(", "<script", "<link"] {
            assert!(!html.contains(outside), "{outside}");
        }
        // The only address is the name of a vocabulary.
        assert!(!html.replace("http://www.w3.org/2000/svg", "").contains("http"));
        for said in ["--html &lt;x&gt;", "a &amp; b", "row &lt;1&gt;", "not measured", "A note."] {
            assert!(html.contains(said), "{said}");
        }
        assert_eq!(html.matches("<svg").count(), 4);
        assert!(html.contains("prefers-color-scheme: dark") && html.contains("@media print"));
    }

    #[test]
    fn the_numbers_behind_a_plot() {
        let table = numbers(&report().plots[1]);
        assert_eq!(table.columns, ["dash-eh", "a & b"]);
        assert_eq!(table.rows[2].0, "phase 2");
        assert_eq!(table.rows[2].1, ["4.00 (3.60 to 4.80)", "10.00 (9.00 to 12.00)"]);
        assert_eq!(numbers(&report().plots[0]).rows[3].0, "3.00");
    }

    #[test]
    fn the_page_grows_with_the_experiments() {
        let path = std::env::temp_dir().join(format!("lab-{}.html", std::process::id()));
        let mut html = Html::create(path.clone(), "evermap lab run".into()).unwrap();
        let read = || std::fs::read_to_string(&path).unwrap();
        assert!(read().contains("No experiment is complete yet"));
        html.report(&report()).unwrap();
        assert!(read().contains("id=\"scale\"") && !read().contains("complete yet"));
        std::fs::remove_file(&path).unwrap();
        let error = Html::create("/no/such/place.html".into(), String::new()).err().unwrap();
        assert!(error.to_string().starts_with("write /no/such/place.html: "), "{error}");
    }
}
