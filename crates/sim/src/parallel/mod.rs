//! The overlay of Raiber's thesis: peers that forward each other's packets over per-packet random paths.
//!
//! A run is a pure function of a [`Plan`], a controller's
//! `Parameters` and a seed; [`world::run`] returns a
//! [`Report`], and [`Steps`] is a run that its caller advances. Senders, relays and controllers are
//! those
//! of [`tidegate_control::paths`]; this module adds delays, traffic, changes and counters. `docs/parallel-paths.md`
//! lists our reading of the thesis where it leaves something open.

mod delay;
pub mod onions;
mod plan;
mod report;
mod shared;
mod steps;
mod streams;
pub mod world;

pub use delay::normal_quantile;
pub use plan::{Change, Conduct, Delays, PeerPlan, Plan, PlanError, Traffic};
pub use report::{Counts, Report};
pub use shared::Uplink;
pub use steps::Steps;
pub use streams::{Read, Reading, download};
