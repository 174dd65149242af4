//! Runners of experiments, by the name in `experiment.toml`.
//!
//! Runners in this folder start processes or use modules of the tool; the others are in `lab`.

#[cfg(feature = "live")]
mod command;
#[cfg(feature = "live")]
mod flashflow_cycle;
#[cfg(feature = "live")]
mod flashflow_loopback;
#[cfg(feature = "live")]
mod lab_real;
#[cfg(all(feature = "live", target_os = "linux"))]
mod live;
#[cfg(all(feature = "live", not(target_os = "linux")))]
mod live {
    use tidegate_lab::monitor::Monitor;
    use tidegate_lab::scoreboard::{Experiment, Measured, RunError, Scale};

    pub fn run(_: &Experiment, _: Scale, _: &dyn Monitor) -> Result<Measured, RunError> {
        Err(RunError::Unavailable("network namespaces and TUN devices exist only on Linux".into()))
    }

    pub mod fair {
        pub use super::run;
    }
}
#[cfg(feature = "live")]
mod live_matrix;
#[cfg(feature = "live")]
mod live_measured;
#[cfg(feature = "live")]
mod more_hidden;
#[cfg(feature = "live")]
mod more_live;
mod predictor_open_loop;
#[cfg(feature = "live")]
mod stream_live;
#[cfg(feature = "live")]
mod tool;

use tidegate_lab::runners::RUNNERS;
use tidegate_lab::scoreboard::{Dependence, Runner};

/// A runner that opens sockets or starts processes that do.
#[cfg(feature = "live")]
macro_rules! live {
    ($run:path) => {
        $run
    };
}
#[cfg(not(feature = "live"))]
macro_rules! live {
    ($run:path) => {
        no_sockets
    };
}

#[cfg(not(feature = "live"))]
fn no_sockets(
    _: &tidegate_lab::scoreboard::Experiment,
    _: tidegate_lab::scoreboard::Scale,
    _: &dyn tidegate_lab::monitor::Monitor,
) -> Result<tidegate_lab::scoreboard::Measured, tidegate_lab::scoreboard::RunError> {
    Err(tidegate_lab::scoreboard::RunError::Unavailable("this build lacks the feature `live`".into()))
}

/// All runners. Error messages list their names.
pub fn all() -> impl Iterator<Item = &'static (&'static str, Dependence, Runner)> {
    RUNNERS.iter().chain(OWN)
}

/// Runners of the tool, one line each.
const OWN: &[(&str, Dependence, Runner)] = &[
    ("command", Dependence::Machine, live!(command::run)),
    ("q-stream-live", Dependence::Machine, live!(stream_live::run)),
    ("flashflow-cycle", Dependence::Machine, live!(flashflow_cycle::run)),
    ("flashflow-loopback", Dependence::Machine, live!(flashflow_loopback::run)),
    ("lab-real", Dependence::Seeds, live!(lab_real::run)),
    ("live", Dependence::Machine, live!(live::run)),
    ("live-matrix", Dependence::Machine, live!(live_matrix::run)),
    ("live-measured", Dependence::Machine, live!(live_measured::run)),
    ("more-fair", Dependence::Machine, live!(live::fair::run)),
    ("more-hidden", Dependence::Machine, live!(more_hidden::run)),
    ("more-live", Dependence::Machine, live!(more_live::run)),
    ("predictor-open-loop", Dependence::Nothing, predictor_open_loop::run),
];
