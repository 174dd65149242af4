//! The scenario file as serde sees it. Reading fills in every default, so that writing a [`File`] back
//! spells all of them out (the manifest). What serde cannot check, [`super::check`] does.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_control::units::{Bytes, Rate, Span};
use tidegate_sim::plan::{Switching, kist};
use toml::Spanned;

use super::quantity::{Between, Patience, Quantity, Queue, Size};

/// A name that refers to something, with its place for error messages.
pub type Name = Spanned<String>;

/// A whole scenario file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct File {
    /// Name of the output folder; the file's own name by default.
    #[serde(default)]
    pub name: String,
    /// One line for the report.
    #[serde(default)]
    pub title: String,
    /// Simulated time.
    pub duration: Spanned<Quantity<Span>>,
    /// Lead time: metrics count from here.
    #[serde(default = "zero_span")]
    pub warmup: Spanned<Quantity<Span>>,
    /// How often queues and rates are sampled.
    #[serde(default = "sample")]
    pub sample: Spanned<Quantity<Span>>,
    /// Root of the seed tree of the first run; run k of `--seeds` takes `seed + k`.
    #[serde(default = "one")]
    pub seed: u64,
    /// One data cell in this many is followed hop by hop (the anatomy of latency); 0: none.
    #[serde(default = "trace")]
    pub trace_one_in: u32,
    /// What moves data: compared side by side on the same networks.
    pub system: Vec<Spanned<SystemFile>>,
    /// The Internet between the hosts.
    #[serde(default)]
    pub underlay: Underlay,
    /// Relays named one by one.
    #[serde(default)]
    pub relay: Vec<HostFile>,
    /// Servers named one by one.
    #[serde(default)]
    pub server: Vec<HostFile>,
    /// Clients named one by one.
    #[serde(default)]
    pub client: Vec<HostFile>,
    /// Relays drawn at random.
    pub random: Option<Spanned<RandomFile>>,
    /// Relays sampled from a consensus, or from the built-in model of Tor.
    pub tor: Option<Spanned<TorFile>>,
    /// Kinds of traffic beside the built-in ones.
    #[serde(default)]
    pub traffic: BTreeMap<String, TrafficFile>,
    /// Who fetches what, over which relays.
    pub user: Vec<Spanned<UserFile>>,
    /// What goes wrong, and when.
    #[serde(default)]
    pub fault: Vec<Spanned<FaultFile>>,
}

/// One system; `[every-system]` gives the same keys for all, and each `[[combine]]` names alternatives of which
/// every combination is a system (`vanilla = { transport = "vanilla" }`).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SystemFile {
    /// Name in tables.
    pub name: Name,
    /// Which connection carries a circuit between two relays.
    #[serde(default = "vanilla")]
    pub transport: Name,
    /// Parameters of `transport = "pctcp"`.
    #[serde(default)]
    pub pctcp: PctcpFile,
    /// Which circuit of a connection sends next.
    #[serde(default = "round_robin")]
    pub scheduler: Name,
    /// Time in which EWMA's counts halve.
    #[serde(default = "half_life")]
    pub half_life: Quantity<Span>,
    /// When, and in which order, connections take cells from circuits: `vanilla` or `kist`.
    #[serde(default = "vanilla")]
    pub channel_scheduler: Name,
    /// Parameters of `channel-scheduler = "kist"`.
    #[serde(default)]
    pub kist: KistFile,
    /// Relays with a token bucket let the connection write next that has carried least lately: the time in
    /// which what it carried counts half. Without it, each in turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_half_life: Option<Quantity<Span>>,
    /// How circuits move away from congested connections.
    #[serde(default = "no_switching")]
    pub switching: Name,
    /// Parameters of `switching`.
    #[serde(default)]
    pub switch: SwitchFile,
    /// How a circuit's rate is controlled end to end.
    #[serde(default = "windows")]
    pub control: Name,
    /// The fixed windows of `control = "windows"` and `control = "predictor"`.
    #[serde(default)]
    pub windows: WindowsFile,
    /// Parameters of `control = "predictor"`.
    #[serde(default)]
    pub predictor: super::predictor::PredictorFile,
    /// Connections' output buffers.
    #[serde(default)]
    pub output_buffer: OutputBufferFile,
    /// When a full circuit queue stops its exit.
    #[serde(default)]
    pub circuit_queue: CircuitQueueFile,
    /// Record overhead.
    #[serde(default)]
    pub tls: TlsFile,
    /// How exits put bytes into cells.
    #[serde(default)]
    pub packaging: PackagingFile,
    /// TCP between hosts.
    #[serde(default)]
    pub tcp: super::tcp::TcpFile,
}

/// PCTCP: a TCP connection per circuit (CCS 2013).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct PctcpFile {
    /// Share of the relays that are upgraded; a pair with another relay shares one connection.
    pub upgraded: Spanned<f64>,
    /// Connections to one peer beyond which circuits share; 0: no limit.
    pub connections_per_peer: u32,
    /// Which connection circuits share then: `round-robin` or `by-class`.
    pub beyond: Name,
    /// Bytes that IPsec adds to every packet between upgraded relays (ESP with AES-GCM in tunnel mode: 57).
    pub esp_overhead: Quantity<Bytes>,
}

impl Default for PctcpFile {
    fn default() -> PctcpFile {
        PctcpFile {
            upgraded: Spanned::new(0..0, 1.0),
            connections_per_peer: 0,
            beyond: Spanned::new(0..0, "round-robin".to_owned()),
            esp_overhead: Quantity(Bytes(0)),
        }
    }
}

/// KIST (tor's `scheduler_kist.c`).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct KistFile {
    /// Time between two runs at least (tor: `KISTSchedRunInterval`).
    pub interval: Quantity<Span>,
    /// Congestion windows that may lie in the kernel beyond what may leave at once (tor:
    /// `KISTSockBufSizeFactor`).
    pub buffer_factor: f64,
}

impl Default for KistFile {
    fn default() -> KistFile {
        let kist::Parameters { interval, buffer_factor } = kist::Parameters::default();
        KistFile { interval: Quantity(interval), buffer_factor }
    }
}

/// Active circuit switching (Kale et al. 2016).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct SwitchFile {
    /// Weight of the previous estimate of a buffer's occupancy.
    pub gamma: f64,
    /// Share of the output buffer below which it is underfull.
    pub alpha: f64,
    /// Share above which its loudest circuit moves.
    pub beta: f64,
    /// Interval between samples of the occupancy.
    pub sample: Quantity<Span>,
    /// A connection loses no second circuit, and a circuit moves no second time, for so long.
    pub rest: Quantity<Span>,
    /// Connections between two nodes at most.
    pub connections: u32,
    /// Middles and exits switch too.
    pub everywhere: bool,
}

impl Default for SwitchFile {
    fn default() -> SwitchFile {
        let Switching { gamma, alpha, beta, sample_every, rest, connections, everywhere, .. } =
            Switching::default();
        let (sample, rest) = (Quantity(sample_every), Quantity(rest));
        SwitchFile { gamma, alpha, beta, sample, rest, connections, everywhere }
    }
}

/// Tor's fixed windows in cells (tor-spec, 7.3 and 7.4).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct WindowsFile {
    /// In flight per circuit.
    pub circuit: u32,
    /// Acknowledged by one circuit SENDME.
    pub circuit_increment: u32,
    /// In flight per stream.
    pub stream: u32,
    /// Acknowledged by one stream SENDME.
    pub stream_increment: u32,
}

impl Default for WindowsFile {
    fn default() -> WindowsFile {
        WindowsFile { circuit: 1000, circuit_increment: 100, stream: 500, stream_increment: 50 }
    }
}

/// Output buffers (tor: OR_CONN_HIGHWATER and OR_CONN_LOWWATER).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct OutputBufferFile {
    /// Filled up to here,
    pub high: Quantity<Bytes>,
    /// once it has fallen below here.
    pub low: Quantity<Bytes>,
}

impl Default for OutputBufferFile {
    fn default() -> OutputBufferFile {
        OutputBufferFile { high: Quantity(Bytes(32 << 10)), low: Quantity(Bytes(16 << 10)) }
    }
}

/// Circuit queues in cells (tor: cc_cellq_high and cc_cellq_low).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct CircuitQueueFile {
    /// The exit stops packaging at this length
    pub high: u32,
    /// and goes on at this one.
    pub low: u32,
}

impl Default for CircuitQueueFile {
    fn default() -> CircuitQueueFile {
        CircuitQueueFile { high: 256, low: 10 }
    }
}

/// TLS records.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct TlsFile {
    /// Bytes added per record (TLS 1.3: 5 header, 1 type, 16 tag).
    pub record_overhead: Quantity<Bytes>,
    /// Cells in one record at most (tor writes up to 16 KiB at once: 31).
    pub record_cells: u32,
}

impl Default for TlsFile {
    fn default() -> TlsFile {
        TlsFile { record_overhead: Quantity(Bytes(22)), record_cells: 31 }
    }
}

/// How exits put bytes into cells.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct PackagingFile {
    /// Application bytes in a full cell: 498, or 488 on circuits with congestion control since tor 0.4.9.
    pub cell: u16,
    /// Bytes read from the server at a time; what is left after the last full cell goes in one of its own.
    pub read: Quantity<Bytes>,
}

impl Default for PackagingFile {
    fn default() -> PackagingFile {
        PackagingFile { cell: 498, read: Quantity(Bytes(32 * 498)) }
    }
}

/// Delay, jitter and loss between hosts: uniform, or from a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Underlay {
    /// One-way delay between two machines: half of it at each one's access. Not with `file`.
    pub delay: Quantity<Span>,
    /// Standard deviation of a normal term on the delay.
    pub jitter: Quantity<Span>,
    /// Probability that a packet is lost. With `file`, added to what the file says.
    pub loss: Spanned<f64>,
    /// Each access delay is multiplied by U[max(0.01, 1 - f), 1 + f].
    pub fuzziness: Spanned<f64>,
    /// A graph (GML, GraphML) or a city-to-city table of round-trip times (CSV).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<Name>,
}

impl Default for Underlay {
    fn default() -> Underlay {
        Underlay {
            delay: Quantity(Span::from_millis(40)),
            jitter: Quantity(Span::ZERO),
            loss: Spanned::new(0..0, 0.0),
            fuzziness: Spanned::new(0..0, 0.0),
            file: None,
        }
    }
}

/// A relay, server or client.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct HostFile {
    /// Name by which users and faults refer to it.
    pub name: Name,
    /// Shares the machine of this relay: no link, no delay between the two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Name>,
    /// Rate of the access link, both ways.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<Quantity<Rate>>,
    /// Rate out of the host, where it differs from `link`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<Quantity<Rate>>,
    /// Rate into the host, where it differs from `link`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down: Option<Quantity<Rate>>,
    /// Queue in front of each direction.
    #[serde(default = "queue")]
    pub queue: Quantity<Queue>,
    /// One-way delay of the access, instead of half of the underlay's `delay`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_delay: Option<Quantity<Span>>,
    /// Vertex or city in the underlay's file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<Name>,
    /// A relay's token bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<BandwidthFile>,
    /// A relay's processor time per cell.
    #[serde(default = "no_time")]
    pub cell_cost: Quantity<Span>,
}

/// Tor's BandwidthRate and BandwidthBurst.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct BandwidthFile {
    /// Sustained rate.
    pub rate: Spanned<Quantity<Rate>>,
    /// What the bucket holds; by default one second's worth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<Quantity<Bytes>>,
    /// How often it is refilled.
    #[serde(default = "refill")]
    pub refill: Quantity<Span>,
    /// A connection that finds the bucket empty tries again after this (tor: 100 ms); without it at the next
    /// refill.
    #[serde(default = "no_time")]
    pub retry: Quantity<Span>,
    /// Forget the part of a byte and of an interval that a refill leaves over, as tor does.
    #[serde(default)]
    pub drop_fractions: bool,
}

/// Relays with links of random rate; users without `path` get three random relays each.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RandomFile {
    /// Number of relays.
    pub relays: Spanned<u32>,
    /// Each relay's link, both ways, drawn uniformly.
    pub relay_link: Between<Rate>,
    /// Each user's client and server have machines of their own with such a link; without it they share
    /// the machine of the circuit's guard and exit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_link: Option<Between<Rate>>,
    /// Queue in front of each direction of every link.
    #[serde(default = "queue")]
    pub queue: Quantity<Queue>,
    /// Relays' token buckets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<BandwidthFile>,
    /// Relays' token buckets get this share of their link instead (throttling); 1: no bucket.
    #[serde(default = "whole")]
    pub bandwidth_share: Spanned<f64>,
}

/// A scaled-down Tor network.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct TorFile {
    /// Consensus, either flavour, plain or .xz; without it the built-in model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consensus: Option<Name>,
    /// Which year's built-in model: 2011 or 2024.
    pub year: Spanned<u16>,
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
    pub fraction: Spanned<f64>,
    /// Number of relays, instead of `fraction`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relays: Option<Spanned<u32>>,
    /// Relays' rates are their consensus weights in kB/s times this: below 1 for the slower relays of years
    /// past, or of a network that is to be congested.
    pub bandwidth_factor: Spanned<f64>,
    /// Number of servers.
    pub servers: Spanned<u32>,
    /// Rate of clients' links towards them.
    pub client_down: Quantity<Rate>,
    /// Rate of clients' links out.
    pub client_up: Quantity<Rate>,
    /// Rate of servers' links.
    pub server_link: Quantity<Rate>,
    /// Queue in front of each direction of every link.
    pub queue: Quantity<Queue>,
}

impl Default for TorFile {
    fn default() -> TorFile {
        TorFile {
            consensus: None,
            year: nowhere(2024),
            latency: None,
            geoip: None,
            compare: None,
            fraction: nowhere(0.02),
            relays: None,
            bandwidth_factor: nowhere(1.0),
            servers: nowhere(20),
            client_down: Quantity(Rate(50_000_000)),
            client_up: Quantity(Rate(10_000_000)),
            server_link: Quantity(Rate(1_000_000_000)),
            queue: queue(),
        }
    }
}

/// One kind of traffic: requests, or Markov models.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TrafficFile {
    /// What is asked for.
    #[serde(default)]
    pub requests: Vec<RequestFile>,
    /// Pause after each response.
    #[serde(default = "no_pause")]
    pub pause: Between<Span>,
    /// A circuit this old takes no new requests; zero: each request has its own.
    #[serde(default = "dirtiness")]
    pub circuit_lifetime: Quantity<Span>,
    /// tgen's stream model (GraphML), instead of `requests`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_model: Option<Name>,
    /// tgen's packet model (GraphML).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet_model: Option<Name>,
}

/// One kind of request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RequestFile {
    /// Size of the response.
    pub size: Quantity<Size>,
    /// Relative frequency.
    #[serde(default = "weight")]
    pub weight: Spanned<f64>,
    /// Given up after this time.
    #[serde(default = "patient")]
    pub timeout: Quantity<Patience>,
    /// Size of the request itself.
    #[serde(default = "request")]
    pub request: Quantity<Bytes>,
}

/// Users of one kind.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct UserFile {
    /// Name in reports; numbered if `count` is above one.
    pub name: Name,
    /// How many of them.
    #[serde(default = "one_user")]
    pub count: u32,
    /// Kind of traffic: `bulk`, `web`, `benchmark`, or one of the file's own.
    pub traffic: Name,
    /// Guard, middle, exit; without it the network draws relays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<[Name; 3]>,
    /// The user over whose circuits this one's streams go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<Name>,
    /// The client host; without it the network makes one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<Name>,
    /// The server host; without it the network chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<Name>,
    /// First request.
    #[serde(default = "at_once")]
    pub start: Between<Span>,
    /// No request after this; without it the end of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Quantity<Span>>,
    /// Circuits are built this long before the first request.
    #[serde(default = "lead")]
    pub circuit_lead: Quantity<Span>,
}

/// One thing that goes wrong.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FaultFile {
    /// `drop`, `delay`, `partition`, `link-down`, `host-down` or `lies`.
    pub kind: Name,
    /// The two hosts, for what happens between them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub between: Option<[Name; 2]>,
    /// The host, for what happens to one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<Name>,
    /// `drop`: the probability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// `lies`: what the relay tells its neighbours instead of its PredicTor controller's plans: `greedy`,
    /// `denying`, `not-numbers`, `too-long`, `too-many`, `replayed`, `garbage` or `absent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lie: Option<Name>,
    /// `delay`: how much longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra: Option<Quantity<Span>>,
    /// From this time,
    #[serde(default = "no_time")]
    pub from: Quantity<Span>,
    /// until this time; without it the end of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Quantity<Span>>,
}

/// A default has no place in the file.
pub(crate) fn nowhere<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

fn zero_span() -> Spanned<Quantity<Span>> {
    nowhere(Quantity(Span::ZERO))
}
fn sample() -> Spanned<Quantity<Span>> {
    nowhere(Quantity(Span::from_millis(10)))
}
fn no_time() -> Quantity<Span> {
    Quantity(Span::ZERO)
}
fn no_pause() -> Between<Span> {
    Between::fixed(Span::ZERO)
}
fn at_once() -> Between<Span> {
    Between::fixed(Span::ZERO)
}
/// Tor's MaxCircuitDirtiness.
fn dirtiness() -> Quantity<Span> {
    Quantity(Span::from_secs(600))
}
fn lead() -> Quantity<Span> {
    Quantity(Span::ZERO)
}
fn one() -> u64 {
    1
}
fn one_user() -> u32 {
    1
}
fn trace() -> u32 {
    20
}
fn no_switching() -> Name {
    nowhere("none".into())
}
fn vanilla() -> Name {
    nowhere("vanilla".into())
}
fn round_robin() -> Name {
    nowhere("round-robin".into())
}
fn windows() -> Name {
    nowhere("windows".into())
}
/// Tor's CircuitPriorityHalflife default.
fn half_life() -> Quantity<Span> {
    Quantity(Span::from_secs(30))
}
/// Linux's default transmit queue length.
fn queue() -> Quantity<Queue> {
    Quantity(Queue::packets(1000))
}
/// Tor's TokenBucketRefillInterval default.
fn refill() -> Quantity<Span> {
    Quantity(Span::from_millis(100))
}
fn whole() -> Spanned<f64> {
    nowhere(1.0)
}
fn weight() -> Spanned<f64> {
    nowhere(1.0)
}
fn patient() -> Quantity<Patience> {
    Quantity(Patience::NEVER)
}
fn request() -> Quantity<Bytes> {
    Quantity(Bytes(100))
}
