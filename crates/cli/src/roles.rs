//! Shared parts of all roles on sockets: the thread, signals and listeners.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::pin;
use std::sync::mpsc;
use std::thread;

use serde_json::Value;
use tidegate_lab::input::InputError;
use tidegate_net::live::demo_page::{self, Look};
use tidegate_net::live::keys;
use tidegate_net::{os, private_file, private_tor, runtime, sockets};
use tokio::net::TcpListener;

use crate::failure::Failure;

/// Runs a role on this thread until it ends.
pub fn run_on_this_thread<T>(role: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    // If the limit cannot be raised, the role runs with fewer connections.
    let _ = os::raise_descriptors();
    let mut result = None;
    runtime::on_this_thread(pin!(async { result = Some(role.await) })).map_err(Failure::other)?;
    result.expect("the future has completed")
}

/// Runs a role on this thread until it ends or the process gets a signal to stop.
pub fn on_this_thread<T>(role: impl Future<Output = Result<T, Failure>>) -> Result<Option<T>, Failure> {
    run_on_this_thread(async {
        let mut signals = os::Signals::new().map_err(Failure::other)?;
        tokio::select! {
            result = role => result.map(Some),
            () = ended(&mut signals) => Ok(None),
        }
    })
}

/// Waits for a signal to end. SIGHUP has no effect in roles that read their configuration at the start only.
async fn ended(signals: &mut os::Signals) {
    while signals.next().await == os::Request::Reload {
        tracing::warn!(
            cure = "restart this role to change its configuration",
            "SIGHUP ignored: nothing is reread"
        );
    }
}

/// Refuses to go on without stock tor.
pub fn need_tor(tor: &Path) -> Result<(), InputError> {
    let Some((program, cause)) = private_tor::missing(tor) else { return Ok(()) };
    let cause = format!("cannot be started: {cause}");
    let cure = "install Debian's package `tor`, or name the program with --tor";
    Err(InputError::new(program.display().to_string(), cause, cure))
}

/// How to repair a key file that cannot be used. `create` says how to create a missing one.
pub fn cure_of_key_file(path: &Path, create: &str) -> String {
    match path.exists() {
        false => create.to_owned(),
        // The cause names the mode and `chmod 600`.
        true if private_file::open_mode(path).is_some() => String::new(),
        true => "restore the file from a copy, or name another one".to_owned(),
    }
}

/// What to do if a new file cannot be written.
pub fn cure_of_new_file(path: &Path) -> &'static str {
    match path.exists() {
        true => "name a file that does not exist yet",
        false => "create its folder, free space, or name a place that can be written",
    }
}

/// Reads the token of a private file. `copy_to` says who else needs it: the file is then created if it does not exist.
pub fn token(path: &Path, copy_to: Option<&'static str>) -> Result<String, Failure> {
    let wrong = |cause| {
        let cure = match private_file::open_mode(path) {
            // The cause says `chmod 600`.
            Some(_) => "",
            None if copy_to.is_some() => {
                "write one word of at least 16 characters, or name a file that does not exist yet"
            }
            None => "name the file with the server's token",
        };
        Failure::Input(InputError::new(path.display().to_string(), cause, cure))
    };
    if copy_to.is_none() && !path.exists() {
        return Err(wrong("does not exist".to_owned()));
    }
    let (token, is_new) = keys::join_token(path).map_err(wrong)?;
    if is_new {
        let cure = copy_to.unwrap_or_default();
        tracing::info!(file = %path.display(), cure, "token created");
    }
    Ok(token)
}

/// Listens at an address and logs it.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    listen_at(address, false)
}

/// Listens at all addresses and logs them.
pub fn listen_all(addresses: &[SocketAddr]) -> Result<Vec<TcpListener>, Failure> {
    addresses.iter().map(|address| listen_at(*address, addresses.len() > 1)).collect()
}

fn listen_at(address: SocketAddr, apart: bool) -> Result<TcpListener, Failure> {
    let listener =
        sockets::listen(address, apart).map_err(|cause| cannot_listen(address.to_string(), &cause))?;
    let address = listener.local_addr().map_err(Failure::other)?;
    tracing::info!(%address, "listening");
    Ok(listener)
}

/// The error of an address that cannot be listened on: the operator chose it.
pub fn cannot_listen(address: String, cause: &std::io::Error) -> Failure {
    let cure = "stop the program that uses the port, or choose another address of this machine";
    InputError::new(address, format!("cannot listen: {cause}"), cure).into()
}

/// Refuses an option's address off loopback.
pub fn check_loopback(option: &str, address: SocketAddr) -> Result<(), Failure> {
    if address.ip().is_loopback() {
        return Ok(());
    }
    let cause = format!("{address} is not on loopback");
    Err(InputError::new(option, cause, "give 127.0.0.1:PORT").into())
}

/// Serves the page of a demo from a new thread; returns its address.
pub fn serve_page(
    at: SocketAddr,
    look: Look,
    about: impl Fn() -> Value + Send + 'static,
    relays: Vec<SocketAddr>,
) -> Result<SocketAddr, Failure> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        run_on_this_thread(async {
            let failed = |cause| Failure::other(format!("cannot serve the page on {at}: {cause}"));
            let bound = async {
                let listener = TcpListener::bind(at).await?;
                std::io::Result::Ok((listener.local_addr()?, listener))
            };
            match bound.await.map_err(failed) {
                Ok((address, listener)) => {
                    // The demo may have ended; then the address is not needed.
                    let _ = tell.send(Ok(address));
                    demo_page::run(listener, look, about, &relays).await.map_err(Failure::other)
                }
                Err(failure) => {
                    let _ = tell.send(Err(failure));
                    Ok(())
                }
            }
        })
    });
    told.recv().map_err(Failure::other)?
}

/// Returns whether an address is loopback, private or link-local.
pub fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}
