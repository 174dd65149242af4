//! Serialization of metrics: times are whole nanoseconds, so that reading restores them exactly.

use serde::{Deserialize, Serialize};
use tidegate_control::units::Span;
use tidegate_sim::observe::HostTotals;

pub(super) mod span {
    use serde::{Deserialize, Deserializer, Serializer};
    use tidegate_control::units::Span;

    pub(crate) fn serialize<S: Serializer>(value: &Span, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(value.0)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        u64::deserialize(deserializer).map(Span)
    }
}

pub(super) mod time {
    use serde::{Deserialize, Deserializer, Serializer};
    use tidegate_control::units::Time;

    pub(crate) fn serialize<S: Serializer>(value: &Time, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(value.0)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        u64::deserialize(deserializer).map(Time)
    }
}

pub(super) mod optional {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use tidegate_control::units::Span;

    pub(crate) fn serialize<S: Serializer>(value: &Option<Span>, serializer: S) -> Result<S::Ok, S::Error> {
        value.map(|span| span.0).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Span>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Span))
    }
}

/// A host's totals. The controller's part is in the run's summary.
#[derive(Serialize, Deserialize)]
#[serde(remote = "HostTotals")]
pub(super) struct Totals {
    cells_processed: u64,
    sent_bytes: u64,
    received_bytes: u64,
    dropped_packets: u64,
    retransmissions: u64,
    timeouts: u64,
    connections: u64,
    peak_descriptors: u64,
    peak_kernel_bytes: u64,
    #[serde(with = "span")]
    uplink_busy: Span,
    #[serde(with = "span")]
    downlink_busy: Span,
    #[serde(skip)]
    control: Option<tidegate_proto::control::Totals>,
    #[serde(skip)]
    endings: tidegate_proto::ending::Endings,
}
