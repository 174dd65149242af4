//! From a scenario file to checked runs, metrics, tables, figures and reports.
//!
//! [`scenario`] reads and checks a file, [`network`] draws a network from it and a seed, and [`runs`] runs every
//! system on that network. [`metrics`] folds observations, [`report`] presents them, and [`scoreboard`] compares
//! published numbers with ours.
//!
//! # Examples
//!
//! ```
//! use std::path::Path;
//! use tidegate_lab::scenario::Scenario;
//!
//! let file = Path::new("../../scenarios/bottleneck.toml");
//! let scenario = Scenario::load(file, &["duration = \"20 s\"".into()])?;
//! assert_eq!(scenario.systems.len(), 3);
//!
//! let wrong = Scenario::load(file, &["duration = \"20\"".into()]).unwrap_err();
//! assert!(wrong.to_string().contains("duration"), "{wrong}");
//! # Ok::<(), tidegate_lab::input::InputError>(())
//! ```

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod answer;
pub mod archive;
mod busy;
mod confirmation;
mod correlation;
pub mod export;
pub mod exposure;
pub mod flashflow;
pub mod import;
pub mod input;
pub mod jobs;
pub mod load;
pub mod metrics;
pub mod monitor;
pub mod network;
pub mod number;
mod observer;
mod parallel_paths;
pub mod problems;
pub(crate) mod registry;
pub mod report;
pub mod results;
pub mod runners;
pub mod runs;
mod samples;
pub mod scenario;
mod schedule;
pub mod score;
pub mod scoreboard;
pub mod statistics;
pub mod store;
mod stream;
pub(crate) mod study;
pub mod sweep;
pub mod systems;
mod threads;
pub(crate) mod traffic;
