//! Sends a byte stream over per-packet random paths: chunks, acknowledgements, retransmission.

use std::collections::{BTreeMap, VecDeque};

use tidegate_control::paths::relay::SECOND;
use tidegate_control::paths::sender::{Memos, Path, Sender, Stamps};
use tidegate_control::paths::{MAX_HOPS, Peer};
use tidegate_control::random::Random;
use tidegate_control::units::{Span, Time};

use crate::onion::{AnnexKeys, BODY, Entropy, Hop, PacketId, build};

/// Bytes of the head of each body: stream, chunk number, flags.
pub(crate) const HEAD: usize = 8 + 8 + 1;
/// Bytes of stream in one packet.
pub const CHUNK: usize = BODY - HEAD;
/// Chunks that may be unacknowledged: about 20 s at 400 kB/s.
const WINDOW: usize = 8192;

/// The shortest timeout: a pause of some machine's scheduler must not look like a loss.
const SHORTEST: Span = Span::from_millis(200);

/// The sending end of one stream.
pub struct Upload {
    stream: u64,
    me: Hop,
    to: Hop,
    keys: Vec<[u8; 32]>,
    hops: usize,
    sender: Sender,
    attempt_every: Span,
    next_attempt: Time,
    next_second: Time,
    /// Chunks not acknowledged yet, by number.
    chunks: BTreeMap<u64, Vec<u8>>,
    /// Chunks to be sent, first to be sent first.
    ready: VecDeque<u64>,
    /// Packets whose acknowledgement may still come.
    packets: BTreeMap<PacketId, Packet>,
    /// By deadline: packets that were not timed out yet.
    deadlines: BTreeMap<(Time, PacketId), ()>,
    next_chunk: u64,
    ended: bool,
    /// What happened so far.
    pub progress: Progress,
}

/// Counts of one upload.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Packets sent, repetitions included.
    pub sent: u64,
    /// Packets acknowledged in time.
    pub acked: u64,
    /// Packets whose timeout struck.
    pub timed_out: u64,
    /// Acknowledgements after the timeout.
    pub late: u64,
    /// Acknowledgements of packets that are not known (any more).
    pub unknown: u64,
    /// Round trip of the last acknowledged packet, seconds.
    pub round_trip: f64,
}

struct Packet {
    chunk: u64,
    sent: Time,
    deadline: Time,
    path: Path,
    memos: Memos,
    keys: AnnexKeys,
    timed_out: bool,
}

/// What an upload needs to know of the overlay.
pub struct Overlay {
    /// This peer.
    pub me: Hop,
    /// The peer it sends to.
    pub to: Hop,
    /// All peers' keys by number.
    pub keys: Vec<[u8; 32]>,
    /// h: relays per packet, 1 to 4.
    pub hops: usize,
    /// How often it sends when rate is left.
    pub attempt_every: Span,
}

impl Upload {
    /// A stream without content yet. Its seconds begin at `now`.
    pub fn new(stream: u64, overlay: Overlay, sender: Sender, now: Time) -> Upload {
        Upload {
            stream,
            me: overlay.me,
            to: overlay.to,
            keys: overlay.keys,
            hops: overlay.hops,
            sender,
            attempt_every: overlay.attempt_every,
            next_attempt: now,
            next_second: now + SECOND,
            chunks: BTreeMap::new(),
            ready: VecDeque::new(),
            packets: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            next_chunk: 0,
            ended: false,
            progress: Progress::default(),
        }
    }

    /// How many more bytes [`Upload::write`] takes now.
    pub fn room(&self) -> usize {
        if self.ended { 0 } else { WINDOW.saturating_sub(self.chunks.len()) * CHUNK }
    }

    /// Appends bytes, at most [`Upload::room`] of them.
    ///
    /// # Panics
    /// If there is not enough room.
    pub fn write(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.room(), "the caller asks for room first");
        for chunk in bytes.chunks(CHUNK) {
            self.push(chunk, false);
        }
    }

    /// Nothing more will be written.
    pub fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.push(&[], true);
        }
    }

    fn push(&mut self, bytes: &[u8], last: bool) {
        let mut body = Vec::with_capacity(HEAD + bytes.len());
        body.extend_from_slice(&self.stream.to_be_bytes());
        body.extend_from_slice(&self.next_chunk.to_be_bytes());
        body.push(u8::from(last));
        body.extend_from_slice(bytes);
        self.chunks.insert(self.next_chunk, body);
        self.ready.push_back(self.next_chunk);
        self.next_chunk += 1;
    }

    /// Whether all is acknowledged.
    pub fn done(&self) -> bool {
        self.ended && self.chunks.is_empty()
    }

    /// R_i of the controller, bytes/s.
    pub fn rate(&self, peer: Peer) -> f64 {
        self.sender.rate(peer)
    }

    /// When [`Upload::poll`] has something to do.
    pub fn next_time(&self) -> Time {
        let timeout = self.deadlines.first_key_value().map_or(Time::NEVER, |(key, ())| key.0);
        if self.ready.is_empty() { timeout } else { timeout.min(self.next_attempt) }
    }

    /// Time has come: reports timeouts and gives a datagram to send, with the peer to send it to.
    pub fn poll(&mut self, now: Time, random: &mut Random, entropy: Entropy) -> Option<(Peer, Vec<u8>)> {
        self.expire(now);
        if now >= self.next_second {
            // A clock that jumped ahead begins one second, not all that were missed.
            self.next_second += SECOND * (now.since(self.next_second).0 / SECOND.0 + 1);
            self.sender.second();
        }
        if now < self.next_attempt {
            return None;
        }
        let chunk = self.take_ready()?;
        let Some((path, memos)) = self.sender.draw_path(self.to.peer, random) else {
            self.ready.push_front(chunk);
            self.next_attempt =
                if self.sender.saturated() { self.next_second } else { now + self.attempt_every };
            return None;
        };
        // Ticks that were slept through are made up for, but no more than a few at once.
        self.next_attempt = (self.next_attempt + self.attempt_every).max(now - self.attempt_every * 4);
        let relays: Vec<Hop> = path[1..=self.hops]
            .iter()
            .map(|peer| Hop { peer: *peer, key: self.keys[usize::from(*peer)] })
            .collect();
        let mut id = [0; 16];
        id.copy_from_slice(&entropy()[..16]);
        let (datagram, keys) = build(&relays, self.to, self.me, id, &self.chunks[&chunk], entropy);
        let deadline = now + Span::from_secs_f64(self.sender.timeout(&path)).max(SHORTEST);
        self.packets.insert(id, Packet { chunk, sent: now, deadline, path, memos, keys, timed_out: false });
        self.deadlines.insert((deadline, id), ());
        self.progress.sent += 1;
        Some((path[1], datagram))
    }

    /// The next chunk to be sent that was not acknowledged in the meantime.
    fn take_ready(&mut self) -> Option<u64> {
        while let Some(chunk) = self.ready.pop_front() {
            if self.chunks.contains_key(&chunk) {
                return Some(chunk);
            }
        }
        None
    }

    /// An acknowledgement was opened.
    pub fn acked(&mut self, now: Time, id: PacketId, annex: [u8; 32]) {
        let Some(packet) = self.packets.remove(&id) else {
            self.progress.unknown += 1;
            return;
        };
        self.deadlines.remove(&(packet.deadline, id));
        self.chunks.remove(&packet.chunk);
        let mut stamps: Stamps = [0.0; MAX_HOPS];
        stamps.iter_mut().zip(packet.keys.stamps(annex)).for_each(|(slot, stamp)| *slot = stamp);
        let seconds = now.since(packet.sent).as_secs_f64();
        self.sender.acked(now, &packet.path, &packet.memos, &stamps, seconds, packet.timed_out);
        *(if packet.timed_out { &mut self.progress.late } else { &mut self.progress.acked }) += 1;
        self.progress.round_trip = seconds;
    }

    /// Reports timeouts, and forgets packets that are so late that nobody waits for them.
    fn expire(&mut self, now: Time) {
        while let Some((&(deadline, id), ())) = self.deadlines.first_key_value() {
            if deadline > now {
                break;
            }
            self.deadlines.pop_first();
            let Some(packet) = self.packets.get_mut(&id) else { continue };
            packet.timed_out = true;
            self.progress.timed_out += 1;
            self.sender.timed_out(now, &packet.path, &packet.memos);
            if self.chunks.contains_key(&packet.chunk) {
                self.ready.push_front(packet.chunk);
            }
        }
        if self.packets.len() > 2 * WINDOW {
            self.packets.retain(|_, packet| !packet.timed_out);
        }
    }
}
