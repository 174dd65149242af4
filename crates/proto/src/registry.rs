//! Registries of the parts of a system: one line per part.

use tidegate_control::part;
use tidegate_control::registry::{Origin, Part};

use crate::conflux::Split;
use crate::conflux::blest::{self, Blest};
use crate::conflux::by_rate::ByRate;
use crate::conflux::by_time::{self, MinLatency, Throughput};
use crate::conflux::q_learning::Learnt;
use crate::control::fixed_rate::FixedRate;
use crate::control::windows::FixedWindows;
use crate::control::{Control, predictor, vegas};
use crate::scheduler::Discipline;
use crate::scheduler::ewma::{self, Ewma};
use crate::scheduler::longest_queue::LongestQueue;
use crate::scheduler::round_robin::RoundRobin;
use crate::scheduler::weighted::Weighted;

/// Which circuit of a connection sends next.
pub const SCHEDULERS: &[Part<dyn Discipline>] = &[
    part!("round-robin" = RoundRobin),
    part!("ewma", Ewma, ewma::ORIGIN),
    part!("longest-queue", LongestQueue),
    part!("weighted", Weighted),
];

/// How circuits' rates are controlled.
pub const CONTROLS: &[Part<dyn Control>] = &[
    part!("windows" = FixedWindows),
    part!("vegas", vegas::VegasParameters, vegas::ORIGIN),
    part!("predictor", predictor::PredictorParameters, predictor::ORIGIN),
    part!("fixed-rate", FixedRate),
];

/// How streams are divided among circuits that are linked (Conflux).
pub const SPLITS: &[Part<dyn Split>] = &[
    part!("min-latency" = MinLatency, by_time::ORIGIN),
    part!("throughput" = Throughput, by_time::ORIGIN),
    part!("blest", Blest, blest::ORIGIN),
    part!("by-rate" = ByRate),
    part!("q-learning", Learnt),
];

/// Published systems that are keys of a system instead of parts: the key with its value, and the origin.
pub const CHOICES: &[(&str, Origin)] = &[
    (
        "channel-scheduler = \"kist\"",
        Origin {
            system: "KIST",
            source: "Jansen and others, USENIX Security 2014; scheduler_kist.c of tor",
            oracles: &[
                "crates/proto/src/links/kist.rs: a_socket_accepts_its_free_window_and_one_more_window",
                "crates/proto/src/links/tests.rs: a_run_uses_every_socket_up_to_its_limit",
            ],
            deviation: "",
        },
    ),
    (
        "transport = \"pctcp\"",
        Origin {
            system: "PCTCP",
            source: "AlSabah and Goldberg, CCS 2013",
            oracles: &[],
            deviation: "key exchange and IPsec between relays are bytes and delays in simulations",
        },
    ),
    (
        "switching",
        Origin {
            system: "active circuit switching",
            source: "Kale, Ohzahata, Wu, Kato, 2016",
            oracles: &["crates/proto/src/switching.rs: the_estimate_follows_the_papers_equation"],
            deviation: "",
        },
    ),
];
