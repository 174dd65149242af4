//! Configuration files of the roles: strict TOML in which every quantity has a unit.
//!
//! Relative paths are relative to the directory of the file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tidegate_control::flashflow::MeasurementParameters;
use tidegate_control::flashflow::schedule::RelayId;
use tidegate_control::text::{read_hex, read_hex_list};
use tidegate_control::units::{Rate, Span};
use tidegate_proto::cell::RelayId as RelayNumber;
use tidegate_proto::crypto::ntor::RelayPublic;
use tidegate_proto::flashflow::{Fingerprint, MAX_MEASURERS, MAX_SECONDS, relay};

use super::network::NetworkSource;
use crate::identity::{Contact, Identity};

/// A mistake in a configuration file.
#[derive(Debug)]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// The mistake, with line and column if they are known.
    pub cause: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.cause)
    }
}

impl std::error::Error for ConfigError {}

/// A configuration that can be read from a file and checked.
pub trait ConfigFile: DeserializeOwned {
    /// Checks values and makes relative paths relative to the directory of `path`.
    ///
    /// # Errors
    /// A sentence that names the key.
    fn check(&mut self, path: &Path) -> Result<(), String>;

    /// Reads and checks the file.
    ///
    /// # Errors
    /// [`ConfigError`] for a file that cannot be read or has a mistake.
    fn load(path: &Path) -> Result<Self, ConfigError> {
        let fail = |cause: String| ConfigError { path: path.into(), cause };
        let text = std::fs::read_to_string(path).map_err(|cause| fail(format!("cannot be read: {cause}")))?;
        if text.trim().is_empty() {
            return Err(fail("is empty; docs/flashflow-operation.md shows a file of each role".into()));
        }
        let mut config: Self =
            toml::from_str(&text).map_err(|cause| fail(cause.to_string().trim_end().to_owned()))?;
        config.check(path).map_err(fail)?;
        Ok(config)
    }
}

/// Shortest measurement, seconds. A relay may send a burst in the first one, and the median of three leaves it out.
pub const LEAST_SECONDS: u64 = 3;

/// Makes a path relative to the directory of the configuration file.
fn resolve(config: &Path, path: &mut PathBuf) {
    *path = config.parent().unwrap_or(Path::new("")).join(&*path);
}

/// Resolves the path of an identity file and checks that the file can be used.
fn resolve_identity(config: &Path, path: &mut PathBuf) -> Result<(), String> {
    resolve(config, path);
    Identity::load(path).map(drop).map_err(|cause| cause.to_string())
}

/// The first 20 bytes of a certificate's fingerprint: the identity of a Tidegate relay.
fn identity_of(fingerprint: &Fingerprint) -> RelayId {
    fingerprint[..20].try_into().expect("a fingerprint has 32 bytes")
}

fn unlimited() -> Rate {
    Rate::UNLIMITED
}

/// Configuration of a relay that can be measured.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RelayConfig {
    /// Listening address.
    pub listen: SocketAddr,
    /// Identity file.
    pub identity: PathBuf,
    /// Rate limit of everything the relay forwards.
    #[serde(default = "unlimited")]
    pub rate: Rate,
    /// Coordinators that may measure the relay, and the limits of a measurement.
    pub measurement: relay::Config,
    /// Relays to which it extends circuits.
    #[serde(default, rename = "neighbour")]
    neighbours: Vec<NeighbourTable>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct NeighbourTable {
    number: u32,
    address: SocketAddr,
    #[serde(deserialize_with = "read_hex")]
    fingerprint: Fingerprint,
}

impl RelayConfig {
    /// Relays to which it extends circuits, by their number in the overlay's directory.
    pub fn neighbours(&self) -> BTreeMap<RelayNumber, Contact> {
        let contact = |n: &NeighbourTable| Contact { address: n.address, fingerprint: n.fingerprint };
        self.neighbours.iter().map(|n| (RelayNumber(n.number), contact(n))).collect()
    }
}

/// Checks a relay's permissions against the ranges of proposal 316.
///
/// # Errors
/// A sentence that names the key of `[measurement]`.
pub fn check_permissions(measurement: &relay::Config) -> Result<(), String> {
    check_all(&[
        (
            (Span::from_secs(3600)..=Span::from_secs(31 * 86_400)).contains(&measurement.period),
            "measurement.period is not between 1 h and 744 h (a month)",
        ),
        (
            (Span::from_secs(10)..=Span::from_secs(120)).contains(&measurement.max_duration),
            "measurement.max-duration is not between 10 s and 120 s",
        ),
        (
            !measurement.allowed || !measurement.coordinators.is_empty(),
            "measurement.allowed is true, but measurement.coordinators is empty",
        ),
    ])
}

impl ConfigFile for RelayConfig {
    fn check(&mut self, path: &Path) -> Result<(), String> {
        check_permissions(&self.measurement)?;
        check_all(&[(self.rate >= Rate(100_000), "rate is below 100 kbit/s")])?;
        resolve_identity(path, &mut self.identity)
    }
}

/// The message of the first condition that does not hold.
fn check_all(conditions: &[(bool, &str)]) -> Result<(), String> {
    match conditions.iter().find(|(holds, _)| !holds) {
        Some((_, message)) => Err((*message).to_owned()),
        None => Ok(()),
    }
}

/// Configuration of background traffic through a relay, for demonstrations.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct BackgroundConfig {
    /// Listening address of the exit.
    pub listen: SocketAddr,
    /// Identity file of the exit.
    pub identity: PathBuf,
    /// Rate at which the exit sends over all circuits together.
    pub rate: Rate,
    /// Number of circuits.
    pub circuits: usize,
    target: BackgroundTarget,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct BackgroundTarget {
    address: SocketAddr,
    #[serde(deserialize_with = "read_hex")]
    fingerprint: Fingerprint,
    #[serde(deserialize_with = "read_hex")]
    onion_key: [u8; 32],
}

impl BackgroundConfig {
    /// The relay that carries the traffic, with its keys.
    pub fn target(&self) -> (Contact, RelayPublic) {
        let BackgroundTarget { address, fingerprint, onion_key } = self.target;
        let keys = RelayPublic { identity: identity_of(&fingerprint), onion: onion_key };
        (Contact { address, fingerprint }, keys)
    }
}

impl ConfigFile for BackgroundConfig {
    fn check(&mut self, path: &Path) -> Result<(), String> {
        check_all(&[((1..=1000).contains(&self.circuits), "circuits is not between 1 and 1000")])?;
        resolve_identity(path, &mut self.identity)
    }
}

/// Configuration of a measurer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct MeasurerConfig {
    /// Listening address.
    pub listen: SocketAddr,
    /// Identity file.
    pub identity: PathBuf,
    /// Certificate fingerprints of the coordinators that may use the measurer.
    #[serde(deserialize_with = "read_hex_list")]
    pub coordinators: Vec<Fingerprint>,
    /// Worker threads; one per core by default.
    #[serde(default = "cores")]
    pub workers: usize,
    /// Sending rate that it never exceeds.
    #[serde(default = "unlimited")]
    pub rate: Rate,
    /// How other measurers probe its capacity.
    pub capacity: Option<CapacityConfig>,
}

/// UDP probes between measurers: see [`super::capacity`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CapacityConfig {
    /// UDP listening address.
    pub listen: SocketAddr,
    /// The other measurers.
    #[serde(default, rename = "peer")]
    pub peers: Vec<CapacityPeer>,
}

/// Another measurer of the team.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CapacityPeer {
    /// Name in error messages.
    pub name: String,
    /// UDP listening address.
    pub address: SocketAddr,
    /// X25519 public key.
    #[serde(deserialize_with = "read_hex")]
    pub onion_key: [u8; 32],
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl ConfigFile for MeasurerConfig {
    fn check(&mut self, path: &Path) -> Result<(), String> {
        let peers = self.capacity.as_ref().map(|capacity| capacity.peers.len());
        check_all(&[
            ((1..=256).contains(&self.workers), "workers is not between 1 and 256"),
            (!self.coordinators.is_empty(), "coordinators is empty: no coordinator could use this measurer"),
            (self.rate.0 > 0, "rate is zero"),
            (
                peers.is_none_or(|peers| (1..=MAX_MEASURERS).contains(&peers)),
                "capacity.peer: give 1 to 10 other measurers",
            ),
        ])?;
        resolve_identity(path, &mut self.identity)
    }
}

/// Configuration of a coordinator: its state, its team and the relays it may measure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CoordinatorConfig {
    /// The file it was read from.
    #[serde(skip)]
    pub path: PathBuf,
    /// Identity file; its onion key is the secret of the schedule.
    pub identity: PathBuf,
    /// State directory.
    pub state: PathBuf,
    /// Path of the bandwidth file.
    pub bandwidth_file: PathBuf,
    /// File that stops all measurements while it exists; `stop` in the state directory by default.
    #[serde(default)]
    pub kill_switch: PathBuf,
    /// Address of the status page and metrics; not served by default.
    pub status: Option<SocketAddr>,
    consensus: Option<PathBuf>,
    certificates: Option<PathBuf>,
    microdescriptors: Option<PathBuf>,
    #[serde(default)]
    authorities: Vec<String>,
    /// Source of the network's consensus. Without it, all configured relays count as listed.
    #[serde(skip)]
    pub(crate) network: Option<NetworkSource>,
    /// Shared random value of the network, mixed into the schedule; zero or 32 bytes.
    #[serde(default, deserialize_with = "shared_random")]
    pub shared_random: Vec<u8>,
    /// Time in which every relay is measured once.
    #[serde(default = "default_period")]
    pub period: Span,
    /// Length of a slot.
    #[serde(default = "default_slot")]
    pub slot: Span,
    /// Limit of the traffic of all measurements at one time; at most the team's capacity.
    #[serde(default = "unlimited")]
    pub budget: Rate,
    /// Guess for new relays while no relay has a result.
    #[serde(default = "default_first_guess")]
    pub first_guess: Rate,
    /// Age at which a result no longer counts and the relay is new again.
    #[serde(default = "default_expiry")]
    pub expiry: Span,
    /// Age at which records are deleted.
    #[serde(default = "default_retention")]
    pub retention: Span,
    /// Parameters of the deployment.
    #[serde(default)]
    pub parameters: MeasurementParameters,
    /// The team.
    #[serde(default, rename = "measurer")]
    pub(crate) measurers: Vec<MeasurerEntry>,
    /// How stock Tor relays are measured.
    pub(crate) stock: Option<StockConfig>,
    /// The relays that may be measured, with their operators' consent.
    #[serde(default, rename = "relay")]
    pub relays: Vec<RelayEntry>,
    /// Relays that must not be measured.
    #[serde(default, deserialize_with = "read_hex_list")]
    pub opt_out: Vec<RelayId>,
}

impl CoordinatorConfig {
    /// The keys with other values in `fresh` that need a restart.
    pub(super) fn needing_a_restart(&self, fresh: &CoordinatorConfig) -> Vec<&'static str> {
        // Without `..`, so that a new key has to be considered here.
        let CoordinatorConfig {
            path: _,
            identity,
            state,
            bandwidth_file,
            kill_switch,
            status,
            consensus: _,
            certificates: _,
            microdescriptors: _,
            authorities: _,
            network: _,
            shared_random: _,
            period,
            slot,
            budget,
            first_guess,
            expiry,
            retention,
            parameters,
            measurers,
            stock,
            relays: _,
            opt_out: _,
        } = fresh;
        [
            ("identity", self.identity != *identity),
            ("state", self.state != *state),
            ("bandwidth-file", self.bandwidth_file != *bandwidth_file),
            ("kill-switch", self.kill_switch != *kill_switch),
            ("status", self.status != *status),
            ("period", self.period != *period),
            ("slot", self.slot != *slot),
            ("budget", self.budget != *budget),
            ("first-guess", self.first_guess != *first_guess),
            ("expiry", self.expiry != *expiry),
            ("retention", self.retention != *retention),
            ("parameters", self.parameters != *parameters),
            ("measurer", self.measurers != *measurers),
            ("stock", self.stock != *stock),
        ]
        .into_iter()
        .filter_map(|(key, differs)| differs.then_some(key))
        .collect()
    }
}

fn shared_random<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    read_hex::<D, 32>(deserializer).map(Vec::from)
}

fn default_period() -> Span {
    Span::from_secs(86_400)
}

fn default_slot() -> Span {
    Span::from_secs(60)
}

fn default_first_guess() -> Rate {
    Rate(50_000_000)
}

fn default_expiry() -> Span {
    Span::from_secs(30 * 86_400)
}

fn default_retention() -> Span {
    Span::from_secs(90 * 86_400)
}

/// A measurer of the team.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct MeasurerEntry {
    /// Name in logs.
    pub name: String,
    address: SocketAddr,
    #[serde(deserialize_with = "read_hex")]
    fingerprint: Fingerprint,
    /// `c_i`, as `measurer-capacity` found it.
    pub capacity: Rate,
    /// Source address of its connections, if the relay should exempt it from connection limits.
    pub source: Option<IpAddr>,
}

impl MeasurerEntry {
    /// Address and certificate of the measurer.
    pub(crate) fn contact(&self) -> Contact {
        Contact { address: self.address, fingerprint: self.fingerprint }
    }
}

/// How stock Tor relays are measured: see [`super::stock`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct StockConfig {
    /// The tor program; a name without a slash is looked up in `PATH`.
    #[serde(default = "default_tor")]
    pub tor: PathBuf,
    /// File with options for every tor client, such as the authorities of a private network.
    pub torrc: Option<PathBuf>,
    /// Identity of our exit. Its policy must allow connections to `listen`.
    #[serde(deserialize_with = "read_hex")]
    pub far_end: RelayId,
    /// Listening address of the data source behind our exit.
    pub listen: SocketAddr,
    /// Number of tor clients; each has one connection to the relay.
    #[serde(default = "default_clients")]
    pub clients: usize,
    /// Sending rate of the source, over all relays together.
    pub capacity: Rate,
}

fn default_tor() -> PathBuf {
    "tor".into()
}

fn default_clients() -> usize {
    8
}

/// How a relay is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// By echo cells. Holds the certificate's fingerprint and the relay's keys.
    Flashflow(Fingerprint, RelayPublic),
    /// By ordinary circuits through a stock Tor relay: see [`super::stock`].
    Stock,
}

impl Target {
    /// Name in configuration files, logs and the status page.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Target::Flashflow(..) => "flashflow",
            Target::Stock => "stock",
        }
    }
}

/// A relay that may be measured.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "RelayTable")]
pub struct RelayEntry {
    /// Nickname in logs and the bandwidth file.
    pub nickname: String,
    /// Identity in the consensus.
    pub id: RelayId,
    /// Listening address; unspecified until the consensus gives it, if the file does not.
    pub address: SocketAddr,
    /// How it is measured.
    pub(crate) target: Target,
    /// Family number: relays with the same number are measured in one slot.
    pub family: Option<u32>,
    /// Average rate in the relay's descriptor.
    pub descriptor_limit: Option<Rate>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum TargetKind {
    #[default]
    Flashflow,
    Stock,
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Hex<const N: usize>(#[serde(deserialize_with = "read_hex")] [u8; N]);

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RelayTable {
    nickname: String,
    #[serde(default)]
    target: TargetKind,
    id: Option<Hex<20>>,
    address: Option<SocketAddr>,
    fingerprint: Option<Hex<32>>,
    onion_key: Option<Hex<32>>,
    family: Option<u32>,
    descriptor_limit: Option<Rate>,
}

impl TryFrom<RelayTable> for RelayEntry {
    type Error = String;

    fn try_from(table: RelayTable) -> Result<RelayEntry, String> {
        let name = &table.nickname;
        let (id, target) = match (table.target, table.fingerprint, table.onion_key, table.id) {
            // A Tidegate relay is named after its certificate unless it has an identity in a consensus.
            (TargetKind::Flashflow, Some(fingerprint), Some(onion), id) => {
                let own = identity_of(&fingerprint.0);
                let keys = RelayPublic { identity: own, onion: onion.0 };
                (id.map_or(own, |id| id.0), Target::Flashflow(fingerprint.0, keys))
            }
            (TargetKind::Flashflow, ..) => {
                return Err(format!(
                    "relay {name} lacks its fingerprint or onion-key (or target = \"stock\")"
                ));
            }
            (TargetKind::Stock, None, None, Some(id)) => (id.0, Target::Stock),
            (TargetKind::Stock, ..) => {
                return Err(format!(
                    "relay {name} is stock: it needs its id, and no fingerprint or onion-key"
                ));
            }
        };
        Ok(RelayEntry {
            id,
            target,
            address: table.address.unwrap_or(SocketAddr::from(([0; 4], 0))),
            nickname: table.nickname,
            family: table.family,
            descriptor_limit: table.descriptor_limit,
        })
    }
}

impl ConfigFile for CoordinatorConfig {
    fn check(&mut self, path: &Path) -> Result<(), String> {
        self.path = path.into();
        resolve_identity(path, &mut self.identity)?;
        resolve(path, &mut self.state);
        resolve(path, &mut self.bandwidth_file);
        self.check_bandwidth_file()?;
        if self.kill_switch.as_os_str().is_empty() {
            self.kill_switch = self.state.join("stop");
        } else {
            resolve(path, &mut self.kill_switch);
        }
        if let Some(status) = self.status.filter(|status| !status.ip().is_loopback()) {
            return Err(format!(
                "status is {status}, not on loopback; use 127.0.0.1, and a tunnel from elsewhere"
            ));
        }
        self.network = self.network_source(path)?;
        self.check_parameters()?;
        self.check_relays()?;
        self.check_team()?;
        if let Some(stock) = &mut self.stock {
            stock.torrc.iter_mut().for_each(|torrc| resolve(path, torrc));
        }
        // Only stock relays can be measured without a team.
        let has_measured = self.stock.is_none() || self.relays.iter().any(|r| r.target != Target::Stock);
        if !(usize::from(has_measured)..=MAX_MEASURERS).contains(&self.measurers.len()) {
            return Err(format!("the team needs 1 to {MAX_MEASURERS} [[measurer]]s"));
        }
        let team = match &self.stock {
            Some(stock) if self.measurers.is_empty() => stock.capacity.0,
            _ => self.measurers.iter().fold(0, |sum: u64, m| sum.saturating_add(m.capacity.0)),
        };
        if team == 0 {
            return Err("the measurers have no capacity".into());
        }
        self.budget = self.budget.min(Rate(team));
        check_all(&[
            (self.budget.0 > 0, "budget is 0; give the traffic that all measurements may cause at one time"),
            (self.first_guess.0 > 0, "first-guess is 0; give a rate such as \"50 Mbit/s\""),
        ])?;
        if self.retention < self.expiry {
            let (retention, expiry) = (self.retention, self.expiry);
            return Err(format!(
                "retention ({retention}) is shorter than expiry ({expiry}): results would be deleted while they count"
            ));
        }
        Ok(())
    }
}

impl CoordinatorConfig {
    fn network_source(&self, path: &Path) -> Result<Option<NetworkSource>, String> {
        let resolved = |file: &PathBuf| {
            let mut file = file.clone();
            resolve(path, &mut file);
            file
        };
        match (&self.consensus, &self.certificates) {
            (Some(consensus), Some(certificates)) => {
                let source =
                    NetworkSource::new(resolved(consensus), resolved(certificates), &self.authorities)?;
                let microdescriptors = self.microdescriptors.as_ref().map(resolved);
                Ok(Some(NetworkSource { microdescriptors, ..source }))
            }
            (None, None) if self.authorities.is_empty() && self.microdescriptors.is_none() => Ok(None),
            _ => {
                Err("consensus and certificates go together; authorities and microdescriptors need both"
                    .into())
            }
        }
    }

    /// Otherwise relays would be loaded before the first write fails.
    fn check_bandwidth_file(&self) -> Result<(), String> {
        let file = &self.bandwidth_file;
        let folder = file.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        if file.is_dir() {
            return Err(format!("bandwidth-file is the folder {}; name a file in it", file.display()));
        }
        if !folder.is_dir() {
            return Err(format!(
                "bandwidth-file is in {}, which is not a folder; create it",
                folder.display()
            ));
        }
        Ok(())
    }

    /// A measurer that is listed twice would count twice in the team's capacity.
    fn check_team(&self) -> Result<(), String> {
        for (i, measurer) in self.measurers.iter().enumerate() {
            let twin = self.measurers[..i].iter().find_map(|other| {
                let same = [
                    ("name", other.name == measurer.name),
                    ("address", other.address == measurer.address),
                    ("fingerprint", other.fingerprint == measurer.fingerprint),
                ];
                same.into_iter().find_map(|(key, same)| same.then_some((key, &other.name)))
            });
            if let Some((key, other)) = twin {
                let name = &measurer.name;
                return Err(format!(
                    "measurer {name} has the {key} of measurer {other}; list each measurer once"
                ));
            }
        }
        Ok(())
    }

    fn check_parameters(&self) -> Result<(), String> {
        let p = &self.parameters;
        let seconds = p.duration.whole_secs();
        check_all(&[
            ((1.0..=100.0).contains(&p.multiplier), "parameters.multiplier is not between 1 and 100"),
            ((0.0..1.0).contains(&p.epsilon1), "parameters.epsilon1 is not between 0 and 1"),
            ((0.0..=1.0).contains(&p.epsilon2), "parameters.epsilon2 is not between 0 and 1"),
            (
                seconds.is_some_and(|seconds| (LEAST_SECONDS..=u64::from(MAX_SECONDS)).contains(&seconds)),
                "parameters.duration is not 3 s to 600 s in whole seconds",
            ),
            ((1..=10_000).contains(&p.sockets), "parameters.sockets is not between 1 and 10000"),
            // With 10,000, fewer than one cell of a relay of 1 Mbit/s is checked in 30 s.
            (
                (1..=10_000).contains(&p.check_one_in),
                "parameters.check-one-in is not between 1 and 10000: too few cells would be checked",
            ),
        ])?;
        if self.slot < p.duration + Span::from_secs(15) {
            let (slot, duration) = (self.slot, p.duration);
            return Err(format!(
                "slot is {slot}: opening circuits needs 15 s besides the {duration} of measuring"
            ));
        }
        let slots = self.period.0 / self.slot.0;
        check_all(&[((1..=1_000_000).contains(&slots), "period is not 1 to 1,000,000 slots")])
    }

    fn check_relays(&self) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        for relay in &self.relays {
            let name = &relay.nickname;
            if self.network.is_none() && relay.address.ip().is_unspecified() {
                return Err(format!("relay {name} has no address, and no consensus is configured"));
            }
            if self.stock.is_none() && relay.target == Target::Stock {
                return Err(format!("relay {name} is stock, but there is no [stock]"));
            }
            if !seen.insert(relay.id) {
                return Err(format!("relay {name} is listed twice, by its id"));
            }
            if !(1..=19).contains(&name.len()) || !name.bytes().all(|b| b.is_ascii_alphanumeric()) {
                return Err(format!("nickname `{name}` is not 1 to 19 letters and digits"));
            }
        }
        let Some(stock) = &self.stock else { return Ok(()) };
        check_all(&[
            ((1..=64).contains(&stock.clients), "stock.clients is not between 1 and 64"),
            (stock.capacity.0 > 0, "stock.capacity is zero"),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{hex, random};

    /// A directory with a configuration file and the identity it names.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Scratch {
            let path = std::env::temp_dir().join(format!("tidegate-config-{}", hex(&random::<8>())));
            std::fs::create_dir(&path).unwrap();
            Identity::generate().save(&path.join("c.key")).unwrap();
            Scratch(path)
        }
        fn with(&self, text: &str) -> PathBuf {
            let file = self.0.join("config.toml");
            std::fs::write(&file, text).unwrap();
            file
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const A: &str = "00000000000000000000000000000000000000000000000000000000000000aa";

    fn coordinator() -> String {
        format!(
            "identity = \"c.key\"\nstate = \"state\"\nbandwidth-file = \"v3bw\"\nbudget = \"2 Gbit/s\"\n\
             [parameters]\nduration = \"30 s\"\n\
             [[measurer]]\nname = \"m\"\naddress = \"127.0.0.1:1\"\nfingerprint = \"{A}\"\ncapacity = \"1 Gbit/s\"\n\
             [[relay]]\nnickname = \"r\"\naddress = \"127.0.0.1:2\"\nfingerprint = \"{A}\"\nonion-key = \"{A}\"\n"
        )
    }

    #[test]
    fn keys_that_others_can_read_are_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let scratch = Scratch::new();
        let (file, key) = (scratch.with(&coordinator()), scratch.0.join("c.key"));
        for (mode, fine) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o602, false)] {
            std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
            match CoordinatorConfig::load(&file) {
                Ok(_) => assert!(fine, "{mode:o}"),
                Err(error) => assert!(!fine && error.to_string().contains("chmod 600"), "{mode:o}: {error}"),
            }
        }
        std::fs::remove_file(&key).unwrap();
        let error = CoordinatorConfig::load(&file).unwrap_err().to_string();
        assert!(error.contains("c.key") && error.contains("keygen"), "{error}");
    }

    const STOCK: &str = "[[relay]]\nnickname = \"s\"\ntarget = \"stock\"\naddress = \"127.0.0.1:3\"\n\
        id = \"00000000000000000000000000000000000000bb\"\n\
        [stock]\nfar-end = \"00000000000000000000000000000000000000cc\"\nlisten = \"127.0.0.1:0\"\n\
        capacity = \"1 Gbit/s\"\n";

    #[test]
    fn good_files_are_read_and_paths_are_beside_them() {
        let scratch = Scratch::new();
        let config = CoordinatorConfig::load(&scratch.with(&coordinator())).unwrap();
        assert_eq!(config.identity, scratch.0.join("c.key"));
        assert_eq!(config.budget, Rate(1_000_000_000), "no more than the team has");
        let Target::Flashflow(fingerprint, _) = &config.relays[0].target else {
            panic!("flashflow is the default")
        };
        assert_eq!(config.relays[0].id[..], fingerprint[..20]);
        let stock = format!("{}{STOCK}", coordinator());
        let config = CoordinatorConfig::load(&scratch.with(&stock)).unwrap();
        assert_eq!(config.relays[1].target, Target::Stock);
        assert_eq!(config.stock.unwrap().clients, 8);
        let relay = format!(
            "listen = \"127.0.0.1:0\"\nidentity = \"c.key\"\nrate = \"10 Mbit/s\"\n\
             [measurement]\nallowed = true\ncoordinators = [\"{A}\"]\n"
        );
        assert_eq!(RelayConfig::load(&scratch.with(&relay)).unwrap().rate, Rate(10_000_000));
        let measurer = format!("listen = \"127.0.0.1:0\"\nidentity = \"c.key\"\ncoordinators = [\"{A}\"]\n");
        assert!(MeasurerConfig::load(&scratch.with(&measurer)).is_ok());
    }

    #[test]
    fn keys_that_need_a_restart_are_named() {
        let scratch = Scratch::new();
        let before = CoordinatorConfig::load(&scratch.with(&coordinator())).unwrap();
        let with = |from, to| {
            let fresh = CoordinatorConfig::load(&scratch.with(&coordinator().replacen(from, to, 1))).unwrap();
            before.needing_a_restart(&fresh)
        };
        assert_eq!(with("nickname = \"r\"", "nickname = \"s\""), [""; 0]);
        assert_eq!(with("name = \"m\"", "name = \"n\""), ["measurer"]);
        assert_eq!(with("duration = \"30 s\"", "duration = \"20 s\""), ["parameters"]);
        assert_eq!(with("v3bw", "v4bw"), ["bandwidth-file"]);
    }

    #[test]
    fn every_mistake_is_named() {
        let scratch = Scratch::new();
        let good = format!("{}{STOCK}", coordinator());
        for (from, to, says) in [
            ("budget = \"2 Gbit/s\"", "budget = 5", "`5` has no unit"),
            ("budget = \"2 Gbit/s\"", "budget = \"5\"", "has no unit"),
            ("budget = \"2 Gbit/s\"", "budget = \"0 bit/s\"", "budget is 0"),
            ("budget = \"2 Gbit/s\"", "first-guess = \"0 bit/s\"", "first-guess is 0"),
            ("budget = \"2 Gbit/s\"", "retention = \"1 d\"", "is shorter than expiry"),
            ("budget", "buget", "unknown field `buget`"),
            ("duration = \"30 s\"", "duration = \"2 s\"", "duration is not 3 s to 600 s"),
            ("duration = \"30 s\"", "duration = \"601 s\"", "duration is not 3 s to 600 s"),
            ("duration = \"30 s\"", "duration = \"50 s\"", "slot is 1 min"),
            ("duration = \"30 s\"", "background-percent = 100", "not below 100"),
            ("duration = \"30 s\"", "multiplier = nan", "multiplier is not between"),
            ("duration = \"30 s\"", "check-one-in = 10001", "too few cells would be checked"),
            ("\"v3bw\"", "\".\"", "name a file in it"),
            ("\"v3bw\"", "\"missing/v3bw\"", "which is not a folder; create it"),
            ("fingerprint = \"00", "fingerprint = \"0", "expected 64 hexadecimal digits"),
            ("capacity = \"1 Gbit/s\"", "capacity = \"0 Gbit/s\"", "no capacity"),
            ("nickname = \"r\"", "nickname = \"r r\"", "not 1 to 19 letters"),
            ("127.0.0.1:2", "localhost", "invalid socket address"),
            ("[[measurer]]", "[[measurer", "line"),
            ("target = \"stock\"", "target = \"stok\"", "unknown variant `stok`"),
            ("target = \"stock\"", "", "lacks its fingerprint"),
            ("id = \"0", "# id = \"0", "needs its id"),
            ("[stock]", "[stock]\nclients = 65", "not between 1 and 64"),
        ] {
            assert!(good.contains(from), "{from}");
            let error = CoordinatorConfig::load(&scratch.with(&good.replacen(from, to, 1))).unwrap_err();
            assert!(error.to_string().contains(says), "{to}: {error}");
        }
        let good = coordinator();
        let twice = format!("{good}{}", &good[good.find("[[relay]]").unwrap()..]);
        assert!(
            CoordinatorConfig::load(&scratch.with(&twice)).unwrap_err().to_string().contains("listed twice")
        );
        let measurer = &good[good.find("[[measurer]]").unwrap()..good.find("[[relay]]").unwrap()];
        let twice = format!("{good}{}", measurer.replace("\"m\"", "\"n\"").replace("1:1", "1:9"));
        let error = CoordinatorConfig::load(&scratch.with(&twice)).unwrap_err().to_string();
        assert!(error.contains("measurer n has the fingerprint of measurer m"), "{error}");
        let no_table = format!("{good}{}", &STOCK[..STOCK.find("[stock]").unwrap()]);
        let error = CoordinatorConfig::load(&scratch.with(&no_table)).unwrap_err().to_string();
        assert!(error.contains("there is no [stock]"), "{error}");
        for garbage in ["", "\u{0}\u{1}", "a", "[[relay]]"] {
            assert!(CoordinatorConfig::load(&scratch.with(garbage)).is_err());
            assert!(RelayConfig::load(&scratch.with(garbage)).is_err());
            assert!(MeasurerConfig::load(&scratch.with(garbage)).is_err());
        }
    }

    #[test]
    fn the_page_names_every_key_of_a_coordinator() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/flashflow-operation.md");
        // A published crate does not contain the page.
        let Ok(page) = std::fs::read_to_string(page) else { return };
        let scratch = Scratch::new();
        let unknown = |from: &str, to: &str| {
            let text = format!("{}{STOCK}", coordinator()).replacen(from, to, 1);
            CoordinatorConfig::load(&scratch.with(&text)).unwrap_err().to_string()
        };
        for error in [
            unknown("budget", "nothing"),
            unknown("duration", "nothing"),
            unknown("capacity = \"1 Gbit/s\"\n[[relay]]", "nothing = 1\n[[relay]]"),
            unknown("nickname", "nothing"),
            unknown("far-end", "nothing"),
        ] {
            let keys = error.split("expected one of ").nth(1).unwrap_or_else(|| panic!("{error}"));
            for key in keys.split('`').skip(1).step_by(2) {
                assert!(page.contains(key), "`{key}` is not in docs/flashflow-operation.md: {error}");
            }
        }
    }
}
