//! Clients of stock tor in a private network.

use std::net::SocketAddr;

use tidegate_net::ports;
use tidegate_net::private_tor::Network;

use crate::failure::Failure;
use crate::stage::Stage;

/// Candidate relays for guard, middle and exit.
pub type Hops<'a> = [&'a [String]; 3];

/// Starts a client with these paths, waits until it knows the network, and returns its SOCKS port.
pub fn start_client(
    stage: &Stage,
    network: &mut Network,
    name: &str,
    hops: Option<Hops<'_>>,
    options: &str,
) -> Result<SocketAddr, Failure> {
    let socks = ports::free().map_err(Failure::other)?;
    let control = network.files_of(name).join("control");
    let mut options = format!(
        "SocksPort {socks}\nControlSocket {}\nCookieAuthentication 1\nClientOnly 1\n{options}",
        control.display()
    );
    for (option, list) in ["EntryNodes", "MiddleNodes", "ExitNodes"].iter().zip(hops.into_iter().flatten()) {
        options.push_str(&format!("{option} {}\n", list.join(",")));
    }
    network.run(name, &options).map_err(Failure::other)?;
    stage.wait_for("a client that knows the network", || {
        network.log(name).contains("Bootstrapped 100%").then_some(())
    })?;
    Ok(socks)
}
