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
