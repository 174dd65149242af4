//! The roles' configuration files: strict TOML, in which every quantity has its unit. Paths are relative to
//! the file they stand in.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use tidegate_control::flashflow::schedule::RelayId;
use tidegate_control::flashflow::{Parameters, Percent};
use tidegate_control::units::{Rate, Span};
use tidegate_proto::cell::RelayId as RelayNumber;
use tidegate_proto::crypto::ntor::RelayPublic;
use tidegate_proto::flashflow::message::{Fingerprint, MAX_MEASURERS, MAX_SECONDS};
use tidegate_proto::flashflow::relay;

use super::coordinator::Contact;
use super::{capacity, measurer, stock};
use crate::identity::unhex;

/// What is wrong with a configuration, and where.
#[derive(Debug)]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong, with the place if it is known.
    pub cause: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.cause)
    }
}

impl std::error::Error for ConfigError {}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    let fail = |cause: String| ConfigError { path: path.into(), cause };
    let text = std::fs::read_to_string(path).map_err(|cause| fail(format!("cannot be read: {cause}")))?;
    toml::from_str(&text).map_err(|cause| fail(cause.to_string().trim_end().to_owned()))
}

/// A path in a configuration file, seen from where the file is.
fn beside(config: &Path, path: &Path) -> PathBuf {
    config.parent().unwrap_or(Path::new("")).join(path)
}

/// A quantity with its unit, as [`tidegate_control::units`] reads it.
fn quantity<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(
    deserializer: D,
) -> Result<T, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

fn optional_quantity<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    quantity(deserializer).map(Some)
}

fn bytes<'de, D: Deserializer<'de>, const N: usize>(deserializer: D) -> Result<[u8; N], D::Error> {
    let text = String::deserialize(deserializer)?;
    let text = text.strip_prefix('$').unwrap_or(&text);
    unhex(text).ok_or_else(|| D::Error::custom(format!("expected {} hexadecimal digits", 2 * N)))
}

/// A fingerprint or an identity, in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(transparent)]
struct Hex<const N: usize>(#[serde(deserialize_with = "bytes")] [u8; N]);

/// A relay's configuration.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Its identity file.
    pub identity: PathBuf,
    /// What it forwards at most.
    pub rate: Rate,
    /// How it can be measured.
    pub measurement: relay::Config,
    /// Relays that it extends circuits to, by their numbers in the overlay's directory.
    pub neighbours: BTreeMap<RelayNumber, Contact>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RelayFile {
    listen: SocketAddr,
    identity: PathBuf,
    #[serde(default, deserialize_with = "optional_quantity")]
    rate: Option<Rate>,
    measurement: MeasurementTable,
    #[serde(default)]
    neighbour: Vec<NeighbourTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NeighbourTable {
    number: u32,
    address: SocketAddr,
    fingerprint: Hex<32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasurementTable {
    allowed: bool,
    coordinators: Vec<Hex<32>>,
    #[serde(default, deserialize_with = "optional_quantity")]
    period: Option<Span>,
    background_percent: Option<u8>,
    #[serde(default, deserialize_with = "optional_quantity")]
    max_duration: Option<Span>,
}

impl RelayConfig {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// [`ConfigError`] saying what is wrong.
    pub fn load(path: &Path) -> Result<RelayConfig, ConfigError> {
        let file: RelayFile = read(path)?;
        let fail = |cause: &str| ConfigError { path: path.into(), cause: cause.into() };
        let (table, default) = (file.measurement, relay::Config::default());
        let period = table.period.unwrap_or(default.period);
        if !(Span::from_secs(3600)..=Span::from_secs(31 * 86_400)).contains(&period) {
            return Err(fail("measurement.period is not between 1 h and 744 h (a month)"));
        }
        let max_duration = table.max_duration.unwrap_or(default.max_duration);
        if !(Span::from_secs(10)..=Span::from_secs(120)).contains(&max_duration) {
            return Err(fail("measurement.max_duration is not between 10 s and 120 s"));
        }
        let background = match table.background_percent {
            Some(percent) => Percent::new(percent)
                .ok_or_else(|| fail("measurement.background_percent is not below 100"))?,
            None => default.background,
        };
        if table.allowed && table.coordinators.is_empty() {
            return Err(fail("measurement.allowed is true, but measurement.coordinators is empty"));
        }
        let rate = file.rate.unwrap_or(Rate::UNLIMITED);
        if rate < Rate(100_000) {
            return Err(fail("rate is below 100 kbit/s"));
        }
        Ok(RelayConfig {
            listen: file.listen,
            identity: beside(path, &file.identity),
            rate,
            measurement: relay::Config {
                allowed: table.allowed,
                coordinators: table.coordinators.into_iter().map(|hex| hex.0).collect(),
                period,
                background,
                max_duration,
            },
            neighbours: file
                .neighbour
                .into_iter()
                .map(|n| {
                    (RelayNumber(n.number), Contact { address: n.address, fingerprint: n.fingerprint.0 })
                })
                .collect(),
        })
    }
}

/// Background traffic for demonstrations: where its exit listens, and through which relay it goes.
#[derive(Clone, Debug)]
pub struct BackgroundConfig {
    /// Where the exit listens.
    pub listen: SocketAddr,
    /// The exit's identity file.
    pub identity: PathBuf,
    /// What the exit sends in all.
    pub rate: Rate,
    /// Over so many circuits.
    pub circuits: usize,
    /// Through this relay.
    pub target: (Contact, RelayPublic),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BackgroundFile {
    listen: SocketAddr,
    identity: PathBuf,
    #[serde(deserialize_with = "quantity")]
    rate: Rate,
    circuits: usize,
    target: TargetTable,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetTable {
    address: SocketAddr,
    fingerprint: Hex<32>,
    onion_key: Hex<32>,
}

impl BackgroundConfig {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// [`ConfigError`] saying what is wrong.
    pub fn load(path: &Path) -> Result<BackgroundConfig, ConfigError> {
        let file: BackgroundFile = read(path)?;
        if !(1..=1000).contains(&file.circuits) {
            let cause = "circuits is not between 1 and 1000".into();
            return Err(ConfigError { path: path.into(), cause });
        }
        let (fingerprint, onion) = (file.target.fingerprint.0, file.target.onion_key.0);
        let identity = fingerprint[..20].try_into().expect("a fingerprint has 32 bytes");
        Ok(BackgroundConfig {
            listen: file.listen,
            identity: beside(path, &file.identity),
            rate: file.rate,
            circuits: file.circuits,
            target: (Contact { address: file.target.address, fingerprint }, RelayPublic { identity, onion }),
        })
    }
}

/// A measurer's configuration.
#[derive(Clone, Debug)]
pub struct MeasurerConfig {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Its identity file.
    pub identity: PathBuf,
    /// Who may use it, and how much it does.
    pub settings: measurer::Settings,
    /// How its capacity is probed: where it listens for datagrams, and the other measurers.
    pub capacity: Option<(SocketAddr, Vec<capacity::Peer>)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasurerFile {
    listen: SocketAddr,
    identity: PathBuf,
    coordinators: Vec<Hex<32>>,
    workers: Option<usize>,
    #[serde(default, deserialize_with = "optional_quantity")]
    rate: Option<Rate>,
    capacity: Option<CapacityTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CapacityTable {
    listen: SocketAddr,
    #[serde(default)]
    peer: Vec<PeerTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PeerTable {
    name: String,
    address: SocketAddr,
    onion_key: Hex<32>,
}

impl MeasurerConfig {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// [`ConfigError`] saying what is wrong.
    pub fn load(path: &Path) -> Result<MeasurerConfig, ConfigError> {
        let file: MeasurerFile = read(path)?;
        let fail = |cause: &str| ConfigError { path: path.into(), cause: cause.into() };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = file.workers.unwrap_or(cores);
        if !(1..=256).contains(&workers) {
            return Err(fail("workers is not between 1 and 256"));
        }
        if file.coordinators.is_empty() {
            return Err(fail("coordinators is empty: nobody could use this measurer"));
        }
        let rate = file.rate.unwrap_or(Rate::UNLIMITED).0;
        if rate == 0 {
            return Err(fail("rate is zero"));
        }
        let coordinators = file.coordinators.into_iter().map(|hex| hex.0).collect();
        let capacity = file.capacity.map(|table| {
            let peers = table.peer.into_iter();
            let peers =
                peers.map(|p| capacity::Peer { name: p.name, address: p.address, onion_key: p.onion_key.0 });
            (table.listen, peers.collect::<Vec<_>>())
        });
        if capacity.as_ref().is_some_and(|(_, peers)| !(1..=MAX_MEASURERS).contains(&peers.len())) {
            return Err(fail("capacity.peer: give 1 to 10 other measurers"));
        }
        Ok(MeasurerConfig {
            listen: file.listen,
            identity: beside(path, &file.identity),
            settings: measurer::Settings { coordinators, workers, rate },
            capacity,
        })
    }
}

/// A coordinator's configuration.
#[derive(Clone, Debug)]
pub struct CoordinatorConfig {
    /// Its identity file; the onion key in it is the secret of the schedule.
    pub identity: PathBuf,
    /// Directory of its state.
    pub state: PathBuf,
    /// Where the bandwidth file goes.
    pub bandwidth_file: PathBuf,
    /// A file whose presence stops all measurements.
    pub kill_switch: PathBuf,
    /// Where status page and metrics are served; nowhere if absent.
    pub status: Option<SocketAddr>,
    /// The network's shared random value, mixed into the schedule.
    pub shared_random: Vec<u8>,
    /// How often every relay is measured.
    pub period: Span,
    /// Length of a slot.
    pub slot: Span,
    /// What all measurements at one time may use together.
    pub budget: Rate,
    /// Guess for new relays while nothing was measured.
    pub first_guess: Rate,
    /// Results older than this count no longer, and the relay is new again.
    pub expiry: Span,
    /// State older than this is deleted.
    pub retention: Span,
    /// The deployment's parameters.
    pub parameters: Parameters,
    /// The team.
    pub measurers: Vec<MeasurerEntry>,
    /// What stock relays are measured with.
    pub stock: Option<stock::Settings>,
    /// The network.
    pub relays: Vec<RelayEntry>,
    /// Relays that asked not to be measured.
    pub opt_out: Vec<RelayId>,
}

/// A measurer of the team.
#[derive(Clone, Debug)]
pub struct MeasurerEntry {
    /// For logs.
    pub name: String,
    /// Where it listens and who it is.
    pub contact: Contact,
    /// `c_i`, as measured between measurers.
    pub capacity: Rate,
    /// The address its connections come from, if the relay shall exempt it from limits.
    pub source: Option<IpAddr>,
}

/// How a relay is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// By echo cells: its certificate, and its keys.
    Flashflow(Fingerprint, RelayPublic),
    /// A stock Tor relay, by ordinary circuits: see [`super::stock`].
    Stock,
}

impl Target {
    /// As configurations, logs and the status page name it.
    pub fn name(&self) -> &'static str {
        match self {
            Target::Flashflow(..) => "flashflow",
            Target::Stock => "stock",
        }
    }
}

/// A relay of the network.
#[derive(Clone, Debug)]
pub struct RelayEntry {
    /// For logs and the bandwidth file.
    pub nickname: String,
    /// Its identity in the consensus.
    pub id: RelayId,
    /// Where it listens.
    pub address: SocketAddr,
    /// How it is measured.
    pub target: Target,
    /// Relays with the same number are measured together.
    pub family: Option<u32>,
    /// The average in its descriptor.
    pub descriptor_limit: Option<Rate>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CoordinatorFile {
    identity: PathBuf,
    state: PathBuf,
    bandwidth_file: PathBuf,
    kill_switch: Option<PathBuf>,
    status: Option<SocketAddr>,
    shared_random: Option<Hex<32>>,
    #[serde(default, deserialize_with = "optional_quantity")]
    period: Option<Span>,
    #[serde(default, deserialize_with = "optional_quantity")]
    slot: Option<Span>,
    #[serde(default, deserialize_with = "optional_quantity")]
    budget: Option<Rate>,
    #[serde(default, deserialize_with = "optional_quantity")]
    first_guess: Option<Rate>,
    #[serde(default, deserialize_with = "optional_quantity")]
    expiry: Option<Span>,
    #[serde(default, deserialize_with = "optional_quantity")]
    retention: Option<Span>,
    #[serde(default)]
    opt_out: Vec<Hex<20>>,
    #[serde(default)]
    parameters: ParametersTable,
    #[serde(default)]
    measurer: Vec<MeasurerTable>,
    stock: Option<StockTable>,
    #[serde(default)]
    relay: Vec<RelayTable>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ParametersTable {
    multiplier: Option<f64>,
    epsilon1: Option<f64>,
    epsilon2: Option<f64>,
    background_percent: Option<u8>,
    #[serde(default, deserialize_with = "optional_quantity")]
    duration: Option<Span>,
    sockets: Option<u16>,
    check_one_in: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasurerTable {
    name: String,
    address: SocketAddr,
    fingerprint: Hex<32>,
    #[serde(deserialize_with = "quantity")]
    capacity: Rate,
    source: Option<IpAddr>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StockTable {
    tor: Option<PathBuf>,
    torrc: Option<PathBuf>,
    far_end: Hex<20>,
    listen: SocketAddr,
    clients: Option<usize>,
    #[serde(deserialize_with = "quantity")]
    capacity: Rate,
}

impl StockTable {
    fn check(self, config: &Path) -> Result<stock::Settings, String> {
        let clients = self.clients.unwrap_or(8);
        if !(1..=64).contains(&clients) {
            return Err("stock.clients is not between 1 and 64".into());
        }
        if self.capacity.0 == 0 {
            return Err("stock.capacity is zero".into());
        }
        Ok(stock::Settings {
            // A name without a slash is looked for in PATH.
            tor: self.tor.unwrap_or_else(|| "tor".into()),
            torrc: self.torrc.map(|file| beside(config, &file)),
            far_end: self.far_end.0,
            listen: self.listen,
            clients,
            capacity: self.capacity,
        })
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum TargetKind {
    #[default]
    Flashflow,
    Stock,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RelayTable {
    nickname: String,
    #[serde(default)]
    target: TargetKind,
    id: Option<Hex<20>>,
    address: SocketAddr,
    fingerprint: Option<Hex<32>>,
    onion_key: Option<Hex<32>>,
    family: Option<u32>,
    #[serde(default, deserialize_with = "optional_quantity")]
    descriptor_limit: Option<Rate>,
}

impl CoordinatorConfig {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// [`ConfigError`] saying what is wrong.
    pub fn load(path: &Path) -> Result<CoordinatorConfig, ConfigError> {
        let file: CoordinatorFile = read(path)?;
        let fail = |cause: String| ConfigError { path: path.into(), cause };
        let parameters = file.parameters.check().map_err(fail)?;
        let relays: Vec<RelayEntry> =
            file.relay.into_iter().map(RelayTable::entry).collect::<Result<_, _>>().map_err(fail)?;
        let stock = file.stock.map(|table| table.check(path)).transpose().map_err(fail)?;
        let is_stock = |relay: &&RelayEntry| relay.target == Target::Stock;
        if let (Some(relay), None) = (relays.iter().find(is_stock), &stock) {
            return Err(fail(format!("relay {} is stock, but there is no [stock]", relay.nickname)));
        }
        let least = usize::from(stock.is_none() || !relays.iter().all(|relay| is_stock(&relay)));
        if !(least..=MAX_MEASURERS).contains(&file.measurer.len()) {
            return Err(fail(format!("the team needs 1 to {MAX_MEASURERS} [[measurer]]s")));
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = relays.iter().find(|relay| !seen.insert(relay.id)) {
            return Err(fail(format!("relay {} is listed twice, by its id", twice.nickname)));
        }
        let nickname =
            |name: &str| (1..=19).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric());
        if let Some(bad) = relays.iter().find(|relay| !nickname(&relay.nickname)) {
            return Err(fail(format!("nickname `{}` is not 1 to 19 letters and digits", bad.nickname)));
        }
        let slot = file.slot.unwrap_or(Span::from_secs(60));
        let period = file.period.unwrap_or(Span::from_secs(86_400));
        if slot < parameters.duration + Span::from_secs(15) {
            return Err(fail(format!(
                "slot is {slot}: circuits need 15 s besides the {} of measuring",
                parameters.duration
            )));
        }
        if period.0 / slot.0 == 0 || period.0 / slot.0 > 1_000_000 {
            return Err(fail("period is not 1 to 1,000,000 slots".into()));
        }
        let team = file.measurer.iter().fold(0u64, |sum, m| sum.saturating_add(m.capacity.0));
        // Who has no measurers has stock relays only.
        let team = if file.measurer.is_empty() { stock.as_ref().map_or(0, |s| s.capacity.0) } else { team };
        let team = Rate(team);
        if team.0 == 0 {
            return Err(fail("the measurers have no capacity".into()));
        }
        let measurers = file.measurer.into_iter().map(|m| MeasurerEntry {
            name: m.name,
            contact: Contact { address: m.address, fingerprint: m.fingerprint.0 },
            capacity: m.capacity,
            source: m.source,
        });
        let state = beside(path, &file.state);
        Ok(CoordinatorConfig {
            identity: beside(path, &file.identity),
            bandwidth_file: beside(path, &file.bandwidth_file),
            kill_switch: file.kill_switch.map_or_else(|| state.join("stop"), |switch| beside(path, &switch)),
            state,
            status: file.status,
            shared_random: file.shared_random.map_or_else(Vec::new, |hex| hex.0.to_vec()),
            period,
            slot,
            budget: file.budget.unwrap_or(team).min(team),
            first_guess: file.first_guess.unwrap_or(Rate(50_000_000)),
            expiry: file.expiry.unwrap_or(Span::from_secs(30 * 86_400)),
            retention: file.retention.unwrap_or(Span::from_secs(90 * 86_400)),
            parameters,
            measurers: measurers.collect(),
            stock,
            relays,
            opt_out: file.opt_out.into_iter().map(|hex| hex.0).collect(),
        })
    }
}

impl ParametersTable {
    fn check(self) -> Result<Parameters, String> {
        let default = Parameters::default();
        let background = match self.background_percent {
            Some(percent) => Percent::new(percent).ok_or("parameters.background_percent is not below 100")?,
            None => default.background,
        };
        let parameters = Parameters {
            multiplier: self.multiplier.unwrap_or(default.multiplier),
            epsilon1: self.epsilon1.unwrap_or(default.epsilon1),
            epsilon2: self.epsilon2.unwrap_or(default.epsilon2),
            background,
            duration: self.duration.unwrap_or(default.duration),
            sockets: self.sockets.unwrap_or(default.sockets),
            check_one_in: self.check_one_in.unwrap_or(default.check_one_in),
        };
        let seconds = parameters.duration.0 / 1_000_000_000;
        for (fine, what) in [
            ((1.0..=100.0).contains(&parameters.multiplier), "multiplier is not between 1 and 100"),
            ((0.0..1.0).contains(&parameters.epsilon1), "epsilon1 is not between 0 and 1"),
            ((0.0..=1.0).contains(&parameters.epsilon2), "epsilon2 is not between 0 and 1"),
            (
                (1..=u64::from(MAX_SECONDS)).contains(&seconds)
                    && parameters.duration == Span::from_secs(seconds),
                "duration is not 1 s to 600 s in whole seconds",
            ),
            ((1..=10_000).contains(&parameters.sockets), "sockets is not between 1 and 10000"),
            (parameters.check_one_in > 0, "check_one_in is zero"),
        ] {
            if !fine {
                return Err(format!("parameters.{what}"));
            }
        }
        Ok(parameters)
    }
}

impl RelayTable {
    fn entry(self) -> Result<RelayEntry, String> {
        let (id, target) = match (self.target, self.fingerprint, self.onion_key, self.id) {
            (TargetKind::Flashflow, Some(fingerprint), Some(onion), id) => {
                // A relay of tidegate is named after its certificate.
                let own: RelayId = fingerprint.0[..20].try_into().expect("a fingerprint has 32 bytes");
                let keys = RelayPublic { identity: own, onion: onion.0 };
                (id.map_or(own, |id| id.0), Target::Flashflow(fingerprint.0, keys))
            }
            (TargetKind::Flashflow, ..) => {
                let name = self.nickname;
                return Err(format!(
                    "relay {name} lacks its fingerprint or onion_key (or target = \"stock\")"
                ));
            }
            (TargetKind::Stock, None, None, Some(id)) => (id.0, Target::Stock),
            (TargetKind::Stock, ..) => {
                let name = self.nickname;
                return Err(format!(
                    "relay {name} is stock: it needs its id, and no fingerprint or onion_key"
                ));
            }
        };
        Ok(RelayEntry {
            nickname: self.nickname,
            id,
            address: self.address,
            target,
            family: self.family,
            descriptor_limit: self.descriptor_limit,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{hex, random};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Scratch {
            let path = std::env::temp_dir().join(format!("tidegate-config-{}.toml", hex(&random::<8>())));
            Scratch(path)
        }
        fn with(&self, text: &str) -> &Path {
            std::fs::write(&self.0, text).unwrap();
            &self.0
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    const A: &str = "00000000000000000000000000000000000000000000000000000000000000aa";

    fn coordinator() -> String {
        format!(
            "identity = \"c.toml\"\nstate = \"state\"\nbandwidth_file = \"v3bw\"\nbudget = \"2 Gbit/s\"\n\
             [parameters]\nduration = \"30 s\"\n\
             [[measurer]]\nname = \"m\"\naddress = \"127.0.0.1:1\"\nfingerprint = \"{A}\"\ncapacity = \"1 Gbit/s\"\n\
             [[relay]]\nnickname = \"r\"\naddress = \"127.0.0.1:2\"\nfingerprint = \"{A}\"\nonion_key = \"{A}\"\n"
        )
    }

    const STOCK: &str = "[[relay]]\nnickname = \"s\"\ntarget = \"stock\"\naddress = \"127.0.0.1:3\"\n\
        id = \"00000000000000000000000000000000000000bb\"\n\
        [stock]\nfar_end = \"00000000000000000000000000000000000000cc\"\nlisten = \"127.0.0.1:0\"\n\
        capacity = \"1 Gbit/s\"\n";

    #[test]
    fn good_files_are_read_and_paths_are_beside_them() {
        let scratch = Scratch::new();
        let config = CoordinatorConfig::load(scratch.with(&coordinator())).unwrap();
        assert_eq!(config.identity, scratch.0.parent().unwrap().join("c.toml"));
        assert_eq!(config.budget, Rate(1_000_000_000), "no more than the team has");
        let Target::Flashflow(fingerprint, _) = &config.relays[0].target else {
            panic!("flashflow is the default")
        };
        assert_eq!(config.relays[0].id[..], fingerprint[..20]);
        let stock = format!("{}{STOCK}", coordinator());
        let config = CoordinatorConfig::load(scratch.with(&stock)).unwrap();
        assert_eq!(config.relays[1].target, Target::Stock);
        assert_eq!(config.stock.unwrap().clients, 8);
        let relay = format!(
            "listen = \"127.0.0.1:0\"\nidentity = \"/k\"\nrate = \"10 Mbit/s\"\n\
             [measurement]\nallowed = true\ncoordinators = [\"{A}\"]\n"
        );
        assert_eq!(RelayConfig::load(scratch.with(&relay)).unwrap().rate, Rate(10_000_000));
        let measurer = format!("listen = \"127.0.0.1:0\"\nidentity = \"k\"\ncoordinators = [\"{A}\"]\n");
        assert!(MeasurerConfig::load(scratch.with(&measurer)).is_ok());
    }

    #[test]
    fn every_mistake_is_named() {
        let scratch = Scratch::new();
        let good = format!("{}{STOCK}", coordinator());
        for (from, to, says) in [
            ("budget = \"2 Gbit/s\"", "budget = 5", "invalid type"),
            ("budget = \"2 Gbit/s\"", "budget = \"5\"", "has no unit"),
            ("budget", "buget", "unknown field `buget`"),
            ("duration = \"30 s\"", "duration = \"601 s\"", "duration is not 1 s to 600 s"),
            ("duration = \"30 s\"", "duration = \"50 s\"", "slot is 1 min"),
            ("duration = \"30 s\"", "background_percent = 100", "not below 100"),
            ("duration = \"30 s\"", "multiplier = nan", "multiplier is not between"),
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
            let error = CoordinatorConfig::load(scratch.with(&good.replacen(from, to, 1))).unwrap_err();
            assert!(error.to_string().contains(says), "{to}: {error}");
        }
        let good = coordinator();
        let twice = format!("{good}{}", &good[good.find("[[relay]]").unwrap()..]);
        assert!(
            CoordinatorConfig::load(scratch.with(&twice)).unwrap_err().to_string().contains("listed twice")
        );
        let no_table = format!("{good}{}", &STOCK[..STOCK.find("[stock]").unwrap()]);
        let error = CoordinatorConfig::load(scratch.with(&no_table)).unwrap_err().to_string();
        assert!(error.contains("there is no [stock]"), "{error}");
        for garbage in ["", "\u{0}\u{1}", "a", "[[relay]]"] {
            assert!(CoordinatorConfig::load(scratch.with(garbage)).is_err());
            assert!(RelayConfig::load(scratch.with(garbage)).is_err());
            assert!(MeasurerConfig::load(scratch.with(garbage)).is_err());
        }
    }
}
