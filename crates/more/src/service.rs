//! The side that hides behind receiver paths: publishes them, answers letters, holds streams.

use std::collections::{BTreeMap, VecDeque};

use tidegate_control::paths::Peer;
use tidegate_control::random::Random;
use tidegate_control::units::{Span, Time};
use x25519_dalek::{PublicKey, StaticSecret};

use crate::download::{Stream, Took};
use crate::frame::{CHUNK, FRAME_BYTES, Frame, LAST, REFUSED, TAKEN, WINDOW, seen};
use crate::letter::{Letter, PathKeys, ReceiverPath};
use crate::onion::{Entropy, Hop, PacketId};

/// Streams that are held at once.
const STREAMS: usize = 256;
/// Chunks of one stream that are held back until those before them arrive.
const HELD: usize = 1024;
/// Receiver paths that are remembered; the oldest are forgotten.
const PATHS: usize = 16_384;
/// Bytes for the other side that wait in one stream.
const WAITING: usize = 256 * 1024;
/// A stream of which nothing was heard for so long is over.
const SILENCE: Span = Span::from_secs(60);
/// One that is complete in both directions, whose last chunks may come again.
const LINGER: Span = Span::from_secs(5);

/// One receiver.
pub struct Service {
    me: Hop,
    keys: Vec<[u8; 32]>,
    hops: usize,
    guards: Vec<Peer>,
    secret: StaticSecret,
    /// Paths that were given away and not used yet.
    paths: BTreeMap<PacketId, Path>,
    /// The same by age.
    ages: VecDeque<PacketId>,
    streams: BTreeMap<u64, Held>,
    /// What happened so far.
    pub counters: Counters,
}

/// Counts of what arrived at a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Letters answered.
    pub letters: u64,
    /// Dropped: over a path that this receiver does not know (any more).
    pub unknown_path: u64,
    /// Dropped: not what a letter decrypts to, forged or damaged on the way.
    pub forged: u64,
    /// Chunks that had arrived before.
    pub repeated: u64,
    /// Chunks or streams beyond what is held.
    pub too_many: u64,
    /// Chunks sent again.
    pub resent: u64,
}

struct Path {
    keys: PathKeys,
    /// From the entry to the relay next to the receiver.
    relays: Vec<Peer>,
    /// If it was published rather than given to one writer.
    published: Option<ReceiverPath>,
}

struct Held {
    up: Stream,
    down: BTreeMap<u64, Chunk>,
    next_down: u64,
    ended: bool,
    refused: bool,
    /// Whether the application takes more.
    takes: bool,
    /// Seconds from sending a chunk until a letter said that it arrived.
    round: f64,
    heard: Time,
}

struct Chunk {
    bytes: Vec<u8>,
    last: bool,
    sent: Option<Time>,
    again: bool,
}

/// What a letter led to.
#[derive(Debug, PartialEq, Eq)]
pub struct Answered {
    /// The answer, and the peer to hand it to.
    pub reply: (Peer, Vec<u8>),
    /// The stream.
    pub stream: u64,
    /// Whether it is new.
    pub opened: bool,
    /// Bytes of it that are now in order.
    pub bytes: Vec<u8>,
    /// Whether nothing will follow.
    pub complete: bool,
}

impl Service {
    /// A receiver `me` whose paths lead over `hops` of the peers with `keys`, and to it over one of `guards`,
    /// if there are any. Letters to it are encrypted to the public key of `secret`.
    ///
    /// # Panics
    /// If there are not enough peers for a path.
    pub fn new(me: Hop, keys: Vec<[u8; 32]>, hops: usize, guards: Vec<Peer>, secret: [u8; 32]) -> Service {
        assert!(hops >= 1 && hops < keys.len(), "a path has relays other than its receiver");
        Service {
            me,
            keys,
            hops,
            guards,
            secret: StaticSecret::from(secret),
            paths: BTreeMap::new(),
            ages: VecDeque::new(),
            streams: BTreeMap::new(),
            counters: Counters::default(),
        }
    }

    /// What letters are encrypted to.
    pub fn key(&self) -> [u8; 32] {
        PublicKey::from(&self.secret).to_bytes()
    }

    /// Draws more receiver paths to be published.
    pub fn publish(&mut self, count: usize, random: &mut Random, entropy: Entropy) -> Vec<ReceiverPath> {
        (0..count).map(|_| self.draw(true, random, entropy)).collect()
    }

    /// The published paths that were not used yet.
    pub fn published(&self) -> impl Iterator<Item = &ReceiverPath> {
        self.paths.values().filter_map(|path| path.published.as_ref())
    }

    fn draw(&mut self, published: bool, random: &mut Random, entropy: Entropy) -> ReceiverPath {
        let mut pool: Vec<Peer> = (0..self.keys.len() as Peer).filter(|peer| *peer != self.me.peer).collect();
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
        let hops = self.route(relays.iter());
        let mut id = [0; 16];
        id.copy_from_slice(&entropy()[..16]);
        id[0] |= 1;
        let (path, keys) = PathKeys::draw(&hops, self.me, id, 0, entropy);
        self.paths.insert(id, Path { keys, relays, published: published.then(|| path.clone()) });
        self.ages.push_back(id);
        while self.paths.len() > PATHS {
            self.ages.pop_front().map(|oldest| self.paths.remove(&oldest));
        }
        if self.ages.len() > 4 * PATHS {
            self.ages.retain(|id| self.paths.contains_key(id));
        }
        path
    }

    fn route<'a>(&self, relays: impl Iterator<Item = &'a Peer>) -> Vec<Hop> {
        relays.map(|peer| Hop { peer: *peer, key: self.keys[usize::from(*peer)] }).collect()
    }

    /// A letter came over one of this receiver's paths. Gives the answer, which takes the letter's way back,
    /// and what arrived; nothing if the letter is not sound.
    pub fn letter(
        &mut self,
        now: Time,
        id: PacketId,
        payload: &[u8],
        random: &mut Random,
        entropy: Entropy,
    ) -> Option<Answered> {
        let Some(path) = self.paths.remove(&id) else {
            self.counters.unknown_path += 1;
            return None;
        };
        let opened = path.keys.letter(&self.secret, payload);
        let Some((letter, key, frame)) =
            opened.and_then(|(letter, key)| Frame::parse(&letter.text).map(|frame| (letter, key, frame)))
        else {
            self.counters.forged += 1;
            return None;
        };
        self.counters.letters += 1;
        let (opened, bytes, complete, answer) = self.frame(now, &frame);
        let fresh = self.draw(false, random, entropy);
        let relays = self.route(path.relays.iter().rev());
        let answer = Letter { path: fresh, text: answer.text() };
        let reply = (relays[0].peer, answer.reply(&relays, &letter.path, &key, entropy));
        Some(Answered { reply, stream: frame.stream, opened, bytes, complete })
    }

    /// What a frame does, and the frame that answers it.
    fn frame(&mut self, now: Time, frame: &Frame) -> (bool, Vec<u8>, bool, Frame) {
        let mut answer = Frame { stream: frame.stream, flags: TAKEN, ..Frame::default() };
        let opened = !self.streams.contains_key(&frame.stream);
        if opened && self.streams.len() >= STREAMS {
            self.counters.too_many += 1;
            answer.flags = REFUSED;
            return (false, Vec::new(), false, answer);
        }
        let stream = self.streams.entry(frame.stream).or_insert_with(|| Held {
            up: Stream::default(),
            down: BTreeMap::new(),
            next_down: 0,
            ended: false,
            refused: false,
            takes: true,
            round: 1.0,
            heard: now,
        });
        stream.heard = now;
        if stream.refused {
            answer.flags |= REFUSED;
            return (false, Vec::new(), false, answer);
        }
        let (mut bytes, mut complete) = (Vec::new(), false);
        if frame.has(CHUNK) && !stream.takes {
            answer.flags &= !TAKEN;
        } else if frame.has(CHUNK) {
            match stream.up.take(frame.chunk, &frame.bytes, frame.has(LAST), HELD) {
                Took::Bytes(ordered, last) => (bytes, complete) = (ordered, last),
                Took::Repeated => self.counters.repeated += 1,
                Took::TooMany => {
                    self.counters.too_many += 1;
                    answer.flags &= !TAKEN;
                }
            }
        }
        stream.heard_of(now, frame);
        (answer.next, answer.have) = seen(&stream.up);
        if let Some((number, chunk)) = stream.due(now, frame.next) {
            self.counters.resent += u64::from(chunk.again);
            (chunk.again, chunk.sent) = (true, Some(now));
            answer.chunk = number;
            answer.flags |= CHUNK | if chunk.last { LAST } else { 0 };
            answer.bytes = chunk.bytes.clone();
        }
        (opened, bytes, complete, answer)
    }

    /// How many bytes [`Service::write`] takes now.
    pub fn room(&self, stream: u64) -> usize {
        let waiting = |held: &Held| held.down.len() * FRAME_BYTES;
        match self.streams.get(&stream) {
            Some(held) if !held.ended => WAITING.saturating_sub(waiting(held)),
            _ => 0,
        }
    }

    /// Bytes for whoever opened the stream; more than [`Service::room`] are not taken. They travel as letters
    /// ask for them.
    pub fn write(&mut self, stream: u64, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.room(stream))];
        if let Some(held) = self.streams.get_mut(&stream) {
            bytes.chunks(FRAME_BYTES).for_each(|chunk| held.push(chunk, false));
        }
    }

    /// Nothing more will be written.
    pub fn end(&mut self, stream: u64) {
        if let Some(held) = self.streams.get_mut(&stream).filter(|held| !held.ended) {
            held.push(&[], true);
            held.ended = true;
        }
    }

    /// The stream cannot be: its opener is told.
    pub fn refuse(&mut self, stream: u64) {
        if let Some(held) = self.streams.get_mut(&stream) {
            held.refused = true;
            held.down.clear();
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
        let over = |held: &Held| now.since(held.heard) > if held.done() { LINGER } else { SILENCE };
        let gone: Vec<u64> = self.streams.iter().filter(|(_, held)| over(held)).map(|(id, _)| *id).collect();
        self.streams.retain(|_, held| !over(held));
        gone
    }
}

impl Held {
    fn done(&self) -> bool {
        self.up.ended && self.ended && self.down.values().all(|chunk| chunk.sent.is_some())
    }

    fn push(&mut self, bytes: &[u8], last: bool) {
        let chunk = Chunk { bytes: bytes.to_vec(), last, sent: None, again: false };
        self.down.insert(self.next_down, chunk);
        self.next_down += 1;
    }

    /// Drops what arrived.
    fn heard_of(&mut self, now: Time, frame: &Frame) {
        let round = &mut self.round;
        self.down.retain(|number, chunk| {
            let has = frame.other_has(*number);
            if let (true, Some(sent), false) = (has, chunk.sent, chunk.again) {
                *round += (now.since(sent).as_secs_f64() - *round) / 8.0;
            }
            !has
        });
    }

    /// The chunk that the next answer carries: one that seems lost, or the first that was not sent.
    fn due(&mut self, now: Time, next: u64) -> Option<(u64, &mut Chunk)> {
        let patience = Span::from_secs_f64((2.0 * self.round).clamp(0.2, 10.0));
        let due = |chunk: &Chunk| chunk.sent.is_none_or(|sent| now.since(sent) > patience);
        let window = ..next.saturating_add(WINDOW);
        self.down.range_mut(window).find(|(_, chunk)| due(chunk)).map(|(number, chunk)| (*number, chunk))
    }
}
