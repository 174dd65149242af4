//! PredicTor (Döpmann et al. 2022): relays agree with their neighbours on rates per circuit and hop, by solving an
//! optimal control problem in every step.
//!
//! Only the direction from exit to client is controlled, so a circuit's *predecessor* is the relay nearer to
//! the exit. Once per step a relay measures its circuits, solves ([`Planner`]), tells its neighbours the plans
//! ([`wire`]), and lets each circuit send so many cells. Fixed windows bound what is in flight as ever.

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
