//! The overlay of Raiber's thesis: peers that forward each other's packets over per-packet random paths.
//!
//! A run is a pure function of a [`plan::Plan`], a controller's
//! `Parameters` and a seed; [`world::run`] returns a
//! [`report::Report`], and [`steps::Steps`] is a run that its caller advances. Senders, relays and controllers are
//! those
//! of [`tidegate_control::paths`]; this module adds delays, traffic, changes and counters. `docs/parallel-paths.md`
//! lists our reading of the thesis where it leaves something open.

pub mod delay;
pub mod onions;
pub mod plan;
pub mod report;
pub mod shared;
pub mod steps;
pub mod streams;
pub mod world;
