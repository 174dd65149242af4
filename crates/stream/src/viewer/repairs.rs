//! Repairs: requests for missing packets, and answers to children.

use tidegate_control::units::Time;

use super::Viewer;
use crate::packet::{self, Key, PAYLOAD, WIRE};
use crate::reorder::Ask;
use crate::tree::NOBODY;
use crate::{Output, Peer, SERVER};

/// Share of the uplink for repairs of other viewers.
const REPAIRS: f64 = 0.1;
/// Depth at which a viewer counts as near the server.
const NEAR: u8 = 2;

impl Viewer {
    /// Requests missing packets.
    pub(super) fn repair(&mut self, now: Time) {
        let mut asks = self.reorder.look(now);
        // A packet that waits for its manifest is not missing.
        asks.retain(|ask| !self.verifier.holds(ask.key));
        let helpers = if asks.is_empty() { Vec::new() } else { self.helpers() };
        let mut by_peer: Vec<(Peer, Vec<Key>)> = Vec::new();
        for ask in asks {
            let to = self.peer_to_ask(ask, &helpers);
            match by_peer.iter_mut().find(|(peer, _)| *peer == to) {
                Some((_, keys)) => keys.push(ask.key),
                None => by_peer.push((to, vec![ask.key])),
            }
        }
        // Viewers below need not request recovered packets.
        for key in self.reorder.take_restored() {
            if let Some(bytes) = self.reorder.get(key) {
                self.forward(now, usize::from(key.slice), &bytes);
            }
        }
        for (to, keys) in by_peer {
            for keys in keys.chunks(packet::MAX_NACKS) {
                self.outputs.push_back(Output::Datagram { to, bytes: packet::nack(keys) });
            }
        }
    }

    /// The parents of all slices, which have packets of other slices too.
    pub(super) fn helpers(&self) -> Vec<Peer> {
        let heard = self.slices.iter().filter(|slice| slice.delivers && !slice.silent);
        let mut helpers: Vec<Peer> =
            heard.map(|slice| slice.parent).filter(|peer| ![NOBODY, SERVER].contains(peer)).collect();
        helpers.sort_unstable();
        helpers.dedup();
        helpers
    }

    /// Chooses the peer to ask: the slice's parent unless it is silent, then other parents and the server.
    ///
    /// A viewer near the server passes repairs to all viewers below it, so it asks the server early. Viewers below
    /// ask each other first.
    fn peer_to_ask(&self, ask: Ask, helpers: &[Peer]) -> Peer {
        let slice = &self.slices[usize::from(ask.key.slice)];
        if ask.before == 0 && !slice.silent && slice.parent != NOBODY {
            return slice.parent;
        }
        let others: Vec<Peer> = helpers.iter().copied().filter(|peer| *peer != slice.parent).collect();
        let server = if slice.depth <= NEAR { ask.before != 2 } else { ask.before > 2 };
        if others.is_empty() || server {
            return SERVER;
        }
        others[(ask.key.group as usize + usize::from(ask.before)) % others.len()]
    }

    /// Sends missing packets to a child of any slice, within limits.
    pub(super) fn nacked(&mut self, now: Time, from: Peer, keys: &[Key]) {
        let limit = self.config.uplink.as_bytes_per_s() * REPAIRS;
        let child = self.slices.iter().any(|slice| slice.children.contains(&from));
        for key in keys {
            let found = if child { self.stored(*key) } else { None };
            let Some(bytes) = found else {
                self.counts.unrepaired += 1;
                continue;
            };
            if !self.repairs.take(now, bytes.len() as f64, limit, limit.max(4.0 * PAYLOAD as f64)) {
                self.counts.unrepaired += 1;
                continue;
            }
            self.counts.repaired += 1;
            self.relay.arrive(now, (bytes.len() + WIRE) as f64);
            self.outputs.push_back(Output::Datagram { to: from, bytes });
        }
    }
}
