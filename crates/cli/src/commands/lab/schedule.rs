//! Pauses of downloads, and names of results.

use tidegate_control::units::Span;

/// Pause between two small downloads of a client.
pub const PAUSE: Span = Span::from_secs(1);

/// Names of results: the time until the exit has connected, the time to the last byte of 50 KiB, and a client's rate.
pub const METRICS: [&str; 3] = ["connect_s", "ttlb_50kib_s", "bulk_kb_per_s"];
