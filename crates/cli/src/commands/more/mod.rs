//! `tidegate more`: an overlay of anonymous packets over per-packet random paths, on UDP.

mod demo;
pub mod directory;
mod peer;
mod streams;

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use peer::{PathArgs, PeerArgs, SendArgs, USES};
use tidegate_lab::input::InputError;
use tidegate_more::client::MOST_USES;
use tidegate_more::descriptor::MAX_PATHS;
use tidegate_net::more::{Role, run};

use crate::failure::Failure;

/// Send data anonymously over random paths of relays (see docs/more.md)
#[derive(clap::Args)]
pub struct MoreArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Keygen(directory::KeygenArgs),
    Directory(directory::MoreDirectoryArgs),
    /// Forward packets until stopped
    #[command(after_help = "Example:\n  tidegate more node --overlay overlay --number 1")]
    Node(PeerArgs),
    /// Send a file to a peer
    #[command(
        after_help = "Example:\n  tidegate more send --overlay overlay --number 0 --to 9 --file notes.txt"
    )]
    Send {
        #[command(flatten)]
        peer: PeerArgs,
        #[command(flatten)]
        sends: SendArgs,
        /// Send to the peer with this number
        #[arg(long)]
        to: u16,
        /// Send this file
        #[arg(long)]
        file: PathBuf,
    },
    /// Hide local TCP servers behind receiver paths
    #[command(
        after_help = "Example:\n  tidegate more serve --overlay overlay --number 9 --target 127.0.0.1:80 --publish web.toml"
    )]
    Serve {
        #[command(flatten)]
        peer: PeerArgs,
        #[command(flatten)]
        path: PathArgs,
        /// Hide the local server at this address; may be repeated, each with a --publish
        #[arg(long, required = true)]
        target: Vec<SocketAddr>,
        /// Write the service's descriptor to this file, and update it when receiver paths are used up
        #[arg(long, required = true)]
        publish: Vec<PathBuf>,
        /// Keep this many receiver paths published per service
        #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=MAX_PATHS as u64))]
        paths: u64,
    },
    /// Let local applications reach hidden servers through SOCKS5
    #[command(
        after_help = "Example:\n  tidegate more socks --overlay overlay --number 0 --receiver web.toml"
    )]
    Socks {
        #[command(flatten)]
        peer: PeerArgs,
        #[command(flatten)]
        sends: SendArgs,
        /// Send this many packets over each path; relays can link packets of one path
        #[arg(long, default_value_t = USES, value_parser = clap::value_parser!(u64).range(1..=MOST_USES as u64))]
        uses: u64,
        /// Reach the hidden server of this descriptor as <file name>.more; may be repeated
        #[arg(long, required = true)]
        receiver: Vec<PathBuf>,
        /// Accept SOCKS5 at this loopback address
        #[arg(long, default_value = "127.0.0.1:1080")]
        listen: SocketAddr,
    },
    Demo(demo::MoreDemoArgs),
    /// Receive a file
    #[command(after_help = "Example:\n  tidegate more receive --overlay overlay --number 9 --out notes.txt")]
    Receive {
        #[command(flatten)]
        peer: PeerArgs,
        /// Write the received data to this file
        #[arg(long)]
        out: PathBuf,
    },
}

/// Runs the subcommand.
pub fn main(arguments: MoreArgs) -> Result<ExitCode, Failure> {
    match arguments.command {
        Command::Keygen(keygen) => directory::keygen(keygen)?,
        Command::Directory(directory) => directory::main(directory)?,
        Command::Node(peer) => {
            run_peer(&peer, &SendArgs::default(), Role::Relay)?;
        }
        Command::Send { peer, sends, to, file } => {
            let fail = |error| {
                InputError::new(
                    file.display().to_string(),
                    format!("cannot be read: {error}"),
                    "check the path",
                )
            };
            let mut content = File::open(&file).map_err(fail)?;
            return run_peer(&peer, &sends, Role::Send { to, content: &mut content });
        }
        Command::Serve { peer, path, target, publish, paths } => {
            streams::serve(&peer, path, &target, &publish, paths)?;
        }
        Command::Socks { peer, sends, uses, receiver, listen } => {
            streams::socks(&peer, (&sends, uses), &receiver, listen)?;
        }
        Command::Demo(demo) => demo::main(&demo)?,
        Command::Receive { peer, out } => {
            let fail = |error| {
                InputError::new(
                    out.display().to_string(),
                    format!("cannot be written: {error}"),
                    "name a file that does not exist yet",
                )
            };
            let mut content = File::create_new(&out).map_err(fail)?;
            return run_peer(&peer, &SendArgs::default(), Role::Receive { content: &mut content });
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn run_peer(peer: &PeerArgs, sends: &SendArgs, role: Role) -> Result<ExitCode, Failure> {
    let summary = peer.run((sends, USES), |settings, stop| run(settings, role, stop))?;
    if summary.stopped {
        eprintln!("stopped before the end of the transfer");
        return Ok(ExitCode::from(130));
    }
    Ok(ExitCode::SUCCESS)
}
