//! The `tcp` table of a system: every parameter of the simulator's TCP, Linux's values by default.

use std::fmt::{self, Display};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tidegate_control::units::{Bytes, Span};
use tidegate_sim::tcp::{Buffer, Config};

use super::file::{Name, nowhere};
use super::quantity::Quantity;
use crate::registry::{self, Unknown};

/// TCP between hosts.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct TcpFile {
    /// `cubic`, `reno`, or `none`: the window is the maximum from the first acknowledgement on.
    pub congestion: Name,
    /// Payload bytes of a full segment.
    pub mss: u32,
    /// IP, TCP and option bytes of every packet.
    pub headers: u32,
    /// Congestion window at the start, in segments.
    pub initial_window: u32,
    /// Shrink the window after a pause (RFC 5681, 4.1).
    pub idle_restart: bool,
    /// Let the window grow only while it is used (RFC 7661).
    pub validate_window: bool,
    /// Gather segments into bursts of up to a millisecond's worth (Linux's segmentation offload).
    pub bursts: bool,
    /// An acknowledgement may wait this long for a second segment.
    pub delayed_ack: Quantity<Span>,
    /// This many acknowledgements at the start do not wait.
    pub quick_acks: u32,
    /// Bytes written and not acknowledged: `"128 KiB"`, or `"auto 45 KiB 4 MiB"` (first size, limit).
    pub send_buffer: Quantity<BufferText>,
    /// A writer is woken once 1/n of the send buffer is free.
    pub wake_writer: u32,
    /// Bytes received and not read.
    pub receive_buffer: Quantity<BufferText>,
    /// Retransmission timeout before the first measurement.
    pub rto_initial: Quantity<Span>,
    /// Its floor.
    pub rto_min: Quantity<Span>,
    /// Its ceiling.
    pub rto_max: Quantity<Span>,
    /// Timeouts in a row after which the connection is broken.
    pub max_timeouts: u32,
}

impl Default for TcpFile {
    fn default() -> TcpFile {
        let linux = Config::default();
        TcpFile {
            congestion: nowhere(registry::congestion_name(linux.congestion).into()),
            mss: linux.mss,
            headers: linux.header_bytes,
            initial_window: linux.initial_window,
            idle_restart: linux.idle_restart,
            validate_window: linux.validate_window,
            bursts: linux.bursts,
            delayed_ack: Quantity(linux.delayed_ack),
            quick_acks: linux.quick_acks,
            send_buffer: Quantity(BufferText(linux.send_buffer)),
            wake_writer: linux.wake_writer,
            receive_buffer: Quantity(BufferText(linux.receive_buffer)),
            rto_initial: Quantity(linux.rto_initial),
            rto_min: Quantity(linux.rto_min),
            rto_max: Quantity(linux.rto_max),
            max_timeouts: linux.max_timeouts,
        }
    }
}

impl TcpFile {
    /// The simulator's configuration.
    pub fn config(&self) -> Result<Config, Unknown> {
        Ok(Config {
            mss: self.mss,
            header_bytes: self.headers,
            initial_window: self.initial_window,
            congestion: registry::congestion(self.congestion.get_ref())?,
            idle_restart: self.idle_restart,
            validate_window: self.validate_window,
            bursts: self.bursts,
            delayed_ack: self.delayed_ack.0,
            quick_acks: self.quick_acks,
            send_buffer: self.send_buffer.0.0,
            wake_writer: self.wake_writer,
            receive_buffer: self.receive_buffer.0.0,
            rto_initial: self.rto_initial.0,
            rto_min: self.rto_min.0,
            rto_max: self.rto_max.0,
            max_timeouts: self.max_timeouts,
        })
    }
}

/// A socket buffer as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferText(pub Buffer);

impl Display for BufferText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Buffer::Fixed(bytes) => Bytes(bytes.into()).fmt(f),
            Buffer::Auto { initial, max } => {
                write!(f, "auto {} {}", Bytes(initial.into()), Bytes(max.into()))
            }
        }
    }
}

impl FromStr for BufferText {
    type Err = String;
    fn from_str(text: &str) -> Result<BufferText, String> {
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
                Ok(BufferText(Buffer::Auto { initial, max }))
            }
            _ => bytes(text).map(|bytes| BufferText(Buffer::Fixed(bytes))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_simulators() {
        assert_eq!(TcpFile::default().config().unwrap(), Config::default());
        let written = toml::to_string(&TcpFile::default()).unwrap();
        let read: TcpFile = toml::from_str(&written).unwrap();
        assert_eq!(read.config().unwrap(), Config::default(), "{written}");
    }

    #[test]
    fn buffers_are_sizes() {
        assert_eq!("128 KiB".parse(), Ok(BufferText(Buffer::Fixed(131_072))));
        for bad in ["", "auto", "0 B", "8 GiB", "auto 4 MiB 45 KiB"] {
            assert!(bad.parse::<BufferText>().is_err(), "{bad}");
        }
    }
}
