//! Relay messages from clients.

use tidegate_control::units::Time;

use super::MAX_HELD;
use super::Relay;
use super::table::{CELL_COST, Switch};
use crate::cell::{DestroyReason, EndReason, Message, Payload, StreamId};
use crate::conflux::Linked;
use crate::control::Plant as _;
use crate::edge::Edge;
use crate::ids::{CircuitKey, StreamKey};
use crate::node::Output;
use crate::onion::Onion;

impl<O: Onion> Relay<O> {
    /// Handles a message from the client, unless a switch of circuits holds it.
    pub(super) fn message(&mut self, now: Time, key: CircuitKey, message: Message<O>) {
        match &mut self.table.circuits[key.0 as usize].switch {
            Switch::None => {}
            Switch::Joined(_, _, held) if held.len() < MAX_HELD => {
                self.held += CELL_COST;
                return held.push(message);
            }
            // A client must not send more than its window, or anything after LEAVE.
            Switch::Joined(..) | Switch::Left(_) => return self.end(now, key, DestroyReason::PROTOCOL),
        }
        match self.table.circuit(key).linked {
            Linked::No => self.act(now, key, message),
            Linked::First(_) | Linked::With(_) => self.leg_message(now, key, message),
        }
    }

    /// Carries out a message.
    pub(super) fn act(&mut self, now: Time, key: CircuitKey, message: Message<O>) {
        let circuit = &mut self.table.circuits[key.0 as usize];
        let stream = StreamKey { circuit: key, stream: message.stream };
        match (message.payload, circuit.edge.as_deref_mut()) {
            (Payload::Nothing, _) => {}
            // Tor drops messages that only clients receive, and those of unknown streams.
            (Payload::Connected | Payload::Resolved(_) | Payload::Extended(_) | Payload::Truncated, _)
            | (Payload::Data(..) | Payload::End(_) | Payload::Xoff | Payload::Xon, None) => {}
            (Payload::Sendme(_), None) if message.stream.0 != 0 => {}
            (Payload::Extend(peer, body), None) if circuit.next.is_none() => {
                // A relay must not extend a circuit to the previous relay (tor-spec, "EXTEND and EXTENDED cells").
                let behind = self.table.links.peer(circuit.prev);
                match self.onion.relay(&peer).filter(|relay| behind != Some(*relay)) {
                    Some(relay) => self.extend(now, key, relay, body),
                    None => self.end(now, key, DestroyReason::CONNECT_FAILED),
                }
            }
            // Tor drops a BEGIN for stream 0 or for an existing stream.
            (Payload::Begin(_), _) if message.stream.0 == 0 => {}
            (Payload::Begin(_), Some(edge)) if edge.has(message.stream) => {}
            (Payload::Begin(address), _) if circuit.next.is_none() => self.begin(now, stream, address),
            (Payload::Misread, _) => self.say(now, key, message.stream, Payload::End(EndReason::PROTOCOL)),
            (Payload::Truncate, _) => self.truncate(now, key),
            (Payload::Data(bytes, data), Some(edge)) => match edge.deliver(message.stream) {
                Ok((owed, known)) => {
                    if known {
                        self.table.outputs.push_back(Output::Deliver(stream, bytes, data));
                    }
                    if owed.circuit {
                        self.acknowledge(now, key);
                    }
                    if owed.stream && self.table.contains(key) {
                        self.say(now, key, message.stream, Payload::Sendme(None));
                    }
                }
                Err(_) => self.end(now, key, DestroyReason::PROTOCOL),
            },
            (Payload::Sendme(digest), Some(edge)) => {
                let blocked = self.table.links.is_blocked(circuit.prev);
                let taken = edge.sendme(now, message.stream, digest, blocked).is_ok();
                self.leg_acknowledged(now, key);
                self.resume_or_end(now, key, taken);
            }
            (ref payload @ (Payload::Xoff | Payload::Xon), Some(edge)) => {
                edge.stop(message.stream, *payload == Payload::Xoff);
                self.table.resume(key);
            }
            (Payload::Leave(nonce), Some(_)) if !self.left.contains_key(&nonce) => {
                circuit.switch = Switch::Left(nonce);
                self.left.insert(nonce, key);
                self.switch(now, nonce);
            }
            (Payload::Join(nonce), None) if circuit.next.is_none() && !self.joined.contains_key(&nonce) => {
                circuit.switch = Switch::Joined(nonce, now, Vec::new());
                self.joined.insert(nonce, key);
                self.switch(now, nonce);
            }
            (Payload::Link(link), None) => self.link(now, key, &link),
            (Payload::End(reason), Some(_)) => {
                if self.drop_stream(stream) {
                    self.table.outputs.push_back(Output::StreamClosed(stream, reason));
                    self.table.resume(key);
                }
            }
            _ => self.end(now, key, DestroyReason::PROTOCOL),
        }
    }

    /// Sends a circuit SENDME with the digest of the last cell (proposal 289).
    pub(super) fn acknowledge(&mut self, now: Time, key: CircuitKey) {
        let heard = O::digests(&self.table.circuit(key).hop).map(|[heard, _]| heard);
        self.say(now, key, StreamId(0), Payload::Sendme(heard));
    }

    /// Resumes sending if a message about windows was valid, and otherwise ends the circuit.
    pub(super) fn resume_or_end(&mut self, now: Time, key: CircuitKey, right: bool) {
        if right { self.table.resume(key) } else { self.end(now, key, DestroyReason::PROTOCOL) }
    }

    /// Creates this end of a circuit, with or without congestion control as its client asked.
    pub(super) fn edge(&mut self, key: CircuitKey) -> Edge {
        let controller = self.controller.as_ref();
        let allowance = controller.map_or(f64::INFINITY, |steers| steers.first_allowance().1);
        let asked = O::asks_congestion_control(&self.table.circuit(key).hop);
        Edge::agreed(asked, self.table.links.config(), allowance)
    }

    /// Opens a stream at this end of the circuit.
    fn begin(&mut self, now: Time, stream: StreamKey, address: O::Address) {
        let key = stream.circuit;
        if self.table.circuit(key).edge.is_none() {
            let edge = self.edge(key);
            self.table.circuit(key).edge = Some(Box::new(edge));
        }
        let opened = self.table.circuit(key).edge.as_deref_mut().is_some_and(|edge| edge.open(stream.stream));
        if opened {
            self.table.outputs.push_back(Output::Connect(stream, address));
        } else {
            self.say(now, stream.circuit, stream.stream, Payload::End(EndReason::RESOURCE_LIMIT));
        }
    }

    /// Cuts a circuit behind this relay.
    fn truncate(&mut self, now: Time, key: CircuitKey) {
        self.waits_no_more(key);
        if let Some(next) = self.table.circuits[key.0 as usize].next.take() {
            let channel = self.table.links.remove_leg(now, next, Some(DestroyReason::NONE));
            self.close_if_spent(now, channel);
        }
        self.say(now, key, StreamId(0), Payload::Truncated);
    }
}
