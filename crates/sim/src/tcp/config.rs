//! What a connection is made with: plain data, passed by reference into every call.

use tidegate_control::units::Span;

/// Parameters of a connection. [`Config::default`] is Linux as it ships today, with Nagle's rule off.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Payload bytes of a full segment.
    pub mss: u32,
    /// IP, TCP and option bytes that every packet carries besides its payload.
    pub header_bytes: u32,
    /// Congestion window at the start and after a long pause, in segments (RFC 6928: 10).
    pub initial_window: u32,
    /// How the congestion window moves.
    pub congestion: Congestion,
    /// Shrink the congestion window after a pause longer than the retransmission timeout (RFC 5681, 4.1).
    pub idle_restart: bool,
    /// Let the congestion window grow only while the sender fills it (RFC 7661's aim, Linux's rule).
    pub validate_window: bool,
    /// Gather segments into bursts of up to a millisecond's worth where acknowledgements come faster than
    /// that (Linux's sizing of segmentation offload).
    pub bursts: bool,
    /// An acknowledgement may wait this long for a second segment; zero acknowledges every segment.
    pub delayed_ack: Span,
    /// This many acknowledgements at the start of a connection do not wait.
    pub quick_acks: u32,
    /// Bytes written but not yet acknowledged.
    pub send_buffer: Buffer,
    /// A writer is woken once this fraction, 1/n, of the send buffer is free (Linux: a third).
    pub wake_writer: u32,
    /// Bytes received but not yet read: bounds the receive window.
    pub receive_buffer: Buffer,
    /// Retransmission timeout before the first measurement (RFC 6298: 1 s).
    pub rto_initial: Span,
    /// Floor of the variance term of the retransmission timeout (Linux: 200 ms).
    pub rto_min: Span,
    /// Ceiling of the retransmission timeout with its backoff (Linux: 120 s).
    pub rto_max: Span,
    /// A connection whose segment was sent again this many times without an answer is broken (Linux: 15).
    pub max_timeouts: u32,
}

/// A congestion control algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// Additive increase, halving (RFC 5681).
    Reno,
    /// RFC 9438 with HyStart, as in Linux.
    Cubic,
    /// No congestion control: the window opens to its maximum with the first acknowledgement and never shrinks.
    None,
}

/// Size of a socket buffer in payload bytes.
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
    /// Shadow 3's own TCP: Reno whose window shrinks only on loss, no timestamps. An idle download of 50 KiB
    /// over it takes four round trips more than a byte: its slow start begins with two segments.
    pub fn shadow() -> Config {
        Config {
            mss: 1460,
            header_bytes: 40,
            initial_window: 2,
            congestion: Congestion::Reno,
            wake_writer: u32::MAX, // any free byte
            idle_restart: false,
            validate_window: false,
            bursts: false,
            ..Config::default()
        }
    }
}
