//! Runners of experiments, by the name in `experiment.toml`.
//!
//! Runners in this folder start processes or use modules of the tool; the others are in `lab`.

#[cfg(feature = "live")]
mod flashflow_cycle;
#[cfg(feature = "live")]
mod flashflow_loopback;
#[cfg(feature = "live")]
mod hostile;
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

use tidegate_lab::scoreboard::{Runner, scenario_runner};
use tidegate_lab::{archive, confirmation, flashflow, observer, parallel_paths, schedule, stream, threads};

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

/// All runners, one line each. Error messages list these names.
pub const RUNNERS: &[(&str, Runner)] = &[
    ("scenario", scenario_runner::run),
    ("confirmation", confirmation::run),
    ("observer", observer::run),
    ("parallel-paths", parallel_paths::run),
    ("q-stream", stream::run),
    ("q-stream-live", live!(stream_live::run)),
    ("flashflow", flashflow::run),
    ("flashflow-bounds", flashflow::bounds),
    ("flashflow-median", flashflow::median::run),
    ("flashflow-speed-test", flashflow::speed_test),
    ("flashflow-cycle", live!(flashflow_cycle::run)),
    ("flashflow-loopback", live!(flashflow_loopback::run)),
    ("hostile", live!(hostile::run)),
    ("live", live!(live::run)),
    ("live-matrix", live!(live_matrix::run)),
    ("live-measured", live!(live_measured::run)),
    ("more-fair", live!(live::fair::run)),
    ("more-hidden", live!(more_hidden::run)),
    ("more-live", live!(more_live::run)),
    ("predictor-open-loop", predictor_open_loop::run),
    ("archive", archive::runner::run),
    ("schedule", schedule::run),
    ("threads", threads::run),
];
