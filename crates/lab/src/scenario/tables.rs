//! The tables of a scenario that describe the network: the underlay, named hosts, and where relays come from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::units::{Bytes, Rate, Span};
use tidegate_sim::plan::LinkPlan;

use super::place::{Name, Placed};
use super::quantity::{Between, Queue};

/// Delay, jitter and loss between hosts: uniform, or from a file.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Underlay {
    /// One-way delay between two machines: half of it at each one's access. Not with `file`. Source: PredicTor's
    /// scenarios (Döpmann et al. 2022).
    pub delay: Span,
    /// Standard deviation of a normal term on the delay.
    pub jitter: Span,
    /// Probability that a packet is lost. With `file`, added to what the file says.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
    pub loss: f64,
    /// Each access delay is multiplied by U[max(0.01, 1 - f), 1 + f]. Source: PredicTor, link fuzziness.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub fuzziness: f64,
    /// A graph (GML, GraphML) or a city-to-city table of round-trip times (CSV).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<Name>,
}

impl Default for Underlay {
    fn default() -> Underlay {
        Underlay { delay: Span::from_millis(40), jitter: Span::ZERO, loss: 0.0, fuzziness: 0.0, file: None }
    }
}

/// A relay, server or client that is named one by one.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct HostFile {
    /// Name by which users and faults refer to it.
    pub name: Name,
    /// Shares the machine of this relay: no delay between the two. A relay shares its links too; what a client or server
    /// sends to others takes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Name>,
    /// Rate of the access link, both ways; without `at` this or `up` and `down` must be given.
    #[schemars(extend("x-range" = "1 bit/s.."))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<Rate>,
    /// Rate out of the host, where it differs from `link`.
    #[schemars(extend("x-range" = "1 bit/s.."))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<Rate>,
    /// Rate into the host, where it differs from `link`.
    #[schemars(extend("x-range" = "1 bit/s.."))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down: Option<Rate>,
    /// Queue in front of each direction. Source: Linux's default transmit queue length.
    #[serde(default)]
    pub queue: Queue,
    /// Queue in front of the direction into the host, where it differs from `queue`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_down: Option<Queue>,
    /// One-way delay of the access, instead of half of the underlay's `delay`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_delay: Option<Span>,
    /// Vertex or city in the underlay's file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<Name>,
    /// A relay's token bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<BandwidthFile>,
    /// A relay's processor time per cell.
    #[serde(default)]
    pub cell_cost: Span,
}

/// A relay's token bucket. Source: tor's `BandwidthRate` and `BandwidthBurst`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct BandwidthFile {
    /// Sustained rate; finite.
    #[schemars(extend("x-range" = "8 bit/s.."))]
    pub rate: Placed<Rate>,
    /// What the bucket holds; by default one second's worth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<Bytes>,
    /// How often it is refilled. Source: tor's `TokenBucketRefillInterval`.
    #[schemars(extend("x-range" = "1 ns..=10 s"))]
    #[serde(default = "refill")]
    pub refill: Span,
    /// A connection that finds the bucket empty tries again after this (tor: 100 ms); zero: at the next refill.
    #[serde(default)]
    pub retry: Span,
    /// Forget the part of a byte and of an interval that a refill leaves over. Source: tor does (`token_bucket.c`).
    #[serde(default)]
    pub drop_fractions: bool,
    /// What an exit exchanges with servers takes from it too. Source: tor, whose connections to servers count.
    #[serde(default)]
    pub servers: bool,
}

fn refill() -> Span {
    Span::from_millis(100)
}

/// Relays with links of random rate; users without `path` get three random relays each. Source: PredicTor,
/// section 5.3.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RandomFile {
    /// Number of relays.
    #[schemars(range(min = 3, max = 10_000))]
    pub relays: u32,
    /// Each relay's link, both ways, drawn uniformly.
    #[schemars(extend("x-range" = "1 bit/s.."))]
    pub relay_link: Between<Rate>,
    /// Each user's client and server have machines of their own with such a link; without it they share the machine
    /// of the circuit's guard and exit.
    #[schemars(extend("x-range" = "1 bit/s.."))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_link: Option<Between<Rate>>,
    /// Queue in front of each direction of every link. Source: Linux's default transmit queue length.
    #[serde(default)]
    pub queue: Queue,
    /// Relays' token buckets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<BandwidthFile>,
    /// Relays' token buckets get this share of their link instead (throttling); 1: no bucket.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
    #[serde(default = "whole")]
    pub bandwidth_share: f64,
}

fn whole() -> f64 {
    1.0
}

/// Relays sampled from a consensus, or from the built-in model of Tor.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct TorFile {
    /// Consensus, either flavour, plain or .xz; without it the built-in model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consensus: Option<Name>,
    /// Microdescriptors of that consensus (tor's `cached-microdescs`, with `.new` appended), plain or .xz: the families
    /// whose relays share no path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub microdescriptors: Option<Name>,
    /// Which year's built-in model: 2011 or 2024. Source: the public consensuses of 2011-07-16 and 2024-05-17.
    pub year: Placed<u16>,
    /// Round-trip times between cities or countries; without it the built-in model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Name>,
    /// IP address to country, in tor's format.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub geoip: Option<Name>,
    /// Measured downloads (torperf) to print beside ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compare: Option<Name>,
    /// Share of the network that is simulated.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
    pub fraction: f64,
    /// Number of relays, instead of `fraction`.
    #[schemars(range(min = 3))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relays: Option<u32>,
    /// What relays can carry: `drawn` (from their weight, by the ratios measured for their class and weight), `weight`
    /// (as much as they weigh, relays as they come in the sample), or a table of relays: `relayinfo_staging_*.json`,
    /// server descriptors, or the folder of a Shadow configuration. Without `consensus` a table with weights is the
    /// network.
    pub capacity: Name,
    /// The share of what all relays can carry that they are to carry: a short run beforehand sets `load` to it. Source:
    /// Tor Metrics, bandwidth used over bandwidth advertised: .467 in 2018, .472 in 2019, .506 in May 2024.
    #[schemars(extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilisation: Option<Placed<f64>>,
    /// Load of the users that are counted `of-tor`, times what the real network carries.
    #[schemars(range(max = 1000.0), extend("exclusiveMinimum" = 0.0))]
    pub load: f64,
    /// Relays of one IPv4 address share a machine and its links, which carry what theirs would together. Else every relay has
    /// its own.
    pub shared_machines: bool,
    /// What an exit exchanges with servers takes from its bucket too. Source: tor, whose connections to servers count.
    pub count_exit_connections: bool,
    /// What a relay can carry is its token bucket's rate, and its link is a quarter faster; else its link is what it can carry. It
    /// is so with `capacity = "weight"`.
    pub limit_by_bucket: bool,
    /// Processor time of a relay per cell:
    pub cell_cost: Span,
    /// of this share of the relays, drawn; the others' takes none.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub cell_cost_share: f64,
    /// Relays' rates are their consensus weights in kB/s times this: below 1 for the slower relays of years past, or
    /// of a network that is to be congested.
    #[schemars(range(min = 0.0001, max = 1000.0))]
    pub bandwidth_factor: f64,
    /// Number of servers; without it a thousand for the whole network.
    #[schemars(range(min = 1, max = 10_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub servers: Option<u32>,
    /// Rate of clients' links towards them.
    #[schemars(extend("x-range" = "1 bit/s.."))]
    pub client_down: Rate,
    /// Rate of clients' links out.
    #[schemars(extend("x-range" = "1 bit/s.."))]
    pub client_up: Rate,
    /// Rate of servers' links.
    #[schemars(extend("x-range" = "1 bit/s.."))]
    pub server_link: Rate,
    /// Queue in front of each direction of every link. Source: Linux's default transmit queue length.
    pub queue: Queue,
    /// Queue in front of the directions into hosts, where it differs from `queue`: in Shadow what is sent waits without loss
    /// (`queue = "shadow"`), and what is received is controlled (`queue-down = "codel"`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_down: Option<Queue>,
}

impl TorFile {
    /// The links of a host.
    pub fn links(&self, [up, down]: [Rate; 2]) -> [LinkPlan; 2] {
        let into = self.queue_down.unwrap_or(self.queue);
        [LinkPlan { rate: up, queue: self.queue.0 }, LinkPlan { rate: down, queue: into.0 }]
    }
}

impl Default for TorFile {
    fn default() -> TorFile {
        TorFile {
            consensus: None,
            microdescriptors: None,
            year: Placed::nowhere(2024),
            latency: None,
            geoip: None,
            compare: None,
            fraction: 0.02,
            relays: None,
            capacity: Placed::nowhere("drawn".to_owned()),
            utilisation: None,
            load: 1.0,
            shared_machines: false,
            count_exit_connections: false,
            limit_by_bucket: false,
            cell_cost: Span::ZERO,
            cell_cost_share: 1.0,
            bandwidth_factor: 1.0,
            servers: None,
            client_down: Rate(50_000_000),
            client_up: Rate(10_000_000),
            server_link: Rate(1_000_000_000),
            queue: Queue::default(),
            queue_down: None,
        }
    }
}
