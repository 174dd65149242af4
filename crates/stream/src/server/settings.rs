//! How a server serves, and what it counts.

use std::net::SocketAddr;

use tidegate_control::paths::parameters::{ControllerParameters, ParameterError};
use tidegate_control::units::{Rate, Span};

use crate::explorer;
use crate::forest::Rule;

/// How a server serves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Data slices; parity slices come on top.
    pub slices: usize,
    /// Parity slices.
    pub parity: usize,
    /// What the server can send.
    pub uplink: Rate,
    /// The most viewers.
    pub viewers: usize,
    /// What viewers must know to join; zeros if nothing.
    pub token: [u8; 16],
    /// How viewers' bandwidth is learnt.
    pub controller: ControllerParameters,
    /// How it explores.
    pub exploration: explorer::Settings,
    /// Who may have children where.
    pub rule: Rule,
    /// What happens when the uplinks do not carry the stream to all any more.
    pub overload: Overload,
    /// The stream's rate until it was measured.
    pub rate: Rate,
    /// A viewer that was not heard of for so long is dead (the thesis: ten seconds).
    pub dead_after: Span,
    /// Whether trees are optimised.
    pub optimise: bool,
}

impl Settings {
    /// The defaults: ten slices and one for parity, as the thesis draws them, and rates that viewers offer.
    pub fn new(uplink: Rate, viewers: usize) -> Settings {
        Settings {
            slices: 10,
            parity: 1,
            uplink,
            viewers,
            token: [0; 16],
            controller: Settings::controller("explicit").expect("a controller of that name"),
            exploration: explorer::Settings::default(),
            rule: Rule::Any,
            overload: Overload::Refuse,
            rate: Rate(4_000_000),
            dead_after: Span::from_secs(3),
            optimise: true,
        }
    }

    /// The controller of that name, whose packets stand for what a child over one slice takes of an uplink in a
    /// second at a rate like that of [`Settings::new`].
    ///
    /// # Errors
    /// If there is none that learns about one viewer at a time.
    pub fn controller(name: &str) -> Result<ControllerParameters, ParameterError> {
        match name {
            "q-learning" | "explicit" | "aimd" | "cubic" => ControllerParameters::named(name, SLICE),
            _ => Err(ParameterError::UnknownController(name.to_owned())),
        }
    }
}

/// Bytes per second: a step of a viewer's bandwidth.
const SLICE: f64 = 50_000.0;

/// What gives when capacity drops (thesis section 7.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overload {
    /// Nobody new is let in; who has no parent in a slice waits.
    Refuse,
    /// The last data slices are not sent: for a layered stream less quality.
    Layers,
    /// The viewers that give the least are sent to another server.
    Redirect(SocketAddr),
}

/// Counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Joins by fate.
    pub joined: u64,
    /// See `joined`.
    pub refused: u64,
    /// Viewers that left, died, were sent away or expelled.
    pub left: u64,
    /// See `left`.
    pub died: u64,
    /// See `left`.
    pub redirected: u64,
    /// Pongs that told of a packet that is not the stream's.
    pub forged: u64,
    /// Complaints that moved somebody.
    pub upheld: u64,
    /// Viewers made leaves for what they did.
    pub relegated: u64,
    /// Packets repaired, and requests refused.
    pub repaired: u64,
    /// See `repaired`.
    pub unrepaired: u64,
    /// Inputs that make no sense.
    pub strange: u64,
    /// Changes of parents.
    pub moves: u64,
}
