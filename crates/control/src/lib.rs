//! The mathematics of traffic control, with no input or output of its own.
//!
//! Everything here is a pure function or a small state machine over numbers: it takes time and
//! measurements as arguments and returns decisions. This crate does not depend on cells, sockets or the simulator.
//! [`machine`] is the contract between every protocol of the workspace and its driver.
//!
//! Start with [`units`], which every other crate uses. [`registry`] holds the parts that experiments choose by name.
//!
//! # Examples
//!
//! ```
//! use tidegate_control::maxmin::Sharing;
//!
//! // Three circuits: two cross resource 0 (60 cells/s), two cross resource 1 (100 cells/s).
//! let sharing = Sharing::new(vec![60.0, 100.0], vec![vec![0], vec![0, 1], vec![1]])?;
//! assert_eq!(sharing.max_min().rates, [30.0, 30.0, 70.0]);
//! # Ok::<(), tidegate_control::maxmin::FairnessError>(())
//! ```

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod balance;
pub mod flashflow;
pub mod keys;
pub mod machine;
pub mod markov;
pub mod maxmin;
pub mod paths;
pub mod positions;
pub mod predictor;
pub mod random;
pub mod registry;
pub mod shares;
pub mod text;
pub mod turns;
pub mod units;
