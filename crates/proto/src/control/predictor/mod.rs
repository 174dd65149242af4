//! PredicTor (Döpmann et al. 2022): relays agree on rates per circuit and hop by solving an optimal control problem.
//!
//! Only the direction from exit to client is controlled, so a circuit's *predecessor* is the relay nearer to
//! the exit. Once per step a relay measures its circuits, solves ([`Planner`]), sends the plans to its neighbours
//! ([`wire`]), and sets each circuit's allowance. Fixed windows bound the cells in flight.

mod adverts;
mod beliefs;
mod compact;
mod controller;
mod delay;
mod parameters;
mod planner;
mod steps;
pub mod trajectory;
pub mod wire;

pub use parameters::{Clocks, Exchange, Phases, PredictorParameters, Preset, Reads};
pub use planner::{Measured, Plan, Planner, Source};
