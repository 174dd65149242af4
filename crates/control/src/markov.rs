//! tgen's Markov models of when users open streams, and of the packets on a stream.
//!
//! `data` reads the models, the simulator walks them.
//!
//! A chain moves to a next state, the state emits an observation, and the emission draws the delay before
//! the next move (tgen's `doc/TGen-Markov-Models.md`; the models are those of Jansen, Traudt, Hopper:
//! Privacy-Preserving Dynamic Learning of Tor Network Traffic, CCS 2018).

use crate::random::Random;
use crate::units::Span;

/// Payload bytes of one packet observation (tgen's `TGEN_MMODEL_PACKET_DATA_SIZE`).
pub const PACKET_BYTES: u32 = 1434;

/// tgen sends packets with smaller distances in one write (`TGEN_MMODEL_MICROS_AT_ONCE`).
pub const AT_ONCE: Span = Span::from_millis(10);

/// Bounds of the warm-up of [`Chain::walk_on_its_way`]: a time between these, and a number of moves. Chains with delays of up to ten
/// minutes that all begin at once are too busy at first.
const PAST: [Span; 2] = [Span::from_secs(3_600), Span::from_secs(7_200)];
const PAST_MOVES: usize = 2_000;
/// Probability below which a walk that makes moves at one instant does not count on an end or a delay, and the standard
/// deviations that a normal draw exceeds with this probability.
const RARE: f64 = 1e-5;
const RARE_DEVIATIONS: f64 = 4.26;
/// The least delay of a restart: a chain that ends at once must not stop the clock.
const LEAST_DELAY: Span = Span::from_millis(1);

/// A user's behaviour: the chain `streams` opens streams; on each, `packets` runs from its start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    /// Each observation that is not the end opens a stream.
    pub streams: Chain,
    /// Each observation that is not the end is a packet of [`PACKET_BYTES`].
    pub packets: Chain,
}

/// A hidden Markov chain. A chain without states ends at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chain {
    states: Vec<State>,
    start: usize,
    ceiling: Span,
}

/// A state: its successors and its emissions, chosen by weight.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Its name in the model's file.
    pub name: String,
    /// Next states (by index) and their weights.
    pub transitions: Vec<(usize, f64)>,
    /// The emissions of this state.
    pub emissions: Vec<Emission>,
}

/// An emission: an observation, and the time until the next move.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Emission {
    /// The observation.
    pub observation: Observation,
    /// Relative frequency within its state.
    pub weight: f64,
    /// The time that passes afterwards.
    pub delay: Delay,
}

/// The observation of an emission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation {
    /// tgen's `+` (in old stream models `$`): a packet from the client to the server, or a new stream.
    ToServer,
    /// tgen's `-`: a packet from the server to the client, or a new stream.
    ToOrigin,
    /// tgen's `F`: the end.
    End,
}

/// A distribution of delays in microseconds.
#[expect(missing_docs, reason = "the fields are tgen's param_location, param_scale, ...")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Delay {
    /// Normal with mean `location` and standard deviation `scale`; negative draws count as zero.
    Normal { location: f64, scale: f64 },
    /// The exponential function of a normal draw.
    LogNormal { location: f64, scale: f64 },
    /// Exponential with mean `1 / rate`.
    Exponential { rate: f64 },
    /// Pareto with least value `scale` and tail exponent `shape`.
    Pareto { scale: f64, shape: f64 },
    /// Uniform in `[low, high]`.
    Uniform { low: f64, high: f64 },
}

impl Delay {
    /// A draw in microseconds, before rounding and ceiling.
    pub(crate) fn sample(&self, random: &mut Random) -> f64 {
        match *self {
            Delay::Normal { location, scale } => random.normal(location, scale),
            Delay::LogNormal { location, scale } => libm::exp(random.normal(location, scale)),
            Delay::Exponential { rate } => random.exponential(1.0) / rate,
            Delay::Pareto { scale, shape } => scale / libm::pow(1.0 - random.unit(), 1.0 / shape),
            Delay::Uniform { low, high } => random.uniform(low, high),
        }
    }
}

impl Delay {
    /// Whether draws round to 0 us, except one in 100,000.
    fn is_nothing(&self) -> bool {
        // The values that a draw exceeds with probability `RARE`.
        let highest = match *self {
            Delay::Normal { location, scale } => location + RARE_DEVIATIONS * scale,
            Delay::LogNormal { location, scale } => libm::exp(location + RARE_DEVIATIONS * scale),
            Delay::Exponential { rate } => libm::log(1.0 / RARE) / rate,
            Delay::Pareto { scale, shape } => scale * libm::pow(1.0 / RARE, 1.0 / shape),
            Delay::Uniform { high, .. } => high,
        };
        highest < 0.5
    }
}

/// The position of a walk over a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    state: usize,
    ended: bool,
}

impl Chain {
    /// A chain that starts in a state (by index) and never waits longer than `ceiling` (tgen: 10 minutes).
    ///
    /// # Panics
    /// If the start or a transition names a missing state; readers check their input.
    pub fn new(states: Vec<State>, start: usize, ceiling: Span) -> Chain {
        let exists = |state: usize| state < states.len();
        assert!(exists(start), "the start exists");
        let mut targets = states.iter().flat_map(|state| &state.transitions);
        assert!(targets.all(|(to, _)| exists(*to)), "transitions lead to states");
        Chain { states, start, ceiling }
    }

    /// Its states.
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// Index of the state where walks begin; it does not emit.
    pub fn start(&self) -> usize {
        self.start
    }

    /// The longest delay.
    pub fn ceiling(&self) -> Span {
        self.ceiling
    }

    /// A state that walks reach and in which they stop the clock: from there they neither end nor wait.
    pub fn stops_the_clock(&self) -> Option<usize> {
        let targets = |items: Vec<(usize, f64)>| items.iter().map(|(to, _)| *to).collect::<Vec<usize>>();
        let transitions = || self.states.iter().map(|state| &state.transitions);
        let all: Vec<_> = transitions().map(|list| targets(possible(list, |(_, weight)| *weight))).collect();
        let next: Vec<_> = transitions().map(|list| targets(likely(list, |(_, weight)| *weight))).collect();
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); next.len()];
        for (at, to) in next.iter().enumerate().flat_map(|(at, next)| next.iter().map(move |to| (at, *to))) {
            before[to].push(at);
        }
        // A state goes on if a move ends, waits, or leads to a state that goes on.
        let goes_on =
            |at: usize| next[at].is_empty() || next[at].iter().any(|to| self.states[*to].ends_or_waits());
        let goes_on = flood((0..next.len()).filter(|at| goes_on(*at)).collect(), &before);
        let reached = flood((0..next.len()).filter(|at| *at == self.start).collect(), &all);
        let mut stuck = (0..next.len()).filter(|at| reached[*at] && !goes_on[*at]);
        // The start only leads to the cycle, unless nothing else does.
        stuck.clone().find(|at| *at != self.start).or_else(|| stuck.next())
    }

    /// A walk at its start.
    pub fn walk(&self) -> Walk {
        Walk { state: self.start, ended: self.states.is_empty() }
    }

    /// Moves a walk: returns the observation and the delay until the next move. After
    /// [`Observation::End`], and in states without successors or emissions, it stays at the end.
    pub fn step(&self, walk: &mut Walk, random: &mut Random) -> (Observation, Span) {
        let end = (Observation::End, Span::ZERO);
        if walk.ended {
            return end;
        }
        walk.ended = true;
        let Some((next, _)) = choose(&self.states[walk.state].transitions, |(_, weight)| *weight, random)
        else {
            return end;
        };
        let Some(emission) = choose(&self.states[*next].emissions, |emission| emission.weight, random) else {
            return end;
        };
        *walk = Walk { state: *next, ended: emission.observation == Observation::End };
        // Whole microseconds, as tgen rounds them; a cast of a negative or huge number saturates.
        let delay =
            Span::from_micros((emission.delay.sample(random).round() as u64).min(self.ceiling.0 / 1_000));
        (emission.observation, delay)
    }

    /// As [`Chain::step`], but restarts at the end, at least a millisecond later.
    pub fn step_again(&self, walk: &mut Walk, random: &mut Random) -> (Observation, Span) {
        let (observation, delay) = self.step(walk, random);
        if observation == Observation::End {
            *walk = self.walk();
        }
        (observation, delay.max(LEAST_DELAY))
    }

    /// A walk at a random time of a long series of restarts, and the delay until its next move.
    pub fn walk_on_its_way(&self, random: &mut Random) -> (Walk, Span) {
        let past = Span::from_secs_f64(random.uniform(PAST[0].as_secs_f64(), PAST[1].as_secs_f64()));
        let (mut walk, mut passed) = (self.walk(), Span::ZERO);
        for _ in 0..PAST_MOVES {
            passed = passed + self.step_again(&mut walk, random).1;
            if passed >= past {
                return (walk, passed - past);
            }
        }
        (walk, Span::ZERO)
    }
}

impl State {
    /// Whether an emission of this state can end a walk or take time.
    fn ends_or_waits(&self) -> bool {
        let emissions = likely(&self.emissions, |emission| emission.weight);
        emissions.is_empty()
            || emissions.iter().any(|it| it.observation == Observation::End || !it.delay.is_nothing())
    }
}

/// The nodes that can be reached from these.
fn flood(mut open: Vec<usize>, edges: &[Vec<usize>]) -> Vec<bool> {
    let mut reached = vec![false; edges.len()];
    while let Some(at) = open.pop() {
        if !std::mem::replace(&mut reached[at], true) {
            open.extend(&edges[at]);
        }
    }
    reached
}

/// The items that [`choose`] can choose.
fn possible<T: Copy>(items: &[T], weight: impl Fn(&T) -> f64) -> Vec<T> {
    let heavy: Vec<T> = items.iter().filter(|item| weight(item) > 0.0).copied().collect();
    if heavy.is_empty() { items.first().copied().into_iter().collect() } else { heavy }
}

/// The items that [`choose`] chooses at least once in 100,000 times: a walk waits for the others too long.
fn likely<T: Copy>(items: &[T], weight: impl Fn(&T) -> f64) -> Vec<T> {
    let total: f64 = items.iter().map(&weight).sum();
    possible(items, &weight).into_iter().filter(|item| weight(item) >= RARE * total).collect()
}

/// One of the items, by weight; the first if all weights are zero, as tgen does.
fn choose<'a, T>(items: &'a [T], weight: impl Fn(&T) -> f64, random: &mut Random) -> Option<&'a T> {
    let total: f64 = items.iter().map(&weight).sum();
    let mut left = random.unit() * total;
    let chosen = items.iter().find(|item| {
        left -= weight(item);
        left < 0.0
    });
    chosen.or(items.first())
}

#[cfg(test)]
mod tests {
    use crate::random::Seed;

    use super::*;

    /// Mean and standard deviation of a distribution, from the textbook.
    fn moments(delay: Delay) -> (f64, f64) {
        match delay {
            Delay::Normal { location, scale } => (location, scale),
            Delay::LogNormal { location, scale } => {
                let mean = (location + scale * scale / 2.0).exp();
                (mean, mean * ((scale * scale).exp() - 1.0).sqrt())
            }
            Delay::Exponential { rate } => (1.0 / rate, 1.0 / rate),
            Delay::Pareto { scale, shape } => {
                let mean = shape * scale / (shape - 1.0);
                (mean, scale / (shape - 1.0) * (shape / (shape - 2.0)).sqrt())
            }
            Delay::Uniform { low, high } => ((low + high) / 2.0, (high - low) / 12f64.sqrt()),
        }
    }

    #[test]
    fn sampled_delays_have_the_analytic_moments() {
        let draws = 100_000;
        for (index, delay) in [
            Delay::Normal { location: 5e6, scale: 1e6 },
            Delay::LogNormal { location: 7.5, scale: 0.8 },
            Delay::Exponential { rate: 0.001 },
            Delay::Pareto { scale: 100.0, shape: 5.0 },
            Delay::Uniform { low: 10.0, high: 30.0 },
        ]
        .into_iter()
        .enumerate()
        {
            let mut random = Seed::root(3).fork_index(index as u64).random();
            let samples: Vec<f64> = (0..draws).map(|_| delay.sample(&mut random)).collect();
            let mean = samples.iter().sum::<f64>() / f64::from(draws);
            let variance = samples.iter().map(|s| (s - mean) * (s - mean)).sum::<f64>() / f64::from(draws);
            let (expected, deviation) = moments(delay);
            // Four standard errors.
            let allowed = 4.0 * deviation / f64::from(draws).sqrt();
            assert!((mean - expected).abs() < allowed, "{delay:?}: mean {mean}, not {expected}");
            assert!(
                (variance.sqrt() / deviation - 1.0).abs() < 0.05,
                "{delay:?}: deviation {}",
                variance.sqrt()
            );
        }
    }

    fn emission(observation: Observation, weight: f64, delay: Delay) -> Emission {
        Emission { observation, weight, delay }
    }

    /// Start leads to A; A stays with 3/4 and ends with 1/4; A emits `+` twice as often as `-`.
    fn chain(delay: Delay) -> Chain {
        let states = vec![
            State { transitions: vec![(1, 2.0)], ..State::default() },
            State {
                transitions: vec![(1, 3.0), (2, 1.0)],
                emissions: vec![
                    emission(Observation::ToServer, 2.0, delay),
                    emission(Observation::ToOrigin, 1.0, delay),
                ],
                ..State::default()
            },
            State {
                emissions: vec![emission(Observation::End, 1.0, Delay::Uniform { low: 0.0, high: 0.0 })],
                ..State::default()
            },
        ];
        Chain::new(states, 0, Span::from_secs(600))
    }

    #[test]
    fn walks_follow_the_weights() {
        let chain = chain(Delay::Uniform { low: 1.0, high: 1.0 });
        let mut random = Seed::root(1).random();
        let (mut to_server, mut to_origin) = (0u32, 0u32);
        let walks = 20_000;
        for _ in 0..walks {
            let mut walk = chain.walk();
            loop {
                match chain.step(&mut walk, &mut random) {
                    (Observation::ToServer, delay) => {
                        assert_eq!(delay, Span::from_micros(1));
                        to_server += 1;
                    }
                    (Observation::ToOrigin, _) => to_origin += 1,
                    (Observation::End, _) => break,
                }
            }
            assert_eq!(
                chain.step(&mut walk, &mut random),
                (Observation::End, Span::ZERO),
                "the end is final"
            );
        }
        // A walk passes A 4 times on average (geometric); 2/3 of the packets go to the server.
        let per_walk = f64::from(to_server + to_origin) / f64::from(walks);
        assert!((per_walk - 4.0).abs() < 0.1, "{per_walk}");
        let share = f64::from(to_server) / f64::from(to_server + to_origin);
        assert!((share - 2.0 / 3.0).abs() < 0.01, "{share}");
    }

    #[test]
    fn delays_stay_between_zero_and_the_ceiling() {
        for (delay, expected) in [
            (Delay::Normal { location: -1e9, scale: 1.0 }, Span::ZERO),
            (Delay::LogNormal { location: 700.0, scale: 1.0 }, Span::from_secs(600)),
            (Delay::Exponential { rate: 1e-300 }, Span::from_secs(600)),
            (Delay::Pareto { scale: 1e300, shape: 1e-9 }, Span::from_secs(600)),
        ] {
            let chain = chain(delay);
            let drawn = chain.step(&mut chain.walk(), &mut Seed::root(1).random()).1;
            assert_eq!(drawn, expected, "{delay:?}");
        }
    }

    #[test]
    fn who_is_met_on_the_way_is_as_busy_now_as_later() {
        // The delay is a second, or ten minutes in one of ten moves: fresh walks are busy at first.
        let emissions = vec![
            emission(Observation::ToServer, 9.0, Delay::Uniform { low: 1e6, high: 1e6 }),
            emission(Observation::ToServer, 1.0, Delay::Uniform { low: 6e8, high: 6e8 }),
        ];
        let states = vec![State { transitions: vec![(0, 1.0)], emissions, ..State::default() }];
        let chain = Chain::new(states, 0, Span::from_secs(600));
        let mut random = Seed::root(4).random();
        let mut moves = |begun: fn(&Chain, &mut Random) -> (Walk, Span)| {
            let mut minutes = [0.0f64; 20];
            for _ in 0..2_000 {
                let (mut walk, mut at) = begun(&chain, &mut random);
                while at < Span::from_secs(1_200) {
                    minutes[(at.0 / Span::from_secs(60).0) as usize] += 1.0;
                    at = at + chain.step_again(&mut walk, &mut random).1;
                }
            }
            minutes[0] / minutes[10..].iter().sum::<f64>() * 10.0
        };
        let fresh = moves(|chain, _| (chain.walk(), Span::ZERO));
        let met = moves(Chain::walk_on_its_way);
        assert!(fresh > 3.0, "a chain that begins: {fresh}");
        assert!((met - 1.0).abs() < 0.2, "one that is met: {met}");
    }

    #[test]
    fn a_chain_without_states_ends_at_once() {
        let chain = Chain::default();
        assert_eq!(chain.step(&mut chain.walk(), &mut Seed::root(1).random()).0, Observation::End);
    }

    #[test]
    fn a_rare_end_does_not_let_time_go_on() {
        let nothing = Delay::Exponential { rate: 1e9 };
        let stops = |end: f64| {
            let emission = |observation, weight| Emission { observation, weight, delay: nothing };
            let state = State {
                name: "s".into(),
                transitions: vec![(1, 1.0)],
                emissions: vec![emission(Observation::ToServer, 1.0), emission(Observation::End, end)],
            };
            let start = State { name: "start".into(), transitions: vec![(1, 1.0)], emissions: Vec::new() };
            Chain::new(vec![start, state], 0, Span::from_secs(1)).stops_the_clock()
        };
        assert_eq!([0.0, 1e-12, 1e-3].map(stops), [Some(1), Some(1), None]);
    }
}
