//! An adversary that runs relays (TorPS: `AdversaryInsertion` of `network_modifiers.py`).

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use tidegate_data::consensus::{Consensus, Flags, Identity, RouterStatus};

/// Relays that an adversary adds to the network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adversary {
    /// The adversary's share of all consensus weight, above 0 and below 1.
    pub share: f64,
    /// The part of this share that is on guards; the rest is on exits. TorPS: 5/6.
    pub on_guards: f64,
    /// Number of guards, and number of exits. TorPS: 1 of each.
    pub relays: u16,
}

impl Default for Adversary {
    fn default() -> Adversary {
        Adversary { share: 0.1, on_guards: 5.0 / 6.0, relays: 1 }
    }
}

/// Flags of the adversary's guards and exits.
const GUARD: [&str; 6] = ["Fast", "Guard", "Running", "Stable", "V2Dir", "Valid"];
const EXIT: [&str; 5] = ["Exit", "Fast", "Running", "Stable", "Valid"];

impl Adversary {
    /// Adds the adversary's relays to a consensus. Each has a /16 of its own that is not in use on the Internet.
    pub(super) fn join(&self, consensus: &mut Consensus) {
        let [guard, exit] = self.bandwidths(consensus);
        let mut network = 0;
        for (flags, bandwidth) in [(&GUARD[..], guard as u32), (&EXIT[..], exit as u32)] {
            for _ in 0..self.relays {
                network += 1;
                consensus.relays.push(RouterStatus {
                    nickname: format!("adversary{network}"),
                    identity: identity(network),
                    address: Ipv4Addr::from(u32::from(240 * 256 + network) << 16 | 1),
                    or_port: 9001,
                    flags: Flags::from_names(flags.iter().copied()),
                    version: None,
                    bandwidth,
                    unmeasured: false,
                    ports: None,
                    microdescriptor: None,
                });
            }
        }
    }

    /// The bandwidth of each of its guards, and of each of its exits.
    pub(super) fn bandwidths(&self, consensus: &Consensus) -> [f64; 2] {
        let honest: f64 = consensus.relays.iter().map(|relay| f64::from(relay.bandwidth)).sum();
        let total = honest * self.share / (1.0 - self.share);
        [self.on_guards, 1.0 - self.on_guards].map(|part| (total * part / f64::from(self.relays)).round())
    }

    /// Identities of the adversary's relays.
    pub(super) fn identities(&self) -> BTreeSet<Identity> {
        (1..=2 * self.relays).map(identity).collect()
    }
}

/// The identity of the adversary's relay of this number.
fn identity(number: u16) -> Identity {
    let mut bytes = [0xff; 20];
    bytes[18..].copy_from_slice(&number.to_be_bytes());
    Identity(bytes)
}
