//! Clients of a second kind.

use tidegate_proto::links::Ends;
use tidegate_proto::paths::PathSelection;

/// Clients of another kind in a network: what a system is like at the ends of circuits.
#[derive(Clone, Debug)]
pub struct OtherClients {
    /// What their users' classes end in, after a dash.
    pub name: String,
    /// Share of the clients ([`crate::world::other_clients`]).
    pub share: f64,
    /// What bounds the cells in flight of their circuits.
    pub ends: Ends,
    /// Over which relays these go.
    pub paths: PathSelection,
}
