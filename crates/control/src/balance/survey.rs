//! How a network is observed before its relays get weights.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::keys::Parameters;
use crate::units::Span;

/// A survey: a run of the same network and users before the run proper.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Survey {
    /// Simulated time of a round. A round with measurements under full load lasts as long as they take.
    #[schemars(extend("x-range" = "10 s..=1 h"))]
    pub duration: Span,
    /// The share of the users that are active during the survey; below 1 the network grows after its survey.
    #[schemars(range(min = 0.01, max = 1.0))]
    pub users: f64,
    /// Number of authorities with surveys of their own; the low median of their files counts.
    #[schemars(range(min = 1, max = 9))]
    pub files: u32,
    /// The share of the capacity on relays that the authorities run.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub trusted: f64,
}

impl Default for Survey {
    fn default() -> Survey {
        Survey { duration: Span::from_secs(60), users: 1.0, files: 1, trusted: 0.2 }
    }
}

impl Parameters for Survey {}
