//! `tidegate more`: anonymous packets over per-packet random paths, on UDP.

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_control::paths::Peer;
use tidegate_control::paths::parameters::Parameters;
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span};
use tidegate_lab::input::{InputError, Source};
use tidegate_more::directory::{Directory, Hex, PeerEntry, authority_key};
use tidegate_more::node::Node;
use tidegate_more::onion::PACKET;
use tidegate_net::more::{Role, Settings, Summary, run};

use crate::{Failure, more_streams};

/// Send data over per-packet random paths of relays, anonymously (see docs/parallel-paths.md)
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Draw keys for an overlay on one machine and write its signed directory
    Directory {
        /// Folder for directory.toml, authority.key and a secret per peer
        #[arg(long)]
        out: PathBuf,
        /// Number of peers
        #[arg(long)]
        peers: u16,
        /// Address of peer 0; the others have the ports that follow
        #[arg(long, default_value = "127.0.0.1:9700")]
        first: SocketAddr,
    },
    /// Forward packets until stopped
    Node(PeerArguments),
    /// Send a file to a peer
    Send {
        #[command(flatten)]
        peer: PeerArguments,
        /// Number of the receiving peer
        #[arg(long)]
        to: u16,
        /// The file
        #[arg(long)]
        file: PathBuf,
    },
    /// Hide a local TCP server behind receiver paths
    Serve {
        #[command(flatten)]
        peer: PeerArguments,
        /// The local server
        #[arg(long)]
        target: SocketAddr,
        /// The descriptor to write; it is written again as its receiver paths are used up
        #[arg(long)]
        publish: PathBuf,
        /// Receiver paths that are kept published
        #[arg(long, default_value_t = 256)]
        paths: usize,
    },
    /// Let local applications reach a hidden server by SOCKS5
    Socks {
        #[command(flatten)]
        peer: PeerArguments,
        /// The hidden server's descriptor; its host name is the file's name with `.more` for its extension
        #[arg(long)]
        receiver: PathBuf,
        /// Where applications connect
        #[arg(long, default_value = "127.0.0.1:1080")]
        listen: SocketAddr,
    },
    /// Receive a file
    Receive {
        #[command(flatten)]
        peer: PeerArguments,
        /// Where to write it
        #[arg(long)]
        out: PathBuf,
    },
}

#[derive(clap::Args)]
pub(crate) struct PeerArguments {
    /// Folder with directory.toml, authority.key and this peer's secret
    #[arg(long)]
    pub(crate) overlay: PathBuf,
    /// This peer's number
    #[arg(long)]
    pub(crate) number: u16,
    /// How much it forwards per second
    #[arg(long, default_value = "400 kB/s")]
    limit: String,
    /// Relays per packet
    #[arg(long, default_value_t = 3)]
    hops: usize,
    /// How rates are controlled: aimd, q-learning, cubic, explicit, explicit-or-aimd, ...
    #[arg(long, default_value = "explicit-or-aimd")]
    controller: String,
    /// A symbol of the controller, such as timeout_factor=3.33; may be repeated
    #[arg(long = "set", value_name = "SYMBOL=VALUE")]
    set: Vec<String>,
    /// Pause between packets while rate is left
    #[arg(long, default_value = "5 ms")]
    attempt_every: String,
    /// First relays to choose from, drawn once and kept in the overlay's folder; 0: any peer
    #[arg(long, default_value_t = 0)]
    guards: usize,
}

/// Runs the subcommand.
pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    match arguments.command {
        Command::Directory { out, peers, first } => {
            let last = u32::from(first.port()) + u32::from(peers);
            if peers < 3 || last > 65_536 {
                let cause = format!("{peers} peers from port {} on", first.port());
                let cure = "give at least 3 peers and ports up to 65535";
                return Err(InputError::new("more directory", cause, cure).into());
            }
            let address = |peer| SocketAddr::new(first.ip(), first.port() + peer);
            create(&out, &(0..peers).map(address).collect::<Vec<_>>())?;
            println!("{peers} peers in {}", out.display());
        }
        Command::Node(peer) => go(&peer, Role::Relay)?,
        Command::Send { peer, to, file } => {
            let fail =
                |error| InputError::new(file.display().to_string(), format!("cannot be read: {error}"), "");
            let mut content = File::open(&file).map_err(fail)?;
            go(&peer, Role::Send { to, content: &mut content })?;
        }
        Command::Serve { peer, target, publish, paths } => {
            more_streams::serve(&peer, target, &publish, paths)?
        }
        Command::Socks { peer, receiver, listen } => more_streams::socks(&peer, &receiver, listen)?,
        Command::Receive { peer, out } => {
            let fail =
                |error| InputError::new(out.display().to_string(), format!("cannot be written: {error}"), "");
            let mut content = File::create(&out).map_err(fail)?;
            go(&peer, Role::Receive { content: &mut content })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Draws keys for peers at these addresses and writes the signed directory.
pub(crate) fn create(out: &Path, addresses: &[SocketAddr]) -> Result<(), InputError> {
    let write = |name: String, text: String, secret: bool| write(&out.join(name), &text, secret);
    let created = std::fs::create_dir_all(out);
    created.map_err(|e| InputError::new(out.display().to_string(), format!("cannot be made: {e}"), ""))?;
    let mut entries = Vec::new();
    for (peer, address) in addresses.iter().enumerate() {
        let secret = tidegate_net::more::entropy();
        let key = Hex(Node::new(secret, 0.0, Span::ZERO, 1, None).key());
        entries.push(PeerEntry { address: *address, key });
        write(format!("peer-{peer}.secret"), format!("{}\n", Hex(secret)), true)?;
    }
    let authority = tidegate_net::more::entropy();
    write("authority.secret".into(), format!("{}\n", Hex(authority)), true)?;
    write("authority.key".into(), format!("{}\n", Hex(authority_key(&authority))), false)?;
    write("directory.toml".into(), Directory { epoch: 1, peers: entries }.write(&authority), false)?;
    Ok(())
}

impl PeerArguments {
    fn settings(&self) -> Result<Settings, InputError> {
        let wrong = |flag: &str, cause: String| InputError::new(flag, cause, "see `tidegate more --help`");
        let limit: Rate = self.limit.parse().map_err(|e| wrong("--limit", format!("{e}")))?;
        let attempt_every: Span =
            self.attempt_every.parse().map_err(|e| wrong("--attempt-every", format!("{e}")))?;
        if attempt_every == Span::ZERO {
            return Err(wrong("--attempt-every", "must not be zero".into()));
        }
        let mut parameters = Parameters::named(&self.controller, f64::from(PACKET))
            .map_err(|error| wrong("--controller", error.to_string()))?;
        for assignment in &self.set {
            let (symbol, value) = assignment
                .split_once('=')
                .and_then(|(symbol, value)| Some((symbol, value.parse().ok()?)))
                .ok_or_else(|| wrong("--set", format!("`{assignment}` is not SYMBOL=NUMBER")))?;
            parameters.set(symbol, value).map_err(|error| wrong("--set", error.to_string()))?;
        }
        let authority: Hex<32> = read(&self.overlay.join("authority.key"))?;
        let secret: Hex<32> = read(&self.overlay.join(format!("peer-{}.secret", self.number)))?;
        let source = Source::read(&self.overlay.join("directory.toml"))?;
        let directory = Directory::parse(&source.text, &authority.0)
            .map_err(|error| InputError::new(&source.file, error.to_string(), ""))?;
        Ok(Settings {
            directory,
            me: self.number,
            secret: secret.0,
            limit: limit.as_bytes_per_s(),
            hops: self.hops,
            parameters,
            attempt_every,
            guards: self.guards()?,
        })
    }

    /// The guards in the overlay's folder; drawn if there are none yet.
    fn guards(&self) -> Result<Vec<Peer>, InputError> {
        if self.guards == 0 {
            return Ok(Vec::new());
        }
        let path = self.overlay.join(format!("peer-{}.guards", self.number));
        if !path.exists() {
            let source = Source::read(&self.overlay.join("directory.toml"))?;
            let peers = source.text.matches("[[peers]]").count() as Peer;
            let mut others: Vec<Peer> = (0..peers).filter(|peer| *peer != self.number).collect();
            let seed =
                u64::from_le_bytes(tidegate_net::more::entropy()[..8].try_into().expect("eight bytes"));
            let mut random = Seed::root(seed).random();
            let mut drawn = Vec::new();
            while drawn.len() < self.guards && !others.is_empty() {
                drawn.push(others.swap_remove(random.below(others.len())).to_string());
            }
            write(&path, &format!("{}\n", drawn.join(" ")), false)?;
        }
        let source = Source::read(&path)?;
        let guards: Result<Vec<Peer>, _> = source.text.split_whitespace().map(str::parse).collect();
        guards.map_err(|_| {
            InputError::new(
                &source.file,
                "is no list of peers' numbers",
                "remove it, and guards are drawn again",
            )
        })
    }
}

/// Writes a new file; only its owner may read a secret.
pub(crate) fn write(path: &Path, text: &str, secret: bool) -> Result<(), InputError> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, if secret { 0o600 } else { 0o644 });
    options.open(path).and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| {
        let cause = format!("cannot be written: {error}");
        InputError::new(path.display().to_string(), cause, "choose a new folder")
    })
}

/// A key in a file.
pub(crate) fn read(path: &Path) -> Result<Hex<32>, InputError> {
    let source = Source::read(path)?;
    source.text.parse().map_err(|error: String| {
        InputError::new(&source.file, error, "write it with `tidegate more directory`")
    })
}

fn go(peer: &PeerArguments, role: Role) -> Result<(), Failure> {
    peer.run(|settings, stop| run(settings, role, stop))
}

impl PeerArguments {
    /// Takes part in the overlay until that is over or the user stops it, and says what happened.
    pub(crate) fn run(
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
