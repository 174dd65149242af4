//! The registry of balance systems: one line per system.

use super::Balance;
use super::diprober::{self, DiProber};
use super::eigenspeed::{self, EigenSpeed};
use super::mleflow::{self, MleFlow};
use super::peerflow::{self, PeerFlow};
use super::probflow::{self, ProbFlow};
use super::sbws::{self, Sbws};
use super::team::{self, Team};
use super::torflow::{self, TorFlow};
use super::truth::{Given, SelfReports, Truth};
use crate::part;
use crate::registry::Part;

/// Where the weights come from that clients select relays by.
pub const BALANCES: &[Part<dyn Balance>] = &[
    part!("given" = Given),
    part!("self-reports" = SelfReports),
    part!("torflow", TorFlow, torflow::ORIGIN),
    part!("sbws", Sbws, sbws::ORIGIN),
    part!("eigenspeed", EigenSpeed, eigenspeed::ORIGIN),
    part!("peerflow", PeerFlow, peerflow::ORIGIN),
    part!("flashflow", Team, team::ORIGIN),
    part!("mleflow", MleFlow, mleflow::ORIGIN),
    part!("probflow", ProbFlow, probflow::ORIGIN),
    part!("diprober", DiProber, diprober::ORIGIN),
    part!("truth" = Truth),
];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Evidence, Round, Seen};
    use super::*;
    use crate::positions::Class;

    /// Three relays. The first sees the second at a speed; the others see each other.
    fn evidence(speed: f64, trusted: [bool; 3]) -> Evidence {
        let pairs =
            [((0, 1), speed), ((1, 0), 2e6), ((1, 2), 1e6), ((2, 1), 3e6), ((2, 0), 1e6), ((0, 2), 1e6)];
        let seen = |speed| Seen { bytes: speed * 60.0, streams: 1.0, speeds: speed };
        Evidence {
            classes: vec![Class::GuardExit; 3],
            capacities: vec![4e6; 3],
            trusted: trusted.into(),
            rounds: vec![Round {
                weights: vec![1e6, 1e6, 2e6],
                reports: vec![1e6, 2e6, 4e6],
                probes: vec![vec![1e5, 3e5], vec![2e5], vec![4e5]],
                measured: vec![Some(1e6), Some(2e6), None],
                seen: pairs.map(|(pair, speed)| (pair, seen(speed))).into(),
            }],
        }
    }

    #[test]
    fn balance_systems_ask_for_what_they_read() {
        for part in BALANCES {
            // Few steps do not forget where the iteration began, and a high bound does not hide a peer's claim.
            let balance = match part.name {
                "eigenspeed" => (part.make)(&json!({ "steps": 1 })),
                "peerflow" => (part.make)(&json!({ "growth": 100.0, "disbelieved": 0.0 })),
                _ => (part.make)(&json!({})),
            };
            let balance = balance.unwrap().0;
            let weights = |speed, trusted| balance.weigh(&evidence(speed, trusted));
            let (asks, usual) = (balance.asks(), weights(1e6, [false; 3]));
            assert_eq!(weights(9e6, [false; 3]) != usual, asks.peers, "{}", part.name);
            assert_eq!(weights(1e6, [true, false, false]) != usual, asks.trusted, "{}", part.name);
        }
    }
}
