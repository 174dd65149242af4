//! Parameters of a connection: plain data, passed by reference into every call.

use std::fmt::{self, Display};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::units::{Bytes, Span};
use tidegate_control::written_as_text;

use super::congestion::Congestion;

/// TCP between hosts. [`Config::default`] is Linux as it ships today.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Config {
    /// Payload bytes of a full segment. Source: Ethernet with time stamps.
    #[schemars(range(min = 64, max = 65_495))]
    pub mss: u32,
    /// IP, TCP and option bytes that every packet carries besides its payload. Source: IPv4 with time stamps.
    #[serde(rename = "headers")]
    #[schemars(range(min = 40, max = 120))]
    pub header_bytes: u32,
    /// Congestion window at the start and after a long pause, in segments. Source: RFC 6928.
    #[schemars(range(min = 1, max = 10_000))]
    pub initial_window: u32,
    /// How the congestion window moves.
    pub congestion: Congestion,
    /// Shrink the congestion window after a pause longer than the retransmission timeout. Source: RFC 5681, 4.1.
    pub idle_restart: bool,
    /// Let the congestion window grow only while the sender fills it. Source: RFC 7661's aim, Linux's rule.
    pub validate_window: bool,
    /// Gather segments into bursts of up to a millisecond's worth where acknowledgements come faster than
    /// that. Source: Linux's sizing of segmentation offload.
    pub bursts: bool,
    /// The unit that crosses links between hosts: `packet`, or `train`. A train consists of the packets of one
    /// burst; the receiver acknowledges it as a whole. Trains need fewer events. Source: Linux's segmentation offload
    /// (TSO, GRO); off, as in published simulators.
    pub fidelity: Fidelity,
    /// Hold back a segment that is not full while an earlier one that was not full is unacknowledged. Source: Linux
    /// (`tcp_nagle_check`, Minshall's form of Nagle's rule); tor never sets `TCP_NODELAY`.
    pub nagle: bool,
    /// At most three bursts of a connection wait in its host's uplink; the rest waits in the send buffer. Has no effect
    /// on uplinks with CoDel or on QUIC. Source: Linux's TCP small queues; off, as in published simulators.
    pub small_queues: bool,
    /// An acknowledgement may wait this long for a second segment; zero acknowledges every segment. Source: Linux.
    pub delayed_ack: Span,
    /// This many acknowledgements at the start of a connection do not wait. Source: Linux.
    pub quick_acks: u32,
    /// Bytes written but not yet acknowledged. Source: Linux's `tcp_wmem`.
    pub send_buffer: Buffer,
    /// A writer is woken once this fraction, 1/n, of the send buffer is free. Source: Linux.
    #[schemars(range(min = 1))]
    pub wake_writer: u32,
    /// Bytes received but not yet read: bounds the receive window. Source: Linux's `tcp_rmem`.
    pub receive_buffer: Buffer,
    /// Retransmission timeout before the first measurement. Source: RFC 6298.
    #[schemars(extend("x-range" = "1 ns.."))]
    pub rto_initial: Span,
    /// Floor of the variance term of the retransmission timeout; at most `rto-max`. Source: Linux.
    #[schemars(extend("x-range" = "1 ns.."))]
    pub rto_min: Span,
    /// Ceiling of the retransmission timeout with its backoff. Source: Linux.
    pub rto_max: Span,
    /// A connection whose segment was sent again this many times without an answer is broken. Source: Linux's
    /// `tcp_retries2`.
    pub max_timeouts: u32,
}

/// The unit that crosses the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Fidelity {
    /// Each packet on its own.
    #[default]
    Packet,
    /// Packets of one burst together, over links that are first come, first served.
    Train,
}

/// Size of a socket buffer in payload bytes: `"128 KiB"`, or `"auto 45 KiB 4 MiB"` (first size, limit).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// Always this size.
    Fixed(u32),
    /// Grows with the connection's need, as in Linux.
    Auto {
        /// Size at the start.
        initial: u32,
        /// Size never passed.
        max: u32,
    },
}

impl Default for Config {
    fn default() -> Config {
        Config {
            mss: 1448,
            header_bytes: 52,
            initial_window: 10,
            congestion: Congestion::Cubic,
            idle_restart: true,
            validate_window: true,
            bursts: true,
            fidelity: Fidelity::Packet,
            nagle: true,
            small_queues: false,
            delayed_ack: Span::from_millis(40),
            quick_acks: 16,
            send_buffer: Buffer::Auto { initial: 46_080, max: 4 << 20 },
            wake_writer: 3,
            receive_buffer: Buffer::Auto { initial: 65_536, max: 16 << 20 },
            rto_initial: Span::from_secs(1),
            rto_min: Span::from_millis(200),
            rto_max: Span::from_secs(120),
            max_timeouts: 15,
        }
    }
}

impl Config {
    /// Shadow 3's own TCP: Reno with a window that shrinks only on loss, without timestamps. An idle download of 50 KiB
    /// over it takes four round trips more than a byte: its slow start begins with two segments.
    #[cfg(test)]
    pub(crate) fn shadow() -> Config {
        Config {
            mss: 1460,
            header_bytes: 40,
            initial_window: 2,
            congestion: Congestion::Reno,
            wake_writer: u32::MAX, // any free byte
            idle_restart: false,
            validate_window: false,
            bursts: false,
            nagle: false,
            ..Config::default()
        }
    }
}

impl Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Buffer::Fixed(bytes) => Bytes((*bytes).into()).fmt(f),
            Buffer::Auto { initial, max } => {
                write!(f, "auto {} {}", Bytes((*initial).into()), Bytes((*max).into()))
            }
        }
    }
}

impl FromStr for Buffer {
    type Err = String;
    fn from_str(text: &str) -> Result<Buffer, String> {
        let bytes = |text: &str| -> Result<u32, String> {
            let Bytes(bytes) = text.parse().map_err(|error| format!("{error}, or \"auto 45 KiB 4 MiB\""))?;
            match u32::try_from(bytes) {
                Ok(0) => Err(format!("`{text}` holds nothing")),
                Ok(bytes) => Ok(bytes),
                Err(_) => Err(format!("`{text}` is too large for a socket buffer")),
            }
        };
        match text.split_whitespace().collect::<Vec<_>>()[..] {
            ["auto", n, unit, m, limit_unit] => {
                let (initial, max) = (bytes(&format!("{n} {unit}"))?, bytes(&format!("{m} {limit_unit}"))?);
                if initial > max {
                    return Err(format!("`{text}`: the first size is above the limit"));
                }
                Ok(Buffer::Auto { initial, max })
            }
            _ => bytes(text).map(Buffer::Fixed),
        }
    }
}

written_as_text!(Buffer, form = "size, or \"auto FIRST LIMIT\"", examples = ["128 KiB", "auto 45 KiB 4 MiB"]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_sizes() {
        assert_eq!("128 KiB".parse(), Ok(Buffer::Fixed(131_072)));
        let linux = Config::default().send_buffer;
        assert_eq!(linux.to_string().parse(), Ok(linux));
        for bad in ["", "auto", "0 B", "8 GiB", "auto 4 MiB 45 KiB"] {
            assert!(bad.parse::<Buffer>().is_err(), "{bad}");
        }
    }
}
