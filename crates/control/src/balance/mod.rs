//! Load balancing: from what relays say and what is seen of them to the weights that clients select them by.
//!
//! A [`Balance`] is a part of a system: it says what it [`Asks`] for, whoever can watch the network gives it the
//! [`Evidence`], and [`publish`] makes of what it [`weighs`](Balance::weigh) what a consensus would hold.
//!
//! ```
//! use tidegate_control::balance::{Balance, Evidence, publish, truth::Truth};
//! use tidegate_control::positions::Class;
//!
//! let evidence = Evidence {
//!     classes: vec![Class::GuardExit; 2],
//!     capacities: vec![3e6, 1e6],
//!     trusted: vec![false; 2],
//!     rounds: vec![],
//! };
//! assert_eq!(publish(&[Truth.weigh(&evidence)], &[]).unwrap(), [3e6, 1e6]);
//! ```

pub mod attack;
pub mod diprober;
pub mod eigenspeed;
mod evidence;
mod flashflow;
pub mod likelihood;
pub mod peerflow;
pub mod sbws;
mod speeds;
pub mod survey;
pub mod team;
pub mod torflow;
pub mod truth;

use std::fmt;

pub use evidence::{Evidence, Round, Seen};

/// What an authority gives a relay that it could not measure, at most (tor: `UNMEASURED_BW_CAP`, 20 kB/s).
const UNMEASURED: f64 = 20_000.0;

/// What a system needs to see.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Asks {
    /// Downloads through each relay in a round.
    pub probes: u32,
    /// Further downloads at the same time as each of them, over the same path.
    pub beside: u32,
    /// Each relay measured under full load, and how.
    pub measurements: Option<team::Team>,
    /// Rounds, the weights of each deciding how clients load relays in the next.
    pub rounds: u32,
}

/// A way to weigh relays.
pub trait Balance: fmt::Debug + Send + Sync {
    /// What it needs to see; without a round, nothing.
    fn asks(&self) -> Asks;

    /// A weight for each relay in bytes per second, or `None` for one of which it has learnt nothing.
    fn weigh(&self, evidence: &Evidence) -> Vec<Option<f64>>;

    /// Clients go by the weights that the network came with.
    fn is_given(&self) -> bool {
        false
    }
}

/// A system could weigh no relay at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unweighed;

impl fmt::Display for Unweighed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it has a weight for no relay")
    }
}

impl std::error::Error for Unweighed {}

/// The weights as a consensus would have them, of what one or several authorities [weigh](Balance::weigh): the low
/// median of each relay's. Relays without one get what they say of themselves, but at most 20 kB/s (tor:
/// `Unmeasured=1`).
///
/// # Errors
/// [`Unweighed`] if no relay has a weight above zero.
pub fn publish(files: &[Vec<Option<f64>>], reports: &[f64]) -> Result<Vec<f64>, Unweighed> {
    let relay = |relay: usize| {
        let known = |weight: &f64| weight.is_finite() && *weight >= 0.0;
        low_median(&files.iter().map(|file| file[relay].filter(known)).collect::<Vec<_>>())
    };
    let weights: Vec<Option<f64>> = (0..files.first().map_or(0, Vec::len)).map(relay).collect();
    if !weights.iter().flatten().any(|weight| *weight > 0.0) {
        return Err(Unweighed);
    }
    let unmeasured = |relay| reports.get(relay).map_or(0.0, |report: &f64| report.clamp(0.0, UNMEASURED));
    Ok(weights
        .iter()
        .enumerate()
        .map(|(relay, weight)| weight.unwrap_or_else(|| unmeasured(relay)))
        .collect())
}

/// The low median: of an even number the lower of the two in the middle. `None` if fewer than half of the files have it.
fn low_median(files: &[Option<f64>]) -> Option<f64> {
    let mut known: Vec<f64> = files.iter().copied().flatten().collect();
    known.sort_by(f64::total_cmp);
    if 2 * known.len() < files.len() { None } else { known.get(known.len().checked_sub(1)? / 2).copied() }
}

/// `NWE` (FlashFlow, equation 6): half the sum of the differences between shares of weight and of capacity.
pub fn weight_error(weights: &[f64], capacities: &[f64]) -> f64 {
    let (weight, capacity): (f64, f64) = (weights.iter().sum(), capacities.iter().sum());
    let part = |(w, c): (&f64, &f64)| (w / weight - c / capacity).abs();
    weights.iter().zip(capacities).map(part).sum::<f64>() / 2.0
}

/// `NCE` (equation 3): the share of the capacity that estimates miss.
pub fn capacity_error(estimates: &[f64], capacities: &[f64]) -> f64 {
    1.0 - estimates.iter().sum::<f64>() / capacities.iter().sum::<f64>()
}

/// Relays that some hold: their share of the weight over their share of the capacity.
pub fn advantage(weights: &[f64], capacities: &[f64], malicious: &[bool]) -> f64 {
    let share = |all: &[f64]| {
        let theirs = all.iter().zip(malicious).filter(|(_, theirs)| **theirs);
        theirs.map(|(value, _)| value).sum::<f64>() / all.iter().sum::<f64>()
    };
    share(weights) / share(capacities)
}

#[cfg(test)]
mod tests;
