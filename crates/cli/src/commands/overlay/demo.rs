//! `tidegate overlay demo`: a directory, five relays and a client as processes on loopback.

use std::net::SocketAddr;
use std::process::ExitCode;

use serde_json::{Value, json};
use tidegate_control::units::Bytes;
use tidegate_net::live::demo_page;

use super::download::{fetch, fetch_over, report};
use super::own::{Own, RELAYS, VANILLA, systems};
use crate::failure::Failure;
use crate::roles::serve_page;
use crate::stage::{status_of, until_stopped};

/// Run a directory, five relays and a SOCKS client on this machine, and fetch something through them
#[derive(clap::Args)]
pub struct Arguments {
    /// What all of them run: vanilla Tor, or it with one other transport, scheduler, control or form of switching, or Conflux
    #[arg(long, default_value = VANILLA, value_parser = systems())]
    system: String,
    /// Fetch so much, check it, and end; without it, fetch a megabyte every 10 s until Ctrl-C
    #[arg(long)]
    bytes: Option<Bytes>,
    /// Fetch over so many circuits at once, and say what the relays' controllers took meanwhile
    #[arg(long, requires = "bytes", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    circuits: u16,
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

/// How much is fetched again and again.
const LOAD: Bytes = Bytes(1_000_000);

/// Runs the demo.
pub fn main(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let own = Own::start(&arguments.system, arguments.socks, RELAYS)?;
    let Own { socks, file, directory, .. } = own;
    let pages: Vec<SocketAddr> = own.relays.iter().map(|relay| relay.status).collect();
    if let Some(bytes) = arguments.bytes {
        let over = (arguments.circuits, arguments.circuits.into());
        // Circuits are built first.
        fetch_over(over, socks, file, 1)?;
        let before = shown(&pages)?;
        let download = fetch_over(over, socks, file, bytes.0)?;
        let facts = json!({ "system": arguments.system, "relays": controlled(&before, &shown(&pages)?) });
        return Ok(report(facts, bytes, &own.paths(), &download, arguments.json));
    }
    let about = json!({ "system": arguments.system });
    let page = serve_page(arguments.page, demo_page::OVERLAY, move || about.clone(), pages)?;
    println!("page at http://{page}/ (rates, queues and plans of each relay and circuit)");
    println!("SOCKS5 and HTTP CONNECT at {socks}, directory at {directory}; Ctrl-C ends it");
    println!(
        "try: curl --socks5-hostname {socks} http://{file}/1000000 | sha256sum   (exits reach {file} alone)"
    );
    until_stopped(&own.stage, || match fetch(0, socks, file, LOAD.0) {
        Ok(download) => drop(report(json!({}), LOAD, &own.paths(), &download, arguments.json)),
        Err(failure) => eprintln!("{failure}"),
    });
    Ok(ExitCode::SUCCESS)
}

/// What all relays show.
fn shown(pages: &[SocketAddr]) -> Result<Vec<Value>, Failure> {
    pages.iter().map(|page| status_of(*page).map_err(Failure::other)).collect()
}

/// What controllers took of each relay's time between two moments, where there were solves.
fn controlled(before: &[Value], after: &[Value]) -> Vec<Value> {
    let relays = before.iter().zip(after).map(|(before, after)| {
        let passed = |key: &str| after[key].as_f64().unwrap_or(0.0) - before[key].as_f64().unwrap_or(0.0);
        json!({ "nickname": after["nickname"], "circuits": after["circuits"], "solves": passed("solves"),
            "controller_share": passed("controller_seconds") / passed("uptime_seconds"),
            "solve_p99_s": after["solve_p99_seconds"] })
    });
    relays.filter(|relay| relay["solves"].as_f64() > Some(0.0)).collect()
}
