//! TorFlow (Perry 2009): a relay's report times the speed of its downloads relative to all relays.
//!
//! The rule is that of `aggregate.py` under the parameters of consensuses from 2016 to 2025: `bwauthpid=1` and no other, so
//! relays are not grouped by class and the controller is proportional.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::speeds::{capped, mean, speeds};
use super::{Asks, Balance, Evidence};
use crate::keys::Parameters;
use crate::registry::Origin;

/// Source and oracles.
pub(crate) const ORIGIN: Origin = Origin {
    system: "TorFlow",
    source: "Perry, HotPETs 2009; aggregate.py of torflow, 2018",
    oracles: &[
        "crates/control/src/balance/tests/scanners.rs: torflow_corrects_the_report_by_the_larger_ratio",
        "crates/control/src/balance/tests/scanners.rs: filtered_speeds_are_those_of_sbws_tests",
    ],
    deviation: "a helper has at least the relay's weight, where TorFlow scans slices by percentile; circuit failures do not count",
};

/// Parameters of Tor's scanners from 2009 to 2020.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct TorFlow {
    /// Downloads through each relay in a round.
    #[schemars(range(min = 1, max = 100))]
    pub downloads: u32,
    /// Rounds; in each, clients select by the weights of the previous round.
    #[schemars(range(min = 1, max = 20))]
    pub rounds: u32,
    /// The largest share of all weight for one relay. Source: TorFlow, 5 %.
    #[schemars(range(min = 0.001, max = 1.0))]
    pub cap: f64,
}

impl Default for TorFlow {
    fn default() -> TorFlow {
        TorFlow { downloads: 3, rounds: 1, cap: 0.05 }
    }
}

impl Parameters for TorFlow {}

impl Balance for TorFlow {
    fn asks(&self) -> Asks {
        Asks { probes: self.downloads, rounds: self.rounds, ..Asks::default() }
    }

    fn weigh(&self, evidence: &Evidence) -> Vec<Option<f64>> {
        let round = evidence.last();
        let all: Vec<_> = round.probes.iter().map(|probes| speeds(probes)).collect();
        let streams = mean(&mut all.iter().flatten().map(|speeds| speeds.stream));
        let filtered = mean(&mut all.iter().flatten().map(|speeds| speeds.filtered));
        let weight = |relay: usize| {
            let (own, streams, filtered) = (all[relay]?, streams?, filtered?);
            let ratio = (own.stream / streams).max(own.filtered / filtered);
            ratio.is_finite().then(|| ratio * round.reports[relay].max(1.0))
        };
        capped((0..evidence.relays()).map(weight).collect(), self.cap)
    }
}
