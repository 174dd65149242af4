//! Acknowledgements, and the losses that they reveal.

use tidegate_control::units::{Span, Time};

use super::super::config::Config;
use super::super::flight::{Delivery, Run};
use super::super::receiver::millis;
use super::super::segment::{Flags, Segment};
use super::super::sender::{Sender, Timer};
use super::state::{News, Phase};

impl Sender {
    /// The ACK side of a segment. Gives the offsets newly acknowledged.
    pub(crate) fn on_ack(&mut self, config: &Config, now: Time, segment: &Segment) -> u64 {
        let mss = u64::from(config.mss.max(1));
        let before = self.flight.una;
        let ack = segment.ack;
        // An ACK of bytes never sent is invalid (RFC 9293, 3.10.7.4).
        if ack > self.flight.next {
            return 0;
        }
        self.window_end = self.window_end.max(ack.saturating_add(u64::from(segment.window)));
        if ack >= before {
            self.unanswered = 0;
        }
        // The answer to a window probe acknowledges nothing; it may only open the window.
        if self.timer_kind == Timer::ZeroWindow && self.timer != Time::NEVER && self.flight.packets == 0 {
            if self.window_end >= self.write_end.min(self.flight.next + mss) {
                self.timer = Time::NEVER;
                self.backoff = 0;
            }
            return 0;
        }
        // Most segments with data acknowledge nothing new, and no loss waits for news.
        let is_news = ack != before || segment.blocks > 0 || self.phase != Phase::Open;
        if !is_news && self.recovery.is_none() && self.rates.is_none() {
            return 0;
        }
        self.before_ack();
        let high = self.recovery.as_ref().map_or(0, |recovery| recovery.high);
        let cumulative = self.flight.acknowledge(ack, mss, high);
        let mut selective = Delivery::default();
        let duplicate = segment.flags.has(Flags::DUPLICATE);
        let blocks = &segment.sack[..usize::from(segment.blocks.min(3))];
        // The first block of a D-SACK reports a duplicate, not new data (RFC 2883).
        for &(from, to) in &blocks[usize::from(duplicate).min(blocks.len())..] {
            let (start, end) = (ack + u64::from(from), ack + u64::from(to));
            self.flight.selectively_acknowledge(start, end, mss, high, &mut selective);
        }
        let delivered = cumulative.packets + selective.packets;
        let rtt = self.sample_rtt(config, now, &cumulative, &selective, segment.echo);
        let news = News {
            advanced: ack > before,
            sacked: selective.packets,
            duplicate,
            repeated: ack == before && selective.packets == 0 && !duplicate && segment.len == 0,
            echo: segment.echo,
            original: cumulative.original || selective.original,
        };
        if selective.packets > 0 && self.recovery.is_none() {
            self.recovery = Some(Box::default());
        }
        let mut newly_lost = 0;
        let mut reorder_due = None;
        if self.recovery.is_some() {
            self.reordering_seen |= cumulative.reordered || selective.reordered;
            self.advance_rack(now, &cumulative);
            self.advance_rack(now, &selective);
            self.on_probe_answered(ack, &news);
            (newly_lost, reorder_due) = self.judge(now, &news);
        }
        if let Some(due) = reorder_due {
            self.set_timer(Timer::Reorder, due);
        } else if cumulative.packets > 0 || (selective.packets > 0 && self.head_is_older(&selective)) {
            self.arm(config, now, true);
        }
        let progress = self.progress_of(config, now, [&cumulative, &selective], newly_lost);
        self.tell_losses(now);
        if self.phase == Phase::Recovery || self.phase == Phase::Reduced {
            self.reduce(delivered, newly_lost, news.advanced);
            self.grow(config, now, delivered, rtt, false, progress.as_ref());
        } else if delivered > 0 {
            self.grow(config, now, delivered, rtt, ack > before, progress.as_ref());
        }
        if ack > before {
            self.tune_buffer(config);
        }
        self.forget_recovery();
        self.flight.una - before
    }

    /// A selective acknowledgement postpones the timer only if it is for data sent before the oldest
    /// segment was last sent.
    fn head_is_older(&self, selective: &Delivery) -> bool {
        match (selective.sent_once, self.flight.head_sent()) {
            (Some((first, _)), Some(head)) => first < head,
            _ => false,
        }
    }

    /// Gives the round-trip time of the latest segment for the congestion control.
    fn sample_rtt(
        &mut self,
        config: &Config,
        now: Time,
        cumulative: &Delivery,
        selective: &Delivery,
        echo: u32,
    ) -> Option<Span> {
        let (mut sample, mut latest) = (None, None);
        // Karn's rule: a retransmitted segment gives an ambiguous sample (RFC 6298, section 3).
        if let (Some((first, last)), false) = (cumulative.sent_once, cumulative.again) {
            sample = Some(now.since(first));
            latest = Some(now.since(last));
        }
        if let Some((first, last)) = selective.sent_once {
            sample = sample.or(Some(now.since(first)));
            latest = Some(now.since(last));
        }
        // The timestamp resolves the ambiguity, at a resolution of 1 ms (RFC 7323, section 4).
        if sample.is_none() && cumulative.packets > 0 && echo != 0 {
            let ms = millis(now).wrapping_sub(echo);
            if ms < 1 << 22 {
                sample = Some(Span::from_millis(u64::from(ms.max(1))));
                latest = sample;
            }
        }
        let (sample, latest) = (sample?, latest?);
        self.rtt.observe_min(now, latest);
        self.rtt.observe(config, sample, self.flight.una, self.flight.next);
        self.backoff = 0;
        Some(latest)
    }

    fn advance_rack(&mut self, now: Time, delivery: &Delivery) {
        let Some((sent, end, again)) = delivery.latest else { return };
        let rtt = now.since(sent);
        if again && rtt < self.rtt.min() {
            return; // too soon to be an answer to the retransmission
        }
        let Some(recovery) = &mut self.recovery else { return };
        recovery.latest_rtt = rtt;
        if (sent, end) > (recovery.latest_sent, recovery.latest_end) {
            recovery.latest_sent = sent;
            recovery.latest_end = end;
        }
    }

    /// How long RACK waits for a segment that may be late.
    fn reorder_window(&self) -> Span {
        if !self.reordering_seen && (self.phase >= Phase::Recovery || self.flight.sacked >= 3) {
            return Span::ZERO;
        }
        let steps = self.recovery.as_ref().map_or(1, |recovery| recovery.reorder_steps.max(1));
        (self.rtt.min() / 4 * u64::from(steps)).min(self.rtt.smoothed())
    }

    /// Marks what must be lost; gives how much, whether retransmissions were, and when to look again.
    pub(super) fn detect(&mut self, now: Time) -> (u32, bool, Option<Time>) {
        let Some(recovery) = &self.recovery else { return (0, false, None) };
        let age = (recovery.latest_rtt + self.reorder_window()).0;
        let (sent, end) = (recovery.latest_sent, recovery.latest_end);
        if sent == Time::ZERO && end == 0 {
            return (0, false, None);
        }
        let rates = &mut self.rates;
        let lose = |start, run: &Run| rates.iter_mut().for_each(|rates| rates.on_lost(start, run));
        self.flight.detect_lost(sent, end, now, age, lose)
    }

    /// The state machine: gives the segments newly lost and when RACK wants to look again.
    fn judge(&mut self, now: Time, news: &News) -> (u32, Option<Time>) {
        let una = self.flight.una;
        let dubious = news.sacked > 0 || news.duplicate || self.phase != Phase::Open || news.repeated;
        if !dubious {
            return (0, None);
        }
        let high = self.recovery().high;
        if self.phase == Phase::Open {
            self.recovery().first_retransmission = 0;
        // Everything sent before the loss has arrived: the episode ends.
        } else if una >= high {
            match self.phase {
                Phase::Reduced if una != high => {
                    self.end_reduction();
                    self.phase = Phase::Open;
                }
                Phase::Recovery => {
                    self.undo_if_spurious(news);
                    self.phase = Phase::Open;
                    self.end_reduction();
                }
                _ => {}
            }
        }
        // A D-SACK shows that a retransmission was needless: the network reorders, so RACK waits longer.
        if news.duplicate && self.recovery().undo_retransmissions > 0 {
            self.recovery().undo_retransmissions -= 1;
            self.reordering_seen = true;
            let steps = self.recovery().reorder_steps;
            self.recovery().reorder_steps = steps.max(1).saturating_add(1);
        }
        let lost;
        match self.phase {
            Phase::Recovery => {
                if news.advanced && self.packet_was_delayed(news) && self.recovery().undo {
                    if self.flight.retransmitted == 0 {
                        self.undo(true);
                        self.phase = Phase::Disorder;
                    }
                    return (0, None);
                }
                if self.recovery().undo && self.recovery().undo_retransmissions == 0 {
                    self.undo(false);
                    self.settle();
                }
                lost = self.detect(now);
                if self.phase != Phase::Recovery && self.flight.lost > 0 {
                    self.enter_recovery();
                }
            }
            Phase::Loss => {
                self.continue_loss(news);
                lost = self.detect(now);
                if self.phase == Phase::Open || lost.1 {
                    self.judge_open();
                }
            }
            _ => {
                if self.phase <= Phase::Disorder
                    && self.recovery().undo
                    && self.recovery().undo_retransmissions == 0
                {
                    self.undo(false);
                }
                lost = self.detect(now);
                self.judge_open();
            }
        }
        (lost.0, lost.2)
    }

    fn judge_open(&mut self) {
        if self.flight.lost > 0 {
            self.enter_recovery();
        } else if self.phase != Phase::Reduced {
            self.settle();
        }
    }

    /// Open if everything is accounted for, Disorder otherwise.
    fn settle(&mut self) {
        let phase = if self.flight.sacked + self.flight.lost + self.flight.retransmitted > 0 {
            Phase::Disorder
        } else {
            Phase::Open
        };
        if self.phase != phase {
            self.phase = phase;
            let next = self.flight.next;
            self.recovery().high = next;
        }
    }

    /// Progress after a timeout.
    fn continue_loss(&mut self, news: &News) {
        let (una, next) = (self.flight.una, self.flight.next);
        let recovered = una >= self.recovery().high;
        self.recovery().new_data_only = false;
        if news.advanced && self.may_undo(news) {
            self.undo(true);
            self.phase = Phase::Open;
            return;
        }
        // F-RTO (RFC 5682): was the timeout spurious?
        if self.recovery().frto {
            if news.original {
                self.undo_spurious_timeout();
                return;
            }
            if next > self.recovery().high {
                if news.sacked > 0 || news.repeated {
                    self.recovery().frto = false;
                }
            } else if news.advanced && !recovered {
                self.recovery().high = next;
                // Step 2b: new data first; its acknowledgements tell whether the originals were lost.
                if self.write_end > next && self.window_end > next {
                    self.recovery().new_data_only = true;
                    return;
                }
                self.recovery().frto = false;
            }
        }
        if recovered {
            self.undo_if_spurious(news);
            self.phase = Phase::Open;
        }
    }

    fn undo_spurious_timeout(&mut self) {
        self.undo(true);
        self.recovery().frto = false;
        self.phase = Phase::Open;
    }

    /// F-RTO lets new data leave before retransmissions.
    pub(crate) fn holds_retransmissions(&self) -> bool {
        self.recovery.as_ref().is_some_and(|recovery| recovery.new_data_only)
    }

    fn on_probe_answered(&mut self, ack: u64, news: &News) {
        let Some(end) = self.recovery().probe_end else { return };
        if ack < end {
            return;
        }
        if !self.recovery().probe_retransmitted || news.duplicate {
            self.recovery().probe_end = None; // the original arrived as well, or there was only one
        } else if ack > end {
            // The probe repaired a loss that nothing else noticed: one reduction.
            self.begin_reduction();
            self.phase = Phase::Reduced;
            self.end_reduction();
            self.settle();
        } else if news.repeated {
            self.recovery().probe_end = None;
        }
    }

    /// Frees what is needed only around a loss, once an acknowledgement beyond it has come.
    fn forget_recovery(&mut self) {
        let flight = &self.flight;
        if self.phase == Phase::Open
            && flight.sacked + flight.lost + flight.retransmitted == 0
            && let Some(recovery) = &self.recovery
            && flight.una > recovery.high
            && !recovery.probe
            && recovery.probe_end.is_none()
        {
            self.recovery = None;
        }
    }
}
