//! The result of a runner.

use std::collections::BTreeMap;

/// Measured quantities: name -> one value per seed.
///
/// Names are dotted paths of letters, digits, `_` and `-`, such as
/// `vanilla.throughput_total_bytes_per_s`; rows refer to them.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The values, never empty.
    pub values: BTreeMap<String, Vec<f64>>,
    /// Curves for the scoreboard's report.
    pub figures: Vec<Figure>,
    /// Remarks on this measurement for readers of the scoreboard.
    pub notes: Vec<String>,
}

impl Measured {
    /// Adds one seed's value of a quantity.
    pub fn push(&mut self, quantity: impl Into<String>, value: f64) {
        self.values.entry(quantity.into()).or_default().push(value);
    }
}

/// A figure of curves over one axis.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Figure {
    /// Heading.
    pub title: String,
    /// Label of the horizontal axis, with its unit.
    pub x: String,
    /// Label of the vertical axis, with its unit.
    pub y: String,
    /// The curves.
    pub curves: Vec<Curve>,
}

/// One curve of a figure.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Curve {
    /// Name in the legend.
    pub name: String,
    /// Points, ascending in x.
    pub points: Vec<(f64, f64)>,
}
