//! The parts that a system can be made of, by name: one line each.

use std::sync::Arc;

use serde_json::{Value, json};
use tidegate_control::balance::Balance;
use tidegate_control::balance::diprober::DiProber;
use tidegate_control::balance::eigenspeed::EigenSpeed;
use tidegate_control::balance::likelihood::{MleFlow, ProbFlow};
use tidegate_control::balance::peerflow::PeerFlow;
use tidegate_control::balance::sbws::Sbws;
use tidegate_control::balance::team::Team;
use tidegate_control::balance::torflow::TorFlow;
use tidegate_control::balance::truth::{Given, SelfReports, Truth};
use tidegate_control::keys::{self, Wrong};

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

/// Makes a part from its table, in which any key may be missing; and gives the table with every default.
pub type Make<T> = fn(&Value) -> Result<(Arc<T>, Value), Wrong>;

/// A part of a kind. Its parameters are the table of its name beside the key that chooses it.
#[derive(Debug)]
pub struct Part<T: ?Sized + 'static> {
    /// Its name in scenarios and configurations.
    pub name: &'static str,
    /// The JSON Schema of its parameters, if it has any.
    pub schema: Option<fn() -> Value>,
    /// Makes it from its table.
    pub make: Make<T>,
}

impl<T: ?Sized> Part<T> {
    /// The part with its default parameters.
    pub fn by_default(&self) -> Arc<T> {
        let (part, _) = (self.make)(&json!({})).expect("defaults are in their ranges");
        part
    }
}

/// A part that is its parameters, or one that has none.
macro_rules! part {
    ($name:literal, $parameters:ty) => {
        Part {
            name: $name,
            schema: Some(keys::schema::<$parameters>),
            make: |table| {
                let part: $parameters = keys::read(table)?;
                let all = serde_json::to_value(&part).unwrap_or_default();
                Ok((Arc::new(part), all))
            },
        }
    };
    ($name:literal = $part:expr) => {
        Part { name: $name, schema: None, make: |_| Ok((Arc::new($part), Value::Null)) }
    };
}

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
