//! PredicTor (Döpmann et al. 2022): relays agree on rates per circuit and hop by solving an optimal control problem.
//!
//! Only the direction from exit to client is controlled, so a circuit's *predecessor* is the relay nearer to
//! the exit. Once per step a relay measures its circuits, solves (`Planner`), sends the plans to its neighbours
//! ([`wire`]), and sets each circuit's allowance. Fixed windows bound the cells in flight.

mod adverts;
mod beliefs;
mod compact;
mod controller;
mod delay;
mod exchange;
mod parameters;
mod planner;
mod steps;
#[cfg(test)]
mod tests;
mod trajectory;
pub mod wire;

use tidegate_control::registry::Origin;

pub use parameters::{Clocks, Exchange, Phases, PredictorParameters, Preset, Reads};
pub use trajectory::{About, Encoding, Malformed, Trajectory};

/// Source and oracles.
pub(crate) const ORIGIN: Origin = Origin {
    system: "PredicTor",
    source: "Döpmann and others, 2022; the prototype of the authors",
    oracles: &[
        "crates/control/tests/predictor.rs: the_published_instance_has_its_published_optimum",
        "crates/control/tests/predictor.rs: the_journal_problem_agrees_with_clarabel",
    ],
    deviation: "additions are keys of their own; a preset selects the published problem",
};
