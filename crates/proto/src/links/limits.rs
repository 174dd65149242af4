//! What neighbours may make a relay hold and do. What goes beyond ends its circuit or its channel, never the relay.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::keys::Parameters;
use tidegate_control::units::{Bytes, Span};

/// What neighbours may make a relay hold and do. Whoever connects may be a client or claim to be a relay: the limits are
/// the same, and generous enough for a relay that carries thousands of clients' circuits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Limits {
    /// What cells and streams' bytes may take; beyond it the circuits whose cells have waited longest end.
    pub memory: Bytes,
    /// Connections at one time; the one that has been without circuits longest goes when another comes.
    #[schemars(range(min = 1))]
    pub connections: u32,
    /// Of those, from one address (of IPv6: one network of 64 bits).
    #[schemars(range(min = 1))]
    pub connections_per_address: u32,
    /// Circuits from one address, over all its connections.
    #[schemars(range(min = 1))]
    pub circuits_per_address: u32,
    /// Circuits that an address may begin or extend in a second,
    #[schemars(range(min = 1))]
    pub handshakes_per_second: u32,
    /// and at once, if it was quiet before.
    #[schemars(range(min = 1))]
    pub handshake_burst: u32,
    /// How long the next relay may take to answer a circuit's extension.
    pub extending: Span,
    /// How long a connection may be without circuits; up to half as long again.
    pub without_circuits: Span,
    /// Streams that leave the relay at one time.
    #[schemars(range(min = 1))]
    pub streams: u32,
}

impl Parameters for Limits {}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            memory: Bytes(512 << 20),
            connections: 12_000,
            connections_per_address: 2_000,
            circuits_per_address: 20_000,
            handshakes_per_second: 200,
            handshake_burst: 2_000,
            extending: Span::from_secs(30),
            without_circuits: Span::from_secs(180),
            streams: 8_000,
        }
    }
}
