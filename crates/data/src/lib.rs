//! Readers for the documents of the ecosystem, and the pure functions that make a network of them.
//!
//! Every reader takes a [`document::Document`] (a file, unpacked and checked to be text) and gives plain
//! data or a [`document::DataError`] that names the file, the place, the cause and the cure. Nothing here
//! knows the simulator.

pub mod collector;
pub mod consensus;
pub mod country;
mod csv;
pub mod descriptor;
pub mod detect;
pub mod document;
pub mod geoip;
pub mod gml;
pub mod graph;
pub mod graphml;
pub mod latency;
pub mod latency_csv;
pub mod latency_graph;
pub mod open;
pub mod relays;
pub mod sample;
pub mod shadow;
pub mod speed_test;
pub mod tgen;
pub mod torperf;
pub mod weights;
