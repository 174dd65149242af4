//! `tidegate overlay tornet --measured`: FlashFlow measures Tidegate relays of a private Tor network. Stock tor's
//! authorities read the bandwidth file, and stock clients select by the consensus.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

use tidegate_control::flashflow::bandwidth_file::read_weights;
use tidegate_net::identity::{hex, unhex};
use tidegate_net::live::keys;
use tidegate_net::private_tor::Network;

use super::download::serve_file;
use super::measured::{Measurement, Team, World, compare};
use super::own::{CLOCKS, RelaySetup};
use super::tor_client::start_client;
use crate::failure::Failure;
use crate::stage::Stage;

/// Authorities: tor takes measured weights from at least three (dir-spec, "Computing a consensus").
const AUTHORITIES: usize = 3;

/// Runs the demonstration.
///
/// # Errors
/// As [`compare`].
pub fn main(asked: &Measurement, tor: &Path) -> Result<ExitCode, Failure> {
    let mut stage = Stage::new("tornet")?;
    let mut team = Team::new(&stage.directory)?;
    let mut network = Network::new(tor, &stage.directory.join("tor"), AUTHORITIES).map_err(Failure::other)?;
    network.start(&format!("V3BandwidthsFile {}\n", team.file().display())).map_err(Failure::other)?;
    let relays = start_relays(&mut stage, &network, &team.setups(asked))?;
    let listed: Vec<String> = (0..relays.len()).map(|number| format!("\nr relay{number} ")).collect();
    stage.wait_for("a consensus that lists all relays", || network.lists(&listed).then_some(()))?;
    let mut world =
        PrivateTor { stage, network, relays, file: serve_file()?, clients: Vec::new(), started: 0 };
    compare(asked, &mut team, &mut world)
}

/// Starts the relays. Returns their fingerprints and addresses.
fn start_relays(
    stage: &mut Stage,
    network: &Network,
    setups: &[RelaySetup],
) -> Result<Vec<(String, SocketAddr)>, Failure> {
    let (authority, mut started) = (network.authority(), Vec::new());
    let others: Vec<String> = network.further_authorities().iter().map(SocketAddr::to_string).collect();
    for (number, RelaySetup { bandwidth, keys: more, tables }) in setups.iter().enumerate() {
        let path = stage.directory.join(format!("relay{number}.keys"));
        let fingerprint = hex(&keys::create(&path).map_err(Failure::Other)?.fingerprint());
        let config = format!(
            "nickname = \"relay{number}\"\nlisten = \"127.0.0.1:0\"\nkeys = \"relay{number}.keys\"\n\
             bandwidth = \"{bandwidth}\"\nexit-policy = [\"accept *:*\"]\nexit-to-private-addresses = true\n\
             extend-to-private-addresses = true\n{more}\n[tor]\nauthority = \"{authority}\"\n\
             further-authorities = {others:?}\n\n{tables}\
             [system]\nname = \"vanilla\"\n{CLOCKS}"
        );
        let config = stage.write(&format!("relay{number}.toml"), &config)?.display().to_string();
        started.push((fingerprint, stage.role(&["relay", "--config", &config])?));
    }
    let ready = started.into_iter().map(|(fingerprint, events)| {
        let address = events.address()?;
        events.wait("announced")?;
        Ok((fingerprint, address))
    });
    ready.collect()
}

/// A private Tor network with Tidegate relays.
struct PrivateTor {
    stage: Stage,
    network: Network,
    /// Fingerprints and addresses.
    relays: Vec<(String, SocketAddr)>,
    file: SocketAddr,
    /// Names of the running clients, and how many were started.
    clients: Vec<String>,
    started: usize,
}

impl PrivateTor {
    /// The relays' weights in the consensus, kB/s.
    fn consensus_weights(&self) -> BTreeMap<String, u64> {
        let (consensus, mut weights) = (self.network.consensus(), BTreeMap::new());
        let mut name = "";
        for line in consensus.lines() {
            if let Some(router) = line.strip_prefix("r ") {
                name = router.split(' ').next().unwrap_or_default();
            } else if let Some(weight) = line.strip_prefix("w Bandwidth=") {
                let weight = weight.split(' ').next().and_then(|weight| weight.parse().ok());
                weights.extend(weight.map(|weight| (name.to_owned(), weight)));
            }
        }
        weights
    }
}

impl World for PrivateTor {
    fn relays(&self) -> Result<Vec<(String, SocketAddr)>, Failure> {
        Ok(self.relays.clone())
    }

    fn weights(&self) -> Result<Vec<u64>, Failure> {
        let weights = self.consensus_weights();
        let weight = |number: usize| {
            let weight = weights.get(&format!("relay{number}")).copied();
            weight.ok_or_else(|| Failure::Other(format!("the consensus gives relay{number} no weight")))
        };
        (0..self.relays.len()).map(weight).collect()
    }

    fn await_weights(&self, file: &Path) -> Result<(), Failure> {
        let text = std::fs::read_to_string(file).map_err(Failure::other)?;
        let measured = read_weights(&text).map_err(Failure::other)?;
        let expected: Vec<Option<u64>> = (self.relays.iter())
            .map(|(fingerprint, _)| unhex(fingerprint).and_then(|id: [u8; 20]| measured.get(&id).copied()))
            .collect();
        self.stage.wait_for("a consensus with the measured weights", || {
            let weights = self.weights().ok()?;
            weights.iter().zip(&expected).all(|(weight, wanted)| Some(*weight) == *wanted).then_some(())
        })
    }

    fn user(&mut self) -> Result<SocketAddr, Failure> {
        self.started += 1;
        let name = format!("client{}", self.started);
        // Conflux would spread a stream over two guards.
        let socks = start_client(&self.stage, &mut self.network, &name, None, "ConfluxEnabled 0\n")?;
        self.clients.push(name);
        Ok(socks)
    }

    fn end_users(&mut self) {
        self.clients.drain(..).for_each(|name| self.network.stop(&name));
    }

    fn file(&self) -> SocketAddr {
        self.file
    }
}
