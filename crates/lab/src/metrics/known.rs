//! What is known of relays beside what they do.

use serde::{Deserialize, Serialize};
use tidegate_control::positions::Class;

use crate::network::Network;

/// What the directory says of a relay, and what only the relay knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RelayAbout {
    /// Its name in the consensus.
    pub nickname: String,
    /// The digest of its identity key in hexadecimal; empty if it has none.
    pub fingerprint: String,
    /// Its flags in the consensus, by a space apart.
    #[serde(default)]
    pub flags: String,
    /// Where it is, in two letters; empty if nobody says.
    #[serde(default)]
    pub country: String,
    /// Positions that it may take beside the middle.
    pub positions: String,
    /// Its consensus weight, in kB/s.
    pub weight: f64,
    /// Bytes per second of its descriptor; 0 if it says nothing.
    pub advertised_bytes_per_s: f64,
    /// Bytes per second that it can carry; none: unlimited.
    pub capacity_bytes_per_s: Option<f64>,
    /// Zero without relatives; else the least number of a host among its relatives and itself, plus one.
    pub family: u32,
}

impl RelayAbout {
    pub(super) fn of(network: &Network, number: u32) -> RelayAbout {
        let plan = &network.plan;
        let capacity = Some(plan.hosts[number as usize].capacity()).filter(|capacity| capacity.is_finite());
        let mut about = RelayAbout { capacity_bytes_per_s: capacity, ..RelayAbout::default() };
        if let Some(listed) = network.listed.get(&number) {
            about.nickname.clone_from(&listed.nickname);
            about.flags.clone_from(&listed.flags);
            about.country.clone_from(&listed.country);
        }
        let Some(entry) = plan.directory.relays.iter().find(|entry| entry.id.0 == number) else {
            return about;
        };
        if entry.identity != [0; 20] {
            about.fingerprint = entry.identity.iter().map(|byte| format!("{byte:02X}")).collect();
        }
        if about.nickname.is_empty() {
            about.nickname.clone_from(&entry.name);
        }
        about.positions = String::from(match entry.class {
            Class::Middle => "",
            Class::Guard => "guard",
            Class::Exit => "exit",
            Class::GuardExit => "guard,exit",
        });
        (about.weight, about.advertised_bytes_per_s) = (entry.weight, entry.advertised);
        about.family = entry.relatives.iter().map(|relative| relative.0.min(number) + 1).min().unwrap_or(0);
        about
    }
}
