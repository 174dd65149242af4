//! From a scenario file to checked runs, metrics, tables, figures and reports.
//!
//! [`scenario`] reads and checks a file, [`network`] draws a network from it and a seed, [`scoreboard`] holds published numbers against ours.

pub mod archive;
pub mod flashflow;
pub mod input;
pub mod jobs;
pub mod load;
pub mod metrics;
pub mod monitor;
pub mod network;
pub mod parallel_paths;
pub mod problems;
pub mod registry;
pub mod report;
pub mod results;
pub mod runs;
pub mod scenario;
pub mod score;
pub mod scoreboard;
pub mod statistics;
pub mod store;
pub mod stream;
pub mod study;
pub mod traffic;
