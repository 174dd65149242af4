//! Runners of experiments, by the name in `experiment.toml`.
//!
//! Runners in this folder start processes or use modules of the tool; the others are in `lab`.

mod flashflow_cycle;
mod flashflow_loopback;
mod hostile;
#[cfg(target_os = "linux")]
mod live;
#[cfg(not(target_os = "linux"))]
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
mod more_hidden;
mod more_live;
mod predictor_open_loop;
mod stream_live;
mod tool;

use tidegate_lab::scoreboard::{Runner, scenario_runner};
use tidegate_lab::{archive, confirmation, flashflow, observer, parallel_paths, schedule, stream, threads};

/// All runners, one line each. Error messages list these names.
pub const RUNNERS: &[(&str, Runner)] = &[
    ("scenario", scenario_runner::run),
    ("confirmation", confirmation::run),
    ("observer", observer::run),
    ("parallel-paths", parallel_paths::run),
    ("q-stream", stream::run),
    ("q-stream-live", stream_live::run),
    ("flashflow", flashflow::run),
    ("flashflow-bounds", flashflow::bounds),
    ("flashflow-median", flashflow::median::run),
    ("flashflow-speed-test", flashflow::speed_test),
    ("flashflow-cycle", flashflow_cycle::run),
    ("flashflow-loopback", flashflow_loopback::run),
    ("hostile", hostile::run),
    ("live", live::run),
    ("more-fair", live::fair::run),
    ("more-hidden", more_hidden::run),
    ("more-live", more_live::run),
    ("predictor-open-loop", predictor_open_loop::run),
    ("archive", archive::runner::run),
    ("schedule", schedule::run),
    ("threads", threads::run),
];
