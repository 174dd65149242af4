//! The receiving half: reassembly, the receive window, and when to acknowledge.

use tidegate_control::units::{Span, Time};

use super::config::{Buffer, Config};
use super::segment::{Flags, Segment};

/// Data beyond a gap; exists only while there is something to report.
#[derive(Clone, Debug, Default)]
struct Ahead {
    /// Disjoint, ascending, not touching.
    ranges: Vec<(u64, u64)>,
    /// An offset in each of the ranges that grew last, the latest first.
    recent: [u64; 4],
    /// Bytes that arrived twice, to be reported once.
    duplicate: Option<(u64, u64)>,
}

/// A peer can make at most this many gaps; data beyond is refused.
const MAX_RANGES: usize = 4096;

#[derive(Clone, Debug)]
pub(super) struct Receiver {
    /// Next offset expected (a FIN counts).
    pub next: u64,
    /// Offset up to which the application has read.
    pub consumed: u64,
    /// Right edge of the window last advertised.
    edge: u64,
    /// `next` as last acknowledged.
    acknowledged: u64,
    /// When a delayed acknowledgement is due.
    pub ack_due: Time,
    /// Last arrival of data.
    last_arrival: Time,
    ahead: Option<Box<Ahead>>,
    /// Offset of the FIN, `u64::MAX` while unknown.
    fin: u64,
    /// The peer's timestamp to echo.
    pub stamp: u32,
    /// Payload bytes that the buffer holds.
    limit: u32,
    /// Bytes read in the round trip before,
    round_bytes: u32,
    /// when this one began, in milliseconds,
    round_start_ms: u32,
    /// with how much read,
    round_consumed: u64,
    /// and the round-trip time as the receiver sees it, in milliseconds.
    rtt_ms: u32,
    quick_acks: u8,
    pub ack_now: bool,
    /// Data flows both ways: acknowledgements ride on it.
    pub interactive: bool,
    /// A segment that was not full waits for its acknowledgement.
    short: bool,
}

/// Effects of a segment's data.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reception {
    pub bytes: u64,
    pub closed: bool,
}

impl Receiver {
    pub(crate) fn new(config: &Config) -> Receiver {
        let limit = match config.receive_buffer {
            Buffer::Fixed(bytes) => bytes,
            Buffer::Auto { initial, max } => initial.min(max),
        };
        Receiver {
            next: 0,
            consumed: 0,
            edge: u64::from(limit),
            acknowledged: 0,
            ack_due: Time::NEVER,
            last_arrival: Time::ZERO,
            ahead: None,
            fin: u64::MAX,
            stamp: 0,
            limit,
            round_bytes: config.initial_window.saturating_mul(config.mss).min(limit),
            round_start_ms: 0,
            round_consumed: 0,
            rtt_ms: 0,
            quick_acks: config.quick_acks.min(255) as u8,
            ack_now: false,
            interactive: false,
            short: false,
        }
    }

    pub(crate) fn look(&self) -> u64 {
        self.next ^ self.fin ^ u64::from(self.rtt_ms)
    }

    /// Payload bytes in order: the FIN is not one.
    pub(crate) fn in_order(&self) -> u64 {
        self.next - u64::from(self.next > self.fin)
    }

    /// Whether everything between these offsets has arrived.
    pub(crate) fn has(&self, start: u64, end: u64) -> bool {
        let start = start.max(self.next);
        let ranges = self.ahead.iter().flat_map(|ahead| &ahead.ranges);
        start >= end || ranges.into_iter().any(|range| range.0 <= start && end <= range.1)
    }

    /// Whether the peer's last byte has arrived in order.
    pub(crate) fn closed(&self) -> bool {
        self.next > self.fin
    }

    /// Keeps the timestamp to echo: that of the segment that moved the window last (RFC 7323, 4.3).
    pub(crate) fn note_stamp(&mut self, segment: &Segment) {
        if segment.seq <= self.acknowledged && segment.stamp.wrapping_sub(self.stamp) < 1 << 31 {
            self.stamp = segment.stamp;
        }
    }

    /// Data or a FIN (or a probe of a closed window, which asks for an acknowledgement).
    pub(crate) fn on_data(
        &mut self,
        config: &Config,
        now: Time,
        segment: &Segment,
        rtt_ms: Option<u32>,
    ) -> Reception {
        let fin = segment.flags.has(Flags::FIN);
        let (start, end) = (segment.seq, segment.seq.saturating_add(u64::from(segment.len) + u64::from(fin)));
        if segment.flags.has(Flags::PROBE) {
            self.ack_now = true;
        }
        if start == end {
            return Reception::default();
        }
        let known_end = if self.fin == u64::MAX { u64::MAX } else { self.fin + 1 };
        if end > known_end || start > self.edge.saturating_add(1) || end > self.edge.saturating_add(1) {
            self.ack_now = true; // beyond the window or the end: refused
            return Reception::default();
        }
        if end <= self.next {
            self.report_duplicate(start, end);
            return Reception::default();
        }
        self.pace(config, now, rtt_ms);
        if start > self.next {
            self.hold(start, end);
            if fin && self.fin == u64::MAX {
                self.fin = end - 1;
            }
            self.ack_now = true;
            return Reception::default();
        }
        if fin {
            self.fin = end - 1;
        }
        let before = self.in_order();
        self.next = end;
        let had_gap = self.ahead.is_some();
        self.join();
        // Of a train, the last packet counts.
        self.short = segment.len < config.mss || !segment.len.is_multiple_of(config.mss);
        let unacknowledged = self.next - self.acknowledged;
        let window_moves = self.in_order() == self.consumed || self.offered_edge(config) >= self.edge;
        if (unacknowledged > u64::from(config.mss) && window_moves)
            || had_gap
            || fin
            || config.delayed_ack == Span::ZERO
            || (self.quick_acks > 0 && !self.interactive)
        {
            self.ack_now = true;
        } else if self.ack_due == Time::NEVER {
            self.ack_due = now + config.delayed_ack;
        }
        Reception { bytes: self.in_order() - before, closed: self.closed() }
    }

    /// Watches the rhythm of arrivals: a pause longer than any timeout means that the peer restarts slowly,
    /// so that the next acknowledgements should not wait.
    fn pace(&mut self, config: &Config, now: Time, rtt_ms: Option<u32>) {
        if let Some(sample) = rtt_ms {
            self.rtt_ms = if self.rtt_ms == 0 { sample } else { (self.rtt_ms * 7 + sample) / 8 }.max(1);
        }
        if now.since(self.last_arrival) > config.rto_min + Span::from_millis(u64::from(self.rtt_ms)) {
            self.quick_acks = config.quick_acks.min(255) as u8;
        }
        self.last_arrival = now;
    }

    /// Data left: it carries an acknowledgement, and soon after an arrival it is an answer.
    pub(crate) fn on_sent_data(&mut self, config: &Config, now: Time) {
        if self.next > 0 && now.since(self.last_arrival) < config.delayed_ack {
            self.interactive = true;
        }
    }

    /// The window that a SYN offers.
    pub(crate) fn offer_first_window(&self, segment: &mut Segment) {
        segment.window = self.edge as u32;
    }

    /// The delayed acknowledgement is due. A timer that fires shows that the connection is not interactive.
    pub(crate) fn on_ack_timer(&mut self) {
        self.ack_due = Time::NEVER;
        self.ack_now = true;
        self.interactive = false;
    }

    fn report_duplicate(&mut self, start: u64, end: u64) {
        self.ahead.get_or_insert_default().duplicate = Some((start, end));
        self.ack_now = true;
        self.interactive = false;
        self.quick_acks = self.quick_acks.max(2);
    }

    /// Keeps bytes that arrived beyond a gap.
    fn hold(&mut self, start: u64, end: u64) {
        let ahead = self.ahead.get_or_insert_default();
        let from = ahead.ranges.partition_point(|range| range.1 < start);
        let to = ahead.ranges.partition_point(|range| range.0 <= end);
        if from == to && ahead.ranges.len() >= MAX_RANGES {
            return;
        }
        let mut joined = (start, end);
        for range in &ahead.ranges[from..to] {
            if range.0 <= start && range.1 >= end {
                ahead.duplicate = Some((start, end));
            }
            joined = (joined.0.min(range.0), joined.1.max(range.1));
        }
        ahead.ranges.splice(from..to, [joined]);
        let kept = ahead.recent.iter().position(|&o| o >= joined.0 && o < joined.1).unwrap_or(3);
        ahead.recent[..=kept].rotate_right(1);
        ahead.recent[0] = start;
    }

    /// Moves on through what was held.
    fn join(&mut self) {
        let Some(ahead) = &mut self.ahead else { return };
        let reached = ahead.ranges.partition_point(|range| range.0 <= self.next);
        if reached > 0 {
            self.next = self.next.max(ahead.ranges[reached - 1].1);
            ahead.ranges.drain(..reached);
        }
        if ahead.ranges.is_empty() && ahead.duplicate.is_none() {
            self.ahead = None;
        }
    }

    /// The application reads. Gives how much there was to read.
    pub(crate) fn read(&mut self, config: &Config, now: Time, bytes: u64) -> u64 {
        let taken = bytes.min(self.in_order() - self.consumed);
        self.consumed += taken;
        if taken == 0 {
            return 0;
        }
        if self.ack_due != Time::NEVER
            && (self.next - self.acknowledged > u64::from(config.mss)
                || (self.short && !self.interactive && self.consumed == self.in_order()))
        {
            self.ack_now = true;
        }
        self.tune(config, now);
        let left = self.edge.saturating_sub(self.next);
        if 2 * left <= u64::from(self.limit) && self.offered_edge(config) - self.next >= (2 * left).max(1) {
            self.ack_now = true;
        }
        taken
    }

    /// Lets the buffer grow to twice what the application reads in a round trip, and more while that
    /// grows (Linux's dynamic right-sizing).
    fn tune(&mut self, config: &Config, now: Time) {
        let Buffer::Auto { max, .. } = config.receive_buffer else { return };
        let now_ms = millis(now);
        if self.rtt_ms == 0 || now_ms.wrapping_sub(self.round_start_ms) < self.rtt_ms {
            return;
        }
        let read = (self.consumed - self.round_consumed).min(u64::from(max));
        let before = u64::from(self.round_bytes.max(1));
        if read > before {
            let need = 2 * read + 4 * read * (read - before) / before;
            self.limit = self.limit.max(need.min(u64::from(max)) as u32);
            self.round_bytes = read as u32;
        }
        self.round_consumed = self.consumed;
        self.round_start_ms = now_ms;
    }

    /// The right edge that can be offered without a silly window (RFC 9293, 3.8.6.2.2).
    fn offered_edge(&self, config: &Config) -> u64 {
        let edge = self.consumed + u64::from(self.limit);
        let free = edge.saturating_sub(self.next);
        let worthwhile = u64::from(config.mss.min(self.limit / 2));
        if free >= worthwhile { self.edge.max(edge) } else { self.edge }
    }

    /// Fills in the acknowledgement of a segment that leaves now.
    pub(crate) fn acknowledge(&mut self, config: &Config, segment: &mut Segment) {
        self.edge = self.offered_edge(config);
        self.acknowledged = self.next;
        self.ack_due = Time::NEVER;
        self.ack_now = false;
        self.short = false;
        self.quick_acks = self.quick_acks.saturating_sub(1);
        segment.ack = self.next;
        segment.window = self.edge.saturating_sub(self.next).min(u64::from(u32::MAX)) as u32;
        segment.echo = self.stamp;
        segment.flags = segment.flags.with(Flags::ACK);
        let Some(ahead) = &mut self.ahead else { return };
        let mut used = 0;
        // A D-SACK goes first (RFC 2883), then the most recent blocks (RFC 2018, section 4).
        if let Some((start, end)) = ahead.duplicate.take() {
            segment.flags = segment.flags.with(Flags::DUPLICATE);
            segment.sack[0] = (start.wrapping_sub(self.next) as u32, end.wrapping_sub(self.next) as u32);
            used = 1;
        }
        for &offset in &ahead.recent {
            let place = ahead.ranges.partition_point(|range| range.1 <= offset);
            if let Some(&(start, end)) = ahead.ranges.get(place)
                && start <= offset
                && used < 3
            {
                let block = ((start - self.next) as u32, (end - self.next) as u32);
                if !segment.sack[..used].contains(&block) {
                    segment.sack[used] = block;
                    used += 1;
                }
            }
        }
        segment.blocks = used as u8;
        if ahead.ranges.is_empty() {
            self.ahead = None;
        }
    }
}

/// A time in milliseconds on the wrapping clock of timestamps, which does not begin at zero.
pub(super) fn millis(now: Time) -> u32 {
    (now.0 / 1_000_000 + 1) as u32
}
