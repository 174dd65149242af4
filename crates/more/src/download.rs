//! Reassembles byte streams: order, repetitions, bounded buffers.

use std::collections::BTreeMap;

use crate::upload::HEAD;

/// Maximum number of buffered chunks. Chunks beyond are not acknowledged, so the sender repeats them.
const HELD: usize = 16_384;
/// Maximum number of concurrent streams.
const STREAMS: usize = 256;

/// The receiving end of any number of streams.
#[derive(Debug, Default)]
pub struct Download {
    streams: BTreeMap<u64, Stream>,
    /// Counters since the start.
    pub counters: Counters,
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
        if !self.streams.contains_key(&id) && self.streams.len() >= STREAMS {
            // A completed stream is only needed to acknowledge repetitions.
            self.streams.retain(|_, stream| !stream.ended);
            if self.streams.len() >= STREAMS {
                self.counters.too_many += 1;
                return None;
            }
        }
        let stream = self.streams.entry(id).or_default();
        let (bytes, complete) = match stream.take(chunk, bytes, last, HELD) {
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
        Some(Arrived { stream: id, bytes, complete })
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
        for stream in 0..STREAMS as u64 + 10 {
            download.body(&[&(stream + 100).to_be_bytes()[..], &1u64.to_be_bytes(), &[0]].concat());
        }
        assert!(download.streams.len() <= STREAMS);
    }
}
