//! Q-Stream in simulated time: the machines of [`tidegate_stream`] over uplinks, delays and losses.
//!
//! A run is a pure function of a [`plan::Plan`] and a seed; [`world::run`] returns a [`report::Report`].

pub mod plan;
pub mod report;
pub mod world;
