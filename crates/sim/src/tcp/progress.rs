//! What acknowledgements tell a congestion control that sets a rate.

use tidegate_control::units::Time;

use super::config::Config;
use super::congestion::{Progress, Repair};
use super::delivery_rate::Rate;
use super::flight::Delivery;
use super::recovery::Phase;
use super::sender::Sender;

impl Sender {
    /// An acknowledgement has come, and nothing has been done about it.
    pub(super) fn before_ack(&mut self) {
        if let Some(rates) = &mut self.rates {
            rates.prior_in_network = self.flight.in_network();
        }
    }

    /// What an acknowledgement says, once the segments that it reveals as lost are known.
    pub(super) fn progress_of(
        &mut self,
        config: &Config,
        now: Time,
        deliveries: [&Delivery; 2],
        newly_lost: u32,
    ) -> Option<Progress> {
        let min = self.rtt.min();
        let oldest =
            if self.recovery.is_some() { self.flight.oldest_sent() } else { self.flight.head_sent() };
        let rates = self.rates.as_mut()?;
        let rate = rates.deliveries.on_delivered(now, deliveries, min);
        rates.deliveries.forget(oldest.unwrap_or(now));
        // A lone segment waits for a second one (Linux: `FLAG_ACK_MAYBE_DELAYED`).
        let delayed = deliveries[0].packets == 1 && rates.prior_in_network == 1;
        self.progress(config, newly_lost, delayed, rate)
    }

    /// Deliveries and losses so far, for a congestion control that sets a rate.
    pub(super) fn progress(
        &self,
        config: &Config,
        losses: u32,
        delayed: bool,
        rate: Option<Rate>,
    ) -> Option<Progress> {
        let rates = self.rates.as_ref()?;
        Some(Progress {
            rate,
            app_limited: rates.deliveries.app_limited(),
            total: rates.deliveries.delivered,
            at: rates.deliveries.delivered_at,
            losses,
            lost_total: rates.deliveries.lost,
            prior_in_network: rates.prior_in_network,
            in_network: self.flight.in_network(),
            delayed,
            window_limits: self.limited,
            repair: match self.phase {
                Phase::Recovery => Repair::Recovery,
                Phase::Loss => Repair::Loss,
                Phase::Open | Phase::Disorder | Phase::Reduced => Repair::None,
            },
            smoothed: self.rtt.smoothed(),
            paced_until: rates.pacing.next,
            mss: config.mss,
        })
    }

    /// Tells the congestion control of the losses found since it was told last.
    pub(super) fn tell_losses(&mut self, now: Time) {
        let Some(rates) = &mut self.rates else { return };
        let total = rates.deliveries.delivered;
        for loss in rates.losses.drain(..) {
            self.control.on_loss(&self.window, now, total, &loss);
        }
    }

    /// When pacing lets the next burst leave, if that is later than now.
    pub(super) fn paced_until(&self, now: Time) -> Option<Time> {
        let rates = self.rates.as_ref()?;
        Some(rates.pacing.next).filter(|next| *next > now)
    }
}
