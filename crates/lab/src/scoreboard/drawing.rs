//! Published figures: axes, the paper's points, and ours with confidence bands.
//!
//! ```toml
//! [[figure]]
//! title = "7 (a): latency over the number of circuits"
//! x = "circuits"
//! y = "latency, ms"
//! note = "the paper's text gives no numbers, so only our values are drawn"
//! log-x = true
//! ours = { vanilla = [[10, "1000 * n10.vanilla.latency_mean_s"], [100, "1000 * n100.vanilla.latency_mean_s"]] }
//! published = { vanilla = [[10, 93.5]] }
//! ```
//!
//! Points that a scale does not measure are left out.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::expression::Expression;
use super::measured::Measured;
use crate::statistics::Estimate;

/// A figure of the paper.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FigureFile {
    /// Heading.
    pub title: String,
    /// Label of the horizontal axis, with its unit.
    pub x: String,
    /// Label of the vertical axis, with its unit.
    pub y: String,
    /// A logarithmic horizontal axis.
    #[serde(default)]
    pub log_x: bool,
    /// A logarithmic vertical axis.
    #[serde(default)]
    pub log_y: bool,
    /// Origin of the published points.
    #[serde(default)]
    pub note: String,
    /// The paper's points, by name of the curve.
    #[serde(default)]
    pub published: BTreeMap<String, Vec<(f64, f64)>>,
    /// Our curves as (x, expression).
    #[serde(default)]
    pub ours: BTreeMap<String, Vec<(f64, String)>>,
    /// Our curves as (expression, y), for figures that measure the horizontal coordinate, such as distributions.
    #[serde(default)]
    pub across: BTreeMap<String, Vec<(String, f64)>>,
}

/// One of our curves.
#[derive(Clone, Debug, PartialEq)]
pub struct Banded {
    /// Its name.
    pub name: String,
    /// Whether the interval applies to x instead of y.
    pub across: bool,
    /// (fixed coordinate, mean, ends of the mean's 95 % confidence interval).
    pub points: Vec<(f64, f64, [f64; 2])>,
}

/// A figure with its measured curves.
#[derive(Clone, Debug)]
pub struct Drawing {
    /// Axes, title and the paper's points.
    pub file: FigureFile,
    /// Our curves.
    pub ours: Vec<Banded>,
}

impl FigureFile {
    /// The error of the first invalid expression, if any.
    pub(crate) fn wrong(&self) -> Option<String> {
        let texts = self.ours.values().flatten().map(|(_, text)| text);
        let across = self.across.values().flatten().map(|(text, _)| text);
        texts.chain(across).find_map(|text| {
            text.parse::<Expression>()
                .err()
                .map(|error| format!("figure `{}`: `{text}`: {error}", self.title))
        })
    }

    /// Evaluates the figure's expressions.
    pub fn draw(&self, measured: &Measured) -> Drawing {
        let estimate = |text: &str| {
            let values = text.parse::<Expression>().ok()?.evaluate(&measured.values).ok()?;
            let Estimate { mean, ci95, .. } = Estimate::of(&values);
            let width = ci95.unwrap_or(0.0);
            mean.is_finite().then_some((mean, [mean - width, mean + width]))
        };
        let point = |fixed: f64, text: &str| estimate(text).map(|(mean, band)| (fixed, mean, band));
        let along = self.ours.iter().map(|(name, points)| Banded {
            name: name.clone(),
            across: false,
            points: points.iter().filter_map(|(x, text)| point(*x, text)).collect(),
        });
        let across = self.across.iter().map(|(name, points)| Banded {
            name: name.clone(),
            across: true,
            points: points.iter().filter_map(|(text, y)| point(*y, text)).collect(),
        });
        let ours = along.chain(across).filter(|curve| !curve.points.is_empty()).collect();
        Drawing { file: self.clone(), ours }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_curves_have_bands_and_omit_unmeasured_points() {
        let file: FigureFile = toml::from_str(
            "title = 't'\nx = 'x'\ny = 'y'\npublished = { a = [[1, 2]] }\n\
             ours = { a = [[1, '2 * m'], [2, 'absent']] }\nacross = { b = [['m', 0.5]] }",
        )
        .unwrap();
        let mut measured = Measured::default();
        measured.push("m", 1.0);
        measured.push("m", 2.0);
        let drawing = file.draw(&measured);
        let (x, mean, band) = drawing.ours[0].points[0];
        assert_eq!((x, mean, drawing.ours[0].points.len()), (1.0, 3.0, 1));
        assert!(band[0] < 3.0 && (band[0] + band[1] - 6.0).abs() < 1e-9);
        assert!(drawing.ours[1].across && drawing.ours[1].points[0].0 == 0.5);
        assert!(file.wrong().is_none());
        let wrong = FigureFile { ours: [("a".into(), vec![(1.0, "2 *".into())])].into(), ..file };
        assert!(wrong.wrong().is_some());
    }
}
