//! Cuts the bytes of a source into payloads of whole TS packets (ISO 13818-1: 188 bytes, the first is 0x47).

use bytes::Bytes;

use crate::packet::PAYLOAD;

/// Size of a TS packet, bytes.
pub const TS: usize = 188;
const SYNC: u8 = 0x47;

/// Finds TS packets in a stream of bytes.
#[derive(Debug, Default)]
pub struct Framer {
    /// Pending bytes, fewer than a payload and a TS packet.
    rest: Vec<u8>,
    /// Whether the last packet boundary was found.
    synchronous: bool,
    /// Number of skipped bytes that were not TS.
    pub garbage: u64,
}

impl Framer {
    /// Takes any number of bytes and returns full payloads.
    pub fn push(&mut self, mut bytes: &[u8]) -> Vec<Bytes> {
        let mut payloads = Vec::new();
        while !bytes.is_empty() {
            // Bounds the pending bytes for any size of input.
            let (now, later) = bytes.split_at(bytes.len().min(PAYLOAD));
            bytes = later;
            self.rest.extend_from_slice(now);
            self.synchronise();
            while self.whole() >= PAYLOAD {
                payloads.push(self.take(PAYLOAD));
                self.synchronise();
            }
        }
        payloads
    }

    /// Returns the pending whole TS packets when the source pauses.
    pub fn flush(&mut self) -> Option<Bytes> {
        let whole = self.whole();
        (whole > 0).then(|| self.take(whole))
    }

    /// Length of the whole TS packets at the beginning.
    fn whole(&self) -> usize {
        let packets = self.rest.chunks_exact(TS).take_while(|packet| packet[0] == SYNC).count();
        if self.synchronous { (packets * TS).min(PAYLOAD) } else { 0 }
    }

    fn take(&mut self, count: usize) -> Bytes {
        let payload = Bytes::copy_from_slice(&self.rest[..count]);
        self.rest.drain(..count);
        payload
    }

    /// Drops bytes until a sync byte is first and the next packet begins with one too.
    fn synchronise(&mut self) {
        if self.synchronous && self.rest.first().is_none_or(|first| *first == SYNC) {
            return;
        }
        self.synchronous = false;
        let limit = self.rest.len().saturating_sub(TS);
        let at = (0..limit).find(|at| self.rest[*at] == SYNC && self.rest[at + TS] == SYNC);
        self.synchronous = at.is_some();
        let drop = at.unwrap_or(limit);
        self.garbage += drop as u64;
        self.rest.drain(..drop);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ts(packets: usize) -> Vec<u8> {
        (0..packets)
            .flat_map(|n| std::iter::once(SYNC).chain((1..TS).map(move |at| (n * 7 + at) as u8)))
            .collect()
    }

    proptest! {
        #[test]
        fn all_packets_come_out_for_any_chunk_sizes(cuts in proptest::collection::vec(1usize..3000, 1..40)) {
            let content = ts(400);
            let mut framer = Framer::default();
            let (mut out, mut left) = (Vec::new(), &content[..]);
            for cut in cuts {
                let (now, later) = left.split_at(cut.min(left.len()));
                left = later;
                framer.push(now).iter().for_each(|payload| out.extend_from_slice(payload));
            }
            framer.push(left).iter().for_each(|payload| out.extend_from_slice(payload));
            out.extend_from_slice(&framer.flush().unwrap_or_default());
            prop_assert!(out == content);
            prop_assert_eq!(framer.garbage, 0);
        }

        #[test]
        fn garbage_is_dropped_and_counted(junk in proptest::collection::vec(0u8..0x47, 0..5000)) {
            let mut framer = Framer::default();
            let mut out: Vec<u8> = framer.push(&junk).concat();
            prop_assert!(framer.rest.len() <= PAYLOAD + TS);
            out.extend(framer.push(&ts(20)).concat());
            out.extend_from_slice(&framer.flush().unwrap_or_default());
            prop_assert!(out == ts(20));
            prop_assert_eq!(framer.garbage, junk.len() as u64);
        }
    }
}
