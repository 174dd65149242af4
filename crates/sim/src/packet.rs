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
    pub(crate) fn delivered_at(self, now: Time, bytes: u32) -> Packet<T> {
        let link_queue = Span(now.since(self.sent).0 - self.propagation.0);
        self.delivered(bytes, link_queue)
    }

    /// At its receiver, after this time in links.
    pub(crate) fn delivered(self, bytes: u32, link_queue: Span) -> Packet<T> {
        let UnderWay { payload, sent, propagation, to, flow } = self;
        Packet { to, flow, bytes, sent, link_queue, propagation, payload }
    }
}

/// A packet or train that has left its uplink for a host of another process' underlay.
#[derive(Clone, Debug)]
pub(crate) struct Leaving<T> {
    /// When it reaches the receiver's downlink; for a train, when it could leave that downlink.
    pub arrives: Time,
    pub size: Size,
    pub is_train: bool,
    pub packet: UnderWay<T>,
}

/// Number of packets and their bytes together. Packed, because events in the queue hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(u32);

impl Size {
    const BYTE_BITS: u32 = 20;

    /// # Panics
    /// If there are 4096 packets or a mebibyte, or more.
    pub(crate) fn new(packets: u32, bytes: u32) -> Size {
        assert!(bytes < 1 << Size::BYTE_BITS && packets < 1 << (u32::BITS - Size::BYTE_BITS));
        Size(packets << Size::BYTE_BITS | bytes)
    }

    pub(crate) fn packets(self) -> u32 {
        self.0 >> Size::BYTE_BITS
    }

    pub(crate) fn bytes(self) -> u32 {
        self.0 & ((1 << Size::BYTE_BITS) - 1)
    }
}

/// Sizes of the packets of a train: all have `full` bytes except the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Train {
    pub packets: u32,
    pub full: u32,
    pub last: u32,
}

impl Train {
    /// A train of equal packets with these sizes together; the last is less than `packets` bytes longer.
    pub(crate) fn even(size: Size) -> Train {
        let full = size.bytes() / size.packets();
        Train { packets: size.packets(), full, last: size.bytes() - (size.packets() - 1) * full }
    }

    /// The first packets of the train.
    pub(crate) fn front(self, packets: u32) -> Train {
        if packets < self.packets { Train { packets, last: self.full, ..self } } else { self }
    }

    pub(crate) fn size(self) -> Size {
        Size::new(self.packets, (self.packets - 1) * self.full + self.last)
    }

    /// Bytes of one packet.
    pub(crate) fn bytes_of(self, packet: u32) -> u32 {
        if packet + 1 == self.packets { self.last } else { self.full }
    }
}
