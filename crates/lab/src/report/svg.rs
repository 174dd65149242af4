//! Published figures as SVG: the paper's points as markers, ours as lines with confidence bands.

use plotters::prelude::*;

use super::number::short;
use crate::scoreboard::drawing::{Banded, Drawing};

/// Pixels.
const SIZE: (u32, u32) = (760, 460);

/// One colour per curve name, the same for the paper's and ours (Okabe and Ito's, which the colour-blind can tell
/// apart).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 120, 120),
    RGBColor(150, 130, 0),
];

/// An axis: linear or logarithmic, with its ends.
struct Axis {
    log: bool,
    from: f64,
    to: f64,
}

impl Axis {
    /// Over these values; those that a logarithmic axis cannot show are left out.
    fn over(values: impl Iterator<Item = f64>, log: bool) -> Axis {
        let mut axis = Axis { log, from: f64::INFINITY, to: f64::NEG_INFINITY };
        for value in values.filter(|value| value.is_finite() && (!log || *value > 0.0)) {
            axis.from = axis.from.min(axis.at(value));
            axis.to = axis.to.max(axis.at(value));
        }
        if !log {
            // Quantities are compared with nothing.
            axis.from = axis.from.min(0.0);
        }
        if axis.from.is_infinite() || axis.to <= axis.from {
            (axis.from, axis.to) =
                if axis.from.is_finite() { (axis.from - 0.5, axis.from + 0.5) } else { (0.0, 1.0) };
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

    fn label(&self, at: &f64) -> String {
        short(if self.log { 10f64.powf(*at) } else { (at * 1e9).round() / 1e9 })
    }
}

/// (x, y) of a point of ours and of the ends of its interval.
fn places(curve: &Banded) -> impl Iterator<Item = [(f64, f64); 3]> {
    curve.points.iter().map(|(fixed, mean, band)| {
        [*mean, band[0], band[1]].map(|value| if curve.across { (value, *fixed) } else { (*fixed, value) })
    })
}

/// The figure as a document of its own.
pub fn svg(drawing: &Drawing) -> String {
    let mut text = String::new();
    draw(drawing, &mut text).expect("text can be drawn into memory");
    text
}

fn draw(drawing: &Drawing, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let file = &drawing.file;
    let published = file.published.values().flatten().copied();
    let all: Vec<(f64, f64)> = drawing.ours.iter().flat_map(places).flatten().chain(published).collect();
    let x = Axis::over(all.iter().map(|point| point.0), file.log_x);
    let y = Axis::over(all.iter().map(|point| point.1), file.log_y);
    let place = |(a, b): (f64, f64)| (x.at(a), y.at(b));
    let mut names: Vec<&String> = drawing.ours.iter().map(|curve| &curve.name).collect();
    names.extend(file.published.keys());
    names.sort_unstable();
    names.dedup();
    let colour =
        |name: &String| COLOURS[names.iter().position(|other| *other == name).unwrap_or(0) % COLOURS.len()];

    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(&file.title, ("sans-serif", 17))
        .margin(14)
        .x_label_area_size(42)
        .y_label_area_size(70)
        .build_cartesian_2d(x.from..x.to, y.from..y.to)?;
    chart
        .configure_mesh()
        .x_desc(&file.x)
        .y_desc(&file.y)
        .x_label_formatter(&|at| x.label(at))
        .y_label_formatter(&|at| y.label(at))
        .light_line_style(WHITE)
        .label_style(("sans-serif", 13))
        .draw()?;
    for curve in &drawing.ours {
        let colour = colour(&curve.name);
        let low = places(curve).map(|[_, low, _]| place(low));
        let high: Vec<(f64, f64)> = places(curve).map(|[_, _, high]| place(high)).collect();
        let band: Vec<(f64, f64)> = low.chain(high.into_iter().rev()).collect();
        chart.draw_series([Polygon::new(band, colour.mix(0.18))])?;
        let line: Vec<(f64, f64)> = places(curve).map(|[mean, ..]| place(mean)).collect();
        chart.draw_series(line.iter().map(|point| Circle::new(*point, 2, colour.filled())))?;
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)))?
            .label(format!("{}, ours", curve.name))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    for (name, points) in &file.published {
        let colour = colour(name);
        let marks = points.iter().map(|point| Cross::new(place(*point), 5, colour.stroke_width(2)));
        chart
            .draw_series(marks)?
            .label(format!("{name}, published"))
            .legend(move |(x, y)| Cross::new((x + 9, y), 5, colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .border_style(BLACK.mix(0.3))
        .background_style(WHITE.mix(0.8))
        .label_font(("sans-serif", 13))
        .draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scoreboard::Measured;
    use crate::scoreboard::drawing::FigureFile;

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
