//! What stands in for a network on one machine, from arguments.

use tidegate_control::units::{Rate, Span};
use tidegate_lab::input::InputError;
use tidegate_net::stream::path;

use crate::failure::Failure;

/// What stands in for a network on one machine.
#[derive(clap::Args, Clone, Copy)]
pub struct PathArguments {
    /// Delay everything sent by this much
    #[arg(long, default_value = "0 ms")]
    pub delay: Span,
    /// Standard deviation of what is added to it
    #[arg(long, default_value = "0 ms")]
    pub jitter: Span,
    /// Lose this share of what is sent
    #[arg(long, default_value_t = 0.0)]
    pub loss: f64,
    /// Seed of jitter and losses
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// The longest delay of a path; longer ones are a mistake.
const LONGEST_DELAY: Span = Span::from_secs(10);

/// An argument that cannot be.
pub fn wrong(option: &str, cause: impl Into<String>, cure: &str) -> Failure {
    InputError::new(option, cause.into(), cure).into()
}

impl PathArguments {
    /// The path with that uplink.
    pub fn path(self, uplink: Rate) -> Result<path::Path, Failure> {
        let PathArguments { delay, jitter, loss, seed } = self;
        if uplink.0 < 100_000 {
            return Err(wrong("--uplink", format!("{uplink} carries no stream"), "give at least 100 kbit/s"));
        }
        if !(0.0..=0.9).contains(&loss) {
            return Err(wrong("--loss", format!("{loss} is no share that can be lost"), "give 0 to 0.9"));
        }
        if delay.max(jitter) > LONGEST_DELAY {
            return Err(wrong("--delay", "the path is longer than 10 s", "give less"));
        }
        Ok(path::Path { uplink, delay, jitter, loss, seed, later: None })
    }
}
