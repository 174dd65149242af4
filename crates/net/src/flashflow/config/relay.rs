//! A relay's configuration, and that of the background traffic through it in demonstrations.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tidegate_control::flashflow::Percent;
use tidegate_control::units::{Rate, Span};
use tidegate_proto::cell::RelayId as RelayNumber;
use tidegate_proto::crypto::ntor::RelayPublic;
use tidegate_proto::flashflow::relay;

use super::fields::{ConfigError, Hex, identity, optional_quantity, quantity, read};
use crate::identity::Contact;

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
    /// Keys of the file that have new names.
    pub notices: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
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
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct NeighbourTable {
    number: u32,
    address: SocketAddr,
    fingerprint: Hex<32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
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
        let (file, notices): (RelayFile, _) = read(path)?;
        let fail = |cause: &str| ConfigError { path: path.into(), cause: cause.into() };
        let (table, default) = (file.measurement, relay::Config::default());
        let period = table.period.unwrap_or(default.period);
        if !(Span::from_secs(3600)..=Span::from_secs(31 * 86_400)).contains(&period) {
            return Err(fail("measurement.period is not between 1 h and 744 h (a month)"));
        }
        let max_duration = table.max_duration.unwrap_or(default.max_duration);
        if !(Span::from_secs(10)..=Span::from_secs(120)).contains(&max_duration) {
            return Err(fail("measurement.max-duration is not between 10 s and 120 s"));
        }
        let background = match table.background_percent {
            Some(percent) => Percent::new(percent)
                .ok_or_else(|| fail("measurement.background-percent is not below 100"))?,
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
            notices,
            listen: file.listen,
            identity: identity(path, &file.identity)?,
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
    /// Keys of the file that have new names.
    pub notices: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct BackgroundFile {
    listen: SocketAddr,
    identity: PathBuf,
    #[serde(deserialize_with = "quantity")]
    rate: Rate,
    circuits: usize,
    target: TargetTable,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
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
        let (file, notices): (BackgroundFile, _) = read(path)?;
        if !(1..=1000).contains(&file.circuits) {
            let cause = "circuits is not between 1 and 1000".into();
            return Err(ConfigError { path: path.into(), cause });
        }
        let (fingerprint, onion) = (file.target.fingerprint.0, file.target.onion_key.0);
        let own = fingerprint[..20].try_into().expect("a fingerprint has 32 bytes");
        Ok(BackgroundConfig {
            notices,
            listen: file.listen,
            identity: identity(path, &file.identity)?,
            rate: file.rate,
            circuits: file.circuits,
            target: (
                Contact { address: file.target.address, fingerprint },
                RelayPublic { identity: own, onion },
            ),
        })
    }
}
