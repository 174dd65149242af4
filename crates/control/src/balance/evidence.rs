//! What load balancing knows of a network: what relays say, and what was seen of them. Rates are bytes per second.

use std::collections::BTreeMap;

use crate::positions::Class;

/// What two relays saw of each other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// Bytes that passed from one to the other.
    pub bytes: f64,
    /// Streams among them that ended,
    pub streams: f64,
    /// and the sum of their speeds.
    pub speeds: f64,
}

/// One round: clients select by some weights, and what happens is watched. Lists go by the relay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// The weights that clients selected by.
    pub weights: Vec<f64>,
    /// What relays say of themselves: the most that they carried over ten seconds, at most their own limit.
    pub reports: Vec<f64>,
    /// Speeds of downloads through a relay, alone or as one of two at the same time.
    pub probes: Vec<Vec<f64>>,
    /// What a measurement under full load gave; `None` where there was none, or it did not conclude.
    pub measured: Vec<Option<f64>>,
    /// By (who says it, of whom).
    pub seen: BTreeMap<(u32, u32), Seen>,
}

/// All that is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    /// The positions that relays can take.
    pub classes: Vec<Class>,
    /// What relays can really carry. Nobody knows it; the bound of what can be reached uses it.
    pub capacities: Vec<f64>,
    /// Relays that the authorities run themselves.
    pub trusted: Vec<bool>,
    /// Round after round.
    pub rounds: Vec<Round>,
}

impl Evidence {
    /// The last round's.
    ///
    /// # Panics
    /// Without a round.
    pub fn last(&self) -> &Round {
        self.rounds.last().expect("a system weighs after a round")
    }

    /// Number of relays.
    pub fn relays(&self) -> usize {
        self.classes.len()
    }
}
