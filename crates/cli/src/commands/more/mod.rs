//! `tidegate more`: an overlay of anonymous packets over per-packet random paths, on UDP.

mod demo;
pub mod directory;
mod peer;
mod streams;

use std::fs::File;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use peer::{FILES, PathArgs, PeerArgs, SendArgs, USES};
use tidegate_lab::input::InputError;
use tidegate_more::client::MOST_USES;
use tidegate_more::descriptor::MAX_PATHS;
use tidegate_net::more::{Role, Summary, run};

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
            // Reading a folder fails only after the peer has started.
            if content.metadata().map_err(fail)?.is_dir() {
                return Err(fail(ErrorKind::IsADirectory.into()).into());
            }
            let sends = SendArgs { usual: FILES, ..sends };
            return run_peer(&peer, &sends, Role::Send { to, content: &mut content });
        }
        Command::Serve { peer, path, target, publish, paths } => {
            streams::serve(&peer, path, &target, &publish, paths)?;
        }
        Command::Socks { peer, sends, uses, receiver, listen } => {
            streams::socks(&peer, (&sends, uses), &receiver, listen)?;
        }
        Command::Demo(demo) => demo::main(&demo)?,
        Command::Receive { peer, out } => return receive(&peer, &out),
    }
    Ok(ExitCode::SUCCESS)
}

/// Receives a file. If nothing arrives, no empty file stays that would stop the next try.
fn receive(peer: &PeerArgs, out: &Path) -> Result<ExitCode, Failure> {
    let settings = peer.settings(&SendArgs::default(), USES)?;
    let fail = |error| {
        let cause = format!("cannot be written: {error}");
        InputError::new(out.display().to_string(), cause, "name a file that does not exist yet")
    };
    let mut content = File::create_new(out).map_err(fail)?;
    let ended = peer.run(&settings, |stop| run(&settings, Role::Receive { content: &mut content }, stop));
    let is_complete = ended.as_ref().is_ok_and(|summary| !summary.stopped);
    if !is_complete && content.metadata().is_ok_and(|data| data.len() == 0) {
        // The file is empty, so that one that stays loses nothing.
        let _ = std::fs::remove_file(out);
    }
    ended.map(|summary| exit_code(&summary))
}

fn run_peer(peer: &PeerArgs, sends: &SendArgs, role: Role) -> Result<ExitCode, Failure> {
    let settings = peer.settings(sends, USES)?;
    Ok(exit_code(&peer.run(&settings, |stop| run(&settings, role, stop))?))
}

fn exit_code(summary: &Summary) -> ExitCode {
    if summary.stopped {
        eprintln!("stopped before the end of the transfer");
        return ExitCode::from(130);
    }
    ExitCode::SUCCESS
}
