//! What relays do to win more weight than they have capacity.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Seen;
use crate::keys::Parameters;

/// How they do it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Trick {
    /// They are honest.
    #[default]
    None,
    /// They say that they carried `factor` times as much as they can.
    Inflate,
    /// They serve those who measure, and of clients only so many as [`Attack::serves`] says; and they say that they
    /// carried `factor` times what they can.
    Refuse,
    /// They say that streams and bytes between them were `factor` times what they can carry, and nothing good of others.
    Frame,
    /// They hold cells back while they are measured, and claim background that they have not.
    Hold,
    /// They know the slots, and flood the links of the `factor` largest others in each while these are measured.
    Flood,
    /// Each is `factor` relays of different addresses on one machine, which says for each what it can carry.
    Sybils,
}

/// Who attacks, and how.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Attack {
    /// What they do.
    pub trick: Trick,
    /// The share of the network's capacity that they hold.
    #[schemars(range(min = 0.0, max = 0.5))]
    pub share: f64,
    /// How much they exaggerate, or how many relays each of them is.
    #[schemars(range(min = 1.0, max = 1000.0))]
    pub factor: f64,
    /// The share of clients that relays serve who refuse them: few are enough to look alive.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub serves: f64,
}

impl Default for Attack {
    fn default() -> Attack {
        Attack { trick: Trick::None, share: 0.1, factor: 10.0, serves: 0.0 }
    }
}

impl Parameters for Attack {}

impl Attack {
    /// What the relays of an attacker say that they carried, instead of `report`.
    pub fn report(&self, report: f64, capacity: f64) -> f64 {
        match self.trick {
            Trick::Inflate | Trick::Refuse => capacity * self.factor,
            Trick::Sybils => capacity,
            Trick::None | Trick::Frame | Trick::Hold | Trick::Flood => report,
        }
    }

    /// What they say of others, `seconds` having been watched.
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
