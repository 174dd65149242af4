//! How a network is watched before its relays are weighed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::keys::Parameters;
use crate::units::Span;

/// A survey: the same network and users, beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Survey {
    /// Simulated time of a round; one in which relays are measured under full load takes as long as that takes.
    #[schemars(extend("x-range" = "10 s..=1 h"))]
    pub duration: Span,
    /// The share of the users who are there meanwhile: a network that has grown since its relays were weighed.
    #[schemars(range(min = 0.01, max = 1.0))]
    pub users: f64,
    /// Authorities that each survey for themselves; the low median of their files counts.
    #[schemars(range(min = 1, max = 9))]
    pub files: u32,
    /// The share of the capacity that relays of the authorities themselves have.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub trusted: f64,
}

impl Default for Survey {
    fn default() -> Survey {
        Survey { duration: Span::from_secs(60), users: 1.0, files: 1, trusted: 0.2 }
    }
}

impl Parameters for Survey {}
