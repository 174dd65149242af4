//! The server of a stream: tracker, source and explorer as one machine.
//!
//! [`Server`] dispatches inputs and timers to the owners of its state. Owners do not know each other: they return
//! decisions, which the server carries out.

mod admission;
mod budgets;
mod config;
mod contacts;
mod handovers;
mod outbox;
mod overload;
mod pings;
mod repairs;

use std::collections::BTreeMap;
use std::net::IpAddr;

use bytes::Bytes;
use tidegate_control::machine::Machine;
use tidegate_control::random::{Random, Seed};
use tidegate_control::shares::network;
use tidegate_control::units::{Rate, Span, Time};

use crate::explorer::{self, Explorer};
use crate::forest::Forest;
use crate::judge::{Complaint, Judge, Verdict};
use crate::latency::Latencies;
use crate::member::{Member, Members};
use crate::message::{Contact, Fault, Join, Message, Refusal, Welcome};
use crate::packet::{self, Datagram, Key, PAYLOAD, Video, WIRE};
use crate::signing::Signer;
use crate::source::Source;
use crate::tree::NOBODY;
use crate::{Input, Output, Peer, SERVER};
use admission::{Admission, Candidate, JoinAnswer};
use budgets::{Budgets, HEADROOM, StreamRate};
pub use config::{Counters, Overload, ServerConfig};
use handovers::Handovers;
use outbox::Outbox;
use overload::{LoadShedder, Relief};
use pings::{Liveness, Pings};
use repairs::{Repairs, Sent};

const TICK: Span = Span::from_millis(50);
const SECOND: Span = Span::from_secs(1);
/// Suspicions lower budgets only while capacity exceeds the need by this factor.
const SPARE: f64 = 1.15;
/// Number of random moves that the optimiser tries per tick.
const TRIES: usize = 400;

/// The server's state machine.
pub struct Server {
    config: ServerConfig,
    source: Source,
    signer: Signer,
    forest: Forest,
    latencies: Latencies,
    members: Members,
    handovers: Handovers,
    admission: Admission,
    budgets: Budgets,
    load_shedder: LoadShedder,
    pings: Pings,
    explorer: Explorer,
    judge: Judge,
    repairs: Repairs,
    random: Random,
    seed: Seed,
    next_tick: Time,
    next_second: Time,
    /// The group before which the stream ends, once the source ended.
    ends: Option<u32>,
    /// When the viewers were told of the end.
    ended: Option<Time>,
    outbox: Outbox,
    /// Counters since the start.
    pub counters: Counters,
}

impl Server {
    /// A server without viewers. It signs the stream with the key of this secret.
    ///
    /// # Panics
    /// If the data slices number zero, or all slices more than [`crate::MAX_SLICES`].
    pub fn new(config: ServerConfig, seed: Seed, secret: &[u8; 32]) -> Server {
        let slices = config.slices + config.parity;
        assert!(config.slices > 0 && slices <= crate::MAX_SLICES, "1 to {} slices", crate::MAX_SLICES);
        // Guests need numbers too, and a freed number stays unused for a while.
        let numbers = config.viewers + config.viewers / 4 + 16;
        let peers = (1 + numbers).min(usize::from(NOBODY));
        let mut server = Server {
            source: Source::new(config.slices, config.parity),
            signer: Signer::new(secret, slices),
            forest: Forest::new(peers, slices, config.rule),
            latencies: Latencies::new(peers),
            members: Members::new(peers),
            handovers: Handovers::default(),
            admission: Admission::new(peers, config.viewers, config.token),
            budgets: Budgets::new(config.uplink),
            load_shedder: LoadShedder::new(config.overload, config.slices, config.parity),
            pings: Pings::new(config.uplink, config.dead_after),
            explorer: Explorer::new(config.exploration),
            judge: Judge::default(),
            repairs: Repairs::new(config.uplink),
            random: seed.fork("server").random(),
            seed,
            next_tick: Time::ZERO,
            next_second: Time::ZERO,
            ends: None,
            ended: None,
            outbox: Outbox::default(),
            counters: Counters::default(),
            config,
        };
        server.update_budgets(Time::ZERO);
        server
    }

    /// Accepts a connection and returns the peer's number for inputs and outputs.
    ///
    /// # Errors
    /// The refusal to send, if the server or the peer's address has too many connections.
    pub fn connect(&mut self, now: Time, contact: Contact) -> Result<Peer, Refusal> {
        self.admission.connect(now, contact).inspect_err(|_| self.counters.refused += 1)
    }

    /// Takes bytes of the source, in chunks of any size.
    pub fn video(&mut self, now: Time, bytes: &[u8]) {
        let packets = self.source.push(now, bytes);
        self.sign(now, packets);
    }

    /// The source ended. The viewers get the rest of the stream, then they are told.
    pub fn end(&mut self, now: Time) {
        let (packets, group) = self.source.end(now);
        self.ends = Some(group);
        self.sign(now, packets);
    }

    /// When the whole stream was sent and the viewers were told; `None` before.
    pub fn ended(&self) -> Option<Time> {
        self.ended
    }

    fn sign(&mut self, now: Time, packets: Vec<(Key, Bytes)>) {
        for (key, packet) in packets {
            self.signer.push(now, key, packet, self.source.active());
        }
        self.send_video(now);
    }

    /// The trees.
    pub fn forest(&self) -> &Forest {
        &self.forest
    }

    /// The source.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// A viewer; `None` if no admitted viewer has this number.
    pub fn member(&self, peer: Peer) -> Option<&Member> {
        self.members.get(peer)
    }

    /// Counters of the exploration.
    pub fn exploration(&self) -> explorer::Counters {
        self.explorer.counters
    }

    /// Number of complaints that were ignored.
    pub fn doubted(&self) -> u64 {
        self.judge.doubted
    }

    /// Rate on the wire of one slice to one child, bit/s.
    pub(crate) fn slice_rate(&self) -> f64 {
        self.rate().slice
    }

    fn rate(&self) -> StreamRate {
        let rate = match self.source.rate() {
            Rate(0) => self.config.rate,
            measured => measured,
        };
        let slices = self.config.slices as f64;
        let wire = (PAYLOAD + Video::HEAD + WIRE) as f64 / PAYLOAD as f64;
        let slice = rate.0 as f64 * wire / slices;
        StreamRate { slice, stream: slice * slices }
    }

    /// Handles an input.
    pub fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Datagram { from, bytes } => match packet::decode(&bytes) {
                Some(Datagram::Nack(keys)) => self.repair(now, from, &keys),
                _ => self.counters.strange += 1,
            },
            Input::Message { from, message } => self.message(now, from, message),
            Input::Lost(peer) => {
                self.counters.left += u64::from(self.member(peer).is_some());
                self.remove(peer);
            }
        }
        self.announce_changes(now);
    }

    /// Sends the signed packets that are due.
    fn send_video(&mut self, now: Time) {
        for (slice, bytes) in self.signer.due(now, self.source.active()) {
            let children = self.forest.tree(slice).children(SERVER).iter().copied();
            for child in children.chain(self.handovers.children(slice, SERVER)) {
                self.outbox.datagram(child, bytes.clone());
            }
        }
        if let Some(group) = self.ends
            && self.ended.is_none()
            && self.signer.next_time() == Time::NEVER
        {
            self.ended = Some(now);
            for peer in self.forest.members() {
                self.outbox.message(*peer, Message::End(group));
            }
        }
    }

    fn message(&mut self, now: Time, from: Peer, message: Message) {
        if let Message::Join(join) = message {
            return self.join(now, from, join);
        }
        let Some(member) = self.members.get_mut(from) else {
            // Guests may only join or leave.
            self.counters.strange += u64::from(message != Message::Leave);
            return;
        };
        member.heard = now;
        match message {
            Message::Pong { number } => self.pong(now, from, number),
            Message::Explored { id, held, stamps } => {
                let (members, latencies) = (&mut self.members, &mut self.latencies);
                self.explorer.acked(now, from, id, held, &stamps, members, latencies, &mut self.random);
            }
            Message::Complaint { slice, parent, fault } => {
                self.counters.forged += u64::from(fault == Fault::Forges);
                let complaint = Complaint { slice: usize::from(slice), child: from, parent, fault };
                self.judge.complain(now, complaint, &self.forest);
            }
            Message::Report(report) => member.report = report,
            Message::Leave => {
                self.counters.left += 1;
                self.remove(from);
            }
            _ => self.counters.strange += 1,
        }
    }

    fn join(&mut self, now: Time, from: Peer, join: Join) {
        let (forest, members, viewers) = (&self.forest, &self.members, self.config.viewers);
        let has_room =
            |address| forest.members().len() < viewers || displaced(address, forest, members).is_some();
        match self.admission.join(now, from, join, has_room) {
            JoinAnswer::Queued => self.admit(now),
            JoinAnswer::Refused(refusal) => self.refuse(from, refusal),
            JoinAnswer::Unexpected => self.counters.strange += 1,
        }
    }

    fn refuse(&mut self, peer: Peer, refusal: Refusal) {
        self.counters.refused += 1;
        self.outbox.message(peer, Message::Refused(refusal));
        self.outbox.part(peer);
        self.admission.drop_guest(peer);
    }

    /// Admits waiting viewers, in order of arrival, as long as capacity suffices.
    fn admit(&mut self, now: Time) {
        while let Some(Candidate { peer, join, contact, expired }) = self.admission.first(now) {
            let claim = if join.forwards { join.uplink as f64 } else { 0.0 };
            let branch = self.seed.fork("viewer").fork_index(self.counters.joined);
            let controller =
                self.config.controller.controller(1, branch).expect("checked where it is chosen");
            let mut member = Member::new(now, contact, claim, controller);
            // The viewer's own uplink counts, so that it can make its admission possible.
            let budget = self.budgets.of_member(now, &mut member, self.rate());
            if !self.forest.feasible_with(budget) {
                if !expired {
                    return;
                }
                let needed = (self.forest.members().len() + 1) * self.forest.slices();
                let offered = self.forest.capacity() + budget;
                let slice = self.slice_rate();
                let bits = |children: usize| (children as f64 * slice) as u64;
                self.refuse(peer, Refusal::Overloaded { needed: bits(needed), offered: bits(offered) });
                continue;
            }
            if self.forest.members().len() >= self.config.viewers {
                let Some(other) = displaced(contact.address.ip(), &self.forest, &self.members) else {
                    self.refuse(peer, Refusal::Full);
                    continue;
                };
                self.counters.left += 1;
                self.outbox.message(other, Message::Refused(Refusal::Full));
                self.remove(other);
            }
            self.admission.admit(peer);
            self.members.insert(peer, member);
            self.counters.joined += 1;
            let (slices, parity) = (self.config.slices as u8, self.config.parity as u8);
            let key = self.signer.public();
            self.outbox.message(peer, Message::Welcome(Welcome { me: peer, slices, parity, key }));
            self.forest.join(peer, budget, &self.latencies);
        }
    }

    /// Removes a guest or viewer. Does nothing if it is gone.
    fn remove(&mut self, peer: Peer) {
        self.admission.drop_guest(peer);
        let Some(member) = self.members.remove(peer) else { return };
        self.forest.leave(peer, &self.latencies);
        self.judge.forget(peer);
        self.latencies.forget(peer);
        self.handovers.forget(peer);
        for other in member.met {
            contacts::forget(other, peer, &mut self.members, &mut self.outbox);
        }
        self.outbox.part(peer);
        self.admission.free(peer);
    }

    fn introduce(&mut self, a: Peer, b: Peer) {
        let (forest, handovers) = (&self.forest, &self.handovers);
        let is_needed = |peer, other| forest.are_related(peer, other) || handovers.connect(peer, other);
        contacts::introduce(a, b, &mut self.members, is_needed, &mut self.outbox);
    }

    /// Tells viewers the changes of the trees: the new parent now, the old parent when the handover ends.
    fn announce_changes(&mut self, now: Time) {
        for change in self.forest.take_changes() {
            let (slice, child) = (change.slice as u8, change.child);
            self.counters.moves += 1;
            if change.from != NOBODY {
                self.handovers.begin(now, change.slice, change.from, child);
            }
            if change.to == NOBODY {
                continue;
            }
            self.handovers.cancel(change.slice, change.to, child);
            if change.to != SERVER {
                self.introduce(change.to, child);
                self.outbox.message(change.to, Message::Adopt { slice, child });
            }
            let depth = self.forest.tree(change.slice).depth(child).unwrap_or(0).min(255) as u8;
            if self.member(child).is_some() {
                self.outbox.message(child, Message::Parent { slice, parent: change.to, depth });
            }
        }
    }

    fn end_handovers(&mut self, now: Time) {
        while let Some(old) = self.handovers.pop_finished(now) {
            if old.from != SERVER && self.member(old.from).is_some() {
                self.outbox.message(old.from, Message::Release { slice: old.slice as u8, child: old.child });
            }
        }
    }

    fn repair(&mut self, now: Time, from: Peer, keys: &[Key]) {
        let Some(member) = self.members.get_mut(from) else {
            self.counters.strange += 1;
            return;
        };
        let in_need = self.budgets.in_need(now);
        let (bucket, request) = (&mut member.repairs, (from, keys));
        let sent = Sent { source: &self.source, signer: &self.signer };
        let repaired = self.repairs.answer(now, request, bucket, in_need, &sent, &self.forest);
        self.counters.repaired += repaired.packets.len() as u64;
        self.counters.unrepaired += repaired.denied;
        for packet in repaired.packets {
            self.outbox.datagram(from, packet);
        }
    }

    fn update_budgets(&mut self, now: Time) {
        self.budgets.second(now, self.outbox.take_message_count(), self.forest.orphans());
        let budget = self.budgets.of_server(now, self.rate());
        self.forest.set_budget(SERVER, budget, &self.latencies);
        for peer in self.forest.members().to_vec() {
            self.members.get_mut(peer).expect("viewers in trees are members").second();
            self.update_budget(now, peer);
        }
    }

    fn update_budget(&mut self, now: Time, peer: Peer) {
        let rate = self.rate();
        self.budgets.update(now, peer, rate, &mut self.members, &mut self.forest, &self.latencies);
    }

    fn shed_load(&mut self, now: Time) {
        match self.load_shedder.decide(now, &self.forest, self.source.active()) {
            Some(Relief::SetActive(active)) => {
                self.source.set_active(active);
                for slice in 0..self.config.slices {
                    self.forest.set_active(slice, slice < active, &self.latencies);
                }
            }
            Some(Relief::Redirect(peer, to)) => {
                self.counters.redirected += 1;
                self.outbox.message(peer, Message::Refused(Refusal::Redirect(to)));
                self.remove(peer);
            }
            None => {}
        }
    }

    fn ping(&mut self, now: Time) {
        self.pings.set_viewers(self.forest.members().len());
        for peer in self.forest.members().to_vec() {
            let member = self.members.get_mut(peer).expect("viewers in trees are members");
            match self.pings.check(now, member, self.signer.newest()) {
                Liveness::Dead => {
                    self.counters.died += 1;
                    self.remove(peer);
                }
                Liveness::Alive { suspend, ping } => {
                    if suspend {
                        self.forest.suspend(peer, &self.latencies);
                    }
                    if let Some(ping) = ping {
                        self.outbox.message(peer, Message::Ping(ping));
                    }
                }
            }
        }
    }

    fn pong(&mut self, now: Time, from: Peer, number: u32) {
        let member = self.members.get_mut(from).expect("the sender is a member");
        // A late or repeated pong is normal and says nothing.
        let Some(round_trip) = Pings::pong(now, member, number) else { return };
        self.latencies.measured(SERVER, from, round_trip / 2.0, &mut self.random);
        self.forest.set_avoided(from, false);
    }

    fn explore(&mut self, now: Time) {
        // Exploration must not cost more than all viewers receive together.
        let received = self.slice_rate() * self.forest.slices() as f64 * self.forest.members().len() as f64;
        let limit = self.config.uplink.0 as f64;
        let uplink = received.min(if self.budgets.in_need(now) { limit / 2.0 } else { limit });
        for age in 1..16 {
            let slice = self.random.below(self.config.slices) as u8;
            let Some(group) = self.signer.newest().checked_sub(age) else { return };
            let Some(cargo) = self.source.get(Key { group, slice }) else { return };
            let (members, all) = (&self.members, self.forest.members());
            let Some(explore) = self.explorer.send(now, uplink, &cargo, all, members, &mut self.random)
            else {
                return;
            };
            for pair in explore.chain.windows(2) {
                self.introduce(pair[0], pair[1]);
            }
            self.outbox.datagram(explore.chain[0], explore.encode());
        }
    }

    /// Carries out a verdict: the child gets another parent, and the blamed parent less to carry.
    fn execute(&mut self, now: Time, verdict: Verdict) {
        let (complaint, relegate) = match verdict {
            Verdict::Upheld(complaint) => (complaint, false),
            Verdict::Relegate(complaint) => (complaint, true),
            Verdict::Doubted(_) => return,
        };
        let Complaint { slice, child, parent, fault } = complaint;
        if self.forest.tree(slice).parent(child) != parent {
            // The child moved since it complained.
            return;
        }
        let carried = self.forest.load(parent).1 as f64 * self.slice_rate() / HEADROOM;
        let spare = self.forest.spare() >= SPARE;
        if let Some(member) = self.members.get_mut(parent) {
            self.counters.upheld += 1;
            // New children avoid the parent until its next pong.
            self.forest.set_avoided(parent, true);
            member.next_ping = now;
            // Without spare capacity, a mere suspicion must not take more, because orphans receive nothing.
            if spare || fault != Fault::Silent {
                member.fell_short(now, carried);
            }
            if fault == Fault::Silent {
                member.suspected.get_or_insert(now);
            }
            if relegate && !member.is_relegated(now) {
                member.relegate(now);
                self.counters.relegated += 1;
            }
        }
        self.forest.place_elsewhere(slice, child, &self.latencies);
        self.update_budget(now, parent);
    }

    fn second(&mut self, now: Time) {
        self.update_budgets(now);
        let spread = self.pings.measure_spread(&self.forest, &self.members);
        self.forest.refresh(&self.latencies, (spread.0 / 2000) as i64);
        self.judge.set_spread(spread * 4);
        self.shed_load(now);
        for peer in self.admission.silent_guests(now) {
            self.admission.drop_guest(peer);
            self.outbox.part(peer);
        }
    }

    fn tick(&mut self, now: Time) {
        self.explorer.expire(now, &mut self.members);
        self.ping(now);
        self.explore(now);
        self.admit(now);
        self.forest.place_orphans(&self.latencies);
        if self.config.optimise {
            let moves = 1 + self.forest.members().len() / 500;
            self.forest.optimise(TRIES, moves, &mut self.random, &self.latencies);
        }
    }
}

/// The viewer that makes room for a newcomer with this address if all places are taken: the last one that joined from the
/// network with the most viewers. `None` if that network would not keep at least as many as the newcomer's gets, so viewers
/// of one network do not displace each other.
fn displaced(newcomer: IpAddr, forest: &Forest, members: &Members) -> Option<Peer> {
    let mut networks: BTreeMap<IpAddr, Vec<(Time, Peer)>> = BTreeMap::new();
    for peer in forest.members() {
        let member = members.get(*peer)?;
        networks.entry(network(member.contact.address.ip()).0).or_default().push((member.joined, *peer));
    }
    let own = networks.get(&network(newcomer).0).map_or(0, Vec::len);
    let most = networks.into_values().max_by_key(Vec::len)?;
    most.iter().max().filter(|_| most.len() >= own + 2).map(|(_, peer)| *peer)
}

impl Machine for Server {
    type Output = Output;

    fn poll(&mut self) -> Option<Output> {
        self.outbox.pop()
    }

    fn next_timeout(&self) -> Option<Time> {
        let stream = self.source.next_time().min(self.signer.next_time());
        Some(self.next_tick.min(stream).min(self.judge.next_time()))
    }

    fn timeout(&mut self, now: Time) {
        if now >= self.source.next_time() {
            let packets = self.source.flush(now);
            self.sign(now, packets);
        }
        self.send_video(now);
        for verdict in self.judge.verdicts(now, &self.forest) {
            self.execute(now, verdict);
        }
        if now >= self.next_second {
            self.next_second = now + SECOND;
            self.second(now);
        }
        if now >= self.next_tick {
            self.next_tick = now + TICK;
            self.tick(now);
        }
        self.announce_changes(now);
        self.end_handovers(now);
    }
}
