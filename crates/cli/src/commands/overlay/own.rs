//! A directory, five relays and a client as processes on loopback.

use std::net::SocketAddr;

use clap::builder::{PossibleValue, PossibleValuesParser};
use tidegate_net::identity::{hex, random};
use tidegate_net::live::keys;
use tidegate_proto::system::alternatives;

use super::download::serve_file;
use crate::failure::Failure;
use crate::stage::{Events, Stage};

/// The system without a name in the registry.
pub const VANILLA: &str = "vanilla";
/// And those that need two: streams over two circuits, which need congestion control or, divided by explicit rates,
/// PredicTor.
const CONFLUX: [(&str, &str); 3] = [
    ("conflux", "conflux = \"throughput\"\ncontrol = \"vegas\"\n"),
    ("conflux-by-rate", "conflux = \"by-rate\"\ncontrol = \"predictor\"\n"),
    ("conflux-q-learning", "conflux = \"q-learning\"\ncontrol = \"vegas\"\n"),
];
/// The clocks of relays on sockets are their own.
const CLOCKS: &str = "predictor = { clocks = \"own\" }\n";
/// How many relays a demo has.
pub const RELAYS: usize = 5;
/// What PredicTor's relays divide among their circuits.
const BANDWIDTH: &str = "80 Mbit/s";

/// What all can run.
pub fn systems() -> PossibleValuesParser {
    let other = alternatives().into_iter().map(|(name, _)| {
        // As it was called before circuits could move in another way.
        let alias = (name == "connection").then_some("switching");
        PossibleValue::new(name).aliases(alias)
    });
    let more = [VANILLA].into_iter().chain(CONFLUX.map(|(name, _)| name)).map(PossibleValue::new);
    PossibleValuesParser::new(more.chain(other))
}

/// The `[system]` table of one of them.
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

/// A relay.
pub struct Relay {
    config: String,
    /// Its process.
    pub process: u32,
    /// Where other nodes connect.
    pub address: SocketAddr,
    /// Where it shows its circuits.
    pub status: SocketAddr,
}

/// All of them; they end with it.
pub struct Own {
    /// What they are on.
    pub stage: Stage,
    /// The relays, all exits to the file.
    pub relays: Vec<Relay>,
    /// Where applications connect.
    pub socks: SocketAddr,
    /// Where the test file is.
    pub file: SocketAddr,
    /// Where the directory is.
    pub directory: SocketAddr,
    /// Processes of directory and client.
    pub others: [u32; 2],
    client: Events,
}

impl Own {
    /// Starts them.
    ///
    /// # Errors
    /// What a role said, if it did not start.
    pub fn start(name: &str, socks: SocketAddr, relays: usize) -> Result<Own, Failure> {
        let system = system_table(name);
        let mut stage = Stage::new("overlay")?;
        let words = hex(&random::<16>());
        let token = stage.write("token", &words)?.display().to_string();
        let key = stage.directory.join("directory.key").display().to_string();
        let directory =
            stage.role(&["directory", "--listen", "127.0.0.1:0", "--key", &key, "--token-file", &token])?;
        let authority = directory.wait("key")?["authority"].as_str().unwrap_or_default().to_owned();
        let address = directory.address()?;
        let file = serve_file()?;
        let mut started = Vec::new();
        for number in 0..relays {
            let path = stage.directory.join(format!("relay{number}.keys"));
            keys::create(&path).map_err(Failure::Other)?;
            let config = format!(
                "nickname = \"relay{number}\"\nlisten = \"127.0.0.1:0\"\nkeys = \"relay{number}.keys\"\n\
                 status = \"127.0.0.1:0\"\nshow-circuits = true\n\
                 bandwidth = \"{BANDWIDTH}\"\nexit-policy = [\"accept {file}\"]\nexit-to-private-addresses = true\n\n\
                 [directory]\naddress = \"{address}\"\ntoken = \"{words}\"\n\n{system}",
            );
            let config = stage.write(&format!("relay{number}.toml"), &config)?.display().to_string();
            let events = stage.role(&["relay", "--config", &config])?;
            started.push((config, events));
        }
        let ready = started.into_iter().map(|(config, events)| ready(config, &events));
        let relays = ready.collect::<Result<Vec<_>, _>>()?;
        let system = stage.write("system.toml", &system)?.display().to_string();
        let (listen, asked) = (socks.to_string(), address.to_string());
        let arguments = ["client", "--socks", &listen, "--directory", &asked, "--authority", &authority];
        let client = stage.role(&[&arguments[..], &["--system", &system]].concat())?;
        let socks = client.address()?;
        client.wait("directory")?;
        let others = [directory.process, client.process];
        Ok(Own { stage, relays, socks, file, directory: address, others, client })
    }

    /// Starts a relay anew that has ended, with the keys that it had.
    ///
    /// # Errors
    /// What it said, if it did not start.
    pub fn restart(&mut self, relay: usize) -> Result<(), Failure> {
        let config = self.relays[relay].config.clone();
        let events = self.stage.role(&["relay", "--config", &config])?;
        self.relays[relay] = ready(config, &events)?;
        Ok(())
    }

    /// The paths that the client has built since it was last asked.
    pub fn paths(&self) -> Vec<Vec<String>> {
        let built = self.client.said("built");
        let paths = built.iter().filter_map(|event| event["path"].as_str());
        paths.map(|path| path.split(',').map(str::to_owned).collect()).collect()
    }
}

/// A relay that the directory knows.
fn ready(config: String, events: &Events) -> Result<Relay, Failure> {
    let (address, status) = (events.address()?, events.address_of("status")?);
    events.wait("announced")?;
    Ok(Relay { config, process: events.process, address, status })
}
