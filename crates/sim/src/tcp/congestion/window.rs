//! The congestion window and the contract of algorithms that move it.

use tidegate_control::units::{Span, Time};

/// The congestion window, in segments.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Window {
    /// Segments allowed in the network.
    pub cwnd: u32,
    /// Below this the window doubles each round trip.
    pub ssthresh: u32,
    /// Segments acknowledged towards the next increase.
    pub count: u32,
}

/// No threshold found yet.
pub(in crate::tcp) const UNBOUNDED: u32 = u32::MAX >> 1;

/// A window never grows beyond this many segments.
pub(super) const CEILING: u32 = 1 << 24;

impl Window {
    pub(crate) fn new(cwnd: u32) -> Window {
        Window { cwnd: cwnd.clamp(1, CEILING), ssthresh: UNBOUNDED, count: 0 }
    }

    /// Whether the window doubles each round trip.
    pub(crate) fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Slow start: grows by what was acknowledged up to the threshold; gives what is left over.
    pub(crate) fn slow_start(&mut self, acked: u32) -> u32 {
        let cwnd = self.cwnd.saturating_add(acked).min(self.ssthresh).min(CEILING);
        let left = acked.saturating_sub(cwnd - self.cwnd);
        self.cwnd = cwnd;
        left
    }

    /// Grows by one segment for every `per_segment` acknowledged.
    pub(crate) fn grow(&mut self, per_segment: u32, acked: u32) {
        let per_segment = per_segment.max(1);
        if self.count >= per_segment {
            self.count = 0;
            self.cwnd += 1;
        }
        self.count += acked;
        if self.count >= per_segment {
            self.cwnd += self.count / per_segment;
            self.count %= per_segment;
        }
        self.cwnd = self.cwnd.min(CEILING);
    }
}

/// An acknowledgement, as the algorithm sees it.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Sample {
    /// When it arrived.
    pub now: Time,
    /// Segments newly delivered.
    pub acked: u32,
    /// Round-trip time of the latest of them, if it was sent once.
    pub rtt: Option<Span>,
    /// First offset not acknowledged.
    pub una: u64,
    /// First offset never sent.
    pub next: u64,
    /// The sender fills its window: it may grow.
    pub limited: bool,
    /// Not in recovery: it may grow.
    pub may_grow: bool,
}

/// A congestion control algorithm.
pub(in crate::tcp) trait Algorithm {
    /// Whether loss leaves the window as it is.
    const IGNORES_LOSS: bool = false;

    /// Data was acknowledged.
    fn on_ack(&mut self, window: &mut Window, sample: &Sample);

    /// Segments were lost; returns the window at the end of recovery.
    fn threshold_after_loss(&mut self, window: &Window) -> u32;

    /// The retransmission timer fired.
    fn on_timeout(&mut self, _now: Time) {}

    /// Sending begins again after a pause.
    fn on_restart(&mut self, _pause: Span) {}
}
