//! Q-learning of one rate per peer (thesis chapter 5).
//!
//! States are packets per second; actions change them by one. Conflux (`proto::conflux::q_learning`) uses the same learner
//! with a leg in the place of a peer. The stream server's explorer is not Q-learning.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kind::ControllerKind;
use super::{Controller, Feedback, Memo, Peer};
use crate::keys::Parameters;
use crate::random::{Random, Seed};
use crate::registry::Origin;
use crate::units::Time;

/// Source and oracles.
pub(crate) const ORIGIN: Origin = Origin {
    system: "Q-learning per peer",
    source: "Raiber 2010, chapter 5",
    oracles: &[
        "crates/control/src/paths/q_learning.rs: the_fast_start_leaves_the_table_of_5_18_to_5_20",
        "crates/control/src/paths/q_learning.rs: an_update_is_equation_5_4_with_the_mean_reward",
    ],
    deviation: "",
};

/// Parameters of `q-learning`, and of its variants.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct QSymbols {
    /// How much a new estimate counts, equation 5.4. Source: Raiber 2010, section 7.1.5.
    #[schemars(extend("exclusiveMinimum" = 0.0, "maximum" = 1.0))]
    pub alpha: f64,
    /// How much the future counts, equation 5.4. Source: Raiber 2010, section 7.1.5.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub gamma: f64,
    /// Reward for an acknowledgement, multiplied by the state. Source: Raiber 2010, section 7.1.5.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub reward_ack: f64,
    /// Reward for a timeout (negative), multiplied by the state. Source: Raiber 2010, section 7.1.5.
    #[schemars(extend("exclusiveMaximum" = 0.0))]
    pub reward_timeout: f64,
    /// Probability of a random action; 0.003 unless `tau` is given. Source: Raiber 2010, section 7.1.5.
    #[schemars(range(min = 0.0, max = 1.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epsilon: Option<f64>,
    /// Draw actions with probability proportional to exp(Q / tau) instead. Source: Raiber 2010, equation 5.15.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tau: Option<f64>,
    /// The highest state.
    #[schemars(range(min = 1, max = 0xf_ffff))]
    pub top: u32,
}

impl Default for QSymbols {
    fn default() -> QSymbols {
        QSymbols {
            alpha: 0.25,
            gamma: 0.9,
            reward_ack: 0.015,
            reward_timeout: -1.0,
            epsilon: None,
            tau: None,
            top: 8739,
        }
    }
}

impl QSymbols {
    /// The learner's parameters, where one state is `packet` bytes/s.
    pub(crate) fn parameters(self, packet: f64) -> QParameters {
        let QSymbols { alpha, gamma, reward_ack, reward_timeout, epsilon, tau, top } = self;
        let exploration = match tau {
            Some(tau) => Exploration::Softmax { tau },
            None => Exploration::Greedy { epsilon: epsilon.unwrap_or(0.003) },
        };
        QParameters { packet, alpha, gamma, reward_ack, reward_timeout, exploration, top }
    }
}

impl Parameters for QSymbols {
    fn mistake(&self) -> Option<(&'static str, &'static str)> {
        let both = self.epsilon.is_some() && self.tau.is_some();
        both.then_some(("`epsilon` and `tau` exclude each other", "leave one of them out"))
    }
}

impl ControllerKind for QSymbols {
    fn controller(&self, packet: f64, peers: usize, seed: Seed) -> Option<Box<dyn Controller>> {
        Some(Box::new(QLearning::new(peers, self.parameters(packet), seed)))
    }

    fn serves_streams(&self) -> bool {
        true
    }
}

/// The thesis' symbols.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QParameters {
    /// M: packet size in bytes; state s means s M bytes/s.
    pub packet: f64,
    /// alpha of equation 5.4: how much a new estimate counts.
    pub alpha: f64,
    /// gamma of equation 5.4: how much the future counts.
    pub gamma: f64,
    /// r_u: reward for an acknowledgement, times s.
    pub reward_ack: f64,
    /// r_d: reward (negative) for a timeout, times s.
    pub reward_timeout: f64,
    /// How actions are explored.
    pub exploration: Exploration,
    /// The highest state.
    pub top: u32,
}

/// Section 5.3.2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Exploration {
    /// With probability epsilon a uniformly drawn action, otherwise the best (5.21; 5.14 is printed inverted).
    Greedy {
        /// epsilon
        epsilon: f64,
    },
    /// Actions drawn with probability proportional to exp(Q / tau) (5.15).
    Softmax {
        /// tau
        tau: f64,
    },
}

const UP: usize = 0;
const STAY: usize = 1;
const DOWN: usize = 2;
/// No action was taken since the fast start.
const NONE: usize = 3;

/// One learner per peer.
#[derive(Clone, Debug)]
pub struct QLearning {
    parameters: QParameters,
    peers: Vec<Learner>,
    random: Random,
}

#[derive(Clone, Debug)]
struct Learner {
    /// s: packets per second.
    state: u32,
    /// The action that led to `state`.
    action: usize,
    /// The state s_t in which the fast start met its first timeout; `None` during the fast start.
    congested: Option<u32>,
    /// Number of feedbacks since the last transition about packets sent in this state.
    heard: u32,
    /// Rewards since the last transition, grouped by the transition of their packets.
    rewards: Vec<Reward>,
    /// Updated rows of the Q-table; other rows have the values of the fast start.
    table: BTreeMap<u32, [f32; 3]>,
}

#[derive(Clone, Copy, Debug)]
struct Reward {
    memo: Memo,
    sum: f32,
    count: f32,
}

/// State and action at sending, packed: bits 0..20 the state, 20..22 the action, 22 the fast start.
fn pack(state: u32, action: usize, fast: bool) -> Memo {
    state | (action as u32) << 20 | u32::from(fast) << 22
}

fn unpack(memo: Memo) -> (u32, usize, bool) {
    (memo & 0xf_ffff, (memo >> 20 & 3) as usize, memo >> 22 & 1 == 1)
}

impl QLearning {
    /// Every peer starts in the fast start with state 1.
    pub fn new(peers: usize, parameters: QParameters, seed: Seed) -> QLearning {
        let learner = Learner {
            state: 1,
            action: NONE,
            congested: None,
            heard: 0,
            rewards: Vec::new(),
            table: BTreeMap::new(),
        };
        let parameters = QParameters { top: parameters.top.clamp(1, 0xf_ffff), ..parameters };
        QLearning { parameters, peers: vec![learner; peers], random: seed.fork("q-learning").random() }
    }

    /// Sets the state in which every peer starts the fast start.
    pub fn starting_with(mut self, state: u32) -> QLearning {
        let state = state.clamp(1, self.parameters.top);
        self.peers.iter_mut().for_each(|learner| learner.state = state);
        self
    }
}

impl QParameters {
    /// The row as the fast start leaves it (5.18-5.20), where `congested` is s_t.
    fn initial(&self, state: u32, congested: u32) -> [f32; 3] {
        if state >= congested {
            [0.0, 0.0, (-self.reward_timeout * f64::from(state - 1)) as f32]
        } else if state >= congested / 2 {
            [0.0; 3]
        } else {
            [(self.reward_ack * f64::from(state)) as f32, 0.0, 0.0]
        }
    }

    fn possible(&self, state: u32, action: usize) -> bool {
        match action {
            UP => state < self.top,
            DOWN => state > 1,
            _ => true,
        }
    }

    fn choose(&self, state: u32, row: [f32; 3], random: &mut Random) -> usize {
        let possible = |action: &usize| self.possible(state, *action);
        match self.exploration {
            Exploration::Greedy { epsilon } => {
                let explore = random.chance(epsilon);
                let best = (UP..=DOWN).filter(possible).map(|a| row[a]).fold(f32::MIN, f32::max);
                let candidates = || (UP..=DOWN).filter(possible).filter(|a| explore || row[*a] == best);
                let drawn = random.below(candidates().count());
                candidates().nth(drawn).expect("drawn among the candidates")
            }
            Exploration::Softmax { tau } => {
                let best = (UP..=DOWN).filter(possible).map(|a| row[a]).fold(f32::MIN, f32::max);
                let weight = |a: usize| libm::exp(f64::from(row[a] - best) / tau);
                let total: f64 = (UP..=DOWN).filter(possible).map(weight).sum();
                let mut left = random.unit() * total;
                (UP..=DOWN)
                    .filter(possible)
                    .find(|a| {
                        left -= weight(*a);
                        left < 0.0
                    })
                    .unwrap_or(STAY)
            }
        }
    }
}

impl Learner {
    fn row(&self, parameters: &QParameters, state: u32) -> [f32; 3] {
        let congested = self.congested.unwrap_or(u32::MAX);
        self.table.get(&state).copied().unwrap_or_else(|| parameters.initial(state, congested))
    }

    /// Learns (5.4, with the mean of each transition's rewards) and acts, after enough feedback in this state.
    fn transition(&mut self, parameters: &QParameters, random: &mut Random) {
        for reward in std::mem::take(&mut self.rewards) {
            let (state, action, _) = unpack(reward.memo);
            let before = match action {
                UP => state - 1,
                DOWN => state + 1,
                _ => state,
            };
            let next = self.row(parameters, state);
            let future = (UP..=DOWN)
                .filter(|a| parameters.possible(state, *a))
                .map(|a| next[a])
                .fold(f32::MIN, f32::max);
            let mut row = self.row(parameters, before);
            let target = reward.sum / reward.count + parameters.gamma as f32 * future;
            row[action] += parameters.alpha as f32 * (target - row[action]);
            self.table.insert(before, row);
        }
        self.action = parameters.choose(self.state, self.row(parameters, self.state), random);
        match self.action {
            UP => self.state += 1,
            DOWN => self.state -= 1,
            _ => {}
        }
        self.heard = 0;
    }

    fn reward(&mut self, memo: Memo, reward: f32) {
        if unpack(memo).1 != NONE {
            match self.rewards.iter_mut().find(|known| known.memo == memo) {
                Some(known) => (known.sum, known.count) = (known.sum + reward, known.count + 1.0),
                None => self.rewards.push(Reward { memo, sum: reward, count: 1.0 }),
            }
        }
        // Feedback about an earlier state teaches about that state, but does not count towards leaving this one.
        self.heard += u32::from(unpack(memo).0 == self.state);
    }
}

impl Controller for QLearning {
    fn rate(&self, peer: Peer) -> f64 {
        f64::from(self.peers[usize::from(peer)].state) * self.parameters.packet
    }

    fn memo(&self, peer: Peer) -> Memo {
        let learner = &self.peers[usize::from(peer)];
        pack(learner.state, learner.action, learner.congested.is_none())
    }

    fn feedback(&mut self, _now: Time, peer: Peer, memo: Memo, feedback: Feedback) -> f64 {
        let learner = &mut self.peers[usize::from(peer)];
        let (sent_in, _, sent_fast) = unpack(memo);
        let acked = matches!(feedback, Feedback::Acked { .. });
        match (learner.congested, acked) {
            (None, true) => learner.state = (learner.state + 1).min(self.parameters.top),
            (None, false) => {
                learner.congested = Some(sent_in);
                learner.state = (sent_in / 2).max(1);
            }
            // Packets of the fast start say nothing about a state chosen later.
            (Some(_), _) if sent_fast => {}
            (Some(_), _) => {
                let sign = if acked { self.parameters.reward_ack } else { self.parameters.reward_timeout };
                learner.reward(memo, (sign * f64::from(sent_in)) as f32);
                if learner.heard >= learner.state {
                    learner.transition(&self.parameters, &mut self.random);
                }
            }
        }
        f64::from(learner.state) * self.parameters.packet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACK: Feedback = Feedback::Acked { round_trip: 0.1, stamp: None };

    fn learner(exploration: Exploration) -> QLearning {
        seeded(exploration, 1)
    }

    fn seeded(exploration: Exploration, seed: u64) -> QLearning {
        let parameters = QParameters {
            packet: 1500.0,
            alpha: 0.25,
            gamma: 0.9,
            reward_ack: 0.015,
            reward_timeout: -1.0,
            exploration,
            top: 8739,
        };
        QLearning::new(1, parameters, Seed::root(seed))
    }

    fn state(control: &QLearning) -> u32 {
        control.peers[0].state
    }

    #[test]
    fn the_fast_start_leaves_the_table_of_5_18_to_5_20() {
        let mut control = learner(Exploration::Greedy { epsilon: 0.0 });
        for _ in 0..19 {
            let memo = control.memo(0);
            control.feedback(Time::ZERO, 0, memo, ACK);
        }
        let late = control.memo(0);
        control.feedback(Time::ZERO, 0, late, Feedback::TimedOut);
        assert_eq!(state(&control), 10);
        let row = |s| control.peers[0].row(&control.parameters, s);
        assert_eq!(row(20), [0.0, 0.0, 19.0]);
        assert_eq!(row(10), [0.0; 3]);
        assert_eq!(row(4), [0.06, 0.0, 0.0]);
        control.feedback(Time::ZERO, 0, late, Feedback::TimedOut);
        assert_eq!((state(&control), control.peers[0].heard), (10, 0), "fast-start feedback is over");
    }

    #[test]
    fn an_update_is_equation_5_4_with_the_mean_reward() {
        let mut control = learner(Exploration::Greedy { epsilon: 0.0 });
        control.peers[0].congested = Some(8);
        control.peers[0].state = 4;
        control.peers[0].action = UP;
        let memo = control.memo(0);
        for feedback in [ACK, ACK, ACK, Feedback::TimedOut] {
            control.feedback(Time::ZERO, 0, memo, feedback);
        }
        // Q(3, up) was r_u 3; the mean reward is (3 x 0.015 x 4 - 4) / 4; the best of state 4 is zero.
        let expected = 0.045 + 0.25 * ((3.0 * 0.06 - 4.0) / 4.0 - 0.045);
        assert!((control.peers[0].table[&3][UP] - expected as f32).abs() < 1e-6);
    }

    #[test]
    fn it_settles_between_half_the_congested_state_and_the_limit() {
        for exploration in [Exploration::Greedy { epsilon: 0.01 }, Exploration::Softmax { tau: 0.05 }] {
            let mut sum = 0;
            for seed in 1..=16 {
                let mut control = seeded(exploration, seed);
                for second in 0..4000 {
                    let (memo, sent) = (control.memo(0), state(&control));
                    for packet in 0..sent {
                        let outcome = if packet < 30 { ACK } else { Feedback::TimedOut };
                        control.feedback(Time::ZERO, 0, memo, outcome);
                    }
                    sum += if second >= 2000 { sent } else { 0 };
                }
            }
            let mean = f64::from(sum) / (16.0 * 2000.0);
            assert!((16.0..31.0).contains(&mean), "{exploration:?}: mean state {mean}");
        }
    }
}
