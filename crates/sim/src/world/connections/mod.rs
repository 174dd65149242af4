//! Connections between hosts: TCP, QUIC, and the packets that carry them.
//!
//! [`Connections`] owns the network below the nodes. It reports what happened as values, such as [`Arrived`]; its
//! callers decide what nodes and applications do about it.
//!
//! - `table`: opens, finds and closes connections;
//! - `segments`: sends and receives TCP segments; `burst` joins them to trains;
//! - `cells`: writes and reads a channel's cells; `records` packs them into TLS records;
//! - `link_handshake`: TLS and the link protocol before the first cell;
//! - `profile`: TCP parameters by kind of path;
//! - `quic`: QUIC connections (trunks) and their streams (lanes);
//! - `borders`, `crossing`: messages between the processes of a divided run;
//! - `follow`: where sampled cells wait; `ahead`: prefetching for the next events;
//! - `sockets`: TCP as an application uses it.

mod ahead;
mod borders;
mod burst;
mod cells;
mod crossing;
mod ends;
mod follow;
mod link_handshake;
mod profile;
mod quic;
mod records;
mod segments;
mod sockets;
mod table;

pub(super) use borders::{ConnectionMessage, Outbox, ProcessMessage};
pub(super) use cells::{CellRun, Reading, ServerBytes};
pub(super) use ends::{Attached, ConnectionId, EndId, Wire};
pub(super) use follow::Trace;
pub(super) use link_handshake::Handshake;
pub(super) use segments::Arrived;
pub(super) use sockets::Sockets;
pub(super) use table::Connections;
