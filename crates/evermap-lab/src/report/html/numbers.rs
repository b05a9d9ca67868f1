//! The numbers behind a plot.

use crate::report::number::{grouped, significant};
use crate::report::{Grid, Marks, Plot, Point};

/// Returns the numbers of a plot as a table.
pub(super) fn table(plot: &Plot) -> Grid {
    let mut xs: Vec<f64> =
        plot.series.iter().flat_map(|one| &one.points).map(|one| one.x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let across = |x: &f64| match &plot.marks {
        Marks::Lines if x.fract() == 0.0 => grouped(*x as u64),
        Marks::Lines => significant(*x),
        Marks::Bars(groups) => groups.get(*x as usize).cloned().unwrap_or_default(),
    };
    let rows = xs.iter().map(|x| {
        let cells = plot.series.iter().map(|series| {
            let point = series.points.iter().find(|point| point.x == *x);
            point.map_or_else(|| "-".to_owned(), shown)
        });
        (across(x), cells.collect())
    });
    Grid {
        title: if plot.x.is_empty() { plot.y.clone() } else { format!("{} by {}", plot.y, plot.x) },
        columns: plot.series.iter().map(|series| series.name.clone()).collect(),
        rows: rows.collect(),
    }
}

/// Returns the number of a point, with its range, and a star if it was disturbed.
pub(super) fn shown(point: &Point) -> String {
    let star = if point.void { "*" } else { "" };
    let range = match point.range {
        Some((low, high)) if low != high => {
            format!(" ({} to {})", significant(low), significant(high))
        }
        _ => String::new(),
    };
    format!("{}{star}{range}", significant(point.y))
}
