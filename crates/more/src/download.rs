//! Reassembles byte streams: order, repetitions, bounded buffers.

use std::collections::{BTreeMap, VecDeque};

use tidegate_control::shares::{Shares, most_for_one};
use tidegate_control::units::Time;

use crate::upload::HEAD;

/// Maximum number of buffered chunks of a stream. Chunks beyond are not acknowledged, so the sender repeats them.
const HELD: usize = 16_384;
/// Maximum number of buffered chunks of all streams, of which [`most_for_one`] limits those of one.
const HELD_BY_ALL: usize = 2 * HELD;
/// Maximum number of concurrent streams. A new one displaces a complete one, or the one that was silent the longest.
const STREAMS: usize = 256;
/// Maximum number of remembered streams that made room for others.
const DISPLACED: usize = 1024;

/// The receiving end of any number of streams.
#[derive(Debug)]
pub struct Download {
    streams: BTreeMap<u64, Received>,
    /// Their places. Sources are anonymous, so all streams are in one group.
    places: Shares<(), (), u64>,
    /// Incomplete streams that made room, the oldest first. The rest of them is not acknowledged.
    displaced: VecDeque<u64>,
    /// Chunks that wait in all streams.
    held: usize,
    /// Counters since the start.
    pub counters: Counters,
}

#[derive(Debug, Default)]
struct Received {
    stream: Stream,
    /// The number of bodies when its last one came. Their order takes the place of the time.
    used: Time,
}

impl Default for Download {
    fn default() -> Download {
        let (streams, displaced, counters) = Default::default();
        Download { streams, places: Shares::new(STREAMS), displaced, held: 0, counters }
    }
}

/// Counters of received chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Accepted chunks.
    pub chunks: u64,
    /// Chunks that had arrived before.
    pub repeated: u64,
    /// Malformed bodies.
    pub senseless: u64,
    /// Chunks or streams beyond the limits.
    pub too_many: u64,
}

/// Chunks of one stream, in any order.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// The first missing chunk.
    pub(crate) next: u64,
    /// Chunks after it.
    pub(crate) held: BTreeMap<u64, (Vec<u8>, bool)>,
    pub(crate) ended: bool,
}

/// Result of [`Stream::take`].
pub(crate) enum Took {
    /// The bytes that are now in order, and whether they complete the stream.
    Bytes(Vec<u8>, bool),
    /// The chunk had arrived before.
    Repeated,
    /// The buffer of `most` chunks is full.
    TooMany,
}

impl Stream {
    /// Takes a chunk. At most `most` chunks wait for earlier ones.
    pub(crate) fn take(&mut self, chunk: u64, bytes: &[u8], last: bool, most: usize) -> Took {
        if chunk < self.next || self.ended || self.held.contains_key(&chunk) {
            return Took::Repeated;
        }
        if self.held.len() >= most && chunk != self.next {
            return Took::TooMany;
        }
        self.held.insert(chunk, (bytes.to_vec(), last));
        let (mut ordered, mut complete) = (Vec::new(), false);
        while let Some((bytes, last)) = self.held.remove(&self.next) {
            self.next += 1;
            ordered.extend_from_slice(&bytes);
            if last {
                (self.ended, complete) = (true, true);
                self.held.clear();
            }
        }
        Took::Bytes(ordered, complete)
    }
}

/// Result of a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The stream.
    pub stream: u64,
    /// Bytes that are now in order.
    pub bytes: Vec<u8>,
    /// Whether they complete the stream.
    pub complete: bool,
}

impl Download {
    /// Takes a body. `None` means that it must not be acknowledged.
    pub fn body(&mut self, body: &[u8]) -> Option<Arrived> {
        let parsed = body.split_at_checked(HEAD).and_then(|(head, bytes)| {
            let stream = u64::from_be_bytes(head[..8].try_into().ok()?);
            let chunk = u64::from_be_bytes(head[8..16].try_into().ok()?);
            (head[16] <= 1).then_some((stream, chunk, head[16] == 1, bytes))
        });
        let Some((id, chunk, last, bytes)) = parsed else {
            self.counters.senseless += 1;
            return None;
        };
        if self.displaced.contains(&id) {
            self.counters.too_many += 1;
            return None;
        }
        let Counters { chunks, repeated, too_many, .. } = self.counters;
        let now = Time(chunks + repeated + too_many + 1);
        if !self.streams.contains_key(&id) {
            self.make_room(now, id);
        }
        let Received { stream, used } = self.streams.entry(id).or_default();
        *used = now;
        let before = stream.held.len();
        let most = HELD.min(most_for_one(HELD_BY_ALL, self.held));
        let took = stream.take(chunk, bytes, last, most);
        self.held = self.held + stream.held.len() - before;
        let (bytes, complete) = match took {
            Took::TooMany => {
                self.counters.too_many += 1;
                return None;
            }
            Took::Repeated => {
                self.counters.repeated += 1;
                (Vec::new(), false)
            }
            Took::Bytes(bytes, complete) => {
                self.counters.chunks += 1;
                (bytes, complete)
            }
        };
        if complete {
            // It is only needed to acknowledge repetitions, so it makes room first.
            self.places.release(&id);
            self.places.admit(Time::ZERO, ((), ()), id);
        }
        Some(Arrived { stream: id, bytes, complete })
    }

    /// Gives a stream a place.
    fn make_room(&mut self, now: Time, id: u64) {
        let streams = &self.streams;
        let used = |id: &u64| match streams.get(id) {
            Some(Received { stream, used }) if !stream.ended => *used,
            _ => Time::ZERO,
        };
        if let Some(idlest) = self.places.displaced(&((), ()), used)
            && let Some(Received { stream, .. }) = self.streams.remove(&idlest)
            && !stream.ended
        {
            self.held -= stream.held.len();
            self.displaced.push_back(idlest);
            if self.displaced.len() > DISPLACED {
                self.displaced.pop_front();
            }
        }
        self.places.admit(now, ((), ()), id);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn body(chunk: u64, last: bool, bytes: &[u8]) -> Vec<u8> {
        [&5u64.to_be_bytes()[..], &chunk.to_be_bytes(), &[u8::from(last)], bytes].concat()
    }

    proptest! {
        #[test]
        fn any_order_with_repetitions_gives_the_stream(order in Just((0u64..30).collect::<Vec<_>>()).prop_shuffle(), again in prop::collection::vec(0u64..30, 0..20)) {
            let mut download = Download::default();
            let (mut bytes, mut complete) = (Vec::new(), 0);
            for chunk in again.iter().chain(&order).chain(&again) {
                let arrived = download.body(&body(*chunk, *chunk == 29, &[*chunk as u8; 3])).expect("sound");
                bytes.extend(arrived.bytes);
                complete += u32::from(arrived.complete);
            }
            prop_assert_eq!(complete, 1);
            prop_assert_eq!(bytes, (0u8..30).flat_map(|chunk| [chunk; 3]).collect::<Vec<_>>());
        }

        #[test]
        fn garbage_is_counted_and_bounded(bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..60)) {
            let mut download = Download::default();
            for body in &bodies {
                download.body(body);
            }
            let Counters { chunks, repeated, senseless, too_many } = download.counters;
            prop_assert_eq!(chunks + repeated + senseless + too_many, bodies.len() as u64);
        }
    }

    #[test]
    fn buffered_chunks_are_bounded() {
        let mut download = Download::default();
        for chunk in 1..HELD as u64 + 100 {
            download.body(&body(chunk, false, &[]));
        }
        assert_eq!(download.counters.too_many, 99);
        assert!(download.body(&body(0, false, &[])).is_some(), "the one that is waited for always fits");
    }

    /// A source sends second chunks of streams without end, and never a first one.
    #[test]
    fn streams_that_stay_incomplete_lock_out_none_and_are_bounded_together() {
        let of = |stream: u64, chunk: u64| {
            [&stream.to_be_bytes()[..], &chunk.to_be_bytes(), &[0], &[7; 3]].concat()
        };
        let mut download = Download::default();
        let mut send = |stream: u64, chunk: u64| download.body(&of(stream, chunk)).is_some();
        assert!(send(1, 0));
        for stream in 1000..1000 + STREAMS as u64 + 50 {
            assert!(send(stream, 1), "a newcomer has a place");
            assert!(send(1, 1 + stream - 1000), "a stream in use keeps its place");
        }
        assert!(!send(1000, 2), "its place is gone");
        for stream in 2000..2003 {
            assert!((1..HELD as u64).filter(|chunk| send(stream, *chunk)).count() > HELD / 8);
        }
        assert!(send(3000, 0) && send(3000, 2), "a newcomer has room");
        let held: usize = download.streams.values().map(|received| received.stream.held.len()).sum();
        assert_eq!((download.streams.len(), download.held), (STREAMS, held));
        assert!(held < HELD_BY_ALL);
    }
}
