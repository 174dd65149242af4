//! The path with the least delay between its relays, of several that are drawn as tor does.

use tidegate_control::registry::Origin;

use super::policy::{Candidates, Comparison, Directory, Known, Policy};
use super::tor::Tor;

/// Source and deviations.
pub const ORIGIN: Origin = Origin {
    system: "Geographic (Latency-Optimized)",
    source: "Muntaka and Bou Abdo, arXiv 2508.17651, 2025",
    oracles: &[],
    deviation: "read from abstract and summaries: of the paths that a client draws by tor's weights, it uses the one \
                with the least delay between its relays. Clients know these delays exactly, where the review has \
                delays between regions. The client's own distance does not count, as in the review",
};

/// Compares paths by their delay before one is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyAware {
    /// Paths drawn per circuit.
    pub compared: u32,
}

impl Default for LatencyAware {
    /// With 16 paths over four equally likely regions, two of three circuits stay in one region.
    fn default() -> LatencyAware {
        LatencyAware { compared: 16 }
    }
}

impl Policy for LatencyAware {
    fn candidates(&self, directory: &Directory) -> Candidates {
        Tor.candidates(directory)
    }
    fn comparison(&self) -> Option<Comparison> {
        Some(Comparison { paths: self.compared, probes: 0 })
    }
    fn cost(&self, path: &Known<'_>) -> f64 {
        path.delay.as_secs_f64()
    }
}
