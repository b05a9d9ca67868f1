//! The results of an experiment, independent of the output format: tables, plots, and the figures
//! that a paper reports for the same thing.

use std::fmt::Write as _;

use super::number::counted;

/// All results of an experiment.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The name of the experiment.
    pub experiment: &'static str,
    /// One line about it.
    pub title: String,
    /// What was measured, and with which settings.
    pub about: String,
    /// The figures of a paper, and those measured here.
    pub figures: Vec<Figure>,
    /// The numbers.
    pub tables: Vec<Grid>,
    /// The numbers, plotted.
    pub plots: Vec<Plot>,
    /// How far the figures can be trusted, and what was left out.
    pub notes: Vec<String>,
}

/// A figure of a paper, and the one measured here.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// What the figure is.
    pub what: String,
    /// The paper's figure.
    pub paper: String,
    /// The figure measured here; `None` if it was not measured.
    pub here: Option<String>,
}

/// A table: rows with a name, and a cell for every column.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grid {
    /// What the numbers are, and their unit.
    pub title: String,
    /// The names of the columns.
    pub columns: Vec<String>,
    /// Rows.
    pub rows: Vec<Row>,
}

/// A row's name and its cells.
pub type Row = (String, Vec<String>);

/// How a plot shows its points.
#[derive(Clone, Debug, PartialEq)]
pub enum Marks {
    /// Points joined by lines.
    Lines,
    /// Bars side by side in groups of these names; `x` is the number of the group.
    Bars(Vec<String>),
}

/// A plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// The title.
    pub title: String,
    /// What `x` is, and its unit.
    pub x: String,
    /// What `y` is, and its unit.
    pub y: String,
    /// Whether `x` has a logarithmic scale.
    pub log_x: bool,
    /// How points are shown.
    pub marks: Marks,
    /// What is shown.
    pub series: Vec<Series>,
}

/// Points that belong together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// The points, in order.
    pub points: Vec<Point>,
}

/// A point of a plot.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// The horizontal coordinate.
    pub x: f64,
    /// The vertical coordinate.
    pub y: f64,
    /// The range that holds the true `y`, if it is known.
    pub range: Option<(f64, f64)>,
    /// Whether `y` cannot be trusted, because other programs used the machine.
    pub void: bool,
}

impl Point {
    /// Creates a point without a range.
    pub fn new(x: f64, y: f64) -> Self {
        Point { x, y, ..Point::default() }
    }
}

impl Report {
    /// Returns the report as text for a terminal.
    pub fn text(&self) -> String {
        let mut text = format!("\n{}: {}\n", self.experiment, self.title);
        if !self.about.is_empty() {
            let _ = writeln!(text, "{}", self.about);
        }
        for table in &self.tables {
            text.push_str(&table.text());
        }
        if let Some(figures) = self.figures_table() {
            text.push_str(&figures.text());
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        for note in &self.notes {
            let _ = writeln!(text, "{note}");
        }
        text
    }

    /// Returns the report with the first of its tables only, and without plots.
    pub(crate) fn brief(&self) -> Self {
        let mut brief = Report { plots: Vec::new(), ..self.clone() };
        let others = brief.tables.split_off(self.tables.len().min(1)).len();
        if others > 0 {
            brief.notes.push(format!("{} more on the page.", counted(others, "table")));
        }
        brief
    }

    /// Returns the paper's figures beside those measured here, or `None` if none was measured.
    pub fn figures_table(&self) -> Option<Grid> {
        self.figures.iter().find(|figure| figure.here.is_some())?;
        let row = |figure: &Figure| {
            let here = figure.here.clone().unwrap_or_else(|| "not measured".to_owned());
            (figure.what.clone(), vec![figure.paper.clone(), here])
        };
        Some(Grid {
            title: "The paper's figures, and those found here".into(),
            columns: vec!["paper".into(), "here".into()],
            rows: self.figures.iter().map(row).collect(),
        })
    }
}

impl Grid {
    /// Creates a table without rows.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Grid { title: title.into(), columns, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn push(&mut self, name: impl Into<String>, cells: Vec<String>) {
        self.rows.push((name.into(), cells));
    }

    /// Returns the columns and rows as a table of Markdown, without the title.
    pub fn markdown(&self) -> String {
        let line = |name: &str, cells: &[String]| format!("| {name} | {} |\n", cells.join(" | "));
        let mut text = line("", &self.columns).replacen("|  |", "| |", 1);
        text.push_str(&format!("|---|{}\n", "---|".repeat(self.columns.len())));
        self.rows.iter().for_each(|(name, cells)| text.push_str(&line(name, cells)));
        text
    }

    /// Returns the title and aligned columns.
    pub fn text(&self) -> String {
        let width = |at: usize| {
            let cells = self.rows.iter().map(|row| row.1[at].chars().count());
            cells.chain([self.columns[at].chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..self.columns.len()).map(width).collect();
        let names = self.rows.iter().map(|row| row.0.chars().count()).max().unwrap_or(0);
        let mut text = format!("\n{}\n{:names$}", self.title, "");
        for (column, width) in self.columns.iter().zip(&widths) {
            let _ = write!(text, "  {column:>width$}");
        }
        text.push('\n');
        for (name, cells) in &self.rows {
            let _ = write!(text, "{name:names$}");
            for (cell, width) in cells.iter().zip(&widths) {
                let _ = write!(text, "  {cell:>width$}");
            }
            text.push('\n');
        }
        text
    }
}

/// Returns the cell of a figure that may not have been measured.
pub(crate) fn cell(figure: Option<f64>, digits: usize) -> String {
    figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut grid = Grid::new("Title", &["x", "y"]);
        grid.push("a", vec!["1".into(), "22222".into()]);
        grid.push("long", vec!["333".into(), "4".into()]);
        assert_eq!(grid.text(), "\nTitle\n        x      y\na       1  22222\nlong  333      4\n");
    }

    #[test]
    fn figures_that_were_not_measured_are_marked() {
        let figure = |here: Option<&str>| Figure {
            what: "speed".into(),
            paper: "1.9".into(),
            here: here.map(str::to_owned),
        };
        let report = Report {
            experiment: "some",
            title: "Some".into(),
            figures: vec![figure(Some("2.0")), figure(None)],
            notes: vec!["Take care.".into()],
            ..Report::default()
        };
        let text = report.text();
        assert!(text.starts_with("\nsome: Some\n"), "{text}");
        assert!(text.contains("speed    1.9           2.0\n"), "{text}");
        assert!(text.contains("speed    1.9  not measured\n"), "{text}");
        assert!(text.ends_with("\nTake care.\n"), "{text}");
        let tables = vec![Grid::new("first", &[]), Grid::new("second", &[])];
        let brief = Report { tables, ..report }.brief().text();
        assert!(brief.contains("first") && !brief.contains("second"), "{brief}");
        assert!(brief.ends_with("1 table more on the page.\n"), "{brief}");
        let nothing = Report { figures: vec![figure(None)], ..Report::default() };
        assert!(!nothing.text().contains("paper"), "{}", nothing.text());
    }
}
