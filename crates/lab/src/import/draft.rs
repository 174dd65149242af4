//! The parts of a scenario that an import collects.

use std::collections::BTreeSet;
use std::path::PathBuf;

use tidegate_control::units::Rate;

/// The parts of a scenario collected so far.
#[derive(Default)]
pub(super) struct Draft {
    pub relays: Option<PathBuf>,
    pub latency: Option<PathBuf>,
    /// Stream model and packet model.
    pub models: [Option<PathBuf>; 2],
    /// `[traffic]` tables by name.
    pub traffic: Vec<(String, String)>,
    pub users: Vec<Users>,
    /// The Shadow simulation, if there is one.
    pub network: Option<Whole>,
    /// Files that the user names; those of folders may be skipped.
    pub named: Vec<PathBuf>,
    /// Files that the simulation names and that are read with it.
    pub used: BTreeSet<PathBuf>,
    pub counts: Vec<Count>,
    pub taken: Vec<String>,
    pub left: Vec<String>,
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
