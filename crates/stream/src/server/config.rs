//! Configuration and counters of the server.

use std::net::SocketAddr;

use tidegate_control::paths::{CONTROLLERS, ControllerParameters};
use tidegate_control::registry::UnknownPart;
use tidegate_control::units::{Rate, Span};

use crate::explorer::ExplorationConfig;
use crate::forest::Rule;

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Number of data slices, without parity slices.
    pub slices: usize,
    /// Number of parity slices.
    pub parity: usize,
    /// Capacity of the server's uplink.
    pub uplink: Rate,
    /// Maximum number of viewers.
    pub viewers: usize,
    /// Secret that viewers must present to join; all zeros disables the check.
    pub token: [u8; 16],
    /// Controller that estimates the bandwidth of viewers.
    pub controller: ControllerParameters,
    /// Exploration of the viewers' bandwidth.
    pub exploration: ExplorationConfig,
    /// Restricts which peers have children in which trees.
    pub rule: Rule,
    /// Reaction to uplinks that do not carry the stream to all viewers.
    pub overload: Overload,
    /// Assumed rate of the stream before it is measured.
    pub rate: Rate,
    /// A viewer that is silent this long counts as dead (the thesis: ten seconds).
    pub dead_after: Span,
    /// Whether the server optimises its trees.
    pub optimise: bool,
}

impl ServerConfig {
    /// The defaults: ten data slices and one parity slice (as in the thesis), the `explicit` controller.
    pub fn new(uplink: Rate, viewers: usize) -> ServerConfig {
        ServerConfig {
            slices: 10,
            parity: 1,
            uplink,
            viewers,
            token: [0; 16],
            controller: ServerConfig::controller("explicit").expect("a controller of that name"),
            exploration: ExplorationConfig::default(),
            rule: Rule::Any,
            overload: Overload::Refuse,
            rate: Rate(4_000_000),
            dead_after: Span::from_secs(3),
            optimise: true,
        }
    }

    /// The parameters of a bandwidth controller, by name.
    ///
    /// One packet of the controller stands for one second of one slice at the default rate of the stream.
    ///
    /// # Errors
    /// If no controller that estimates one viewer at a time has this name.
    pub fn controller(name: &str) -> Result<ControllerParameters, UnknownPart> {
        let known = ServerConfig::controllers();
        if !known.contains(&name) {
            let name = name.chars().take(40).collect();
            return Err(UnknownPart { family: "controller for streams", name, known });
        }
        ControllerParameters::named(name, SLICE)
    }

    /// The names that [`ServerConfig::controller`] accepts.
    pub fn controllers() -> Vec<&'static str> {
        let serving = CONTROLLERS.iter().filter(|part| part.by_default().serves_streams());
        serving.map(|part| part.name).collect()
    }
}

/// Step of a viewer's estimated bandwidth, bytes/s.
const SLICE: f64 = 50_000.0;

/// Reaction to missing capacity (thesis section 7.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overload {
    /// Refuse new viewers; viewers without a parent in a slice wait.
    Refuse,
    /// Stop sending the last data slices. A layered stream loses quality.
    Layers,
    /// Redirect the viewers with the smallest uplinks to another server.
    Redirect(SocketAddr),
}

/// Counters of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Admitted viewers.
    pub joined: u64,
    /// Refused connections and joins.
    pub refused: u64,
    /// Viewers that left or lost their connection.
    pub left: u64,
    /// Viewers that stopped answering.
    pub died: u64,
    /// Viewers that were redirected to another server.
    pub redirected: u64,
    /// Complaints about forged packets.
    pub forged: u64,
    /// Complaints that blamed a viewer.
    pub upheld: u64,
    /// Viewers that were made leaves after repeated faults.
    pub relegated: u64,
    /// Packets that were sent again.
    pub repaired: u64,
    /// Repairs that the limits forbade.
    pub unrepaired: u64,
    /// Malformed or unexpected inputs.
    pub strange: u64,
    /// Changes of parents.
    pub moves: u64,
}
