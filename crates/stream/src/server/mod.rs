//! The server: tracker, source and explorer as one machine.

mod budgets;
mod contacts;
mod overload;
mod pings;
mod repairs;
mod settings;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use bytes::Bytes;
use tidegate_control::machine::Machine;
use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Rate, Span, Time};

use crate::bucket::Bucket;
use crate::explorer::{self, Explorer};
use crate::forest::Forest;
use crate::judge::{Complaint, Fault, Judge, Verdict};
use crate::latency::Latencies;
use crate::member::Member;
use crate::message::{Contact, Join, Message, Refusal, VERSION, Welcome};
use crate::packet::{self, Datagram, PAYLOAD, Video, WIRE};
use crate::repairs::Repairs;
use crate::source::Source;
use crate::tree::NOBODY;
use crate::{Input, Output, Peer, SERVER};
pub use settings::{Counters, Overload, Settings};

/// What the trees leave of an uplink: for repairs, exploration and bursts.
const HEADROOM: f64 = 0.85;
const TICK: Span = Span::from_millis(50);
const SECOND: Span = Span::from_secs(1);
/// A new viewer that there is no room for waits so long for some.
const WAIT: Span = Span::from_secs(4);
/// A suspicion may take room away while there is so many times what is needed.
const SPARE: f64 = 1.15;
/// Moves looked at per tick.
const TRIES: usize = 400;
/// Joins per second from one address, and the most at once; addresses remembered.
const JOINS_PER_S: f64 = 2.0;
const JOINS_AT_ONCE: f64 = 64.0;
const ADDRESSES: usize = 4096;
/// Who connected must join within this time.
const JOIN_TIMEOUT: Span = Span::from_secs(5);

/// The machine.
pub struct Server {
    settings: Settings,
    source: Source,
    forest: Forest,
    latencies: Latencies,
    members: Vec<Option<Member>>,
    /// Numbers that carriers hold without being let in, with their contacts.
    guests: BTreeMap<Peer, (Time, Contact)>,
    waiting: VecDeque<(Time, Peer, Join)>,
    free: VecDeque<Peer>,
    joins: BTreeMap<IpAddr, Bucket>,
    explorer: Explorer,
    judge: Judge,
    repairs: Repairs,
    releases: VecDeque<(Time, usize, Peer, Peer)>,
    random: Random,
    seed: Seed,
    pings: u32,
    next_tick: Time,
    next_second: Time,
    short_since: Option<Time>,
    /// How much round trips to most viewers vary.
    uneven: Span,
    /// Messages since the last second, and per second lately.
    told: u32,
    talk: f64,
    /// When somebody last had no parent.
    orphaned: Option<Time>,
    outputs: VecDeque<Output>,
    /// What happened.
    pub counters: Counters,
}

impl Server {
    /// A server that nobody watches yet.
    ///
    /// # Panics
    /// If there are no data slices, or more slices than [`crate::MAX_SLICES`].
    pub fn new(settings: Settings, seed: Seed) -> Server {
        let slices = settings.slices + settings.parity;
        assert!(settings.slices > 0 && slices <= crate::MAX_SLICES, "1 to {} slices", crate::MAX_SLICES);
        // Guests need numbers as well, and numbers rest before they are used again.
        let numbers = settings.viewers + settings.viewers / 4 + 16;
        let peers = (1 + numbers).min(usize::from(NOBODY));
        let mut server = Server {
            source: Source::new(settings.slices, settings.parity),
            forest: Forest::new(peers, slices, settings.rule),
            latencies: Latencies::new(peers),
            members: (0..peers).map(|_| None).collect(),
            guests: BTreeMap::new(),
            waiting: VecDeque::new(),
            free: (1..peers as Peer).collect(),
            joins: BTreeMap::new(),
            explorer: Explorer::new(settings.exploration),
            judge: Judge::default(),
            repairs: Repairs::default(),
            releases: VecDeque::new(),
            random: seed.fork("server").random(),
            seed,
            pings: 0,
            next_tick: Time::ZERO,
            next_second: Time::ZERO,
            short_since: None,
            uneven: Span::ZERO,
            told: 0,
            talk: 0.0,
            orphaned: None,
            outputs: VecDeque::new(),
            counters: Counters::default(),
            settings,
        };
        server.budgets(Time::ZERO);
        server
    }

    /// Somebody connected: the number that inputs come under and outputs go to from now on.
    ///
    /// # Errors
    /// The refusal to tell, if too many are connected.
    pub fn connect(&mut self, now: Time, contact: Contact) -> Result<Peer, Refusal> {
        if self.joins.len() >= ADDRESSES {
            // Those whose bucket is full again need not be remembered.
            self.joins.retain(|_, bucket| !bucket.take(now, JOINS_AT_ONCE, JOINS_PER_S, JOINS_AT_ONCE));
        }
        if self.joins.len() >= ADDRESSES {
            return Err(Refusal::TooOften);
        }
        let bucket = self.joins.entry(contact.address.ip()).or_insert(Bucket::FULL);
        if !bucket.take(now, 1.0, JOINS_PER_S, JOINS_AT_ONCE.max(self.settings.viewers as f64)) {
            self.counters.refused += 1;
            return Err(Refusal::TooOften);
        }
        let Some(peer) = self.free.pop_front() else {
            self.counters.refused += 1;
            return Err(Refusal::Full);
        };
        self.guests.insert(peer, (now, contact));
        Ok(peer)
    }

    /// Bytes of the source, however they are cut.
    pub fn video(&mut self, now: Time, bytes: &[u8]) {
        let packets = self.source.push(now, bytes);
        self.spread(packets);
    }

    /// The trees.
    pub fn forest(&self) -> &Forest {
        &self.forest
    }

    /// The source.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// What is known of latencies.
    pub fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    /// A viewer.
    pub fn member(&self, peer: Peer) -> Option<&Member> {
        self.members.get(usize::from(peer))?.as_ref()
    }

    /// What exploration did.
    pub fn exploration(&self) -> explorer::Counters {
        self.explorer.counters
    }

    /// Complaints that were not listened to.
    pub fn doubted(&self) -> u64 {
        self.judge.doubted
    }

    /// What the stream takes of an uplink for one slice to one child, bit/s.
    pub fn slice_rate(&self) -> f64 {
        let rate = match self.source.rate() {
            Rate(0) => self.settings.rate,
            measured => measured,
        };
        let wire = (PAYLOAD + Video::HEAD + WIRE) as f64 / PAYLOAD as f64;
        rate.0 as f64 * wire / self.settings.slices as f64
    }

    /// Something happens.
    pub fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Datagram { from, bytes } => match packet::decode(&bytes) {
                Some(Datagram::Nack(keys)) => self.nacked(now, from, &keys),
                _ => self.counters.strange += 1,
            },
            Input::Message { from, message } => self.message(now, from, message),
            Input::Lost(peer) => {
                self.counters.left += u64::from(self.member(peer).is_some());
                self.remove(peer);
            }
        }
        self.tell_changes(now);
    }

    fn tell(&mut self, to: Peer, message: Message) {
        self.told += 1;
        self.outputs.push_back(Output::Message { to, message });
    }

    fn spread(&mut self, packets: Vec<(usize, Bytes)>) {
        for (slice, bytes) in packets {
            for child in self.forest.tree(slice).children(SERVER) {
                self.outputs.push_back(Output::Datagram { to: *child, bytes: bytes.clone() });
            }
            // Whoever the old parent still serves for a moment.
            for (_, at, from, child) in &self.releases {
                if (*at, *from) == (slice, SERVER) {
                    self.outputs.push_back(Output::Datagram { to: *child, bytes: bytes.clone() });
                }
            }
        }
    }

    fn message(&mut self, now: Time, from: Peer, message: Message) {
        if let Message::Join(join) = message {
            return self.join(now, from, join);
        }
        let Some(member) = self.members.get_mut(usize::from(from)).and_then(Option::as_mut) else {
            // Guests have nothing to say but that they want to join, or that they go.
            self.counters.strange += u64::from(message != Message::Leave);
            return;
        };
        member.heard = now;
        match message {
            Message::Pong { number, digest } => self.pong(now, from, number, digest),
            Message::Explored { id, held, stamps } => {
                let (members, latencies) = (&mut self.members, &mut self.latencies);
                self.explorer.acked(now, from, id, held, &stamps, members, latencies, &mut self.random);
            }
            Message::Complaint { slice, parent, silent } => {
                let fault = if silent { Fault::Silent } else { Fault::Loses };
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
        // All bytes are compared, whatever the first difference.
        let differs = join.token.iter().zip(&self.settings.token).fold(0, |all, (a, b)| all | (a ^ b));
        let refusal = if join.version != VERSION {
            Some(Refusal::Version)
        } else if differs != 0 && self.settings.token != [0; 16] {
            Some(Refusal::Token)
        } else if self.forest.members().len() >= self.settings.viewers {
            Some(Refusal::Full)
        } else {
            None
        };
        if !self.guests.contains_key(&from) || self.waiting.iter().any(|(_, peer, _)| *peer == from) {
            self.counters.strange += 1;
        } else if let Some(refusal) = refusal {
            self.refuse(from, refusal);
        } else {
            self.waiting.push_back((now, from, join));
            self.admit(now);
        }
    }

    fn refuse(&mut self, peer: Peer, refusal: Refusal) {
        self.counters.refused += 1;
        self.tell(peer, Message::Refused(refusal));
        self.outputs.push_back(Output::Part(peer));
        self.guests.remove(&peer);
        self.free.push_back(peer);
    }

    /// Lets those in that there is room for, in the order they came.
    fn admit(&mut self, now: Time) {
        while let Some((since, peer, join)) = self.waiting.front().cloned() {
            let Some((_, contact)) = self.guests.get(&peer).copied() else {
                self.waiting.pop_front();
                continue;
            };
            let claim = if join.forwards { join.uplink as f64 } else { 0.0 };
            let branch = self.seed.fork("viewer").fork_index(self.counters.joined);
            let controller =
                self.settings.controller.controller(1, branch).expect("checked where it is chosen");
            let mut member = Member::new(now, contact, claim, controller);
            let budget = self.budget_of(now, &mut member);
            if !self.forest.feasible_with(budget) {
                if now.since(since) >= WAIT {
                    self.waiting.pop_front();
                    let per = self.slice_rate();
                    let needed = (self.forest.members().len() + 1) * self.forest.slices();
                    let offered = self.forest.capacity() + budget;
                    let bits = |children: usize| (children as f64 * per) as u64;
                    self.refuse(peer, Refusal::Overloaded { needed: bits(needed), offered: bits(offered) });
                    continue;
                }
                return;
            }
            self.waiting.pop_front();
            self.guests.remove(&peer);
            self.members[usize::from(peer)] = Some(member);
            self.counters.joined += 1;
            let (slices, parity) = (self.settings.slices as u8, self.settings.parity as u8);
            self.tell(peer, Message::Welcome(Welcome { me: peer, slices, parity }));
            self.forest.join(peer, budget, &self.latencies);
        }
    }

    /// Parts with those who connected and do not join.
    fn drop_silent_guests(&mut self, now: Time) {
        let waits = |peer: Peer| self.waiting.iter().any(|(_, waiting, _)| *waiting == peer);
        let late = self
            .guests
            .iter()
            .filter(|(peer, (since, _))| now.since(*since) > JOIN_TIMEOUT && !waits(**peer));
        for peer in late.map(|(peer, _)| *peer).collect::<Vec<Peer>>() {
            self.remove(peer);
            self.outputs.push_back(Output::Part(peer));
        }
    }

    fn remove(&mut self, peer: Peer) {
        self.waiting.retain(|(_, waiting, _)| *waiting != peer);
        if self.guests.remove(&peer).is_some() {
            self.free.push_back(peer);
        }
        let Some(member) = self.members.get_mut(usize::from(peer)).and_then(Option::take) else { return };
        self.forest.leave(peer, &self.latencies);
        self.judge.forget(peer);
        self.latencies.forget(peer);
        self.releases.retain(|(_, _, from, child)| *from != peer && *child != peer);
        for other in member.met {
            if let Some(known) = &mut self.members[usize::from(other)] {
                known.met.retain(|met| *met != peer);
                self.tell(other, Message::Forget(peer));
            }
        }
        self.outputs.push_back(Output::Part(peer));
        self.free.push_back(peer);
    }

    fn explore(&mut self, now: Time) {
        // Exploring must not cost more than it can win: what all viewers take together.
        let taken = self.slice_rate() * self.forest.slices() as f64 * self.forest.members().len() as f64;
        let most = self.settings.uplink.0 as f64;
        let uplink = taken.min(if self.in_need(now) { most / 2.0 } else { most });
        for age in 1..16 {
            let slice = self.random.below(self.settings.slices) as u8;
            let Some((_, cargo)) = self.source.recent(age, slice) else { return };
            let (members, all) = (&mut self.members, self.forest.members());
            let Some(explore) = self.explorer.send(now, uplink, &cargo, all, members, &mut self.random)
            else {
                return;
            };
            for pair in explore.chain.windows(2) {
                self.meet(pair[0], pair[1]);
            }
            self.outputs.push_back(Output::Datagram { to: explore.chain[0], bytes: explore.encode() });
        }
    }

    fn execute(&mut self, now: Time, verdict: Verdict) {
        let (Verdict::Upheld(complaint) | Verdict::Relegate(complaint) | Verdict::Doubted(complaint)) =
            verdict;
        let Complaint { slice, child, parent, fault } = complaint;
        if self.forest.tree(slice).parent(child) != parent {
            return;
        }
        if matches!(verdict, Verdict::Doubted(_)) {
            return;
        }
        let blamed = parent != SERVER;
        if blamed {
            self.counters.upheld += 1;
            let carried = self.forest.load(parent).1 as f64 * self.slice_rate() / HEADROOM;
            let spare = self.forest.spare() >= SPARE;
            // Until it answers again, nobody new is put under it.
            self.forest.set_avoided(parent, true);
            if let Some(member) = &mut self.members[usize::from(parent)] {
                member.next_ping = now;
                // Where room is short already, a suspicion takes none away: orphans would get nothing at all.
                if spare || fault != Fault::Silent {
                    member.fell_short(now, carried);
                }
                if fault == Fault::Silent {
                    member.suspected.get_or_insert(now);
                }
                if matches!(verdict, Verdict::Relegate(_)) && !member.is_relegated(now) {
                    member.relegate(now);
                    self.counters.relegated += 1;
                }
            }
        }
        self.forest.place_elsewhere(slice, child, &self.latencies);
        if blamed {
            self.budget(now, parent);
        }
    }
}

impl Machine for Server {
    type Output = Output;

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn next_timeout(&self) -> Option<Time> {
        Some(self.next_tick.min(self.source.next_time()).min(self.judge.next_time()))
    }

    fn timeout(&mut self, now: Time) {
        if now >= self.source.next_time() {
            let packets = self.source.flush(now);
            self.spread(packets);
        }
        for verdict in self.judge.verdicts(now, &self.forest) {
            self.execute(now, verdict);
        }
        if now >= self.next_second {
            self.next_second = now + SECOND;
            self.budgets(now);
            self.uneven = self.unevenness();
            self.forest.refresh(&self.latencies, (self.uneven.0 / 2000) as i64);
            self.judge.set_spread(self.uneven * 4);
            self.shed_load(now);
            self.drop_silent_guests(now);
        }
        if now >= self.next_tick {
            self.next_tick = now + TICK;
            self.explorer.expire(now, &mut self.members);
            self.ping(now);
            self.explore(now);
            self.admit(now);
            self.forest.place_orphans(&self.latencies);
            if self.settings.optimise {
                let moves = 1 + self.forest.members().len() / 500;
                self.forest.optimise(TRIES, moves, &mut self.random, &self.latencies);
            }
        }
        self.tell_changes(now);
        self.release(now);
    }
}
