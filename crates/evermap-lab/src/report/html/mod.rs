//! A report as one page that needs nothing else: no network, no script. It follows the light or
//! dark setting of the reader, and can be printed.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::LabError;
use crate::machine::Portrait;
use crate::report::Output;
use crate::report::{Grid, Plot, Report, counted};

mod axis;
mod numbers;
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
    /// reader can repeat, and `portrait` shows the machine.
    ///
    /// # Errors
    ///
    /// `Io` if the file cannot be written.
    pub fn create(path: PathBuf, command: String, portrait: Portrait) -> Result<Self, LabError> {
        let html = Html { path, command, portrait, reports: Vec::new() };
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
    let (first, others) = report.tables.split_at(report.tables.len().min(1));
    tables(first, html);
    if !others.is_empty() {
        let more = counted(others.len(), "more table");
        let _ = writeln!(html, "<details><summary>{more}</summary>");
        tables(others, html);
        html.push_str("</details>\n");
    }
    if !report.notes.is_empty() {
        html.push_str("<ul class=\"notes\">\n");
        for note in &report.notes {
            let _ = writeln!(html, "<li>{}</li>", escape(note));
        }
        html.push_str("</ul>\n");
    }
    html.push_str("</section>\n");
}

fn tables(grids: &[Grid], html: &mut String) {
    html.push_str("<div class=\"tables\">\n");
    grids.iter().for_each(|table| grid(table, "", html));
    html.push_str("</div>\n");
}

fn figure(plot: &Plot, html: &mut String) {
    let _ = writeln!(html, "<figure>\n<figcaption>{}</figcaption>", escape(&plot.title));
    html.push_str("<ul class=\"legend\">\n");
    for (nth, series) in plot.series.iter().enumerate() {
        let _ = writeln!(html, "<li>{}{}</li>", plot::swatch(nth), escape(&series.name));
    }
    html.push_str("</ul>\n");
    let _ = writeln!(html, "<div class=\"plot\">{}</div>", plot::svg(plot));
    if plot.series.iter().flat_map(|series| &series.points).any(|point| point.void) {
        html.push_str("<p class=\"void\">Hollow: other programs used the processors in every ");
        html.push_str("attempt. Do not trust these figures.</p>\n");
    }
    html.push_str("<details><summary>The numbers</summary>\n");
    grid(&numbers::table(plot), "", html);
    html.push_str("</details>\n</figure>\n");
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
    use crate::report::{Figure, Marks, Point, Series};

    fn report() -> Report {
        let line = |name: &str, factor: f64| Series {
            name: name.into(),
            points: (0..5)
                .map(|x| {
                    let y = factor * f64::from(x * x);
                    let range = Some((0.9 * y, 1.2 * y));
                    Point { range, void: x == 4, ..Point::new(f64::from(x), y) }
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
            tables: vec![table.clone(), table],
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
        let html = page("evermap lab run scale --html <x>", &Portrait::take("12ab"), &reports);
        check_nesting(&html[html.find("<body>").unwrap()..html.find("</html>").unwrap()]);
        for outside in ["src=", "@import", "url(", "<script", "<link"] {
            assert!(!html.contains(outside), "{outside}");
        }
        // The only address is the name of a vocabulary.
        assert!(!html.replace("http://www.w3.org/2000/svg", "").contains("http"));
        for said in ["--html &lt;x&gt;", "a &amp; b", "row &lt;1&gt;", "not measured", "A note."] {
            assert!(html.contains(said), "{said}");
        }
        // Four plots, each with the marks of two series beside their names.
        assert_eq!(html.matches("<svg").count(), 4 * 3);
        assert!(html.contains("Hollow: other programs"));
        assert!(html.contains("12ab") && html.contains("<summary>1 more table</summary>"));
        assert!(html.contains("prefers-color-scheme: dark") && html.contains("@media print"));
    }

    /// How each kind of colour blindness changes linear red, green and blue: Machado, Oliveira and
    /// Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency", 2009.
    const SEEN: [[[f64; 3]; 3]; 4] = [
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
        [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
        [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
    ];

    /// Returns the CIE Lab values of a colour as someone sees it.
    fn lab(colour: &str, seen: [[f64; 3]; 3]) -> [f64; 3] {
        let linear = [1, 3, 5].map(|at| {
            let part = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        });
        let times = |matrix: [[f64; 3]; 3], by: [f64; 3]| {
            matrix.map(|row| row.iter().zip(by).map(|(one, other)| one * other).sum::<f64>())
        };
        let [r, g, b] = times(seen, linear).map(|part| part.clamp(0.0, 1.0));
        let xyz = times(
            [[0.4339, 0.3762, 0.1899], [0.2126, 0.7152, 0.0722], [0.0177, 0.1095, 0.8728]],
            [r, g, b],
        );
        let [x, y, z] = xyz
            .map(|one: f64| if one > 0.008_856 { one.cbrt() } else { 7.787 * one + 16.0 / 116.0 });
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    /// A difference of 2 is just visible, and one of 20 is another colour.
    #[test]
    fn series_can_be_told_apart_by_those_who_see_fewer_colours() {
        let (light, dark) = STYLE.split_once("prefers-color-scheme: dark").unwrap();
        for theme in [light, dark] {
            let colour = |nth| {
                let rest = theme.split_once(&format!("--s{nth}: ")).unwrap().1;
                &rest[..7]
            };
            for (one, other) in
                (0..plot::COLOURS).flat_map(|one| (0..one).map(move |two| (one, two)))
            {
                for seen in SEEN {
                    let [one, other] = [one, other].map(|nth| lab(colour(nth), seen));
                    let squares = one.iter().zip(other).map(|(one, other)| (one - other).powi(2));
                    let distance = squares.sum::<f64>().sqrt();
                    assert!(distance >= 20.0, "{distance}");
                }
            }
        }
    }

    #[test]
    fn the_numbers_behind_a_plot() {
        let table = numbers::table(&report().plots[1]);
        assert_eq!(table.columns, ["dash-eh", "a & b"]);
        assert_eq!(table.rows[2].0, "phase 2");
        assert_eq!(table.rows[2].1, ["4.00 (3.60 to 4.80)", "10.0 (9.00 to 12.0)"]);
        assert_eq!(table.rows[4].1[0], "16.0* (14.4 to 19.2)");
        assert_eq!(numbers::table(&report().plots[0]).rows[3].0, "3");
    }

    #[test]
    fn the_page_grows_with_the_experiments() {
        let path = std::env::temp_dir().join(format!("lab-{}.html", std::process::id()));
        let mut html =
            Html::create(path.clone(), "evermap lab run".into(), Portrait::take("")).unwrap();
        let read = || std::fs::read_to_string(&path).unwrap();
        assert!(read().contains("No experiment is complete yet"));
        html.report(&report()).unwrap();
        assert!(read().contains("id=\"scale\"") && !read().contains("complete yet"));
        std::fs::remove_file(&path).unwrap();
        let error = Html::create("/no/such/place.html".into(), String::new(), Portrait::take(""))
            .err()
            .unwrap();
        assert!(error.to_string().starts_with("write /no/such/place.html: "), "{error}");
    }
}
