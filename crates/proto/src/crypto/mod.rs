//! The cryptography of circuits and links, as Tor's relays do it: the key exchanges [`ntor`], [`ntor_v3`] and
//! [`fast`], and a layer per hop, of AES-CTR with a running digest ([`layer`]) or of Counter Galois Onion (`cgo`), as
//! `negotiation` agrees; `encrypted` combines them for the state machines, with relay messages in the formats of
//! [`message`]. [`link`] begins a connection with the certificates
//! of [`cert`]; [`wire`] splits it into cells; [`padding`] keeps it from idling. `lifetimes` says when relays renew keys; `onion_keys` keeps the
//! current and the previous onion key. [`onion_services`] reads messages to introduction and rendezvous points.
//! `family` certifies that relays have one operator. Time and randomness are arguments; nothing does IO.

pub mod cert;
mod cgo;
mod der;
mod encrypted;
mod family;
pub mod fast;
mod hop;
pub mod layer;
mod lifetimes;
pub mod link;
pub mod message;
mod names;
mod negotiation;
pub mod ntor;
pub(crate) mod ntor_v3;
mod onion_keys;
pub(crate) mod onion_services;
mod own_keys;
pub mod padding;
pub mod rsa_keys;
pub mod wire;

pub use encrypted::{Encrypted, Handshake, Hop};
pub use family::FamilyKey;
pub use lifetimes::KeyLifetimes;
pub use names::{Names, Peer, Router, SharedNames, Target};
pub use negotiation::{CGO_VERSION, SENDME_INCREMENT, Wishes};
pub use onion_keys::{OnionKey, OnionKeys};
pub use own_keys::OwnKeys;
