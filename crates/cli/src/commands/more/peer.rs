//! Options and start of a peer process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::builder::PossibleValuesParser;
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
    #[arg(long, default_value = "400 kB/s")]
    limit: String,
    /// Control sending rates with this controller
    #[arg(long, default_value = "explicit-or-signs", value_parser = PossibleValuesParser::new(names(CONTROLLERS)))]
    controller: String,
    /// Set a parameter of the controller, such as timeout-factor=3.33; may be repeated
    #[arg(long = "set", value_name = "SYMBOL=VALUE")]
    set: Vec<String>,
    /// Receive datagrams at this address [default: the address in the directory]
    #[arg(long)]
    listen_udp: Option<SocketAddr>,
    /// Serve state and metrics over HTTP at this loopback address
    #[arg(long)]
    status: Option<SocketAddr>,
    /// Send to peers in private networks and on this machine
    #[arg(long)]
    pub allow_private_addresses: bool,
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
}

impl Default for SendArgs {
    fn default() -> SendArgs {
        // Short enough that the controllers set the rate.
        SendArgs { paths: PathArgs::default(), attempt_every: Span::from_micros(200) }
    }
}

/// Packets per path to a hidden server.
pub const USES: u64 = 64;

impl PeerArgs {
    fn settings(&self, sends: &SendArgs, uses: u64) -> Result<PeerConfig, InputError> {
        let wrong = |flag: &str, cause: String| InputError::new(flag, cause, "see `tidegate more --help`");
        let limit: Rate = self.limit.parse().map_err(|e| wrong("--limit", format!("{e}")))?;
        if sends.attempt_every == Span::ZERO {
            return Err(wrong("--attempt-every", "must not be zero".into()));
        }
        let mut parameters = ControllerParameters::named(&self.controller, f64::from(PACKET))
            .map_err(|error| wrong("--controller", error.to_string()))?;
        for assignment in &self.set {
            let (symbol, value) = assignment
                .split_once('=')
                .and_then(|(symbol, value)| Some((symbol, value.parse().ok()?)))
                .ok_or_else(|| wrong("--set", format!("`{assignment}` is not SYMBOL=NUMBER")))?;
            parameters.set(symbol, value).map_err(|error| wrong("--set", error.to_string()))?;
        }
        if parameters.controller(1, Seed::root(0)).is_none() {
            return Err(wrong("--controller", format!("`{}` only works in the simulator", self.controller)));
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
            limit: limit.as_bytes_per_s(),
            hops: sends.paths.hops,
            uses: uses as usize,
            parameters,
            attempt_every: sends.attempt_every,
            guards,
            status: self.status,
            gate: Gate::allowing_private(self.allow_private_addresses),
        })
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
        (sends, uses): (&SendArgs, u64),
        part: impl FnOnce(&PeerConfig, &AtomicBool) -> std::io::Result<Summary>,
    ) -> Result<Summary, Failure> {
        let settings = self.settings(sends, uses)?;
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))
            .map_err(|e| Failure::Other(e.to_string()))?;
        let summary = part(&settings, &stop).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidInput => Failure::Input(InputError::new(
                format!("peer {}", self.number),
                error.to_string(),
                "see `tidegate more --help`",
            )),
            _ => Failure::Other(format!("peer {}: {error}", self.number)),
        })?;
        report(self.number, &summary);
        Ok(summary)
    }
}

fn report(number: u16, summary: &Summary) {
    if summary.bytes > 0 && summary.seconds > 0.0 && !summary.stopped {
        let rate = summary.bytes as f64 / summary.seconds.max(1e-9);
        println!("peer {number}: {} bytes in {:.3} s, {rate:.0} B/s", summary.bytes, summary.seconds);
    }
    println!("peer {number}: {:?}", summary.node);
    println!("peer {number}: {:?}, {:?}, {:?}", summary.upload, summary.download, summary.service);
}
