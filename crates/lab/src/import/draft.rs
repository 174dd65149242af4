//! The parts of a scenario that an import collects.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use tidegate_control::units::Rate;
use tidegate_data::consensus::Identity;
use tidegate_data::relays::Capacity;

use crate::network::LEAST;

/// The parts of a scenario collected so far.
#[derive(Default)]
pub(super) struct Draft {
    pub relays: Option<PathBuf>,
    pub latency: Option<PathBuf>,
    /// Markov models that no client names.
    pub found: Vec<Model>,
    /// Stream model and packet model of users that browse.
    pub models: Option<[PathBuf; 2]>,
    pub traffic: Vec<Table>,
    pub users: Vec<Users>,
    /// The Shadow simulation, if there is one.
    pub network: Option<Whole>,
    /// Files that the user names; those of folders may be skipped.
    pub named: Vec<PathBuf>,
    /// Files that the simulation names and that are read with it.
    pub used: BTreeSet<PathBuf>,
    /// Flow models of its clients.
    pub flow_models: BTreeSet<PathBuf>,
    pub counts: Vec<Count>,
    pub taken: Vec<String>,
    pub left: Vec<String>,
}

/// A Markov model of streams or of packets.
pub(super) struct Model {
    pub file: PathBuf,
    /// Whether it sends packets from the server, as no stream model needs to.
    pub from_server: bool,
}

/// A `[traffic]` table.
pub(super) struct Table {
    pub name: String,
    pub text: String,
    /// The action graph, unless clients of the simulation name it.
    pub file: Option<PathBuf>,
}

/// Quantities of a network that is simulated as a whole.
#[derive(Default)]
pub(super) struct Whole {
    pub servers: u32,
    /// Rates of clients' links, up and down, and of servers' links.
    pub client_links: Option<[Rate; 2]>,
    pub server_link: Option<Rate>,
}

/// A `[[user]]` table.
pub(super) struct Users {
    pub name: String,
    pub traffic: Behaviour,
    pub count: u32,
    pub countries: Vec<String>,
    /// Whether they fetch from onion services.
    pub onion: bool,
}

/// The behaviour of users.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Behaviour {
    /// A `[traffic]` table of this name.
    Table(String),
    /// Measurements, by a single file in the folder or the built-in benchmark.
    Measures,
    /// Markov models, by single files in the folder or the built-in model.
    Browses,
}

/// A number of things in the source and in the scenario.
pub struct Count {
    /// The things.
    pub what: String,
    /// Their number in the source.
    pub source: u64,
    /// Their number in the scenario.
    pub scenario: u64,
    /// Why the numbers differ.
    pub why: Option<String>,
}

impl Draft {
    /// Adds a line that compares the source with the scenario.
    pub(super) fn count(&mut self, what: impl Into<String>, source: u64, scenario: u64, why: &str) {
        let why = (source != scenario).then(|| why.to_owned());
        self.counts.push(Count { what: what.into(), source, scenario, why });
    }

    /// Says how many relays are slower than the simulator's slowest.
    pub(super) fn say_least(&mut self, name: &str, relays: &BTreeMap<Identity, Capacity>) {
        let carried = |relay: &Capacity| relay.capacity_bytes_per_s.min(relay.rate_bytes_per_s);
        let slow = relays.values().filter(|relay| (carried(relay) as f64) < LEAST).count();
        if slow > 0 {
            let least = LEAST / 1000.0;
            self.left.push(format!(
                "{name}: capacities below {least} kB/s: {slow}; {least} kB/s, the least of a relay here, stand in"
            ));
        }
    }
}
