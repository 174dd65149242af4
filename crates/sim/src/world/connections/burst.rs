//! Gathers the segments of a burst into trains (segmentation offload).

use crate::packet::Train;
use crate::tcp::{Config, Segment};

/// Consecutive segments that leave as one train. They differ only in their place in the stream, and all are full except
/// the last.
pub(super) struct Burst {
    /// Most packets of a train.
    packets: u32,
    open: Option<Segment>,
}

impl Burst {
    /// No segments yet.
    pub(crate) fn new(packets: u32) -> Burst {
        Burst { packets, open: None }
    }

    /// Adds a segment; returns the trains that it completes.
    pub(crate) fn push(&mut self, segment: Segment, config: &Config) -> [Option<Segment>; 2] {
        let before = match &mut self.open {
            Some(open) if self.packets > open.packets(config) && follows(open, &segment) => {
                open.len += segment.len;
                open.flags = segment.flags;
                None
            }
            open => open.replace(segment),
        };
        let is_complete =
            segment.len < config.mss || self.open.is_some_and(|open| open.packets(config) >= self.packets);
        [before, if is_complete { self.open.take() } else { None }]
    }

    /// The last train, if it is not complete.
    pub(crate) fn rest(self) -> Option<Segment> {
        self.open
    }
}

/// Whether a segment may join a train, which has only full segments.
fn follows(train: &Segment, next: &Segment) -> bool {
    let joined = Segment { seq: train.seq, len: train.len, ..*next };
    next.len > 0 && next.seq == train.seq + u64::from(train.len) && joined == *train
}

/// Sizes of the packets of a train.
pub(super) fn sizes(segment: &Segment, config: &Config) -> Train {
    let (packets, header) = (segment.packets(config), segment.header_bytes(config));
    let last = segment.len - (packets - 1) * config.mss;
    Train { packets, full: header + if packets > 1 { config.mss } else { last }, last: header + last }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::Flags;

    const MSS: u32 = 1_000;

    fn trains(packets: u32, segments: &[Segment]) -> Vec<(u64, u32)> {
        let config = Config { mss: MSS, ..Config::default() };
        let mut burst = Burst::new(packets);
        let mut all: Vec<Segment> =
            segments.iter().flat_map(|segment| burst.push(*segment, &config)).flatten().collect();
        all.extend(burst.rest());
        all.iter().map(|train| (train.seq, train.len)).collect()
    }

    fn data(seq: u64, len: u32) -> Segment {
        Segment { seq, len, flags: Flags::ACK, ..Segment::default() }
    }

    #[test]
    fn full_segments_join_up_to_the_limit() {
        let full: Vec<Segment> = (0..5).map(|n| data(1_000 * n, MSS)).collect();
        assert_eq!(trains(2, &full), [(0, 2_000), (2_000, 2_000), (4_000, 1_000)]);
        assert_eq!(trains(1, &full[..2]), [(0, 1_000), (1_000, 1_000)]);
        assert_eq!(trains(9, &full), [(0, 5_000)]);
    }

    #[test]
    fn a_short_segment_ends_a_train() {
        let segments = [data(0, MSS), data(1_000, 10), data(1_010, MSS), data(2_010, 0)];
        assert_eq!(trains(9, &segments), [(0, 1_010), (1_010, 1_000), (2_010, 0)]);
    }

    #[test]
    fn gaps_and_flags_part_trains() {
        let fin = Segment { flags: Flags::ACK.with(Flags::FIN), ..data(3_000, 5) };
        let window = Segment { window: 7, ..data(4_000, MSS) };
        let segments = [data(0, MSS), data(2_000, MSS), fin, data(3_005, MSS), window];
        let expected = [(0, 1_000), (2_000, 1_000), (3_000, 5), (3_005, 1_000), (4_000, 1_000)];
        assert_eq!(trains(9, &segments), expected);
    }

    #[test]
    fn every_packet_of_a_train_has_headers() {
        let config = Config { mss: MSS, header_bytes: 52, ..Config::default() };
        assert_eq!(sizes(&data(0, 2_010), &config), Train { packets: 3, full: 1_052, last: 62 });
        assert_eq!(sizes(&data(0, 0), &config), Train { packets: 1, full: 52, last: 52 });
        assert_eq!(data(0, 2_010).wire_bytes(&config), 2_010 + 3 * 52);
    }
}
