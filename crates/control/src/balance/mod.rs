//! Load balancing: relays' weights from their reports and from observations.
//!
//! A [`Balance`] [`asks`](Balance::asks) for observations. The driver collects the [`Evidence`], the balance system
//! [`weighs`](Balance::weigh) the relays, and [`publish`] combines several files as a consensus does.
//!
//! ```
//! use tidegate_control::balance::{Balance, Evidence, Truth, publish};
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

mod attack;
mod diprober;
mod eigenspeed;
mod evidence;
mod flashflow;
mod mleflow;
mod parts;
mod peerflow;
mod probflow;
mod sbws;
mod speeds;
mod survey;
mod team;
mod torflow;
mod truth;
mod users;

use std::fmt;

pub use attack::{Attack, Trick};
pub use evidence::{Evidence, Round, Seen};
pub use parts::BALANCES;
pub use survey::Survey;
pub use team::Team;
pub use truth::{Given, Truth};

/// The highest weight of an unmeasured relay (tor: `UNMEASURED_BW_CAP`, 20 kB/s).
const UNMEASURED: f64 = 20_000.0;

/// The observations that a balance system needs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Asks {
    /// Downloads through each relay in a round.
    pub probes: u32,
    /// Additional simultaneous downloads for each probe, over the same path.
    pub beside: u32,
    /// FlashFlow's team, if it measures each relay under full load.
    pub measurements: Option<Team>,
    /// Rounds; the weights of each determine how clients load relays in the next.
    pub rounds: u32,
    /// Whether the system reads relays' reports of each other ([`Round::seen`]).
    pub peers: bool,
    /// Whether the system reads which relays are trusted ([`Evidence::trusted`]).
    pub trusted: bool,
}

impl Asks {
    /// Whether attackers with this trick can change what the system observes.
    pub fn meets(&self, trick: Trick) -> bool {
        match trick {
            Trick::None | Trick::Sybils => true,
            Trick::Inflate | Trick::Refuse => self.rounds > 0,
            Trick::Frame => self.peers,
            Trick::Hold | Trick::Flood => self.measurements.is_some(),
        }
    }
}

/// A way to weigh relays.
pub trait Balance: fmt::Debug + Send + Sync {
    /// The observations that this system needs; zero rounds mean none.
    fn asks(&self) -> Asks;

    /// A weight for each relay in bytes per second; `None` if the evidence says nothing about a relay.
    fn weigh(&self, evidence: &Evidence) -> Vec<Option<f64>>;

    /// Whether clients use the weights of the scenario's network.
    fn is_given(&self) -> bool {
        false
    }
}

/// The system has not found a single positive weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unweighed;

impl fmt::Display for Unweighed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("all its weights are zero or missing")
    }
}

impl std::error::Error for Unweighed {}

/// Combines the files of one or several authorities as a consensus does: the low median for each relay.
///
/// A relay without a weight gets its own report, but at most 20 kB/s (tor: `Unmeasured=1`).
///
/// # Errors
/// [`Unweighed`] if every weight is zero or missing.
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

/// The lower of the middle values; `None` if fewer than half of the files have one.
fn low_median(files: &[Option<f64>]) -> Option<f64> {
    let mut known: Vec<f64> = files.iter().copied().flatten().collect();
    known.sort_by(f64::total_cmp);
    if 2 * known.len() < files.len() { None } else { known.get(known.len().checked_sub(1)? / 2).copied() }
}

/// NWE (FlashFlow, equation 6): half the sum of differences between shares of weight and of capacity.
pub fn weight_error(weights: &[f64], capacities: &[f64]) -> f64 {
    let (weight, capacity): (f64, f64) = (weights.iter().sum(), capacities.iter().sum());
    let part = |(w, c): (&f64, &f64)| (w / weight - c / capacity).abs();
    weights.iter().zip(capacities).map(part).sum::<f64>() / 2.0
}

/// NCE (FlashFlow, equation 3): the share of the capacity that the estimates miss.
pub fn capacity_error(estimates: &[f64], capacities: &[f64]) -> f64 {
    1.0 - estimates.iter().sum::<f64>() / capacities.iter().sum::<f64>()
}

/// The attacker's share of the weight over its share of the capacity.
pub fn advantage(weights: &[f64], capacities: &[f64], malicious: &[bool]) -> f64 {
    attackers_share(weights, malicious) / attackers_share(capacities, malicious)
}

/// The attacker's share of a quantity of all relays.
pub fn attackers_share(of_relays: &[f64], malicious: &[bool]) -> f64 {
    let theirs = of_relays.iter().zip(malicious).filter(|(_, theirs)| **theirs);
    theirs.map(|(value, _)| value).sum::<f64>() / of_relays.iter().sum::<f64>()
}

#[cfg(test)]
mod tests;
