//! Readers for documents of Tor and related tools, and the networks in them.
//!
//! [`formats`] has a table of formats per kind of contents; [`formats::Formats::open`] detects the format of a file and
//! reads it. A reader takes a [`document::Document`] (an unpacked text) and returns plain data or a
//! [`document::DataError`] with file, line, cause and cure.
//!
//! # Examples
//!
//! ```
//! use tidegate_data::document::Document;
//! use tidegate_data::formats::LATENCIES;
//!
//! let matrix = Document::new("delays.txt", "0 30\n30 0\n")?;
//! assert_eq!(LATENCIES.detect(&matrix)?.name, "a matrix of round-trip times");
//! let text = Document::new("delays.txt", "hello")?;
//! let error = LATENCIES.detect(&text).map(|format| format.name).unwrap_err();
//! assert!(error.to_string().starts_with("delays.txt: does not hold latency data"), "{error}");
//! # Ok::<(), tidegate_data::document::DataError>(())
//! ```

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod authority;
pub mod collector;
pub mod consensus;
pub mod country;
mod csv;
pub mod descriptor;
pub mod document;
pub mod formats;
pub mod geoip;
pub mod gml;
pub mod graph;
pub mod graphml;
mod identity;
pub mod kinds;
pub mod latency;
pub mod latency_csv;
pub mod latency_graph;
pub mod microdescriptor;
pub mod open;
pub mod relays;
pub mod sample;
pub mod shadow;
pub mod shadow_file;
pub mod shadow_folder;
mod shadow_xml;
mod shadow_yaml;
pub mod signing;
pub mod speed_test;
pub mod tgen;
pub mod tgen_actions;
pub mod torperf;
pub mod torrc;
mod tpf;
pub mod weights;
