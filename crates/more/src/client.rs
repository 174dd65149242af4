//! The side that opens streams to a receiver that hides, and stays hidden from it.
//!
//! Bytes for the receiver travel in letters, bytes from it in the answers: one per letter, over the same
//! relays. So whoever opened a stream also decides how fast the other side may send, and its controller
//! controls both directions: the data datagram that counts against the relays' limits pays for the answer.

use std::collections::{BTreeMap, VecDeque};

use tidegate_control::paths::Peer;
use tidegate_control::paths::sender::{Memos, Path, Sender};
use tidegate_control::random::Random;
use tidegate_control::units::{Span, Time};

use crate::download::{Stream, Took};
use crate::flights::{Flights, Progress};
use crate::frame::{CHUNK, FRAME_BYTES, Frame, LAST, REFUSED, TAKEN, WINDOW, seen};
use crate::letter::{AnswerKey, Letter, PathKeys, ReceiverPath};
use crate::onion::{ANNEX, Entropy, Hop, PacketId};

/// Chunks of one stream that may be on their way or wait: about a second's worth at 400 kB/s.
const WAITING: usize = 1024;
/// Receiver paths in store; more are dropped.
const STORE: usize = 2048;
/// The shortest and the longest pause between letters that carry nothing, on a stream on which nothing comes.
const POLLS: [Span; 2] = [Span::from_millis(20), Span::from_secs(1)];

/// One client of one receiver, with any number of streams.
pub struct Client {
    me: Hop,
    keys: Vec<[u8; 32]>,
    /// Relays of the sender path.
    hops: usize,
    receiver: [u8; 32],
    flights: Flights<Cargo>,
    store: VecDeque<ReceiverPath>,
    streams: BTreeMap<u64, Open>,
    /// Streams in the order in which they are served.
    turns: VecDeque<u64>,
    /// Answers that did not decrypt.
    forged: u64,
}

/// What a client needs to know.
pub struct Settings {
    /// This peer.
    pub me: Hop,
    /// All peers' keys by number.
    pub keys: Vec<[u8; 32]>,
    /// Relays of the sender path, 1 to 4. The [`Sender`] has one hop more: the receiver path's first relay.
    pub hops: usize,
    /// What letters are encrypted to.
    pub receiver: [u8; 32],
    /// How often it sends when rate is left.
    pub attempt_every: Span,
}

struct Cargo {
    stream: u64,
    chunk: Option<u64>,
    keys: PathKeys,
    answer: AnswerKey,
}

/// One stream.
struct Open {
    /// Chunks not taken yet.
    up: BTreeMap<u64, (Vec<u8>, bool)>,
    /// Those to be sent, first to be sent first.
    ready: VecDeque<u64>,
    next_up: u64,
    ended: bool,
    down: Stream,
    answered: bool,
    /// Whether the application takes what comes.
    takes: bool,
    /// Letters on their way.
    flying: u32,
    /// How many may be while they carry nothing.
    polls: u32,
    /// When one that carries nothing is due although nothing comes.
    idle: Time,
    pause: Span,
}

/// What an answer led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Came {
    /// The stream.
    pub stream: u64,
    /// Whether this is its first answer.
    pub opened: bool,
    /// Bytes that are now in order.
    pub bytes: Vec<u8>,
    /// Whether nothing will follow.
    pub complete: bool,
    /// Whether the receiver refuses the stream.
    pub refused: bool,
}

impl Client {
    /// A client without streams or receiver paths.
    pub fn new(settings: Settings, sender: Sender, now: Time) -> Client {
        Client {
            me: settings.me,
            keys: settings.keys,
            hops: settings.hops,
            receiver: settings.receiver,
            flights: Flights::new(sender, settings.attempt_every, now),
            store: VecDeque::new(),
            streams: BTreeMap::new(),
            turns: VecDeque::new(),
            forged: 0,
        }
    }

    /// Receiver paths from a descriptor. They should be shuffled: others read the same ones.
    pub fn supply(&mut self, paths: impl IntoIterator<Item = ReceiverPath>) {
        let known = self.keys.len();
        let room = STORE.saturating_sub(self.store.len());
        self.store.extend(paths.into_iter().filter(|path| usize::from(path.entry()) < known).take(room));
    }

    /// How many receiver paths are left. With none left and none on their way nothing goes on.
    pub fn store(&self) -> usize {
        self.store.len()
    }

    /// What happened so far.
    pub fn progress(&self) -> Progress {
        self.flights.progress
    }

    /// Answers that did not decrypt.
    pub fn forged(&self) -> u64 {
        self.forged
    }

    /// Rates and round trips.
    pub fn sender(&self) -> &Sender {
        &self.flights.sender
    }

    /// Begins a stream; its number should be unpredictable.
    pub fn open(&mut self, stream: u64, now: Time) {
        let open = Open {
            up: BTreeMap::new(),
            ready: VecDeque::new(),
            next_up: 0,
            ended: false,
            down: Stream::default(),
            answered: false,
            takes: true,
            flying: 0,
            polls: 1,
            idle: now,
            pause: POLLS[0],
        };
        if self.streams.insert(stream, open).is_none() {
            self.turns.push_back(stream);
        }
    }

    /// How many bytes [`Client::write`] takes now.
    pub fn room(&self, stream: u64) -> usize {
        match self.streams.get(&stream) {
            Some(open) if !open.ended => WAITING.saturating_sub(open.up.len()) * FRAME_BYTES,
            _ => 0,
        }
    }

    /// Bytes for the receiver; more than [`Client::room`] are not taken.
    pub fn write(&mut self, stream: u64, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.room(stream))];
        if let Some(open) = self.streams.get_mut(&stream) {
            bytes.chunks(FRAME_BYTES).for_each(|chunk| open.push(chunk, false));
        }
    }

    /// Nothing more will be written.
    pub fn end(&mut self, stream: u64) {
        if let Some(open) = self.streams.get_mut(&stream).filter(|open| !open.ended) {
            open.push(&[], true);
            open.ended = true;
        }
    }

    /// Whether the application takes what comes: if not, no more is asked for.
    pub fn set_takes(&mut self, stream: u64, takes: bool) {
        if let Some(open) = self.streams.get_mut(&stream) {
            open.takes = takes;
        }
    }

    /// Whether all that was written was taken and the other side has ended too.
    pub fn done(&self, stream: u64) -> bool {
        self.streams.get(&stream).is_none_or(|open| open.ended && open.up.is_empty() && open.down.ended)
    }

    /// Forgets a stream.
    pub fn close(&mut self, stream: u64) {
        self.streams.remove(&stream);
        self.turns.retain(|other| *other != stream);
    }

    /// When [`Client::poll`] has something to do.
    pub fn next_time(&self) -> Time {
        let attempt = self.flights.next_attempt();
        let due = |open: &Open| if open.wants() { attempt } else { open.idle_at().max(attempt) };
        let letter = self.streams.values().map(due).min().unwrap_or(Time::NEVER);
        self.flights.next_timeout().min(letter)
    }

    /// Time has come: reports timeouts and gives a datagram to send, with the peer to send it to.
    pub fn poll(&mut self, now: Time, random: &mut Random, entropy: Entropy) -> Option<(Peer, Vec<u8>)> {
        let streams = &mut self.streams;
        self.flights.expire(now, |lost| {
            if let Some(open) = streams.get_mut(&lost.stream) {
                open.lost(lost.chunk);
            }
        });
        if !self.flights.may_send(now) {
            return None;
        }
        let turn = (0..self.turns.len()).find(|turn| {
            let open = self.streams.get(&self.turns[*turn]);
            open.is_some_and(|open| open.wants() || now >= open.idle_at())
        })?;
        let Some((path, memos, into)) = self.draw(now, random) else {
            self.flights.missed(now);
            return None;
        };
        let stream = self.turns.remove(turn).expect("found there");
        self.turns.push_back(stream);
        let open = self.streams.get_mut(&stream).expect("turns are streams");
        let (chunk, frame) = open.frame(now, stream);
        let relays: Vec<Hop> = path[1..=self.hops]
            .iter()
            .map(|peer| Hop { peer: *peer, key: self.keys[usize::from(*peer)] })
            .collect();
        let back: Vec<Hop> = relays.iter().rev().copied().collect();
        let drawn = entropy();
        let (mut id, mut token) = ([0; 16], [0; 8]);
        id.copy_from_slice(&drawn[..16]);
        id[0] |= 1;
        token.copy_from_slice(&drawn[16..24]);
        let token = u64::from_be_bytes(token) | 1;
        let (own, keys) = PathKeys::draw(&back, self.me, id, token, entropy);
        let letter = Letter { path: own, text: frame.text() };
        let (datagram, answer) = letter.send(&relays, token, &into, self.receiver, entropy);
        let timeout = self.flights.sender.timeout_into(&path);
        self.flights.launch(now, id, (path, memos), timeout, Cargo { stream, chunk, keys, answer });
        Some((relays[0].peer, datagram))
    }

    /// A sender path into the first receiver path that can be used now.
    fn draw(&mut self, now: Time, random: &mut Random) -> Option<(Path, Memos, ReceiverPath)> {
        for place in 0..self.store.len() {
            let entry = self.store[place].entry();
            if entry != self.me.peer && !self.flights.sender.has_rate(entry) {
                continue;
            }
            if let Some((path, memos)) = self.flights.draw_path_into(now, entry, random) {
                return self.store.remove(place).map(|into| (path, memos, into));
            }
        }
        None
    }

    /// Something came over a receiver path of this client.
    pub fn answer(&mut self, now: Time, id: PacketId, annex: [u8; ANNEX], payload: &[u8]) -> Option<Came> {
        let flight = self.flights.land(id)?;
        let Cargo { stream, chunk, keys, answer } = &flight.cargo;
        let letter = keys.answer(answer, payload);
        let frame = letter.as_ref().and_then(|letter| Frame::parse(&letter.text));
        let (Some(letter), Some(frame)) = (letter, frame) else {
            self.forged += 1;
            if let Some(open) = self.streams.get_mut(stream).filter(|_| !flight.timed_out) {
                open.lost(*chunk);
            }
            return None;
        };
        let (stamps, beyond) = keys.annex.read(annex);
        self.flights.acked(now, &flight, &stamps, Some(beyond));
        self.supply([letter.path]);
        let open = self.streams.get_mut(stream)?;
        open.answered(now, &frame, *chunk, flight.timed_out).map(|mut came| {
            came.stream = *stream;
            came
        })
    }
}

impl Open {
    fn push(&mut self, bytes: &[u8], last: bool) {
        self.up.insert(self.next_up, (bytes.to_vec(), last));
        self.ready.push_back(self.next_up);
        self.next_up += 1;
    }

    /// Whether a letter should leave as soon as it may.
    fn wants(&self) -> bool {
        !self.ready.is_empty()
            || (self.polls > 1 && self.takes && !self.down.ended && self.flying < self.polls)
    }

    /// When a letter should leave although it carries nothing and nothing comes.
    fn idle_at(&self) -> Time {
        if self.down.ended || !self.takes || self.flying > 0 { Time::NEVER } else { self.idle }
    }

    fn frame(&mut self, now: Time, stream: u64) -> (Option<u64>, Frame) {
        let (next, have) = seen(&self.down);
        let mut frame = Frame { stream, next, have, ..Frame::default() };
        while let Some(number) = self.ready.pop_front() {
            if let Some((bytes, last)) = self.up.get(&number) {
                frame.flags = CHUNK | if *last { LAST } else { 0 };
                (frame.chunk, frame.bytes) = (number, bytes.clone());
                break;
            }
        }
        self.flying += 1;
        self.idle = now + self.pause;
        (frame.has(CHUNK).then_some(frame.chunk), frame)
    }

    fn lost(&mut self, chunk: Option<u64>) {
        self.flying = self.flying.saturating_sub(1);
        if let Some(chunk) = chunk.filter(|chunk| self.up.contains_key(chunk)) {
            self.ready.push_front(chunk);
        }
    }

    fn answered(&mut self, now: Time, frame: &Frame, chunk: Option<u64>, late: bool) -> Option<Came> {
        let opened = !std::mem::replace(&mut self.answered, true);
        if !late {
            self.flying = self.flying.saturating_sub(1);
        }
        if let Some(chunk) = chunk {
            if frame.has(TAKEN) {
                self.up.remove(&chunk);
            } else if !late && self.up.contains_key(&chunk) {
                self.ready.push_back(chunk);
            }
        }
        let (mut bytes, mut complete) = (Vec::new(), false);
        if frame.has(CHUNK) {
            // Something comes: ask for more at once.
            (self.polls, self.pause) = ((self.polls + 1).min(WINDOW as u32), POLLS[0]);
            let took = self.down.take(frame.chunk, &frame.bytes, frame.has(LAST), WINDOW as usize);
            if let Took::Bytes(ordered, last) = took {
                (bytes, complete) = (ordered, last);
            }
        } else {
            self.polls = (self.polls / 2).max(1);
            self.pause = if chunk.is_some() { POLLS[0] } else { (self.pause * 2).min(POLLS[1]) };
        }
        self.idle = now + self.pause;
        let refused = frame.has(REFUSED);
        (opened || !bytes.is_empty() || complete || refused).then_some(Came {
            stream: 0,
            opened,
            bytes,
            complete,
            refused,
        })
    }
}
