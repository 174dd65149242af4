//! Static properties of relays, for the tables.

use serde::{Deserialize, Serialize};
use tidegate_control::positions::Class;

use crate::network::Network;

/// A relay's directory entry and its true capacity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RelayAbout {
    /// Its nickname in the consensus.
    pub nickname: String,
    /// Digest of its identity key in hexadecimal; empty without one.
    pub fingerprint: String,
    /// Its flags in the consensus, separated by spaces.
    #[serde(default)]
    pub flags: String,
    /// Its country code; empty if unknown.
    #[serde(default)]
    pub country: String,
    /// Positions that it may take in addition to middle.
    pub positions: String,
    /// Its consensus weight, in kB/s.
    pub weight: f64,
    /// Advertised bytes per second in its descriptor; 0 without one.
    pub advertised_bytes_per_s: f64,
    /// Its capacity in bytes per second; `None` if unlimited.
    pub capacity_bytes_per_s: Option<f64>,
    /// Identifier of its family: the smallest host number of its members plus one; zero without a family.
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
        // Generated relays have an all-zero identity.
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
