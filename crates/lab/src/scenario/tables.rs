//! The tables of a scenario that describe the network: underlay, named hosts, random and Tor relays.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::units::{Bytes, Rate, Span};
use tidegate_sim::plan::LinkPlan;

use super::place::{Name, Placed};
use super::quantity::{Between, Queue};

/// Delay, jitter and loss between hosts: uniform, or from a file.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Underlay {
    /// One-way delay between two machines, half of it at each one's access. Not with `file`. Source: PredicTor's
    /// scenarios (Döpmann et al. 2022).
    pub delay: Span,
    /// Standard deviation of a normally distributed addition to the delay.
    pub jitter: Span,
    /// Probability that a packet is lost. With `file`, in addition to the file's loss.
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

/// A named relay, server or client.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct HostFile {
    /// Name that users and faults refer to.
    pub name: Name,
    /// Places the host on the machine of this relay, without delay between the two. A relay also shares the machine's
    /// links; a client or server has unlimited ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Name>,
    /// Rate of the access link in both directions; without `at`, this or `up` and `down` are required.
    #[schemars(extend("x-range" = "1 bit/s.."))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<Rate>,
    /// Rate out of the host, if it differs from `link`.
    #[schemars(extend("x-range" = "1 bit/s.."))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<Rate>,
    /// Rate into the host, if it differs from `link`.
    #[schemars(extend("x-range" = "1 bit/s.."))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down: Option<Rate>,
    /// Queue in front of each direction. Source: Linux's default transmit queue length.
    #[serde(default)]
    pub(crate) queue: Queue,
    /// Queue in front of the direction into the host, if it differs from `queue`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queue_down: Option<Queue>,
    /// One-way delay of the access; default: half of the underlay's `delay`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_delay: Option<Span>,
    /// Vertex or city in the underlay's file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<Name>,
    /// A relay's token bucket. Clients and servers cannot have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bandwidth: Option<BandwidthFile>,
    /// A relay's processor time per cell. Clients and servers cannot have it.
    #[serde(default)]
    pub cell_cost: Span,
}

/// A relay's token bucket. Source: tor's `BandwidthRate` and `BandwidthBurst`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct BandwidthFile {
    /// Sustained rate, finite.
    #[schemars(extend("x-range" = "8 bit/s.."))]
    pub rate: Placed<Rate>,
    /// Capacity of the bucket; default: one second of `rate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<Bytes>,
    /// Interval between refills. Source: tor's `TokenBucketRefillInterval`.
    #[schemars(extend("x-range" = "1 ns..=10 s"))]
    #[serde(default = "refill")]
    pub refill: Span,
    /// Time until a connection that found the bucket empty tries again (tor: 100 ms); zero waits for the next refill.
    #[serde(default)]
    pub retry: Span,
    /// Discards fractions of a byte and of an interval at each refill. Source: tor does (`token_bucket.c`).
    #[serde(default)]
    pub drop_fractions: bool,
    /// Counts an exit's traffic with servers against the bucket. Source: tor counts connections to servers.
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
pub(crate) struct RandomFile {
    /// Number of relays.
    #[schemars(range(min = 3, max = 10_000))]
    pub relays: u32,
    /// Each relay's link, both ways, drawn uniformly.
    #[schemars(extend("x-range" = "1 bit/s.."))]
    pub(crate) relay_link: Between<Rate>,
    /// Link of each user's own client and server machines, drawn uniformly; default: they share the machines of the
    /// circuit's guard and exit.
    #[schemars(extend("x-range" = "1 bit/s.."))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) end_link: Option<Between<Rate>>,
    /// Queue in front of each direction of every link. Source: Linux's default transmit queue length.
    #[serde(default)]
    pub(crate) queue: Queue,
    /// Relays' token buckets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bandwidth: Option<BandwidthFile>,
    /// Throttling: gives each relay a token bucket with this share of its link's rate; 1 adds none.
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
    /// Consensus of either flavour, plain, .xz or .gz; default: the built-in model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consensus: Option<Name>,
    /// Microdescriptors of that consensus (tor's `cached-microdescs`, with `.new` appended), plain, .xz or .gz; they declare
    /// the families.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub microdescriptors: Option<Name>,
    /// Year of the built-in model: 2011 or 2024. Source: the public consensuses of 2011-07-16 and 2024-05-17.
    pub year: Placed<u16>,
    /// Round-trip times between cities or countries; default: the built-in model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Name>,
    /// IP address to country, in tor's format.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub geoip: Option<Name>,
    /// Measured downloads (torperf) to print beside the simulated ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compare: Option<Name>,
    /// Share of the network that is simulated.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
    pub fraction: f64,
    /// Number of relays, instead of `fraction`.
    #[schemars(range(min = 3))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relays: Option<u32>,
    /// Sample of relays: `drawn` (one relay of each class and bucket of weight, as tornettools does) or `balanced` (of
    /// eight such samples the one nearest to the whole network, by the share of the traffic that relays carry and by
    /// the shares of weight of known countries). Source of `drawn`: Jansen, Tracey, Goldberg, "Once is Never Enough",
    /// USENIX Security 2021. `balanced` is our own; `experiments/truth/samples` measures how much less its samples
    /// differ from each other.
    pub(crate) sample: Placed<Sampling>,
    /// Capacity of relays: `drawn` (from the weight, by ratios measured for its class and weight), `weight` (equal to
    /// the weight), or a table of relays: `relayinfo_staging_*.json`, server descriptors, or the folder of a Shadow
    /// configuration. Except under `weight`, the sample's weights and capacities are scaled: each class of relays
    /// (guards, exits, both, neither) keeps its share of the network. Without `consensus`, a table with weights defines the
    /// network.
    pub capacity: Name,
    /// Target share of the relays' total capacity in use. Short runs before the real ones choose `load` so that the
    /// first system reaches it within 5 % on the first network; they begin with `load`. Source: Tor Metrics, bandwidth used over bandwidth advertised: 0.467 in 2018, 0.472 in
    /// 2019, 0.506 in May 2024.
    #[schemars(extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilisation: Option<Placed<f64>>,
    /// Factor on the number of users counted by `of-tor`.
    #[schemars(range(max = 1000.0), extend("exclusiveMinimum" = 0.0))]
    pub load: f64,
    /// Relays with the same IPv4 address share a machine, which has the sum of their link rates; default: each relay
    /// has its own machine.
    pub shared_machines: bool,
    /// Counts an exit's traffic with servers against its token bucket. Source: tor counts connections to servers.
    pub count_exit_connections: bool,
    /// Limits a relay's capacity by its token bucket, with a link that is 25 % faster; default: the link is the limit.
    /// Always true with `capacity = "weight"`.
    pub limit_by_bucket: bool,
    /// Rate of every relay's link, both ways; its token bucket then limits its capacity. Default: see `limit-by-bucket`.
    #[schemars(extend("x-range" = "1 bit/s.."))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relay_link: Option<Rate>,
    /// Interval between refills of relays' token buckets, as in tor before 0.3.5 (100 ms, or 1 s before 0.2.3); connections
    /// that find a bucket empty wait for the next refill. Limits relays as `limit-by-bucket` does. Default: 2^24 ns and a retry after 100 ms, as in tor since.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-range" = "1 ms..=10 s"))]
    pub refill: Option<Span>,
    /// Processor time per cell of the relays of `cell-cost-share`.
    pub cell_cost: Span,
    /// Share of the relays that have `cell-cost`, drawn at random; it is zero at the others.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub cell_cost_share: f64,
    /// Factor on relays' rates, which are consensus weights in kB/s; below 1 for slower relays of earlier years or a
    /// congested network.
    #[schemars(range(min = 0.0001, max = 1000.0))]
    pub bandwidth_factor: f64,
    /// Number of servers; default: 1000 times `fraction`.
    #[schemars(range(min = 1, max = 10_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub servers: Option<u32>,
    /// Rate of links towards clients.
    #[schemars(extend("x-range" = "1 bit/s.."))]
    pub client_down: Rate,
    /// Rate of links from clients.
    #[schemars(extend("x-range" = "1 bit/s.."))]
    pub client_up: Rate,
    /// Rate of servers' links.
    #[schemars(extend("x-range" = "1 bit/s.."))]
    pub server_link: Rate,
    /// Queue in front of each direction of every link. Source: Linux's default transmit queue length.
    pub(crate) queue: Queue,
    /// Queue in front of the directions into hosts, if it differs from `queue`. Shadow queues outgoing packets without
    /// loss (`queue = "shadow"`) and incoming ones with CoDel (`queue-down = "codel"`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queue_down: Option<Queue>,
}

/// How a network's relays are sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Sampling {
    /// One relay of each class and bucket of weight.
    #[default]
    Drawn,
    /// Of several drawn samples the one nearest to the whole network.
    Balanced,
}

impl TorFile {
    /// A host's links with these rates.
    pub(crate) fn links(&self, [up, down]: [Rate; 2]) -> [LinkPlan; 2] {
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
            sample: Placed::default(),
            capacity: Placed::nowhere("drawn".to_owned()),
            utilisation: None,
            load: 1.0,
            shared_machines: false,
            count_exit_connections: false,
            limit_by_bucket: false,
            relay_link: None,
            refill: None,
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
