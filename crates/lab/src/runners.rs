//! The runners of experiments that open no sockets, by the name in `experiment.toml`.

use crate::scoreboard::{Dependence, Runner, scenario_runner};
use crate::{
    archive, busy, confirmation, correlation, exposure, flashflow, observer, parallel_paths, samples,
    schedule, stream, threads,
};

/// One line each: the name, what the values depend on, and the function that measures.
pub const RUNNERS: &[(&str, Dependence, Runner)] = &[
    ("scenario", Dependence::Seeds, scenario_runner::run),
    ("busy-relays", Dependence::Seeds, busy::run),
    ("confirmation", Dependence::Seeds, confirmation::run),
    ("correlation", Dependence::Seeds, correlation::run),
    ("observer", Dependence::Seeds, observer::run),
    ("exposure", Dependence::Seeds, exposure::runner::run),
    ("parallel-paths", Dependence::EachSeed, parallel_paths::run),
    ("q-stream", Dependence::Seeds, stream::run),
    ("flashflow", Dependence::Seeds, flashflow::run),
    ("flashflow-bounds", Dependence::Seeds, flashflow::bounds),
    ("flashflow-median", Dependence::Seeds, flashflow::median::run),
    ("flashflow-speed-test", Dependence::Nothing, flashflow::speed_test),
    ("archive", Dependence::Nothing, archive::runner::run),
    ("samples", Dependence::Seeds, samples::run),
    ("schedule", Dependence::Machine, schedule::run),
    ("threads", Dependence::Machine, threads::run),
];
