//! A plot as SVG. Colours are names: the style sheet of the page defines them for light and dark.

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::report::{Marks, Plot, Point};

/// The number of colours that series have in turn.
pub(super) const COLOURS: usize = 12;
/// The size of a plot in its own units.
const SIZE: (u32, u32) = (640, 330);
/// The ratio of greatest to least value above which a scale is logarithmic.
const WIDE: f64 = 50.0;
/// The share of a group that its bars fill.
const FILLED: f64 = 0.8;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Returns the plot as an element of a page.
pub(super) fn svg(plot: &Plot) -> String {
    let mut svg = String::new();
    // Only writing files can fail, and this writes to memory.
    let drawn = draw(plot, &mut svg);
    drawn.map_or_else(|error| format!("<p>This plot could not be drawn: {error}</p>"), |()| svg)
}

fn draw(plot: &Plot, svg: &mut String) -> Result<(), Failed> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    let ys: Vec<_> = points(plot).map(|point| point.y).filter(|y| *y > 0.0).collect();
    let (low, high) = bounds(ys.into_iter()).unwrap_or((0.5, 1.0));
    let tops = points(plot).filter_map(|point| point.range).map(|range| range.1);
    let high = tops.fold(high, f64::max) * 1.06;
    let (from, to) = match &plot.marks {
        Marks::Bars(groups) => (0.0, groups.len().max(1) as f64),
        Marks::Lines => match bounds(points(plot).map(|point| point.x)) {
            Some((from, to)) if from < to => (from, to),
            Some((from, _)) => (from * 0.5, from * 1.5 + 1.0),
            None => (0.0, 1.0),
        },
    };
    let log_x = plot.log_x && from > 0.0;
    // Values that differ too much to be told apart on a linear scale.
    let log_y = high / low > WIDE && plot.series.len() > 1;
    let bottom = if log_y { low / 2.0 } else { 0.0 };
    match (log_x, log_y) {
        (false, false) => chart(&root, from..to, bottom..high, plot, bottom)?,
        (true, false) => chart(&root, (from..to).log_scale(), bottom..high, plot, bottom)?,
        (false, true) => chart(&root, from..to, (bottom..high).log_scale(), plot, bottom)?,
        (true, true) => {
            chart(&root, (from..to).log_scale(), (bottom..high).log_scale(), plot, bottom)?;
        }
    }
    root.present()?;
    Ok(())
}

fn points(plot: &Plot) -> impl Iterator<Item = &Point> {
    plot.series.iter().flat_map(|series| &series.points)
}

/// Returns the least and the greatest value.
fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |bounds, value| match bounds {
        None => Some((value, value)),
        Some((low, high)) => Some((value.min(low), value.max(high))),
    })
}

fn colour(nth: usize) -> RGBColor {
    RGBColor(0xa0, 0, (nth % COLOURS) as u8)
}

type Area<'a, 'b> = DrawingArea<SVGBackend<'b>, plotters::coord::Shift>;

fn chart<X, Y>(root: &Area<'_, '_>, x: X, y: Y, plot: &Plot, bottom: f64) -> Result<(), Failed>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let small = ("sans-serif", 15).into_font().color(&BLACK);
    let mut builder = ChartBuilder::on(root);
    builder.margin(6).margin_right(24).x_label_area_size(48).y_label_area_size(68);
    let mut chart = builder.build_cartesian_2d(x, y).map_err(text)?;
    let grey = RGBColor(0xc0, 0xc0, 0xc0);
    let mut mesh = chart.configure_mesh();
    let short = |value: &f64| short(*value);
    mesh.disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(grey)
        .axis_style(BLACK)
        .label_style(small.clone())
        .axis_desc_style(small.clone())
        .y_desc(&plot.y)
        .y_labels(6)
        .y_label_formatter(&short)
        .x_label_formatter(&short);
    match &plot.marks {
        Marks::Lines => {
            mesh.x_desc(&plot.x).x_labels(labels(plot)).draw().map_err(text)?;
            for (nth, series) in plot.series.iter().enumerate() {
                let line: Vec<_> =
                    series.points.iter().map(|point| (point.x, point.y.max(bottom))).collect();
                let thick = colour(nth).stroke_width(2);
                chart.draw_series(LineSeries::new(line.clone(), thick)).map_err(text)?;
                // If points are few, each is a measurement that should be visible.
                if line.len() <= 40 {
                    let dots = line.iter().map(|&at| Circle::new(at, 3, colour(nth).filled()));
                    chart.draw_series(dots).map_err(text)?;
                }
                let ranges = series.points.iter().filter_map(|point| range(point, point.x, bottom));
                let thin = colour(nth).stroke_width(1);
                chart
                    .draw_series(ranges.map(|range| PathElement::new(range, thin)))
                    .map_err(text)?;
            }
        }
        Marks::Bars(groups) => {
            mesh.disable_x_axis().draw().map_err(text)?;
            let width = FILLED / plot.series.len().max(1) as f64;
            for (nth, series) in plot.series.iter().enumerate() {
                let left = |point: &Point| point.x + (1.0 - FILLED) / 2.0 + nth as f64 * width;
                let bars = series.points.iter().map(|point| {
                    let corners = [
                        (left(point) + 0.08 * width, bottom),
                        (left(point) + 0.92 * width, point.y.max(bottom)),
                    ];
                    Rectangle::new(corners, colour(nth).filled())
                });
                chart.draw_series(bars).map_err(text)?;
                let ranges = series.points.iter();
                let ranges =
                    ranges.filter_map(|point| range(point, left(point) + width / 2.0, bottom));
                chart
                    .draw_series(ranges.map(|range| PathElement::new(range, BLACK.stroke_width(1))))
                    .map_err(text)?;
            }
            let centred = small.pos(Pos::new(HPos::Center, VPos::Top));
            for (nth, group) in groups.iter().enumerate() {
                let (x, y) = chart.backend_coord(&(nth as f64 + 0.5, bottom));
                root.draw(&Text::new(group.as_str(), (x, y + 8), centred.clone())).map_err(text)?;
            }
        }
    }
    Ok(())
}

/// Returns the number of labels of the horizontal axis: few enough that they are whole if all
/// values are.
fn labels(plot: &Plot) -> usize {
    /// More labels would touch each other.
    const MOST: usize = 8;
    let whole = points(plot).all(|point| point.x.fract() == 0.0);
    match bounds(points(plot).map(|point| point.x)) {
        Some((from, to)) if whole && to - from < MOST as f64 => (to - from) as usize + 1,
        _ => MOST,
    }
}

/// Returns the line from the lower to the upper end of the range of a point.
fn range(point: &Point, x: f64, bottom: f64) -> Option<[(f64, f64); 2]> {
    let (low, high) = point.range?;
    (low < high).then_some([(x, low.max(bottom)), (x, high.max(bottom))])
}

fn text(error: impl std::fmt::Display) -> Failed {
    error.to_string().into()
}

/// Returns the label of a number on an axis.
fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = format!("{scaled:.4}");
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Series;

    fn plot(marks: Marks, ys: &[f64], log_x: bool) -> Plot {
        let points = ys.iter().enumerate().map(|(x, &y)| Point::new(x as f64 + 1.0, y)).collect();
        let one = Series { name: "one".into(), points };
        let other = Series { name: "other".into(), ..one.clone() };
        let (x, y) = ("threads".into(), "Mops/s".into());
        Plot { title: String::new(), x, y, log_x, marks, series: vec![one, other] }
    }

    #[test]
    fn every_point_is_drawn() {
        let lines = svg(&plot(Marks::Lines, &[1.0, 2.0, 3.0], false));
        assert_eq!(lines.matches("<circle").count(), 6);
        assert!(lines.contains("threads") && lines.contains("Mops/s"));
        assert!(lines.contains("stroke=\"#A00000\"") && lines.contains("stroke=\"#A00001\""));
        let groups = vec!["insert".to_owned(), "positive".into(), "delete".into(), "x".into()];
        let bars = svg(&plot(Marks::Bars(groups), &[1.0, 2.0, 3.0], false));
        assert_eq!(bars.matches("fill=\"#A00000\"").count(), 3);
        assert!(bars.contains("positive"));
    }

    /// Every set of values has a picture.
    #[test]
    fn odd_plots_are_drawn_too() {
        let spread = [0.001, 1.0, 5000.0];
        for ys in [&[][..], &[1.0], &[0.0, 0.0], &spread, &[f64::MIN_POSITIVE, 1.0]] {
            for log_x in [false, true] {
                for marks in [Marks::Lines, Marks::Bars(vec!["a".into(); 4]), Marks::Bars(vec![])] {
                    let svg = svg(&plot(marks, ys, log_x));
                    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
                    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
                }
            }
        }
    }

    #[test]
    fn numbers_on_axes_are_short() {
        let all = [(0.0, "0"), (0.25, "0.25"), (12.0, "12"), (4000.0, "4000"), (20_000.0, "20k")];
        for (value, text) in all {
            assert_eq!(short(value), text);
        }
        assert_eq!(short(12_500_000.0), "12.5M");
    }
}
