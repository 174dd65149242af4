//! Q-Stream in simulated time: the machines of [`tidegate_stream`] over uplinks, delays and losses.
//!
//! A run is a pure function of a [`Plan`] and a seed; [`world::run`] returns a [`Report`].

mod plan;
mod report;
pub mod world;

pub use plan::{Conduct, Exit, Plan, PlanError, ViewerPlan};
pub use report::{Accounts, Report, Second, Watched};
