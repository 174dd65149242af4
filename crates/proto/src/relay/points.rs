//! The relay as introduction and rendezvous point of onion services (rend-spec-v3).

use std::net::Ipv4Addr;

use tidegate_control::shares::network;
use tidegate_control::units::Time;

use super::Relay;
use super::roles::{Cookie, Introduction, Role};
use super::table::{Circuit, Switch};
use crate::cell::{Command, Payload, ServiceCommand, StreamId};
use crate::conflux::Linked;
use crate::crypto::onion_services::{AuthKey, COOKIE, EstablishIntro, IntroduceStatus, introduced_to};
use crate::defence::Defence;
use crate::ending::Ending;
use crate::ids::CircuitKey;
use crate::onion::Onion;

impl<O: Onion> Relay<O> {
    /// Carries out a message of onion services.
    pub(super) fn service_message(
        &mut self,
        now: Time,
        key: CircuitKey,
        command: ServiceCommand,
        data: &[u8],
    ) {
        let circuit = self.table.circuit(key);
        let is_end = circuit.next.is_none()
            && matches!(
                (&circuit.role, &circuit.switch, &circuit.linked),
                (Role::None, Switch::None, Linked::No)
            );
        if !is_end {
            return self.end(now, key, Ending::WrongRendezvous);
        }
        match command {
            ServiceCommand::EstablishIntro => self.establish_introduction(now, key, data),
            ServiceCommand::Introduce1 => self.introduce(now, key, data),
            ServiceCommand::EstablishRendezvous => self.establish_rendezvous(now, key, data),
            ServiceCommand::Rendezvous1 => self.rendezvous(now, key, data),
            // Only clients and services receive the others.
            _ => self.end(now, key, Ending::UnexpectedMessage),
        }
    }

    fn say_service(&mut self, now: Time, key: CircuitKey, command: ServiceCommand, data: &[u8]) {
        self.say(now, key, StreamId(0), Payload::Service(command, data.into()));
    }

    fn establish_introduction(&mut self, now: Time, key: CircuitKey, message: &[u8]) {
        let binding = O::binding(&self.table.circuit(key).hop);
        let Some(EstablishIntro { key: auth, limit }) =
            binding.and_then(|binding| EstablishIntro::read(message, &binding))
        else {
            return self.end(now, key, Ending::WrongRendezvous);
        };
        // The service has built a new circuit, and knows of the end of the old one.
        if let Some(old) = self.points.introductions.get(&auth).copied() {
            self.end(now, old, Ending::Replaced);
        }
        if !self.has_place(now, key) {
            return;
        }
        self.points.introductions.insert(auth, key);
        let introduction = Box::new(Introduction::new(auth, limit));
        self.table.circuit(key).role = Role::Introduction(introduction);
        // No extensions.
        self.say_service(now, key, ServiceCommand::IntroEstablished, &[0]);
    }

    /// Gives a circuit a place as a point: all others of its neighbour come before those of others. False if the relay
    /// ended the circuit itself for that.
    fn has_place(&mut self, now: Time, key: CircuitKey) -> bool {
        // Without limits, as in simulations, all circuits count for one address.
        let owner = self.table.circuit(key).owner.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        if let Some(limits) = self.watch.as_ref().map(|watch| watch.limits) {
            self.points.places.set_places(limits.points.max(1) as usize);
        }
        let of = network(owner);
        while let Some(displaced) = self.points.places.displaced(&of, |_| Time::ZERO) {
            self.end(now, displaced, Ending::Displaced);
        }
        // It can share its end with a displaced circuit, if they are linked.
        let stays = self.table.contains(key);
        if stays {
            self.points.places.admit(now, of, key);
        }
        stays
    }

    /// Passes a client's introduction on to the service, and answers the client.
    fn introduce(&mut self, now: Time, key: CircuitKey, message: &[u8]) {
        let circuit = self.table.circuit(key);
        // A client must not introduce itself without other relays, and once per circuit and relay (rend-spec-v3).
        let again = std::mem::replace(&mut circuit.introduced, true);
        let prev = circuit.prev;
        if again || self.table.links.is_at_guard(prev) {
            return self.end(now, key, Ending::WrongRendezvous);
        }
        let status = match introduced_to(message) {
            None => IntroduceStatus::Malformed,
            Some(auth) => self.pass_introduction(now, auth, message),
        };
        // The service's circuit is another one, so this one is still there.
        self.say_service(now, key, ServiceCommand::IntroduceAck, &status.write());
    }

    fn pass_introduction(&mut self, now: Time, auth: AuthKey, message: &[u8]) -> IntroduceStatus {
        let Some(service) = self.points.introductions.get(&auth).copied() else {
            return IntroduceStatus::Unknown;
        };
        let circuit = &mut self.table.circuits[service.0 as usize];
        let Role::Introduction(introduction) = &mut circuit.role else { unreachable!("it is listed") };
        let otherwise = self.defence.as_ref().and_then(Defence::introductions);
        if !introduction.may_pass(now, otherwise) {
            if let Some(defence) = &self.defence {
                defence.introduction_refused();
            }
            // As tor: a client of a busy service tries another introduction point.
            return IntroduceStatus::Unknown;
        }
        // No window bounds introductions. Without this, strangers could fill the service's queue until its circuit ends.
        if self.table.links.is_half_full(circuit.prev)
            || message.len() > usize::from(O::terms(&circuit.hop).circuit_bytes)
        {
            return IntroduceStatus::NotRelayed;
        }
        self.say_service(now, service, ServiceCommand::Introduce2, message);
        if self.table.contains(service) { IntroduceStatus::Success } else { IntroduceStatus::NotRelayed }
    }

    fn establish_rendezvous(&mut self, now: Time, key: CircuitKey, cookie: &[u8]) {
        let Ok(cookie) = Cookie::try_from(cookie) else { return self.end(now, key, Ending::WrongRendezvous) };
        if self.points.waiting.contains_key(&cookie) {
            return self.end(now, key, Ending::WrongRendezvous);
        }
        let prev = self.table.circuit(key).prev;
        if self.table.links.is_at_guard(prev)
            && self.defence.as_ref().is_some_and(Defence::refuses_single_hop_rendezvous)
        {
            // As tor: the client learns nothing, and times out.
            return;
        }
        if !self.has_place(now, key) {
            return;
        }
        self.points.waiting.insert(cookie, key);
        self.table.circuit(key).role = Role::Waiting(cookie);
        self.say_service(now, key, ServiceCommand::RendezvousEstablished, &[]);
    }

    /// Joins a service's circuit with the client's that waits for it.
    fn rendezvous(&mut self, now: Time, key: CircuitKey, message: &[u8]) {
        let known = message.split_first_chunk::<COOKIE>().and_then(|(cookie, answer)| {
            // The client may have given up.
            Some((self.points.waiting.get(cookie).copied()?, answer))
        });
        let Some((client, answer)) = known else { return self.end(now, key, Ending::WrongRendezvous) };
        if answer.len() > usize::from(O::terms(&self.table.circuit(client).hop).circuit_bytes) {
            return self.end(now, key, Ending::WrongRendezvous);
        }
        let role = std::mem::replace(&mut self.table.circuit(client).role, Role::Joined(key));
        self.points.forget(client, &role);
        self.table.circuit(key).role = Role::Joined(client);
        self.say_service(now, client, ServiceCommand::Rendezvous2, answer);
    }

    /// Passes a cell beyond this circuit's end to the client of the circuit that it is joined with.
    pub(super) fn cross(&mut self, now: Time, to: CircuitKey, mut body: O::Body) {
        let circuit = self.table.circuit(to);
        O::wrap(&mut circuit.hop, &mut body);
        let prev = circuit.prev;
        self.push(now, to, prev, Command::Relay, body);
    }

    /// Ends the circuit that an ended one was joined with.
    pub(super) fn leave_joined(&mut self, now: Time, circuit: &Circuit<O>) {
        if let Role::Joined(other) = circuit.role {
            self.end(now, other, Ending::JoinedCircuit);
        }
    }
}
