//! `tidegate client`: a SOCKS and HTTP CONNECT proxy into a private overlay.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use serde::Deserialize;
use serde_json::Value;
use tidegate_lab::input::{InputError, SourceFile};
use tidegate_net::gate::Gate;
use tidegate_net::identity::unhex;
use tidegate_net::live::client::{ClientConfig, Event, run};
use tidegate_net::live::directory::is_nickname;
use tidegate_proto::combinations::{Neighbours, OnSockets};
use tidegate_proto::switching::Form;
use toml::Spanned;

use super::relay;
use crate::failure::Failure;
use crate::roles::{listen, on_this_thread};

/// Run a proxy that carries connections through an overlay (see docs/live.md)
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate client --directory 192.0.2.1:9030 --authority KEY")]
pub struct ClientArgs {
    /// Accept SOCKS (4, 4a and 5) and HTTP CONNECT at this address
    #[arg(long, default_value = "127.0.0.1:9050")]
    socks: SocketAddr,
    /// Let other machines use the proxy; without it, --socks must be a loopback address
    #[arg(long)]
    allow_remote_applications: bool,
    /// Ask the directory at this address
    #[arg(long)]
    directory: SocketAddr,
    /// Trust this signing key of the directory (hexadecimal, as `tidegate directory` prints it)
    #[arg(long)]
    authority: String,
    /// Read the overlay's [system] table from this file
    #[arg(long)]
    system: Option<PathBuf>,
    /// Build circuits of this many relays
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=8))]
    hops: u8,
    /// Use these relays for every circuit, by nickname, guard first; only for experiments, as it removes anonymity
    #[arg(long, value_delimiter = ',', conflicts_with = "hops", value_name = "NAME,NAME,..")]
    path: Option<Vec<String>>,
    /// Use relays in private networks and on this machine
    #[arg(long)]
    allow_private_addresses: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SystemFile {
    system: Spanned<Value>,
}

/// Runs the subcommand.
pub fn main(arguments: &ClientArgs) -> Result<ExitCode, Failure> {
    let key = unhex(&arguments.authority).ok_or_else(|| {
        let cause = "is not a key of 32 bytes in hexadecimal";
        Failure::Input(InputError::new("--authority", cause, "copy the key that `tidegate directory` prints"))
    })?;
    if !arguments.socks.ip().is_loopback() && !arguments.allow_remote_applications {
        let cause = format!("{} lets other machines use this proxy", arguments.socks);
        let cure = "listen at 127.0.0.1, or pass --allow-remote-applications as well";
        return Err(InputError::new("--socks", cause, cure).into());
    }
    if arguments.socks.ip().is_loopback() && arguments.allow_remote_applications {
        let cause = format!("has no effect: {} is open to this machine alone", arguments.socks);
        let cure = "leave it out, or let --socks listen at another address";
        return Err(InputError::new("--allow-remote-applications", cause, cure).into());
    }
    if arguments.directory.port() == 0 {
        let cause = format!("{} has port 0", arguments.directory);
        return Err(
            InputError::new("--directory", cause, "give the port that the directory listens at").into()
        );
    }
    let at = OnSockets { neighbours: Neighbours::Alike, asks_kernel: false };
    let config = match &arguments.system {
        Some(path) => {
            let source = SourceFile::read(path)?;
            let file: SystemFile = source.parse_toml("docs/live.md shows a [system] table")?;
            relay::links(Some(&file.system), at, &source)?
        }
        None => {
            let none = SourceFile { file: String::new(), text: String::new() };
            relay::links(None, at, &none)?
        }
    };
    let names = arguments.path.iter().flatten().map(|name| name.trim().to_owned());
    let path = arguments.path.is_some().then(|| names.collect::<Vec<_>>());
    if let Some(name) = path.iter().flatten().find(|name| !is_nickname(name)) {
        let cause = format!("`{}` is not the nickname of a relay", name.escape_debug());
        let cure = "give names of 1 to 19 letters and digits, with commas between them";
        return Err(InputError::new("--path", cause, cure).into());
    }
    if path.as_ref().is_some_and(|path| path.iter().enumerate().any(|(at, name)| path[..at].contains(name))) {
        let cause = "names a relay twice";
        return Err(InputError::new("--path", cause, "name each relay once").into());
    }
    let moves = config.switching.is_some_and(|rules| rules.form == Form::Circuit);
    if moves && (path.is_some() || arguments.hops != 3) {
        let option = if path.is_some() { "--path" } else { "--hops" };
        let cause = "with `switching = \"circuit\"`: the client moves circuits of three relays to another middle of its choice";
        return Err(InputError::new(option, cause, "leave it out, or use switching = \"connection\"").into());
    }
    let hops = path.as_ref().map_or(arguments.hops.into(), Vec::len);
    let gate = Gate::allowing_private(arguments.allow_private_addresses);
    let settings = ClientConfig { directory: (arguments.directory, key), config, hops, path, gate };
    on_this_thread(async {
        let listener = listen(arguments.socks).await?;
        let last = RefCell::new(None);
        let hear = move |event: Event| {
            if last.borrow().as_ref() == Some(&event) {
                return;
            }
            match &event {
                Event::Directory(relays) => tracing::info!(relays, "directory"),
                Event::NoDirectory(why) => tracing::warn!(cause = why, "no directory"),
                Event::Unlisted(names) => tracing::warn!(
                    cause = format!("the directory lists no usable relay named {}", names.join(", ")),
                    cure = "correct --path, or start these relays; until then requests fail",
                    "no path"
                ),
                Event::Built(path) => tracing::info!(path = path.join(","), "built"),
                Event::Moved(moves) => tracing::info!(moves, "moved"),
                // The role limits how often it comes.
                Event::Failed(cause) => return tracing::warn!(cause, "request failed"),
            }
            last.replace(Some(event));
        };
        run(settings, listener, Rc::new(hear)).await.map_err(Failure::other)
    })?;
    Ok(ExitCode::SUCCESS)
}
