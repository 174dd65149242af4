//! Sizes and kinds of datagrams, and errors of opening them.

use sphinx_packet::header::HEADER_SIZE;

use crate::link::LINK;

/// Size of a data datagram, bytes.
pub const DATA_SIZE: usize = WIRE_SIZE - LINK;
/// Largest UDP payload: an Ethernet frame of 1500 bytes minus 48 for IPv6 and UDP.
pub const WIRE_SIZE: usize = 1452;
/// Size of an acknowledgement, bytes.
pub const ACK_SIZE: usize = 1 + ANNEX + HEADER_SIZE + ACK_PAYLOAD;
/// Length of the receiver's text in an acknowledgement, bytes.
pub(crate) const ACK_PAYLOAD: usize = 64;
/// Size of a refusal: kind, label, block.
pub(crate) const REFUSAL_SIZE: usize = 1 + 8 + 16;
/// Size of a data datagram for forwarding limits: the whole frame (the thesis' M).
pub const PACKET: u32 = 1500;

/// Length of the annex: eight four-byte numbers, one rate per relay and one duration.
pub(crate) const ANNEX: usize = 32;

const DATA: u8 = 1;
const ACK: u8 = 2;
const REPLY: u8 = 3;
pub(crate) const CELL: u8 = 4;
pub(crate) const REPLY_CELL: u8 = 5;
pub(crate) const REFUSAL: u8 = 6;
/// Mask of the kind in a kind byte.
const KIND: u8 = 15;

/// Identifier of a packet, which only its sender knows.
pub(crate) type PacketId = [u8; 16];

/// 32 unpredictable bytes per call.
pub(crate) type Entropy<'a> = &'a mut dyn FnMut() -> [u8; 32];

/// Why a datagram cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenError {
    /// Wrong size or kind.
    Shape,
    /// The integrity check fails: forged, damaged, or for another key.
    Forged,
    /// It was opened before.
    Replayed,
    /// Its contents are malformed.
    Inside,
    /// The memory for replay tags of this epoch is full.
    Full,
}

/// Class of a datagram, by its size and first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A data datagram.
    Data,
    /// An acknowledgement.
    Ack,
    /// An answer over a receiver path: an acknowledgement of the size of data.
    Reply,
    /// A cell on a route.
    Cell,
    /// A cell on the way back.
    ReplyCell,
    /// A report that a cell was dropped.
    Refusal,
}

impl Class {
    /// Offset of the Sphinx packet.
    pub(crate) fn onion(self) -> usize {
        if self == Class::Data { 1 } else { 1 + ANNEX }
    }
}

/// The class of a datagram and its key epoch modulo 16; `None` if it is malformed.
pub fn class(datagram: &[u8]) -> Option<(Class, u8)> {
    let kind = *datagram.first()?;
    let class = match (kind & KIND, datagram.len()) {
        (DATA, DATA_SIZE) => Class::Data,
        (ACK, ACK_SIZE) => Class::Ack,
        (REPLY, DATA_SIZE) => Class::Reply,
        (CELL, DATA_SIZE) => Class::Cell,
        (REPLY_CELL, DATA_SIZE) => Class::ReplyCell,
        (REFUSAL, REFUSAL_SIZE) => Class::Refusal,
        _ => return None,
    };
    Some((class, kind >> 4))
}

/// The kind byte of a Sphinx packet in an epoch.
pub(crate) fn kind(class: Class, epoch: u8) -> u8 {
    let kind = match class {
        Class::Data => DATA,
        Class::Ack => ACK,
        _ => REPLY,
    };
    kind | epoch << 4
}

pub(crate) fn within(value: f32, most: f32) -> f32 {
    if value > 0.0 && value <= most { value } else { 0.0 }
}

/// Limits a received rate, bytes/s, to the plausible range; zero if invalid.
pub(crate) fn within_rate(value: f32) -> f32 {
    within(value, 1e10)
}
