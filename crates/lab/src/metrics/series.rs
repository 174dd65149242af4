//! Curves over time: rates in bins, backlog in samples. They cover the whole run, including the warm-up.

use serde::{Deserialize, Serialize};
use tidegate_control::units::{Span, Time};

/// Curves with a common time axis: one per user if there are few, otherwise one per class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Width of a bin, or interval between samples.
    #[serde(with = "super::kept::span")]
    pub step: Span,
    /// Names of the curves.
    pub names: Vec<String>,
    /// `curves[name][bin]`: bytes delivered within the bin, or bytes of backlog at its end.
    pub curves: Vec<Vec<u64>>,
}

impl Series {
    /// Curves of zeros over `duration`.
    pub fn new(names: Vec<String>, step: Span, duration: Span) -> Series {
        let bins = duration.0.div_ceil(step.0.max(1)) as usize;
        let curves = vec![vec![0; bins]; names.len()];
        Series { step, names, curves }
    }

    /// Adds to the bin that contains `now`; the end of the run belongs to the last bin.
    pub fn add(&mut self, now: Time, curve: usize, value: u64) {
        let values = &mut self.curves[curve];
        let bin = ((now.0 / self.step.0.max(1)) as usize).min(values.len().saturating_sub(1));
        if let Some(slot) = values.get_mut(bin) {
            *slot += value;
        }
    }
}
