//! The hidden receiver: publishes receiver paths, answers packets over them, holds streams.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tidegate_control::machine::Machine;
use tidegate_control::paths::Peer;
use tidegate_control::shares::Shares;
use tidegate_control::units::{Span, Time};
use x25519_dalek::{PublicKey, StaticSecret};

use crate::frame::{CHUNK, Frame, PATHS, REFUSED, TAKEN, WANTS, WIDE, chunk_bytes};
use crate::machine::{Output, Outputs, Randomness, StreamEvent};
use crate::message::{Message, PATH_SIZE, PathKeys, ReceiverPath, Session};
use crate::onion::Epoch;
use crate::routes::{Inbound, Outbound, ROUTE_LIFE, seal};
use crate::selection::Selection;
pub use crate::service_stream::Counters;
use crate::service_stream::Held;
use crate::wire::{ANNEX, PacketId, REPLY_CELL};

/// Maximum number of concurrent streams.
const STREAMS: usize = 256;
/// Maximum number of remembered streams that made room for others.
const DISPLACED: usize = 1024;
/// Maximum number of buffered chunks of all streams: 21 MB.
const HELD: usize = 16_384;
/// Maximum number of remembered receiver paths. A new one displaces the oldest of the route that got the most.
const PATHS_KEPT: usize = 16_384;
/// Maximum number of routes, 2 kB each. A new one displaces the idlest.
const ROUTES: usize = 4096;
/// One answer in this number on a route brings requested paths although chunks wait.
const PATHS_EVERY: u32 = 8;
/// How long a used path stays published, because its reader's packet may be lost.
const PUBLISHED: Span = Span::from_secs(20);
/// Interval for counting paths and dropping finished streams.
const SWEEP: Span = Span::from_secs(2);

/// A hidden receiver.
pub struct Service {
    me: Peer,
    epoch: Epoch,
    hops: usize,
    guards: Vec<Peer>,
    secret: StaticSecret,
    selection: Selection,
    /// Unused paths that were handed out.
    paths: BTreeMap<PacketId, Path>,
    /// Their places, by the route over which they were given. Published paths and those of first answers are one group.
    path_places: Shares<Option<PacketId>, (), PacketId>,
    /// Paths in repeated use, the same by the time of their end, and their places.
    routes: BTreeMap<PacketId, Route>,
    route_ends: BTreeSet<(Time, PacketId)>,
    route_places: Shares<(), (), PacketId>,
    streams: BTreeMap<u64, Held>,
    /// Their places. Clients are anonymous, so all streams are in one group.
    places: Shares<(), (), u64>,
    /// Streams that made room, the oldest first. Their clients learn it with the next packet.
    displaced: VecDeque<u64>,
    /// Number of published paths.
    publish: usize,
    next_sweep: Time,
    randomness: Randomness,
    outputs: Outputs,
    /// Counters since the start.
    pub counters: Counters,
}

struct Path {
    keys: PathKeys,
    /// The relays from the entry to the one next to the receiver.
    relays: Vec<Peer>,
    /// The path and its time, if it was published; `None` if it was given to one writer.
    published: Option<(Time, ReceiverPath)>,
}

struct Route {
    relays: Vec<Peer>,
    end: Inbound,
    session: Session,
    outbound: Outbound,
    until: Time,
    /// When its last cell came.
    used: Time,
}

/// Configuration of a receiver.
pub struct ServiceConfig {
    /// This peer.
    pub me: Peer,
    /// The keys of all peers.
    pub epoch: Epoch,
    /// Number of relays on its paths.
    pub hops: usize,
    /// The only peers that may be next to it on its paths; any if empty.
    pub guards: Vec<Peer>,
    /// Secret key that decrypts messages.
    pub secret: [u8; 32],
    /// Number of published paths.
    pub publish: usize,
}

impl Service {
    /// A receiver without paths. Its first timeout is due at once.
    ///
    /// # Panics
    /// If there are not enough peers for a path.
    pub fn new(config: ServiceConfig, randomness: Randomness) -> Service {
        let ServiceConfig { me, epoch, hops, guards, secret, publish } = config;
        assert!(hops >= 1 && hops < epoch.keys.len(), "a path has relays other than its receiver");
        Service {
            me,
            selection: Selection::new(epoch.keys.len()),
            epoch,
            hops,
            guards,
            secret: StaticSecret::from(secret),
            paths: BTreeMap::new(),
            path_places: Shares::new(PATHS_KEPT),
            routes: BTreeMap::new(),
            route_ends: BTreeSet::new(),
            route_places: Shares::new(ROUTES),
            streams: BTreeMap::new(),
            places: Shares::new(STREAMS),
            displaced: VecDeque::new(),
            publish,
            next_sweep: Time::ZERO,
            randomness,
            outputs: Outputs::new(),
            counters: Counters::default(),
        }
    }

    /// The public key for messages.
    pub fn key(&self) -> [u8; 32] {
        PublicKey::from(&self.secret).to_bytes()
    }

    /// Whether a path with this identifier belongs to the receiver.
    pub fn knows(&self, id: &PacketId) -> bool {
        self.paths.contains_key(id) || self.routes.contains_key(id)
    }

    /// Sets the keys for new paths and replaces the published paths at once.
    pub fn set_epoch(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        self.paths.values_mut().for_each(|path| path.published = None);
        self.next_sweep = Time::ZERO;
    }

    /// Draws paths when a quarter of the published ones was used or is old.
    fn republish(&mut self, now: Time) {
        let left = self.published(now).count();
        if left < self.publish - self.publish / 4 {
            for _ in left..self.publish {
                let (id, path) = self.draw(now, None);
                self.paths.entry(id).and_modify(|kept| kept.published = Some((now, path)));
            }
            self.outputs.push_back(Output::Publish);
        }
    }

    /// The published paths that are young and unused.
    pub fn published(&self, now: Time) -> impl Iterator<Item = &ReceiverPath> {
        let young =
            move |path: &'_ Path| path.published.as_ref().is_some_and(|(at, _)| now.since(*at) < PUBLISHED);
        self.paths
            .values()
            .filter(move |path| young(path))
            .filter_map(|path| Some(&path.published.as_ref()?.1))
    }

    /// A path for the sender of a packet, which came over this route.
    fn give(&mut self, now: Time, route: Option<PacketId>) -> ReceiverPath {
        let (id, path) = self.draw(now, route);
        self.selection.given(now, &self.paths[&id].relays);
        path
    }

    fn draw(&mut self, now: Time, route: Option<PacketId>) -> (PacketId, ReceiverPath) {
        let Randomness { choices, secrets } = &mut self.randomness;
        // Two more than needed, because this peer and the guard are removed.
        let mut pool = self.selection.relays(self.hops + 2, choices);
        pool.retain(|peer| *peer != self.me);
        let mut relays = Vec::with_capacity(self.hops);
        if !self.guards.is_empty() {
            let guard = self.guards[choices.below(self.guards.len())];
            pool.retain(|peer| *peer != guard);
            relays.push(guard);
        }
        while relays.len() < self.hops {
            relays.push(pool.swap_remove(choices.below(pool.len())));
        }
        relays.reverse();
        let mut id = [0; 16];
        id.copy_from_slice(&secrets()[..16]);
        id[0] |= 1;
        let (path, keys) = PathKeys::draw(&self.epoch, &relays, self.me, id, &mut **secrets);
        self.keep_path(now, route, id, Path { keys, relays, published: None });
        (id, path)
    }

    /// Remembers an unused path.
    fn keep_path(&mut self, now: Time, route: Option<PacketId>, id: PacketId, path: Path) {
        // A path is used once, so the idlest is the oldest.
        if let Some(displaced) = self.path_places.displaced(&(route, ()), |_| Time::ZERO) {
            self.paths.remove(&displaced);
        }
        self.path_places.admit(now, (route, ()), id);
        self.paths.insert(id, path);
    }

    /// Handles a message over one of its paths and answers it if it is valid.
    ///
    /// `offer` is the rate that this peer offers to sources.
    pub fn message(&mut self, now: Time, id: PacketId, payload: &[u8], offer: f32) {
        let Some(path) = self.paths.remove(&id) else {
            self.counters.unknown_path += 1;
            return;
        };
        self.path_places.release(&id);
        let opened = path.keys.message(&self.secret, payload);
        let Some((message, session, frame)) =
            opened.and_then(|(message, key)| Frame::parse(&message.text).map(|frame| (message, key, frame)))
        else {
            self.counters.forged += 1;
            return;
        };
        // A published path may stay unread, so only paths given to one client show whether relays work.
        if path.published.is_none() {
            self.selection.heard(&path.relays);
        }
        let (came, mut answer) = self.frame(now, &frame);
        answer.offer = offer;
        let fresh = self.give(now, None);
        let back: Vec<Peer> = path.relays.iter().rev().copied().collect();
        let answer = Message { path: fresh, text: answer.text() };
        let secrets = &mut *self.randomness.secrets;
        let (datagram, outbound) = answer.reply(&self.epoch, &back, &message.path, &session, secrets);
        let (end, until) = (path.keys.route(), now + ROUTE_LIFE);
        self.keep(now, id, Route { relays: path.relays, end, session, outbound, until, used: now });
        self.answered(back[0], datagram, came);
    }

    /// Keeps a used path for more packets.
    fn keep(&mut self, now: Time, id: PacketId, route: Route) {
        while let Some((until, ended)) = self.route_ends.first().copied()
            && until <= now
        {
            self.drop_route(ended);
        }
        let used = |id: &PacketId| self.routes[id].used;
        if let Some(displaced) = self.route_places.displaced(&((), ()), used) {
            self.drop_route(displaced);
        }
        self.route_places.admit(now, ((), ()), id);
        self.route_ends.insert((route.until, id));
        self.routes.insert(id, route);
    }

    fn drop_route(&mut self, id: PacketId) {
        if let Some(route) = self.routes.remove(&id) {
            self.route_ends.remove(&(route.until, id));
            self.route_places.release(&id);
        }
    }

    /// Handles a cell over a path in repeated use.
    pub fn cell(&mut self, now: Time, id: PacketId, (annex, payload): ([u8; ANNEX], &[u8]), offer: f32) {
        let Some(route) = self.routes.get_mut(&id) else {
            self.counters.unknown_path += 1;
            return;
        };
        let opened = route.end.open(annex, payload, &route.session.up);
        let Some((frame, stamps)) = opened.and_then(|(text, stamps)| Some((Frame::parse(&text)?, stamps)))
        else {
            self.counters.forged += 1;
            return;
        };
        route.used = now;
        for (relay, stamp) in route.relays.iter().rev().zip(stamps) {
            self.selection.offered(*relay, stamp);
        }
        let (came, mut answer) = self.frame(now, &frame);
        (answer.number, answer.offer) = (frame.number, offer);
        // Space without a chunk is free for the paths that the client needs.
        if !answer.has(CHUNK) && frame.has(WANTS) {
            answer.flags |= PATHS;
            let count = chunk_bytes(true) / PATH_SIZE;
            answer.bytes = (0..count).flat_map(|_| self.give(now, Some(id)).to_bytes()).collect();
        }
        let route = &self.routes[&id];
        let sealed = seal(&answer.text(), &route.session.down);
        let (datagram, _) = route.outbound.cell(REPLY_CELL, sealed, &mut *self.randomness.secrets);
        self.answered(route.outbound.first, datagram, came);
    }

    fn answered(&mut self, first: Peer, answer: Vec<u8>, came: StreamEvent) {
        self.outputs.push_back(Output::Send(first, answer));
        if came.stream != 0 {
            self.outputs.push_back(Output::Stream(came));
        }
    }

    /// Applies a frame to its stream and makes the answer.
    fn frame(&mut self, now: Time, frame: &Frame) -> (StreamEvent, Frame) {
        self.counters.answered += 1;
        let stream = frame.stream;
        let mut answer = Frame { stream, flags: TAKEN, ..Frame::default() };
        let mut came = StreamEvent { stream, ..StreamEvent::default() };
        if stream == 0 {
            return (came, answer);
        }
        came.opened = !self.streams.contains_key(&stream);
        if came.opened && self.displaced.contains(&stream) {
            answer.flags = REFUSED;
            return (StreamEvent { opened: false, ..came }, answer);
        }
        if came.opened {
            self.make_room(now, stream);
        }
        let held: usize = self.streams.values().map(|other| other.up.held.len()).sum();
        let most = HELD.saturating_sub(held);
        let stream = self.streams.entry(stream).or_insert_with(|| Held::new(frame.has(WIDE), now));
        if stream.refused {
            answer.flags |= REFUSED;
            return (came, answer);
        }
        // Paths precede chunks, because data stops without paths; but some answers must carry chunks.
        let spare = frame.has(WANTS) && frame.number.is_multiple_of(PATHS_EVERY);
        (came.bytes, came.complete) =
            stream.exchange(now, frame, (most, !spare), &mut self.counters, &mut answer);
        (came, answer)
    }

    /// Gives a stream a place. The idlest one makes room if all are taken.
    fn make_room(&mut self, now: Time, stream: u64) {
        let streams = &self.streams;
        let used = |id: &u64| streams.get(id).map_or(Time::ZERO, |held| held.heard);
        if let Some(idlest) = self.places.displaced(&((), ()), used) {
            self.counters.too_many += 1;
            self.streams.remove(&idlest);
            self.outputs.push_back(Output::Closed(idlest));
            self.displaced.push_back(idlest);
            if self.displaced.len() > DISPLACED {
                self.displaced.pop_front();
            }
        }
        self.places.admit(now, ((), ()), stream);
    }

    /// Number of bytes that [`Service::write`] accepts now.
    pub fn room(&self, stream: u64) -> usize {
        self.streams.get(&stream).map_or(0, Held::room)
    }

    /// Queues bytes for the client, at most [`Service::room`]. They leave in answers.
    pub fn write(&mut self, stream: u64, bytes: &[u8]) {
        if let Some(held) = self.streams.get_mut(&stream) {
            held.write(bytes);
        }
    }

    /// Ends the stream in this direction.
    pub fn end(&mut self, stream: u64) {
        if let Some(held) = self.streams.get_mut(&stream) {
            held.end();
        }
    }

    /// Refuses the stream and tells the client.
    pub fn refuse(&mut self, stream: u64) {
        if let Some(held) = self.streams.get_mut(&stream) {
            held.refuse();
        }
    }

    /// Sets whether the application reads. Otherwise chunks are not accepted, and the client repeats them.
    pub fn set_takes(&mut self, stream: u64, takes: bool) {
        if let Some(held) = self.streams.get_mut(&stream) {
            held.takes = takes;
        }
    }

    /// Drops streams that are complete in both directions or silent.
    fn forget(&mut self, now: Time) {
        let over = |held: &Held| held.over(now);
        for id in self.streams.iter().filter(|(_, held)| over(held)).map(|(id, _)| *id) {
            self.outputs.push_back(Output::Closed(id));
            self.places.release(&id);
        }
        self.streams.retain(|_, held| !over(held));
    }
}

impl Machine for Service {
    type Output = Output;

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn next_timeout(&self) -> Option<Time> {
        Some(self.next_sweep)
    }

    fn timeout(&mut self, now: Time) {
        if now >= self.next_sweep {
            self.next_sweep = now + SWEEP;
            self.republish(now);
            self.forget(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_control::random::Seed;

    use super::*;

    fn service(publish: usize) -> Service {
        let random = |n| Seed::root(n).random();
        let epoch = Epoch::new(0, vec![[9; 32]; 5]);
        let config = ServiceConfig { me: 0, epoch, hops: 2, guards: Vec::new(), secret: [1; 32], publish };
        Service::new(config, Randomness::foretold(random(1), random(2)))
    }

    fn id(number: u64) -> PacketId {
        let mut id = [1; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        id
    }

    /// A client asks for paths over 40 routes. Those of the service's descriptor and of another client stay.
    #[test]
    fn a_client_that_asks_for_paths_without_end_displaces_its_own() {
        let mut service = service(20);
        service.timeout(Time::ZERO);
        let own = (0..20).map(|_| service.draw(Time(1), Some([9; 16])).0).collect::<Vec<_>>();
        let keys = service.paths[&own[0]].keys.clone();
        for n in 0..PATHS_KEPT as u64 + 500 {
            let path = Path { keys: keys.clone(), relays: Vec::new(), published: None };
            service.keep_path(Time(2 + n), Some([10 + (n % 40) as u8; 16]), id(n), path);
        }
        assert_eq!((service.paths.len(), service.path_places.len()), (PATHS_KEPT, PATHS_KEPT));
        assert_eq!(service.published(Time(3)).count(), 20);
        assert!(own.iter().all(|id| service.paths.contains_key(id)));
    }

    /// Clients open routes without end, and one uses its own.
    #[test]
    fn a_route_in_use_outlives_new_ones() {
        let (mut service, session) = (service(0), Session::new(&[1; 32]));
        let open = |service: &mut Service, now: u64, number: u64| {
            let route = Route {
                relays: Vec::new(),
                end: Inbound::new(&[]),
                session: session.clone(),
                outbound: Outbound::new(1, &[[3; 16]]),
                until: Time(now) + ROUTE_LIFE,
                used: Time(now),
            };
            service.keep(Time(now), id(number), route);
            id(number)
        };
        let used = open(&mut service, 0, 1 << 32);
        for number in 0..ROUTES as u64 + 50 {
            open(&mut service, number, number);
            service.routes.get_mut(&used).expect("it stays").used = Time(number);
        }
        let sizes =
            |service: &Service| [service.routes.len(), service.route_ends.len(), service.route_places.len()];
        assert_eq!(sizes(&service), [ROUTES; 3]);
        open(&mut service, (Time(ROUTES as u64 + 50) + ROUTE_LIFE).0, 1 << 33);
        assert_eq!(sizes(&service), [1; 3]);
    }

    #[test]
    fn a_newcomer_displaces_the_stream_that_was_silent_the_longest() {
        let mut service = service(0);
        let of = |stream| Frame { stream, ..Frame::default() };
        for stream in 1..=STREAMS as u64 {
            service.frame(Time(stream), &of(stream));
        }
        service.frame(Time(1000), &of(1));
        let (came, answer) = service.frame(Time(1001), &of(999));
        assert!(came.opened && !answer.has(REFUSED));
        assert_eq!(service.poll(), Some(Output::Closed(2)), "stream 1 was used since");
        let (came, answer) = service.frame(Time(1002), &of(2));
        assert!(!came.opened && answer.has(REFUSED), "its client learns it");
        assert_eq!((service.streams.len(), service.places.len()), (STREAMS, STREAMS));
    }
}
