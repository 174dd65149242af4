//! The viewer: joins, forwards through trees, reorders, repairs, complains and forwards exploration packets.

mod complaints;
mod repairs;

use std::collections::VecDeque;

use bytes::Bytes;
use tidegate_control::machine::Machine;
use tidegate_control::paths::FairShareParameters;
use tidegate_control::paths::relay::PolicingRelay;
use tidegate_control::units::{Rate, Span, Time};

use crate::bucket::Bucket;
use crate::lag::Lags;
use crate::message::{Join, Message, Ping, Refusal, VERSION, Welcome};
use crate::packet::{self, Datagram, Explore, Key, Video, WIRE};
use crate::reorder::{Arrival, Counters, Reorder};
use crate::signing::{SharedChecks, Verifier};
use crate::tree::NOBODY;
use crate::{Input, MAX_SLICES, Output, Peer, SERVER};

/// Configuration of a viewer.
#[derive(Clone, Debug)]
pub struct ViewerConfig {
    /// The server's secret; all zeros without one.
    pub token: [u8; 16],
    /// Capacity of its uplink, as it claims.
    pub uplink: Rate,
    /// Whether it forwards packets.
    pub forwards: bool,
    /// How long the player waits for a missing packet before it skips it.
    pub skip_after: Span,
    /// Parameters for offering rates to the server; `None` if it does not.
    pub stamping: Option<FairShareParameters>,
    /// Results of checks that it shares with other viewers of this process.
    pub checks: SharedChecks,
}

/// Default of [`ViewerConfig::skip_after`] for live streams.
pub const SKIP_AFTER: Span = Span::from_millis(2000);

/// State of a viewer's membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It asked to join.
    Joining,
    /// It is admitted.
    In(Welcome),
    /// It is refused.
    Refused(Refusal),
    /// The server is gone. Buffered packets still play.
    Alone,
}

/// Counters of a viewer.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Malformed datagrams, and datagrams from unexpected peers.
    pub strange: u64,
    /// Packets and manifests that are not of the server. They are dropped.
    pub forged: u64,
    /// Packets sent again on request.
    pub repaired: u64,
    /// Requests that the limits forbade.
    pub unrepaired: u64,
    /// Bytes of video sent to children.
    pub forwarded: u64,
    /// Time from joining to the first bytes for the player.
    pub start_up: Option<Span>,
    /// Durations of the last silences of slices, ms.
    pub outages: VecDeque<u32>,
}

/// The viewer's state machine.
pub struct Viewer {
    config: ViewerConfig,
    phase: Phase,
    me: Peer,
    began: Time,
    reorder: Reorder,
    verifier: Verifier,
    slices: [Slice; MAX_SLICES],
    /// The server's clock minus ours, ms, by the fastest ping.
    clock: Option<i64>,
    /// Round-trip time to the server, as the server measures it.
    round_trip: Span,
    /// The newest group that the server announced, and its largest step between announcements.
    newest: u32,
    step: u32,
    /// The group before which the stream ends, if the server announced it.
    ends: Option<u32>,
    has_ended: bool,
    /// When the last packet arrived, and when the stream last resumed after a pause.
    heard: Time,
    resumed: Time,
    relay: PolicingRelay,
    repairs: Bucket,
    counts: Counts,
    lags: Lags,
    next_tick: Time,
    next_report: Time,
    outputs: VecDeque<Output>,
}

#[derive(Clone, Debug)]
struct Slice {
    parent: Peer,
    before: Peer,
    depth: u8,
    children: Vec<Peer>,
    /// When it got this parent, or last complained about it.
    since: Time,
    silent: bool,
    /// Whether this parent ever delivered.
    delivers: bool,
    /// When a packet last came through the tree, even if it waits for its manifest.
    heard: Time,
    /// When a forgery of this parent was last reported.
    accused: Option<Time>,
}

const TICK: Span = Span::from_millis(100);
const REPORT: Span = Span::from_secs(5);
/// A silence of all slices that lasts this long is not the fault of one parent.
const PAUSE: Span = Span::from_millis(100);
/// Lead of the stream over the server's announcement, in groups beyond the usual.
const LEAD: u32 = 512;
/// Maximum numbers of children per slice and of recorded outages.
const MOST_CHILDREN: usize = 256;
const MOST_OUTAGES: usize = 1024;

impl Viewer {
    /// A viewer before [`Viewer::begin`].
    pub fn new(config: ViewerConfig) -> Viewer {
        let slice = Slice {
            parent: NOBODY,
            before: NOBODY,
            depth: 0,
            children: Vec::new(),
            since: Time::ZERO,
            silent: false,
            delivers: false,
            heard: Time::ZERO,
            accused: None,
        };
        Viewer {
            relay: PolicingRelay::new(config.uplink.as_bytes_per_s(), Span::ZERO, 1, config.stamping),
            reorder: Reorder::new(0, 0, config.skip_after),
            verifier: Verifier::new(config.checks.clone()),
            config,
            phase: Phase::Joining,
            me: NOBODY,
            began: Time::ZERO,
            slices: std::array::from_fn(|_| slice.clone()),
            clock: None,
            round_trip: Span::ZERO,
            newest: 0,
            step: 0,
            ends: None,
            has_ended: false,
            heard: Time::ZERO,
            resumed: Time::ZERO,
            repairs: Bucket::FULL,
            counts: Counts::default(),
            lags: Lags::default(),
            next_tick: Time::NEVER,
            next_report: Time::NEVER,
            outputs: VecDeque::new(),
        }
    }

    /// Begins to join: the channel to the server exists, for the first time or again.
    pub fn begin(&mut self, now: Time) {
        if self.counts.start_up.is_none() {
            self.began = now;
        }
        self.phase = Phase::Joining;
        let ViewerConfig { token, uplink, forwards, .. } = self.config;
        self.tell(Message::Join(Join { version: VERSION, token, uplink: uplink.0, forwards }));
    }

    /// Waits for a channel to another server after a redirection.
    pub fn turn_elsewhere(&mut self) {
        self.phase = Phase::Alone;
    }

    /// Leaves. The server finds new parents for the children.
    pub fn leave(&mut self) {
        self.tell(Message::Leave);
    }

    /// State of its membership.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Its counters.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Counters of its packets.
    pub fn packets(&self) -> Counters {
        self.reorder.counters
    }

    /// Ages of played packets.
    pub fn lags(&self) -> &Lags {
        &self.lags
    }

    /// Number of packets between the player and the end of the stream.
    pub fn behind(&self) -> u64 {
        let Phase::In(welcome) = &self.phase else { return 0 };
        let newest = self.reorder.newest().unwrap_or(0).max(self.newest);
        let played = self.reorder.played().unwrap_or(newest);
        u64::from(newest.saturating_sub(played)) * u64::from(welcome.slices)
    }

    /// Parent and children in each slice.
    pub fn places(&self) -> impl Iterator<Item = (Peer, &[Peer])> {
        let count = if let Phase::In(welcome) = &self.phase { total(welcome) } else { 0 };
        self.slices[..count].iter().map(|slice| (slice.parent, &slice.children[..]))
    }

    /// Handles an input.
    pub fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Datagram { from, bytes } => self.datagram(now, from, bytes),
            Input::Message { from: SERVER, message } => self.message(now, message),
            Input::Message { .. } => self.counts.strange += 1,
            Input::Lost(SERVER) if matches!(self.phase, Phase::Refused(_)) => {}
            Input::Lost(SERVER) => self.phase = Phase::Alone,
            Input::Lost(_) => {}
        }
    }

    fn tell(&mut self, message: Message) {
        self.outputs.push_back(Output::Message { to: SERVER, message });
    }

    fn message(&mut self, now: Time, message: Message) {
        match message {
            Message::Welcome(welcome) => self.welcome(now, welcome),
            Message::Refused(refusal) => self.phase = Phase::Refused(refusal),
            Message::Ping(ping) => self.ping(now, ping),
            // The guards protect against a server that names this viewer or itself as a peer.
            Message::Meet(peer, contact) if peer != self.me && peer != SERVER => {
                self.outputs.push_back(Output::Meet(peer, contact));
            }
            Message::Forget(peer) if peer != SERVER => {
                self.slices.iter_mut().for_each(|slice| slice.children.retain(|child| *child != peer));
                self.outputs.push_back(Output::Part(peer));
            }
            Message::Adopt { slice, child } if child != self.me && child != SERVER => {
                if let Some(slice) = self.slices.get_mut(usize::from(slice))
                    && slice.children.len() < MOST_CHILDREN
                    && !slice.children.contains(&child)
                {
                    slice.children.push(child);
                }
            }
            Message::Release { slice, child } => {
                if let Some(slice) = self.slices.get_mut(usize::from(slice)) {
                    slice.children.retain(|other| *other != child);
                }
            }
            Message::Parent { slice, parent, depth } => {
                if let Some(slice) = self.slices.get_mut(usize::from(slice)) {
                    slice.before = std::mem::replace(&mut slice.parent, parent);
                    (slice.depth, slice.since, slice.delivers, slice.accused) = (depth, now, false, None);
                }
            }
            Message::End(group) if self.can_be(Key { group, slice: 0 }) => {
                self.confirm(group);
                self.reorder.end(now, group);
                self.ends = Some(group);
                self.play(now);
            }
            _ => self.counts.strange += 1,
        }
    }

    fn welcome(&mut self, now: Time, welcome: Welcome) {
        let sound = total(&welcome) <= MAX_SLICES && welcome.slices > 0;
        if !sound || !self.verifier.restart(&welcome.key) {
            self.counts.strange += 1;
            return;
        }
        (self.me, self.newest, self.step) = (welcome.me, 0, 0);
        (self.ends, self.has_ended) = (None, false);
        self.phase = Phase::In(welcome);
        for slice in &mut self.slices {
            (slice.parent, slice.before, slice.since) = (NOBODY, NOBODY, now);
            slice.children.clear();
        }
        let (slices, parity) = (usize::from(welcome.slices), usize::from(welcome.parity));
        self.reorder.rejoin(slices, parity);
        (self.next_tick, self.next_report) = (now + TICK, now + REPORT);
    }

    fn ping(&mut self, now: Time, ping: Ping) {
        let ours = (now.0 / 1_000_000) as i64;
        let clock = i64::from(ping.clock) + i64::from(ping.round_trip / 2000) - ours;
        // The fastest ping is the most precise. Clocks may drift by 1 ms between pings.
        let drift = self.clock.map_or(i64::MIN, |known| known - 1);
        if ping.round_trip > 0 {
            self.clock = Some(clock.max(drift));
        }
        self.confirm(ping.newest);
        self.round_trip = Span::from_micros(u64::from(ping.round_trip));
        self.tell(Message::Pong { number: ping.number });
    }

    /// Takes the server's announcement of its newest group.
    fn confirm(&mut self, newest: u32) {
        self.step = if self.newest == 0 { 0 } else { self.step.max(newest.saturating_sub(self.newest)) };
        self.newest = self.newest.max(newest);
        if self.reorder.is_astray(newest) {
            // Packets before the first announcement were not part of the stream.
            let (slices, parity) = self.reorder.slices();
            self.reorder.restart(slices, parity);
        }
        self.reorder.confirm(newest);
    }

    /// Whether the server can have sent this packet by now.
    fn can_be(&self, key: Key) -> bool {
        self.newest == 0
            || key.group <= self.newest.saturating_add(LEAD).saturating_add(self.step.saturating_mul(8))
    }

    /// Whether this is a repair: a missing packet from a parent of any slice.
    fn is_repair(&self, from: Peer, key: Key) -> bool {
        self.reorder.misses(key) && self.slices.iter().any(|slice| slice.parent == from)
    }

    fn datagram(&mut self, now: Time, from: Peer, bytes: Bytes) {
        match packet::decode(&bytes) {
            Some(Datagram::Video(video)) if self.can_be(video.key) => {
                let slice = self.slices.get(usize::from(video.key.slice));
                let tree = slice.is_some_and(|slice| [slice.parent, slice.before].contains(&from));
                if tree || from == SERVER || self.is_repair(from, video.key) {
                    self.check(now, from, &video, bytes, tree);
                } else {
                    self.counts.strange += 1;
                }
            }
            Some(Datagram::Manifest(bytes)) => self.manifest(now, from, &bytes),
            Some(Datagram::Explore(explore)) => self.explore(now, from, explore),
            Some(Datagram::Nack(keys)) => self.nacked(now, from, &keys),
            Some(Datagram::Video(_)) | None => self.counts.strange += 1,
        }
    }

    fn video(&mut self, now: Time, video: &Video, bytes: Bytes, tree: bool) {
        let at = usize::from(video.key.slice);
        if tree && now.since(std::mem::replace(&mut self.heard, now)) > PAUSE.max(self.reorder.spacing()) {
            self.resumed = now;
        }
        let last = self.reorder.last(at);
        match self.reorder.insert(now, video, tree) {
            Arrival::New => {}
            Arrival::Strange => return self.counts.strange += 1,
            Arrival::Duplicate | Arrival::Late => return,
        }
        let slice = &mut self.slices[at];
        if tree && slice.silent && last.is_some_and(|(newest, _)| video.key.group > newest) {
            slice.silent = false;
            let outage = last.map_or(0, |(_, at)| now.since(at).0 / 1_000_000);
            self.counts.outages.push_back(outage as u32);
            self.counts.outages.truncate(MOST_OUTAGES);
        }
        self.forward(now, at, &bytes);
        self.play(now);
    }

    /// Forwards a packet to the children of its slice.
    fn forward(&mut self, now: Time, slice: usize, bytes: &Bytes) {
        for child in &self.slices[slice].children {
            self.relay.arrive(now, (bytes.len() + WIRE) as f64);
            self.counts.forwarded += bytes.len() as u64;
            self.outputs.push_back(Output::Datagram { to: *child, bytes: bytes.clone() });
        }
    }

    fn play(&mut self, now: Time) {
        while !self.is_at_end()
            && let Some((payload, sent)) = self.reorder.next(now)
        {
            if self.counts.start_up.is_none() {
                self.counts.start_up = Some(now.since(self.began));
            }
            if let Some(clock) = self.clock {
                let age = (now.0 / 1_000_000) as i64 + clock - i64::from(sent);
                self.lags.add(age.max(0) as u64);
            }
            if !payload.is_empty() {
                self.outputs.push_back(Output::Deliver(payload));
            }
        }
    }

    /// Whether all of the stream was played. Says so the first time.
    fn is_at_end(&mut self) -> bool {
        let Some(ends) = self.ends else { return false };
        let at_end = self.reorder.played().is_some_and(|group| group >= ends);
        if at_end && !std::mem::replace(&mut self.has_ended, true) {
            self.outputs.push_back(Output::End);
        }
        at_end
    }

    /// Uses the cargo of an exploration packet if missing, and forwards the packet.
    fn explore(&mut self, now: Time, from: Peer, mut explore: Explore) {
        let at = usize::from(explore.at);
        let before = if at == 0 { SERVER } else { explore.chain[at - 1] };
        if explore.chain[at] != self.me || before != from {
            self.counts.strange += 1;
            return;
        }
        let wire = (explore.cargo.len() + WIRE) as f64;
        let passes = self.relay.arrive(now, wire) && self.config.forwards;
        if let Some(Datagram::Video(video)) = packet::decode(&explore.cargo) {
            // Exploration must not distort the pace of a slice, so only missing packets are taken.
            if self.reorder.misses(video.key) {
                self.check(now, from, &video, explore.cargo.clone(), false);
            }
        }
        explore.stamps.push((self.relay.stamp() * 8.0 / 1000.0) as u32);
        if at + 1 == explore.chain.len() {
            let Explore { id, held, stamps, .. } = explore;
            return self.tell(Message::Explored { id, held, stamps });
        }
        if passes {
            explore.at += 1;
            let to = explore.chain[at + 1];
            self.outputs.push_back(Output::Datagram { to, bytes: explore.encode() });
        }
    }
}

impl Machine for Viewer {
    type Output = Output;

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn next_timeout(&self) -> Option<Time> {
        let next = self.next_tick.min(self.next_report).min(self.reorder.next_time());
        let next = next.min(self.verifier.next_time());
        Some(next).filter(|next| *next != Time::NEVER)
    }

    fn timeout(&mut self, now: Time) {
        if now >= self.reorder.next_time() {
            self.repair(now);
            self.play(now);
        }
        if now >= self.verifier.next_time() {
            self.ask_for_manifests(now);
        }
        if now >= self.next_tick {
            self.next_tick = now + TICK;
            self.listen(now);
        }
        if now >= self.next_report {
            self.next_report = now + REPORT;
            self.report(now);
        }
    }
}

fn total(welcome: &Welcome) -> usize {
    usize::from(welcome.slices) + usize::from(welcome.parity)
}
