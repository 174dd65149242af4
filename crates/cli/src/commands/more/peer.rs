//! Options and start of a peer process.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::builder::PossibleValuesParser;
use serde_json::{Value, json};
use tidegate_control::paths::{CONTROLLERS, ControllerParameters, Peer};
use tidegate_control::random::Seed;
use tidegate_control::registry::names;
use tidegate_control::units::{Rate, Span};
use tidegate_lab::input::{InputError, SourceFile};
use tidegate_more::wire::PACKET;
use tidegate_net::gate::Gate;
use tidegate_net::more::{PeerConfig, Summary};

use super::directory::{read, read_directory, read_secret, write};
use crate::failure::Failure;

/// Options of a peer.
#[derive(clap::Args)]
pub struct PeerArgs {
    /// Read directory.toml, authority.key and this peer's secret from this folder
    #[arg(long)]
    pub overlay: PathBuf,
    /// Run the peer with this number
    #[arg(long)]
    pub number: u16,
    /// Limit what the peer forwards to this rate
    #[arg(long, default_value = "400 kB/s", value_parser = limit)]
    limit: Rate,
    /// Control sending rates with this controller [default: explicit-or-aimd for `send`, else explicit-or-signs]
    #[arg(long, value_parser = PossibleValuesParser::new(names(CONTROLLERS)))]
    controller: Option<String>,
    /// Set a parameter of the controller, such as timeout-factor=3.33; may be repeated
    #[arg(long = "set", value_name = "SYMBOL=VALUE")]
    set: Vec<String>,
    /// Receive datagrams at this address [default: the address in the directory]
    #[arg(long)]
    listen_udp: Option<SocketAddr>,
    /// Serve state and metrics over HTTP at this loopback address
    #[arg(long)]
    status: Option<SocketAddr>,
    /// Print the summary as one JSON object
    #[arg(long)]
    json: bool,
    /// Send to peers in private networks and on this machine
    #[arg(long)]
    pub allow_private_addresses: bool,
}

/// Parses a limit of forwarding. Below a packet per second, a relay would never forward.
pub fn limit(text: &str) -> Result<Rate, String> {
    let limit: Rate = text.parse().map_err(|error| format!("{error}"))?;
    if limit.as_bytes_per_s() < f64::from(PACKET) {
        return Err(format!("it is less than a packet of {PACKET} bytes per second"));
    }
    Ok(limit)
}

/// Options of a peer that builds paths.
#[derive(clap::Args)]
pub struct PathArgs {
    /// Send each packet over this many relays
    #[arg(long, default_value_t = PathArgs::default().hops)]
    hops: usize,
    /// Choose first relays from this many stored guards; 0 means any peer
    #[arg(long, default_value_t = PathArgs::default().guards)]
    guards: usize,
}

impl Default for PathArgs {
    fn default() -> PathArgs {
        PathArgs { hops: 3, guards: 0 }
    }
}

/// Options of a peer that sends data.
#[derive(clap::Args)]
pub struct SendArgs {
    #[command(flatten)]
    pub paths: PathArgs,
    /// Wait at least this long between two packets
    #[arg(long, default_value_t = SendArgs::default().attempt_every)]
    pub attempt_every: Span,
    /// The controller that the user does not choose. Streams have a congestion window of their own; a file lacks one.
    #[arg(skip = STREAMS)]
    pub usual: &'static str,
}

/// The usual controller of streams.
const STREAMS: &str = "explicit-or-signs";
/// The usual controller of files.
pub const FILES: &str = "explicit-or-aimd";

impl Default for SendArgs {
    fn default() -> SendArgs {
        // Short enough that the controllers set the rate.
        SendArgs { paths: PathArgs::default(), attempt_every: Span::from_micros(200), usual: STREAMS }
    }
}

/// Packets per path to a hidden server.
pub const USES: u64 = 64;

impl PeerArgs {
    /// Checks the options and reads the files of the overlay.
    pub fn settings(&self, sends: &SendArgs, uses: u64) -> Result<PeerConfig, InputError> {
        let wrong = |flag: &str, cause: String| InputError::new(flag, cause, "see `tidegate more --help`");
        if sends.attempt_every == Span::ZERO {
            return Err(wrong("--attempt-every", "must not be zero".into()));
        }
        let controller = self.controller.as_deref().unwrap_or(sends.usual);
        let mut parameters = ControllerParameters::named(controller, f64::from(PACKET))
            .map_err(|error| wrong("--controller", error.to_string()))?;
        for assignment in &self.set {
            let (symbol, value) = assignment
                .split_once('=')
                .and_then(|(symbol, value)| Some((symbol, value.parse().ok()?)))
                .ok_or_else(|| wrong("--set", format!("`{assignment}` is not SYMBOL=NUMBER")))?;
            parameters.set(symbol, value).map_err(|error| wrong("--set", error.to_string()))?;
        }
        if parameters.controller(1, Seed::root(0)).is_none() {
            return Err(wrong("--controller", format!("`{controller}` only works in the simulator")));
        }
        let authority = read(&self.overlay.join("authority.key"))?;
        let secret = read_secret(&self.overlay.join(format!("peer-{}.secret", self.number)))?;
        let directory = read_directory(&self.overlay.join("directory.toml"), &authority)?;
        let guards = self.guards(directory.peers.len() as Peer, sends.paths.guards)?;
        Ok(PeerConfig {
            directory,
            me: self.number,
            secret: secret.0,
            listen: self.listen_udp,
            memory: Some(self.overlay.clone()),
            limit: self.limit.as_bytes_per_s(),
            hops: sends.paths.hops,
            uses: uses as usize,
            parameters,
            attempt_every: sends.attempt_every,
            guards,
            status: self.status.map(|at| self.bind_status(at)).transpose()?,
            gate: Gate::allowing_private(self.allow_private_addresses),
        })
    }

    fn bind_status(&self, at: SocketAddr) -> Result<TcpListener, InputError> {
        let fail = |cause| InputError::new("--status", cause, "choose a free port of 127.0.0.1");
        if !at.ip().is_loopback() {
            return Err(fail(format!("{at}: the page is served on loopback only")));
        }
        let listener = TcpListener::bind(at).map_err(|error| fail(format!("{at}: {error}")))?;
        let bound = listener.local_addr().map_err(|error| fail(format!("{at}: {error}")))?;
        eprintln!("peer {}: status page http://{bound}/", self.number);
        Ok(listener)
    }

    /// Loads the guards from the overlay's folder; draws and stores them at first.
    fn guards(&self, peers: Peer, number: usize) -> Result<Vec<Peer>, InputError> {
        if number == 0 {
            return Ok(Vec::new());
        }
        let path = self.overlay.join(format!("peer-{}.guards", self.number));
        if !path.exists() {
            let mut others: Vec<Peer> = (0..peers).filter(|peer| *peer != self.number).collect();
            let seed =
                u64::from_le_bytes(tidegate_net::more::entropy()[..8].try_into().expect("eight bytes"));
            let mut random = Seed::root(seed).random();
            let mut drawn = Vec::new();
            while drawn.len() < number && !others.is_empty() {
                drawn.push(others.swap_remove(random.below(others.len())).to_string());
            }
            write(&path, &format!("{}\n", drawn.join(" ")), false)?;
        }
        let source = SourceFile::read(&path)?;
        let guards: Result<Vec<Peer>, _> = source.text.split_whitespace().map(str::parse::<Peer>).collect();
        let wrong = |cause| InputError::new(&source.file, cause, "remove the file to draw new guards");
        let guards = guards.map_err(|_| wrong("is not a list of peer numbers".to_owned()))?;
        let wanted = number.min(usize::from(peers) - 1);
        if guards.len() != wanted {
            return Err(wrong(format!("holds {} guards, and --guards asks for {wanted}", guards.len())));
        }
        Ok(guards)
    }
}

impl PeerArgs {
    /// Runs the peer until its role ends or the user stops it, and prints a summary. Returns the summary.
    pub fn run(
        &self,
        settings: &PeerConfig,
        part: impl FnOnce(&AtomicBool) -> std::io::Result<Summary>,
    ) -> Result<Summary, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))
            .map_err(|e| Failure::Other(e.to_string()))?;
        let summary = part(&stop).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidInput => Failure::Input(InputError::new(
                format!("peer {}", self.number),
                error.to_string(),
                "see `tidegate more --help`",
            )),
            _ => Failure::Other(format!("peer {}: {error}", self.number)),
        })?;
        if self.json {
            println!("{}", object(settings.me, &summary));
        } else {
            print!("{}", text(settings.me, &summary));
        }
        Ok(summary)
    }
}

/// The counters of a run, by what they count.
fn counts(summary: &Summary) -> [(&'static str, Vec<(&'static str, u64)>); 4] {
    let Summary { node, download, service, upload, unsent, .. } = summary;
    [
        (
            "datagrams",
            vec![
                ("forwarded", node.forwarded),
                ("delivered", node.delivered),
                ("acks-forwarded", node.acks_forwarded),
                ("acks-received", node.acks_received),
                ("refusals", node.refusals),
                ("unauthenticated", node.unauthenticated),
                ("misshapen", node.misshapen),
                ("stale", node.stale),
                ("forged", node.forged),
                ("replayed", node.replayed),
                ("senseless", node.senseless),
                ("over-limit", node.over_limit),
                ("flooding", node.flooding),
                ("memory-full", node.memory_full),
                ("unsent", *unsent),
            ],
        ),
        (
            "sent",
            vec![
                ("packets", upload.sent),
                ("acknowledged", upload.acked),
                ("timed-out", upload.timed_out),
                ("late-acks", upload.late),
                ("unknown-acks", upload.unknown),
                ("refused", upload.refused),
            ],
        ),
        (
            "received",
            vec![
                ("chunks", download.chunks),
                ("repeated", download.repeated),
                ("senseless", download.senseless),
                ("too-many", download.too_many),
            ],
        ),
        (
            "service",
            vec![
                ("answered", service.answered),
                ("unknown-path", service.unknown_path),
                ("forged", service.forged),
                ("repeated", service.repeated),
                ("too-many", service.too_many),
                ("resent", service.resent),
            ],
        ),
    ]
}

/// The summary for people: only what happened.
fn text(number: Peer, summary: &Summary) -> String {
    let mut text = String::new();
    if summary.bytes > 0 && summary.seconds > 0.0 && !summary.stopped {
        let rate = summary.bytes as f64 / summary.seconds.max(1e-9);
        text +=
            &format!("peer {number}: {} bytes in {:.3} s, {rate:.0} B/s\n", summary.bytes, summary.seconds);
    }
    for (of, counts) in counts(summary) {
        let seen = counts.iter().filter(|(_, count)| *count > 0);
        let seen: Vec<String> =
            seen.map(|(what, count)| format!("{count} {}", what.replace('-', " "))).collect();
        if !seen.is_empty() {
            text += &format!("peer {number}: {of}: {}\n", seen.join(", "));
        }
    }
    if text.is_empty() {
        text = format!("peer {number}: no datagram was sent, forwarded or received\n");
    }
    text
}

/// The summary for scripts.
fn object(number: Peer, summary: &Summary) -> Value {
    let mut object = json!({ "peer": number, "bytes": summary.bytes, "seconds": summary.seconds,
        "stopped": summary.stopped, "round_trip_s": summary.upload.round_trip });
    for (of, counts) in counts(summary) {
        let counts = counts.into_iter().map(|(what, count)| (what.replace('-', "_"), json!(count)));
        object[of] = Value::Object(counts.collect());
    }
    object
}
