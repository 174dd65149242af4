//! Readers for the documents of the ecosystem, and the pure functions that make a network of them.
//!
//! Every reader takes a [`document::Document`] (a file, unpacked and checked to be text) and gives plain
//! data or a [`document::DataError`] that names the file, the place, the cause and the cure. Nothing here
//! knows the simulator.
//!
//! # Examples
//!
//! ```
//! use tidegate_data::document::Document;
//! use tidegate_data::torperf;
//!
//! // What cannot be read says where, why, and what would do.
//! let refused = torperf::read(&Document::new("torperf.json", "{}")?).unwrap_err();
//! assert!(refused.to_string().starts_with("torperf.json"), "{refused}");
//! assert_eq!(torperf::quantile(&[1.0, 2.0, 4.0], 0.5), Some(2.0));
//! # Ok::<(), tidegate_data::document::DataError>(())
//! ```

#![forbid(unsafe_code)]

pub mod authority;
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
mod identity;
pub mod latency;
pub mod latency_csv;
pub mod latency_graph;
pub mod microdescriptor;
pub mod open;
pub mod relays;
pub mod sample;
pub mod shadow;
pub mod shadow_yaml;
pub mod signing;
pub mod speed_test;
pub mod tgen;
pub mod torperf;
pub mod weights;
