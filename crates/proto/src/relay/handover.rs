//! The ends of circuits that one shard of a relay hands over to another, and the channels between shards.

use std::collections::VecDeque;
use std::net::IpAddr;

use crate::cell::{CircId, Message, Payload, ServiceCommand};
use crate::links::ChannelId;
use crate::onion::Onion;

/// The two channels between a pair of shards: for circuits that come from relays, and for those from clients.
pub type Between = [ChannelId; 2];

/// Where a relay stands among the shards. A relay without other shards does not have channels to them.
#[derive(Debug)]
pub(super) struct Shards<O: Onion> {
    pub own: usize,
    /// The channels to each shard, by its number.
    pub between: Vec<Option<Between>>,
    pub handed: VecDeque<(usize, HandedOver<O>)>,
    /// Circuits that this shard only passes on.
    pub passed: usize,
}

impl<O: Onion> Default for Shards<O> {
    fn default() -> Shards<O> {
        Shards { own: 0, between: Vec::new(), handed: VecDeque::new(), passed: 0 }
    }
}

/// The end of a circuit that another shard takes over.
pub struct HandedOver<O: Onion> {
    pub(super) is_from_client: bool,
    pub(super) circ: CircId,
    pub(super) owner: Option<IpAddr>,
    pub(super) early: u8,
    pub(super) hop: O::RelayHop,
    pub(super) introduced: bool,
    pub(super) message: Message<O>,
}

impl<O: Onion> std::fmt::Debug for HandedOver<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HandedOver").field("circ", &self.circ).finish_non_exhaustive()
    }
}

/// The name under which a circuit with this message meets others.
pub(super) fn meeting<O: Onion>(payload: &Payload<O>) -> Option<[u8; 8]> {
    match payload {
        Payload::Link(link) => link.nonce.first_chunk().copied(),
        Payload::Service(command, data) => {
            // Cookies come first (rend-spec-v3); keys come behind their type and length, and INTRODUCE1 begins with an
            // obsolete name of 20 bytes.
            let at = match command {
                ServiceCommand::EstablishRendezvous | ServiceCommand::Rendezvous1 => 0,
                ServiceCommand::EstablishIntro => 3,
                ServiceCommand::Introduce1 => 23,
                _ => return None,
            };
            data.get(at..)?.first_chunk().copied()
        }
        _ => None,
    }
}
