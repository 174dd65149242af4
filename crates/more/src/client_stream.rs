//! A stream at the client: chunks to send and chunks to request.

use std::collections::{BTreeMap, VecDeque};

use tidegate_control::units::{Span, Time};

use crate::download::{Stream, Took};
use crate::frame::{CHUNK, Frame, LAST, MORE, PATHS, REFUSED, TAKEN, WIDE, chunk_bytes, window};
use crate::machine::StreamEvent;

/// Maximum number of waiting and in-flight chunks of a stream.
const WAITING: usize = 1024;
/// Shortest and longest pause between polls on an idle stream. A poll is a packet without a chunk.
const POLLS: [Span; 2] = [Span::from_millis(20), Span::from_secs(1)];

/// An open stream.
pub(crate) struct Open {
    /// Whether its chunks have the size of cells.
    wide: bool,
    /// Chunks without an acknowledgement.
    up: BTreeMap<u64, (Vec<u8>, bool)>,
    /// Chunks to send, in this order.
    ready: VecDeque<u64>,
    next_up: u64,
    ended: bool,
    down: Stream,
    answered: bool,
    /// Whether the application reads.
    pub takes: bool,
    /// Packets in flight.
    flying: u32,
    /// Maximum number of polls in flight.
    polls: u32,
    /// When the next poll of an idle stream is due.
    idle: Time,
    pause: Span,
}

impl Open {
    pub(crate) fn new(wide: bool, now: Time) -> Open {
        Open {
            wide,
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
        }
    }

    pub(crate) fn room(&self) -> usize {
        if self.ended { 0 } else { WAITING.saturating_sub(self.up.len()) * chunk_bytes(self.wide) }
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

    pub(crate) fn done(&self) -> bool {
        self.ended && self.up.is_empty() && self.down.ended
    }

    fn push(&mut self, bytes: &[u8], last: bool) {
        self.up.insert(self.next_up, (bytes.to_vec(), last));
        self.ready.push_back(self.next_up);
        self.next_up += 1;
    }

    /// Whether the stream has a packet to send now.
    pub(crate) fn wants(&self) -> bool {
        !self.ready.is_empty()
            || (self.polls > 1 && self.takes && !self.down.ended && self.flying < self.polls)
    }

    /// When the next poll is due if the stream stays idle.
    pub(crate) fn idle_at(&self) -> Time {
        if self.down.ended || !self.takes || self.flying > 0 { Time::NEVER } else { self.idle }
    }

    /// Makes the next frame, and the number of its chunk.
    pub(crate) fn frame(&mut self, now: Time, stream: u64) -> (Option<u64>, Frame) {
        let flags = if self.wide { WIDE } else { 0 };
        let mut frame = Frame { stream, flags, ..Frame::default() };
        frame.tell(&self.down, self.wide);
        while let Some(number) = self.ready.pop_front() {
            if let Some((bytes, last)) = self.up.get(&number) {
                frame.flags |= CHUNK | if *last { LAST } else { 0 };
                (frame.chunk, frame.bytes) = (number, bytes.clone());
                break;
            }
        }
        self.flying += 1;
        self.idle = now + self.pause;
        (frame.has(CHUNK).then_some(frame.chunk), frame)
    }

    /// Records a lost packet.
    pub(crate) fn lost(&mut self, chunk: Option<u64>) {
        self.flying = self.flying.saturating_sub(1);
        if let Some(chunk) = chunk.filter(|chunk| self.up.contains_key(chunk)) {
            self.ready.push_front(chunk);
        }
    }

    /// Handles an answer, which may come after the packet counted as lost.
    pub(crate) fn answered(
        &mut self,
        now: Time,
        frame: &Frame,
        chunk: Option<u64>,
        late: bool,
    ) -> Option<StreamEvent> {
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
            let window = window(self.wide) as usize;
            if let Took::Bytes(ordered, last) =
                self.down.take(frame.chunk, &frame.bytes, frame.has(LAST), window)
            {
                (bytes, complete) = (ordered, last);
            }
        }
        if frame.has(CHUNK) || frame.has(MORE) || frame.has(PATHS) {
            // Data arrives, or retransmissions wait: request more at once.
            (self.polls, self.pause) = ((self.polls + 1).min(window(self.wide) as u32), POLLS[0]);
        } else {
            self.polls = (self.polls / 2).max(1);
            self.pause = if chunk.is_some() { POLLS[0] } else { (self.pause * 2).min(POLLS[1]) };
        }
        self.idle = now + self.pause;
        let refused = frame.has(REFUSED);
        (opened || !bytes.is_empty() || complete || refused).then_some(StreamEvent {
            stream: 0,
            opened,
            bytes,
            complete,
            refused,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frame::any_frame;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// A receiver that knows the keys and answers arbitrarily, even packets that were not sent.
        #[test]
        fn memory_is_bounded_for_any_answers(
            wide: bool, said in prop::collection::vec((any_frame(), 0u64..400, any::<bool>(), any::<bool>()), 1..120),
        ) {
            let (mut open, mut now) = (Open::new(wide, Time::ZERO), Time::ZERO);
            for (answer, later, sends, late) in said {
                now += Span::from_millis(later);
                open.write(&[5; 5000]);
                let chunk = if sends { open.frame(now, 7).0 } else { None };
                let came = open.answered(now, &answer, chunk, late);
                prop_assert!(came.is_none_or(|came| came.bytes.len() <= chunk_bytes(true) * (window(wide) as usize + 1)));
                prop_assert!(open.down.held.len() <= window(wide) as usize);
                prop_assert!(open.up.len() <= WAITING && open.ready.len() <= WAITING, "{}", open.ready.len());
                prop_assert!(open.polls <= window(wide) as u32);
            }
        }
    }
}
