//! A coordinator's configuration: its state, its team, and the network.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tidegate_control::flashflow::schedule::RelayId;
use tidegate_control::flashflow::{MeasurementParameters, Percent};
use tidegate_control::units::{Rate, Span};
use tidegate_proto::crypto::ntor::RelayPublic;
use tidegate_proto::flashflow::message::{Fingerprint, MAX_MEASURERS, MAX_SECONDS};

use super::fields::{ConfigError, Hex, beside, identity, optional_quantity, quantity, read};
use crate::flashflow::network::Source;
use crate::flashflow::stock;
use crate::identity::Contact;

/// A coordinator's configuration.
#[derive(Clone, Debug)]
pub struct CoordinatorConfig {
    /// The file it was read from.
    pub path: PathBuf,
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
    pub parameters: MeasurementParameters,
    /// The team.
    pub measurers: Vec<MeasurerEntry>,
    /// What stock relays are measured with.
    pub stock: Option<stock::Settings>,
    /// Where it is learnt which of the relays are listed; without, all are.
    pub network: Option<Source>,
    /// The relays that may be measured: their operators consented.
    pub relays: Vec<RelayEntry>,
    /// Relays that asked not to be measured.
    pub opt_out: Vec<RelayId>,
    /// Keys of the file that have new names.
    pub notices: Vec<String>,
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
    /// A stock Tor relay, by ordinary circuits: see [`stock`].
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
    /// Where it listens; unspecified until the consensus says it, if the file does not.
    pub address: SocketAddr,
    /// How it is measured.
    pub target: Target,
    /// Relays with the same number are measured together.
    pub family: Option<u32>,
    /// The average in its descriptor.
    pub descriptor_limit: Option<Rate>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct CoordinatorFile {
    identity: PathBuf,
    state: PathBuf,
    bandwidth_file: PathBuf,
    kill_switch: Option<PathBuf>,
    status: Option<SocketAddr>,
    consensus: Option<PathBuf>,
    certificates: Option<PathBuf>,
    microdescriptors: Option<PathBuf>,
    #[serde(default)]
    authorities: Vec<String>,
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
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
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
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct MeasurerTable {
    name: String,
    address: SocketAddr,
    fingerprint: Hex<32>,
    #[serde(deserialize_with = "quantity")]
    capacity: Rate,
    source: Option<IpAddr>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
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
    #[serde(default, deserialize_with = "optional_quantity")]
    descriptor_limit: Option<Rate>,
}

impl CoordinatorFile {
    /// Where the network is learnt from.
    fn network(&self, config: &Path) -> Result<Option<Source>, String> {
        match (&self.consensus, &self.certificates) {
            (Some(consensus), Some(certificates)) => {
                let certificates = beside(config, certificates);
                let source = Source::new(beside(config, consensus), certificates, &self.authorities)?;
                let microdescriptors = self.microdescriptors.as_ref().map(|file| beside(config, file));
                Ok(Some(Source { microdescriptors, ..source }))
            }
            (None, None) if self.authorities.is_empty() && self.microdescriptors.is_none() => Ok(None),
            _ => {
                Err("consensus and certificates go together, and authorities and microdescriptors with them"
                    .into())
            }
        }
    }
}

impl CoordinatorConfig {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// [`ConfigError`] saying what is wrong.
    pub fn load(path: &Path) -> Result<CoordinatorConfig, ConfigError> {
        let (file, notices): (CoordinatorFile, _) = read(path)?;
        let fail = |cause: String| ConfigError { path: path.into(), cause };
        let network = file.network(path).map_err(fail)?;
        let parameters = file.parameters.check().map_err(fail)?;
        let relays: Vec<RelayEntry> =
            file.relay.into_iter().map(RelayTable::entry).collect::<Result<_, _>>().map_err(fail)?;
        let nowhere = relays.iter().find(|relay| relay.address.ip().is_unspecified());
        if let (Some(relay), None) = (nowhere, &network) {
            return Err(fail(format!("relay {} has no address, and there is no consensus", relay.nickname)));
        }
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
            path: path.into(),
            network,
            notices,
            identity: identity(path, &file.identity)?,
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
    fn check(self) -> Result<MeasurementParameters, String> {
        let default = MeasurementParameters::default();
        let background = match self.background_percent {
            Some(percent) => Percent::new(percent).ok_or("parameters.background-percent is not below 100")?,
            None => default.background,
        };
        let parameters = MeasurementParameters {
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
            (parameters.check_one_in > 0, "check-one-in is zero"),
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
                    "relay {name} lacks its fingerprint or onion-key (or target = \"stock\")"
                ));
            }
            (TargetKind::Stock, None, None, Some(id)) => (id.0, Target::Stock),
            (TargetKind::Stock, ..) => {
                let name = self.nickname;
                return Err(format!(
                    "relay {name} is stock: it needs its id, and no fingerprint or onion-key"
                ));
            }
        };
        Ok(RelayEntry {
            nickname: self.nickname,
            id,
            address: self.address.unwrap_or(SocketAddr::from(([0; 4], 0))),
            target,
            family: self.family,
            descriptor_limit: self.descriptor_limit,
        })
    }
}
