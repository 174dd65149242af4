//! The scenario file as serde sees it. Reading fills in every default, so that writing a [`File`] back
//! spells all of them out (the manifest). What [`tidegate_control::keys`] cannot check, [`super::check`] does.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use tidegate_control::units::Span;
use tidegate_proto::system::SystemConfig;
use tidegate_sim::plan::{Packaging, Tls};
use tidegate_sim::tcp;

use super::paths::PathsFile;
pub use super::place::{Name, Placed};
use super::tables::{HostFile, RandomFile, TorFile, Underlay};
use super::users::{ChurnFile, FaultFile, TrafficFile, UserFile};

/// A scenario.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ScenarioFile {
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
    /// A run is divided among so many processes at most, which threads may run at once: for networks of thousands of
    /// relays. Locations less than 1 ms apart stay together. What comes out depends on this number, never on threads.
    #[serde(default = "undivided")]
    #[schemars(range(min = 1, max = 256))]
    pub processes: Placed<u32>,
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
    /// Relays come and go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relay_churn: Option<Placed<ChurnFile>>,
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
fn undivided() -> Placed<u32> {
    Placed::nowhere(1)
}

/// One system: its parts, and what is below them.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SystemFile {
    /// Name in tables.
    pub name: Name,
    /// Record overhead.
    #[serde(default)]
    pub tls: Tls,
    /// How exits put bytes into cells.
    #[serde(default)]
    pub packaging: Packaging,
    /// TCP between hosts.
    #[serde(default)]
    pub tcp: tcp::Config,
    /// Be the tor of the [tor] network's time: EWMA, KIST and congestion control as its consensus says
    /// (`KISTSchedRunInterval`, `cc_alg`, `CircuitPriorityHalflifeMsec`, `circwindow`), or where it is silent as tor
    /// did by default in its year. Replaces `scheduler`, `channel-scheduler`, `control`, their parameters and
    /// `tls.round-trips` (2), `tls.standing`.
    #[serde(default)]
    pub of_consensus: bool,
    /// Share of the clients that know no congestion control: their circuits have the fixed `windows`, whatever `control`
    /// says. Drawn per client from the run's seed; with a larger share the same are old, and others besides.
    #[schemars(range(min = 0.0, max = 1.0))]
    #[serde(default)]
    pub old_clients: f64,
    /// Clients of another system of this file, by share. The two may differ at the ends of circuits alone: in `control`
    /// (`windows` or `vegas`), `windows` and `paths`.
    #[serde(default)]
    pub other_clients: Option<OtherClientsFile>,
    /// Over which relays circuits go.
    #[serde(default)]
    pub paths: PathsFile,
    /// Its parts, whose keys stand beside these.
    #[serde(skip)]
    pub parts: SystemConfig,
}

/// Clients of another system.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct OtherClientsFile {
    /// The other system's name, which stands at the end of their classes' names.
    pub of: Name,
    /// Share of the clients. Drawn per client from the run's seed; with a larger share the same are among them, and more.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub share: f64,
}

impl Serialize for SystemFile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "kebab-case")]
        struct Below<'a> {
            name: &'a str,
            of_consensus: bool,
            old_clients: f64,
            #[serde(skip_serializing_if = "Option::is_none")]
            other_clients: &'a Option<OtherClientsFile>,
            paths: &'a PathsFile,
            tls: &'a Tls,
            packaging: &'a Packaging,
            tcp: &'a tcp::Config,
        }
        let SystemFile { name, of_consensus, old_clients, other_clients, paths, tls, packaging, tcp, parts } =
            self;
        let mut all = parts.table.clone();
        if let Ok(Value::Object(below)) = serde_json::to_value(Below {
            name,
            of_consensus: *of_consensus,
            old_clients: *old_clients,
            other_clients,
            paths,
            tls,
            packaging,
            tcp,
        }) {
            all.extend(below);
        }
        all.serialize(serializer)
    }
}

/// What may stand in names that become folders and keys.
pub(crate) fn file_name_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}
