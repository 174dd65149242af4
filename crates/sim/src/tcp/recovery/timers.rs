//! Timers: reordering, loss probe, retransmission, zero window.

use tidegate_control::units::{Span, Time};

use super::super::config::Config;
use super::super::flight::Run;
use super::super::sender::{Sender, Timer};
use super::state::Phase;

impl Sender {
    /// The timer of data fired.
    pub(crate) fn on_timer(&mut self, config: &Config, now: Time) {
        let kind = self.timer_kind;
        self.timer = Time::NEVER;
        match kind {
            Timer::Reorder => self.on_reorder_timer(config, now),
            Timer::LossProbe => self.on_probe_timer(config, now),
            Timer::Retransmit => self.on_retransmit_timer(config, now),
            Timer::ZeroWindow => {
                self.window_probe = true;
                self.unanswered = self.unanswered.saturating_add(1);
                self.backoff = self.backoff.saturating_add(1);
                let due = now + self.timeout(config);
                self.set_timer(Timer::ZeroWindow, due);
            }
        }
    }

    fn on_reorder_timer(&mut self, config: &Config, now: Time) {
        let in_network = self.flight.in_network();
        let (newly_lost, _, due) = self.detect(now);
        self.tell_losses(now);
        if self.flight.in_network() != in_network && self.phase != Phase::Recovery {
            self.enter_recovery();
            self.reduce(1, newly_lost, false);
        }
        match due {
            Some(due) => self.set_timer(Timer::Reorder, due),
            None => self.rearm(config, now),
        }
    }

    fn on_probe_timer(&mut self, config: &Config, now: Time) {
        if self.flight.packets == 0 {
            return;
        }
        self.timer_kind = Timer::LossProbe;
        let next = self.flight.next;
        let mss = u64::from(config.mss.max(1));
        let new_data = self.write_end > next && self.window_end >= self.write_end.min(next + mss);
        let recovery = self.recovery();
        if recovery.probe_end.is_none() {
            recovery.probe = true;
            recovery.probe_retransmitted = false;
            recovery.probe_end = Some(if new_data { next + 1 } else { next });
        }
        // Counted from when the oldest segment left, at least a tick from now.
        let head = self.flight.head_sent().unwrap_or(now);
        let due = (head + self.timeout(config)).max(now + Span::from_millis(1));
        self.set_timer(Timer::Retransmit, due);
    }

    fn on_retransmit_timer(&mut self, config: &Config, now: Time) {
        if self.flight.packets == 0 {
            return;
        }
        let again = self.unanswered > 0;
        let new_recovery = self.phase < Phase::Recovery;
        let (una, next) = (self.flight.una, self.flight.next);
        let age = match &self.recovery {
            Some(recovery) if recovery.latest_rtt > Span::ZERO => recovery.latest_rtt,
            _ => self.rtt.smoothed(),
        };
        let rates = &mut self.rates;
        let lose = |start, run: &Run| rates.iter_mut().for_each(|rates| rates.on_lost(start, run));
        self.flight.lose_all(now, age.0, lose);
        self.tell_losses(now);
        // A repeated timeout of one loss keeps the threshold of the first (RFC 5681, section 3.1).
        let first = self.phase <= Phase::Disorder
            || self.recovery().high <= una
            || (self.phase == Phase::Loss && !again);
        if first {
            let threshold = self.current_threshold();
            let cwnd = self.window.cwnd;
            let outstanding = self.flight.retransmitted;
            self.window.ssthresh = self.control.threshold_after_loss(&self.window);
            let recovery = self.recovery();
            recovery.prior_threshold = threshold;
            recovery.prior_cwnd = cwnd;
            recovery.undo = true;
            recovery.undo_retransmissions = if outstanding > 0 { outstanding as i32 } else { -1 };
            recovery.first_retransmission = 0;
        }
        let in_network = self.flight.in_network();
        let progress = self.progress(config, 1, false, None);
        self.control.on_timeout(&mut self.window, now, in_network, progress.as_ref());
        self.window.count = 0;
        self.phase = Phase::Loss;
        let recovery = self.recovery();
        recovery.high = next;
        recovery.probe_end = None;
        recovery.probe = false;
        recovery.new_data_only = false;
        recovery.frto = new_recovery || again;
        self.timeouts += 1;
        self.unanswered = self.unanswered.saturating_add(1);
        self.backoff = self.backoff.saturating_add(1);
        let due = now + self.timeout(config);
        self.set_timer(Timer::Retransmit, due);
    }
}
