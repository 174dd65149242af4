//! The side that hides behind receiver paths: publishes them, answers what comes over them, holds streams.

use std::collections::{BTreeMap, VecDeque};

use tidegate_control::paths::Peer;
use tidegate_control::random::Random;
use tidegate_control::units::{Span, Time};
use x25519_dalek::{PublicKey, StaticSecret};

use crate::frame::{CHUNK, Frame, PATHS, REFUSED, TAKEN, WANTS, WIDE, chunk_bytes};
use crate::message::{Message, PATH_SIZE, PathKeys, ReceiverPath, Session};
use crate::onion::Epoch;
use crate::routes::{Inbound, Outbound, ROUTE_LIFE, seal};
use crate::selection::Selection;
pub use crate::service_stream::Counters;
use crate::service_stream::Held;
use crate::wire::{ANNEX, Entropy, PacketId, REPLY_CELL};

/// Streams that are held at once.
const STREAMS: usize = 256;
/// Chunks of all streams together that are held back until those before them arrive: 21 MB.
const HELD: usize = 16_384;
/// Receiver paths that are remembered; the oldest are forgotten.
const PATHS_KEPT: usize = 16_384;
/// Routes that are kept, 2 kB each; the oldest are forgotten.
const ROUTES: usize = 4096;
/// Of so many answers on a route, one brings paths, if they are wanted, although chunks wait.
const PATHS_EVERY: u32 = 8;
/// How long a path stays published: somebody may have read it and lost the packet that used it.
const PUBLISHED: Span = Span::from_secs(20);

/// One receiver.
pub struct Service {
    me: Peer,
    epoch: Epoch,
    hops: usize,
    guards: Vec<Peer>,
    secret: StaticSecret,
    selection: Selection,
    /// Paths that were given away and not used yet.
    paths: BTreeMap<PacketId, Path>,
    /// The same by age.
    ages: VecDeque<PacketId>,
    /// Paths that are used again.
    routes: BTreeMap<PacketId, Route>,
    route_ages: VecDeque<(Time, PacketId)>,
    streams: BTreeMap<u64, Held>,
    /// What happened so far.
    pub counters: Counters,
}

struct Path {
    keys: PathKeys,
    /// From the entry to the relay next to the receiver.
    relays: Vec<Peer>,
    /// If it was published rather than given to one writer, and when.
    published: Option<(Time, ReceiverPath)>,
}

struct Route {
    relays: Vec<Peer>,
    end: Inbound,
    session: Session,
    outbound: Outbound,
}

/// What a message or a cell led to.
#[derive(Debug, PartialEq, Eq)]
pub struct Answered {
    /// The answer, and the peer to hand it to.
    pub reply: (Peer, Vec<u8>),
    /// The stream; zero if it was about none.
    pub stream: u64,
    /// Whether it is new.
    pub opened: bool,
    /// Bytes of it that are now in order.
    pub bytes: Vec<u8>,
    /// Whether nothing will follow.
    pub complete: bool,
}

impl Service {
    /// A receiver `me` whose paths lead over `hops` peers, and to it over one of `guards`, if there are any. Messages
    /// to it are encrypted to the public key of `secret`.
    ///
    /// # Panics
    /// If there are not enough peers for a path.
    pub fn new(me: Peer, epoch: Epoch, hops: usize, guards: Vec<Peer>, secret: [u8; 32]) -> Service {
        assert!(hops >= 1 && hops < epoch.keys.len(), "a path has relays other than its receiver");
        Service {
            me,
            selection: Selection::new(epoch.keys.len()),
            epoch,
            hops,
            guards,
            secret: StaticSecret::from(secret),
            paths: BTreeMap::new(),
            ages: VecDeque::new(),
            routes: BTreeMap::new(),
            route_ages: VecDeque::new(),
            streams: BTreeMap::new(),
            counters: Counters::default(),
        }
    }

    /// What messages are encrypted to.
    pub fn key(&self) -> [u8; 32] {
        PublicKey::from(&self.secret).to_bytes()
    }

    /// Whether something that comes over this path is this receiver's.
    pub fn knows(&self, id: &PacketId) -> bool {
        self.paths.contains_key(id) || self.routes.contains_key(id)
    }

    /// New keys: paths are built with them from now on, and those published before should not be used any more.
    pub fn set_epoch(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        self.paths.values_mut().for_each(|path| path.published = None);
    }

    /// Draws more receiver paths to be published.
    pub fn publish(&mut self, now: Time, count: usize, random: &mut Random, entropy: Entropy) {
        for _ in 0..count {
            let (id, path) = self.draw(random, entropy);
            self.paths.entry(id).and_modify(|kept| kept.published = Some((now, path)));
        }
    }

    /// The published paths that are young and were not used yet.
    pub fn published(&self, now: Time) -> impl Iterator<Item = &ReceiverPath> {
        let young =
            move |path: &'_ Path| path.published.as_ref().is_some_and(|(at, _)| now.since(*at) < PUBLISHED);
        self.paths
            .values()
            .filter(move |path| young(path))
            .filter_map(|path| Some(&path.published.as_ref()?.1))
    }

    /// A path for whoever sent something.
    fn give(&mut self, now: Time, random: &mut Random, entropy: Entropy) -> ReceiverPath {
        let (id, path) = self.draw(random, entropy);
        self.selection.given(now, &self.paths[&id].relays);
        path
    }

    fn draw(&mut self, random: &mut Random, entropy: Entropy) -> (PacketId, ReceiverPath) {
        let mut pool = self.selection.relays(self.hops + 2, random);
        pool.retain(|peer| *peer != self.me);
        let mut relays = Vec::with_capacity(self.hops);
        if !self.guards.is_empty() {
            let guard = self.guards[random.below(self.guards.len())];
            pool.retain(|peer| *peer != guard);
            relays.push(guard);
        }
        while relays.len() < self.hops {
            relays.push(pool.swap_remove(random.below(pool.len())));
        }
        relays.reverse();
        let mut id = [0; 16];
        id.copy_from_slice(&entropy()[..16]);
        id[0] |= 1;
        let (path, keys) = PathKeys::draw(&self.epoch, &relays, self.me, id, entropy);
        self.paths.insert(id, Path { keys, relays, published: None });
        self.ages.push_back(id);
        while self.paths.len() > PATHS_KEPT {
            self.ages.pop_front().map(|oldest| self.paths.remove(&oldest));
        }
        if self.ages.len() > 4 * PATHS_KEPT {
            self.ages.retain(|id| self.paths.contains_key(id));
        }
        (id, path)
    }

    /// A message came over one of this receiver's paths. Gives the answer, which takes the message's way back,
    /// and what arrived; nothing if the message is not sound. `offer`: the rate that this peer offers to sources.
    pub fn message(
        &mut self,
        now: Time,
        id: PacketId,
        payload: &[u8],
        offer: f32,
        random: &mut Random,
        entropy: Entropy,
    ) -> Option<Answered> {
        let Some(path) = self.paths.remove(&id) else {
            self.counters.unknown_path += 1;
            return None;
        };
        let opened = path.keys.message(&self.secret, payload);
        let Some((message, session, frame)) =
            opened.and_then(|(message, key)| Frame::parse(&message.text).map(|frame| (message, key, frame)))
        else {
            self.counters.forged += 1;
            return None;
        };
        if path.published.is_none() {
            self.selection.heard(&path.relays);
        }
        let (mut answered, mut answer) = self.frame(now, &frame);
        answer.offer = offer;
        let fresh = self.give(now, random, entropy);
        let back: Vec<Peer> = path.relays.iter().rev().copied().collect();
        let answer = Message { path: fresh, text: answer.text() };
        let (datagram, outbound) = answer.reply(&self.epoch, &back, &message.path, &session, entropy);
        answered.reply = (back[0], datagram);
        let route = Route { relays: path.relays, end: path.keys.route(), session, outbound };
        self.keep(now, id, route);
        Some(answered)
    }

    /// A path was used and may be used again.
    fn keep(&mut self, now: Time, id: PacketId, route: Route) {
        let over = |(until, _): &(Time, PacketId)| *until <= now;
        while self.route_ages.front().is_some_and(over) || self.route_ages.len() >= ROUTES {
            self.route_ages.pop_front().map(|(_, oldest)| self.routes.remove(&oldest));
        }
        self.route_ages.push_back((now + ROUTE_LIFE, id));
        self.routes.insert(id, route);
    }

    /// A cell came over a path that a message came over before.
    pub fn cell(
        &mut self,
        now: Time,
        id: PacketId,
        (annex, payload): ([u8; ANNEX], &[u8]),
        offer: f32,
        random: &mut Random,
        entropy: Entropy,
    ) -> Option<Answered> {
        let Some(route) = self.routes.get(&id) else {
            self.counters.unknown_path += 1;
            return None;
        };
        let opened = route.end.open(annex, payload, &route.session.up);
        let Some((frame, stamps)) = opened.and_then(|(text, stamps)| Some((Frame::parse(&text)?, stamps)))
        else {
            self.counters.forged += 1;
            return None;
        };
        for (relay, stamp) in route.relays.iter().rev().zip(stamps) {
            self.selection.offered(*relay, stamp);
        }
        let (mut answered, mut answer) = self.frame(now, &frame);
        (answer.number, answer.offer) = (frame.number, offer);
        if !answer.has(CHUNK) && frame.has(WANTS) {
            answer.flags |= PATHS;
            let count = chunk_bytes(true) / PATH_SIZE;
            answer.bytes = (0..count).flat_map(|_| self.give(now, random, entropy).to_bytes()).collect();
        }
        let route = &self.routes[&id];
        let sealed = seal(&answer.text(), &route.session.down);
        answered.reply = (route.outbound.first, route.outbound.cell(REPLY_CELL, sealed, entropy).0);
        Some(answered)
    }

    /// What a frame does, and the frame that answers it.
    fn frame(&mut self, now: Time, frame: &Frame) -> (Answered, Frame) {
        self.counters.answered += 1;
        let (stream, reply) = (frame.stream, (0, Vec::new()));
        let mut answer = Frame { stream, flags: TAKEN, ..Frame::default() };
        let mut answered = Answered { reply, stream, opened: false, bytes: Vec::new(), complete: false };
        if stream == 0 {
            return (answered, answer);
        }
        answered.opened = !self.streams.contains_key(&stream);
        if answered.opened && self.streams.len() >= STREAMS {
            self.counters.too_many += 1;
            answer.flags = REFUSED;
            return (Answered { opened: false, ..answered }, answer);
        }
        let held: usize = self.streams.values().map(|other| other.up.held.len()).sum();
        let most = HELD.saturating_sub(held);
        let stream = self.streams.entry(stream).or_insert_with(|| Held::new(frame.has(WIDE), now));
        if stream.refused {
            answer.flags |= REFUSED;
            return (answered, answer);
        }
        // Paths come before chunks, but not always: without paths nothing comes at all.
        let spare = frame.has(WANTS) && frame.number.is_multiple_of(PATHS_EVERY);
        (answered.bytes, answered.complete) =
            stream.exchange(now, frame, (most, !spare), &mut self.counters, &mut answer);
        (answered, answer)
    }

    /// How many bytes [`Service::write`] takes now.
    pub fn room(&self, stream: u64) -> usize {
        self.streams.get(&stream).map_or(0, Held::room)
    }

    /// Bytes for whoever opened the stream; more than [`Service::room`] are not taken. They travel as packets
    /// ask for them.
    pub fn write(&mut self, stream: u64, bytes: &[u8]) {
        if let Some(held) = self.streams.get_mut(&stream) {
            held.write(bytes);
        }
    }

    /// Nothing more will be written.
    pub fn end(&mut self, stream: u64) {
        if let Some(held) = self.streams.get_mut(&stream) {
            held.end();
        }
    }

    /// The stream cannot be: its opener is told.
    pub fn refuse(&mut self, stream: u64) {
        if let Some(held) = self.streams.get_mut(&stream) {
            held.refuse();
        }
    }

    /// Whether chunks are taken: not while the application has enough to do. They come again.
    pub fn set_takes(&mut self, stream: u64, takes: bool) {
        if let Some(held) = self.streams.get_mut(&stream) {
            held.takes = takes;
        }
    }

    /// Forgets streams that are complete in both directions, and those that fell silent; names them.
    pub fn sweep(&mut self, now: Time) -> Vec<u64> {
        let over = |held: &Held| held.over(now);
        let gone: Vec<u64> = self.streams.iter().filter(|(_, held)| over(held)).map(|(id, _)| *id).collect();
        self.streams.retain(|_, held| !over(held));
        gone
    }
}
