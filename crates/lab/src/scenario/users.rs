//! The tables of a scenario that describe what happens on the network: traffic, users, faults.

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
pub struct TrafficFile {
    /// What is asked for.
    #[serde(default)]
    pub requests: Vec<RequestFile>,
    /// Pause after each response.
    #[serde(default)]
    pub pause: Between<Span>,
    /// Requests begin so far apart, whether or not the last one has ended, each on a circuit of its own that is built
    /// half of the time before; instead of `pause` and `circuit-lifetime`.
    #[schemars(extend("x-range" = "2 ms.."))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<Span>,
    /// A stream of the models is given up after this time.
    #[serde(default)]
    pub timeout: Timeout,
    /// A circuit this old takes no new requests; zero: each request has its own. Source: tor's
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

fn dirtiness() -> Span {
    Span::from_secs(600)
}

impl TrafficFile {
    /// Requests without pause, on circuits of the usual lifetime.
    pub fn of(requests: Vec<RequestFile>) -> TrafficFile {
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
pub struct RequestFile {
    /// Size of the response.
    pub size: Size,
    /// Relative frequency.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    #[serde(default = "alone")]
    pub weight: f64,
    /// Given up after this time.
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
    /// A request among others.
    pub fn of(size: Size, weight: f64, timeout: Timeout) -> RequestFile {
        RequestFile { size, weight, timeout, request: request() }
    }
}

/// Who fetches what, over which relays.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct UserFile {
    /// Name in reports; numbered if `count` is above one.
    pub name: Name,
    /// How many of them.
    #[schemars(range(min = 1, max = 200_000))]
    #[serde(default = "one")]
    pub count: u32,
    /// How many of them the whole of Tor has, instead of `count`: a run has its fraction of them, times [tor] `load`.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_tor: Option<Placed<f64>>,
    /// Kind of traffic: `bulk`, `web`, `benchmark`, `privcount`, or one of the file's own.
    pub traffic: Name,
    /// Guard, middle, exit; without it the network draws relays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<[Name; 3]>,
    /// The same of the second circuit under `conflux`, to the same exit: without it such a user has one circuit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub second_path: Option<[Name; 3]>,
    /// The user over whose circuits this one's streams go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<Name>,
    /// The client host; without it the network makes one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<Name>,
    /// Whether the user keeps its guard where clients keep theirs; Tor's benchmark clients do not.
    #[serde(default = "yes")]
    pub keep_guard: bool,
    /// The server host; without it the network chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<Name>,
    /// Countries that these users are in, by their codes, one after the other; without it they are where Tor's users are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub countries: Vec<Name>,
    /// Each has a server of its own, at the same place: OnionPerf fetches from its own machine.
    #[serde(default)]
    pub own_server: bool,
    /// First request.
    #[serde(default)]
    pub start: Between<Span>,
    /// Nothing is begun after this, without it until the end of the run; what has begun may end, endless responses do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Span>,
    /// Circuits are built this long before the first request.
    #[serde(default)]
    pub circuit_lead: Span,
    /// The server is an onion service: circuits have six relays, the client's guard, middle and rendezvous point, and two
    /// middles and the guard of the service, at which its end of the circuit is. Not with `path`.
    #[serde(default)]
    pub onion_service: bool,
    /// Share of these users that are awake in each of so many equal parts of the `day`; the others begin nothing
    /// meanwhile. Without it all are, always.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awake: Vec<Placed<f64>>,
    /// Length of the day of `awake`; the first begins with the run.
    #[schemars(extend("x-range" = "1 s.."))]
    #[serde(default = "day")]
    pub day: Span,
}

impl UserFile {
    /// Where so many-th of these users is, if that is said.
    pub fn country(&self, number: u32) -> Option<Country> {
        let countries = self.countries.len() as u32;
        let code = self.countries.get(number.checked_rem(countries)? as usize)?;
        Country::from_code(code.get_ref())
    }
}

fn day() -> Span {
    Span::from_secs(86_400)
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

/// Relays come and go: each is up and down for times drawn from exponential distributions, and what ran over it breaks.
/// Clients learn of it from failures alone; while its guard is down, a client takes others.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ChurnFile {
    /// Mean time that a relay is up.
    #[schemars(extend("x-range" = "1 s.."))]
    pub up: Span,
    /// Mean time that it is down.
    #[schemars(extend("x-range" = "1 s.."))]
    pub down: Span,
}

/// One thing that goes wrong.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FaultFile {
    /// What goes wrong.
    pub kind: FaultKind,
    /// The two hosts, for what happens between them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub between: Option<[Name; 2]>,
    /// The host, for what happens to one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<Name>,
    /// `drop`: the probability.
    #[schemars(range(min = 0.0, max = 1.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// `byzantine`: what the relay tells its neighbours instead of its PredicTor controller's plans.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lie: Option<Lie>,
    /// `delay`: how much longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra: Option<Span>,
    /// From this time,
    #[serde(default)]
    pub from: Span,
    /// until this time; without it the end of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Span>,
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// Packets between two hosts are lost with a probability.
    Drop,
    /// Packets between two hosts take longer.
    Delay,
    /// No packet passes between two hosts.
    Partition,
    /// A host's access link carries nothing.
    LinkDown,
    /// A host stops, and comes back empty.
    HostDown,
    /// A relay under PredicTor lies to its neighbours.
    Byzantine,
}

impl FaultFile {
    /// A key that this kind of fault needs and that is not given.
    pub fn missing(&self) -> Option<&'static str> {
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
