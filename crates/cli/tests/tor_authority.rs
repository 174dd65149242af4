//! A real tor directory authority reads our bandwidth file: a private network on loopback of three
//! authorities and two relays, whose weights in the consensus become those of the file. Runs where tor is
//! installed.

mod private_tor;
#[path = "../../../tests/skipped.rs"]
mod skipped;

use private_tor::{Network, Node};
use tidegate_control::flashflow::bandwidth_file::{BandwidthFile, Line};
use tidegate_control::units::Rate;

/// What the file says of the relays, in kB/s.
const WEIGHTS: [u64; 2] = [4321, 87_654];

fn unix() -> u64 {
    tidegate_net::clock::unix()
}

fn bandwidth_file(relays: &[Node]) -> String {
    let now = unix();
    let lines = relays.iter().zip(WEIGHTS).map(|(relay, weight)| Line {
        id: tidegate_net::identity::unhex(&relay.fingerprint).unwrap(),
        ed25519: None,
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
fn a_directory_authority_takes_our_weights_into_the_consensus() {
    if !private_tor::is_installed() {
        skipped::skipped("a directory authority reads the bandwidth file", "tor");
        return;
    }
    let mut network = Network::new("authority", "");
    let relays: Vec<Node> = (0..WEIGHTS.len()).map(|n| network.relay(&format!("relay{n}"))).collect();
    std::fs::write(network.v3bw(), bandwidth_file(&relays)).unwrap();
    network.start();
    for relay in &relays {
        network.run(relay, private_tor::RELAY);
    }
    network.wait_for(&WEIGHTS.map(|weight| format!("w Bandwidth={weight}\n")));
}
