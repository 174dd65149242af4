//! A real tor directory authority reads our bandwidth file: a private network on loopback of three
//! authorities and two relays, whose weights in the consensus become those of the file. Runs where tor is
//! installed.

use crate::skipped;
use std::path::Path;

use tidegate_control::flashflow::bandwidth_file::{BandwidthFile, Line};
use tidegate_control::units::Rate;
use tidegate_net::private_tor::{self, Network, Relay};

/// What the file says of the relays, in kB/s.
const WEIGHTS: [u64; 2] = [4321, 87_654];

fn unix() -> u64 {
    tidegate_net::clock::unix()
}

fn bandwidth_file(relays: &[Relay]) -> String {
    let now = unix();
    let lines = relays.iter().zip(WEIGHTS).map(|(relay, weight)| Line {
        id: tidegate_net::identity::unhex(&relay.fingerprint).unwrap(),
        nickname: relay.name.clone(),
        capacity: Rate(weight * 8000),
        descriptor_limit: None,
        time: now,
        success: 1,
        failures: 0,
        conclusive: true,
        stock: false,
    });
    let file = BandwidthFile {
        latest: now,
        earliest: now,
        started: now,
        created: now,
        software_version: "0.1.0".into(),
        network_relays: 2,
        attempts: 2,
        failures: 0,
        excluded_old: 0,
        lines: lines.collect(),
    };
    file.to_text().unwrap()
}

#[test]
#[ignore = "slow: make test-all"]
fn a_directory_authority_takes_our_weights_into_the_consensus() {
    if !private_tor::is_installed(Path::new("tor")) {
        skipped::skipped("a directory authority reads the bandwidth file", "tor");
        return;
    }
    let directory = std::env::temp_dir().join(format!("tidegate-authority-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let mut network = Network::new(Path::new("tor"), &directory, 3).unwrap();
    let relays: Vec<Relay> =
        (0..WEIGHTS.len()).map(|n| network.relay(&format!("relay{n}")).unwrap()).collect();
    let weights = directory.join("v3bw");
    std::fs::write(&weights, bandwidth_file(&relays)).unwrap();
    network.start(&format!("V3BandwidthsFile {}\n", weights.display())).unwrap();
    for relay in &relays {
        network.run_relay(relay, private_tor::RELAY).unwrap();
    }
    network.wait_for(&WEIGHTS.map(|weight| format!("w Bandwidth={weight}\n"))).unwrap();
    drop(network);
    std::fs::remove_dir_all(&directory).unwrap();
}
