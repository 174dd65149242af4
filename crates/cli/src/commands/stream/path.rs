//! Options that emulate a network path on one machine.

use tidegate_control::units::{Rate, Span};
use tidegate_lab::input::InputError;
use tidegate_net::stream::path;

use crate::failure::Failure;

/// Options that emulate a network path on one machine.
#[derive(clap::Args, Clone, Copy)]
pub struct PathArgs {
    /// Delay sent packets by this time
    #[arg(long, default_value = "0 ms")]
    pub delay: Span,
    /// Vary the delay with this standard deviation
    #[arg(long, default_value = "0 ms")]
    pub jitter: Span,
    /// Drop this share of sent packets, 0 to 0.9
    #[arg(long, default_value_t = 0.0)]
    pub loss: f64,
    /// Seed jitter and losses with this number [default: 1]
    #[arg(long)]
    pub seed: Option<u64>,
}

/// The seed of jitter and losses without `--seed`.
const SEED: u64 = 1;

/// Longest accepted delay; a longer one is probably a mistake.
const LONGEST_DELAY: Span = Span::from_secs(10);

/// Makes the error of an invalid option.
pub fn wrong(option: &str, cause: impl Into<String>, cure: &str) -> Failure {
    InputError::new(option, cause.into(), cure).into()
}

impl PathArgs {
    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or(SEED)
    }

    /// Whether the seed matters to the path.
    pub fn is_random(&self) -> bool {
        self.jitter > Span::ZERO || self.loss > 0.0
    }

    /// Checks the options and makes the path.
    pub fn path(self, uplink: Rate) -> Result<path::Path, Failure> {
        let PathArgs { delay, jitter, loss, seed: given } = self;
        if given.is_some() && !self.is_random() {
            let cause = "has no effect without --jitter and --loss";
            return Err(wrong("--seed", cause, "drop it, or give one of them"));
        }
        if uplink.0 < 100_000 {
            return Err(wrong(
                "--uplink",
                format!("{uplink} is too slow for a stream"),
                "give at least 100 kbit/s",
            ));
        }
        if !(0.0..=0.9).contains(&loss) {
            return Err(wrong("--loss", format!("{loss} is not a valid share"), "give 0 to 0.9"));
        }
        if delay.max(jitter) > LONGEST_DELAY {
            return Err(wrong("--delay", "delay or jitter is longer than 10 s", "give at most 10 s"));
        }
        Ok(path::Path { uplink, delay, jitter, loss, seed: self.seed(), later: None, translated: false })
    }
}
