//! A peer of an overlay as a process: its settings from arguments, and taking part.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_control::paths::Peer;
use tidegate_control::paths::parameters::{ControllerParameters, renamed};
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span};
use tidegate_lab::input::{InputError, SourceFile};
use tidegate_more::wire::PACKET;
use tidegate_net::more::{Settings, Summary};

use super::directory::{read, read_directory, read_secret, write};
use crate::console::notice;
use crate::failure::Failure;

/// Who takes part, and how.
#[derive(clap::Args)]
pub struct PeerArguments {
    /// Folder with directory.toml, authority.key and this peer's secret
    #[arg(long)]
    pub overlay: PathBuf,
    /// This peer's number
    #[arg(long)]
    pub number: u16,
    /// How much it forwards per second
    #[arg(long, default_value = "400 kB/s")]
    limit: String,
    /// Relays per packet
    #[arg(long, default_value_t = 3)]
    hops: usize,
    /// How rates are controlled: aimd, q-learning, cubic, explicit, explicit-or-signs, ...
    #[arg(long, default_value = "explicit-or-signs")]
    controller: String,
    /// A symbol of the controller, such as timeout-factor=3.33; may be repeated
    #[arg(long = "set", value_name = "SYMBOL=VALUE")]
    set: Vec<String>,
    /// Shortest pause between packets while rate is left
    #[arg(long, default_value = ATTEMPT_EVERY)]
    pub attempt_every: String,
    /// Packets per path to hidden servers: 1 gives each packet relays of its own; more are cheaper, and relays can
    /// tell that they belong together
    #[arg(long, default_value_t = 64)]
    uses: usize,
    /// Where this peer receives datagrams, if not at its address of the directory
    #[arg(long)]
    listen_udp: Option<SocketAddr>,
    /// First relays to choose from, drawn once and kept in the overlay's folder; 0: any peer
    #[arg(long, default_value_t = 0)]
    guards: usize,
    /// Where this peer shows its state and metrics over HTTP: an address of loopback
    #[arg(long)]
    status: Option<SocketAddr>,
}

/// Thousands of packets a second: the controllers decide.
pub const ATTEMPT_EVERY: &str = "200 us";

impl PeerArguments {
    fn settings(&self) -> Result<Settings, InputError> {
        let wrong = |flag: &str, cause: String| InputError::new(flag, cause, "see `tidegate more --help`");
        let limit: Rate = self.limit.parse().map_err(|e| wrong("--limit", format!("{e}")))?;
        let attempt_every: Span =
            self.attempt_every.parse().map_err(|e| wrong("--attempt-every", format!("{e}")))?;
        if attempt_every == Span::ZERO {
            return Err(wrong("--attempt-every", "must not be zero".into()));
        }
        let mut parameters = ControllerParameters::named(&self.controller, f64::from(PACKET))
            .map_err(|error| wrong("--controller", error.to_string()))?;
        for assignment in &self.set {
            let (symbol, value) = assignment
                .split_once('=')
                .and_then(|(symbol, value)| Some((symbol, value.parse().ok()?)))
                .ok_or_else(|| wrong("--set", format!("`{assignment}` is not SYMBOL=NUMBER")))?;
            renamed(symbol).iter().for_each(|text| notice(text));
            parameters.set(symbol, value).map_err(|error| wrong("--set", error.to_string()))?;
        }
        let authority = read(&self.overlay.join("authority.key"))?;
        let secret = read_secret(&self.overlay.join(format!("peer-{}.secret", self.number)))?;
        let directory = read_directory(&self.overlay.join("directory.toml"), &authority)?;
        let guards = self.guards(directory.peers.len() as Peer)?;
        Ok(Settings {
            directory,
            me: self.number,
            secret: secret.0,
            listen: self.listen_udp,
            memory: Some(self.overlay.clone()),
            limit: limit.as_bytes_per_s(),
            hops: self.hops,
            uses: self.uses,
            parameters,
            attempt_every,
            guards,
            status: self.status,
        })
    }

    /// The guards in the overlay's folder; drawn if there are none yet.
    fn guards(&self, peers: Peer) -> Result<Vec<Peer>, InputError> {
        if self.guards == 0 {
            return Ok(Vec::new());
        }
        let path = self.overlay.join(format!("peer-{}.guards", self.number));
        if !path.exists() {
            let mut others: Vec<Peer> = (0..peers).filter(|peer| *peer != self.number).collect();
            let seed =
                u64::from_le_bytes(tidegate_net::more_peer::entropy()[..8].try_into().expect("eight bytes"));
            let mut random = Seed::root(seed).random();
            let mut drawn = Vec::new();
            while drawn.len() < self.guards && !others.is_empty() {
                drawn.push(others.swap_remove(random.below(others.len())).to_string());
            }
            write(&path, &format!("{}\n", drawn.join(" ")), false)?;
        }
        let source = SourceFile::read(&path)?;
        let guards: Result<Vec<Peer>, _> = source.text.split_whitespace().map(str::parse::<Peer>).collect();
        guards.map_err(|_| {
            InputError::new(
                &source.file,
                "is no list of peers' numbers",
                "remove it, and guards are drawn again",
            )
        })
    }
}

impl PeerArguments {
    /// Takes part in the overlay until that is over or the user stops it, and says what happened.
    pub fn run(
        &self,
        part: impl FnOnce(&Settings, &AtomicBool) -> std::io::Result<Summary>,
    ) -> Result<(), Failure> {
        let settings = self.settings()?;
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))
            .map_err(|e| Failure::Other(e.to_string()))?;
        let summary = part(&settings, &stop).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidInput => {
                Failure::Input(InputError::new(format!("peer {}", self.number), error.to_string(), ""))
            }
            _ => Failure::Other(format!("peer {}: {error}", self.number)),
        })?;
        report(self.number, &summary);
        Ok(())
    }
}

fn report(number: u16, summary: &Summary) {
    if summary.bytes > 0 && summary.seconds > 0.0 {
        let rate = summary.bytes as f64 / summary.seconds.max(1e-9);
        println!("peer {number}: {} bytes in {:.3} s, {rate:.0} B/s", summary.bytes, summary.seconds);
    }
    println!("peer {number}: {:?}", summary.node);
    println!("peer {number}: {:?}, {:?}, {:?}", summary.upload, summary.download, summary.service);
}
