//! FlashFlow's team, and how it measures.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::keys::Parameters;
use crate::registry::Origin;
use crate::units::Rate;

/// Source and oracles.
pub(crate) const ORIGIN: Origin = Origin {
    system: "FlashFlow",
    source: "Traudt, Jansen, Johnson, 2021; proposal 316",
    oracles: &[
        "crates/control/src/flashflow/bounds.rs: a_quarter_of_background_inflates_by_a_third",
        "crates/control/src/flashflow/bounds.rs: a_median_of_coordinators_catches_the_part_time_relay",
        "crates/control/src/flashflow/aggregate.rs: the_median_ignores_the_burst_and_the_gap",
        "crates/control/src/flashflow/schedule.rs: the_largest_go_first_into_the_first_slot_with_room",
    ],
    deviation: "the estimate is the median only if the whole measurement carries it",
};

/// The team and its measurements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Team {
    /// Maximum number of measurements of a relay. If the allotted rate may have limited the result, and the team can
    /// allot more, it measures the relay again with a guess of at least twice the last one.
    #[schemars(range(min = 1, max = 20))]
    pub rounds: u32,
    /// Seconds of a measurement. Source: FlashFlow, 30 s.
    #[schemars(range(min = 1, max = 600))]
    pub seconds: u16,
    /// Measurers. Source: FlashFlow, 3.
    #[schemars(range(min = 1, max = 10))]
    pub measurers: u16,
    /// Each measurer's sending rate. Source: FlashFlow, 1 Gbit/s.
    #[schemars(extend("x-range" = "1 Mbit/s.."))]
    pub rate: Rate,
    /// Sockets of the team to a relay. Source: FlashFlow, 160.
    #[schemars(range(min = 1, max = 1000))]
    pub sockets: u16,
    /// The background's share of a relay while it is measured, in percent. Source: FlashFlow, 25.
    #[schemars(range(min = 0, max = 99))]
    pub background: u8,
}

impl Default for Team {
    fn default() -> Team {
        Team { rounds: 3, seconds: 30, measurers: 3, rate: Rate(1_000_000_000), sockets: 160, background: 25 }
    }
}

impl Parameters for Team {}
