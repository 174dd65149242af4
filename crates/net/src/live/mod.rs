//! An overlay of relays, clients and a directory on sockets. Connections, circuits and streams speak Tor's protocol, so
//! that stock tor is at home among them; neighbours that are both ours also plan, move and share as the parts of
//! [`tidegate_proto`] do.

pub mod addresses;
pub mod authority;
pub mod bandwidth;
pub mod channel;
mod choice;
pub mod client;
pub mod demo_page;
pub mod descriptor;
pub mod directory;
pub mod exit;
pub mod fetch;
pub mod front;
pub mod keys;
pub mod policy;
pub mod quic;
pub mod relay;
pub mod renewal;
mod status;
pub mod stream;
