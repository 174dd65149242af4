//! One end of a connection.

use tidegate_control::units::{Span, Time};

use super::config::Config;
use super::segment::Segment;

/// One end of a TCP connection.
#[derive(Clone, Debug)]
pub struct Endpoint {
    state: State,
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not begun: an active end before `connect`, a passive one before a SYN.
    Idle,
    /// The handshake is under way.
    Opening,
    /// Data flows; either side may have closed its direction.
    Established,
    /// Both directions are closed and everything is acknowledged.
    Closed,
    /// The peer has not answered for too long.
    Broken,
}

/// What a segment brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Payload bytes that can be read now and could not before.
    pub received: u64,
    /// Payload bytes that the peer has acknowledged for the first time.
    pub acked: u64,
    /// The handshake has just finished.
    pub established: bool,
    /// The peer's last byte has just arrived in order.
    pub peer_closed: bool,
}

/// What the kernel would tell about a connection (TCP_INFO, SIOCOUTQNSD).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Info {
    /// Congestion window in segments.
    pub cwnd: u32,
    /// Slow start ends here, in segments.
    pub ssthresh: u32,
    /// Segments sent and not acknowledged (selectively acknowledged ones count).
    pub unacked: u32,
    /// Bytes written and never sent.
    pub not_sent: u64,
    /// Payload bytes of a full segment.
    pub mss: u32,
    /// Smoothed round-trip time, zero before the first measurement.
    pub srtt: Span,
    /// Retransmission timeout without backoff.
    pub rto: Span,
    /// Segments sent again.
    pub retransmissions: u32,
    /// Retransmission timeouts.
    pub timeouts: u32,
}

impl Endpoint {
    /// The end that connects.
    pub fn active(config: &Config) -> Endpoint {
        let _ = config;
        Endpoint { state: State::Idle }
    }

    /// The end that is connected to.
    pub fn passive(config: &Config) -> Endpoint {
        Endpoint::active(config)
    }

    /// Begins the handshake. Bytes may be written before it ends.
    pub fn connect(&mut self, _now: Time) {
        self.state = State::Opening;
    }

    /// Appends bytes to the stream, as many as the send buffer takes; gives how many.
    pub fn write(&mut self, _config: &Config, _bytes: u64) -> u64 {
        0
    }

    /// Bytes that the send buffer takes now.
    pub fn send_space(&self, _config: &Config) -> u64 {
        0
    }

    /// Whether the kernel would wake a writer: a third of the send buffer is free.
    pub fn writable(&self, config: &Config) -> bool {
        self.send_space(config) > 0
    }

    /// Bytes that have arrived in order and have not been read.
    pub fn readable(&self) -> u64 {
        0
    }

    /// The application takes bytes out of the receive buffer; gives how many there were to take.
    pub fn read(&mut self, _config: &Config, _now: Time, _bytes: u64) -> u64 {
        0
    }

    /// A segment from the peer.
    pub fn on_segment(&mut self, _config: &Config, _now: Time, _segment: &Segment) -> Arrival {
        Arrival::default()
    }

    /// The next segment to send, if one may be sent now. Call until it gives `None`.
    pub fn poll_transmit(&mut self, _config: &Config, _now: Time) -> Option<Segment> {
        None
    }

    /// When [`Endpoint::on_timeout`] must be called; [`Time::NEVER`] if there is nothing to wait for.
    pub fn next_timeout(&self) -> Time {
        Time::NEVER
    }

    /// Time has passed. Calling it early does no harm.
    pub fn on_timeout(&mut self, _config: &Config, _now: Time) {}

    /// No more bytes will be written; a FIN follows the last one.
    pub fn close(&mut self) {}

    /// Where the connection stands.
    pub fn state(&self) -> State {
        self.state
    }

    /// Offset up to which bytes have been written.
    pub fn written(&self) -> u64 {
        0
    }

    /// Offset up to which bytes have been sent at least once.
    pub fn transmitted(&self) -> u64 {
        0
    }

    /// Offset up to which the peer has acknowledged.
    pub fn acknowledged(&self) -> u64 {
        0
    }

    /// Offset up to which the peer's bytes have arrived in order.
    pub fn delivered_in_order(&self) -> u64 {
        0
    }

    /// The connection in figures.
    pub fn info(&self, config: &Config) -> Info {
        Info {
            cwnd: 0,
            ssthresh: 0,
            unacked: 0,
            not_sent: 0,
            mss: config.mss,
            srtt: Span::ZERO,
            rto: Span::ZERO,
            retransmissions: 0,
            timeouts: 0,
        }
    }
}
