//! Registries of the parts of a system: one line per part.

use tidegate_control::balance::Balance;
use tidegate_control::balance::diprober::DiProber;
use tidegate_control::balance::eigenspeed::EigenSpeed;
use tidegate_control::balance::mleflow::MleFlow;
use tidegate_control::balance::peerflow::PeerFlow;
use tidegate_control::balance::probflow::ProbFlow;
use tidegate_control::balance::sbws::Sbws;
use tidegate_control::balance::team::Team;
use tidegate_control::balance::torflow::TorFlow;
use tidegate_control::balance::truth::{Given, SelfReports, Truth};
use tidegate_control::part;
use tidegate_control::registry::Part;

use crate::conflux::Split;
use crate::conflux::by_rate::ByRate;
use crate::conflux::by_time::{MinLatency, Throughput};
use crate::conflux::q_learning::Learnt;
use crate::control::fixed_rate::FixedRate;
use crate::control::windows::FixedWindows;
use crate::control::{Control, predictor, vegas};
use crate::scheduler::Discipline;
use crate::scheduler::ewma::Ewma;
use crate::scheduler::longest_queue::LongestQueue;
use crate::scheduler::round_robin::RoundRobin;
use crate::scheduler::weighted::Weighted;

/// Which circuit of a connection sends next.
pub const SCHEDULERS: &[Part<dyn Discipline>] = &[
    part!("round-robin" = RoundRobin),
    part!("ewma", Ewma),
    part!("longest-queue", LongestQueue),
    part!("weighted", Weighted),
];

/// How circuits' rates are controlled.
pub const CONTROLS: &[Part<dyn Control>] = &[
    part!("windows" = FixedWindows),
    part!("vegas", vegas::VegasParameters),
    part!("predictor", predictor::PredictorParameters),
    part!("fixed-rate", FixedRate),
];

/// How streams are divided among circuits that are linked (Conflux).
pub const SPLITS: &[Part<dyn Split>] = &[
    part!("min-latency" = MinLatency),
    part!("throughput" = Throughput),
    part!("by-rate" = ByRate),
    part!("q-learning", Learnt),
];

/// Where the weights come from that clients select relays by.
pub const BALANCES: &[Part<dyn Balance>] = &[
    part!("given" = Given),
    part!("self-reports" = SelfReports),
    part!("torflow", TorFlow),
    part!("sbws", Sbws),
    part!("eigenspeed", EigenSpeed),
    part!("peerflow", PeerFlow),
    part!("flashflow", Team),
    part!("mleflow", MleFlow),
    part!("probflow", ProbFlow),
    part!("diprober", DiProber),
    part!("truth" = Truth),
];
