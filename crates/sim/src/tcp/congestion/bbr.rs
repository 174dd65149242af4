//! BBR, first version (Cardwell et al., ACM Queue 2016), in Linux's form (`tcp_bbr.c`).
//!
//! A model of the path, the largest recent delivery rate and the smallest recent round trip, gives the pacing rate and
//! the window. Random numbers: Linux draws where a cycle of gains begins; here a hash of the time decides.

mod filter;
mod policer;

use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};

use super::super::pacing::UNBURST_RATE;
use super::window::{Algorithm, Progress, Repair, Restart, Sample, Window};
pub(super) use filter::Maximum;
use policer::Policer;

/// Doubles the rate each round trip: 2 / ln 2.
const HIGH_GAIN: f64 = 2.885;
const DRAIN_GAIN: f64 = 1.0 / HIGH_GAIN;
/// Leaves room for delayed acknowledgements.
const WINDOW_GAIN: f64 = 2.0;
/// Pacing gains of a cycle: probe for more, drain the queue that this made, cruise.
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// The rate is the maximum of this many round trips.
const RATE_ROUNDS: u32 = CYCLE.len() as u32 + 2;
const MIN_RTT_WINDOW: Span = Span::from_secs(10);
const PROBE_RTT: Span = Span::from_millis(200);
/// Paced slightly below the estimate, to keep queues short.
const MARGIN: f64 = 0.99;
const MIN_WINDOW: u32 = 4;
/// The pipe is full when the rate has grown by less than a quarter,
const FULL_GROWTH: f64 = 1.25;
/// for this many rounds.
const FULL_ROUNDS: u8 = 3;
const MAX_BURST: f64 = 65_535.0 - 320.0;
/// Acknowledgements may come this much late, at most, in one lump.
const MAX_AGGREGATION: Span = Span::from_millis(100);
const AGGREGATION_ROUNDS: u8 = 5;
/// Linux's window without a round-trip sample.
const INITIAL_WINDOW: u32 = 10;

/// The sender measures rates for an algorithm with `BY_RATE`.
pub(super) const RATES: &str = "a sender by rate";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Raise the rate rapidly.
    Startup,
    /// Drain the queue that this made.
    Drain,
    /// Cycle around the estimated rate.
    ProbeRate,
    /// Empty the path to see its round trip.
    ProbeRtt,
}

/// The state is on the heap, so that connections under other algorithms stay small.
#[derive(Clone, Debug, Default)]
pub(in crate::tcp) struct Bbr(Box<Model>);

#[derive(Clone, Debug)]
struct Model {
    mode: Mode,
    /// Delivery rate in segments per second, by round trip.
    rate: Maximum,
    rounds: u32,
    /// The round trip ends when a segment sent after so many deliveries is acknowledged.
    round_end: u64,
    round_start: bool,
    min_rtt: Option<Span>,
    min_rtt_at: Time,
    probe_rtt_ends: Option<Time>,
    probe_rtt_round_done: bool,
    phase: usize,
    phase_began: Time,
    full_rate: f64,
    full_rounds: u8,
    full: bool,
    /// Window to return to after a loss or a probe of the round trip.
    prior_window: u32,
    repair: Repair,
    conserves: bool,
    idle_restart: bool,
    policer: Policer,
    /// Acknowledgements in a lump: the excess of the last two windows of rounds.
    excess: [u32; 2],
    excess_at: usize,
    excess_rounds: u8,
    epoch: Time,
    epoch_acked: u64,
    /// Bytes per second.
    pacing_rate: f64,
    paced: bool,
}

impl Default for Model {
    fn default() -> Model {
        Model {
            mode: Mode::Startup,
            rate: Maximum::default(),
            rounds: 0,
            round_end: 0,
            round_start: false,
            min_rtt: None,
            min_rtt_at: Time::ZERO,
            probe_rtt_ends: None,
            probe_rtt_round_done: false,
            phase: 0,
            phase_began: Time::ZERO,
            full_rate: 0.0,
            full_rounds: 0,
            full: false,
            prior_window: 0,
            repair: Repair::None,
            conserves: false,
            idle_restart: false,
            policer: Policer::default(),
            excess: [0; 2],
            excess_at: 0,
            excess_rounds: 0,
            epoch: Time::ZERO,
            epoch_acked: 0,
            pacing_rate: 0.0,
            paced: false,
        }
    }
}

impl Algorithm for Bbr {
    const BY_RATE: bool = true;
    const OWN_WINDOW: bool = true;

    fn on_ack(&mut self, window: &mut Window, sample: &Sample) {
        let progress = sample.progress.expect(RATES);
        self.0.on_ack(window, sample, progress);
    }

    /// Keeps the threshold. The window returns to the one before the loss.
    fn threshold_after_loss(&mut self, window: &Window) -> u32 {
        self.0.save_window(window);
        window.ssthresh
    }

    fn on_timeout(&mut self, window: &mut Window, now: Time, in_network: u32, progress: Option<&Progress>) {
        window.cwnd = in_network + 1;
        self.0.on_timeout(now, progress.expect(RATES));
    }

    fn on_undo(&mut self, _window: &mut Window, _prior: u32) {
        self.0.full_rate = 0.0;
        self.0.full_rounds = 0;
        self.0.policer.reset();
    }

    fn on_restart(&mut self, window: &mut Window, restart: &Restart) {
        let progress = restart.progress.as_ref().expect(RATES);
        if progress.app_limited {
            self.0.on_restart(window, restart.now, progress);
        }
    }

    fn pacing_rate(&self) -> f64 {
        self.0.pacing_rate
    }
}

impl Model {
    fn on_ack(&mut self, window: &mut Window, sample: &Sample, progress: &Progress) {
        self.update_rate(progress, sample.now);
        self.update_aggregation(window, sample, progress);
        if self.mode == Mode::ProbeRate && self.phase_ends(progress, sample.now) {
            self.next_phase(progress);
        }
        self.check_full(progress);
        self.check_drained(window, sample.now, progress);
        self.update_min_rtt(window, sample, progress);
        self.set_pacing(window, progress, self.pacing_gain());
        self.set_window(window, sample, progress);
    }

    /// Segments per second.
    fn estimate(&self) -> f64 {
        self.policer.rate().unwrap_or_else(|| self.rate.get())
    }

    fn pacing_gain(&self) -> f64 {
        match self.mode {
            Mode::Startup => HIGH_GAIN,
            Mode::Drain => DRAIN_GAIN,
            Mode::ProbeRate if self.policer.rate().is_some() => 1.0,
            Mode::ProbeRate => CYCLE[self.phase],
            Mode::ProbeRtt => 1.0,
        }
    }

    fn window_gain(&self) -> f64 {
        match self.mode {
            Mode::Startup | Mode::Drain => HIGH_GAIN,
            Mode::ProbeRate => WINDOW_GAIN,
            Mode::ProbeRtt => 1.0,
        }
    }

    fn update_rate(&mut self, progress: &Progress, now: Time) {
        self.round_start = false;
        let Some(rate) = &progress.rate else { return };
        if rate.prior_delivered >= self.round_end {
            self.round_end = progress.total;
            self.rounds += 1;
            self.round_start = true;
            self.conserves = false;
        }
        let in_cycle = self.mode == Mode::ProbeRate;
        if self.policer.on_ack(progress, self.round_start, in_cycle) {
            self.begin_cycle(now, progress);
        }
        let sample = rate.per_s();
        // What the application did not send says nothing about the path, unless it is more than was believed.
        if !rate.app_limited || sample >= self.rate.get() {
            self.rate.update(RATE_ROUNDS, self.rounds, sample);
        }
    }

    /// How many segments were acknowledged above what the rate explains. The window grows by as many, so that the
    /// sender does not run dry between lumps of acknowledgements.
    fn update_aggregation(&mut self, window: &Window, sample: &Sample, progress: &Progress) {
        if sample.acked == 0 || progress.rate.is_none() {
            return;
        }
        if self.round_start {
            self.excess_rounds += 1;
            if self.excess_rounds >= AGGREGATION_ROUNDS {
                self.excess_rounds = 0;
                self.excess_at = 1 - self.excess_at;
                self.excess[self.excess_at] = 0;
            }
        }
        let mut expected = (self.estimate() * progress.at.since(self.epoch).as_secs_f64()) as u64;
        if self.epoch_acked <= expected {
            self.epoch_acked = 0;
            self.epoch = progress.at;
            expected = 0;
        }
        self.epoch_acked += u64::from(sample.acked);
        let excess = (self.epoch_acked - expected).min(u64::from(window.cwnd)) as u32;
        let most = &mut self.excess[self.excess_at];
        *most = (*most).max(excess);
    }

    fn phase_ends(&self, progress: &Progress, now: Time) -> bool {
        let gain = self.pacing_gain();
        let whole = self.min_rtt.is_some_and(|min| progress.at.since(self.phase_began) > min);
        let in_network = self.in_network_then(progress, progress.prior_in_network, now);
        let rate = self.rate.get();
        if gain > 1.0 {
            // Do not insist if segments are lost: the path may not hold that much.
            whole && (progress.losses > 0 || in_network >= self.inflight(progress, rate, gain))
        } else if gain < 1.0 {
            whole || in_network <= self.inflight(progress, rate, 1.0)
        } else {
            whole
        }
    }

    /// Segments in the network when the next burst may leave.
    fn in_network_then(&self, progress: &Progress, in_network: u32, now: Time) -> u32 {
        let leaving = (self.estimate() * progress.paced_until.since(now).as_secs_f64()) as u32;
        let burst = if self.pacing_gain() > 1.0 { self.burst(progress) } else { 0 };
        (in_network + burst).saturating_sub(leaving)
    }

    fn next_phase(&mut self, progress: &Progress) {
        self.phase = (self.phase + 1) % CYCLE.len();
        self.phase_began = progress.at;
    }

    /// Begins in any phase but the draining one, which follows only a probe.
    fn begin_cycle(&mut self, now: Time, progress: &Progress) {
        self.mode = Mode::ProbeRate;
        let draw = Seed::root(now.0).random().below(CYCLE.len() - 1);
        self.phase = CYCLE.len() - 1 - draw;
        self.next_phase(progress);
    }

    fn check_full(&mut self, progress: &Progress) {
        let app_limited = progress.rate.as_ref().is_some_and(|rate| rate.app_limited);
        if self.full || !self.round_start || app_limited {
            return;
        }
        if self.rate.get() >= self.full_rate * FULL_GROWTH {
            self.full_rate = self.rate.get();
            self.full_rounds = 0;
            return;
        }
        self.full_rounds += 1;
        self.full = self.full_rounds >= FULL_ROUNDS;
    }

    fn check_drained(&mut self, window: &mut Window, now: Time, progress: &Progress) {
        if self.mode == Mode::Startup && self.full {
            self.mode = Mode::Drain;
            window.ssthresh = self.inflight(progress, self.rate.get(), 1.0);
        }
        if self.mode == Mode::Drain
            && self.in_network_then(progress, progress.in_network, now)
                <= self.inflight(progress, self.rate.get(), 1.0)
        {
            self.begin_cycle(now, progress);
        }
    }

    fn update_min_rtt(&mut self, window: &mut Window, sample: &Sample, progress: &Progress) {
        let expired = sample.now.since(self.min_rtt_at) > MIN_RTT_WINDOW;
        if let Some(rtt) = sample.rtt
            && (self.min_rtt.is_none_or(|min| rtt <= min) || (expired && !progress.delayed))
        {
            self.min_rtt = Some(rtt);
            self.min_rtt_at = sample.now;
        }
        if expired && !self.idle_restart && self.mode != Mode::ProbeRtt {
            self.save_window(window);
            self.mode = Mode::ProbeRtt;
            self.probe_rtt_ends = None;
        }
        if self.mode == Mode::ProbeRtt {
            match self.probe_rtt_ends {
                None if progress.in_network <= MIN_WINDOW => {
                    self.probe_rtt_ends = Some(sample.now + PROBE_RTT);
                    self.probe_rtt_round_done = false;
                    self.round_end = progress.total;
                }
                None => {}
                Some(_) => {
                    self.probe_rtt_round_done |= self.round_start;
                    if self.probe_rtt_round_done {
                        self.check_probe_rtt_done(window, sample.now, progress);
                    }
                }
            }
        }
        if progress.rate.is_some_and(|rate| rate.delivered > 0) {
            self.idle_restart = false;
        }
    }

    fn check_probe_rtt_done(&mut self, window: &mut Window, now: Time, progress: &Progress) {
        if self.probe_rtt_ends.is_some_and(|ends| now > ends) {
            self.min_rtt_at = now;
            window.cwnd = window.cwnd.max(self.prior_window);
            if self.full {
                self.begin_cycle(now, progress);
            } else {
                self.mode = Mode::Startup;
            }
        }
    }

    /// A timeout ends a round trip.
    fn on_timeout(&mut self, now: Time, progress: &Progress) {
        self.repair = Repair::Loss;
        self.full_rate = 0.0;
        self.round_start = true;
        if self.policer.on_ack(progress, true, self.mode == Mode::ProbeRate) {
            self.begin_cycle(now, progress);
        }
    }

    fn on_restart(&mut self, window: &mut Window, now: Time, progress: &Progress) {
        self.idle_restart = true;
        self.epoch = now;
        self.epoch_acked = 0;
        match self.mode {
            // More speed than the path's is not needed: the application has paused.
            Mode::ProbeRate => self.set_pacing(window, progress, 1.0),
            Mode::ProbeRtt => self.check_probe_rtt_done(window, now, progress),
            Mode::Startup | Mode::Drain => {}
        }
    }

    fn set_pacing(&mut self, window: &Window, progress: &Progress, gain: f64) {
        let mss = f64::from(progress.mss);
        if !self.paced && progress.smoothed > Span::ZERO {
            self.paced = true;
            let rate = f64::from(window.cwnd) / progress.smoothed.as_secs_f64();
            self.pacing_rate = rate * mss * HIGH_GAIN * MARGIN;
        }
        let rate = self.estimate() * mss * gain * MARGIN;
        if self.full || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    /// Segments of a burst at the pacing rate.
    fn burst(&self, progress: &Progress) -> u32 {
        let bytes = (self.pacing_rate / 1024.0).min(MAX_BURST);
        let least = if self.pacing_rate < UNBURST_RATE { 1 } else { 2 };
        ((bytes / f64::from(progress.mss)) as u32).max(least).min(0x7F)
    }

    /// Segments that fill the path at a rate, times a gain.
    fn product(&self, rate: f64, gain: f64) -> u32 {
        match self.min_rtt {
            Some(min) => (rate * min.as_secs_f64() * gain).ceil() as u32,
            None => INITIAL_WINDOW,
        }
    }

    /// Adds what waits in the two hosts, and makes it even for receivers that acknowledge every second segment.
    fn with_hosts(&self, progress: &Progress, window: u32) -> u32 {
        let window = (window + 3 * self.burst(progress)).next_multiple_of(2);
        // A probe must exceed the product even where it is small.
        if self.mode == Mode::ProbeRate && self.phase == 0 { window + 2 } else { window }
    }

    fn inflight(&self, progress: &Progress, rate: f64, gain: f64) -> u32 {
        self.with_hosts(progress, self.product(rate, gain))
    }

    fn save_window(&mut self, window: &Window) {
        // Before a loss or a probe, the window was a good one.
        let good = self.repair == Repair::None && self.mode != Mode::ProbeRtt;
        self.prior_window = if good { window.cwnd } else { self.prior_window.max(window.cwnd) };
    }

    fn set_window(&mut self, window: &mut Window, sample: &Sample, progress: &Progress) {
        if sample.acked > 0 {
            let (cwnd, conserves) = self.recover_or_restore(window.cwnd, sample.acked, progress);
            window.cwnd = if conserves { cwnd } else { self.grow(cwnd, sample.acked, progress) };
        }
        if self.mode == Mode::ProbeRtt {
            window.cwnd = window.cwnd.min(MIN_WINDOW);
        }
    }

    /// In the first round of a recovery as many segments leave as arrive.
    fn recover_or_restore(&mut self, mut cwnd: u32, acked: u32, progress: &Progress) -> (u32, bool) {
        cwnd = cwnd.saturating_sub(progress.losses).max(1);
        let before = std::mem::replace(&mut self.repair, progress.repair);
        if self.repair == Repair::Recovery && before != Repair::Recovery {
            self.conserves = true;
            self.round_end = progress.total;
            cwnd = progress.in_network + acked;
        } else if before != Repair::None && self.repair == Repair::None {
            cwnd = cwnd.max(self.prior_window);
            self.conserves = false;
        }
        if self.conserves { (cwnd.max(progress.in_network + acked), true) } else { (cwnd, false) }
    }

    fn grow(&self, cwnd: u32, acked: u32, progress: &Progress) -> u32 {
        let mut target = self.product(self.estimate(), self.window_gain());
        if self.full {
            let most = (self.estimate() * MAX_AGGREGATION.as_secs_f64()) as u32;
            target += self.excess[0].max(self.excess[1]).min(most);
        }
        target = self.with_hosts(progress, target);
        let cwnd = if self.full {
            (cwnd + acked).min(target)
        } else if cwnd < target || progress.total < u64::from(INITIAL_WINDOW) {
            cwnd + acked
        } else {
            cwnd
        };
        cwnd.max(MIN_WINDOW)
    }
}
