//! `tidegate more`: anonymous packets over per-packet random paths, on UDP.

mod demo;
pub mod directory;
mod peer;
mod streams;

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use peer::PeerArguments;
use tidegate_lab::input::InputError;
use tidegate_net::more::{Role, run};

use crate::failure::Failure;

/// Send data over per-packet random paths of relays, anonymously (see docs/parallel-paths.md)
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Keygen(directory::Keygen),
    Directory(directory::Arguments),
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
    /// Hide local TCP servers behind receiver paths
    Serve {
        #[command(flatten)]
        peer: PeerArguments,
        /// A local server; may be repeated, with a `--publish` each
        #[arg(long, required = true)]
        target: Vec<SocketAddr>,
        /// The descriptor to write for it; it is written again as its receiver paths are used up
        #[arg(long, required = true)]
        publish: Vec<PathBuf>,
        /// Receiver paths that are kept published for each
        #[arg(long, default_value_t = 256)]
        paths: usize,
    },
    /// Let local applications reach hidden servers by SOCKS5
    Socks {
        #[command(flatten)]
        peer: PeerArguments,
        /// A hidden server's descriptor; its host name is the file's name with `.more` for its extension. May be repeated
        #[arg(long, required = true)]
        receiver: Vec<PathBuf>,
        /// Where applications connect
        #[arg(long, default_value = "127.0.0.1:1080")]
        listen: SocketAddr,
    },
    Demo(demo::Arguments),
    /// Receive a file
    Receive {
        #[command(flatten)]
        peer: PeerArguments,
        /// Where to write it
        #[arg(long)]
        out: PathBuf,
    },
}

/// Runs the subcommand.
pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    match arguments.command {
        Command::Keygen(keygen) => directory::keygen(keygen)?,
        Command::Directory(directory) => directory::main(directory)?,
        Command::Node(peer) => go(&peer, Role::Relay)?,
        Command::Send { peer, to, file } => {
            let fail =
                |error| InputError::new(file.display().to_string(), format!("cannot be read: {error}"), "");
            let mut content = File::open(&file).map_err(fail)?;
            go(&peer, Role::Send { to, content: &mut content })?;
        }
        Command::Serve { peer, target, publish, paths } => {
            streams::serve(&peer, &target, &publish, paths)?;
        }
        Command::Socks { peer, receiver, listen } => streams::socks(&peer, &receiver, listen)?,
        Command::Demo(demo) => demo::main(&demo)?,
        Command::Receive { peer, out } => {
            let fail =
                |error| InputError::new(out.display().to_string(), format!("cannot be written: {error}"), "");
            let mut content = File::create(&out).map_err(fail)?;
            go(&peer, Role::Receive { content: &mut content })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn go(peer: &PeerArguments, role: Role) -> Result<(), Failure> {
    peer.run(|settings, stop| run(settings, role, stop))
}
