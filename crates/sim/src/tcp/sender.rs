//! The sending half: what is written, what may leave, and the timers of both.

use tidegate_control::units::{Span, Time};

use super::config::{Buffer, Config};
use super::congestion::{Control, Progress, Restart, Sample, Window};
use super::flight::Flight;
use super::pacing::UNBURST_RATE;
use super::rate_control::RateControl;
use super::receiver::millis;
use super::recovery::{Phase, Recovery};
use super::rtt::RttEstimator;
use super::segment::{Flags, Segment};
use super::small_queue::SmallQueue;

/// The sender's retransmission timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// An acknowledgement, before everything is taken for lost.
    Retransmit,
    /// An acknowledgement, before a probe asks for one (RFC 8985, 7).
    LossProbe,
    /// A segment that may only be late (RFC 8985, 6.2).
    Reorder,
    /// The peer's window to open.
    ZeroWindow,
}

/// Linux's two timer ticks of slack on a loss probe.
const PROBE_SLACK: Span = Span::from_millis(2);

/// Segments further apart than this do not wait for company.
const BURST_GAP: Span = Span::from_millis(1);
/// A 1024th of a second in nanoseconds, per cent.
const PER_CENT_MS: u64 = 9_766;
/// The largest burst that the kernel hands to a device at once.
const OFFLOAD_BYTES: u64 = 65_536;

#[derive(Clone, Debug)]
pub(super) struct Sender {
    pub flight: Flight,
    /// Offset after the last byte written (a FIN counts).
    pub write_end: u64,
    /// Right edge of the peer's window.
    pub window_end: u64,
    pub timer: Time,
    last_sent: Time,
    /// The window was last in full use, or cut for want of use, at this time.
    used_at: Time,
    usage_end: u64,
    pub rtt: RttEstimator,
    pub window: Window,
    pub control: Control,
    pub recovery: Option<Box<Recovery>>,
    max_packets: u32,
    used_packets: u32,
    /// Payload bytes that the send buffer holds.
    buffer: u32,
    pub retransmissions: u32,
    pub timeouts: u32,
    pub timer_kind: Timer,
    pub phase: Phase,
    /// Consecutive timeouts without an answer.
    pub unanswered: u8,
    /// Doublings of the timeout.
    pub backoff: u8,
    pub reordering_seen: bool,
    /// No more bytes will be written.
    pub fin: bool,
    /// The peer's closed window is to be probed.
    pub window_probe: bool,
    /// The window limits the sender in this round trip.
    pub limited: bool,
    /// Offset after the last segment that left and was not full (Linux: `snd_sml`).
    short_end: u64,
    /// Segments of the present burst that may still leave.
    burst: u16,
    /// Something has left since the last time that nothing more could.
    sending: bool,
    /// Bytes in the host's own uplink, where these are limited.
    pub uplink: Option<Box<SmallQueue>>,
    /// Where the congestion control sets a rate.
    pub rates: Option<Box<RateControl>>,
    /// When to go on, if something waits for the uplink or for its time to leave.
    pub resumes: Time,
}

impl Sender {
    pub(crate) fn new(config: &Config) -> Sender {
        let control = Control::new(config.congestion);
        Sender {
            flight: Flight::default(),
            write_end: 0,
            window_end: 0,
            timer: Time::NEVER,
            last_sent: Time::ZERO,
            used_at: Time::ZERO,
            usage_end: 0,
            rtt: RttEstimator::default(),
            window: Window::new(config.initial_window),
            rates: control.goes_by_rate().then(|| Box::new(RateControl::new())),
            resumes: Time::NEVER,
            control,
            recovery: None,
            max_packets: 0,
            used_packets: 0,
            buffer: match config.send_buffer {
                Buffer::Fixed(bytes) => bytes,
                Buffer::Auto { initial, max } => initial.min(max),
            },
            retransmissions: 0,
            timeouts: 0,
            timer_kind: Timer::Retransmit,
            phase: Phase::Open,
            unanswered: 0,
            backoff: 0,
            reordering_seen: false,
            fin: false,
            window_probe: false,
            limited: false,
            short_end: 0,
            burst: 0,
            sending: false,
            uplink: config.small_queues.then(|| Box::new(SmallQueue::new())),
        }
    }

    pub(crate) fn look(&self) -> u64 {
        let head = self.flight.head_sent().unwrap_or(Time::ZERO);
        let window = u64::from(self.window.cwnd ^ self.max_packets);
        head.0 ^ self.flight.una ^ self.write_end ^ self.timer.0 ^ self.rtt.smoothed().0 ^ window
    }

    /// A SYN or SYN-ACK leaves.
    pub(crate) fn on_syn_sent(&mut self, config: &Config, now: Time) {
        self.last_sent = now;
        let due = now + self.timeout(config);
        self.set_timer(Timer::Retransmit, due);
    }

    /// A SYN or SYN-ACK went unanswered.
    pub(crate) fn on_syn_timer(&mut self) {
        self.timer = Time::NEVER;
        self.timeouts += 1;
        self.retransmissions += 1;
        self.unanswered = self.unanswered.saturating_add(1);
        self.backoff = self.backoff.saturating_add(1);
    }

    /// The handshake is complete; its round trip is the first sample, unless it is ambiguous.
    pub(crate) fn on_established(&mut self, config: &Config, now: Time) {
        if self.unanswered == 0 {
            let sample = now.since(self.last_sent);
            self.rtt.observe_min(now, sample);
            self.rtt.observe(config, sample, 0, 0);
        }
        self.timer = Time::NEVER;
        self.unanswered = 0;
        self.backoff = 0;
        self.last_sent = now;
        self.tune_buffer(config);
    }

    /// The connection existed before the run, without a round-trip sample.
    pub(crate) fn on_standing(&mut self, config: &Config, now: Time) {
        self.last_sent = now;
        self.tune_buffer(config);
    }

    /// Bytes written, without the FIN.
    pub(crate) fn written(&self) -> u64 {
        self.write_end - u64::from(self.fin)
    }

    pub(crate) fn space(&self) -> u64 {
        if self.fin {
            return 0;
        }
        u64::from(self.buffer).saturating_sub(self.write_end - self.flight.una)
    }

    /// Whether the kernel wakes a writer.
    pub(crate) fn writable(&self, config: &Config) -> bool {
        !self.fin && self.space() >= u64::from(self.buffer.div_ceil(config.wake_writer.max(1)))
    }

    pub(crate) fn write(&mut self, bytes: u64) -> u64 {
        let taken = bytes.min(self.space());
        self.write_end += taken;
        taken
    }

    pub(crate) fn close(&mut self) {
        if !self.fin {
            self.fin = true;
            self.write_end += 1;
        }
    }

    /// Lets the buffer grow with the window (Linux doubles it for recovery, and counts a segment's memory
    /// as the next power of two).
    pub(crate) fn tune_buffer(&mut self, config: &Config) {
        if let Buffer::Auto { max, .. } = config.send_buffer {
            let per_segment = u64::from(config.mss + 640).next_power_of_two() + 256;
            // BBR may double its window during a recovery.
            let windows = if self.rates.is_some() { 3 } else { 2 };
            let need = (windows * u64::from(self.window.cwnd) * per_segment).min(u64::from(max));
            self.buffer = self.buffer.max(need as u32);
        }
    }

    /// The retransmission timeout as it stands.
    pub(crate) fn timeout(&self, config: &Config) -> Span {
        let base = self.rtt.timeout(config).0;
        Span(base.checked_shl(u32::from(self.backoff.min(30))).unwrap_or(u64::MAX)).min(config.rto_max)
    }

    pub(crate) fn set_timer(&mut self, kind: Timer, at: Time) {
        self.timer_kind = kind;
        self.timer = at;
    }

    /// Waits a full timeout from now, or, if the wait so far was for something else, from when the oldest
    /// segment left.
    pub(crate) fn rearm(&mut self, config: &Config, now: Time) {
        let Some(head) = self.flight.head_sent() else {
            self.timer = Time::NEVER;
            return;
        };
        let timeout = self.timeout(config);
        let from_head = matches!(self.timer_kind, Timer::Reorder | Timer::LossProbe);
        let from = if from_head && self.timer != Time::NEVER { head } else { now };
        self.set_timer(Timer::Retransmit, (from + timeout).max(now));
    }

    /// Sets the loss probe where it makes sense, the retransmission timer otherwise. `advancing`: the
    /// oldest segment is a new one.
    pub(crate) fn arm(&mut self, config: &Config, now: Time, advancing: bool) {
        if self.flight.packets == 0 {
            self.timer = Time::NEVER;
        } else if self.phase == Phase::Open || self.phase == Phase::Reduced {
            let smoothed = self.rtt.smoothed();
            let mut wait = if smoothed == Span::ZERO {
                config.rto_initial
            } else if self.flight.packets == 1 {
                smoothed * 2 + config.rto_min
            } else {
                smoothed * 2 + PROBE_SLACK
            };
            let from = if advancing { now } else { self.flight.head_sent().unwrap_or(now) };
            let left = (from + self.timeout(config)).since(now);
            if left > Span::ZERO {
                wait = wait.min(left);
            }
            self.set_timer(Timer::LossProbe, now + wait);
        } else {
            self.rearm(config, now);
        }
    }

    /// Whether all data has left, and a [`poll`](Self::poll) has noted that.
    fn is_idle(&self) -> bool {
        self.flight.next == self.write_end
            && self.flight.to_retransmit == 0
            && self.recovery.is_none()
            && !self.sending
            && !self.window_probe
    }

    /// Whether nothing waits to leave. Ends the present burst then.
    #[inline]
    pub(crate) fn rests(&mut self) -> bool {
        let idle = self.is_idle();
        if idle {
            self.burst = 0;
            self.resumes = Time::NEVER;
        }
        idle
    }

    /// The next data segment or retransmission, if one may leave now.
    pub(crate) fn poll(&mut self, config: &Config, now: Time) -> Option<Segment> {
        if self.rests() {
            return None;
        }
        let mss = u64::from(config.mss.max(1));
        if std::mem::take(&mut self.window_probe) {
            return self.probe_window(config, now, mss);
        }
        // A loss probe leaves even if the window is full (RFC 8985, section 7.3).
        let forced = self.recovery.as_mut().is_some_and(|recovery| std::mem::take(&mut recovery.probe));
        let room = self.flight.in_network() < self.window.cwnd;
        let held_back = !forced && self.is_held_back(now, mss);
        if !forced && room && !held_back && self.flight.to_retransmit > 0 && !self.holds_retransmissions() {
            let oldest = self.flight.una;
            let (start, end) = self.flight.retransmit_lost(now, mss)?;
            self.on_retransmission(now, end.saturating_sub(start), mss);
            if start == oldest && self.timer_kind != Timer::Reorder {
                let timeout = self.timeout(config);
                self.set_timer(Timer::Retransmit, now + timeout);
            }
            self.note_sent(now, start, end, false);
            return Some(self.segment(start, end));
        }
        let mut gathering = false;
        if (room && !held_back || forced)
            && let Some(end) = self.next_segment_end(mss)
            && (forced || !self.waits_to_fill(config, end, mss))
            && {
                gathering = config.bursts && !forced && self.gathers(now, mss);
                !gathering
            }
        {
            return Some(self.send_new(config, now, mss, end));
        }
        if forced && let Some((start, end)) = self.flight.retransmit_last(now, mss) {
            if let Some(recovery) = &mut self.recovery {
                recovery.probe_retransmitted = true;
            }
            self.on_retransmission(now, end - start, mss);
            self.note_sent(now, start, end, false);
            return Some(self.segment(start, end));
        }
        self.rest(config, now, room, gathering, forced);
        None
    }

    /// Nothing more leaves now.
    fn rest(&mut self, config: &Config, now: Time, room: bool, gathering: bool, forced: bool) {
        let unsent = self.flight.next < self.write_end;
        self.burst = 0;
        let limited = !room || gathering;
        if self.sending || (unsent && limited) {
            self.validate(config, now, limited);
        }
        if std::mem::take(&mut self.sending) && !forced {
            self.arm(config, now, false);
        }
        if unsent && self.flight.packets == 0 && self.timer == Time::NEVER {
            let wait = self.timeout(config);
            self.set_timer(Timer::ZeroWindow, now + wait);
        }
        if let Some(rates) = &mut self.rates
            && room
            && self.write_end - self.flight.next < u64::from(config.mss)
            && self.flight.to_retransmit == 0
        {
            rates.deliveries.on_app_limited(self.flight.in_network());
        }
    }

    /// Whether pacing or the limit of bytes in the host's own uplink stops the sender.
    fn is_held_back(&mut self, now: Time, mss: u64) -> bool {
        if self.uplink.is_none() && self.rates.is_none() {
            return false;
        }
        let smoothed = self.rtt.smoothed();
        let limit = 2 * mss * self.burst_size(mss, smoothed);
        let waits = self.flight.to_retransmit > 0 || self.flight.next < self.write_end;
        // A burst is handed over as a whole.
        let free = self.burst > 0 || smoothed == Span::ZERO || !waits;
        let full = self.uplink.as_mut().and_then(|uplink| uplink.above(now, limit)).filter(|_| !free);
        let paced = self.paced_until(now).filter(|_| waits && self.burst == 0);
        let resumes = full.max(paced);
        self.resumes = resumes.unwrap_or(Time::NEVER);
        resumes.is_some()
    }

    /// Whether to wait for more acknowledgements, so that a larger burst can leave (Linux: TSO sizing and
    /// deferral). The kernel decides so only between segments that follow each other closely.
    fn gathers(&mut self, now: Time, mss: u64) -> bool {
        if self.burst > 0 {
            self.burst -= 1;
            return false;
        }
        let unsent = self.write_end - self.flight.next;
        let smoothed = self.rtt.smoothed();
        if unsent <= mss || smoothed == Span::ZERO {
            return false;
        }
        let room = u64::from(self.window.cwnd - self.flight.in_network());
        let limit = room.min((self.window_end - self.flight.next) / mss);
        let full = self.burst_size(mss, smoothed);
        let recent = now.since(self.last_sent) <= BURST_GAP;
        // Waiting while a third of the window could leave would stall the ACK clock (Linux: `tcp_tso_should_defer`).
        let third = u64::from(self.window.cwnd).min((self.window_end - self.flight.una) / mss) / 3;
        if self.phase < Phase::Recovery
            && recent
            && limit < full
            && limit < third
            && self.flight.head_sent().is_some_and(|head| now.since(head) >= smoothed / 2)
            && !(self.fin && unsent < limit * mss)
        {
            return true;
        }
        self.burst = (limit.min(full).max(1) - 1).min(u64::from(u16::MAX)) as u16;
        false
    }

    /// Segments in about a millisecond at the rate that the window allows, at least two; more where the
    /// round trip is shorter than half a millisecond or so.
    fn burst_size(&self, mss: u64, smoothed: Span) -> u64 {
        let rate = self.control.pacing_rate();
        if rate > 0.0 {
            return self.paced_burst_size(mss, rate);
        }
        let window = u64::from(self.window.cwnd) * mss;
        let ratio = if self.window.cwnd < self.window.ssthresh / 2 { 200 } else { 120 };
        let bytes = window * ratio * PER_CENT_MS / smoothed.0.max(1) + self.near_burst();
        (bytes.min(OFFLOAD_BYTES) / mss).max(2)
    }

    /// Segments in a 1024th of a second at the pacing rate; at a low rate each leaves alone.
    fn paced_burst_size(&self, mss: u64, rate: f64) -> u64 {
        let bytes = (rate / 1024.0) as u64 + self.near_burst();
        (bytes.min(OFFLOAD_BYTES) / mss).max(if rate < UNBURST_RATE { 1 } else { 2 })
    }

    /// Bytes that a burst has more where the receiver is near.
    fn near_burst(&self) -> u64 {
        let shift = (self.rtt.min().0 / 1_000) >> 9;
        if shift < 32 { OFFLOAD_BYTES >> shift } else { 0 }
    }

    /// Packets of a burst at the present rate. Their payload fits into one IP packet's 16 bits.
    pub(crate) fn burst_packets(&self, config: &Config) -> u32 {
        let mss = u64::from(config.mss.max(1));
        self.burst_size(mss, self.rtt.smoothed()).min(u64::from(u16::MAX) / mss).max(1) as u32
    }

    /// As much as the peer's window takes, or a question without data.
    fn probe_window(&mut self, config: &Config, now: Time, mss: u64) -> Option<Segment> {
        let next = self.flight.next;
        if next >= self.write_end {
            return None;
        }
        let end = self.window_end.min(self.write_end).min(next + mss);
        if end > next {
            return Some(self.send_new(config, now, mss, end));
        }
        Some(Segment { seq: next, flags: Flags::PROBE, ..Segment::default() })
    }

    /// Where the next new segment would end, if data and the peer's window allow one.
    fn next_segment_end(&self, mss: u64) -> Option<u64> {
        let start = self.flight.next;
        let unsent = self.write_end - start;
        // A FIN behind a full segment goes alone, so that no segment is longer than the maximum.
        let end = start + unsent.min(mss);
        (unsent > 0 && end <= self.window_end).then_some(end)
    }

    /// Nagle's rule in Minshall's form: a segment that is not full waits for the acknowledgement of the one before
    /// it that was not full.
    fn waits_to_fill(&self, config: &Config, end: u64, mss: u64) -> bool {
        config.nagle && !self.fin && end - self.flight.next < mss && self.short_end > self.flight.una
    }

    fn send_new(&mut self, config: &Config, now: Time, mss: u64, end: u64) -> Segment {
        let start = self.flight.next;
        if end - start < mss {
            self.short_end = end;
        }
        if self.flight.packets == 0 {
            self.on_restart(config, now);
        }
        let first = self.flight.packets == 0;
        self.flight.send(end, now, mss);
        self.note_sent(now, start, end, first);
        if let Some(recovery) = &mut self.recovery {
            recovery.prr_out += 1;
        }
        self.last_sent = now;
        self.sending = true;
        if first || self.timer_kind == Timer::LossProbe {
            self.rearm(config, now);
        }
        self.segment(start, end)
    }

    fn note_sent(&mut self, now: Time, start: u64, end: u64, idle: bool) {
        if let Some(rates) = &mut self.rates {
            rates.on_sent(now, start, end, idle, self.flight.in_network());
        }
    }

    /// Sending begins with nothing under way.
    fn on_restart(&mut self, config: &Config, now: Time) {
        let pause = now.since(self.last_sent);
        self.timer = Time::NEVER;
        if self.last_sent == Time::ZERO {
            self.used_at = now;
            return;
        }
        let progress = self.progress(config, 0, false, None);
        self.control.on_restart(&mut self.window, &Restart { now, pause, progress });
        self.set_pace();
        let timeout = self.timeout(config);
        if !config.idle_restart || pause <= timeout || self.control.has_own_window() {
            return;
        }
        let restart = config.initial_window.min(self.window.cwnd);
        let threshold = self.current_threshold();
        let mut cwnd = self.window.cwnd;
        // RFC 2861: halves the window for each timeout that has passed.
        let mut left = pause - timeout;
        while left > Span::ZERO && cwnd > restart {
            cwnd /= 2;
            left = left - timeout;
        }
        self.window.ssthresh = threshold;
        self.window.cwnd = cwnd.max(restart).max(1);
        self.used_at = now;
        self.used_packets = 0;
    }

    fn segment(&self, start: u64, end: u64) -> Segment {
        let fin = self.fin && end == self.write_end;
        let len = (end - start - u64::from(fin)) as u32;
        Segment {
            seq: start,
            len,
            flags: if fin { Flags::FIN } else { Flags::default() },
            ..Segment::default()
        }
    }

    fn on_retransmission(&mut self, now: Time, bytes: u64, mss: u64) {
        let packets = bytes.div_ceil(mss).max(1) as u32;
        self.retransmissions += packets;
        self.last_sent = now;
        if let Some(recovery) = &mut self.recovery {
            recovery.prr_out += packets;
            recovery.undo_retransmissions = recovery.undo_retransmissions.max(0) + packets as i32;
            if recovery.first_retransmission == 0 {
                recovery.first_retransmission = millis(now);
            }
        }
    }

    /// Notes how much of the window is used, and cuts it where it was not (congestion window validation).
    fn validate(&mut self, config: &Config, now: Time, limited: bool) {
        let packets = self.flight.packets;
        if self.flight.una >= self.usage_end || limited || (!self.limited && packets > self.max_packets) {
            self.limited = limited;
            self.max_packets = packets;
            self.usage_end = self.flight.next;
        }
        if self.is_limited() {
            self.used_packets = 0;
            self.used_at = now;
            return;
        }
        self.used_packets = self.used_packets.max(packets);
        if config.idle_restart && config.validate_window && now.since(self.used_at) >= self.timeout(config) {
            if self.phase == Phase::Open && self.space() > 0 && !self.control.has_own_window() {
                let used = self.used_packets.max(config.initial_window);
                if used < self.window.cwnd {
                    self.window.ssthresh = self.current_threshold();
                    // RFC 2861: halfway between the window and the part that was used.
                    self.window.cwnd = self.window.cwnd.midpoint(used);
                }
                self.used_packets = 0;
            }
            self.used_at = now;
        }
    }

    fn is_limited(&self) -> bool {
        self.limited || (self.window.in_slow_start() && self.window.cwnd < self.max_packets.saturating_mul(2))
    }

    /// Sets the pace that the congestion control wants.
    fn set_pace(&mut self) {
        if let Some(rates) = &mut self.rates {
            rates.pacing.rate = self.control.pacing_rate();
        }
    }

    /// Lets the congestion control see an acknowledgement.
    pub(crate) fn grow(
        &mut self,
        config: &Config,
        now: Time,
        acked: u32,
        rtt: Option<Span>,
        may_grow: bool,
        progress: Option<&Progress>,
    ) {
        let sample = Sample {
            now,
            acked,
            rtt,
            una: self.flight.una,
            next: self.flight.next,
            limited: !config.validate_window || self.is_limited(),
            may_grow,
            progress,
        };
        self.control.on_ack(&mut self.window, &sample);
        self.set_pace();
    }
}
