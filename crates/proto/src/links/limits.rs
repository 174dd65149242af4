//! Limits on the resources that neighbours use. Exceeding one ends the circuit or the channel, never the relay.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::keys::Parameters;
use tidegate_control::units::{Bytes, Span};

/// Limits on the resources that neighbours use.
///
/// They are the same for clients and relays, and high enough for a relay with thousands of clients' circuits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Limits {
    /// Memory of cells and of streams' bytes; above it, the circuits with the oldest waiting cells end.
    pub memory: Bytes,
    /// Maximum number of connections; a new one replaces the idlest one of the network with the most, first one without circuits.
    #[schemars(range(min = 1))]
    pub connections: u32,
    /// Maximum number of connections from one address (IPv6: one /64).
    #[schemars(range(min = 1))]
    pub connections_per_address: u32,
    /// Maximum number of circuits from one address, over all its connections.
    #[schemars(range(min = 1))]
    pub circuits_per_address: u32,
    /// Maximum number of circuits; a new one replaces the idlest of the network that has the most.
    #[schemars(range(min = 1))]
    pub circuits: u32,
    /// Circuits that an address may begin or extend per second.
    #[schemars(range(min = 1))]
    pub handshakes_per_second: u32,
    /// Circuits that an address may begin or extend at once after a quiet time.
    #[schemars(range(min = 1))]
    pub handshake_burst: u32,
    /// Circuits that all addresses together may begin or extend per second. Addresses that used less of their burst go first.
    #[schemars(range(min = 1))]
    pub all_handshakes_per_second: u32,
    /// Timeout of the next relay's answer to a circuit's extension.
    pub extending: Span,
    /// How long a connection may be without circuits; it closes after half of that time at the earliest, and after all of it at
    /// the latest.
    pub without_circuits: Span,
    /// Maximum number of circuits for which this relay is an introduction point or a waiting rendezvous point.
    #[schemars(range(min = 1))]
    pub points: u32,
    /// Maximum number of open exit streams.
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
            circuits: 100_000,
            handshakes_per_second: 200,
            handshake_burst: 2_000,
            all_handshakes_per_second: 4_000,
            extending: Span::from_secs(30),
            without_circuits: Span::from_secs(180),
            points: 8_000,
            streams: 8_000,
        }
    }
}
