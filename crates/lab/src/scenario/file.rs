//! The scenario file as serde reads it.
//!
//! Reading fills in every default, so a [`ScenarioFile`] that is written back (the manifest) states all of them.
//! [`tidegate_control::keys`] checks types and ranges; `super::check` checks what spans several keys.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use tidegate_control::units::Span;
use tidegate_proto::system::SystemConfig;
use tidegate_sim::plan::{Packaging, Tls};
use tidegate_sim::tcp;

use super::paths::PathsFile;
pub(crate) use super::place::{Name, Placed};
use super::tables::{HostFile, RandomFile, TorFile, Underlay};
use super::users::{ChurnFile, FaultFile, TrafficFile, UserFile};
use crate::traffic::built_in;

/// A scenario.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ScenarioFile {
    /// Name of the output folder; default: the name of the file.
    #[serde(default)]
    pub name: String,
    /// One line for the report.
    #[serde(default)]
    pub title: String,
    /// Simulated time.
    #[schemars(extend("x-range" = "1 ns..=1000000 s"))]
    pub duration: Span,
    /// Time before measurement begins. Must be below `duration`.
    #[serde(default)]
    pub warmup: Placed<Span>,
    /// Interval at which queues and rates are sampled.
    #[schemars(extend("x-range" = "1 ns.."))]
    #[serde(default = "sample")]
    pub sample: Placed<Span>,
    /// Root of the first run's seed tree; run k of `--seeds` uses `seed + k`.
    #[serde(default = "first_seed")]
    pub seed: u64,
    /// Traces one data cell in this many hop by hop, for the anatomy of latency; 0 traces none.
    #[serde(default = "trace")]
    pub trace_one_in: u32,
    /// Divides a run into at most this many processes, which threads run in parallel; for networks of thousands of
    /// relays. Processes exchange messages every 0.1 to 1 ms of simulated time. Hosts closer to each other than this
    /// interval share a process. The result depends on this number, never on threads.
    #[serde(default = "undivided")]
    #[schemars(range(min = 1, max = 256))]
    pub processes: Placed<u32>,
    /// Systems to compare on the same networks.
    pub system: Vec<Placed<SystemFile>>,
    /// Delay, jitter and loss between hosts.
    #[serde(default)]
    pub(crate) underlay: Underlay,
    /// Relays, one table each.
    #[serde(default)]
    pub(crate) relay: Vec<HostFile>,
    /// Servers, one table each.
    #[serde(default)]
    pub(crate) server: Vec<HostFile>,
    /// Clients, one table each.
    #[serde(default)]
    pub(crate) client: Vec<HostFile>,
    /// Relays with random link rates.
    pub(crate) random: Option<Placed<RandomFile>>,
    /// Relays sampled from a consensus, or from the built-in model of Tor.
    pub tor: Option<Placed<TorFile>>,
    /// Kinds of traffic in addition to the built-in ones.
    #[serde(default)]
    pub(crate) traffic: BTreeMap<String, TrafficFile>,
    /// Users: what each fetches, and over which relays.
    pub user: Vec<Placed<UserFile>>,
    /// Faults and their times.
    #[serde(default)]
    pub(crate) fault: Vec<Placed<FaultFile>>,
    /// Relays that go down and come back at random.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) relay_churn: Option<Placed<ChurnFile>>,
    /// Combinations of `[[combine]]` that do not run, and why.
    #[serde(skip)]
    pub left_out: Vec<(String, String)>,
}

impl ScenarioFile {
    /// The kind of traffic with this name. A file's own one takes precedence over a built-in one.
    pub(crate) fn traffic_of(&self, name: &str) -> Option<Cow<'_, TrafficFile>> {
        let own = self.traffic.get(name).map(Cow::Borrowed);
        own.or_else(|| built_in(name).map(Cow::Owned))
    }
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

/// One system: its parts, and the layers below them.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SystemFile {
    /// Name in tables and reports.
    pub name: Name,
    /// TLS records and handshakes.
    #[serde(default)]
    pub tls: Tls,
    /// How exits package bytes into cells.
    #[serde(default)]
    pub packaging: Packaging,
    /// TCP between hosts.
    #[serde(default)]
    pub tcp: tcp::Config,
    /// Configures the system as the [tor] network's consensus does: EWMA, KIST and congestion control
    /// (`KISTSchedRunInterval`, `cc_alg`, `CircuitPriorityHalflifeMsec`, `circwindow`). Absent parameters take tor's
    /// default of that year. Replaces `scheduler`, `channel-scheduler`, `control`, parameters that tor reads from the
    /// consensus, `tls.round-trips` (2), `tls.standing` (true) and `tls.record-cells` (8). A system that sets one of
    /// these keys to another value is refused.
    #[serde(default)]
    pub of_consensus: bool,
    /// Share of clients without congestion control: their circuits use the fixed `windows`, whatever `control` is.
    /// Drawn per client from the run's seed; a larger share contains all clients of a smaller one.
    #[schemars(range(min = 0.0, max = 1.0))]
    #[serde(default)]
    pub old_clients: f64,
    /// Gives a share of the clients another system of this file. The two systems may differ only in `control`
    /// (`windows` or `vegas`), `windows` and `paths`.
    #[serde(default)]
    pub(crate) other_clients: Option<OtherClientsFile>,
    /// How clients select relays for circuits.
    #[serde(default)]
    pub(crate) paths: PathsFile,
    /// The parts; their keys stand in the same table.
    #[serde(skip)]
    pub parts: SystemConfig,
    /// The table as written, without defaults.
    #[serde(skip)]
    pub written: Value,
}

/// Clients of another system.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct OtherClientsFile {
    /// Name of the other system; reports append it to the names of these clients' classes.
    pub of: Name,
    /// Share of the clients, drawn per client from the run's seed; a larger share contains all clients of a smaller one.
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
        let SystemFile {
            name,
            of_consensus,
            old_clients,
            other_clients,
            paths,
            tls,
            packaging,
            tcp,
            parts,
            written: _,
        } = self;
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

/// Whether a character may occur in names that become folders and keys.
pub(crate) fn file_name_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}
