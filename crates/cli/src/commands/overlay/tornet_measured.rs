//! `tidegate overlay tornet --measured`: FlashFlow measures Tidegate relays of a private Tor network. Stock tor's
//! authorities read the bandwidth file, and stock clients select by the consensus.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

use tidegate_data::consensus;
use tidegate_data::document::Document;
use tidegate_data::formats::BANDWIDTH_FILES;
use tidegate_net::identity::{hex, unhex};
use tidegate_net::live::keys;
use tidegate_net::private_tor::Network;

use super::download::serve_file;
use super::measured::{Measurement, Team, World, compare};
use super::own::{RelaySetup, relay_file};
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
    let team = Team::new(&stage.directory)?;
    let mut network = Network::new(tor, &stage.directory.join("tor"), AUTHORITIES).map_err(Failure::other)?;
    network.start(&format!("V3BandwidthsFile {}\n", team.file().display())).map_err(Failure::other)?;
    let relays = start_relays(&mut stage, &network, &team.setups(asked))?;
    let listed: Vec<String> = (0..relays.len()).map(|number| format!("\nr relay{number} ")).collect();
    stage.wait_for("a consensus that lists all relays", || network.lists(&listed).then_some(()))?;
    let mut world =
        PrivateTor { stage, network, relays, file: serve_file()?, clients: Vec::new(), started: 0 };
    compare(asked, team, &mut world)
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
        let name = format!("relay{number}");
        let keys = format!("bandwidth = \"{bandwidth}\"\n{more}");
        let tables = format!(
            "[tor]\nauthority = \"{authority}\"\nfurther-authorities = {others:?}\n\n{tables}\
             [system]\nname = \"vanilla\"\n"
        );
        let config = relay_file(&name, "*:*", &keys, &tables);
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

impl World for PrivateTor {
    fn relays(&self) -> Result<Vec<(String, SocketAddr)>, Failure> {
        Ok(self.relays.clone())
    }

    fn weights(&self) -> Result<Vec<u64>, Failure> {
        let document = Document::new("the consensus", self.network.consensus()).map_err(Failure::other)?;
        let consensus = consensus::read(&document).map_err(Failure::other)?;
        let weight = |(fingerprint, _): &(String, SocketAddr)| {
            let mut listed = consensus.relays.iter();
            let found = listed.find(|listed| hex(&listed.identity.0) == *fingerprint);
            let found = found.ok_or_else(|| Failure::Other(format!("the consensus lacks {fingerprint}")))?;
            Ok(u64::from(found.bandwidth))
        };
        self.relays.iter().map(weight).collect()
    }

    fn await_weights(&self, file: &Path) -> Result<(), Failure> {
        let measured = BANDWIDTH_FILES.open(file).map_err(Failure::other)?;
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

    fn stage(&self) -> &Stage {
        &self.stage
    }
}
