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
/// Relays on sockets have independent clocks.
pub const CLOCKS: &str = "predictor = { clocks = \"own\" }\n";
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
    format!("[system]\nname = \"{name}\"\n{choice}{CLOCKS}")
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
        mut stage: Stage,
        system: &str,
        socks: SocketAddr,
        bandwidths: &[&str],
    ) -> Result<Own, Failure> {
        let words = hex(&random::<16>());
        let token = stage.write("token", &words)?.display().to_string();
        let key = stage.directory.join("directory.key").display().to_string();
        let places = bandwidths.len().to_string();
        let admits = ["--token-file", &token, "--allow-private-addresses", "--relays-per-address", &places];
        let directory =
            stage.role(&[&["directory", "--listen", "127.0.0.1:0", "--key", &key], &admits[..]].concat())?;
        let authority = directory.wait("key")?["authority"].as_str().unwrap_or_default().to_owned();
        let address = directory.address()?;
        let file = serve_file()?;
        let mut started = Vec::new();
        for (number, bandwidth) in bandwidths.iter().enumerate() {
            let path = stage.directory.join(format!("relay{number}.keys"));
            keys::create(&path).map_err(Failure::Other)?;
            let config = format!(
                "nickname = \"relay{number}\"\nlisten = \"127.0.0.1:0\"\nkeys = \"relay{number}.keys\"\n\
                 status = \"127.0.0.1:0\"\nshow-circuits = true\n\
                 bandwidth = \"{bandwidth}\"\nexit-policy = [\"accept {file}\"]\nexit-to-private-addresses = true\nextend-to-private-addresses = true\n\n\
                 [directory]\naddress = \"{address}\"\ntoken = \"{words}\"\n\n{system}",
            );
            let config = stage.write(&format!("relay{number}.toml"), &config)?.display().to_string();
            let events = stage.role(&["relay", "--config", &config])?;
            started.push((config, events));
        }
        let ready = started.into_iter().map(|(config, events)| ready(config, &events));
        let relays = ready.collect::<Result<Vec<_>, _>>()?;
        let system = stage.write("system.toml", system)?.display().to_string();
        let (listen, asked) = (socks.to_string(), address.to_string());
        let arguments = [
            "client",
            "--socks",
            &listen,
            "--directory",
            &asked,
            "--authority",
            &authority,
            "--allow-private-addresses",
        ];
        let client = stage.role(&[&arguments[..], &["--system", &system]].concat())?;
        let socks = client.address()?;
        client.wait("directory")?;
        let others = [directory.process, client.process];
        Ok(Own { stage, relays, socks, file, directory: address, others, client })
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
