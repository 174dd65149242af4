//! Datagrams as they look from outside: sizes, kinds, and why one is dropped.

use sphinx_packet::header::HEADER_SIZE;

use crate::link::LINK;

/// Bytes of a data datagram.
pub const DATA_SIZE: usize = WIRE_SIZE - LINK;
/// Bytes of the largest UDP payload: an Ethernet frame of 1500 bytes less 48 for IPv6 and UDP.
pub const WIRE_SIZE: usize = 1452;
/// Bytes of an acknowledgement.
pub const ACK_SIZE: usize = 1 + ANNEX + HEADER_SIZE + ACK_PAYLOAD;
/// Bytes of an acknowledgement that are its receiver's.
pub(crate) const ACK_PAYLOAD: usize = 64;
/// Bytes of a refusal: a kind, a label, a block.
pub const REFUSAL_SIZE: usize = 1 + 8 + 16;
/// What a data datagram counts against forwarding limits: the whole frame, the thesis' M.
pub const PACKET: u32 = 1500;

/// Bytes of the annex: eight four-byte numbers, a rate for each relay and one duration.
pub const ANNEX: usize = 32;

const DATA: u8 = 1;
const ACK: u8 = 2;
const REPLY: u8 = 3;
pub(crate) const CELL: u8 = 4;
pub(crate) const REPLY_CELL: u8 = 5;
pub(crate) const REFUSAL: u8 = 6;
/// The lower half of a kind byte.
const KIND: u8 = 15;

/// Names a packet to its sender, and to nobody else.
pub type PacketId = [u8; 16];

/// 32 unpredictable bytes per call.
pub type Entropy<'a> = &'a mut dyn FnMut() -> [u8; 32];

/// Why a datagram cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// Neither size nor kind fit.
    Shape,
    /// Its integrity check fails: forged, damaged, or for another key.
    Forged,
    /// It was opened before.
    Replayed,
    /// It opens, but what is inside makes no sense.
    Inside,
    /// No more packets can be remembered in this epoch.
    Full,
}

/// Which class a datagram is in, by its size and first byte alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A data datagram.
    Data,
    /// An acknowledgement.
    Ack,
    /// An acknowledgement as large as data, which answers over a receiver path.
    Reply,
    /// A cell along a route.
    Cell,
    /// One along the way back.
    ReplyCell,
    /// Says that a cell was dropped.
    Refusal,
}

impl Class {
    /// Where the Sphinx packet begins.
    pub(crate) fn onion(self) -> usize {
        if self == Class::Data { 1 } else { 1 + ANNEX }
    }
}

/// The class of a datagram and the key epoch it names, modulo 16; none if it is neither.
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

/// The kind byte of a Sphinx packet of an epoch.
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

/// A rate that a relay says, bytes/s, or zero: no peer forwards more than this.
pub(crate) fn within_rate(value: f32) -> f32 {
    within(value, 1e10)
}
