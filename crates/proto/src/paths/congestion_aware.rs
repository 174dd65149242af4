//! The least congested of several circuits, which the client builds and measures first.
//!
//! A client builds a few circuits over paths that it draws as tor does, and asks the exit of each for something that the
//! exit refuses. The time until the refusal is a round trip over the whole circuit. A round trip above the circuit's
//! shortest is time in queues: congestion.

use tidegate_control::registry::Origin;
use tidegate_control::units::Span;

use super::policy::{Candidates, Comparison, Directory, Known, Policy};
use super::tor::Tor;

/// Source and deviations.
pub const ORIGIN: Origin = Origin {
    system: "congestion-aware path selection",
    source: "Wang, Bauer, Forero and Goldberg, FC 2012; parameters of congestion_aware_pathsim.py of TorPS; congestion \
             time of CAR-tor 0.2.5.2 (Imani)",
    oracles: &[],
    deviation: "read from abstract and from others' code: 3 circuits, 5 probes each, the least congestion time wins. A \
                circuit that needs twice the time of the first measured one drops out. Circuits in use are not \
                measured or left, and relays get no long-term weights",
};

/// Compares built circuits by their congestion time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CongestionAware {
    /// Circuits built per circuit used.
    pub compared: u32,
    /// Round trips measured over each.
    pub probes: u32,
}

impl Default for CongestionAware {
    /// TorPS: k = 3 circuits and m = 5 probes.
    fn default() -> CongestionAware {
        CongestionAware { compared: 3, probes: 5 }
    }
}

impl Policy for CongestionAware {
    fn candidates(&self, directory: &Directory) -> Candidates {
        Tor.candidates(directory)
    }
    fn comparison(&self) -> Option<Comparison> {
        Some(Comparison { paths: self.compared, probes: self.probes })
    }
    fn cost(&self, path: &Known<'_>) -> f64 {
        congestion_time(path.round_trips).as_secs_f64()
    }
}

/// The mean of the other round trips minus the shortest; zero for fewer than two.
fn congestion_time(round_trips: &[Span]) -> Span {
    let Some(least) = round_trips.iter().min().filter(|_| round_trips.len() > 1) else { return Span::ZERO };
    let above: u64 = round_trips.iter().map(|one| one.0 - least.0).sum();
    // The shortest itself adds nothing to the sum, and does not count in the mean.
    Span(above / (round_trips.len() as u64 - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `get_mean_list(circ, 5)` of CAR-tor 0.2.5.2 returns for these round trips, whole milliseconds.
    #[test]
    fn congestion_times_are_those_of_car_tor() {
        for (round_trips, congestion) in [
            ([300, 250, 400, 350, 500], 137),
            ([120, 120, 120, 120, 120], 0),
            ([1000, 180, 181, 182, 183], 206),
            ([90, 700, 710, 720, 730], 625),
        ] {
            let time = congestion_time(&round_trips.map(Span::from_millis));
            assert_eq!(time.0 / 1_000_000, congestion, "{round_trips:?}");
        }
        assert_eq!(congestion_time(&[Span::from_millis(300)]), Span::ZERO, "one round trip says nothing");
    }
}
