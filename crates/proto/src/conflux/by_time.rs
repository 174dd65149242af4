//! Tor's two ways of division, which use round-trip times alone.

use tidegate_control::random::Seed;
use tidegate_control::registry::Origin;

use super::link::Wish;
use super::split::{Split, Splitter};

/// Source and oracles.
pub(crate) const ORIGIN: Origin = Origin {
    system: "Conflux",
    source: "proposal 329; conflux.c of tor 0.4.8",
    oracles: &[
        "crates/proto/src/conflux/tests.rs: a_link_goes_over_the_wire_as_proposal_329_has_it",
        "crates/proto/src/conflux/tests.rs: a_set_survives_the_loss_of_a_leg_as_in_tor",
        "crates/proto/src/conflux/tests.rs: with_one_leg_data_waits_and_with_several_it_uses_the_next",
    ],
    deviation: "",
};

/// Always the leg with the least round-trip time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MinLatency;

/// All legs up to their windows, the one with the least round-trip time first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Throughput;

/// The default behaviour of a set.
#[derive(Debug)]
struct ByTime;

impl Splitter for ByTime {}

impl Split for MinLatency {
    fn wish(&self) -> Wish {
        Wish::MinLatency
    }
    fn build(&self, _: Seed) -> Box<dyn Splitter> {
        Box::new(ByTime)
    }
}

impl Split for Throughput {
    fn build(&self, _: Seed) -> Box<dyn Splitter> {
        Box::new(ByTime)
    }
}
