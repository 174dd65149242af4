//! The mathematics of traffic control, with no input or output of its own.
//!
//! Everything here is a pure function or a small state machine over numbers: it takes time and
//! measurements as arguments and returns decisions. Nothing knows of cells, sockets or the simulator.
//!
//! Start with [`units`], which every other crate speaks.

pub mod balance;
pub mod flashflow;
pub mod keys;
pub mod markov;
pub mod maxmin;
pub mod paths;
pub mod positions;
pub mod predictor;
pub mod random;
pub mod text;
pub mod units;
