//! The tables of a scenario that describe activity on the network: traffic, users, faults.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::units::{Bytes, Span};
use tidegate_data::country::Country;
use tidegate_sim::plan::Lie;

use super::place::{Name, Placed};
use super::quantity::{Between, Size, Timeout};

/// One kind of traffic: requests, or Markov models.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct TrafficFile {
    /// Requests, of which a user draws one at a time.
    #[serde(default)]
    pub(crate) requests: Vec<RequestFile>,
    /// Pause after each response, drawn from the range.
    #[serde(default)]
    pub(crate) pause: Between<Span>,
    /// Interval between the starts of requests, even if the previous one is not complete; replaces `pause` and
    /// `circuit-lifetime`. Each request has its own circuit, built half an interval earlier; for the first request of a user,
    /// `circuit-lead` says how much earlier.
    #[schemars(extend("x-range" = "2 ms.."))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<Span>,
    /// Timeout of a stream of the models.
    #[serde(default)]
    pub timeout: Timeout,
    /// Age at which a circuit stops taking new requests; zero gives each request its own circuit. Source: tor's
    /// `MaxCircuitDirtiness`.
    #[serde(default = "dirtiness")]
    pub circuit_lifetime: Span,
    /// tgen's stream model (GraphML), instead of `requests`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_model: Option<Name>,
    /// tgen's packet model (GraphML).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet_model: Option<Name>,
}

pub(super) fn dirtiness() -> Span {
    Span::from_secs(600)
}

impl TrafficFile {
    /// Requests without pause, on circuits of the usual lifetime.
    pub(crate) fn of(requests: Vec<RequestFile>) -> TrafficFile {
        TrafficFile {
            requests,
            pause: Between::default(),
            every: None,
            timeout: Timeout::NEVER,
            circuit_lifetime: dirtiness(),
            stream_model: None,
            packet_model: None,
        }
    }
}

/// One kind of request.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RequestFile {
    /// Size of the response.
    pub(crate) size: Size,
    /// Relative frequency of this request.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    #[serde(default = "alone")]
    pub weight: f64,
    /// Timeout of the request.
    #[serde(default)]
    pub timeout: Timeout,
    /// Size of the request itself.
    #[schemars(extend("x-range" = "1 B..=1 MiB"))]
    #[serde(default = "request")]
    pub request: Bytes,
}

fn alone() -> f64 {
    1.0
}

fn request() -> Bytes {
    Bytes(100)
}

impl RequestFile {
    /// A request of the default request size.
    pub(crate) fn of(size: Size, weight: f64, timeout: Timeout) -> RequestFile {
        RequestFile { size, weight, timeout, request: request() }
    }
}

/// Users of a group.
pub(crate) const MOST_USERS: u32 = 200_000;

/// A user, or a group of users with the same settings.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct UserFile {
    /// Name in reports; reports append a number if `count` is above one.
    pub name: Name,
    /// Number of users; default: 1, or what `of-tor` gives.
    #[schemars(range(min = 1, max = MOST_USERS))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// Number of users in all of Tor, instead of `count`; a run has this number times [tor] `fraction` times `load`.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_tor: Option<Placed<f64>>,
    /// Kind of traffic: `bulk`, `web`, `benchmark`, `privcount`, or a [traffic] table.
    pub traffic: Name,
    /// Guard, middle and exit; default: drawn by the system's `paths`.
    #[schemars(extend("x-length" = "a path has three relays: guard, middle, exit"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<[Name; 3]>,
    /// Path of the second circuit under `conflux`, to the same exit; without it a user with `path` has one circuit.
    #[schemars(extend("x-length" = "a path has three relays: guard, middle, exit"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub second_path: Option<[Name; 3]>,
    /// Name of another user; this user's streams use that user's circuits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<Name>,
    /// The client host; default: one that the network creates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<Name>,
    /// Whether the user keeps its first guard if the system's `paths.keep-guard` is true; Tor's benchmark clients do
    /// not keep theirs.
    #[serde(default = "yes")]
    pub keep_guard: bool,
    /// The server host; default: one that the network chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<Name>,
    /// Country codes, assigned to these users in rotation; default: the distribution of Tor's users.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub countries: Vec<Name>,
    /// Each user has its own server at the same location; OnionPerf fetches from its own machine.
    #[serde(default)]
    pub own_server: bool,
    /// Time of the first request, drawn from the range.
    #[serde(default)]
    pub(crate) start: Between<Span>,
    /// Time after which the user starts no request; default: the end of the run. Responses under way may complete, and
    /// endless ones stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Span>,
    /// Time between building a circuit and its first request.
    #[serde(default)]
    pub circuit_lead: Span,
    /// The server is an onion service. Circuits have six relays: the client's guard, middle and rendezvous point, then
    /// two middles and the guard of the service, where the simulated circuit ends. Not with `path`.
    #[serde(default)]
    pub onion_service: bool,
    /// Share of these users that are active in each of the equal parts of the `day`; the others start no request.
    /// Default: all users, always.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awake: Vec<Placed<f64>>,
    /// Length of the day of `awake`; the first day starts with the run.
    #[schemars(extend("x-range" = "1 s.."))]
    #[serde(default = "day")]
    pub day: Span,
}

impl UserFile {
    /// The country of the user with this number, if the file assigns countries.
    pub(crate) fn country(&self, number: u32) -> Option<Country> {
        let countries = self.countries.len() as u32;
        let code = self.countries.get(number.checked_rem(countries)? as usize)?;
        Country::from_code(code.get_ref())
    }
}

pub(super) fn day() -> Span {
    Span::from_secs(86_400)
}

fn yes() -> bool {
    true
}

/// Churn of relays. Each relay is up and down for exponentially distributed times; going down breaks its circuits.
/// Clients notice only through failures, and use other guards while theirs is down.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct ChurnFile {
    /// Mean time that a relay is up.
    #[schemars(extend("x-range" = "1 s.."))]
    pub up: Span,
    /// Mean time that a relay is down.
    #[schemars(extend("x-range" = "1 s.."))]
    pub down: Span,
}

/// One fault.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct FaultFile {
    /// Kind of fault.
    pub(crate) kind: FaultKind,
    /// The two hosts, for faults between hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub between: Option<[Name; 2]>,
    /// The host, for faults of one host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<Name>,
    /// `drop`: probability that a packet is lost.
    #[schemars(range(min = 0.0, max = 1.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// `byzantine`: what the relay reports to its neighbours in place of its PredicTor plans.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lie: Option<Lie>,
    /// `delay`: additional delay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra: Option<Span>,
    /// Start of the fault.
    #[serde(default)]
    pub from: Span,
    /// End of the fault; default: the end of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Span>,
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FaultKind {
    /// Packets between two hosts are lost with a probability.
    Drop,
    /// Packets between two hosts have additional delay.
    Delay,
    /// All packets between two hosts are lost.
    Partition,
    /// A host's access link carries nothing.
    LinkDown,
    /// A host stops and restarts without state.
    HostDown,
    /// A relay under PredicTor sends false plans to its neighbours.
    Byzantine,
}

impl FaultFile {
    /// The first key that this kind of fault requires and the file lacks.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        match self.kind {
            FaultKind::Byzantine if self.lie.is_none() => Some("lie"),
            FaultKind::LinkDown | FaultKind::HostDown | FaultKind::Byzantine => {
                self.host.is_none().then_some("host")
            }
            _ if self.between.is_none() => Some("between"),
            FaultKind::Drop => self.probability.is_none().then_some("probability"),
            FaultKind::Delay => self.extra.is_none().then_some("extra"),
            FaultKind::Partition => None,
        }
    }
}
