//! A private network with one relay of stock tor.

use std::path::{Path, PathBuf};

use tidegate_net::private_tor::{self, Network, Relay};

/// The network, its relay once the consensus lists it, and a folder to remove after the network.
pub fn network(test: &str) -> (Network, Relay, PathBuf) {
    let directory = std::env::temp_dir().join(format!("tidegate-{test}-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let mut network = Network::new(Path::new("tor"), &directory, 1).unwrap();
    network.start("").unwrap();
    let stock = network.relay("stock").unwrap();
    network.run_relay(&stock, private_tor::RELAY).unwrap();
    network.wait_for(&["\nr stock ".into()]).unwrap();
    (network, stock, directory)
}
