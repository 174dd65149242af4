//! Input of a run: plain, checked data. A run is a pure function of a [`Plan`], a [`System`] and a seed. The lab reads
//! files and makes networks.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::balance::{Attack, Balance, Given, Survey};
use tidegate_control::markov;
use tidegate_control::units::{Bytes, Rate, Span, Time};

pub use tidegate_proto::bucket::BucketPlan;
use tidegate_proto::cell::RelayId;
pub use tidegate_proto::conflux::Split;
pub use tidegate_proto::control::{Control, FixedRate, FixedWindows, Windows, predictor, vegas};
pub use tidegate_proto::links::{CircuitQueue, Ends, OutputBuffer, kist};
pub use tidegate_proto::paths::{self, Directory, RelayEntry};
pub use tidegate_proto::scheduler::{Discipline, Ewma, LongestQueue, RoundRobin, Weighted};
pub use tidegate_proto::switching::{Form, Switching};
pub use tidegate_proto::transport::{Pctcp, Sharing, Transport};

pub use crate::clients::OtherClients;
pub use crate::deployment::Deployment;
use crate::tcp;

/// The network and its users: the same for every system that is compared on it.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// All hosts; `observe::Host(i)` is `hosts[i]`.
    pub hosts: Vec<HostPlan>,
    /// Delay, jitter and loss between locations.
    pub paths: PathTable,
    /// All users; `observe::User(i)` is `users[i]`.
    pub users: Vec<UserPlan>,
    /// The consensus for clients: the relays that users with [`Route::Drawn`] can choose. `RelayId(i)` is `hosts[i]`.
    pub directory: Directory,
    /// Measurements of relays by FlashFlow's roles.
    pub measurements: Vec<MeasurementPlan>,
    /// Faults with their times.
    pub faults: Vec<Fault>,
    /// The run ends at this time.
    pub duration: Span,
    /// How often relays' queues are sampled; not zero.
    pub sample_every: Span,
    /// One data cell in this many is followed hop by hop; zero follows none.
    pub trace_one_in: u32,
    /// The run is divided among at most this many processes ([`crate::division`]); zero or one: it is not. Division
    /// changes the order of events at equal times, and makes effects without a path delay take one window.
    pub processes: u32,
}

impl Plan {
    /// The one-way propagation delay between two relays.
    pub fn delay(&self, from: RelayId, to: RelayId) -> Span {
        let at = |relay: RelayId| self.hosts[relay.0 as usize].location;
        self.paths.get(at(from), at(to)).delay
    }
}

/// One machine with an access link.
#[derive(Clone, Debug)]
pub struct HostPlan {
    /// A name for reports.
    pub name: String,
    /// The host's role.
    pub role: Role,
    /// Row and column of [`PathTable`].
    pub location: u32,
    /// Index of a host on the same machine, if any. Packets between hosts of one machine take the loopback, without
    /// access link, path or delay. Packets to other machines use the host's own links, unless their queue is
    /// [`QueuePlan::Machine`].
    pub colocated: Option<u32>,
    /// The access link out of the host.
    pub up: LinkPlan,
    /// The access link into the host.
    pub down: LinkPlan,
}

impl HostPlan {
    /// Whether trains can cross both of its links: they are first come, first served.
    pub fn carries_trains(&self) -> bool {
        let first_come = |link: &LinkPlan| {
            link.rate == Rate::UNLIMITED || matches!(link.queue, QueuePlan::DropTail { .. })
        };
        first_come(&self.up) && first_come(&self.down)
    }

    /// Bytes per second that the host can carry at most, by its links and its own limit. Only the host knows it; its
    /// report and its weight are in [`Plan::directory`].
    pub fn capacity(&self) -> f64 {
        let limit = match &self.role {
            Role::Relay(limits) => {
                limits.bucket.map_or(f64::INFINITY, |bucket| bucket.rate_bytes_per_s as f64)
            }
            Role::Client | Role::Server | Role::Measurer | Role::Coordinator => f64::INFINITY,
        };
        let link = |rate: Rate| if rate == Rate::UNLIMITED { f64::INFINITY } else { rate.as_bytes_per_s() };
        limit.min(link(self.up.rate)).min(link(self.down.rate))
    }
}

/// The role of a host.
#[derive(Clone, Debug, PartialEq)]
pub enum Role {
    /// Forwards circuits.
    Relay(RelayLimits),
    /// The client end of its users' circuits.
    Client,
    /// Answers requests that exits make.
    Server,
    /// Loads relays to measure their capacity (FlashFlow).
    Measurer,
    /// Starts measurers and relays, and adds up their reports (FlashFlow).
    Coordinator,
}

/// A relay's own limits, below those of its link.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct RelayLimits {
    /// The token bucket, if it limits its rate.
    pub bucket: Option<BucketPlan>,
    /// Connections that find the bucket empty retry together after this time (tor: TokenBucketRefillInterval, 100 ms);
    /// zero: at the next refill.
    pub retry_after: Span,
    /// Processor time per cell processed; one core, served in order.
    pub cell_cost: Span,
    /// Traffic between an exit and servers also uses the bucket and the processor, as in tor.
    pub servers: bool,
}

/// One direction of an access link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkPlan {
    /// Bits per second of IP packets.
    pub rate: Rate,
    /// The queue in front of it.
    pub queue: QueuePlan,
}

/// How a link's queue admits packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QueuePlan {
    /// First in, first out, dropping arrivals beyond either limit (`u32::MAX`, `u64::MAX`: none).
    DropTail {
        /// Packets waiting, the one being sent not counted.
        packets: u32,
        /// Bytes waiting, the packet being sent not counted.
        bytes: u64,
    },
    /// Controlled delay (RFC 8289).
    CoDel {
        /// Acceptable standing delay (5 ms in the RFC).
        target: Span,
        /// Window over which it must be seen (100 ms in the RFC).
        interval: Span,
        /// Hard limit in packets.
        packets: u32,
    },
    /// The host uses the link of the machine that it shares; this must hold for both directions.
    Machine,
    /// Shadow 3's network interface. It never drops. It is a token bucket that holds a millisecond's worth
    /// and a packet of 1500 bytes, so that a lone packet leaves in no time. Packets without payload (at
    /// most 60 bytes) overtake those of other connections; behind one of their own connection they leave
    /// when it does, because every packet that leaves acknowledges all that has arrived by then.
    Shadow,
}

/// Delay, jitter and loss between two locations.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Path {
    /// One-way propagation delay.
    pub delay: Span,
    /// Standard deviation of a normal term added to it, never overtaking within a connection and never below
    /// `least_delay`.
    pub jitter: Span,
    /// Probability that a packet is lost.
    pub loss: f64,
}

impl Path {
    /// Lower bound of a packet's delay under jitter: half the mean delay. Divided runs rely on it: an event at one end
    /// cannot affect the other end earlier.
    pub(crate) fn least_delay(&self) -> Span {
        self.delay / 2
    }
}

/// A full matrix of paths between locations, row = sender's location.
#[derive(Clone, Debug, Default)]
pub struct PathTable {
    locations: u32,
    paths: Arc<[Path]>,
}

impl PathTable {
    /// Every pair of `locations` locations (a location with itself included) has the same path.
    pub fn uniform(locations: u32, path: Path) -> PathTable {
        PathTable { locations, paths: vec![path; (locations * locations) as usize].into() }
    }

    /// From a function of (from, to).
    pub fn from_fn(locations: u32, mut path: impl FnMut(u32, u32) -> Path) -> PathTable {
        let mut paths = Vec::with_capacity((locations * locations) as usize);
        for from in 0..locations {
            paths.extend((0..locations).map(|to| path(from, to)));
        }
        PathTable { locations, paths: paths.into() }
    }

    /// Number of locations.
    pub fn locations(&self) -> u32 {
        self.locations
    }

    /// The path from one location to another.
    ///
    /// # Panics
    /// If a location is out of range.
    pub fn get(&self, from: u32, to: u32) -> &Path {
        assert!(from < self.locations && to < self.locations, "no such location");
        &self.paths[(from * self.locations + to) as usize]
    }
}

/// A user at a client host that fetches data over circuits.
#[derive(Clone, Debug)]
pub struct UserPlan {
    /// Index into `Plan::hosts`, a [`Role::Client`].
    pub host: u32,
    /// Name of the class in reports (`"web"`, `"bulk"`, `"50 KiB"`).
    pub class: String,
    /// Which relays the circuits use.
    pub route: Route,
    /// Guard, middle and exit of the second circuit, if the route is pinned and the system's clients link two. The
    /// exit is the same.
    pub second_path: Option<[u32; 3]>,
    /// Servers to choose from, indices into `Plan::hosts`.
    pub servers: Vec<u32>,
    /// The user's traffic.
    pub traffic: Traffic,
    /// First request at this time; circuits with a pinned route are built `circuit_lead` before it.
    pub start: Time,
    /// Last time for a new request; endless transfers are cut then.
    pub stop: Time,
    /// Pauses `[from, until)`: requests that are due in a pause wait. Sorted and disjoint.
    pub rests: Vec<(Time, Time)>,
    /// How long before the first request the first circuit is built.
    pub circuit_lead: Span,
    /// Circuits older than this do not get new streams (Tor's MaxCircuitDirtiness); zero: one circuit per request.
    pub circuit_lifetime: Span,
}

/// How a user's circuits get their relays.
#[derive(Clone, Debug)]
pub enum Route {
    /// Always these three hosts: guard, middle, exit.
    Pinned([u32; 3]),
    /// Drawn from the directory as the system's clients do, or with a new guard for every circuit.
    Drawn {
        /// Whether clients that keep guards keep this one's.
        keep_guard: bool,
        /// The server is an onion service: the circuit continues from its third relay over three of the service's.
        onion_service: bool,
    },
    /// Streams use the circuits of this user (an index), which sits on the same host and has circuits of its own.
    Shared(u32),
}

/// A request of a user.
#[derive(Clone, Debug)]
pub enum Traffic {
    /// One response after the other.
    Fetch {
        /// The possible requests; each one is drawn by weight.
        requests: Vec<RequestPlan>,
        /// Pause after each response, uniform in `[min, max]`.
        pause: (Span, Span),
        /// If set, requests begin at this interval instead, whether or not the last one has ended, each on its own
        /// circuit.
        every: Option<Span>,
    },
    /// Streams and packets from tgen's Markov models (CCS 2018); streams are given up after this time, unless
    /// it is `Span(u64::MAX)`.
    Markov(Arc<markov::Model>, Span),
}

/// One kind of request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestPlan {
    /// Response size in bytes; `u64::MAX`: endless.
    pub bytes: u64,
    /// Relative frequency.
    pub weight: f64,
    /// Given up after this time; `Span(u64::MAX)`: never.
    pub timeout: Span,
    /// Size of the request itself in bytes.
    pub request_bytes: u32,
}

/// A measurement of a relay by FlashFlow's roles.
#[derive(Clone, Debug)]
pub struct MeasurementPlan {
    /// The measured relay: an index into `Plan::hosts`, a [`Role::Relay`].
    pub relay: u32,
    /// A [`Role::Coordinator`].
    pub coordinator: u32,
    /// Measurers ([`Role::Measurer`]) with `a_i` and sockets; one with 0 sockets does not take part.
    pub team: Vec<(u32, Rate, u16)>,
    /// The coordinator connects to all peers at this time. Measurements of one relay must not overlap.
    pub start: Time,
    /// `t`: whole seconds.
    pub seconds: u16,
    /// `r` in percent, below 100, the coordinator's and the relay's.
    pub background_percent: u8,
    /// One echoed cell in this many is checked.
    pub check_one_in: u32,
    /// The relay cheats: it holds cells back and claims background traffic ([`tidegate_proto::flashflow::Hold`]).
    pub holds: bool,
    /// The share of the seconds, evenly spread, in which a cell costs the relay's processor twice as much.
    pub slow: f64,
}

/// A fault with its period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// A kind of fault.
    pub kind: FaultKind,
    /// From this time,
    pub from: Time,
    /// until this time.
    pub until: Time,
}

#[expect(missing_docs, reason = "each variant explains its fields")]
/// A rule that packets pass through while the fault lasts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// Packets between the two locations (both ways) are lost with this probability.
    Drop { between: (u32, u32), probability: f64 },
    /// Packets between the two locations (both ways) are delayed by this much.
    Delay { between: (u32, u32), extra: Span },
    /// No packet passes between the two locations.
    Partition { between: (u32, u32) },
    /// The host's access link carries nothing.
    LinkDown { host: u32 },
    /// The host's access link carries this share of its rate, because other guests of its machine are busy. A packet
    /// keeps the rate at which it began; shares at the same time multiply.
    LinkShare { host: u32, share: f64 },
    /// The host stops: connections to it break, its circuits are gone; it comes back empty.
    HostDown { host: u32 },
    /// Where relays exchange messages ([`predictor`]), the relay is byzantine: it tells its neighbours lies, and
    /// otherwise works.
    Byzantine { host: u32, lie: Lie },
}

/// A byzantine relay's messages in place of its controller's trajectories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Lie {
    /// It accepts and sends without a limit, and has endless queues.
    Greedy,
    /// It accepts nothing and sends without a limit.
    Denying,
    /// Values that are not numbers.
    NotNumbers,
    /// Trajectories beyond the horizon.
    TooLong,
    /// A hundred trajectories instead of each one, of circuits that exist and that do not.
    TooMany,
    /// Its first message, repeated.
    Replayed,
    /// Random bytes.
    Garbage,
    /// Nothing.
    Absent,
}

/// How exits put the bytes of a stream into cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Packaging {
    /// Application bytes that fit into one cell: 498 (relay cell format 0), or 488 with the format of
    /// counter-Galois onions that tor 0.4.9 speaks on circuits with congestion control. Source: tor-spec.
    #[serde(rename = "cell")]
    #[schemars(range(min = 1, max = 498))]
    pub cell_bytes: u16,
    /// Bytes read from the server at a time; what is left of them after the last full cell leaves in a cell of its own.
    /// Source: tor, 32 x 498.
    #[serde(rename = "read", with = "tidegate_control::text::size")]
    #[schemars(with = "Bytes", extend("x-range" = "1 B..=4294967295 B"))]
    pub read_bytes: u32,
}

impl Default for Packaging {
    fn default() -> Packaging {
        Packaging { cell_bytes: 498, read_bytes: 32 * 498 }
    }
}

/// TLS between the ends of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Tls {
    /// Bytes added per record: 5 header, 1 type, 16 tag. Source: TLS 1.3.
    #[serde(with = "tidegate_control::text::size")]
    #[schemars(with = "Bytes", extend("x-range" = "..=16 KiB"))]
    pub record_overhead: u32,
    /// Cells in one record at most: up to 16 KiB are written at once. Source: tor.
    #[schemars(range(min = 1))]
    pub record_cells: u32,
    /// Round trips after TCP's before a channel carries cells: 1 for TLS 1.3, 1 for the link protocol. Source: tor has
    /// 2.
    #[schemars(range(max = 8))]
    pub round_trips: u32,
    /// Channels shared by all circuits between two relays are open before the run begins. Tor's relays live for weeks
    /// and have channels to nearly every other relay; a run of minutes would open most of them.
    pub standing: bool,
}

impl Default for Tls {
    fn default() -> Tls {
        Tls { record_overhead: 22, record_cells: 31, round_trips: 0, standing: false }
    }
}

/// How the overlay moves data: the parts that experiments replace.
#[derive(Clone, Debug)]
pub struct System {
    /// A name for tables.
    pub name: String,
    /// How circuits share connections between two relays.
    pub transport: Transport,
    /// Deployment and overhead of a transport other than vanilla.
    pub deployment: Deployment,
    /// Which circuit goes next on a connection.
    pub scheduler: Arc<dyn Discipline>,
    /// When connections take cells from circuits: at KIST's runs, or without it as soon as their output buffers
    /// have room.
    pub kist: Option<kist::KistParameters>,
    /// Which connection goes next where a relay's token bucket makes them wait: the one with the least
    /// exponentially decayed cell count, with this half-life. Without it, each in turn.
    pub connection_half_life: Option<Span>,
    /// Whether and how circuits move away from congested connections.
    pub switching: Option<Switching>,
    /// How clients' streams go over two circuits at once ([`tidegate_proto::conflux`]), if they do.
    pub conflux: Option<Arc<dyn Split>>,
    /// How clients select relays.
    pub paths: paths::PathSelection,
    /// The source of the weights by which clients select relays; [`crate::balance`] makes them before a run.
    pub balance: Arc<dyn Balance>,
    /// Plan of the survey that the balance system needs.
    pub survey: Survey,
    /// Tricks of relays to get more weight.
    pub attack: Attack,
    /// How circuits' rates are controlled.
    pub control: Arc<dyn Control>,
    /// Clients with other circuit ends and paths, if any.
    pub other_clients: Option<OtherClients>,
    /// Limits of the cells in flight, unless `control` has windows of its own.
    pub windows: Windows,
    /// TCP between hosts.
    pub tcp: tcp::Config,
    /// Connection output buffers.
    pub output_buffer: OutputBuffer,
    /// TLS on channels.
    pub tls: Tls,
    /// How exits put bytes into cells.
    pub packaging: Packaging,
    /// A circuit queue this long stops its exit from packaging, and
    pub circuit_queue_high: u32,
    /// one this short lets it go on (tor: 256 and 10, `cc_cellq_high`, `cc_cellq_low`).
    pub circuit_queue_low: u32,
}

impl Default for System {
    /// Tor before congestion control: one connection per pair of relays, round robin, fixed windows.
    fn default() -> System {
        System {
            name: "vanilla".into(),
            transport: Transport::Vanilla,
            deployment: Deployment::default(),
            scheduler: Arc::new(RoundRobin),
            kist: None,
            connection_half_life: None,
            switching: None,
            conflux: None,
            paths: paths::PathSelection::default(),
            balance: Arc::new(Given),
            survey: Survey::default(),
            attack: Attack::default(),
            control: Arc::new(FixedWindows),
            other_clients: None,
            windows: Windows::default(),
            tcp: tcp::Config::default(),
            output_buffer: OutputBuffer::default(),
            tls: Tls { record_cells: 8, ..Tls::default() },
            packaging: Packaging::default(),
            circuit_queue_high: CircuitQueue::default().high,
            circuit_queue_low: CircuitQueue::default().low,
        }
    }
}
