//! Cuts the bytes of a source into payloads of whole TS packets (ISO 13818-1: 188 bytes, the first is 0x47).
//!
//! Packets of 192 bytes (M2TS: a time stamp of four bytes before each) and of 204 bytes (16 bytes of error correction
//! behind each) are read too. The additional bytes are dropped.

use bytes::Bytes;

use crate::packet::PAYLOAD;

/// Size of a TS packet, bytes.
pub const TS: usize = 188;
const SYNC: u8 = 0x47;
/// Distances of packets. The ordinary one comes first.
const STRIDES: [usize; 3] = [TS, 192, 204];
/// Bytes that tell whether packets begin at a position: twice the longest distance, and a byte.
const LOOK: usize = 2 * 204 + 1;

/// Finds TS packets in a stream of bytes.
#[derive(Debug, Default)]
pub struct Framer {
    /// Bytes that are not read yet, fewer than [`LOOK`] bytes.
    rest: Vec<u8>,
    /// Whole TS packets that wait, fewer than a payload.
    packets: Vec<u8>,
    /// Distance of packets; zero before a packet boundary is found.
    stride: usize,
    /// Bytes before the next packet that belong to the format.
    skip: usize,
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
            let read = self.read(&mut payloads);
            self.rest.drain(..read);
        }
        payloads
    }

    /// Returns the pending whole TS packets when the source pauses.
    pub fn flush(&mut self) -> Option<Bytes> {
        (!self.packets.is_empty()).then(|| std::mem::take(&mut self.packets).into())
    }

    /// Reads whole packets. Returns the number of bytes that are read.
    fn read(&mut self, payloads: &mut Vec<Bytes>) -> usize {
        let mut at = 0;
        loop {
            let rest = &self.rest[at..];
            if self.skip > 0 {
                let skipped = self.skip.min(rest.len());
                (at, self.skip) = (at + skipped, self.skip - skipped);
                if self.skip > 0 {
                    return at;
                }
                continue;
            }
            if self.stride == 0 {
                let (skipped, stride) = synchronise(rest);
                self.garbage += skipped as u64;
                (at, self.stride) = (at + skipped, stride);
                if stride == 0 {
                    return at;
                }
                continue;
            }
            if rest.first().is_some_and(|first| *first != SYNC) {
                self.stride = 0;
                continue;
            }
            let Some(packet) = rest.get(..TS) else { return at };
            self.packets.extend_from_slice(packet);
            if self.packets.len() == PAYLOAD {
                payloads.push(std::mem::take(&mut self.packets).into());
            }
            (at, self.skip) = (at + TS, self.stride - TS);
        }
    }
}

/// Finds the first packet. Returns the bytes before it and the distance of packets, zero before the first packet.
fn synchronise(bytes: &[u8]) -> (usize, usize) {
    let synchronous = |at: usize| bytes.get(at).map(|byte| *byte == SYNC);
    for at in 0..bytes.len().saturating_sub(TS) {
        for stride in STRIDES {
            let there = synchronous(at) == Some(true) && synchronous(at + stride) == Some(true);
            // Only ordinary packets are taken without a third one, so that a short rest need not wait.
            let third = synchronous(at + 2 * stride).unwrap_or(stride == TS);
            if there && third {
                return (at, stride);
            }
        }
    }
    // Only a sync byte may still turn out to begin a packet.
    let rest = bytes.len().saturating_sub(LOOK);
    let kept = bytes[rest..].iter().position(|byte| *byte == SYNC);
    (kept.map_or(bytes.len(), |at| rest + at), 0)
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
        fn longer_packets_are_read(
            stride in prop_oneof![Just(192usize), Just(204)], start in 0usize..400, size in 1usize..3000
        ) {
            // M2TS has four bytes before a packet; error correction lies behind it. Reading may begin anywhere.
            let before = if stride == 192 { 4 } else { 0 };
            let (head, tail) = (vec![0; before], vec![0; stride - TS - before]);
            let content = ts(60);
            let packets = content.chunks_exact(TS);
            let stored: Vec<u8> = packets.flat_map(|packet| [&head, packet, &tail].concat()).collect();
            let mut framer = Framer::default();
            let mut out = Vec::new();
            stored[start..].chunks(size).for_each(|chunk| out.extend(framer.push(chunk).concat()));
            out.extend_from_slice(&framer.flush().unwrap_or_default());
            prop_assert!(content.ends_with(&out) && content.len() - out.len() <= 3 * TS);
            prop_assert!(framer.garbage <= stride as u64);
        }

        #[test]
        fn garbage_is_dropped_and_counted(junk in proptest::collection::vec(0u8..0x47, 0..5000)) {
            let mut framer = Framer::default();
            let mut out: Vec<u8> = framer.push(&junk).concat();
            prop_assert!(framer.rest.len() <= LOOK);
            out.extend(framer.push(&ts(20)).concat());
            out.extend_from_slice(&framer.flush().unwrap_or_default());
            prop_assert!(out == ts(20));
            prop_assert_eq!(framer.garbage, junk.len() as u64);
        }
    }
}
