//! Published figures as SVG: the paper's points as markers, ours as lines with confidence bands.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use crate::scoreboard::drawing::{Banded, Drawing};

/// Pixels.
const SIZE: (u32, u32) = (760, 460);
/// Pixels on the right, for the names of curves.
const LEGEND: u32 = 180;

/// One colour per curve name, the same for the paper's and ours. Most are Okabe and Ito's, which the colour-blind can tell
/// apart. A figure with more names repeats them.
const COLOURS: [RGBColor; 10] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 120, 120),
    RGBColor(150, 130, 0),
    RGBColor(0, 0, 0),
    RGBColor(136, 34, 85),
];

/// A linear or logarithmic axis and its ends. A logarithmic axis stores the logarithms.
#[derive(Clone, Copy)]
struct Axis {
    log: bool,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis that covers points and intervals.
    ///
    /// Intervals do not extend it below zero if no point is below, or on a logarithmic axis below a third of the least
    /// point.
    fn over(points: &[f64], intervals: &[f64], log: bool) -> Axis {
        let shown = |value: &&f64| value.is_finite() && (!log || **value > 0.0);
        let least = points.iter().filter(shown).copied().fold(f64::INFINITY, f64::min);
        // A linear axis includes zero.
        let floor = if log { least / 3.0 } else { least.min(0.0) };
        let all = || points.iter().chain(intervals).filter(shown).copied();
        let lowest = if log { all().fold(least, f64::min).max(floor) } else { floor };
        let mut axis = Axis { log, from: 0.0, to: 0.0 };
        (axis.from, axis.to) = (axis.at(lowest), axis.at(all().fold(least, f64::max)));
        if !axis.from.is_finite() || !axis.to.is_finite() {
            (axis.from, axis.to) = (0.0, 1.0);
        } else if axis.to <= axis.from {
            (axis.from, axis.to) = (axis.from - 0.5, axis.from + 0.5);
        }
        let margin = 0.05 * (axis.to - axis.from);
        axis.to += margin;
        if axis.log || axis.from < 0.0 {
            axis.from -= margin;
        }
        axis
    }

    fn at(&self, value: f64) -> f64 {
        if self.log { value.max(1e-300).log10() } else { value }
    }

    fn label(&self, value: &f64) -> String {
        // Sums of steps have rounding errors, such as 0.7000000000000001.
        let rounded = if self.log {
            format!("{value:.5e}").parse().unwrap_or(*value)
        } else {
            (value * 1e9).round() / 1e9 + 0.0
        };
        format!("{rounded}")
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        RangedCoordf64::from(self.from..self.to).map(&self.at(*value).clamp(self.from, self.to), limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if !self.log {
            return RangedCoordf64::from(self.from..self.to).key_points(hint);
        }
        let decades = self.from.floor() as i32..=self.to.floor() as i32;
        let ticks = |leading: &[u32]| -> Vec<f64> {
            let all = decades.clone().flat_map(|decade| leading.iter().map(move |first| (*first, decade)));
            // Parsed from text, because 3 times 0.1 is not exactly 0.3.
            let all = all.filter_map(|(first, decade)| format!("{first}e{decade}").parse::<f64>().ok());
            all.filter(|tick| (self.from..=self.to).contains(&tick.log10())).collect()
        };
        let densest = [&[1, 2, 3, 4, 5, 7][..], &[1, 2, 5], &[1]].map(ticks);
        let ticks = densest.into_iter().find(|ticks| ticks.len() <= hint.bold_points()).unwrap_or_default();
        if ticks.len() > 1 { ticks } else { RangedCoordf64::from(self.range()).key_points(hint) }
    }

    fn range(&self) -> Range<f64> {
        if self.log { 10f64.powf(self.from)..10f64.powf(self.to) } else { self.from..self.to }
    }
}

/// (x, y) of each of our points and of the ends of its interval.
fn places(curve: &Banded) -> impl Iterator<Item = [(f64, f64); 3]> {
    curve.points.iter().map(|(fixed, mean, band)| {
        [*mean, band[0], band[1]].map(|value| if curve.across { (value, *fixed) } else { (*fixed, value) })
    })
}

/// Draws the figure as an SVG document.
pub fn svg(drawing: &Drawing) -> String {
    let mut text = String::new();
    draw(drawing, &mut text).expect("drawing into memory cannot fail");
    text
}

fn draw(drawing: &Drawing, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let file = &drawing.file;
    let published = file.published.values().flatten().copied();
    let ours = || drawing.ours.iter().flat_map(places);
    let points: Vec<(f64, f64)> = ours().map(|[mean, ..]| mean).chain(published).collect();
    let ends: Vec<(f64, f64)> = ours().flat_map(|[_, low, high]| [low, high]).collect();
    let of = |side: fn(&(f64, f64)) -> f64, log| {
        let [points, ends] = [&points, &ends].map(|all| all.iter().map(side).collect::<Vec<f64>>());
        Axis::over(&points, &ends, log)
    };
    let (x, y) = (of(|point| point.0, file.log_x), of(|point| point.1, file.log_y));
    let mut names: Vec<&String> = drawing.ours.iter().map(|curve| &curve.name).collect();
    names.extend(file.published.keys());
    names.sort_unstable();
    names.dedup();
    let colour =
        |name: &String| COLOURS[names.iter().position(|other| *other == name).unwrap_or(0) % COLOURS.len()];

    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (plot, legend) = root.split_horizontally(SIZE.0 - LEGEND);
    let mut chart = ChartBuilder::on(&plot)
        .caption(&file.title, ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(42)
        .y_label_area_size(70)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .x_desc(&file.x)
        .y_desc(&file.y)
        .x_label_formatter(&|at| x.label(at))
        .y_label_formatter(&|at| y.label(at))
        .light_line_style(WHITE)
        .label_style(("sans-serif", 15))
        .draw()?;
    let mut entries = (0..).map(|number| 52 + 20 * number);
    let mut entry = |text: String| {
        let height = entries.next().unwrap_or(0);
        legend.draw(&Text::new(text, (28, height - 6), ("sans-serif", 15))).map(|()| height)
    };
    for curve in &drawing.ours {
        let colour = colour(&curve.name);
        let low = places(curve).map(|[_, low, _]| low);
        let high: Vec<(f64, f64)> = places(curve).map(|[_, _, high]| high).collect();
        let band: Vec<(f64, f64)> = low.chain(high.into_iter().rev()).collect();
        chart.draw_series([Polygon::new(band, colour.mix(0.18))])?;
        let line: Vec<(f64, f64)> = places(curve).map(|[mean, ..]| mean).collect();
        chart.draw_series(line.iter().map(|point| Circle::new(*point, 2, colour.filled())))?;
        chart.draw_series(LineSeries::new(line, colour.stroke_width(2)))?;
        let height = entry(format!("{}, ours", curve.name))?;
        legend.draw(&PathElement::new([(2, height), (20, height)], colour.stroke_width(2)))?;
    }
    for (name, points) in &file.published {
        let colour = colour(name);
        chart.draw_series(points.iter().map(|point| Cross::new(*point, 5, colour.stroke_width(2))))?;
        let height = entry(format!("{name}, published"))?;
        legend.draw(&Cross::new((11, height), 5, colour.stroke_width(2)))?;
    }
    if points.is_empty() {
        entry("no measurements".into())?;
    }
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::scoreboard::Measured;
    use crate::scoreboard::drawing::FigureFile;

    #[test]
    fn logarithmic_axes_have_round_ticks() {
        let ticks = |from, to| Axis::over(&[from, to], &[], true).key_points(10);
        assert_eq!(ticks(10.0, 1000.0), [10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]);
        assert_eq!(ticks(0.21, 0.7), [0.2, 0.3, 0.4, 0.5, 0.7]);
        assert_eq!(ticks(1e-3, 1e3), [1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1e3]);
        assert!(ticks(3.1, 3.6).len() > 1);
        assert_eq!(Axis::over(&[1.0], &[], true).label(&0.3), "0.3");
        assert_eq!(Axis::over(&[1.0], &[], true).label(&(0.1 + 0.2)), "0.3");
    }

    #[test]
    fn axes_ignore_impossible_bounds_of_intervals() {
        let axis = |points: &[f64], log| Axis::over(points, &[-50.0, 1e-9, 20.0], log).range();
        assert_eq!(axis(&[5.0, 10.0], false).start, 0.0);
        assert!(axis(&[-5.0, 10.0], false).start > -7.0);
        let log = axis(&[3.0, 10.0], true);
        assert!(log.start > 0.8 && log.start < 1.0 && log.end > 20.0, "{log:?}");
        assert_eq!(axis(&[], false), 0.0..1.05);
    }

    #[test]
    fn ten_curves_have_ten_colours() {
        let curves =
            ('a'..='j').map(|name| format!("ours.{name} = [[1, 'm'], [2, 'm']]\n")).collect::<String>();
        let file: FigureFile = toml::from_str(&format!("title = 't'\nx = 'x'\ny = 'y'\n{curves}")).unwrap();
        let mut measured = Measured::default();
        measured.push("m", 1.0);
        let text = svg(&file.draw(&measured));
        let strokes = text.split("<polyline").filter(|line| line.contains("stroke-width=\"2\""));
        let colours: BTreeSet<&str> =
            strokes.filter_map(|line| line.split("stroke=\"").nth(1)?.get(..7)).collect();
        assert_eq!(colours.len(), 10, "{colours:?}");
    }

    #[test]
    fn points_lines_and_names_are_drawn() {
        let file: FigureFile = toml::from_str(
            "title = 'A & B'\nx = 'circuits'\ny = 's'\nlog-x = true\npublished = { a = [[1, 2], [10, 3]] }\n\
             ours = { a = [[1, 'm'], [10, 'm']], b = [[10, 'nothing']] }",
        )
        .unwrap();
        let mut measured = Measured::default();
        measured.push("m", 1.0);
        measured.push("m", 2.0);
        let text = svg(&file.draw(&measured));
        for part in ["<svg", "A &amp; B", "a, ours", "a, published", "<polygon", "</svg>"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("b, ours"), "nothing was measured of it");
        assert!(svg(&file.draw(&Measured::default())).contains("a, published"));
    }
}
