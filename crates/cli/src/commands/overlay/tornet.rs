//! `tidegate overlay tornet`: a private Tor network on this machine, whose authority and client are stock tor, and whose
//! relays are ours, all or some.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use tidegate_control::units::Bytes;
use tidegate_net::identity::hex;
use tidegate_net::live::keys;
use tidegate_net::os;
use tidegate_net::private_tor::{self, Network};

use super::download::{fetch, report, serve_file};
use crate::failure::Failure;
use crate::stage::{Stage, free_address, until_stopped};

/// Run a private Tor network on this machine: stock tor as authority and client, our relays between them
#[derive(clap::Args)]
pub struct Arguments {
    /// Fetch so much, check it, and end; without it, run until Ctrl-C
    #[arg(long)]
    bytes: Option<Bytes>,
    /// Print one JSON object for each place
    #[arg(long)]
    json: bool,
    /// Where our relays are in a path, stock tor's everywhere else: one client after another for several, by commas
    #[arg(long, value_enum, default_value = "all", value_delimiter = ',')]
    at: Vec<Place>,
    /// The tor program; `tor-gencert` must lie beside it or be on the path
    #[arg(long, default_value = "tor")]
    tor: PathBuf,
}

/// Places in a path.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Place {
    Guard,
    Middle,
    Exit,
    /// Everywhere.
    All,
    /// Where tor puts them.
    Any,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Place::Guard => "guard",
            Place::Middle => "middle",
            Place::Exit => "exit",
            Place::All => "all",
            Place::Any => "any",
        }
    }
}

/// Of ours, and of stock tor where others than ours are wanted.
const RELAYS: usize = 4;

/// Runs it.
pub fn main(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if !private_tor::is_installed(&arguments.tor) {
        let cause = format!("{} cannot be started; Debian's package is `tor`", arguments.tor.display());
        return Err(Failure::Other(cause));
    }
    let mut stage = Stage::new("tornet")?;
    let mut network =
        Network::new(&arguments.tor, &stage.directory.join("tor"), 1).map_err(Failure::other)?;
    network.start("").map_err(Failure::other)?;
    let ours = start_relays(&mut stage, network.authority())?;
    let mut stock = Vec::new();
    if arguments.at.iter().any(|place| *place != Place::All) {
        for number in 0..RELAYS {
            let relay = network.relay(&format!("stock{number}")).map_err(Failure::other)?;
            network.run_relay(&relay, private_tor::RELAY).map_err(Failure::other)?;
            stock.push(relay.name);
        }
    }
    let listed: Vec<String> = ours.iter().chain(&stock).map(|name| format!("\nr {name} ")).collect();
    stage.wait_for("a consensus with all relays", || network.lists(&listed).then_some(()))?;
    stage.wait_for("stock relays that know all relays", || {
        stock.iter().all(|name| network.knows(name, &listed)).then_some(())
    })?;

    let file = serve_file()?;
    let mut wrong = false;
    for place in &arguments.at {
        let name = format!("client-{}", place.name());
        let socks = start_client(&stage, &mut network, &name, *place, [&ours, &stock])?;
        let Some(bytes) = arguments.bytes else {
            println!(
                "stock tor's SOCKS port is {socks}; ours in its paths: {}; Ctrl-C ends it",
                place.name()
            );
            println!("try: curl --socks5-hostname {socks} http://{file}/1000000 | sha256sum");
            continue;
        };
        let download = fetch(socks, file, bytes.0)?;
        let paths = built_paths(&network.files_of(&name)).map_err(Failure::other)?;
        let warnings = network.warnings();
        if !arguments.json {
            warnings.iter().for_each(|line| println!("tor says  {line}"));
        }
        let facts = json!({ "at": place.name(), "relays": ours, "stock": stock, "warnings": warnings });
        wrong |= report(facts, bytes, &paths, &download, arguments.json) != ExitCode::SUCCESS;
    }
    if arguments.bytes.is_none() {
        until_stopped(&stage, || {});
    }
    Ok(ExitCode::from(u8::from(wrong)))
}

/// Starts a client that has our relays there in its paths; where its SOCKS port is, once it knows the network.
fn start_client(
    stage: &Stage,
    network: &mut Network,
    name: &str,
    place: Place,
    [ours, stock]: [&[String]; 2],
) -> Result<SocketAddr, Failure> {
    let socks = free_address()?;
    let control = network.files_of(name).join("control");
    let mut options = format!(
        "SocksPort {socks}\nControlSocket {}\nCookieAuthentication 1\nClientOnly 1\n",
        control.display()
    );
    if place != Place::Any {
        let hops = [("EntryNodes", Place::Guard), ("MiddleNodes", Place::Middle), ("ExitNodes", Place::Exit)];
        for (option, hop) in hops {
            let list = if place == Place::All || place == hop { ours } else { stock };
            options.push_str(&format!("{option} {}\n", list.join(",")));
        }
    }
    network.run(name, &options).map_err(Failure::other)?;
    stage.wait_for("a client that knows the network", || {
        network.log(name).contains("Bootstrapped 100%").then_some(())
    })?;
    Ok(socks)
}

fn start_relays(stage: &mut Stage, authority: SocketAddr) -> Result<Vec<String>, Failure> {
    let (mut names, mut relays) = (Vec::new(), Vec::new());
    for number in 0..RELAYS {
        let name = format!("tide{number}");
        keys::create(&stage.directory.join(format!("{name}.keys"))).map_err(Failure::Other)?;
        let config = format!(
            "nickname = \"{name}\"\nlisten = \"127.0.0.1:0\"\nkeys = \"{name}.keys\"\n\
             exit-policy = [\"accept *:*\"]\nexit-to-private-addresses = true\n\n[tor]\nauthority = \"{authority}\"\n"
        );
        let config = stage.write(&format!("{name}.toml"), &config)?;
        relays.push(stage.role(&["relay", "--config", &config.display().to_string()])?);
        names.push(name);
    }
    for relay in &relays {
        relay.wait("announced")?;
    }
    Ok(names)
}

/// The paths of a client's built circuits, by nicknames, as its control port tells.
fn built_paths(client: &Path) -> std::io::Result<Vec<Vec<String>>> {
    let mut control = os::connect_and_block(&client.join("control"))?;
    let cookie = fs::read(client.join("control_auth_cookie"))?;
    write!(control, "AUTHENTICATE {}\r\nGETINFO circuit-status\r\nQUIT\r\n", hex(&cookie))?;
    let mut paths = Vec::new();
    for line in BufReader::new(control).lines() {
        let line = line?;
        let words: Vec<&str> = line.trim_start_matches("250+circuit-status=").split(' ').collect();
        if let [_, "BUILT", path, rest @ ..] = &words[..]
            // To stock exits clients send over two circuits at once.
            && rest.iter().any(|word| matches!(*word, "PURPOSE=GENERAL" | "PURPOSE=CONFLUX_LINKED"))
        {
            let name = |hop: &str| hop.split_once('~').map_or(hop, |(_, name)| name).to_owned();
            paths.push(path.split(',').map(name).collect());
        }
    }
    Ok(paths)
}
