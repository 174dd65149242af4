//! BBR, third version (draft-ietf-ccwg-bbr-06, July 2026; Google's `tcp_bbr.c`, branch v3).
//!
//! As in the first version, the largest recent delivery rate and the smallest recent round trip set the pacing rate and the
//! window. New are bounds that follow losses: a long-term one on segments in flight, which probes with more than 2 % loss
//! lower, and short-term ones on rate and flight, which other losses lower until the next probe. Names in parentheses
//! are the draft's. Random numbers: a hash of the time decides. ECN is not modelled.

mod full_pipe;
mod short_term;
#[cfg(test)]
mod tests;

use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};

use super::super::delivery_rate::{Loss, Rate};
use super::bbr::{Maximum, RATES};
use super::window::{Algorithm, Progress, Repair, Restart, Sample, Window};
use full_pipe::FullPipe;
use short_term::{BETA, ShortTerm};

/// 4 ln 2: the rate doubles each round trip.
const STARTUP_GAIN: f64 = 2.77;
const DRAIN_GAIN: f64 = 0.5;
/// Pacing gains of a cycle (`ProbeBW_DOWN` and `ProbeBW_UP`; 1 in `CRUISE` and `REFILL`).
const DOWN_GAIN: f64 = 0.9;
const UP_GAIN: f64 = 1.25;
/// Gains of the window: by default, in `ProbeBW_UP`, and in `ProbeRTT`.
const WINDOW_GAIN: f64 = 2.0;
const UP_WINDOW_GAIN: f64 = 2.25;
const PROBE_RTT_WINDOW_GAIN: f64 = 0.5;
/// Paced slightly below the estimate, to keep queues short.
const MARGIN: f64 = 0.99;
/// The share of a flight that may be lost in a probe.
const LOSS_THRESHOLD: f64 = 0.02;
/// The share of the long-term bound that is left to others.
const HEADROOM: f64 = 0.15;
/// Separate ranges of lost bytes in a round trip that end Startup (`BBRStartupFullLossCnt`).
const STARTUP_LOSSES: u32 = 6;
/// Drain ends after this many round trips at the latest.
const DRAIN_ROUNDS: u32 = 3;
const MIN_WINDOW: f64 = 4.0;
const MIN_RTT_WINDOW: Span = Span::from_secs(10);
const PROBE_RTT_INTERVAL: Span = Span::from_secs(5);
const PROBE_RTT: Span = Span::from_millis(200);
/// The wait between two probes is between this and a second more,
const PROBE_WAIT: Span = Span::from_secs(2);
/// or as many round trips as Reno would need, but not more than this.
const PROBE_ROUNDS: f64 = 63.0;
/// Round trips over which acknowledgements in a lump are remembered.
const AGGREGATION_ROUNDS: u32 = 10;
/// The largest burst of the hosts, bytes, and its length.
const MAX_QUANTUM: f64 = 65_536.0;
const QUANTUM: Span = Span::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Raise the rate rapidly.
    Startup,
    /// Drain the queue that this made.
    Drain,
    /// Send less than arrives, to drain the queue of a probe.
    Down,
    /// Send as much as arrives, with some headroom.
    Cruise,
    /// Fill the path, without a queue, for a round trip.
    Refill,
    /// Send more than arrives, to probe for more.
    Up,
    /// Empty the path to see its round trip.
    ProbeRtt,
}

impl Mode {
    fn pacing_gain(self) -> f64 {
        match self {
            Mode::Startup => STARTUP_GAIN,
            Mode::Drain => DRAIN_GAIN,
            Mode::Down => DOWN_GAIN,
            Mode::Up => UP_GAIN,
            Mode::Cruise | Mode::Refill | Mode::ProbeRtt => 1.0,
        }
    }

    fn window_gain(self) -> f64 {
        match self {
            Mode::Up => UP_WINDOW_GAIN,
            Mode::ProbeRtt => PROBE_RTT_WINDOW_GAIN,
            _ => WINDOW_GAIN,
        }
    }

    /// One of the draft's four `ProbeBW` states.
    fn in_cycle(self) -> bool {
        matches!(self, Mode::Down | Mode::Cruise | Mode::Refill | Mode::Up)
    }

    /// Whether losses come from probing, so that they do not lower the short-term bounds (`IsProbingBW`).
    fn probes(self) -> bool {
        matches!(self, Mode::Startup | Mode::Refill | Mode::Up)
    }
}

/// The state is on the heap, so that connections under other algorithms stay small.
#[derive(Clone, Debug, Default)]
pub(in crate::tcp) struct Bbr3(Box<Model>);

/// Rates are segments per second, volumes are segments.
#[derive(Clone, Debug)]
struct Model {
    mode: Mode,
    /// Segments delivered so far.
    delivered: u64,
    /// The largest delivery rates of the previous cycle of probes and of this one.
    max_rates: [f64; 2],
    /// The largest rate, as far as the short-term bound allows (`bw`).
    rate: f64,
    short: ShortTerm,
    rounds: u32,
    /// The round trip ends when a segment sent after so many deliveries is acknowledged.
    round_end: u64,
    round_start: bool,
    /// The smallest round trip of ten seconds,
    min_rtt: Option<Span>,
    min_rtt_at: Time,
    /// and of five; then it is due to be measured.
    probed_rtt: Option<Span>,
    probed_rtt_at: Time,
    probe_rtt_due: bool,
    probe_rtt_ends: Option<Time>,
    probe_rtt_round_done: bool,
    /// Samples of segments that left between these numbers of deliveries are low because `ProbeRTT` held them back.
    held_back: [u64; 2],
    pipe: FullPipe,
    full: bool,
    drain_began: u32,
    /// Ranges of bytes lost in this round trip of Startup, and the end of the last one.
    loss_ranges: u32,
    lost_end: u64,
    /// The long-term bound on segments in flight; infinite before a probe with too many losses (`inflight_longterm`).
    inflight: f64,
    /// How far a probe is with raising it: segments acknowledged per segment of increase, acknowledged since the last
    /// increase, and round trips.
    per_increase: f64,
    acked: f64,
    up_rounds: u32,
    cycle_began: Time,
    /// When the next probe is due.
    probe_wait: Span,
    rounds_since_probe: u32,
    /// Rate samples and losses are of a probe.
    probe_samples: bool,
    /// The probe is over, and its last round trip of samples is coming (`ACKS_PROBE_STOPPING`).
    probe_stops: bool,
    /// The last probe lost too much.
    too_high: bool,
    /// The last probe stopped at the bound of the one before it, as a precaution.
    cautious: bool,
    undo: Undo,
    /// Window to return to after a loss or a probe of the round trip.
    prior_window: u32,
    repair: Repair,
    idle_restart: bool,
    /// Acknowledgements in a lump.
    excess: Maximum,
    epoch: Time,
    epoch_acked: f64,
    /// The window at the first acknowledgement; zero before it.
    initial_window: u32,
    /// Bytes per second.
    pacing_rate: f64,
    paced: bool,
}

/// The model before the losses of a round trip.
#[derive(Clone, Copy, Debug, Default)]
struct Undo {
    /// The mode that the losses have ended.
    mode: Option<Mode>,
    rate: f64,
    short: f64,
    inflight: f64,
}

impl Default for Model {
    fn default() -> Model {
        Model {
            mode: Mode::Startup,
            delivered: 0,
            max_rates: [0.0; 2],
            rate: 0.0,
            short: ShortTerm::new(),
            rounds: 0,
            round_end: 0,
            round_start: false,
            min_rtt: None,
            min_rtt_at: Time::ZERO,
            probed_rtt: None,
            probed_rtt_at: Time::ZERO,
            probe_rtt_due: false,
            probe_rtt_ends: None,
            probe_rtt_round_done: false,
            held_back: [u64::MAX, 0],
            pipe: FullPipe::default(),
            full: false,
            drain_began: 0,
            loss_ranges: 0,
            lost_end: u64::MAX,
            inflight: f64::INFINITY,
            per_increase: f64::INFINITY,
            acked: 0.0,
            up_rounds: 0,
            cycle_began: Time::ZERO,
            probe_wait: Span::ZERO,
            rounds_since_probe: 0,
            probe_samples: false,
            probe_stops: false,
            too_high: false,
            cautious: false,
            undo: Undo::default(),
            prior_window: 0,
            repair: Repair::None,
            idle_restart: false,
            excess: Maximum::default(),
            epoch: Time::ZERO,
            epoch_acked: 0.0,
            initial_window: 0,
            pacing_rate: 0.0,
            paced: false,
        }
    }
}

impl Algorithm for Bbr3 {
    const BY_RATE: bool = true;
    const OWN_WINDOW: bool = true;

    fn on_ack(&mut self, window: &mut Window, sample: &Sample) {
        let progress = sample.progress.expect(RATES);
        self.0.on_ack(window, sample, progress);
    }

    /// Keeps the threshold. The window returns to the one before the loss.
    fn threshold_after_loss(&mut self, window: &Window) -> u32 {
        self.0.save_before_loss(window);
        window.ssthresh
    }

    fn on_loss(&mut self, window: &Window, now: Time, total: u64, loss: &Loss) {
        self.0.on_loss(window, now, total, loss);
    }

    fn on_timeout(&mut self, window: &mut Window, _: Time, in_network: u32, _: Option<&Progress>) {
        window.cwnd = in_network + 1;
        self.0.repair = Repair::Loss;
    }

    fn on_undo(&mut self, window: &mut Window, prior: u32) {
        window.cwnd = window.cwnd.max(prior);
        self.0.on_undo();
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

/// Losses suggest that too much was in flight (`IsInflightTooHigh`).
fn is_too_high(lost: u64, in_network: u32) -> bool {
    lost as f64 > LOSS_THRESHOLD * f64::from(in_network)
}

/// As [`is_too_high`], for the flight of a rate sample.
fn was_too_high(rate: Option<&Rate>) -> bool {
    rate.is_some_and(|rate| is_too_high(rate.lost, rate.in_network))
}

/// The flight at which the share of lost segments crossed the threshold, perhaps within these (`InflightAtLoss`).
fn flight_at_loss(loss: &Loss) -> f64 {
    let before = f64::from(loss.in_network) - f64::from(loss.packets);
    let lost_before = loss.lost as f64 - f64::from(loss.packets);
    let prefix = (LOSS_THRESHOLD * before - lost_before) / (1.0 - LOSS_THRESHOLD);
    before + prefix.max(0.0)
}

/// Updates of the model with each acknowledgement and loss.
impl Model {
    fn on_ack(&mut self, window: &mut Window, sample: &Sample, progress: &Progress) {
        let now = sample.now;
        if self.initial_window == 0 {
            self.initial_window = window.cwnd;
            (self.min_rtt_at, self.probed_rtt_at, self.epoch) = (now, now, now);
        }
        self.delivered = progress.total;
        let rated = progress.rate.map(|mut rate| {
            rate.app_limited |= (self.held_back[0]..=self.held_back[1]).contains(&rate.prior_delivered);
            (rate, rate.per_s())
        });
        self.round_start = false;
        match &rated {
            Some((rate, speed)) => self.observe(window, rate, *speed),
            None => self.short.skip(),
        }
        self.update_aggregation(window, sample);
        let rate = rated.as_ref();
        if let Some((_, speed)) = rate.filter(|(rate, _)| self.round_start && !rate.app_limited) {
            self.pipe.round(*speed);
            self.full |= self.pipe.now;
        }
        self.check_startup_done(window, progress, rate.map(|(rate, _)| rate));
        self.check_drained(now, progress);
        self.update_cycle(window, sample, progress, rate);
        self.update_min_rtt(sample);
        self.check_probe_rtt(window, now, progress);
        if let Some((rate, speed)) = rate {
            self.short.advance(rate, *speed);
        }
        self.rate = self.max_rate().min(self.short.rate);
        self.set_pacing(window, progress, self.mode.pacing_gain());
        self.set_window(window, sample, progress);
    }

    fn max_rate(&self) -> f64 {
        self.max_rates[0].max(self.max_rates[1])
    }

    /// Takes a rate sample (`UpdateLatestDeliverySignals`, `UpdateCongestionSignals`).
    fn observe(&mut self, window: &Window, sample: &Rate, speed: f64) {
        self.short.observe(sample, speed, self.delivered);
        if sample.prior_delivered >= self.round_end {
            self.start_round();
            self.rounds += 1;
            self.rounds_since_probe += 1;
            self.round_start = true;
        }
        // A rate that the application limited counts only if it is above the estimate.
        if !sample.app_limited || speed >= self.max_rate() {
            self.max_rates[1] = self.max_rates[1].max(speed);
        }
        self.short.adapt(self.mode.probes(), self.max_rate(), window.cwnd);
    }

    fn start_round(&mut self) {
        self.round_end = self.delivered;
    }

    /// How many segments were acknowledged above what the rate explains. The window grows by as many, so that the
    /// sender does not run dry between lumps of acknowledgements.
    fn update_aggregation(&mut self, window: &Window, sample: &Sample) {
        let mut expected = self.rate * sample.now.since(self.epoch).as_secs_f64();
        if self.epoch_acked <= expected {
            (self.epoch_acked, self.epoch, expected) = (0.0, sample.now, 0.0);
        }
        self.epoch_acked += f64::from(sample.acked);
        let excess = (self.epoch_acked - expected).min(window.cwnd.into());
        // In Startup a round trip is remembered.
        let rounds = if self.full { AGGREGATION_ROUNDS } else { 1 };
        self.excess.update(rounds, self.rounds, excess);
    }

    /// Segments are lost (`HandleLostPacket`).
    fn on_loss(&mut self, window: &Window, now: Time, total: u64, loss: &Loss) {
        self.delivered = total;
        if self.short.on_loss(total) {
            self.save_before_loss(window);
        }
        if loss.start != self.lost_end {
            self.loss_ranges += 1;
        }
        self.lost_end = loss.end;
        if self.probe_samples && is_too_high(loss.lost, loss.in_network) {
            self.end_probe(window, now, flight_at_loss(loss), loss.app_limited);
        }
    }

    /// A probe has lost too much with so many segments in flight (`HandleInflightTooHigh`). Reacts once per probe.
    fn end_probe(&mut self, window: &Window, now: Time, in_flight: f64, app_limited: bool) {
        self.too_high = true;
        self.probe_samples = false;
        if !app_limited {
            self.inflight = in_flight.max(BETA * self.target(window));
        }
        if self.mode == Mode::Up {
            self.undo.mode = Some(Mode::Up);
            self.start_down(now);
        }
    }

    fn save_before_loss(&mut self, window: &Window) {
        self.save_window(window);
        let ShortTerm { rate, inflight: short, .. } = self.short;
        self.undo = Undo { mode: None, rate, short, inflight: self.inflight };
    }

    /// The losses were spurious (`HandleSpuriousLossDetection`).
    fn on_undo(&mut self) {
        self.pipe = FullPipe::default();
        self.short.undo(self.undo.rate, self.undo.short);
        self.inflight = self.inflight.max(self.undo.inflight);
        let returns = self.mode != Mode::ProbeRtt;
        match self.undo.mode.take() {
            Some(Mode::Startup) if self.mode != Mode::Startup => {
                self.full = false;
                if returns {
                    self.mode = Mode::Startup;
                }
            }
            Some(Mode::Up) if self.mode != Mode::Up && returns => self.start_refill(),
            _ => {}
        }
    }

    fn on_restart(&mut self, window: &mut Window, now: Time, progress: &Progress) {
        self.idle_restart = true;
        self.epoch = now;
        // More speed than the path's is not needed: the application has paused.
        if self.mode.in_cycle() {
            self.set_pacing(window, progress, 1.0);
        } else if self.mode == Mode::ProbeRtt {
            self.check_probe_rtt_done(window, now);
        }
    }
}

/// Transitions between modes.
impl Model {
    /// `CheckStartupDone`, with `CheckStartupHighLoss`.
    fn check_startup_done(&mut self, window: &mut Window, progress: &Progress, rate: Option<&Rate>) {
        let losses = self.loss_ranges;
        if self.short.round_start {
            self.loss_ranges = 0;
        }
        let too_high = was_too_high(rate);
        if !self.full
            && self.short.round_start
            && progress.repair == Repair::Recovery
            && losses >= STARTUP_LOSSES
            && too_high
        {
            self.undo.mode = Some(Mode::Startup);
            self.full = true;
            self.inflight = self.product(self.rate, 1.0).max(self.short.latest_inflight);
        }
        if self.mode == Mode::Startup && self.full {
            self.mode = Mode::Drain;
            self.drain_began = self.rounds;
            window.ssthresh = self.volume(progress, self.product(self.max_rate(), 1.0)) as u32;
        }
    }

    fn check_drained(&mut self, now: Time, progress: &Progress) {
        let drained =
            || f64::from(progress.in_network) <= self.volume(progress, self.product(self.rate, 1.0));
        if self.mode == Mode::Drain && (drained() || self.rounds > self.drain_began + DRAIN_ROUNDS) {
            self.start_down(now);
        }
    }

    fn start_down(&mut self, now: Time) {
        self.short.reset_signals();
        self.per_increase = f64::INFINITY;
        let mut random = Seed::root(now.0).random();
        self.rounds_since_probe = random.below(2) as u32;
        self.probe_wait = PROBE_WAIT + Span::from_millis(random.below(1000) as u64);
        self.cycle_began = now;
        self.probe_stops = true;
        self.start_round();
        self.mode = Mode::Down;
    }

    fn start_refill(&mut self) {
        self.short.release();
        (self.up_rounds, self.acked) = (0, 0.0);
        self.cautious = false;
        self.probe_stops = false;
        self.start_round();
        self.mode = Mode::Refill;
    }

    fn start_up(&mut self, window: &Window, speed: f64) {
        self.probe_samples = true;
        self.start_round();
        self.pipe = FullPipe::from(speed);
        self.mode = Mode::Up;
        self.raise_slope(window);
    }

    /// `UpdateProbeBWCyclePhase`; `rate` is the sample and its speed.
    fn update_cycle(
        &mut self,
        window: &Window,
        sample: &Sample,
        progress: &Progress,
        rate: Option<&(Rate, f64)>,
    ) {
        if !self.full || self.adapt_long_term(window, sample, progress, rate.map(|(rate, _)| rate)) {
            return;
        }
        let speed = rate.map_or(0.0, |(_, speed)| *speed);
        match self.mode {
            Mode::Down | Mode::Cruise if self.is_time_to_probe(window, sample.now) => self.start_refill(),
            Mode::Down if self.is_time_to_cruise(progress) => self.mode = Mode::Cruise,
            Mode::Refill if self.round_start => self.start_up(window, speed),
            Mode::Up => self.end_probe_if_full(window, sample.now, progress, speed),
            _ => {}
        }
    }

    /// `AdaptLongTermModel`. Returns whether it has begun another mode.
    fn adapt_long_term(
        &mut self,
        window: &Window,
        sample: &Sample,
        progress: &Progress,
        rate: Option<&Rate>,
    ) -> bool {
        if self.probe_stops && self.round_start {
            self.probe_samples = false;
            self.probe_stops = false;
            // The samples of the probe are complete. Those of the cycle before the previous one are forgotten.
            let limited = rate.is_none_or(|rate| rate.app_limited);
            if self.mode.in_cycle() && !limited && self.max_rates[1] > 0.0 {
                self.max_rates = [self.max_rates[1], 0.0];
            }
            // The precaution was needless: this time the probe may go on beyond the bound.
            if self.mode.in_cycle() && self.cautious && !self.too_high {
                self.start_refill();
                return true;
            }
        }
        let too_high = was_too_high(rate);
        if !too_high && self.inflight.is_finite() {
            self.inflight = self.inflight.max(rate.map_or(0.0, |rate| rate.in_network.into()));
            if self.mode == Mode::Up {
                self.raise_bound(window, sample, progress);
            }
        }
        false
    }

    /// The bound limits the sender, so that it cannot see whether more would be delivered.
    fn is_bound(&self, window: &Window, progress: &Progress) -> bool {
        progress.window_limits && f64::from(window.cwnd) >= self.inflight
    }

    /// `ProbeInflightLongtermUpward`.
    fn raise_bound(&mut self, window: &Window, sample: &Sample, progress: &Progress) {
        if !self.is_bound(window, progress) {
            return;
        }
        self.acked += f64::from(sample.acked);
        let increase = (self.acked / self.per_increase).floor();
        if increase > 0.0 {
            self.acked -= increase * self.per_increase;
            self.inflight += increase;
        }
        if self.round_start {
            self.raise_slope(window);
        }
    }

    /// The bound grows by 1, 2, 4, 8, ... segments in the round trips of a probe (`RaiseInflightLongtermSlope`).
    fn raise_slope(&mut self, window: &Window) {
        let growth = f64::from(1u32 << self.up_rounds);
        self.up_rounds = (self.up_rounds + 1).min(30);
        self.per_increase = (f64::from(window.cwnd) / growth).max(1.0);
    }

    fn is_time_to_probe(&self, window: &Window, now: Time) -> bool {
        // Reno would probe after as many round trips as its window has segments.
        let reno = self.target(window).min(PROBE_ROUNDS);
        now > self.cycle_began + self.probe_wait || f64::from(self.rounds_since_probe) >= reno
    }

    fn is_time_to_cruise(&self, progress: &Progress) -> bool {
        let in_network = f64::from(progress.in_network);
        let path = self.volume(progress, self.product(self.max_rate(), 1.0));
        in_network <= self.with_headroom() && in_network <= path
    }

    fn end_probe_if_full(&mut self, window: &Window, now: Time, progress: &Progress, speed: f64) {
        if self.is_time_to_go_down(window, progress, speed) {
            self.too_high = false;
            self.start_down(now);
        }
    }

    fn is_time_to_go_down(&mut self, window: &Window, progress: &Progress, speed: f64) -> bool {
        if self.too_high && f64::from(progress.in_network) >= self.inflight {
            self.cautious = true;
            return true;
        }
        if self.is_bound(window, progress) {
            self.pipe = FullPipe::from(speed);
            return false;
        }
        self.pipe.now
    }

    fn update_min_rtt(&mut self, sample: &Sample) {
        let now = sample.now;
        self.probe_rtt_due = now > self.probed_rtt_at + PROBE_RTT_INTERVAL;
        if let Some(rtt) = sample.rtt
            && (self.probe_rtt_due || self.probed_rtt.is_none_or(|least| rtt < least))
        {
            (self.probed_rtt, self.probed_rtt_at) = (Some(rtt), now);
        }
        let Some(probed) = self.probed_rtt else { return };
        let expired = now > self.min_rtt_at + MIN_RTT_WINDOW;
        if expired || self.min_rtt.is_none_or(|least| probed < least) {
            (self.min_rtt, self.min_rtt_at) = (Some(probed), self.probed_rtt_at);
        }
    }

    fn check_probe_rtt(&mut self, window: &mut Window, now: Time, progress: &Progress) {
        if self.mode != Mode::ProbeRtt && self.probe_rtt_due && !self.idle_restart {
            self.save_window(window);
            self.mode = Mode::ProbeRtt;
            self.probe_rtt_ends = None;
            self.probe_stops = true;
            self.held_back = [self.delivered; 2];
            self.start_round();
        }
        if self.mode == Mode::ProbeRtt {
            self.held_back[1] = self.delivered + u64::from(progress.in_network);
            match self.probe_rtt_ends {
                None if f64::from(progress.in_network) <= self.probe_rtt_window() => {
                    self.probe_rtt_ends = Some(now + PROBE_RTT);
                    self.probe_rtt_round_done = false;
                    self.start_round();
                }
                None => {}
                Some(_) => {
                    self.probe_rtt_round_done |= self.round_start;
                    if self.probe_rtt_round_done {
                        self.check_probe_rtt_done(window, now);
                    }
                }
            }
        }
        if progress.rate.is_some_and(|rate| rate.delivered > 0) {
            self.idle_restart = false;
        }
    }

    fn check_probe_rtt_done(&mut self, window: &mut Window, now: Time) {
        if self.probe_rtt_ends.is_none_or(|ends| now <= ends) {
            return;
        }
        self.probed_rtt_at = now;
        window.cwnd = window.cwnd.max(self.prior_window);
        self.short.release();
        if self.full {
            // The next probe is put off. The path is drained already.
            self.start_down(now);
            self.mode = Mode::Cruise;
        } else {
            self.mode = Mode::Startup;
        }
    }
}

/// Pacing rate and window.
impl Model {
    /// Segments that fill the path at a rate, times a gain (`BDPMultiple`).
    fn product(&self, rate: f64, gain: f64) -> f64 {
        self.min_rtt.map_or(self.initial_window.into(), |min| gain * rate * min.as_secs_f64())
    }

    /// The product, unless congestion has cut the window (`TargetInflight`).
    fn target(&self, window: &Window) -> f64 {
        self.product(self.rate, 1.0).min(window.cwnd.into())
    }

    /// As many segments as the two hosts need for their bursts, at least (`QuantizationBudget`).
    fn volume(&self, progress: &Progress, volume: f64) -> f64 {
        let mss = f64::from(progress.mss);
        let quantum = (self.pacing_rate * QUANTUM.as_secs_f64()).min(MAX_QUANTUM).max(2.0 * mss);
        // A probe must exceed the product even where it is small.
        let more = if self.mode == Mode::Up { 2.0 } else { 0.0 };
        (volume.max(3.0 * quantum / mss).max(MIN_WINDOW) + more).ceil()
    }

    /// The long-term bound without what is left to others (`InflightWithHeadroom`).
    fn with_headroom(&self) -> f64 {
        if self.inflight.is_infinite() {
            return f64::INFINITY;
        }
        (self.inflight - (HEADROOM * self.inflight).max(1.0)).max(MIN_WINDOW)
    }

    fn probe_rtt_window(&self) -> f64 {
        self.product(self.rate, PROBE_RTT_WINDOW_GAIN).max(MIN_WINDOW)
    }

    fn set_pacing(&mut self, window: &Window, progress: &Progress, gain: f64) {
        let mss = f64::from(progress.mss);
        if !self.paced && progress.smoothed > Span::ZERO {
            self.paced = true;
            self.pacing_rate = STARTUP_GAIN * mss * f64::from(window.cwnd) / progress.smoothed.as_secs_f64();
        }
        let rate = self.rate * mss * gain * MARGIN;
        if self.full || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    fn save_window(&mut self, window: &Window) {
        // Before a loss or a probe, the window was a good one.
        let good = self.repair == Repair::None && self.mode != Mode::ProbeRtt;
        self.prior_window = if good { window.cwnd } else { self.prior_window.max(window.cwnd) };
    }

    fn set_window(&mut self, window: &mut Window, sample: &Sample, progress: &Progress) {
        let before = std::mem::replace(&mut self.repair, progress.repair);
        if before != Repair::None && self.repair == Repair::None {
            window.cwnd = window.cwnd.max(self.prior_window);
        }
        if sample.acked > 0 {
            let most = self.product(self.rate, self.mode.window_gain()) + self.excess.get();
            let most = self.volume(progress, most) as u32;
            if self.full {
                window.cwnd = (window.cwnd + sample.acked).min(most);
            } else if window.cwnd < most || progress.total < u64::from(self.initial_window) {
                window.cwnd += sample.acked;
            }
        }
        let mut bound = match self.mode {
            Mode::Down | Mode::Refill | Mode::Up => self.inflight,
            Mode::Cruise => self.with_headroom(),
            Mode::ProbeRtt => self.with_headroom().min(self.probe_rtt_window()),
            Mode::Startup | Mode::Drain => f64::INFINITY,
        };
        bound = bound.min(self.short.inflight).max(MIN_WINDOW);
        window.cwnd = window.cwnd.max(MIN_WINDOW as u32).min(bound.ceil().min(f64::from(u32::MAX)) as u32);
    }
}
