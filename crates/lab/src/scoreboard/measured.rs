//! The result of a runner.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};
use tidegate_control::text::hex;

use super::calibration::Calibration;
use super::looks::Looks;

/// Measured quantities: name -> one value per seed.
///
/// Names are dotted paths of letters, digits, `_` and `-`, such as
/// `vanilla.throughput_total_bytes_per_s`; rows refer to them.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The values, never empty.
    pub values: BTreeMap<String, Vec<f64>>,
    /// Whether the measurement draws nothing at random: its values would be the same for every seed.
    pub deterministic: bool,
    /// Quantities that depend on no seed although others do.
    pub fixed: BTreeSet<String>,
    /// Quantities that depend on clocks.
    pub clocked: BTreeSet<String>,
    /// Curves for the scoreboard's report.
    pub figures: Vec<Figure>,
    /// Remarks on this measurement for readers of the scoreboard.
    pub notes: Vec<String>,
    /// The search for the values of free parameters; `values` are of its first point.
    pub calibration: Option<Calibration>,
    /// The values at the further points of the posterior range.
    pub elsewhere: Vec<BTreeMap<String, Vec<f64>>>,
    /// The numbers of seeds at which the values were judged.
    pub looks: Looks,
}

impl Measured {
    /// Adds one seed's value of a quantity.
    pub fn push(&mut self, quantity: impl Into<String>, value: f64) {
        self.values.entry(quantity.into()).or_default().push(value);
    }

    /// Adds the value of a quantity that depends on no seed.
    pub(crate) fn push_fixed(&mut self, quantity: impl Into<String>, value: f64) {
        let quantity = quantity.into();
        self.fixed.insert(quantity.clone());
        self.push(quantity, value);
    }

    /// Adds one seed's value of a quantity that depends on clocks.
    pub(crate) fn push_clocked(&mut self, quantity: impl Into<String>, value: f64) {
        let quantity = quantity.into();
        self.clocked.insert(quantity.clone());
        self.push(quantity, value);
    }

    /// Number of seeds, or of runs: that of the quantity with the most values.
    pub fn seeds(&self) -> usize {
        self.values.values().map(Vec::len).max().unwrap_or(0)
    }

    /// Adds the values of a later run of the same experiment. Its figures, if it has any, replace the earlier ones.
    pub fn append(&mut self, run: Measured) {
        for (quantity, values) in run.values {
            self.values.entry(quantity).or_default().extend(values);
        }
        self.fixed.extend(run.fixed);
        self.clocked.extend(run.clocked);
        if !run.figures.is_empty() {
            self.figures = run.figures;
        }
        self.notes
            .extend(run.notes.into_iter().filter(|note| !self.notes.contains(note)).collect::<Vec<_>>());
    }

    /// Whether none of the quantities depends on a seed or a clock.
    pub(crate) fn is_deterministic(&self, quantities: &[&str]) -> bool {
        let same = |name: &&str| self.deterministic && !self.clocked.contains(*name);
        quantities.iter().all(|name| same(name) || self.fixed.contains(*name))
    }

    /// SHA-256 of every name and the bits of every value, in order and at every point, without the quantities that depend on clocks.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        let all = std::iter::once(&self.values).chain(&self.elsewhere).flatten();
        for (name, values) in all.filter(|(name, _)| !self.clocked.contains(*name)) {
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(name);
            hash.update((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| hash.update(value.to_bits().to_le_bytes()));
        }
        hex(&hash.finalize())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_change_no_digest_and_no_row_is_deterministic_with_them() {
        let measured = |seconds: f64, rate: f64| {
            let mut measured = Measured { deterministic: true, ..Measured::default() };
            measured.push("rate", rate);
            measured.push_clocked("wall_s", seconds);
            measured
        };
        assert_eq!(measured(1.0, 5.0).digest(), measured(2.0, 5.0).digest());
        assert_ne!(measured(1.0, 5.0).digest(), measured(1.0, 6.0).digest());
        assert!(measured(1.0, 5.0).is_deterministic(&["rate"]));
        assert!(!measured(1.0, 5.0).is_deterministic(&["rate", "wall_s"]));
    }

    #[test]
    fn runs_of_one_experiment_give_one_value_each() {
        let run = |rate: f64, note: &str| {
            let mut measured = Measured { notes: vec!["Live.".into(), note.into()], ..Measured::default() };
            measured.push("rate", rate);
            measured
        };
        let mut all = run(5.0, "Slow.");
        all.append(run(6.0, "Fast."));
        assert_eq!(all.values["rate"], [5.0, 6.0]);
        assert_eq!(all.notes, ["Live.", "Slow.", "Fast."]);
    }

    #[test]
    fn a_fixed_quantity_is_deterministic_beside_drawn_ones() {
        let mut measured = Measured::default();
        measured.push_fixed("bound", 0.5);
        measured.push("share", 0.4);
        assert!(measured.is_deterministic(&["bound"]));
        assert!(!measured.is_deterministic(&["bound", "share"]));
    }
}
