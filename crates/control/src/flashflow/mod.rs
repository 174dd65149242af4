//! The arithmetic of FlashFlow (Traudt, Jansen, Johnson 2021): measuring relays' capacities with a team.
//!
//! Section numbers are those of the paper; proposal 316 is Tor's wire protocol for it.
//!
//! A measurement gives byte counts per second ([`aggregate`]). The estimate is accepted or leads to a larger
//! attempt (`accept`). An attempt reserves measurers' capacity (`allocate`) in a slot of the period
//! ([`schedule`]), at most twice a period ([`quota`]). [`bounds`] has the bounds of what an adversary can gain,
//! and [`bandwidth_file`] formats the results for directory authorities.

mod accept;
pub mod aggregate;
mod allocate;
pub mod bandwidth_file;
pub mod bounds;
pub mod quota;
pub mod schedule;

use serde::Deserialize;

use crate::units::{Rate, Span};
pub use accept::{Bounds, Verdict};
pub use allocate::{allocate, share_sockets};

/// A share in whole percent below 100: the background ratio `r`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "u8")]
pub struct Percent(u8);

impl TryFrom<u8> for Percent {
    type Error = String;
    fn try_from(percent: u8) -> Result<Percent, String> {
        Percent::new(percent).ok_or_else(|| format!("{percent} % is not below 100 %"))
    }
}

impl Percent {
    /// `None` from 100 % on: a relay must answer some measurement traffic.
    pub const fn new(percent: u8) -> Option<Percent> {
        if percent < 100 { Some(Percent(percent)) } else { None }
    }

    /// The number of percent.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The most background that counts beside `measurement`: `x r / (1 - r)`, rounded down.
    pub const fn background_for(self, measurement: u64) -> u64 {
        let part = measurement as u128 * self.0 as u128 / (100 - self.0) as u128;
        if part > u64::MAX as u128 { u64::MAX } else { part as u64 }
    }
}

/// Parameters of a deployment (section 6.1 and appendix E).
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct MeasurementParameters {
    /// `m`: required measurer capacity as a multiple of a relay's capacity.
    pub multiplier: f64,
    /// `eps1`: an estimate is almost certainly above `(1 - eps1)` times the true capacity.
    pub epsilon1: f64,
    /// `eps2`: an estimate is almost certainly below `(1 + eps2)` times the true capacity.
    pub epsilon2: f64,
    /// `r`: the share of background in a relay's traffic that counts during a measurement.
    #[serde(rename = "background-percent")]
    pub background: Percent,
    /// `t`: length of a measurement.
    pub duration: Span,
    /// `s`: sockets to a relay, over all measurers.
    pub sockets: u16,
    /// One echoed cell in this many is checked.
    pub check_one_in: u32,
}

impl Default for MeasurementParameters {
    fn default() -> MeasurementParameters {
        MeasurementParameters {
            multiplier: 2.25,
            epsilon1: 0.20,
            epsilon2: 0.05,
            background: Percent(25),
            duration: Span::from_secs(30),
            sockets: 160,
            check_one_in: 125,
        }
    }
}

impl MeasurementParameters {
    /// `f = m (1 + eps2) / (1 - eps1)`: capacity to reserve per unit of guessed capacity.
    ///
    /// The defaults give 2.953. The paper's text says 2.84, but its 599 slots for the network agree with the
    /// formula.
    pub fn excess_factor(&self) -> f64 {
        self.multiplier * (1.0 + self.epsilon2) / (1.0 - self.epsilon1)
    }

    /// Capacity that the team needs for a relay of the guessed capacity, rounded up.
    pub fn demand(&self, guess: Rate) -> Rate {
        Rate(libm::ceil(guess.0 as f64 * self.excess_factor()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_excess_factor_follows_the_formula_not_the_text() {
        let f = MeasurementParameters::default().excess_factor();
        assert!((f - 2.953_125).abs() < 1e-12);
        // Section 7: 608 Gbit/s of relays, a team of 3 Gbit/s, "599 slots".
        assert_eq!((608.0 * f / 3.0_f64).ceil(), 599.0);
    }

    #[test]
    fn background_is_the_ratio_of_the_sum() {
        let quarter = Percent::new(25).unwrap();
        assert_eq!(quarter.background_for(300), 100);
        assert_eq!(Percent::new(0).unwrap().background_for(300), 0);
        assert_eq!(Percent::new(99).unwrap().background_for(u64::MAX), u64::MAX);
        assert_eq!(Percent::new(100), None);
    }
}
