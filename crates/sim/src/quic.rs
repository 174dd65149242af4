//! QUIC's streams, called lanes here because streams are Tor's. `Lanes` is one direction of a connection; its packets
//! are the segments of a [`tcp::Endpoint`](crate::tcp::Endpoint). The byte sequence has the frames in the order of
//! their
//! first transmission. A lane's bytes are delivered once the bytes before them *in the lane* have arrived (RFC 9000,
//! 2.2).

use std::collections::{BTreeMap, VecDeque};

use tidegate_control::units::Time;

use crate::tcp::{Config, Endpoint};

/// Send buffer of a lane. Its writer may go on once half of it is free.
pub(crate) const LANE_BUFFER: u64 = 16 << 10;
/// A STREAM frame's type, stream number, offset and length (RFC 9000, 19.8), at a usual length.
const FRAME_HEADER: u64 = 10;

/// A part of a lane's bytes in the connection's sequence.
#[derive(Debug)]
struct Frame {
    start: u64,
    end: u64,
    lane: u32,
    /// The lane's offset after it.
    upto: u64,
    arrived: bool,
}

impl Frame {
    fn data(&self) -> u64 {
        self.end - self.start - FRAME_HEADER
    }
}

#[derive(Debug, Default)]
struct Lane {
    written: u64,
    sent: u64,
    /// Arrived without a gap, and beyond gaps: disjoint, ascending.
    arrived: u64,
    ahead: Vec<(u64, u64)>,
}

impl Lane {
    fn unsent(&self) -> u64 {
        self.written - self.sent
    }

    /// True if more can be read than before.
    fn arrive(&mut self, from: u64, upto: u64) -> bool {
        if from > self.arrived {
            let at = self.ahead.partition_point(|range| range.0 < from);
            self.ahead.insert(at, (from, upto));
            return false;
        }
        self.arrived = upto;
        while self.ahead.first().is_some_and(|range| range.0 == self.arrived) {
            self.arrived = self.ahead.remove(0).1;
        }
        true
    }
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    lanes: BTreeMap<u32, Lane>,
    /// Frames that the peer has not acknowledged, in order.
    frames: VecDeque<Frame>,
    /// Lanes with something to send, in the order of their turns.
    turns: VecDeque<u32>,
    /// Lanes with writers that may go on.
    roomy: Vec<u32>,
    /// Bytes read while earlier bytes of the connection were missing.
    owed: u64,
}

impl Lanes {
    /// Begins a lane, under a number of its own.
    pub(crate) fn open(&mut self, lane: u32) {
        self.lanes.insert(lane, Lane::default());
    }

    /// Forgets a lane: its unsent bytes are discarded, and arriving bytes are dropped.
    pub(crate) fn close(&mut self, lane: u32) {
        self.lanes.remove(&lane);
        self.turns.retain(|other| *other != lane);
    }

    /// The lanes' numbers.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.lanes.keys().copied()
    }

    /// Free space of a lane's send buffer, in bytes.
    pub(crate) fn space(&self, lane: u32) -> u64 {
        self.lanes.get(&lane).map_or(0, |lane| LANE_BUFFER - lane.unsent())
    }

    /// Appends bytes to a lane; returns how many it took.
    pub(crate) fn write(&mut self, lane: u32, bytes: u64) -> u64 {
        let bytes = bytes.min(self.space(lane));
        let Some(state) = self.lanes.get_mut(&lane).filter(|_| bytes > 0) else { return 0 };
        if state.unsent() == 0 {
            self.turns.push_back(lane);
        }
        state.written += bytes;
        bytes
    }

    /// Bytes written but not in a packet yet.
    pub(crate) fn unsent(&self) -> u64 {
        self.turns.iter().map(|lane| self.lanes[lane].unsent()).sum()
    }

    /// Builds the next packet once the previous one has left: a frame of each lane in turn, while there is room.
    pub(crate) fn fill(&mut self, tcp: &mut Endpoint, config: &Config) {
        if tcp.written() > tcp.transmitted() {
            return;
        }
        let mut room = u64::from(config.mss).min(tcp.send_space());
        while room > FRAME_HEADER
            && let Some(number) = self.turns.pop_front()
        {
            let lane = self.lanes.get_mut(&number).expect("closed lanes have no turn");
            let before = lane.unsent();
            let data = before.min(room - FRAME_HEADER);
            lane.sent += data;
            let start = tcp.written();
            let end = start + tcp.write(FRAME_HEADER + data);
            self.frames.push_back(Frame { start, end, lane: number, upto: lane.sent, arrived: false });
            room -= FRAME_HEADER + data;
            if lane.unsent() > 0 {
                self.turns.push_back(number);
            }
            if before > LANE_BUFFER / 2 && lane.unsent() <= LANE_BUFFER / 2 {
                self.roomy.push(number);
            }
        }
    }

    /// Lanes with writers that may go on since the last call.
    pub(crate) fn take_roomy(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.roomy)
    }

    /// Whether any lane's writer may go on.
    pub(crate) fn any_roomy(&self) -> bool {
        !self.roomy.is_empty()
    }

    /// The peer has acknowledged everything before this offset.
    pub(crate) fn acknowledged(&mut self, offset: u64) {
        while self.frames.front().is_some_and(|frame| frame.arrived && frame.end <= offset) {
            self.frames.pop_front();
        }
    }

    /// The lanes with bytes in a segment, and the range of their offsets.
    pub(crate) fn within(&self, seq: u64, len: u32) -> impl Iterator<Item = (u32, u64, u64)> + '_ {
        self.places(seq, len).map(move |at| {
            let frame = &self.frames[at];
            let from = seq.saturating_sub(frame.start + FRAME_HEADER).min(frame.data());
            let missing = frame.end.saturating_sub(seq + u64::from(len)).min(frame.data());
            (frame.lane, frame.upto - frame.data() + from, frame.upto - missing)
        })
    }

    /// The frames that a segment has bytes of.
    fn places(&self, seq: u64, len: u32) -> std::ops::Range<usize> {
        if len == 0 {
            return 0..0;
        }
        let from = self.frames.partition_point(|frame| frame.end <= seq);
        from..self.frames.partition_point(|frame| frame.start < seq + u64::from(len))
    }

    /// The receiver got a segment; adds the lanes with more bytes to read to `moved`.
    pub(crate) fn arrived(&mut self, tcp: &Endpoint, seq: u64, len: u32, moved: &mut Vec<u32>) {
        for at in self.places(seq, len) {
            let frame = &mut self.frames[at];
            if frame.arrived || !tcp.has(frame.start, frame.end) {
                continue;
            }
            frame.arrived = true;
            self.owed += FRAME_HEADER;
            match self.lanes.get_mut(&frame.lane) {
                Some(lane) => {
                    if lane.arrive(frame.upto - frame.data(), frame.upto) && !moved.contains(&frame.lane) {
                        moved.push(frame.lane);
                    }
                }
                None => self.owed += frame.data(),
            }
        }
    }

    /// Offset up to which a lane's bytes can be read.
    pub(crate) fn delivered_in_order(&self, lane: u32) -> u64 {
        self.lanes.get(&lane).map_or(0, |lane| lane.arrived)
    }

    /// The receiver has read bytes of a lane. Its window opens by as many, unless earlier bytes are missing.
    pub(crate) fn read(&mut self, tcp: &mut Endpoint, config: &Config, now: Time, bytes: u64) {
        self.owed += bytes;
        self.owed -= tcp.read(config, now, self.owed);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_control::units::{Span, Time};

    use super::*;
    use crate::tcp::Segment;

    /// Two ends after their handshake.
    fn connected(config: &Config) -> [Endpoint; 2] {
        let (mut opener, mut peer) = (Endpoint::active(config), Endpoint::passive(config));
        opener.connect(Time::ZERO);
        for _ in 0..4 {
            while let Some(segment) = opener.poll_transmit(config, Time::ZERO) {
                peer.on_segment(config, Time::ZERO, &segment);
            }
            while let Some(segment) = peer.poll_transmit(config, Time::ZERO) {
                opener.on_segment(config, Time::ZERO, &segment);
            }
        }
        [opener, peer]
    }

    fn packets(lanes: &mut Lanes, tcp: &mut Endpoint, config: &Config, now: Time) -> Vec<Segment> {
        let next = || {
            lanes.fill(tcp, config);
            tcp.poll_transmit(config, now)
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_lost_packet_holds_up_its_own_lane_alone() {
        let config = Config { bursts: false, ..Config::default() };
        let [mut from, mut to] = connected(&config);
        let mut lanes = Lanes::default();
        for lane in [7, 9] {
            lanes.open(lane);
            assert_eq!(lanes.write(lane, 2 * 1438), 2 * 1438);
        }
        let sent = packets(&mut lanes, &mut from, &config, Time::ZERO);
        let of: Vec<u32> =
            sent.iter().map(|segment| lanes.within(segment.seq, segment.len).next().unwrap().0).collect();
        assert_eq!(of, [7, 9, 7, 9], "a packet each, in turn");
        // The first is lost.
        for segment in &sent[1..] {
            to.on_segment(&config, Time::ZERO, segment);
            lanes.arrived(&to, segment.seq, segment.len, &mut Vec::new());
        }
        assert_eq!((lanes.delivered_in_order(7), lanes.delivered_in_order(9)), (0, 2 * 1438));
        to.on_segment(&config, Time::ZERO, &sent[0]);
        let mut moved = Vec::new();
        lanes.arrived(&to, sent[0].seq, sent[0].len, &mut moved);
        assert_eq!(moved, [7]);
        assert_eq!(lanes.delivered_in_order(7), 2 * 1438);
        // Bytes read before the gap closed count now.
        lanes.read(&mut to, &config, Time::ZERO, 4 * 1438);
        assert_eq!(to.readable(), 0);
    }

    #[test]
    fn a_closed_lane_is_not_read_and_blocks_no_other_lane() {
        let config = Config { bursts: false, initial_window: 20, ..Config::default() };
        let [mut from, mut to] = connected(&config);
        let mut lanes = Lanes::default();
        lanes.open(1);
        lanes.open(2);
        assert_eq!(lanes.write(1, u64::MAX), LANE_BUFFER);
        assert_eq!((lanes.write(1, 1), lanes.space(1)), (0, 0));
        lanes.write(2, 100);
        let first = packets(&mut lanes, &mut from, &config, Time::ZERO);
        lanes.close(1);
        for segment in &first {
            to.on_segment(&config, Time::ZERO, segment);
            lanes.arrived(&to, segment.seq, segment.len, &mut Vec::new());
        }
        assert_eq!((lanes.delivered_in_order(1), lanes.delivered_in_order(2)), (0, 100));
        lanes.read(&mut to, &config, Time::ZERO, 100);
        assert_eq!((to.readable(), lanes.unsent()), (0, 0));
        let later = Time::ZERO + Span::from_secs(1);
        let acknowledgement = to.poll_transmit(&config, later).unwrap();
        from.on_segment(&config, later, &acknowledgement);
        lanes.acknowledged(from.acknowledged());
        assert_eq!(lanes.frames.len(), 0);
    }
}
