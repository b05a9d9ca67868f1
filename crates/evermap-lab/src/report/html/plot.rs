//! A plot as SVG. Its colours and lines are classes of the page's style sheet, which has them for
//! light and dark. Series differ by the shape of their marks too, for those who see fewer colours.

use std::fmt::Write as _;

use super::axis::{Axis, label};
use super::{escape, numbers::shown};
use crate::report::{Marks, Plot, Point, Series};

/// The number of colours that series have in turn.
pub(super) const COLOURS: usize = 8;
/// The shapes that series have in turn. As their number has no divisor in common with that of the
/// colours, many series have a pair of their own.
const SHAPES: [&str; 7] = [
    "M-4.2,0a4.2,4.2 0 1 0 8.4,0a4.2,4.2 0 1 0 -8.4,0z", // a circle
    "M-3.8,-3.8h7.6v7.6h-7.6z",                          // a square
    "M0,-4.9L4.9,3.9H-4.9z",                             // a triangle
    "M0,-5.6L5.6,0L0,5.6L-5.6,0z",                       // a diamond
    "M0,4.9L4.9,-3.9H-4.9z",                             // a triangle upside down
    "M-1.7,-5h3.4v3.3h3.3v3.4h-3.3v3.3h-3.4v-3.3h-3.3v-3.4h3.3z", // a cross
    "M-4.4,-4.6H4.4L-4.4,4.6H4.4z",                      // an hourglass
];
/// The size of a plot in its own units.
const SIZE: (f64, f64) = (460.0, 290.0);
/// The height of a line of text, and the width of a character, which is seldom more.
const TEXT: (f64, f64) = (13.0, 7.4);
/// The ratio of greatest to least value above which a scale is logarithmic.
const WIDE: f64 = 50.0;
/// The share of a group that its bars fill.
const FILLED: f64 = 0.84;
/// The sine, and nearly the cosine, of the angle at which long names of groups are written.
const SLOPE: f64 = 0.64;
/// If points are few, each is a measurement that should be visible.
const FEW: usize = 40;
/// If they are many, this number is marked.
const MARKED: usize = 8;

/// Returns the plot as an element of a page.
pub(super) fn svg(plot: &Plot) -> String {
    let mut drawing = Drawing::new(plot);
    drawing.frame();
    for (nth, series) in plot.series.iter().enumerate() {
        match plot.marks {
            Marks::Lines => drawing.line(nth, series),
            Marks::Bars(_) => drawing.bars(nth, series),
        }
    }
    let (width, height) = SIZE;
    format!(
        "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n",
        escape(&plot.title),
        drawing.svg
    )
}

/// Returns the mark of a series beside its name.
pub(super) fn swatch(nth: usize) -> String {
    format!("<svg class=\"swatch\" viewBox=\"-7 -7 14 14\">{}</svg>", mark(nth, (0.0, 0.0), false))
}

fn mark(nth: usize, (x, y): (f64, f64), void: bool) -> String {
    let (colour, shape) = (nth % COLOURS, SHAPES[nth % SHAPES.len()]);
    let void = if void { " void" } else { "" };
    format!(
        "<path class=\"mark c{colour}{void}\" transform=\"translate({x:.1} {y:.1})\" \
         d=\"{shape}\"/>"
    )
}

/// A plot that is being drawn.
struct Drawing<'p> {
    plot: &'p Plot,
    x: Axis,
    y: Axis,
    /// Where the axes are: left, top, right and bottom.
    area: [f64; 4],
    svg: String,
}

impl<'p> Drawing<'p> {
    fn new(plot: &'p Plot) -> Self {
        let (x, y) = (horizontal(plot), vertical(plot));
        let longest =
            |labels: &mut dyn Iterator<Item = usize>| labels.max().unwrap_or(0) as f64 * TEXT.1;
        let across = longest(&mut y.ticks(6).iter().map(|tick| label(*tick).len()));
        let left = 2.0 * TEXT.0 + across;
        let right = SIZE.0 - 12.0;
        let below = match &plot.marks {
            Marks::Lines => 3.2 * TEXT.0,
            Marks::Bars(groups) => {
                let width = longest(&mut groups.iter().map(|name| name.chars().count()));
                let fits = width + TEXT.1 < (right - left) / groups.len().max(1) as f64;
                if fits { 1.8 * TEXT.0 } else { 1.4 * TEXT.0 + SLOPE * width }
            }
        };
        let area = [left, 8.0, right, SIZE.1 - below.min(SIZE.1 / 2.0)];
        Drawing { plot, x, y, area, svg: String::new() }
    }

    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        let [left, top, right, bottom] = self.area;
        let (across, up) = (self.x.share(x), self.y.share(y));
        (left + across * (right - left), bottom - up * (bottom - top))
    }

    fn push(&mut self, element: String) {
        self.svg.push_str(&element);
        self.svg.push('\n');
    }

    fn text(&mut self, (x, y): (f64, f64), anchor: &str, turned: f64, text: &str) {
        let turned = match turned {
            0.0 => String::new(),
            turned => format!(" transform=\"rotate({turned} {x:.1} {y:.1})\""),
        };
        let text = escape(text);
        self.push(format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{turned}>{text}</text>"
        ));
    }

    /// Draws the axes and their labels.
    fn frame(&mut self) {
        let [left, top, right, bottom] = self.area;
        for tick in self.y.ticks(6) {
            let (_, y) = self.at(self.x.from, tick);
            self.push(format!("<path class=\"grid\" d=\"M{left:.1},{y:.1}H{right:.1}\"/>"));
            self.text((left - 6.0, y + 0.35 * TEXT.0), "end", 0.0, &label(tick));
        }
        self.push(format!(
            "<path class=\"axis\" d=\"M{left:.1},{top:.1}V{bottom:.1}H{right:.1}\"/>"
        ));
        self.text((TEXT.0, (top + bottom) / 2.0), "middle", -90.0, &self.plot.y);
        match &self.plot.marks {
            Marks::Lines => self.numbers_below(),
            Marks::Bars(groups) => self.names_below(groups),
        }
    }

    /// Writes numbers below the horizontal axis, as many as have room, and what they are.
    fn numbers_below(&mut self) {
        let [left, _, right, bottom] = self.area;
        let mut end = f64::MIN;
        for tick in horizontal_ticks(self.plot, &self.x) {
            let ((x, _), text) = (self.at(tick, self.y.from), label(tick));
            let half = text.len() as f64 * TEXT.1 / 2.0;
            // The last label may not stick out of the plot.
            let middle = x.min(SIZE.0 - half);
            if middle - half < end {
                continue;
            }
            end = middle + half + TEXT.1;
            self.push(format!("<path class=\"axis\" d=\"M{x:.1},{bottom:.1}v4\"/>"));
            self.text((middle, bottom + 1.35 * TEXT.0), "middle", 0.0, &text);
        }
        let below = ((left + right) / 2.0, bottom + 2.7 * TEXT.0);
        self.text(below, "middle", 0.0, &self.plot.x);
    }

    /// Writes the names of groups below their bars, aslant if they are long.
    fn names_below(&mut self, groups: &[String]) {
        let bottom = self.area[3];
        let aslant = SIZE.1 - bottom > 2.0 * TEXT.0;
        for (nth, group) in groups.iter().enumerate() {
            let (x, _) = self.at(nth as f64 + 0.5, self.y.from);
            if aslant {
                self.text((x + 4.0, bottom + TEXT.0), "end", -40.0, group);
            } else {
                self.text((x, bottom + 1.3 * TEXT.0), "middle", 0.0, group);
            }
        }
    }

    fn line(&mut self, nth: usize, series: &Series) {
        let places: Vec<_> = series.points.iter().map(|point| self.at(point.x, point.y)).collect();
        let mut line = String::new();
        for (x, y) in &places {
            let _ = write!(line, " {x:.1},{y:.1}");
        }
        self.push(format!("<polyline class=\"line c{}\" points=\"{line}\"/>", nth % COLOURS));
        let step = if places.len() > FEW { places.len().div_ceil(MARKED) } else { 1 };
        for (at, (point, place)) in series.points.iter().zip(places).enumerate() {
            self.range(point, place.0, nth);
            // Marks of several series of many points are not all at the same places.
            if point.void || at % step == nth % step {
                self.point(nth, series, point, place);
            }
        }
    }

    /// Draws the bars of a series. On a logarithmic axis, which has no zero where they could begin,
    /// only their ends.
    fn bars(&mut self, nth: usize, series: &Series) {
        let width = FILLED / self.plot.series.len().max(1) as f64;
        for point in &series.points {
            let left = point.x + (1.0 - FILLED) / 2.0 + nth as f64 * width;
            let (middle, end) = self.at(left + width / 2.0, point.y);
            if !self.y.log {
                let (x, bottom) = self.at(left + 0.06 * width, self.y.from);
                let (right, _) = self.at(left + 0.94 * width, self.y.from);
                let void = if point.void { " void" } else { "" };
                self.push(format!(
                    "<rect class=\"bar c{}{void}\" x=\"{x:.1}\" y=\"{end:.1}\" width=\"{:.1}\" \
                     height=\"{:.1}\"/>",
                    nth % COLOURS,
                    right - x,
                    bottom - end
                ));
            }
            self.range(point, middle, nth);
            self.point(nth, series, point, (middle, end));
        }
    }

    fn point(&mut self, nth: usize, series: &Series, point: &Point, place: (f64, f64)) {
        let text = escape(&format!("{}: {}", series.name, shown(point)));
        self.push(format!("<g><title>{text}</title>{}</g>", mark(nth, place, point.void)));
    }

    /// Draws the line from the lower to the upper end of the range of a point.
    fn range(&mut self, point: &Point, x: f64, nth: usize) {
        let Some((low, high)) = point.range.filter(|(low, high)| low < high) else { return };
        let [low, high] = [low, high].map(|y| self.at(point.x, y).1);
        let colour = nth % COLOURS;
        self.push(format!("<path class=\"range c{colour}\" d=\"M{x:.1},{low:.1}V{high:.1}\"/>"));
    }
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

fn horizontal(plot: &Plot) -> Axis {
    let (from, to) = match &plot.marks {
        Marks::Bars(groups) => (0.0, groups.len().max(1) as f64),
        Marks::Lines => match bounds(points(plot).map(|point| point.x)) {
            Some((from, to)) if from < to => (from, to),
            Some((from, _)) => (from * 0.5, from * 1.5 + 1.0),
            None => (0.0, 1.0),
        },
    };
    Axis { from, to, log: plot.log_x && from > 0.0 }
}

fn vertical(plot: &Plot) -> Axis {
    let ys = points(plot).map(|point| point.y).filter(|y| *y > 0.0);
    let (low, high) = bounds(ys).unwrap_or((0.5, 1.0));
    let tops = points(plot).filter_map(|point| point.range).map(|range| range.1);
    let to = tops.fold(high, f64::max) * 1.06;
    // Values that differ too much to be told apart on a linear scale.
    let log = high / low > WIDE && plot.series.len() > 1;
    Axis { from: if log { low / 1.5 } else { 0.0 }, to, log }
}

/// Returns the numbers below the horizontal axis: those that were measured if they are few.
fn horizontal_ticks(plot: &Plot, axis: &Axis) -> Vec<f64> {
    let mut measured: Vec<f64> = points(plot).map(|point| point.x).collect();
    measured.sort_by(f64::total_cmp);
    measured.dedup();
    if (2..=MARKED).contains(&measured.len()) { measured } else { axis.ticks(MARKED) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(marks: Marks, ys: &[f64], log_x: bool) -> Plot {
        let points = ys.iter().enumerate().map(|(x, &y)| Point::new(x as f64 + 1.0, y)).collect();
        let one = Series { name: "one".into(), points };
        let other = Series { name: "other".into(), ..one.clone() };
        let (x, y) = ("threads".into(), "Mops/s".into());
        Plot { title: String::new(), x, y, log_x, marks, series: vec![one, other] }
    }

    fn groups(names: &[&str]) -> Marks {
        Marks::Bars(names.iter().map(|&name| name.to_owned()).collect())
    }

    #[test]
    fn every_point_is_drawn() {
        let lines = svg(&plot(Marks::Lines, &[1.0, 2.0, 3.0], false));
        assert_eq!(lines.matches("class=\"mark").count(), 6);
        assert!(lines.contains("threads") && lines.contains("Mops/s"));
        assert!(lines.contains("\"line c0\"") && lines.contains("\"line c1\""));
        let names = ["insert", "positive", "delete", "x"];
        let bars = svg(&plot(groups(&names), &[1.0, 2.0, 3.0], false));
        assert_eq!(bars.matches("\"bar c0\"").count(), 3);
        assert!(bars.contains("positive"));
    }

    #[test]
    fn disturbed_points_are_hollow() {
        for marks in [Marks::Lines, groups(&["a", "b", "c", "d"])] {
            let mut plot = plot(marks, &[1.0, 2.0, 3.0], false);
            assert!(!svg(&plot).contains("void"));
            plot.series[1].points[2].void = true;
            assert_eq!(svg(&plot).matches("class=\"mark c1 void\"").count(), 1);
            assert!(svg(&plot).contains("3.00*"));
        }
    }

    /// They would say that the values are the ratio of their lengths.
    #[test]
    fn no_bar_begins_on_a_logarithmic_axis() {
        let bars = svg(&plot(groups(&["a", "b", "c"]), &[0.01, 1.0, 100.0], false));
        assert!(!bars.contains("<rect") && bars.matches("class=\"mark").count() == 6, "{bars}");
    }

    #[test]
    fn long_names_are_written_aslant() {
        let short = svg(&plot(groups(&["a", "b"]), &[1.0], false));
        let long = svg(&plot(groups(&["recipe-a"; 11]), &[1.0], false));
        assert_eq!(
            (short.matches("rotate(-40").count(), long.matches("rotate(-40").count()),
            (0, 11)
        );
    }

    /// Every set of values has a picture.
    #[test]
    fn odd_plots_are_drawn_too() {
        let spread = [0.001, 1.0, 5000.0];
        for ys in [&[][..], &[1.0], &[0.0, 0.0], &spread, &[f64::MIN_POSITIVE, 1.0]] {
            for log_x in [false, true] {
                for marks in [Marks::Lines, groups(&["a"; 4]), groups(&[])] {
                    let svg = svg(&plot(marks, ys, log_x));
                    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
                    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
                }
            }
        }
    }

    #[test]
    fn series_have_pairs_of_colour_and_shape_of_their_own() {
        let all: std::collections::BTreeSet<_> = (0..COLOURS * SHAPES.len()).map(swatch).collect();
        assert_eq!(all.len(), COLOURS * SHAPES.len());
    }
}
