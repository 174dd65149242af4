//! Tor-Vegas: a congestion window that follows the round-trip times of SENDMEs.
//!
//! Proposal 324 and tor-spec, "Congestion control", as relays run it since 0.4.8.
//!
//! The queue that a circuit keeps in the network is its window less its bandwidth-delay product,
//! `window * least RTT / smoothed RTT`. Below `alpha` the window grows, above `beta` it shrinks, above
//! `delta` it drops at once; slow start ends when the queue reaches `gamma`.

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::keys;
use tidegate_control::units::{Span, Time};

use super::{Control, Violation, Window};
use tidegate_control::registry::Origin;

/// Source and oracles.
pub(crate) const ORIGIN: Origin = Origin {
    system: "Tor-Vegas",
    source: "proposal 324; congestion_control_vegas.c of tor 0.4.8",
    oracles: &["crates/proto/src/control/vegas/vectors.rs: the_window_moves_as_in_tors_test_vectors"],
    deviation: "a clock that jumps is not detected; `of-consensus` sets a consensus' parameters",
};

/// Consensus parameters, with the defaults of tor since 0.4.8.2 for circuits that end at an exit. The unit is cells unless
/// stated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct VegasParameters {
    /// Delivered cells that one SENDME acknowledges: a TLS record. Source: tor's `cc_sendme_inc`.
    #[schemars(range(min = 1, max = 1000))]
    pub sendme_increment: u32,
    /// Window at the start. Source: tor's `cc_cwnd_init`.
    #[schemars(range(min = 1))]
    pub initial: u32,
    /// Least window. Source: tor's `cc_cwnd_min`.
    #[schemars(range(min = 1))]
    pub minimum: u32,
    /// Step of the window after slow start. Source: tor's `cc_cwnd_inc`.
    #[schemars(range(min = 1))]
    pub increment: u32,
    /// Steps per window's worth of acknowledgements. Source: tor's `cc_cwnd_inc_rate`.
    #[schemars(range(min = 1))]
    pub increment_rate: u32,
    /// Growth per SENDME in slow start, percent of `sendme-increment`. Source: tor's `cc_cwnd_inc_pct_ss`.
    pub slow_start_percent: u32,
    /// Slow start slows down from here (RFC 3742). Source: tor's `cc_sscap_exit`.
    pub slow_start_cap: u32,
    /// Slow start ends here. Source: tor's `cc_ss_max`.
    pub slow_start_max: u32,
    /// Queue below which the window grows. Source: tor's `cc_vegas_alpha_exit`.
    pub alpha: u32,
    /// Queue above which it shrinks. Source: tor's `cc_vegas_beta_exit`.
    pub beta: u32,
    /// Queue at which slow start ends. Source: tor's `cc_vegas_gamma_exit`.
    pub gamma: u32,
    /// Queue above which the window drops to this queue. Source: tor's `cc_vegas_delta_exit`.
    pub delta: u32,
    /// A window counts as full with this many increments left. Source: tor's `cc_cwnd_full_gap`.
    pub full_gap: u32,
    /// A window counts as not full below this percentage in flight. Source: tor's `cc_cwnd_full_minpct`.
    #[schemars(range(max = 100))]
    pub full_percent: u32,
    /// Span of the smoothed RTT, percent of the SENDMEs per window. Source: tor's `cc_ewma_cwnd_pct`.
    pub ewma_percent: u32,
    /// The most SENDMEs in the span of the smoothed RTT. Source: tor's `cc_ewma_max`.
    #[schemars(range(min = 1))]
    pub ewma_max: u32,
    /// The span of the smoothed RTT in slow start, SENDMEs. Source: tor's `cc_ewma_ss`.
    #[schemars(range(min = 1))]
    pub ewma_slow_start: u32,
    /// At the least window and after slow start, the new least RTT lies this percentage of the way from the smaller to
    /// the larger of the least and the smoothed RTT. Source: tor's `cc_rtt_reset_pct`.
    #[schemars(range(max = 100))]
    pub rtt_reset_percent: u32,
}

impl keys::Parameters for VegasParameters {
    fn mistake(&self) -> Option<(&'static str, &'static str)> {
        (self.initial.min(self.minimum) < self.sendme_increment).then_some((
            "`initial` or `minimum` is below `sendme-increment`, so an end could wait for a SENDME that is never due",
            "tor: initial = 124, minimum = 124, sendme-increment = 31",
        ))
    }
}

impl Default for VegasParameters {
    fn default() -> VegasParameters {
        let outbuf = 62; // two TLS records of 31 cells, tor's OUTBUF_CELLS
        VegasParameters {
            sendme_increment: 31,
            initial: 4 * 31,
            minimum: 4 * 31,
            increment: 1,
            increment_rate: 31,
            slow_start_percent: 100,
            slow_start_cap: 600,
            slow_start_max: 5000,
            alpha: 3 * outbuf,
            beta: 4 * outbuf,
            gamma: 3 * outbuf,
            delta: 5 * outbuf,
            full_gap: 4,
            full_percent: 25,
            ewma_percent: 50,
            ewma_max: 10,
            ewma_slow_start: 2,
            rtt_reset_percent: 100,
        }
    }
}

impl Control for VegasParameters {
    fn window(&self) -> Option<Box<dyn Window>> {
        Some(Box::new(Vegas::new(*self)))
    }
}

/// One end's congestion window.
#[derive(Clone, Debug)]
pub(crate) struct Vegas {
    parameters: VegasParameters,
    window: u64,
    in_flight: u64,
    slow_start: bool,
    full: bool,
    blocked: bool,
    /// SENDMEs until the window may move again.
    until_update: u64,
    /// SENDMEs until a full window is acknowledged.
    until_round: u64,
    /// Send times of the cells that will trigger SENDMEs.
    sent: VecDeque<Time>,
    /// Microseconds, as tor counts; zero before the first measurement.
    smoothed_rtt: u64,
    least_rtt: u64,
}

/// Tor's N-sample exponentially weighted mean.
fn smooth(sample: u64, before: u64, samples: u64) -> u64 {
    if before == 0 { sample } else { (2 * sample + (samples - 1) * before) / (samples + 1) }
}

impl Vegas {
    pub(crate) fn new(parameters: VegasParameters) -> Vegas {
        Vegas {
            parameters,
            window: u64::from(parameters.initial),
            in_flight: 0,
            slow_start: true,
            full: false,
            blocked: false,
            until_update: 1,
            until_round: 0,
            sent: VecDeque::new(),
            smoothed_rtt: 0,
            least_rtt: 0,
        }
    }

    fn measure(&mut self, rtt: u64) {
        let p = self.parameters;
        let samples = if self.slow_start {
            u64::from(p.ewma_slow_start)
        } else {
            (self.sendmes_per_update() * u64::from(p.ewma_percent) / 100).min(u64::from(p.ewma_max))
        };
        self.smoothed_rtt = smooth(rtt, self.smoothed_rtt, samples.max(2));
        if self.least_rtt == 0 {
            self.least_rtt = self.smoothed_rtt;
        } else if self.window == u64::from(p.minimum) && !self.slow_start {
            let (high, low) = (self.smoothed_rtt.max(self.least_rtt), self.smoothed_rtt.min(self.least_rtt));
            let percent = u64::from(p.rtt_reset_percent.min(100));
            self.least_rtt = high * percent / 100 + low * (100 - percent) / 100;
        } else {
            self.least_rtt = self.least_rtt.min(self.smoothed_rtt);
        }
    }

    /// SENDMEs between two moves of the window.
    fn sendmes_per_update(&self) -> u64 {
        if self.slow_start {
            return 1;
        }
        let per_step = u64::from(self.parameters.increment_rate * self.parameters.sendme_increment);
        (self.window + per_step / 2) / per_step
    }

    fn sendmes_per_window(&self) -> u64 {
        let increment = u64::from(self.parameters.sendme_increment);
        (self.window + increment / 2) / increment
    }

    fn adjust(&mut self) {
        let p = self.parameters;
        let product = self.window * self.least_rtt / self.smoothed_rtt.max(1);
        let queue = self.window.saturating_sub(product);
        if self.in_flight + u64::from(p.full_gap * p.sendme_increment) >= self.window {
            self.full = true;
        } else if 100 * self.in_flight < u64::from(p.full_percent) * self.window {
            self.full = false;
        }
        if self.slow_start {
            if queue < u64::from(p.gamma) && !self.blocked {
                if self.full {
                    let step = self.slow_start_step();
                    self.window += step;
                    let steady = u64::from(p.increment * p.increment_rate);
                    self.slow_start = step * self.sendmes_per_window() > steady;
                }
            } else {
                self.window = product + u64::from(p.gamma);
                self.slow_start = false;
            }
            if self.window >= u64::from(p.slow_start_max) {
                self.window = u64::from(p.slow_start_max);
                self.slow_start = false;
            }
        } else if self.until_update == 0 {
            let step = u64::from(p.increment);
            if queue > u64::from(p.delta) {
                self.window = (product + u64::from(p.delta)).saturating_sub(step);
            } else if queue > u64::from(p.beta) || self.blocked {
                self.window = self.window.saturating_sub(step);
            } else if self.full && queue < u64::from(p.alpha) {
                self.window += step;
            }
            self.window = self.window.max(u64::from(p.minimum));
        }
        if self.until_round == 0 {
            self.until_round = self.sendmes_per_window();
        }
        if self.until_update == 0 {
            self.until_update = self.sendmes_per_update();
        }
        if self.until_round == self.sendmes_per_window() {
            self.full = false;
        }
    }

    /// Limited slow start (RFC 3742).
    fn slow_start_step(&self) -> u64 {
        let p = self.parameters;
        let (increment, cap) = (u64::from(p.sendme_increment), u64::from(p.slow_start_cap));
        if self.window <= cap {
            (u64::from(p.slow_start_percent) * increment + 50) / 100
        } else {
            ((increment * cap + self.window) / (2 * self.window)).max(1)
        }
    }
}

impl Window for Vegas {
    fn room(&self) -> u32 {
        u32::try_from(self.window.saturating_sub(self.in_flight)).unwrap_or(u32::MAX)
    }

    /// Every `sendme_increment`-th cell triggers a SENDME.
    fn sent(&mut self, now: Time) {
        self.in_flight += 1;
        if self.in_flight.is_multiple_of(u64::from(self.parameters.sendme_increment)) {
            self.sent.push_back(now);
        }
    }

    fn acknowledged(&mut self, now: Time, blocked: bool) -> Result<(), Violation> {
        let sent = self.sent.pop_front().ok_or(Violation)?;
        self.until_update = self.until_update.saturating_sub(1);
        self.until_round = self.until_round.saturating_sub(1);
        let rtt = now.since(sent).0 / 1_000;
        if rtt > 0 {
            self.measure(rtt);
        }
        if blocked != self.blocked {
            // The local queue stopped or freed us: update the window at once.
            self.blocked = blocked;
            self.until_update = 0;
        }
        if self.smoothed_rtt > 0 && (rtt > 0 || blocked) {
            self.adjust();
        }
        self.in_flight = self.in_flight.saturating_sub(u64::from(self.parameters.sendme_increment));
        Ok(())
    }

    fn sendme_increment(&self) -> u32 {
        self.parameters.sendme_increment
    }

    fn round_trip(&self) -> Option<Span> {
        (self.smoothed_rtt > 0).then(|| Span::from_micros(self.smoothed_rtt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a FIFO path that delivers `rate` cells/s after `base`. Returns the cells in
    /// flight at the end of `seconds`, and the rate in the second half.
    fn run(rate: u64, base: Span, seconds: u64) -> (u64, f64) {
        let mut vegas = Vegas::new(VegasParameters::default());
        let mut acks: VecDeque<Time> = VecDeque::new();
        let (mut free, mut count, mut now) = (Time::ZERO, 0u64, Time::ZERO);
        let end = Time::ZERO + Span::from_secs(seconds);
        let mut late = 0;
        while now < end {
            while vegas.room() > 0 {
                vegas.sent(now);
                free = free.max(now) + Span(1_000_000_000 / rate);
                count += 1;
                if count.is_multiple_of(31) {
                    acks.push_back(free + base);
                }
            }
            now = acks.pop_front().expect("a full window brings SENDMEs");
            vegas.acknowledged(now, false).unwrap();
            late += u64::from(now > Time::ZERO + Span::from_secs(seconds / 2)) * 31;
        }
        (vegas.window, late as f64 / (seconds as f64 / 2.0))
    }

    #[test]
    fn the_link_is_filled_with_a_queue_between_alpha_and_beta() {
        for (rate, base_ms) in [(300, 320), (891, 320), (3_000, 100), (2_000, 500)] {
            let (window, got) = run(rate, Span::from_millis(base_ms), 60);
            assert!((got / rate as f64 - 1.0).abs() < 0.03, "{rate}: {got}");
            // Least RTT: the base and the 31 cells of one SENDME.
            let product = rate * base_ms / 1000;
            let queue = window.saturating_sub(product);
            assert!((93..=320).contains(&queue), "{rate} {base_ms}: {window} - {product}");
        }
    }

    #[test]
    fn an_unsolicited_sendme_is_refused() {
        let mut vegas = Vegas::new(VegasParameters::default());
        assert_eq!(vegas.acknowledged(Time::ZERO, false), Err(Violation));
        for _ in 0..30 {
            vegas.sent(Time::ZERO);
        }
        assert_eq!(vegas.acknowledged(Time(1), false), Err(Violation));
    }

    #[test]
    fn a_blocked_queue_ends_slow_start_and_shrinks_the_window() {
        let mut vegas = Vegas::new(VegasParameters::default());
        let mut now = Time::ZERO;
        let mut windows = vec![];
        for round in 0..20 {
            while vegas.room() > 0 {
                vegas.sent(now);
            }
            now += Span::from_millis(100);
            vegas.acknowledged(now, round >= 4).unwrap();
            windows.push(vegas.window);
        }
        assert!(windows[3] > windows[0] && windows[19] < windows[5], "{windows:?}");
        assert!(!vegas.slow_start && vegas.window >= 62);
    }
}

#[cfg(test)]
mod vectors;
