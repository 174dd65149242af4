//! Records of the coordinator's state.

use serde::{Deserialize, Serialize};
use tidegate_control::flashflow::MeasurementParameters;

/// A record of the state; in an export, one line of JSON.
///
/// Times are Unix seconds, rates bits per second, other quantities bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Record {
    /// The coordinator started.
    Started {
        /// Time.
        unix: u64,
        /// Version of the software.
        version: String,
        /// Whether the state was empty, so that no earlier record was deleted.
        fresh: bool,
    },
    /// A measurement begins.
    Attempt {
        /// Token of the measurement.
        id: String,
        /// Time.
        unix: u64,
        /// Identity of the relay.
        relay: String,
        /// `z0`.
        guess: u64,
        /// `sum a_i`.
        allocated: u64,
        /// The parameters in force.
        parameters: RecordedParameters,
    },
    /// A second of a measurement is complete.
    Second {
        /// Token of the measurement.
        id: String,
        /// Number of the second, from 1.
        second: u16,
        /// Echoed bytes per measurer.
        measurers: Vec<u64>,
        /// Background bytes that the relay claims to have sent.
        sent: u64,
        /// Background bytes that the relay claims to have received.
        received: u64,
    },
    /// A measurement is complete.
    Result {
        /// Token of the measurement.
        id: String,
        /// Time.
        unix: u64,
        /// `z`.
        estimate: u64,
        /// Whether the allocated capacity was enough.
        conclusive: bool,
        /// Number of cells checked.
        checked: u64,
    },
    /// A measurement failed; earlier results stay.
    Failure {
        /// Token of the measurement.
        id: String,
        /// Time.
        unix: u64,
        /// [`tidegate_proto::flashflow::Reason::name`]
        reason: String,
        /// `relay`, a measurer's name, or `coordinator`.
        by: String,
    },
    /// A bandwidth file was written.
    File {
        /// Time.
        unix: u64,
        /// Time at which the coordinator started.
        started: u64,
        /// The relays that may be measured, with their part of the file besides results.
        network: Vec<Described>,
        /// Lifetime of results.
        expiry_s: u64,
        /// SHA-256 of the file.
        sha256: String,
        /// Number of relays in the consensus, if one was read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        consensus_relays: Option<u64>,
    },
}

/// The parameters in a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedParameters {
    /// `m`
    pub multiplier: f64,
    /// `eps1`
    pub epsilon1: f64,
    /// `eps2`
    pub epsilon2: f64,
    /// `r` in percent.
    pub background_percent: u8,
}

impl From<&MeasurementParameters> for RecordedParameters {
    fn from(p: &MeasurementParameters) -> RecordedParameters {
        RecordedParameters {
            multiplier: p.multiplier,
            epsilon1: p.epsilon1,
            epsilon2: p.epsilon2,
            background_percent: p.background.get(),
        }
    }
}

/// A relay's part of the bandwidth file besides its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Described {
    /// Identity.
    pub relay: String,
    /// Nickname.
    pub nickname: String,
    /// Average rate in its descriptor.
    pub descriptor_limit: Option<u64>,
    /// Whether it is measured without echo cells.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stock: bool,
}

impl Record {
    /// Time of the record; `None` for a second, which has the time of its measurement.
    pub fn unix(&self) -> Option<u64> {
        match self {
            Record::Started { unix, .. } | Record::Attempt { unix, .. } | Record::Result { unix, .. } => {
                Some(*unix)
            }
            Record::Failure { unix, .. } | Record::File { unix, .. } => Some(*unix),
            Record::Second { .. } => None,
        }
    }
}
