//! Bounds of values in a relay's configuration.

use tidegate_control::units::{Bytes, Rate, Span};

/// Least bandwidth of a relay (tor: `RELAY_REQUIRED_MIN_BANDWIDTH`).
pub(super) const LEAST_BANDWIDTH: Rate = Rate::from_bytes_per_s(75 << 10);
/// Least `memory`: all that one neighbour that reads nothing can make the relay hold. These are the cells and the
/// output buffer (2.1 MB), and the bytes in the kernel (1.25 MiB); see docs/attacks.md.
pub(super) const LEAST_MEMORY: Bytes = Bytes(4 << 20);
/// Least time that a circuit's extension or a connection without circuits may last.
pub(super) const LEAST_WAIT: Span = Span::from_secs(1);
/// Longest contact, bytes: authorities refuse descriptors above 20,000 bytes (tor: `MAX_DESCRIPTOR_UPLOAD_SIZE`).
pub(super) const LONGEST_CONTACT: usize = 1000;
/// Maximum number of relays of a family, for the same reason. Family keys are not limited.
pub(super) const LARGEST_FAMILY: usize = 300;
