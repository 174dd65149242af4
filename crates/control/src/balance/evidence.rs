//! The input of load balancing: relays' reports and observations of them. Rates are bytes per second.

use std::collections::BTreeMap;

use crate::positions::Class;

/// One relay's observations of another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// Bytes that passed between the two.
    pub bytes: f64,
    /// Streams between the two that ended.
    pub streams: f64,
    /// The sum of these streams' speeds.
    pub speeds: f64,
}

/// The observations of one round, in which clients select by `weights`. Lists are indexed by relay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// The weights by which clients selected relays.
    pub weights: Vec<f64>,
    /// Relays' own reports: the most that they carried over ten seconds, at most their own limit.
    pub reports: Vec<f64>,
    /// Speeds of downloads through a relay, alone or as one of two at the same time.
    pub probes: Vec<Vec<f64>>,
    /// Results of measurements under full load; `None` if a relay was not measured or the result is inconclusive.
    pub measured: Vec<Option<f64>>,
    /// Observations by (observing relay, observed relay).
    pub seen: BTreeMap<(u32, u32), Seen>,
}

/// All rounds of a survey, and facts about the relays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    /// The positions that relays can take.
    pub classes: Vec<Class>,
    /// True capacities. Only the balance system `truth` reads them.
    pub capacities: Vec<f64>,
    /// Relays that the authorities run themselves.
    pub trusted: Vec<bool>,
    /// The rounds in order.
    pub rounds: Vec<Round>,
}

impl Evidence {
    /// The last round.
    ///
    /// # Panics
    /// If there is not a single round.
    pub fn last(&self) -> &Round {
        self.rounds.last().expect("a system weighs after a round")
    }

    /// Number of relays.
    pub(crate) fn relays(&self) -> usize {
        self.classes.len()
    }
}
