//! The short-term model: present deliveries, and bounds that losses outside of probes set until the next probe.

use super::super::super::delivery_rate::Rate;

/// The share of a bound that a round trip with losses leaves.
pub(super) const BETA: f64 = 0.7;

/// Rates are segments per second, volumes are segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShortTerm {
    /// Bounds; infinite while no loss has set them (`bw_shortterm`, `inflight_shortterm`).
    pub rate: f64,
    pub inflight: f64,
    /// The most that was delivered in this round trip.
    pub latest_rate: f64,
    pub latest_inflight: f64,
    /// The round trip of losses ends when a segment sent after so many deliveries is acknowledged.
    round_end: u64,
    /// The present acknowledgement ends it.
    pub round_start: bool,
    loss_in_round: bool,
}

impl ShortTerm {
    pub(crate) fn new() -> ShortTerm {
        ShortTerm {
            rate: f64::INFINITY,
            inflight: f64::INFINITY,
            latest_rate: 0.0,
            latest_inflight: 0.0,
            round_end: 0,
            round_start: false,
            loss_in_round: false,
        }
    }

    /// An acknowledgement without a rate sample ends no round trip.
    pub(crate) fn skip(&mut self) {
        self.round_start = false;
    }

    /// A rate sample has come (`UpdateLatestDeliverySignals`); `total` segments are delivered.
    pub(crate) fn observe(&mut self, sample: &Rate, rate: f64, total: u64) {
        self.latest_rate = self.latest_rate.max(rate);
        self.latest_inflight = self.latest_inflight.max(sample.delivered as f64);
        self.round_start = sample.prior_delivered >= self.round_end;
        if self.round_start {
            self.round_end = total;
        }
    }

    /// The acknowledgement is dealt with (`AdvanceLatestDeliverySignals`).
    pub(crate) fn advance(&mut self, sample: &Rate, rate: f64) {
        if self.round_start {
            self.latest_rate = rate;
            self.latest_inflight = sample.delivered as f64;
        }
    }

    /// A segment is lost. Returns whether it is the first one of its round trip (`NoteLoss`).
    pub(crate) fn on_loss(&mut self, total: u64) -> bool {
        let first = !std::mem::replace(&mut self.loss_in_round, true);
        if first {
            self.round_end = total;
        }
        first
    }

    /// Once per round trip: lowers the bounds if segments were lost and the sender does not probe
    /// (`AdaptLowerBoundsFromCongestion`).
    pub(crate) fn adapt(&mut self, probing: bool, max_rate: f64, cwnd: u32) {
        if !self.round_start {
            return;
        }
        if std::mem::take(&mut self.loss_in_round) && !probing {
            let before = |bound: f64, first: f64| if bound.is_infinite() { first } else { bound };
            self.rate = self.latest_rate.max(BETA * before(self.rate, max_rate));
            self.inflight = self.latest_inflight.max(BETA * before(self.inflight, cwnd.into()));
        }
    }

    /// Forgets losses and deliveries of a probe that is over (`ResetCongestionSignals`).
    pub(crate) fn reset_signals(&mut self) {
        self.loss_in_round = false;
        self.latest_rate = 0.0;
        self.latest_inflight = 0.0;
    }

    /// Removes the bounds (`ResetShortTermModel`).
    pub(crate) fn release(&mut self) {
        self.rate = f64::INFINITY;
        self.inflight = f64::INFINITY;
    }

    /// The losses were spurious. `rate` and `inflight` are the bounds before them.
    pub(crate) fn undo(&mut self, rate: f64, inflight: f64) {
        self.loss_in_round = false;
        self.rate = self.rate.max(rate);
        self.inflight = self.inflight.max(inflight);
    }
}
