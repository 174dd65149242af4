//! `tidegate more demo`: ten peers on this machine; one reads from a hidden service of another.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use tidegate_control::units::Rate;
use tidegate_net::live::demo_page;

use super::peer::limit;
use crate::failure::Failure;
use crate::more_processes::{Processes, Reader, hidden_service, source};
use crate::roles::serve_page;

/// Number of peers: one reads, one runs the hidden service, the others relay.
const PEERS: u16 = 10;

/// Run ten peers on this machine and print how fast one reads from a hidden service of another
///
/// Stop or kill a relay by hand to see the effect, here and on the page.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate more demo --seconds 30 --silence-after 10")]
pub struct MoreDemoArgs {
    /// Run for this many seconds [default: until stopped]
    #[arg(long)]
    seconds: Option<u64>,
    /// Freeze a relay after this many seconds (SIGSTOP)
    #[arg(long)]
    silence_after: Option<u64>,
    /// Limit what each peer forwards to this rate
    #[arg(long, default_value = "4 MB/s", value_parser = limit)]
    limit: Rate,
    /// Use this many relays in the reader's paths
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=4))]
    hops: u16,
    /// Use this many relays in the service's paths
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=4))]
    service_hops: u16,
    /// Serve the status page at this address; port 0 means any
    #[arg(long, default_value = "127.0.0.1:0")]
    page: SocketAddr,
    /// Print a JSON object at the end: bytes_per_s of each second, cpu_s of all peers, exact
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn main(arguments: &MoreDemoArgs) -> Result<(), Failure> {
    let other = |error: std::io::Error| Failure::Other(format!("more demo: {error}"));
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))
        .map_err(|e| Failure::Other(e.to_string()))?;
    let common = vec!["--limit".into(), arguments.limit.to_string()];
    let mut overlay = Processes::new(PEERS, common).map_err(Failure::Other)?;
    overlay.shows = true;
    let target = source().map_err(other)?;
    let hops = [arguments.service_hops, arguments.hops].map(|hops| hops.to_string());
    let front = hidden_service(&mut overlay, target, &["--hops", &hops[0]], &["--hops", &hops[1]])
        .map_err(Failure::Other)?;
    let mut reader = Reader::connect(front, "hidden.more").map_err(other)?;
    let mut each = Vec::new();
    let about = Arc::new(Mutex::new(about(&mut overlay, &each)));
    let asked = Arc::clone(&about);
    let known = move || asked.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let page = serve_page(arguments.page, demo_page::MORE, known, overlay.addresses.clone())?;
    println!("page at http://{page}/ (the stream and what each peer forwards)");
    println!("peer 0 reads from the hidden service of peer {} through the others:", PEERS - 1);
    for (peer, process, _) in overlay.peers() {
        println!("  peer {peer}: process {process}, kill -STOP {process}");
    }
    let clock = tidegate_net::clock::now;
    let begin = clock();
    while !stop.load(Ordering::Relaxed) && arguments.seconds.is_none_or(|most| (each.len() as u64) < most) {
        let (second, before) = (each.len() as u64 + 1, reader.bytes);
        if arguments.silence_after == Some(second - 1) {
            overlay.silence(PEERS / 2).map_err(Failure::Other)?;
            println!("peer {} is frozen now", PEERS / 2);
        }
        while clock().since(begin).as_secs_f64() < second as f64 && !stop.load(Ordering::Relaxed) {
            reader.read().map_err(other)?;
        }
        let bytes = reader.bytes - before;
        let running = overlay.peers().iter().filter(|(_, _, runs)| *runs).count();
        println!("{second:4} s {:8.1} kB/s, {running} of {PEERS} peers run", bytes as f64 / 1000.0);
        each.push(bytes);
        *about.lock().unwrap_or_else(PoisonError::into_inner) = self::about(&mut overlay, &each);
    }
    if arguments.json {
        println!("{}", json!({ "bytes_per_s": each, "cpu_s": overlay.cpu_s(), "exact": reader.exact }));
    }
    Ok(())
}

/// Data of the page in addition to the peers' own: the last minute of the stream, and the processes.
fn about(overlay: &mut Processes, each: &[u64]) -> Value {
    let peers = overlay.peers().into_iter().map(|(peer, process, runs)| {
        let role = match peer {
            0 => "reads",
            last if last == PEERS - 1 => "hides",
            _ => "relays",
        };
        json!({ "peer": peer, "process": process, "runs": runs, "role": role })
    });
    json!({ "bytes_per_s": each[each.len().saturating_sub(60)..], "peers": peers.collect::<Vec<_>>() })
}
