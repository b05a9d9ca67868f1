//! What an experiment found out, before anybody decided how it looks: tables, plots, and the figures that a paper
//! reports for the same thing.

use std::fmt::Write as _;

/// Everything that an experiment has to say at its end.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Name of the experiment.
    pub experiment: &'static str,
    /// One line about it.
    pub title: String,
    /// What was measured, and with which settings.
    pub about: String,
    /// What a paper reports, and what was found here.
    pub figures: Vec<Figure>,
    /// The numbers.
    pub tables: Vec<Grid>,
    /// The numbers, drawn.
    pub plots: Vec<Plot>,
    /// How far the figures can be trusted, and what was left out.
    pub notes: Vec<String>,
}

/// A statement of a paper, and what was found here.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// What is stated.
    pub what: String,
    /// The paper's figure.
    pub paper: String,
    /// What was found here; nothing where it was not measured.
    pub here: Option<String>,
}

/// A table: rows with a name, and a cell for every column.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grid {
    /// What the numbers are, and their unit.
    pub title: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Rows.
    pub rows: Vec<Row>,
}

/// A row's name and its cells.
pub type Row = (String, Vec<String>);

/// How a plot shows its points.
#[derive(Clone, Debug, PartialEq)]
pub enum Marks {
    /// Points that lines join.
    Lines,
    /// Bars side by side in groups of these names; `x` is the number of the group.
    Bars(Vec<String>),
}

/// A plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// What `x` is, and its unit.
    pub x: String,
    /// What `y` is, and its unit.
    pub y: String,
    /// Whether `x` grows by factors.
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
    /// Across.
    pub x: f64,
    /// Up.
    pub y: f64,
    /// The range that holds the true `y`, where it is known.
    pub range: Option<(f64, f64)>,
}

impl Point {
    /// A point without a range.
    pub fn new(x: f64, y: f64) -> Self {
        Point { x, y, range: None }
    }
}

impl Report {
    /// For a terminal.
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

    /// The paper's figures beside those found here; nothing where none of them was measured.
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
    /// Without rows, under this title.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Grid { title: title.into(), columns, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn push(&mut self, name: impl Into<String>, cells: Vec<String>) {
        self.rows.push((name.into(), cells));
    }

    /// Aligned columns under the title.
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

/// The cell of a figure that may not have been measured.
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
    fn what_was_not_measured_is_said() {
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
        let nothing = Report { figures: vec![figure(None)], ..Report::default() };
        assert!(!nothing.text().contains("paper"), "{}", nothing.text());
    }
}
