//! The cryptography of circuits and links, as Tor's relays do it: the key exchanges [`ntor`], [`ntor_v3`] and
//! [`fast`], and a layer of AES-CTR with a running digest per hop ([`layer`]); [`encrypted`] puts them under the
//! machines, with relay messages as [`message`] writes them. [`link`] begins a connection with the certificates
//! of [`cert`]; [`wire`] finds cells in it. Relays renew their keys in the time of [`lifetimes`]; [`onion_keys`] are two
//! for a while. No IO, and all time and randomness are arguments.

pub mod cert;
mod der;
pub mod encrypted;
pub mod fast;
pub mod layer;
pub mod lifetimes;
pub mod link;
pub mod message;
pub mod names;
pub mod ntor;
pub mod ntor_v3;
pub mod onion_keys;
pub mod own_keys;
pub mod rsa_keys;
pub mod wire;
