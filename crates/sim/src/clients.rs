//! Clients of a second kind.

use tidegate_proto::links::Ends;
use tidegate_proto::paths::PathSelection;

/// Clients with other circuit ends and other paths than the rest of a system.
#[derive(Clone, Debug)]
pub struct OtherClients {
    /// Suffix of their users' classes, after a dash.
    pub name: String,
    /// Share of the clients ([`crate::world::other_clients`]).
    pub share: f64,
    /// Limits of the cells in flight on their circuits.
    pub ends: Ends,
    /// How they choose relays.
    pub paths: PathSelection,
}
