//! `tidegate directory`: the directory server of a private overlay.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tidegate_control::units::Span;
use tidegate_lab::input::InputError;
use tidegate_net::gate::Gate;
use tidegate_net::identity::{hex, unhex};
use tidegate_net::live::authority::{Event, RelayFile};
use tidegate_net::live::directory::{Admission, Authority, Change, Departure, Happened};
use tidegate_net::live::weights::Source;
use tidegate_net::live::{authority, keys};

use crate::failure::Failure;
use crate::roles::{self, cure_of_key_file, listen, on_this_thread};

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
    /// Admit relays that send the token in this file; create the file if it does not exist
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// Admit at most this many relays of one address (IPv6: one /48) with the token; tor's authorities admit 8
    #[arg(long, default_value = "8")]
    relays_per_address: NonZeroUsize,
    /// Admit relays in private networks and on this machine
    #[arg(long)]
    allow_private_addresses: bool,
    /// Publish the measured weights of this bandwidth file of FlashFlow, also after it changes
    #[arg(long, value_name = "FILE")]
    bandwidth_file: Option<PathBuf>,
    /// Publish the measured weights of FlashFlow's coordinator with this status page
    #[arg(long, value_name = "ADDRESS", conflicts_with = "bandwidth_file")]
    coordinator: Option<SocketAddr>,
    /// Make each directory valid for this time
    #[arg(long, default_value = "10 min")]
    validity: Span,
}

/// Least validity of a directory, so that a relay can announce itself twice.
const LEAST_VALIDITY: Span = Span::from_secs(60);

/// The file of the listed relays, beside the key.
fn relay_file(key: &Path) -> PathBuf {
    let mut path = key.as_os_str().to_owned();
    path.push(".relays");
    path.into()
}

fn wrong(what: impl Into<String>, cause: impl Into<String>, cure: &str) -> Failure {
    Failure::Input(InputError::new(what, cause, cure))
}

/// Runs the subcommand.
pub fn main(arguments: &DirectoryArgs) -> Result<ExitCode, Failure> {
    if arguments.validity < LEAST_VALIDITY {
        let cause = format!("`{}` is too short: relays announce themselves every 30 s", arguments.validity);
        return Err(wrong("--validity", cause, "give 1min or more"));
    }
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
    let token = arguments.token_file.as_deref();
    let token = token.map(|path| roles::token(path, Some("copy it to `token` of the relays"))).transpose()?;
    if allowed.is_empty() && token.is_none() {
        return Err(wrong("--allow or --token-file", "is missing", "give one, so that relays can join"));
    }
    let file = RelayFile { path: relay_file(&arguments.key), is_first_run: !arguments.key.exists() };
    let key = keys::signing_key(&arguments.key).map_err(|why| {
        let cure = cure_of_key_file(&arguments.key, "name a file in a folder that this user can write to");
        wrong(arguments.key.display().to_string(), why, &cure)
    })?;
    let public = hex(&key.verifying_key().to_bytes());
    let seconds = arguments.validity.0 / 1_000_000_000;
    on_this_thread(async {
        tracing::info!(authority = public, "key");
        let listener = listen(arguments.listen).await?;
        let per_address = arguments.relays_per_address.get();
        let gate = Gate::allowing_private(arguments.allow_private_addresses);
        let admission = Admission { allowed, token, per_address, gate };
        let authority = Authority::new(key, admission, seconds);
        let source = arguments.bandwidth_file.clone().map(Source::File);
        let source = source.or(arguments.coordinator.map(Source::Coordinator));
        authority::run(authority, Some(file), source, listener, |event| match event {
            Event::Changed(change) => log_change(&change),
            Event::FurtherChanged { joined, left, moved, relays } => {
                tracing::info!(joined, left, moved, relays, "further relays joined, left or moved");
            }
            Event::Measured { relays, listed, of } => tracing::info!(relays, listed, of, "measured"),
            Event::Unmatched { relays, of } => tracing::warn!(
                relays,
                of,
                cause = "the bandwidth file names no relay of this directory",
                cure = "set `id` of each [[relay]] of the coordinator to the `fingerprint` that `tidegate relay --keygen` prints",
                "not measured"
            ),
            Event::Unread(cause) => tracing::warn!(cause, "not measured"),
            Event::Restored(relays) => tracing::info!(relays, "restored"),
            Event::NotRestored(cause) => tracing::warn!(
                cause,
                cure = "wait 35 s: relays announce themselves, and the file is replaced; until then clients keep their list",
                "not restored"
            ),
            Event::NotStored(cause) => tracing::warn!(
                cause,
                cure = "make the folder of --key writable, or free space; without the file, a restart takes 35 s",
                "not stored"
            ),
        })
        .await;
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Logs a relay that joined, left or changed.
fn log_change(Change { nickname, fingerprint, what, relays }: &Change) {
    let fingerprint = hex(fingerprint);
    let why = match what {
        Happened::Joined => return tracing::info!(nickname, fingerprint, relays, "joined"),
        Happened::Moved { from, to } => {
            return tracing::info!(nickname, fingerprint, from, to, relays, "moved");
        }
        Happened::Twins { one, other } => {
            let cause =
                format!("two relays with one key file announce themselves in turn: {one}, and {other}");
            let cure = "create a key file for each relay with `tidegate relay --keygen FILE`";
            return tracing::warn!(nickname, fingerprint, cause, cure, relays, "same keys");
        }
        Happened::Left(Departure::Withdrawn) => "the relay withdrew its entry",
        Happened::Left(Departure::Silent) => "the relay sent nothing for the validity of a directory",
        Happened::Left(Departure::Displaced) => {
            "the directory was full and made room for a relay of another network"
        }
    };
    tracing::info!(nickname, fingerprint, why, relays, "left");
}
