//! Reductions of the window, and taking them back.

use super::super::congestion::UNBOUNDED;
use super::super::sender::Sender;
use super::state::{News, Phase, Recovery};

impl Sender {
    pub(super) fn recovery(&mut self) -> &mut Recovery {
        self.recovery.get_or_insert_default()
    }

    pub(super) fn enter_recovery(&mut self) {
        let reduced = self.phase == Phase::Reduced || self.phase == Phase::Recovery;
        let outstanding = self.flight.retransmitted;
        let threshold = self.current_threshold();
        let recovery = self.recovery();
        recovery.prior_threshold = 0;
        recovery.undo = true;
        recovery.undo_retransmissions = if outstanding > 0 { outstanding as i32 } else { -1 };
        recovery.new_data_only = false;
        if !reduced {
            recovery.prior_threshold = threshold;
            self.begin_reduction();
        }
        self.phase = Phase::Recovery;
    }

    pub(super) fn begin_reduction(&mut self) {
        let high = self.flight.next;
        let cwnd = self.window.cwnd;
        let recovery = self.recovery();
        recovery.high = high;
        recovery.probe_end = None;
        recovery.prior_cwnd = cwnd;
        recovery.prr_delivered = 0;
        recovery.prr_out = 0;
        self.window.count = 0;
        self.window.ssthresh = self.control.threshold_after_loss(&self.window);
    }

    /// Proportional rate reduction: sends so that the window reaches the threshold within a round trip.
    pub(super) fn reduce(&mut self, delivered: u32, newly_lost: u32, advanced: bool) {
        if delivered == 0 || self.control.has_own_window() {
            return;
        }
        let in_network = self.flight.in_network();
        let threshold = self.window.ssthresh;
        let Some(recovery) = &mut self.recovery else { return };
        if recovery.prior_cwnd == 0 {
            return;
        }
        recovery.prr_delivered += delivered;
        let (gone, out) = (u64::from(recovery.prr_delivered), u64::from(recovery.prr_out));
        let mut allowed = if in_network > threshold {
            (u64::from(threshold) * gone).div_ceil(u64::from(recovery.prior_cwnd)).saturating_sub(out)
        } else {
            let mut allowed = gone.saturating_sub(out).max(u64::from(delivered));
            if advanced && newly_lost == 0 {
                allowed += 1;
            }
            allowed.min(u64::from(threshold - in_network))
        };
        if out == 0 {
            allowed = allowed.max(1); // the first retransmission does not wait
        }
        self.window.cwnd = in_network + allowed as u32;
    }

    pub(super) fn end_reduction(&mut self) {
        let reducing = self.phase == Phase::Reduced || self.recovery().undo;
        if self.window.ssthresh < UNBOUNDED && reducing && !self.control.has_own_window() {
            self.window.cwnd = self.window.ssthresh;
        }
    }

    /// The threshold that a reduction now would leave standing.
    pub(crate) fn current_threshold(&self) -> u32 {
        if self.phase == Phase::Reduced || self.phase == Phase::Recovery {
            self.window.ssthresh
        } else {
            self.window.ssthresh.max(self.window.cwnd / 2 + self.window.cwnd / 4)
        }
    }

    /// The peer's echo is older than the first retransmission: the original had arrived (Eifel).
    pub(super) fn packet_was_delayed(&mut self, news: &News) -> bool {
        let first = self.recovery().first_retransmission;
        first != 0 && news.echo != 0 && news.echo.wrapping_sub(first) > 1 << 31
    }

    pub(super) fn may_undo(&mut self, news: &News) -> bool {
        self.recovery().undo && (self.recovery().undo_retransmissions == 0 || self.packet_was_delayed(news))
    }

    pub(super) fn undo_if_spurious(&mut self, news: &News) {
        if self.may_undo(news) {
            self.undo(false);
        }
    }

    /// Takes a reduction back.
    pub(super) fn undo(&mut self, unmark: bool) {
        if unmark {
            self.flight.unmark_lost();
        }
        let recovery = self.recovery();
        let (cwnd, threshold) = (recovery.prior_cwnd, recovery.prior_threshold);
        recovery.undo = false;
        if threshold > 0 {
            self.control.on_undo(&mut self.window, cwnd);
            self.window.ssthresh = self.window.ssthresh.max(threshold);
        }
    }
}
