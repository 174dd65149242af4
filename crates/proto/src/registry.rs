//! The parts that a system can be made of, by name: one line each.

use std::sync::Arc;

use crate::control::fixed_rate::FixedRate;
use crate::control::windows::FixedWindows;
use crate::control::{Control, predictor, vegas};
use crate::scheduler::Discipline;
use crate::scheduler::ewma::Ewma;
use crate::scheduler::longest_queue::LongestQueue;
use crate::scheduler::round_robin::RoundRobin;
use crate::scheduler::weighted::Weighted;

/// A part with its default parameters, by the name it has in scenarios and configurations.
pub type Part<T> = (&'static str, fn() -> Arc<T>);

/// Which circuit of a connection sends next.
pub const SCHEDULERS: &[Part<dyn Discipline>] = &[
    ("round-robin", || Arc::new(RoundRobin)),
    ("ewma", || Arc::new(Ewma::default())),
    ("longest-queue", || Arc::new(LongestQueue::default())),
    ("weighted", || Arc::new(Weighted::default())),
];

/// How circuits' rates are controlled.
pub const CONTROLS: &[Part<dyn Control>] = &[
    ("windows", || Arc::new(FixedWindows)),
    ("vegas", || Arc::new(vegas::Parameters::default())),
    ("predictor", || Arc::new(predictor::Parameters::default())),
    ("fixed-rate", || Arc::new(FixedRate::default())),
];
