//! A stream at the hidden receiver.

use std::collections::BTreeMap;

use tidegate_control::units::{Span, Time};

use crate::download::{Stream, Took};
use crate::frame::{CHUNK, Frame, LAST, MORE, TAKEN, WIDE, chunk_bytes, window};

/// Maximum number of bytes that wait for the client in one stream.
const WAITING: usize = 1024 * 1024;
/// A silence of this length ends a stream.
const SILENCE: Span = Span::from_secs(60);
/// How long a complete stream stays, to answer repeated chunks.
const LINGER: Span = Span::from_secs(5);
/// Bounds of the time before a chunk is sent again.
const AGAIN: [Span; 2] = [Span::from_millis(200), Span::from_secs(4)];
/// Weight of a measurement, and number of deviations in a timeout (RFC 6298).
const GAMMA: f64 = 0.125;
const DEVIATIONS: f64 = 4.0;
/// Tolerance for reordering between paths, as a share of the round trip.
const REORDER: f64 = 0.5;
const LEAST_REORDER: Span = Span::from_millis(20);

/// Counters of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages and cells that were answered.
    pub answered: u64,
    /// Dropped: the path is unknown.
    pub unknown_path: u64,
    /// Dropped: forged, or damaged on the way.
    pub forged: u64,
    /// Chunks that had arrived before.
    pub repeated: u64,
    /// Chunks or streams beyond the limits.
    pub too_many: u64,
    /// Chunks that were sent again.
    pub resent: u64,
}

impl std::ops::Add for Counters {
    type Output = Counters;
    fn add(self, other: Counters) -> Counters {
        Counters {
            answered: self.answered + other.answered,
            unknown_path: self.unknown_path + other.unknown_path,
            forged: self.forged + other.forged,
            repeated: self.repeated + other.repeated,
            too_many: self.too_many + other.too_many,
            resent: self.resent + other.resent,
        }
    }
}

pub(crate) struct Held {
    /// Whether its chunks have the size of cells.
    wide: bool,
    pub up: Stream,
    down: BTreeMap<u64, Chunk>,
    next_down: u64,
    pub ended: bool,
    pub refused: bool,
    /// Whether the application reads.
    pub takes: bool,
    /// Time from a chunk to its acknowledgement and its deviation, seconds.
    round: [f64; 2],
    /// When the youngest acknowledged chunk was sent.
    arrived: Time,
    pub heard: Time,
}

struct Chunk {
    bytes: Vec<u8>,
    last: bool,
    sent: Option<Time>,
    again: bool,
}

impl Held {
    pub(crate) fn new(wide: bool, now: Time) -> Held {
        Held {
            wide,
            up: Stream::default(),
            down: BTreeMap::new(),
            next_down: 0,
            ended: false,
            refused: false,
            takes: true,
            round: [0.5, 0.1],
            arrived: Time::ZERO,
            heard: now,
        }
    }

    pub(crate) fn room(&self) -> usize {
        let waiting = self.down.len() * chunk_bytes(self.wide);
        if self.ended { 0 } else { WAITING.saturating_sub(waiting) }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.room())];
        bytes.chunks(chunk_bytes(self.wide)).for_each(|chunk| self.push(chunk, false));
    }

    pub(crate) fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.push(&[], true);
        }
    }

    /// Refuses the stream.
    pub(crate) fn refuse(&mut self) {
        self.refused = true;
        self.down.clear();
    }

    /// Whether the stream is complete or silent for too long.
    pub(crate) fn over(&self, now: Time) -> bool {
        let done = self.up.ended && self.ended && self.down.values().all(|chunk| chunk.sent.is_some());
        now.since(self.heard) > if done { LINGER } else { SILENCE }
    }

    /// Takes a frame and makes the answer.
    ///
    /// At most `most` chunks wait out of order. The answer carries a chunk if it may `send`. Returns the bytes that
    /// are now in order, and whether the client ended the stream.
    pub(crate) fn exchange(
        &mut self,
        now: Time,
        frame: &Frame,
        (most, send): (usize, bool),
        counters: &mut Counters,
        answer: &mut Frame,
    ) -> (Vec<u8>, bool) {
        self.heard = now;
        let (mut bytes, mut complete) = (Vec::new(), false);
        // Without TAKEN the client repeats the chunk later. This is the backpressure of a slow application.
        if frame.has(CHUNK) && !self.takes {
            answer.flags &= !TAKEN;
        } else if frame.has(CHUNK) {
            match self.up.take(
                frame.chunk,
                &frame.bytes,
                frame.has(LAST),
                most.min(window(self.wide) as usize),
            ) {
                Took::Bytes(ordered, last) => (bytes, complete) = (ordered, last),
                Took::Repeated => counters.repeated += 1,
                Took::TooMany => {
                    counters.too_many += 1;
                    answer.flags &= !TAKEN;
                }
            }
        }
        self.heard_of(now, frame);
        answer.flags |= if self.wide { WIDE } else { 0 };
        answer.tell(&self.up, self.wide);
        if send && let Some((number, chunk)) = self.due(now, frame.next) {
            counters.resent += u64::from(chunk.again);
            (chunk.again, chunk.sent) = (true, Some(now));
            answer.chunk = number;
            answer.flags |= CHUNK | if chunk.last { LAST } else { 0 };
            answer.bytes = chunk.bytes.clone();
        }
        if !self.down.is_empty() {
            answer.flags |= MORE;
        }
        (bytes, complete)
    }

    fn push(&mut self, bytes: &[u8], last: bool) {
        let chunk = Chunk { bytes: bytes.to_vec(), last, sent: None, again: false };
        self.down.insert(self.next_down, chunk);
        self.next_down += 1;
    }

    /// Drops acknowledged chunks.
    fn heard_of(&mut self, now: Time, frame: &Frame) {
        let (round, arrived) = (&mut self.round, &mut self.arrived);
        let mut drop = |chunk: Chunk| {
            if let (Some(sent), false) = (chunk.sent, chunk.again) {
                let seconds = now.since(sent).as_secs_f64();
                round[1] += GAMMA * ((seconds - round[0]).abs() - round[1]);
                round[0] += GAMMA * (seconds - round[0]);
                *arrived = (*arrived).max(sent);
            }
        };
        while let Some(first) = self.down.first_entry().filter(|first| *first.key() < frame.next) {
            drop(first.remove());
        }
        frame.held().filter_map(|number| self.down.remove(&number)).for_each(drop);
    }

    /// The chunk of the next answer: one that seems lost, or the first unsent one.
    ///
    /// A chunk seems lost if clearly younger chunks arrived (RFC 8985), or after a timeout.
    fn due(&mut self, now: Time, next: u64) -> Option<(u64, &mut Chunk)> {
        let [round, deviation] = self.round;
        // With hundreds of samples per round trip, the deviation underestimates how a full queue changes.
        let wait = (1.0 + REORDER) * round + DEVIATIONS * deviation;
        let wait = Span::from_secs_f64(wait).clamp(AGAIN[0], AGAIN[1]);
        let later = Span::from_secs_f64(REORDER * round).max(LEAST_REORDER);
        let arrived = self.arrived;
        let lost = |sent: Time| sent + later < arrived || now.since(sent) > wait;
        let window = ..next.saturating_add(window(self.wide));
        let due = |chunk: &Chunk| chunk.sent.is_none_or(lost);
        self.down.range_mut(window).find(|(_, chunk)| due(chunk)).map(|(number, chunk)| (*number, chunk))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frame::any_frame;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// A client that knows the keys and sends arbitrary frames: buffers stay bounded and every answer fits.
        #[test]
        fn memory_is_bounded_for_any_frames(
            wide: bool, takes: bool, said in prop::collection::vec((any_frame(), 0u64..400, 0usize..9000), 1..120),
        ) {
            let (mut held, mut counters) = (Held::new(wide, Time::ZERO), Counters::default());
            held.takes = takes;
            let mut now = Time::ZERO;
            for (frame, later, written) in said {
                now += Span::from_millis(later);
                held.write(&vec![5; written * 100]);
                let mut answer = Frame::default();
                held.exchange(now, &frame, (usize::MAX, true), &mut counters, &mut answer);
                prop_assert!(held.up.held.len() <= window(wide) as usize);
                let waiting: usize = held.down.values().map(|chunk| chunk.bytes.len()).sum();
                prop_assert!(waiting <= WAITING + chunk_bytes(wide), "{waiting}");
                prop_assert!(answer.bytes.len() <= chunk_bytes(wide));
                prop_assert!(!answer.has(CHUNK) || answer.chunk < held.next_down, "nothing is made up");
            }
            prop_assert!(held.over(now + SILENCE + Span::from_secs(1)), "who falls silent is forgotten");
        }
    }
}
