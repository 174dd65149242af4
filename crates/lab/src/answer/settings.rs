//! What to ask, and the scenario that answers it.

use std::path::PathBuf;

use serde_json::Value;
use tidegate_control::units::Span;

use super::parts;
use crate::input::{InputError, SourceFile};
use crate::scenario::Scenario;

/// What to ask.
#[derive(Clone, Debug)]
pub struct AnswerSettings {
    /// The consensus, as an absolute path; `None` for the built-in model of 2024.
    pub consensus: Option<PathBuf>,
    /// Number of relays of a sampled network.
    pub relays: u32,
    /// Factor on the relays' rates.
    pub bandwidth_factor: f64,
    /// Share of the relays' capacity in use under vanilla Tor.
    pub utilisation: f64,
    /// Simulated time of a run, with the warm-up.
    pub duration: Span,
    /// Number of networks.
    pub seeds: u32,
    /// The first seed.
    pub seed: u64,
    /// The adversary's share of all consensus weight.
    pub share: f64,
    /// Number of clients in the path simulation of each seed.
    pub clients: u32,
    /// Days for which clients are simulated.
    pub days: u32,
}

/// The shortest duration with a whole second after the warm-up.
const SHORTEST: Span = Span::from_secs(2);

impl AnswerSettings {
    /// The scenario: the sampled network with the baseline and every part.
    pub(super) fn scenario(&self) -> Result<Scenario, InputError> {
        let text = format!("{}{}", include_str!("network.toml"), parts::systems());
        let AnswerSettings { relays, bandwidth_factor, utilisation, duration, .. } = self;
        for (option, value) in [("--bandwidth-factor", bandwidth_factor), ("--utilisation", utilisation)] {
            if !value.is_finite() {
                return Err(InputError::new(
                    option,
                    format!("{value} is not a finite number"),
                    "give one above 0",
                ));
            }
        }
        // Flows are matched by bytes per second.
        if *duration < SHORTEST {
            let cause = format!("{duration} is too short: its first quarter is the warm-up");
            return Err(InputError::new("--duration", cause, format!("give {SHORTEST} or more")));
        }
        let mut overrides = vec![
            format!("tor.relays = {relays}"),
            format!("tor.bandwidth-factor = {bandwidth_factor:?}"),
            // As many users as slower relays can serve; `utilisation` then fits the number.
            format!("tor.load = {bandwidth_factor:?}"),
            format!("tor.utilisation = {utilisation:?}"),
            format!("duration = \"{duration}\""),
            format!("warmup = \"{}\"", *duration / 4),
            format!("seed = {}", self.seed),
        ];
        if let Some(path) = &self.consensus {
            let text = Value::from(path.to_string_lossy().into_owned());
            overrides.push(format!("tor.consensus = {text}"));
        }
        let source = SourceFile { file: "the scenario of `tidegate answer`".into(), text };
        Scenario::parse(source, PathBuf::new(), &overrides)
    }
}
