//! `tidegate directory`: the directory server of a private overlay.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use tidegate_control::units::Span;
use tidegate_lab::input::InputError;
use tidegate_net::identity::{hex, unhex};
use tidegate_net::live::directory::{Admission, Authority};
use tidegate_net::live::{authority, keys};

use crate::failure::Failure;
use crate::roles::{end_with_parent, listen, on_this_thread};

/// Serve the signed relay list of a private overlay (see docs/live.md)
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tidegate directory --listen 192.0.2.1:9030 --key directory.key --token-file token"
)]
pub struct DirectoryArgs {
    /// Listen at this address
    #[arg(long, default_value = "127.0.0.1:9030")]
    listen: SocketAddr,
    /// Sign with the key in this file; create the file if it does not exist
    #[arg(long)]
    key: PathBuf,
    /// Admit the relay with this identity, as `tidegate relay --keygen` prints it; may be repeated
    #[arg(long = "allow")]
    allowed: Vec<String>,
    /// Admit relays that send the token in this file
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// Make each directory valid for this time
    #[arg(long, default_value = "10 min")]
    validity: Span,
    /// Exit when the parent process exits
    #[arg(long, hide = true)]
    owned: bool,
}

fn wrong(what: impl Into<String>, cause: impl Into<String>, cure: &str) -> Failure {
    Failure::Input(InputError::new(what, cause, cure))
}

/// Runs the subcommand.
pub fn main(arguments: &DirectoryArgs) -> Result<ExitCode, Failure> {
    let allowed = arguments.allowed.iter().map(|text| {
        unhex(text).ok_or_else(|| {
            wrong(
                "--allow",
                format!("`{text}` is not an identity"),
                "give 64 hexadecimal digits, as --keygen prints them",
            )
        })
    });
    let allowed = allowed.collect::<Result<Vec<_>, _>>()?;
    let token = match &arguments.token_file {
        Some(path) => {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path)
                .map_err(|cause| wrong(name.clone(), format!("cannot be read: {cause}"), "check the path"))?;
            let token = text.trim().to_owned();
            if token.len() < 16 || token.contains(char::is_whitespace) {
                return Err(wrong(
                    name,
                    "does not contain a token",
                    "write one word of at least 16 characters",
                ));
            }
            Some(token)
        }
        None => None,
    };
    if allowed.is_empty() && token.is_none() {
        return Err(wrong("--allow or --token-file", "is missing", "give one, so that relays can join"));
    }
    let key = keys::signing_key(&arguments.key).map_err(|why| {
        wrong(arguments.key.display().to_string(), why, "name a key file, or a file that does not exist yet")
    })?;
    let public = hex(&key.verifying_key().to_bytes());
    let seconds = (arguments.validity.0 / 1_000_000_000).max(1);
    end_with_parent(arguments.owned);
    on_this_thread(async {
        tracing::info!(authority = public, "key");
        let listener = listen(arguments.listen).await?;
        let authority = Authority::new(key, Admission { allowed, token }, seconds);
        authority::run(authority, listener, |relays| tracing::info!(relays, "relays")).await;
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}
