//! A self-hosted overlay on sockets: relays, clients and a directory.
//!
//! Connections, circuits and streams speak Tor's protocol, so stock tor interoperates. Between neighbours of this
//! project, the parts of [`tidegate_proto`] exchange further messages.

mod addresses;
mod allowances;
pub mod authority;
pub mod bandwidth;
mod channel;
mod choice;
pub mod client;
mod consensus;
mod crossing;
pub mod demo_page;
mod descriptor;
pub mod directory;
pub(crate) mod directory_stream;
mod division;
mod document_cache;
mod ending_log;
mod exit;
mod fetch;
mod history;
pub mod keys;
mod lookups;
mod microdescriptors;
pub(crate) mod onion_descriptors;
mod patience;
mod policy;
pub mod quic;
pub mod relay;
pub mod renewal;
mod self_test;
mod shard;
mod shards;
mod status;
mod stream;
mod turn;
pub mod weights;

pub use addresses::Addresses;
pub use channel::{Accepted, Links};
pub use descriptor::{Operator, family_id};
pub use exit::Exit;
pub use fetch::fetch;
pub use policy::{Policy, Rule};
