//! `tidegate client`: SOCKS5 and HTTP CONNECT into an overlay of one's own.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use serde::Deserialize;
use serde_json::Value;
use tidegate_lab::input::{InputError, SourceFile};
use tidegate_net::identity::unhex;
use tidegate_net::live::client::{Event, Settings, run};
use toml::Spanned;

use super::relay;
use crate::failure::Failure;
use crate::roles::{end_with_parent, listen, on_this_thread};

/// Carry applications' connections through an overlay (see docs/live.md)
#[derive(clap::Args)]
pub struct Arguments {
    /// Where applications connect, by SOCKS5 or HTTP CONNECT
    #[arg(long, default_value = "127.0.0.1:9050")]
    socks: SocketAddr,
    /// Where the directory listens
    #[arg(long)]
    directory: SocketAddr,
    /// The key that the directory signs with, in hexadecimal: `tidegate directory` prints it
    #[arg(long)]
    authority: String,
    /// A file with the [system] table of the overlay
    #[arg(long)]
    system: Option<PathBuf>,
    /// Relays of a circuit
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=8))]
    hops: u8,
    /// These relays for every circuit, by nickname, the guard first: for experiments, since who knows the path knows who
    /// uses it
    #[arg(long, value_delimiter = ',', conflicts_with = "hops", value_name = "NAME,NAME,..")]
    path: Option<Vec<String>>,
    /// End when the process that started this one does
    #[arg(long, hide = true)]
    owned: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    system: Spanned<Value>,
}

/// Runs it.
pub fn main(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let key = unhex(&arguments.authority).ok_or_else(|| {
        let cause = "is not 32 bytes of hexadecimal";
        Failure::Input(InputError::new("--authority", cause, "`tidegate directory` prints its key"))
    })?;
    let config = match &arguments.system {
        Some(path) => {
            let source = SourceFile::read(path)?;
            let file: File = source.parse_toml()?;
            relay::links(Some(&file.system), &source)?
        }
        None => relay::links(None, &SourceFile { file: String::new(), text: String::new() })?,
    };
    let path = arguments.path.clone();
    if path.as_ref().is_some_and(|path| path.iter().enumerate().any(|(at, name)| path[..at].contains(name))) {
        let cause = "names a relay twice";
        return Err(InputError::new("--path", cause, "all relays of a path are different").into());
    }
    let hops = path.as_ref().map_or(arguments.hops.into(), Vec::len);
    let settings = Settings { directory: (arguments.directory, key), config, hops, path };
    end_with_parent(arguments.owned);
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
                Event::Built(path) => tracing::info!(path = path.join(","), "built"),
            }
            last.replace(Some(event));
        };
        run(settings, listener, Rc::new(hear)).await.map_err(Failure::other)
    })?;
    Ok(ExitCode::SUCCESS)
}
