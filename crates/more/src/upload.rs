//! Sends a byte stream over per-packet random paths: chunks, acknowledgements, retransmission.

use std::collections::{BTreeMap, VecDeque};

use tidegate_control::machine::Machine;
use tidegate_control::paths::{Peer, Sender};
use tidegate_control::units::{Span, Time};

use crate::flights::{Flights, Measures, Progress};
use crate::machine::{Output, Outputs, Randomness};
use crate::onion::{AnnexKeys, BODY, Epoch, build};
use crate::wire::PacketId;

/// Length of the header of a body: stream, chunk number, flags.
pub(crate) const HEAD: usize = 8 + 8 + 1;
/// Stream bytes in one packet.
pub const CHUNK: usize = BODY - HEAD;
/// Maximum number of unacknowledged chunks: about 20 s at 400 kB/s.
const WINDOW: usize = 8192;

/// The sending end of a stream.
pub struct Upload {
    stream: u64,
    me: Peer,
    to: Peer,
    epoch: Epoch,
    hops: usize,
    flights: Flights<Carried>,
    /// Unacknowledged chunks by number.
    chunks: BTreeMap<u64, Vec<u8>>,
    /// Chunks to send, in this order.
    ready: VecDeque<u64>,
    next_chunk: u64,
    ended: bool,
    randomness: Randomness,
    outputs: Outputs,
}

struct Carried {
    chunk: u64,
    keys: AnnexKeys,
}

/// The overlay as an upload uses it.
pub struct Overlay {
    /// This peer.
    pub me: Peer,
    /// The receiver.
    pub to: Peer,
    /// The keys of all peers.
    pub epoch: Epoch,
    /// Number of relays per packet, 1 to 4 (the thesis' h).
    pub hops: usize,
    /// Interval between attempts to send.
    pub attempt_every: Span,
}

impl Upload {
    /// An empty stream. Its seconds start at `now`.
    pub fn new(stream: u64, overlay: Overlay, sender: Sender, randomness: Randomness, now: Time) -> Upload {
        Upload {
            stream,
            me: overlay.me,
            to: overlay.to,
            epoch: overlay.epoch,
            hops: overlay.hops,
            flights: Flights::new(sender, overlay.attempt_every, now),
            chunks: BTreeMap::new(),
            ready: VecDeque::new(),
            next_chunk: 0,
            ended: false,
            randomness,
            outputs: Outputs::new(),
        }
    }

    /// Number of bytes that [`Upload::write`] accepts now.
    pub fn room(&self) -> usize {
        if self.ended { 0 } else { WINDOW.saturating_sub(self.chunks.len()) * CHUNK }
    }

    /// Appends bytes, at most [`Upload::room`].
    ///
    /// # Panics
    /// If there is not enough room.
    pub fn write(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.room(), "the caller asks for room first");
        for chunk in bytes.chunks(CHUNK) {
            self.push(chunk, false);
        }
    }

    /// Ends the stream.
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

    /// Sets the keys for new packets.
    pub fn set_epoch(&mut self, epoch: Epoch) {
        self.epoch = epoch;
    }

    /// Whether all bytes are acknowledged.
    pub fn done(&self) -> bool {
        self.ended && self.chunks.is_empty()
    }

    /// The controller's rate for a peer (R_i), bytes/s.
    pub fn rate(&self, peer: Peer) -> f64 {
        self.flights.sender.rate(peer)
    }

    /// Counters since the start.
    pub fn progress(&self) -> Progress {
        self.flights.progress
    }

    /// The next unacknowledged chunk to send.
    fn take_ready(&mut self) -> Option<u64> {
        while let Some(chunk) = self.ready.pop_front() {
            if self.chunks.contains_key(&chunk) {
                return Some(chunk);
            }
        }
        None
    }

    /// Handles an opened acknowledgement.
    pub fn acked(&mut self, now: Time, id: PacketId, annex: [u8; 32]) {
        let Some(flight) = self.flights.land(id) else { return };
        self.chunks.remove(&flight.cargo.chunk);
        let stamps = flight.cargo.keys.stamps(annex);
        self.flights.acked(now, &flight, &stamps, Measures::Path);
        self.catch_up(now);
    }
}

impl Machine for Upload {
    type Output = Output;

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn next_timeout(&self) -> Option<Time> {
        let timeout = self.flights.next_timeout();
        let next = if self.ready.is_empty() { timeout } else { timeout.min(self.flights.next_attempt()) };
        Some(next).filter(|next| *next != Time::NEVER)
    }

    /// Handles timeouts and sends at most one packet.
    fn timeout(&mut self, now: Time) {
        let (chunks, ready) = (&self.chunks, &mut self.ready);
        self.flights.expire(now, |lost| {
            if chunks.contains_key(&lost.cargo.chunk) {
                ready.push_front(lost.cargo.chunk);
            }
        });
        if !self.flights.may_send(now) {
            return;
        }
        let Some(chunk) = self.take_ready() else { return };
        // The chunk keeps its turn if all rates are used up.
        let Some((path, memos)) = self.flights.draw_path(now, self.to, &mut self.randomness.choices) else {
            self.ready.push_front(chunk);
            self.flights.missed(now);
            return;
        };
        let secrets = &mut *self.randomness.secrets;
        let mut id = [0; 16];
        id.copy_from_slice(&secrets()[..16]);
        let along = &path[1..=self.hops + 1];
        let (datagram, keys) = build(&self.epoch, along, self.me, id, &self.chunks[&chunk], secrets);
        let timeout = self.flights.sender.timeout(&path);
        self.flights.launch(now, id, (path, memos), timeout, Carried { chunk, keys });
        self.outputs.push_back(Output::Send(path[1], datagram));
    }
}
