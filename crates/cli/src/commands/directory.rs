//! `tidegate directory`: the directory of an overlay of one's own.

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

/// List the relays of an overlay of one's own, and sign the list (see docs/live.md)
#[derive(clap::Args)]
pub struct Arguments {
    /// Where relays and clients ask
    #[arg(long, default_value = "127.0.0.1:9030")]
    listen: SocketAddr,
    /// The file of the signing key; it is made if it does not exist
    #[arg(long)]
    key: PathBuf,
    /// A relay that may join, by its identity (`tidegate relay --keygen` prints it)
    #[arg(long = "allow")]
    allowed: Vec<String>,
    /// A file with a token; whoever says it may join
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// How long a directory is valid
    #[arg(long, default_value = "10 min")]
    validity: Span,
    /// End when the process that started this one does
    #[arg(long, hide = true)]
    owned: bool,
}

fn wrong(what: impl Into<String>, cause: impl Into<String>, cure: &str) -> Failure {
    Failure::Input(InputError::new(what, cause, cure))
}

/// Runs it.
pub fn main(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let allowed = arguments.allowed.iter().map(|text| {
        unhex(text).ok_or_else(|| {
            wrong("--allow", format!("`{text}` is no identity"), "64 hexadecimal digits, as --keygen prints")
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
                return Err(wrong(name, "holds no token", "one word of at least 16 characters"));
            }
            Some(token)
        }
        None => None,
    };
    if allowed.is_empty() && token.is_none() {
        return Err(wrong("--allow or --token-file", "is missing", "nobody could join"));
    }
    let key = keys::signing_key(&arguments.key).map_err(|why| {
        wrong(arguments.key.display().to_string(), why, "or name a file that does not exist")
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
