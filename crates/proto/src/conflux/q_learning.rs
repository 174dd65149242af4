//! Division by Q-learning: one learner per leg limits its batches in flight.
//!
//! The learner is [`QLearning`] of per-packet paths (M. Raiber, TUM 2010, chapter 5), with a leg in the place of a peer. There,
//! states are packets per second, each acknowledged. A circuit acknowledges batches of cells by SENDMEs, so here a
//! state is the number of batches in flight. A timely SENDME is rewarded and a late one punished, because circuits do not
//! lose cells. Of the legs that may carry another batch, the one with the least round-trip time goes first. Each leg's
//! own window still applies.

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::keys::Parameters;
use tidegate_control::paths::{Controller as _, Exploration, Feedback, Memo, QLearning, QParameters};
use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};

use super::split::{Offer, Split, Splitter};
use crate::ids::CircuitKey;

/// Parameters, with the symbols of Raiber's thesis (2010) where it has them.
///
/// A batch is the cells that one SENDME acknowledges (31 by default).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Learnt {
    /// How much a new estimate counts. Source: Raiber 2010, equation 5.4.
    #[schemars(range(min = 1e-6, max = 1.0))]
    pub alpha: f64,
    /// How much the future counts. Source: Raiber 2010, equation 5.4.
    #[schemars(range(min = 0.0, max = 0.999))]
    pub gamma: f64,
    /// Reward for a timely SENDME, multiplied by the batches in flight. Source: Raiber 2010, section 7.1.5.
    #[schemars(range(min = 0.0))]
    pub reward_ack: f64,
    /// Reward (negative) for a late SENDME, multiplied by the batches in flight. Source: Raiber 2010, section 7.1.5.
    #[schemars(range(max = 0.0))]
    pub reward_late: f64,
    /// Probability of a random action. Source: Raiber 2010, section 7.1.5.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub epsilon: f64,
    /// A SENDME is late after this multiple of its leg's least round-trip time. Source: the timeout factor of Raiber 2010,
    /// section 7.1.5, a multiple of the mean there.
    #[schemars(range(min = 1.01))]
    pub late: f64,
    /// Batches that a leg may have in flight at the beginning. Source: tor's `cc_cwnd_init`.
    #[schemars(range(min = 1, max = 1000))]
    pub first: u32,
    /// The most batches that a leg may have in flight. Source: tor's `cc_ss_max`.
    #[schemars(range(min = 1, max = 100_000))]
    pub top: u32,
}

impl Default for Learnt {
    fn default() -> Learnt {
        Learnt {
            alpha: 0.25,
            gamma: 0.9,
            reward_ack: 0.015,
            reward_late: -1.0,
            epsilon: 0.003,
            late: 4.0,
            first: 4,
            top: 161,
        }
    }
}

impl Parameters for Learnt {
    fn mistake(&self) -> Option<(&'static str, &'static str)> {
        (self.first > self.top).then_some(("`first` is above `top`", "first = 4, top = 161"))
    }
}

impl Split for Learnt {
    fn build(&self, seed: Seed) -> Box<dyn Splitter> {
        Box::new(Learners { rules: *self, seed, legs: Vec::new() })
    }
}

#[derive(Debug)]
struct Learners {
    rules: Learnt,
    seed: Seed,
    legs: Vec<Learner>,
}

#[derive(Debug)]
struct Learner {
    circuit: CircuitKey,
    control: QLearning,
    /// Cells of the incomplete batch.
    begun: u32,
    /// Batches in flight: the time of the last cell, the learner's memo, and whether the leg was at its limit. A
    /// batch below the limit does not say whether the leg could carry more.
    batches: VecDeque<(Time, Memo, bool)>,
    least: Span,
}

impl Learner {
    /// The most batches in flight.
    fn state(&self) -> u32 {
        self.control.rate(0) as u32
    }
}

impl Learners {
    fn leg(&self, circuit: CircuitKey) -> Option<&Learner> {
        self.legs.iter().find(|leg| leg.circuit == circuit)
    }

    fn leg_mut(&mut self, circuit: CircuitKey) -> &mut Learner {
        let at = self.legs.iter().position(|leg| leg.circuit == circuit).unwrap_or_else(|| {
            let Learnt { alpha, gamma, reward_ack, reward_late, epsilon, first, top, .. } = self.rules;
            let exploration = Exploration::Greedy { epsilon };
            let (packet, reward_timeout) = (1.0, reward_late);
            let symbols = QParameters { packet, alpha, gamma, reward_ack, reward_timeout, exploration, top };
            let seed = self.seed.fork_index(circuit.0.into());
            let control = QLearning::new(1, symbols, seed).starting_with(first);
            let least = Span(u64::MAX);
            self.legs.push(Learner { circuit, control, begun: 0, batches: VecDeque::new(), least });
            self.legs.len() - 1
        });
        &mut self.legs[at]
    }
}

impl Splitter for Learners {
    fn room(&self, leg: &Offer, _: &dyn Fn() -> Offer) -> u32 {
        let state = self.leg(leg.circuit).map_or(self.rules.first, Learner::state);
        let may = state.saturating_mul(leg.capacity.increment);
        leg.capacity.room.min(may.saturating_sub(leg.in_flight))
    }

    fn sent(&mut self, now: Time, leg: &Offer) {
        let learner = self.leg_mut(leg.circuit);
        learner.begun += 1;
        if learner.begun == leg.capacity.increment {
            learner.begun = 0;
            let full = learner.batches.len() as u32 + 1 >= learner.state();
            learner.batches.push_back((now, learner.control.memo(0), full));
        }
    }

    fn acknowledged(&mut self, now: Time, circuit: CircuitKey) {
        let late = self.rules.late;
        let learner = self.leg_mut(circuit);
        let Some((sent, memo, full)) = learner.batches.pop_front() else { return };
        let took = now.since(sent);
        learner.least = learner.least.min(took);
        let (round_trip, limit) = (took.as_secs_f64(), learner.least.as_secs_f64() * late);
        if round_trip > limit {
            learner.control.feedback(now, 0, memo, Feedback::TimedOut);
        } else if full {
            learner.control.feedback(now, 0, memo, Feedback::Acked { round_trip, stamp: None });
        }
    }

    fn removed(&mut self, circuit: CircuitKey) {
        self.legs.retain(|leg| leg.circuit != circuit);
    }

    fn renamed(&mut self, circuit: CircuitKey, to: CircuitKey) {
        self.legs.iter_mut().filter(|leg| leg.circuit == circuit).for_each(|leg| leg.circuit = to);
    }
}

#[cfg(test)]
mod tests {
    use super::super::split::Capacity;
    use super::*;

    const LEG: CircuitKey = CircuitKey(7);

    fn offer(in_flight: u32) -> Offer {
        let capacity = Capacity { room: 10_000, window: 10_000, planned: None, increment: 31 };
        Offer { circuit: LEG, capacity, in_flight, round_trip: Span::from_millis(100) }
    }

    /// Fills a leg for `seconds` over a bottleneck of `per_s` batches/s and 100 ms. Returns the mean limit of batches in
    /// flight in the second half.
    fn run(learners: &mut dyn Splitter, per_s: u64, seconds: u64, wants: u32) -> f64 {
        let (mut now, mut free, mut in_flight) = (Time::ZERO, Time::ZERO, 0);
        let mut acks: VecDeque<Time> = VecDeque::new();
        let (mut sum, mut count) = (0.0, 0.0);
        while now < Time::ZERO + Span::from_secs(seconds) {
            while learners.room(&offer(in_flight), &|| offer(in_flight)) > 0 && in_flight < wants * 31 {
                learners.sent(now, &offer(in_flight));
                in_flight += 1;
                if in_flight % 31 == 0 {
                    free = free.max(now) + Span(1_000_000_000 / per_s);
                    acks.push_back(free + Span::from_millis(100));
                }
            }
            now = acks.pop_front().expect("a batch is under way");
            learners.acknowledged(now, LEG);
            in_flight -= 31;
            if now > Time::ZERO + Span::from_secs(seconds / 2) {
                sum += f64::from(learners.room(&offer(0), &|| offer(0)) / 31);
                count += 1.0;
            }
        }
        sum / count
    }

    #[test]
    fn a_leg_learns_how_many_batches_return_in_time() {
        for seed in 1..=4 {
            // A batch takes 20 ms: six in flight fill the leg without a queue; with 24, SENDMEs are late.
            let mean = run(&mut *Learnt::default().build(Seed::root(seed)), 50, 600, u32::MAX / 31);
            assert!((6.0..=24.5).contains(&mean), "{mean}");
        }
    }

    #[test]
    fn idle_periods_are_not_learnt_from() {
        let mean = run(&mut *Learnt::default().build(Seed::root(1)), 50, 60, 3);
        assert!(mean <= 5.0, "{mean}");
    }
}
