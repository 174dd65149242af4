//! One stream's flow control.

use tidegate_control::units::Time;

use crate::cell::StreamId;
use crate::control::Window as _;
use crate::control::windows::Fixed;

/// A stream sends no SENDME while its local side holds more than this (tor's `connection_outbuf_too_full`, ten cells).
pub(crate) const HELD_BYTES: u64 = 10 * 509;

/// Phase of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The far side connects (BEGIN was sent).
    Connecting,
    /// A name is looked up (RESOLVE was sent).
    Resolving,
    /// Data may go both ways.
    Connected,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub id: StreamId,
    pub phase: Phase,
    /// It had bytes left when a window or the circuit queue stopped it.
    pub starved: bool,
    /// The stream's own window, unless the circuit has congestion control.
    pub window: Option<Fixed>,
    pub delivered: u32,
    /// The peer sent XOFF and not yet XON.
    pub stopped: bool,
    /// We sent XOFF and not yet XON.
    pub stopping: bool,
    /// Delivered bytes that the stream's local side has not consumed, and since when there are some.
    pub held: u64,
    pub held_since: Time,
    /// Announced bytes that are not in cells yet.
    pub announced: u64,
}

impl Stream {
    pub(crate) fn new(id: StreamId, phase: Phase, window: Option<Fixed>) -> Stream {
        Stream {
            id,
            phase,
            starved: false,
            window,
            delivered: 0,
            stopped: false,
            stopping: false,
            held: 0,
            held_since: Time::ZERO,
            announced: 0,
        }
    }

    /// Whether it has bytes left and may go on.
    pub(crate) fn is_able(&self) -> bool {
        self.starved && self.room() > 0
    }

    pub(crate) fn room(&self) -> u32 {
        if self.stopped { 0 } else { self.window.as_ref().map_or(u32::MAX, |window| window.room()) }
    }

    /// Whether a SENDME is due: enough cells were delivered, and the local side consumes them.
    pub(crate) fn acknowledges(&mut self, increment: u32) -> bool {
        let owed = self.delivered >= increment && self.held <= HELD_BYTES;
        if owed {
            self.delivered -= increment;
        }
        owed
    }
}
