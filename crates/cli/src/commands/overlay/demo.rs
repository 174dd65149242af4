//! `tidegate overlay demo`: a directory, five relays and a client as processes on loopback.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::builder::{PossibleValue, PossibleValuesParser};
use serde_json::json;
use tidegate_control::units::Bytes;
use tidegate_net::identity::{hex, random};
use tidegate_net::live::{demo_page, keys};
use tidegate_proto::system::alternatives;

use super::download::{fetch, report, serve_file};
use crate::failure::Failure;
use crate::roles::serve_page;
use crate::stage::{Stage, until_stopped};

/// Run a directory, five relays and a SOCKS client on this machine, and fetch something through them
#[derive(clap::Args)]
pub struct Arguments {
    /// What all of them run: vanilla Tor, or it with one other transport, scheduler, control or form of switching
    #[arg(long, default_value = VANILLA, value_parser = names())]
    system: String,
    /// Fetch so much, check it, and end; without it, fetch a megabyte every 10 s until Ctrl-C
    #[arg(long)]
    bytes: Option<Bytes>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Where the page is
    #[arg(long, default_value = "127.0.0.1:0")]
    page: SocketAddr,
    /// Where applications connect
    #[arg(long, default_value = "127.0.0.1:0")]
    socks: SocketAddr,
}

const VANILLA: &str = "vanilla";
/// The clocks of relays on sockets are their own.
const CLOCKS: &str = "predictor = { clocks = \"own\" }\n";
const RELAYS: usize = 5;
/// What PredicTor's relays divide among their circuits.
const BANDWIDTH: &str = "80 Mbit/s";
/// How much is fetched again and again.
const LOAD: Bytes = Bytes(1_000_000);

fn names() -> PossibleValuesParser {
    let other = alternatives().into_iter().map(|(name, _)| {
        // As it was called before circuits could move in another way.
        let alias = (name == "connection").then_some("switching");
        PossibleValue::new(name).aliases(alias)
    });
    PossibleValuesParser::new(std::iter::once(PossibleValue::new(VANILLA)).chain(other))
}

/// Runs the demo.
pub fn main(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let name = arguments.system.as_str();
    let chosen = alternatives().into_iter().find(|(known, _)| *known == name);
    let choice = chosen.map_or(String::new(), |(part, key)| format!("{key} = \"{part}\"\n"));
    let system = format!("[system]\nname = \"{name}\"\n{choice}{CLOCKS}");
    let mut stage = Stage::new("overlay")?;
    let token = stage.write("token", &hex(&random::<16>()))?;
    let words = std::fs::read_to_string(&token).map_err(Failure::other)?;
    let at = |stage: &Stage, name: &str| stage.directory.join(name).display().to_string();

    let key = at(&stage, "directory.key");
    let token = token.display().to_string();
    let directory =
        stage.role(&["directory", "--listen", "127.0.0.1:0", "--key", &key, "--token-file", &token])?;
    let authority = directory.wait("key")?["authority"].as_str().unwrap_or_default().to_owned();
    let directory_address = directory.address()?;
    let file = serve_file()?;
    let mut relays = Vec::new();
    for number in 0..RELAYS {
        let path = stage.directory.join(format!("relay{number}.keys"));
        keys::create(&path).map_err(Failure::Other)?;
        let config = format!(
            "nickname = \"relay{number}\"\nlisten = \"127.0.0.1:0\"\nkeys = \"relay{number}.keys\"\n\
             status = \"127.0.0.1:0\"\nshow-circuits = true\n\
             bandwidth = \"{BANDWIDTH}\"\nexit-policy = [\"accept {file}\"]\nexit-to-private-addresses = true\n\n\
             [directory]\naddress = \"{directory_address}\"\ntoken = \"{words}\"\n\n{system}",
        );
        let config = stage.write(&format!("relay{number}.toml"), &config)?;
        relays.push(stage.role(&["relay", "--config", &config.display().to_string()])?);
    }
    let mut pages = Vec::new();
    for relay in &relays {
        pages.push(relay.address_of("status")?);
        relay.wait("announced")?;
    }
    let system_file = stage.write("system.toml", &system)?.display().to_string();
    let (listen, asked) = (arguments.socks.to_string(), directory_address.to_string());
    let client = stage.role(&[
        "client",
        "--socks",
        &listen,
        "--directory",
        &asked,
        "--authority",
        &authority,
        "--system",
        &system_file,
    ])?;
    let socks = client.address()?;
    client.wait("directory")?;
    let paths = || -> Vec<Vec<String>> {
        let built = client.said("built");
        built.iter().filter_map(|event| serde_json::from_value(event["path"].clone()).ok()).collect()
    };
    if let Some(bytes) = arguments.bytes {
        let download = fetch(0, socks, file, bytes.0)?;
        return Ok(report(json!({ "system": name }), bytes, &paths(), &download, arguments.json));
    }
    let about = json!({ "system": name });
    let page = serve_page(arguments.page, demo_page::OVERLAY, move || about.clone(), pages)?;
    println!("page at http://{page}/ (rates, queues and plans of each relay and circuit)");
    println!("SOCKS5 and HTTP CONNECT at {socks}, directory at {directory_address}; Ctrl-C ends it");
    println!(
        "try: curl --socks5-hostname {socks} http://{file}/1000000 | sha256sum   (exits reach {file} alone)"
    );
    until_stopped(&stage, || match fetch(0, socks, file, LOAD.0) {
        Ok(download) => drop(report(json!({}), LOAD, &paths(), &download, arguments.json)),
        Err(failure) => eprintln!("{failure}"),
    });
    Ok(ExitCode::SUCCESS)
}
