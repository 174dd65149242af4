//! `tidegate overlay demo`: a directory, five relays and a client as processes on loopback.

use std::net::SocketAddr;
use std::process::ExitCode;

use serde_json::{Value, json};
use tidegate_control::units::{Bytes, Span};
use tidegate_net::live::demo_page;

use super::download::{fetch, fetch_over, report};
use super::measured::{self, MEASURED_LOAD, Measurement};
use super::own::{Own, RELAYS, VANILLA, systems};
use crate::failure::Failure;
use crate::roles::{check_loopback, serve_page};
use crate::stage::{status_of, until_stopped};

/// Run a directory, five relays and a SOCKS client on this machine and download through them
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate overlay demo --system kist --bytes \"10 MB\"")]
pub struct OverlayDemoArgs {
    /// Run this system: vanilla Tor, vanilla Tor with one part replaced, or Conflux
    #[arg(long, default_value = VANILLA, value_parser = systems())]
    system: String,
    /// Download this much, check it and exit [default: 1 MB every 10 s until Ctrl-C]
    #[arg(long)]
    bytes: Option<Bytes>,
    /// Download over this many circuits at once and print the cost of the relays' controllers
    #[arg(long, requires = "bytes", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    circuits: u16,
    /// Measure the relays with FlashFlow, publish the weights, and download before and after; one relay overstates
    /// itself
    #[arg(long, conflicts_with_all = ["system", "page", "socks"])]
    measured: bool,
    /// Let this many users download, each with its own client
    #[arg(long, requires = "measured", default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..=100))]
    users: u16,
    /// No relay overstates itself
    #[arg(long, requires = "measured")]
    honest: bool,
    /// Length of each relay's measurement in whole seconds (the paper uses 30 s)
    #[arg(long, requires = "measured", default_value = "10 s")]
    duration: Span,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
    /// Serve the status page at this address; port 0 means any
    #[arg(long, default_value = "127.0.0.1:0", conflicts_with = "bytes")]
    page: SocketAddr,
    /// Accept SOCKS5 and HTTP CONNECT at this address; port 0 means any
    #[arg(long, default_value = "127.0.0.1:0")]
    socks: SocketAddr,
}

/// Size of the repeated download.
const LOAD: Bytes = Bytes(1_000_000);

/// Runs the demo.
pub fn main(arguments: &OverlayDemoArgs) -> Result<ExitCode, Failure> {
    if arguments.measured {
        return measured::main(&Measurement {
            honest: arguments.honest,
            users: arguments.users,
            bytes: arguments.bytes.unwrap_or(MEASURED_LOAD),
            duration: arguments.duration,
            json: arguments.json,
        });
    }
    check_loopback("--page", arguments.page)?;
    check_loopback("--socks", arguments.socks)?;
    let own = Own::start(&arguments.system, arguments.socks, RELAYS)?;
    let Own { socks, file, directory, .. } = own;
    let pages: Vec<SocketAddr> = own.relays.iter().map(|relay| relay.status).collect();
    if let Some(bytes) = arguments.bytes {
        let over = (arguments.circuits, arguments.circuits.into());
        // Build the circuits before the measurement.
        own.stage.unless_stopped(move || fetch_over(over, socks, file, 1))?;
        let before = statuses(&pages)?;
        let download = own.stage.unless_stopped(move || fetch_over(over, socks, file, bytes.0))?;
        let facts =
            json!({ "system": arguments.system, "relays": controller_costs(&before, &statuses(&pages)?) });
        return Ok(report(facts, bytes, &own.paths(), &download, arguments.json));
    }
    let about = json!({ "system": arguments.system });
    let page = serve_page(arguments.page, demo_page::OVERLAY, move || about.clone(), pages)?;
    println!("page at http://{page}/ (rates, queues and plans of each relay and circuit)");
    println!("SOCKS5 and HTTP CONNECT at {socks}, directory at {directory}; Ctrl-C stops it");
    println!(
        "try: curl --socks5-hostname {socks} http://{file}/1000000 | sha256sum   (exits reach only {file})"
    );
    until_stopped(&own.stage, || match fetch(0, socks, file, LOAD.0) {
        // Ctrl-C may have cut off this download.
        _ if own.stage.is_stopped() => {}
        Ok(download) => drop(report(json!({}), LOAD, &own.paths(), &download, arguments.json)),
        Err(failure) => eprintln!("{failure}"),
    });
    Ok(ExitCode::SUCCESS)
}

/// Reads the status of all relays.
fn statuses(pages: &[SocketAddr]) -> Result<Vec<Value>, Failure> {
    pages.iter().map(|page| status_of(*page).map_err(Failure::other)).collect()
}

/// Computes each controller's share of processor time between two moments; skips relays without solves.
fn controller_costs(before: &[Value], after: &[Value]) -> Vec<Value> {
    let relays = before.iter().zip(after).map(|(before, after)| {
        let passed = |key: &str| after[key].as_f64().unwrap_or(0.0) - before[key].as_f64().unwrap_or(0.0);
        json!({ "nickname": after["nickname"], "circuits": after["circuits"], "solves": passed("solves"),
            "controller_share": passed("controller_seconds") / passed("uptime_seconds"),
            "solve_p99_s": after["solve_p99_seconds"] })
    });
    relays.filter(|relay| relay["solves"].as_f64() > Some(0.0)).collect()
}
