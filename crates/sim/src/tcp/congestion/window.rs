//! The congestion window and the contract of algorithms that move it.

use tidegate_control::units::{Span, Time};

use super::super::delivery_rate::{Loss, Rate};

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
pub(in crate::tcp) struct Sample<'a> {
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
    /// For algorithms that set a rate.
    pub progress: Option<&'a Progress>,
}

/// How far losses are from being repaired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::tcp) enum Repair {
    /// Nothing is missing.
    #[default]
    None,
    /// Lost segments are being sent again.
    Recovery,
    /// The retransmission timer has fired.
    Loss,
}

/// Deliveries and losses, as algorithms that set a rate see them.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Progress {
    /// The rate sample of this acknowledgement, if it gave one.
    pub rate: Option<Rate>,
    /// The application had nothing to send.
    pub app_limited: bool,
    /// Segments delivered since the connection began.
    pub total: u64,
    /// When the last of them was.
    pub at: Time,
    /// Segments found to be lost now,
    pub losses: u32,
    /// and since the connection began.
    pub lost_total: u64,
    /// Segments in the network before this acknowledgement,
    pub prior_in_network: u32,
    /// and after it.
    pub in_network: u32,
    /// The acknowledgement may have waited for a second segment.
    pub delayed: bool,
    /// The window limits the sender in this round trip.
    pub window_limits: bool,
    /// What the sender repairs.
    pub repair: Repair,
    /// Smoothed round-trip time; zero before the first sample.
    pub smoothed: Span,
    /// When pacing lets the next burst leave.
    pub paced_until: Time,
    /// Payload bytes of a full segment.
    pub mss: u32,
}

/// Sending begins again with nothing under way.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Restart {
    /// When.
    pub now: Time,
    /// Time since something was sent.
    pub pause: Span,
    /// For algorithms that set a rate.
    pub progress: Option<Progress>,
}

/// A congestion control algorithm.
pub(in crate::tcp) trait Algorithm {
    /// Whether the algorithm alone moves the window: a loss, a pause or an unused window does not (Linux:
    /// `cong_control`).
    const OWN_WINDOW: bool = false;
    /// Whether it needs rate samples and sets a pacing rate.
    const BY_RATE: bool = false;

    /// Data was acknowledged. A window should grow only if the sender fills it (`sample.limited`) and is not in recovery
    /// (`sample.may_grow`); slow start is up to the algorithm ([`Window::slow_start`]).
    fn on_ack(&mut self, window: &mut Window, sample: &Sample);

    /// Segments were lost; returns the window at the end of recovery, which becomes `ssthresh`. The first timeout of a loss
    /// calls this before `on_timeout`.
    fn threshold_after_loss(&mut self, window: &Window) -> u32;

    /// The retransmission timer fired, with so many segments left in the network.
    fn on_timeout(&mut self, window: &mut Window, _now: Time, in_network: u32, _progress: Option<&Progress>) {
        window.cwnd = in_network + 1;
    }

    /// Segments were lost, `total` having been delivered. For algorithms that set a rate; before the acknowledgement or timeout
    /// that reveals it.
    fn on_loss(&mut self, _window: &Window, _now: Time, _total: u64, _loss: &Loss) {}

    /// The loss was none: `prior` was the window before it.
    fn on_undo(&mut self, window: &mut Window, prior: u32) {
        window.cwnd = window.cwnd.max(prior);
    }

    /// Sending begins again after a pause.
    fn on_restart(&mut self, _window: &mut Window, _restart: &Restart) {}

    /// Payload bytes per second at which bursts leave; zero: as fast as the window allows.
    fn pacing_rate(&self) -> f64 {
        0.0
    }
}
