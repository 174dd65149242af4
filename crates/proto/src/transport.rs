//! Which connection carries a circuit between two nodes.
//!
//! Tor sends all circuits of a pair of relays over one connection. PCTCP (AlSabah, Goldberg: "PCTCP:
//! Per-Circuit TCP-over-IPsec Transport for Anonymous Communication Overlay Networks", CCS 2013) gives each
//! circuit its own, so that a loss or a loud circuit does not delay other circuits. Relays can be upgraded one by
//! one (section 6.2): a pair with a relay that is not upgraded shares one connection. The number of connections to
//! one peer can be limited (6.5): further circuits share the existing ones.
//!
//! Over QUIC each circuit has a stream of one connection: a circuit does not wait for another circuit's lost bytes, and
//! the pair has one congestion controller. Each stream is a channel, as each connection is with PCTCP.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::keys::Parameters;
use tidegate_control::units::{Bytes, Span, Time};

/// Which connection a circuit uses between two upgraded nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// One connection per pair of nodes carries all circuits.
    Vanilla,
    /// One connection per circuit and hop.
    PerCircuit,
    /// A stream per circuit on one QUIC connection per pair of nodes.
    Quic,
    /// One connection per circuit up to a limit; further circuits share.
    Threshold {
        /// Maximum number of connections that a node opens to one peer; at least 1.
        connections: u32,
        /// Which of them a further circuit shares.
        beyond: Sharing,
    },
}

/// PCTCP: a TCP connection per circuit. Source: CCS 2013.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Pctcp {
    /// Probability that a relay is upgraded to PCTCP or QUIC. Circuits between two nodes share one connection if one of
    /// the nodes is a relay that is not upgraded. Only in simulations.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub upgraded: f64,
    /// Maximum number of connections to one peer, beyond which circuits share; 0: unlimited.
    pub connections_per_peer: u32,
    /// Which connection a further circuit shares once `connections-per-peer` is reached: `round-robin`, the next one;
    /// `by-class`, the one on which the highest recent cell count of a circuit is lowest.
    pub beyond: Sharing,
    /// Bytes that IPsec adds to every packet between upgraded relays (ESP with AES-GCM in tunnel mode: 57), less than a
    /// packet's payload. Only in simulations.
    #[serde(with = "tidegate_control::text::size")]
    #[schemars(with = "Bytes", extend("x-range" = "..=511 B"))]
    pub esp_overhead: u32,
}

impl Default for Pctcp {
    fn default() -> Pctcp {
        Pctcp { upgraded: 1.0, connections_per_peer: 0, beyond: Sharing::RoundRobin, esp_overhead: 0 }
    }
}

impl Parameters for Pctcp {
    fn mistake(&self) -> Option<(&'static str, &'static str)> {
        (self.connections_per_peer == 0 && self.beyond != Sharing::RoundRobin).then_some((
            "`beyond` has no effect without `connections-per-peer`",
            "set `connections-per-peer`, or drop `beyond`",
        ))
    }
}

impl Pctcp {
    /// How circuits use connections.
    pub(crate) fn transport(&self) -> Transport {
        match self.connections_per_peer {
            0 => Transport::PerCircuit,
            connections => Transport::Threshold { connections, beyond: self.beyond },
        }
    }
}

/// Which existing connection a circuit beyond the threshold shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// One after the other.
    RoundRobin,
    /// The one on which the highest recent cell count of a circuit is lowest. A new circuit, of unknown loudness, then
    /// does not share with loud ones (Torchestra's idea, named in PCTCP 6.5).
    ByClass,
}

/// Half-life of the cell counts that tell loud from quiet circuits (tor's EWMA half-life).
pub(crate) const LOUDNESS_HALF_LIFE: Span = Span(30_000_000_000);

/// Cells counted with exponential forgetting.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DecayingCount {
    count: f64,
    at: Time,
}

impl DecayingCount {
    /// Counts `cells` at `now`.
    pub fn add(&mut self, now: Time, half_life: Span, cells: u32) {
        self.count = self.value(now, half_life) + f64::from(cells);
        self.at = now;
    }

    /// The decayed count at `now`.
    pub fn value(&self, now: Time, half_life: Span) -> f64 {
        if now <= self.at || self.count == 0.0 {
            return self.count;
        }
        self.count * libm::exp2(-(now.since(self.at).as_secs_f64() / half_life.as_secs_f64()))
    }
}

impl Transport {
    /// Maximum number of connections to one peer; `None` if circuits never share.
    pub(crate) fn limit(self) -> Option<u32> {
        match self {
            Transport::Vanilla => Some(1),
            Transport::PerCircuit | Transport::Quic => None,
            Transport::Threshold { connections, .. } => Some(connections.max(1)),
        }
    }

    /// Whether the choice of a connection depends on cell counts.
    pub(crate) fn needs_loudness(self) -> bool {
        matches!(self, Transport::Threshold { beyond: Sharing::ByClass, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_halves_per_half_life() {
        let (mut count, half_life) = (DecayingCount::default(), Span::from_secs(10));
        count.add(Time::ZERO, half_life, 100);
        count.add(Time::ZERO, half_life, 60);
        let later = Time::ZERO + Span::from_secs(20);
        assert!((count.value(later, half_life) - 40.0).abs() < 1e-9);
        count.add(later, half_life, 2);
        assert!((count.value(later, half_life) - 42.0).abs() < 1e-9);
    }
}
