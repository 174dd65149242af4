//! Packets in flight, between processes, and delivered.

use tidegate_control::units::{Span, Time};

use crate::observe::Host;

/// A packet and its delays. `sent` + `link_queue` + `propagation` is the time of delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<T> {
    /// The receiver.
    pub to: Host,
    /// The connection, see [`send`](crate::underlay::Underlay::send).
    pub flow: u32,
    /// Size of the IP packet.
    pub bytes: u32,
    /// When it entered the uplink.
    pub sent: Time,
    /// Time in the uplink and the downlink, waiting and serialisation.
    pub link_queue: Span,
    /// Time between the two links.
    pub propagation: Span,
    /// The sender's payload.
    pub payload: T,
}

/// A packet in flight. Values that can be computed at arrival are not stored: a run has one of these per packet in
/// flight, and each access is a cache miss. With a payload of 40 bytes it fills one cache line.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct UnderWay<T> {
    pub payload: T,
    pub sent: Time,
    pub propagation: Span,
    pub to: Host,
    pub flow: u32,
}

impl<T> UnderWay<T> {
    /// At its receiver now: all time outside the path was in links.
    pub fn delivered_at(self, now: Time, bytes: u32) -> Packet<T> {
        let link_queue = Span(now.since(self.sent).0 - self.propagation.0);
        self.delivered(bytes, link_queue)
    }

    /// At its receiver, after this time in links.
    pub fn delivered(self, bytes: u32, link_queue: Span) -> Packet<T> {
        let UnderWay { payload, sent, propagation, to, flow } = self;
        Packet { to, flow, bytes, sent, link_queue, propagation, payload }
    }
}

/// A packet that has left its uplink for a host of another process' underlay.
#[derive(Clone, Debug)]
pub(crate) struct Leaving<T> {
    /// When it reaches the receiver's downlink.
    pub arrives: Time,
    pub bytes: u32,
    pub packet: UnderWay<T>,
}
