//! What a coordinator writes down, one record after another.

use serde::{Deserialize, Serialize};
use tidegate_control::flashflow::MeasurementParameters;

/// A record of the state, a line of its export. Times are Unix seconds, rates bits per second, the rest bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Record {
    /// The coordinator started.
    Started {
        /// When.
        unix: u64,
        /// Which version of the software.
        version: String,
        /// Whether the state was empty: nothing before this record was deleted.
        fresh: bool,
    },
    /// A measurement begins.
    Attempt {
        /// Its token.
        id: String,
        /// When.
        unix: u64,
        /// The relay's identity.
        relay: String,
        /// `z0`
        guess: u64,
        /// `sum a_i`
        allocated: u64,
        /// The parameters in force.
        parameters: RecordedParameters,
    },
    /// A second of it.
    Second {
        /// Its token.
        id: String,
        /// From 1.
        second: u16,
        /// Echoed bytes per measurer.
        measurers: Vec<u64>,
        /// Background bytes the relay says it sent.
        sent: u64,
        /// And received.
        received: u64,
    },
    /// It is complete.
    Result {
        /// Its token.
        id: String,
        /// When.
        unix: u64,
        /// `z`
        estimate: u64,
        /// Whether the capacity allocated sufficed.
        conclusive: bool,
        /// Cells checked.
        checked: u64,
    },
    /// It failed; what was known of the relay stays.
    Failure {
        /// Its token.
        id: String,
        /// When.
        unix: u64,
        /// [`tidegate_proto::flashflow::message::Reason::name`]
        reason: String,
        /// `relay`, a measurer's name, or `coordinator`.
        by: String,
    },
    /// A bandwidth file was written.
    File {
        /// When.
        unix: u64,
        /// When the coordinator had started.
        started: u64,
        /// Relays of the network at that time, with what the file says besides their results.
        network: Vec<Described>,
        /// How long results counted.
        expiry_s: u64,
        /// Its SHA-256.
        sha256: String,
        /// Relays of the consensus, if one was read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        consensus_relays: Option<u64>,
    },
}

/// MeasurementParameters as a record keeps them.
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

/// A relay as the bandwidth file describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Described {
    /// Identity.
    pub relay: String,
    /// Nickname.
    pub nickname: String,
    /// The average in its descriptor, bits per second.
    pub descriptor_limit: Option<u64>,
    /// Measured without echo cells.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stock: bool,
}

impl Record {
    /// When it was written, if it says so: a second's time follows from its measurement's.
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
