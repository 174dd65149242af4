//! The scenario file as serde sees it. Reading fills in every default, so that writing a [`File`] back
//! spells all of them out (the manifest). What [`tidegate_control::keys`] cannot check, [`super::check`] does.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::units::{Bytes, Span};
use tidegate_sim::plan::{Switching, kist};
use tidegate_sim::tcp;

use super::paths::PathsFile;
pub use super::place::{Name, Placed};
use super::predictor::PredictorFile;
use super::quantity::Quantity;
use super::tables::{HostFile, RandomFile, TorFile, Underlay};
use super::users::{FaultFile, TrafficFile, UserFile};

/// A scenario.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct File {
    /// Name of the output folder; the file's own name by default.
    #[serde(default)]
    pub name: String,
    /// One line for the report.
    #[serde(default)]
    pub title: String,
    /// Simulated time.
    #[schemars(extend("x-range" = "1 ns..=1000000 s"))]
    pub duration: Span,
    /// Lead time: metrics count from here. Below `duration`.
    #[serde(default)]
    pub warmup: Placed<Span>,
    /// How often queues and rates are sampled.
    #[schemars(extend("x-range" = "1 ns.."))]
    #[serde(default = "sample")]
    pub sample: Placed<Span>,
    /// Root of the seed tree of the first run; run k of `--seeds` takes `seed + k`.
    #[serde(default = "first_seed")]
    pub seed: u64,
    /// One data cell in this many is followed hop by hop (the anatomy of latency); 0: none.
    #[serde(default = "trace")]
    pub trace_one_in: u32,
    /// What moves data: compared side by side on the same networks.
    pub system: Vec<Placed<SystemFile>>,
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
    pub random: Option<Placed<RandomFile>>,
    /// Relays sampled from a consensus, or from the built-in model of Tor.
    pub tor: Option<Placed<TorFile>>,
    /// Kinds of traffic beside the built-in ones.
    #[serde(default)]
    pub traffic: BTreeMap<String, TrafficFile>,
    /// Who fetches what, over which relays.
    pub user: Vec<Placed<UserFile>>,
    /// What goes wrong, and when.
    #[serde(default)]
    pub fault: Vec<Placed<FaultFile>>,
}

fn sample() -> Placed<Span> {
    Placed::nowhere(Span::from_millis(10))
}
fn first_seed() -> u64 {
    1
}
fn trace() -> u32 {
    20
}

/// One system; `[every-system]` gives the same keys for all, and each `[[combine]]` names alternatives of which
/// every combination is a system (`vanilla = { transport = "vanilla" }`).
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
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
    /// Be the tor of the [tor] network's time: EWMA, KIST and congestion control as its consensus says
    /// (`KISTSchedRunInterval`, `cc_alg`, `CircuitPriorityHalflifeMsec`, `circwindow`), or where it is silent as tor
    /// did by default in its year. Replaces `scheduler`, `channel-scheduler`, `control` and their parameters.
    #[serde(default)]
    pub of_consensus: bool,
    /// Over which relays circuits go.
    #[serde(default)]
    pub paths: PathsFile,
    /// How a circuit's rate is controlled end to end.
    #[serde(default = "windows")]
    pub control: Name,
    /// The fixed windows of `control = "windows"` and `control = "predictor"`.
    #[serde(default)]
    pub windows: WindowsFile,
    /// Parameters of `control = "predictor"`.
    #[serde(default)]
    pub predictor: PredictorFile,
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
    pub tcp: tcp::Config,
}

/// PCTCP: a TCP connection per circuit (CCS 2013).
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct PctcpFile {
    /// Share of the relays that are upgraded; a pair with another relay shares one connection.
    pub upgraded: Placed<f64>,
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
            upgraded: Placed::nowhere(1.0),
            connections_per_peer: 0,
            beyond: Placed::nowhere("round-robin".to_owned()),
            esp_overhead: Quantity(Bytes(0)),
        }
    }
}

/// KIST (tor's `scheduler_kist.c`).
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
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

fn no_switching() -> Name {
    Placed::nowhere("none".into())
}
fn vanilla() -> Name {
    Placed::nowhere("vanilla".into())
}
fn round_robin() -> Name {
    Placed::nowhere("round-robin".into())
}
fn windows() -> Name {
    Placed::nowhere("windows".into())
}
/// Tor's CircuitPriorityHalflife default.
fn half_life() -> Quantity<Span> {
    Quantity(Span::from_secs(30))
}
