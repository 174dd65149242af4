//! TCP parameters by kind of path: between machines, within one, under IPsec, and for QUIC's packets.

use tidegate_control::units::Span;

use crate::plan::System;
use crate::tcp;

/// IPv4, UDP, and of QUIC's short header a type, a connection number of eight bytes and a packet number of two, and the
/// sixteen bytes that authenticate a packet (RFC 9000, 17.3; RFC 9001, 5.3).
const HEADERS: u32 = 20 + 8 + 1 + 8 + 2 + 16;
/// Longest delay of an acknowledgement (RFC 9000, 18.2: `max_ack_delay`).
const MAX_ACK_DELAY: Span = Span::from_millis(25);

/// A kind of path: an index into [`parameters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::world) enum TcpProfile {
    /// Between machines.
    Internet,
    /// Between two processes of one machine.
    Loopback,
    /// Between two relays that speak IPsec.
    Ipsec,
    /// Between two nodes that speak QUIC: for its packets.
    Quic,
}

/// Parameters for QUIC's packets, derived from TCP's: packets of the same size, without the kernel's bursts.
fn packets(tcp: &tcp::Config) -> tcp::Config {
    tcp::Config {
        mss: tcp.mss + tcp.header_bytes - HEADERS,
        header_bytes: HEADERS,
        bursts: false,
        // Both are rules of Linux's TCP only.
        nagle: false,
        small_queues: false,
        delayed_ack: tcp.delayed_ack.min(MAX_ACK_DELAY),
        ..tcp.clone()
    }
}

/// TCP parameters by [`TcpProfile`].
pub(super) fn parameters(system: &System) -> [tcp::Config; 4] {
    let first_window = match system.tcp.receive_buffer {
        tcp::Buffer::Fixed(bytes) => bytes,
        tcp::Buffer::Auto { initial, max } => initial.min(max),
    };
    let loopback = tcp::Config {
        // Segments are at most half of the peer's window (Linux: `tcp_bound_to_half_wnd`). Otherwise a window of one
        // segment reopens only when the receiver has read all of it.
        mss: 65_483.min((first_window / 2).max(1)),
        congestion: tcp::Congestion::None,
        delayed_ack: Span::ZERO,
        ..system.tcp.clone()
    };
    let esp = system.deployment.esp_overhead.min(system.tcp.mss - 1);
    let ipsec = tcp::Config {
        mss: system.tcp.mss - esp,
        header_bytes: system.tcp.header_bytes + esp,
        ..system.tcp.clone()
    };
    [system.tcp.clone(), loopback, ipsec, packets(&system.tcp)]
}
