//! Users and servers: circuits' life at clients, and the transfers over them.
//!
//! [`Applications`] owns this state. It acts on nodes and connections through [`Network`](super::network::Network), and
//! learns of their events through [`NodeEvents`](super::network::NodeEvents).
//!
//! - `state`: users, path choices, and what is kept of their circuits;
//! - `circuits`: users' turns, the circuits that they build and close, and circuits built ahead for others to switch to;
//! - `contest`: circuits that a client measures before it uses one;
//! - `second_leg`: circuits linked with others (Conflux);
//! - `transfers`: streams, from the request's first byte to the response's last; `requests`: their state;
//! - `events`: events of nodes.

mod circuits;
mod contest;
mod events;
mod requests;
mod second_leg;
mod state;
mod transfers;

pub(super) use requests::TransferState;
pub(super) use state::Applications;
