//! The built-in Markov model of Tor's users: when they open streams, and what the streams carry.
//!
//! Streams follow PrivCount's stream model of 2018 (Jansen, Traudt, Hopper: Privacy-Preserving Dynamic Learning of Tor
//! Network Traffic, CCS 2018; its ten numbers, rounded). Four classes of streams approximate its packet model of 28
//! states: their shares, mean sizes and durations are fitted to 20,000 walks over that model, with a mean of 275 kB
//! and a median of 26 kB downstream. Scenarios with model files use the original model.

use tidegate_control::markov::{Chain, Delay, Emission, Model, Observation, State};
use tidegate_control::units::Span;

/// A class of streams: rounds of a request, a burst of packets downstream, and a pause.
struct Class {
    share: f64,
    /// Mean packets in a burst, and mean rounds.
    burst: f64,
    rounds: f64,
    /// Median of the pauses in microseconds (log-normal, sigma 1.5).
    pause_us: f64,
}

const CLASSES: [Class; 4] = [
    Class { share: 0.40, burst: 1.7, rounds: 1.8, pause_us: 1.0e6 },
    Class { share: 0.265, burst: 7.0, rounds: 5.0, pause_us: 1.5e6 },
    Class { share: 0.285, burst: 36.0, rounds: 11.0, pause_us: 0.6e6 },
    Class { share: 0.05, burst: 39.0, rounds: 38.0, pause_us: 1.0e6 },
];

/// tgen's upper limit of delays.
const CEILING: Span = Span::from_secs(600);

/// The model.
pub(super) fn model() -> Model {
    Model { streams: streams(), packets: packets() }
}

fn state(transitions: Vec<(usize, f64)>, observation: Observation, delay: Delay) -> State {
    State { name: String::new(), transitions, emissions: vec![Emission { observation, weight: 1.0, delay }] }
}

const NOW: Delay = Delay::Uniform { low: 0.0, high: 0.0 };

/// The stream model: start, active, dwelling, end.
fn streams() -> Chain {
    let active = Delay::Exponential { rate: 2.942e-7 };
    let dwelling = Delay::LogNormal { location: 7.498, scale: 6.514 };
    let states = vec![
        State { name: String::new(), transitions: vec![(1, 0.0365), (2, 0.9635)], emissions: Vec::new() },
        state(vec![(1, 0.8368), (2, 0.1030), (3, 0.0602)], Observation::ToServer, active),
        state(vec![(1, 0.1558), (2, 0.7279), (3, 0.1163)], Observation::ToServer, dwelling),
        state(Vec::new(), Observation::End, NOW),
    ];
    Chain::new(states, 0, CEILING)
}

/// The packet model: start, per class a request, a burst and a pause, and the end.
fn packets() -> Chain {
    let end = 1 + 3 * CLASSES.len();
    let first = |class: usize| 1 + 3 * class;
    let shares = CLASSES.iter().enumerate().map(|(class, of)| (first(class), of.share)).collect();
    let mut states = vec![State { name: String::new(), transitions: shares, emissions: Vec::new() }];
    // Packets of a burst are sent together.
    let at_once = Delay::Exponential { rate: 1.0 / 4.0 };
    for (class, Class { burst, rounds, pause_us, .. }) in CLASSES.iter().enumerate() {
        let request = first(class);
        let next = vec![(request + 1, 1.0 - 1.0 / burst), (request + 2, 1.0 / burst)];
        let pause = Delay::LogNormal { location: libm::log(*pause_us), scale: 1.5 };
        let again = vec![(request, 1.0 - 1.0 / rounds), (end, 1.0 / rounds)];
        states.push(state(vec![(request + 1, 1.0)], Observation::ToServer, at_once));
        states.push(state(next, Observation::ToOrigin, at_once));
        states.push(state(again, Observation::ToOrigin, pause));
    }
    states.push(state(Vec::new(), Observation::End, NOW));
    Chain::new(states, 0, CEILING)
}

#[cfg(test)]
mod tests {
    use tidegate_control::random::Seed;

    use super::*;

    #[test]
    fn streams_have_the_sizes_that_they_were_fitted_to() {
        let (chain, mut random) = (packets(), Seed::root(1).random());
        let mut sizes: Vec<u64> = (0..5000)
            .map(|_| {
                let (mut walk, mut down) = (chain.walk(), 0);
                loop {
                    match chain.step(&mut walk, &mut random).0 {
                        Observation::ToOrigin => down += 1,
                        Observation::ToServer => {}
                        Observation::End => return down,
                    }
                }
            })
            .collect();
        sizes.sort_unstable();
        let mean = sizes.iter().sum::<u64>() as f64 / sizes.len() as f64;
        // The packet model of 2018 has 192 packets in the mean, 18 in the median.
        assert!((mean / 192.0 - 1.0).abs() < 0.25, "{mean}");
        assert!((8..40).contains(&sizes[sizes.len() / 2]), "{}", sizes[sizes.len() / 2]);
    }
}
