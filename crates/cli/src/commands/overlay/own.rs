//! An overlay of Tidegate processes on loopback: a directory, relays and a client.

use std::net::SocketAddr;

use clap::builder::{PossibleValue, PossibleValuesParser};
use tidegate_net::identity::{hex, random};
use tidegate_net::live::keys;
use tidegate_proto::system::alternatives;

use super::download::serve_file;
use crate::failure::Failure;
use crate::stage::{Events, Stage};

/// Vanilla Tor: the default of every part.
pub const VANILLA: &str = "vanilla";
/// Conflux systems and their tables: Conflux needs congestion control, or PredicTor if it splits by rate.
const CONFLUX: [(&str, &str); 3] = [
    ("conflux", "conflux = \"throughput\"\ncontrol = \"vegas\"\n"),
    ("conflux-by-rate", "conflux = \"by-rate\"\ncontrol = \"predictor\"\n"),
    ("conflux-q-learning", "conflux = \"q-learning\"\ncontrol = \"vegas\"\n"),
];
/// Number of relays of a demo.
pub const RELAYS: usize = 5;
/// Bandwidth of each relay, which PredicTor divides among circuits.
const BANDWIDTH: &str = "80 Mbit/s";

/// Parser of `--system`: vanilla, Conflux, and every alternative in the registry.
pub fn systems() -> PossibleValuesParser {
    let other = alternatives().into_iter().map(|(name, _)| PossibleValue::new(name));
    let more = [VANILLA].into_iter().chain(CONFLUX.map(|(name, _)| name)).map(PossibleValue::new);
    PossibleValuesParser::new(more.chain(other))
}

/// Returns the `[system]` table of a system.
pub fn system_table(name: &str) -> String {
    let linked = CONFLUX.into_iter().find(|(known, _)| *known == name);
    let chosen = alternatives().into_iter().find(|(known, _)| *known == name);
    let choice = match (linked, chosen) {
        (Some((_, table)), _) => table.to_owned(),
        (None, Some((part, key))) => format!("{key} = \"{part}\"\n"),
        (None, None) => String::new(),
    };
    let clocks = clocks(&choice);
    format!("[system]\nname = \"{name}\"\n{choice}{clocks}")
}

/// The line about clocks in a `[system]` table with these choices: relays on sockets have independent ones.
pub fn clocks(choices: &str) -> &'static str {
    match choices.contains("control = \"predictor\"") {
        true => "predictor = { clocks = \"own\" }\n",
        false => "",
    }
}

/// A running relay process.
pub struct Relay {
    config: String,
    /// Process id.
    pub process: u32,
    /// Address for other nodes.
    pub address: SocketAddr,
    /// Address of the status page.
    pub status: SocketAddr,
}

/// The configuration of one relay.
pub struct RelaySetup {
    /// Its bandwidth.
    pub bandwidth: String,
    /// Further keys of its file, before the tables.
    pub keys: String,
    /// Further tables.
    pub tables: String,
}

impl RelaySetup {
    /// A relay with this bandwidth.
    pub fn new(bandwidth: &str) -> RelaySetup {
        RelaySetup { bandwidth: bandwidth.to_owned(), keys: String::new(), tables: String::new() }
    }
}

/// Keys of a relay that shows its circuits on a status page.
pub const SHOWN: &str = "status = \"127.0.0.1:0\"\nshow-circuits = true\n";

/// The configuration file of a relay on this machine that exits to these addresses, with further keys and tables.
pub fn relay_file(name: &str, exits: &str, keys: &str, tables: &str) -> String {
    format!(
        "nickname = \"{name}\"\nlisten = \"127.0.0.1:0\"\nkeys = \"{name}.keys\"\nexit-policy = [\"accept {exits}\"]\n\
         exit-to-private-addresses = true\nextend-to-private-addresses = true\n{keys}\n{tables}"
    )
}

/// A directory and relays; dropping it stops all processes.
pub struct Network {
    /// Processes and files of the overlay.
    pub stage: Stage,
    /// The relays; each may exit to the test file.
    pub relays: Vec<Relay>,
    /// Address of the server with the test file.
    pub file: SocketAddr,
    /// Address of the directory.
    pub directory: SocketAddr,
    /// Signing key of the directory, in hexadecimal.
    pub authority: String,
    /// Events of the directory.
    pub directory_events: Events,
    /// File with the clients' `[system]` table.
    system: String,
}

impl Network {
    /// Starts a directory, with these further arguments, and relays on a stage. `system` is the table of all nodes.
    ///
    /// # Errors
    /// If a process does not start, with its last message.
    pub fn start(
        mut stage: Stage,
        system: &str,
        setups: &[RelaySetup],
        more: &[&str],
    ) -> Result<Network, Failure> {
        let words = hex(&random::<16>());
        let token = stage.write("token", &words)?.display().to_string();
        let key = stage.directory.join("directory.key").display().to_string();
        let places = setups.len().to_string();
        let admits = ["--token-file", &token, "--allow-private-addresses", "--relays-per-address", &places];
        let listens = ["directory", "--listen", "127.0.0.1:0", "--key", &key];
        let directory = stage.role(&[&listens[..], &admits, more].concat())?;
        let authority = directory.wait("key")?["authority"].as_str().unwrap_or_default().to_owned();
        let address = directory.address()?;
        let file = serve_file()?;
        let mut started = Vec::new();
        for (number, RelaySetup { bandwidth, keys: more, tables }) in setups.iter().enumerate() {
            let path = stage.directory.join(format!("relay{number}.keys"));
            keys::create(&path).map_err(Failure::Other)?;
            let keys = format!("{SHOWN}bandwidth = \"{bandwidth}\"\n{more}");
            let tables =
                format!("[directory]\naddress = \"{address}\"\ntoken = \"{words}\"\n\n{tables}{system}");
            let config = relay_file(&format!("relay{number}"), &file.to_string(), &keys, &tables);
            let config = stage.write(&format!("relay{number}.toml"), &config)?.display().to_string();
            let events = stage.role(&["relay", "--config", &config])?;
            started.push((config, events));
        }
        let ready = started.into_iter().map(|(config, events)| ready(config, &events));
        let relays = ready.collect::<Result<Vec<_>, _>>()?;
        let system = stage.write("system.toml", system)?.display().to_string();
        Ok(Network {
            stage,
            relays,
            file,
            directory: address,
            authority,
            directory_events: directory,
            system,
        })
    }

    /// Starts a client with these further arguments, and waits until it has the directory. Returns its events and its SOCKS
    /// address.
    ///
    /// # Errors
    /// If it does not start, with its last message.
    pub fn client(&mut self, socks: SocketAddr, more: &[&str]) -> Result<(Events, SocketAddr), Failure> {
        let (listen, asked) = (socks.to_string(), self.directory.to_string());
        let arguments = [
            "client",
            "--socks",
            &listen,
            "--directory",
            &asked,
            "--authority",
            &self.authority,
            "--allow-private-addresses",
            "--system",
            &self.system,
        ];
        let client = self.stage.role(&[&arguments[..], more].concat())?;
        let socks = client.address()?;
        client.wait("directory")?;
        Ok((client, socks))
    }
}

/// The running overlay; dropping it stops all processes.
pub struct Own {
    /// Processes and files of the overlay.
    pub stage: Stage,
    /// The relays; each may exit to the test file.
    pub relays: Vec<Relay>,
    /// Address of the SOCKS proxy.
    pub socks: SocketAddr,
    /// Address of the server with the test file.
    pub file: SocketAddr,
    /// Address of the directory.
    pub directory: SocketAddr,
    /// Process ids of the directory and the client.
    pub others: [u32; 2],
    client: Events,
}

impl Own {
    /// Starts all processes.
    ///
    /// # Errors
    /// If a process does not start, with its last message.
    pub fn start(name: &str, socks: SocketAddr, relays: usize) -> Result<Own, Failure> {
        Own::start_on(Stage::new("overlay")?, &system_table(name), socks, &vec![BANDWIDTH; relays])
    }

    /// Starts all processes on a stage. `system` is the table of all nodes; each relay has one of the bandwidths.
    ///
    /// # Errors
    /// If a process does not start, with its last message.
    pub fn start_on(
        stage: Stage,
        system: &str,
        socks: SocketAddr,
        bandwidths: &[&str],
    ) -> Result<Own, Failure> {
        let setups: Vec<RelaySetup> = bandwidths.iter().map(|bandwidth| RelaySetup::new(bandwidth)).collect();
        let mut network = Network::start(stage, system, &setups, &[])?;
        let (client, socks) = network.client(socks, &[])?;
        let others = [network.directory_events.process, client.process];
        let Network { stage, relays, file, directory, .. } = network;
        Ok(Own { stage, relays, socks, file, directory, others, client })
    }

    /// Restarts a relay that was killed, with its old keys.
    ///
    /// # Errors
    /// If it does not start, with its last message.
    pub fn restart(&mut self, relay: usize) -> Result<(), Failure> {
        let config = self.relays[relay].config.clone();
        let events = self.stage.role(&["relay", "--config", &config])?;
        self.relays[relay] = ready(config, &events)?;
        Ok(())
    }

    /// Returns how often the client has moved circuits since the last call.
    pub fn moves(&self) -> usize {
        self.client.said("moved").len()
    }

    /// Returns the circuits that the client has built since the last call.
    pub fn paths(&self) -> Vec<Vec<String>> {
        let built = self.client.said("built");
        let paths = built.iter().filter_map(|event| event["path"].as_str());
        paths.map(|path| path.split(',').map(str::to_owned).collect()).collect()
    }
}

/// Waits until a relay has announced itself to the directory.
fn ready(config: String, events: &Events) -> Result<Relay, Failure> {
    let (address, status) = (events.address()?, events.address_of("status")?);
    events.wait("announced")?;
    Ok(Relay { config, process: events.process, address, status })
}
