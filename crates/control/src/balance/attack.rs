//! Attacks on load balancing: relays that win more weight than their capacity deserves.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Seen;
use crate::keys::Parameters;

/// How the attacker's relays cheat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Trick {
    /// Honest relays.
    #[default]
    None,
    /// They report `factor` times their capacity.
    Inflate,
    /// They serve scanners fully and clients at the share [`Attack::serves`], and report `factor` times their capacity.
    Refuse,
    /// They report streams and bytes between each other as `factor` times their capacities, and nothing of other relays.
    Frame,
    /// They hold cells back while FlashFlow measures them, and claim background traffic that they do not have.
    Hold,
    /// They know the slots, and flood the links of the `factor` largest other relays while these are measured.
    Flood,
    /// Each runs as `factor` relays with different addresses on one machine; each of them reports the whole capacity.
    Sybils,
}

/// An attack by some of the relays.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Attack {
    /// How the attacker's relays cheat. docs/balance.md explains the values.
    pub trick: Trick,
    /// The attacker's share of the network's capacity.
    #[schemars(range(min = 0.0, max = 0.5))]
    pub share: f64,
    /// The factor of exaggeration. For `sybils`: the relays per machine. For `flood`: the flooded relays per slot.
    #[schemars(range(min = 1.0, max = 1000.0))]
    pub factor: f64,
    /// The share of clients that refusing relays serve: a few make a relay look alive.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub serves: f64,
}

impl Default for Attack {
    fn default() -> Attack {
        Attack { trick: Trick::None, share: 0.1, factor: 10.0, serves: 0.0 }
    }
}

impl Parameters for Attack {}

impl Trick {
    /// Whether [`Attack::factor`] has an effect on it.
    pub fn has_factor(self) -> bool {
        !matches!(self, Trick::None | Trick::Hold)
    }
}

impl Attack {
    /// The report of an attacker's relay, instead of the honest `report`.
    pub fn report(&self, report: f64, capacity: f64) -> f64 {
        match self.trick {
            Trick::Inflate | Trick::Refuse => capacity * self.factor,
            Trick::Sybils => capacity,
            Trick::None | Trick::Frame | Trick::Hold | Trick::Flood => report,
        }
    }

    /// Replaces the attacker's observations of other relays over `seconds`.
    pub fn frame(
        &self,
        seen: &mut BTreeMap<(u32, u32), Seen>,
        malicious: &[bool],
        capacities: &[f64],
        seconds: f64,
    ) {
        if self.trick != Trick::Frame {
            return;
        }
        let theirs = |relay: u32| malicious[relay as usize];
        seen.retain(|(from, of), _| !theirs(*from) || theirs(*of));
        let all: Vec<u32> = (0..malicious.len() as u32).filter(|relay| theirs(*relay)).collect();
        for (from, of) in all.iter().flat_map(|from| all.iter().map(move |of| (*from, *of))) {
            if from != of {
                let speed = capacities[of as usize] * self.factor;
                seen.insert((from, of), Seen { bytes: speed * seconds, streams: 1.0, speeds: speed });
            }
        }
    }
}
