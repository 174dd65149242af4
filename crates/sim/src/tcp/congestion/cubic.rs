//! CUBIC (RFC 9438) with fast convergence, the Reno-friendly region and HyStart, in Linux's form: the
//! window is steered by "one segment more for every `n` acknowledged", and slow start ends when the
//! acknowledgements of a round arrive as one long train or its delay has risen (Ha, Rhee 2011).

use tidegate_control::units::{Span, Time};

use super::window::{Algorithm, Progress, Restart, Sample, Window};

/// Share of the window kept after a loss.
const BETA: f32 = 717.0 / 1024.0;
/// Segments per second cubed.
const C: f32 = 0.4;
/// Segments acknowledged per segment of growth of the window that Reno would have had, over its size:
/// `(1 + BETA) / (3 (1 - BETA))`, in Linux's eighths.
const RENO_ACKS_PER_SEGMENT: f32 = 15.0 / 8.0;

/// HyStart runs in windows from this size.
const HYSTART_LOW_WINDOW: u32 = 16;
/// Acknowledgements closer than this belong to one train.
const TRAIN_GAP_US: u32 = 2_000;
/// Slack on the length of a train for the sender's own bursts.
const TRAIN_SLACK_US: u32 = 1_000;
/// Round-trip times looked at in each round.
const DELAY_SAMPLES: u8 = 8;

/// Times in microseconds on a clock that wraps after 71 minutes; differences are far shorter.
#[derive(Clone, Debug, Default)]
pub(in crate::tcp) struct Cubic {
    /// Start of the growth after the last loss.
    epoch: Option<Time>,
    /// Window before the last loss; zero before the first.
    w_max: f32,
    /// Inflection point of the curve,
    origin: f32,
    /// and the time from the epoch to it, in seconds.
    k: f32,
    /// The window Reno would have,
    reno: f32,
    /// Smallest round-trip time.
    min_rtt_us: u32,
    /// The round of HyStart ends when this offset is acknowledged.
    round_end: u64,
    round_start_us: u32,
    last_ack_us: u32,
    round_rtt_us: u32,
    samples: u8,
    /// HyStart has ended slow start.
    found: bool,
}

impl Algorithm for Cubic {
    fn on_ack(&mut self, window: &mut Window, sample: &Sample) {
        if let Some(rtt) = sample.rtt {
            self.on_rtt(window, sample, (rtt.0 / 1_000).clamp(1, 1 << 31) as u32);
        }
        if !(sample.limited && sample.may_grow) {
            return;
        }
        let mut acked = sample.acked;
        if window.in_slow_start() {
            acked = window.slow_start(acked);
        }
        if acked > 0 {
            let per_segment = self.acks_per_segment(window.cwnd, acked, sample.now);
            window.grow(per_segment, acked);
        }
    }

    fn threshold_after_loss(&mut self, window: &Window) -> u32 {
        self.epoch = None;
        let cwnd = window.cwnd as f32;
        self.w_max = if cwnd < self.w_max { cwnd * (1.0 + BETA) / 2.0 } else { cwnd };
        ((cwnd * BETA) as u32).max(2)
    }

    fn on_timeout(&mut self, window: &mut Window, now: Time, in_network: u32, _: Option<&Progress>) {
        window.cwnd = in_network + 1;
        *self = Cubic { round_start_us: micros(now), last_ack_us: micros(now), ..Cubic::default() };
    }

    /// A pause is not growth: the curve goes on where it was.
    fn on_restart(&mut self, _: &mut Window, restart: &Restart) {
        if let Some(epoch) = &mut self.epoch {
            *epoch += restart.pause;
        }
    }
}

impl Cubic {
    fn acks_per_segment(&mut self, cwnd: u32, acked: u32, now: Time) -> u32 {
        let cwnd = cwnd as f32;
        let epoch = *self.epoch.get_or_insert_with(|| {
            self.reno = cwnd;
            self.origin = self.w_max.max(cwnd);
            self.k = libm::cbrtf((self.origin - cwnd) / C);
            now
        });
        let t = now.since(epoch).0 as f32 * 1e-9 + self.min_rtt_us as f32 * 1e-6;
        let distance = t - self.k;
        let target = self.origin + C * distance * distance * distance;
        let mut per_segment = if target > cwnd { cwnd / (target - cwnd) } else { 100.0 * cwnd };
        if self.w_max == 0.0 {
            per_segment = per_segment.min(20.0);
        }
        self.reno += acked as f32 / (cwnd * RENO_ACKS_PER_SEGMENT);
        if self.reno >= cwnd + 1.0 {
            per_segment = per_segment.min(cwnd / (self.reno - cwnd));
        }
        per_segment.clamp(2.0, 1e9) as u32
    }

    fn on_rtt(&mut self, window: &mut Window, sample: &Sample, rtt_us: u32) {
        if self.epoch.is_some_and(|epoch| sample.now.since(epoch) < Span::from_secs(1)) {
            return; // delays right after a recovery say little
        }
        if self.min_rtt_us == 0 || rtt_us < self.min_rtt_us {
            self.min_rtt_us = rtt_us;
        }
        if !self.found && window.in_slow_start() {
            self.hystart(window, sample, rtt_us);
        }
    }

    fn hystart(&mut self, window: &mut Window, sample: &Sample, rtt_us: u32) {
        let now = micros(sample.now);
        if sample.una > self.round_end {
            self.round_start_us = now;
            self.last_ack_us = now;
            self.round_end = sample.next;
            self.round_rtt_us = u32::MAX;
            self.samples = 0;
        }
        if window.cwnd < HYSTART_LOW_WINDOW {
            return;
        }
        // A train of acknowledgements as long as half a round trip means that the pipe is full.
        if now.wrapping_sub(self.last_ack_us) <= TRAIN_GAP_US {
            self.last_ack_us = now;
            let longest = (self.min_rtt_us + TRAIN_SLACK_US) / 2;
            self.found |= now.wrapping_sub(self.round_start_us) > longest;
        }
        self.round_rtt_us = self.round_rtt_us.min(rtt_us);
        if self.samples < DELAY_SAMPLES {
            self.samples += 1;
        } else {
            // The round-trip time has risen: a queue is building up.
            let rise = (self.min_rtt_us / 8).clamp(4_000, 16_000);
            self.found |= self.round_rtt_us > self.min_rtt_us + rise;
        }
        if self.found {
            window.ssthresh = window.cwnd;
        }
    }
}

fn micros(now: Time) -> u32 {
    (now.0 / 1_000) as u32
}
