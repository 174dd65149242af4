//! `tidegate more demo`: ten peers on this machine, a hidden service among them, and somebody who reads from it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::Failure;
use crate::more_processes::{Processes, Reader, hidden_service, source};

/// Peers: one reads, one hides, the others relay.
const PEERS: u16 = 10;

/// Run ten peers on this machine, read from a hidden service among them, and say how fast
///
/// Stop or kill a relay by hand and see what that costs. With `--json` the last line is an object.
#[derive(clap::Args)]
pub struct Arguments {
    /// Seconds; without, until stopped
    #[arg(long)]
    seconds: Option<u64>,
    /// After so many seconds stop a relay without telling anybody
    #[arg(long)]
    silence_after: Option<u64>,
    /// How much each peer forwards per second
    #[arg(long, default_value = "4 MB/s")]
    limit: String,
    /// End with a line of JSON: bytes_per_s of each second, exact
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn main(arguments: &Arguments) -> Result<(), Failure> {
    let other = |error: std::io::Error| Failure::Other(format!("more demo: {error}"));
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))
        .map_err(|e| Failure::Other(e.to_string()))?;
    let common = ["--limit", &arguments.limit].map(String::from).to_vec();
    let mut overlay = Processes::new(PEERS, common).map_err(Failure::Other)?;
    let target = source().map_err(other)?;
    let front =
        hidden_service(&mut overlay, target, &["--hops", "2"], &["--hops", "2"]).map_err(Failure::Other)?;
    let mut reader = Reader::connect(front, "hidden.more").map_err(other)?;
    println!("peer 0 reads from peer {}, which it cannot find, through the others:", PEERS - 1);
    for (peer, process, _) in overlay.peers() {
        println!("  peer {peer}: process {process}, kill -STOP {process}");
    }
    let clock = tidegate_net::clock::now;
    let (begin, mut each) = (clock(), Vec::new());
    while !stop.load(Ordering::Relaxed) && arguments.seconds.is_none_or(|most| (each.len() as u64) < most) {
        let (second, before) = (each.len() as u64 + 1, reader.bytes);
        if arguments.silence_after == Some(second - 1) {
            overlay.silence(PEERS / 2).map_err(Failure::Other)?;
            println!("peer {} is stopped now", PEERS / 2);
        }
        while clock().since(begin).as_secs_f64() < second as f64 && !stop.load(Ordering::Relaxed) {
            reader.read().map_err(other)?;
        }
        let bytes = reader.bytes - before;
        let running = overlay.peers().iter().filter(|(_, _, runs)| *runs).count();
        println!("{second:4} s {:8.1} kB/s, {running} of {PEERS} peers run", bytes as f64 / 1000.0);
        each.push(bytes);
    }
    if arguments.json {
        println!("{}", serde_json::json!({ "bytes_per_s": each, "exact": reader.exact }));
    }
    Ok(())
}
