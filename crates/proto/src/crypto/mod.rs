//! The cryptography of circuits, as Tor's relays do it: the ntor key exchange ([`ntor`]) and a layer of
//! AES-CTR with a running digest per hop ([`layer`]); [`encrypted`] puts them under the machines. No IO, and all randomness is an argument.

pub mod encrypted;
pub mod layer;
pub mod ntor;
