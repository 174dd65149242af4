//! A measurer's configuration.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tidegate_control::units::Rate;
use tidegate_proto::flashflow::message::MAX_MEASURERS;

use super::fields::{ConfigError, Hex, identity, optional_quantity, read};
use crate::flashflow::{capacity, measurer};

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
    /// Keys of the file that have new names.
    pub notices: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
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
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct CapacityTable {
    listen: SocketAddr,
    #[serde(default)]
    peer: Vec<PeerTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
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
        let (file, notices): (MeasurerFile, _) = read(path)?;
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
            notices,
            listen: file.listen,
            identity: identity(path, &file.identity)?,
            settings: measurer::Settings { coordinators, workers, rate },
            capacity,
        })
    }
}
