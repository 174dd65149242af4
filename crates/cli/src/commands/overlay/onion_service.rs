//! `tidegate overlay tornet --onion-service`: a stock onion service and a stock client meet over Tidegate relays.

use std::fs;
use std::net::SocketAddr;

use tidegate_net::private_tor::Network;

use super::download::{Download, Origin, fetch, fetch_over};
use crate::failure::Failure;
use crate::stage::Stage;

/// Tidegate relays of the network: a circuit of a client or a service has up to five different ones.
pub const RELAYS: usize = 6;
/// The service's port.
const PORT: u16 = 80;
/// Name of the service's tor.
pub const NAME: &str = "service";

/// Options of the authority: it does not call itself a directory of onion services.
pub fn authority_options(relays: &[String]) -> String {
    format!("TestingDirAuthVoteHSDir {}\nTestingDirAuthVoteHSDirIsStrict 1\n", relays.join(","))
}

/// Options of the client and the service: circuits avoid the authority, the only stock relay. With StrictNodes they could
/// not fetch the first consensus from it.
pub const ONLY_OURS: &str = "ExcludeNodes authority0\n";

/// Option of the service. At this age, 10 min if unset, tor closes a rendezvous circuit between two streams, even if the
/// client has just begun another one, which then breaks. No relay could prevent that.
const KEEPS_CIRCUITS: &str = "MaxCircuitDirtiness 30 days\n";

/// Starts the service in front of a file server. Returns its address.
pub fn start(stage: &Stage, network: &mut Network, file: SocketAddr) -> Result<String, Failure> {
    let directory = network.files_of(NAME);
    let (place, control) = (directory.join("onion"), directory.join("control"));
    let options = format!(
        "SocksPort 0\nControlSocket {}\nCookieAuthentication 1\n{ONLY_OURS}{KEEPS_CIRCUITS}HiddenServiceDir {}\n\
         HiddenServicePort {PORT} {file}\n",
        control.display(),
        place.display()
    );
    network.run(NAME, &options).map_err(Failure::other)?;
    stage.wait_for("the onion service's name", || {
        let name = fs::read_to_string(place.join("hostname")).ok()?;
        Some(name.trim().to_owned()).filter(|name| name.ends_with(".onion"))
    })
}

/// The service as a client names it.
pub fn origin(onion: &str) -> Origin {
    Origin::Named(onion.to_owned(), PORT)
}

/// Downloads from the service, once it can be reached.
pub fn download(
    stage: &Stage,
    socks: SocketAddr,
    onion: &str,
    streams: (u16, u32),
    bytes: u64,
) -> Result<Download, Failure> {
    let origin = origin(onion);
    // Until the service has published its descriptor, the client's tor refuses.
    stage.wait_for("an onion service that can be reached", || fetch(0, socks, origin.clone(), 1).ok())?;
    fetch_over(streams, socks, origin, bytes)
}
