//! One stream's flow control.

use tidegate_control::units::Time;

use crate::cell::StreamId;
use crate::control::Window as _;
use crate::control::windows::Fixed;

/// A stream whose own side holds more than this says no SENDME (tor's `connection_outbuf_too_full`, ten cells).
pub const HELD_BYTES: u64 = 10 * 509;

#[derive(Debug)]
pub struct Stream {
    pub id: StreamId,
    pub connected: bool,
    /// It had bytes left when a window or the circuit queue stopped it.
    pub starved: bool,
    /// The stream's own window, unless the circuit has congestion control.
    pub window: Option<Fixed>,
    pub delivered: u32,
    /// The peer said XOFF and not yet XON.
    pub stopped: bool,
    /// We did.
    pub stopping: bool,
    /// Bytes that the stream's own side has not taken yet, and since when there are some.
    pub held: u64,
    pub held_since: Time,
    /// Bytes that its source has announced and that are not in cells yet.
    pub announced: u64,
}

impl Stream {
    pub fn new(id: StreamId, window: Option<Fixed>) -> Stream {
        Stream {
            id,
            connected: false,
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

    pub fn room(&self) -> u32 {
        if self.stopped { 0 } else { self.window.as_ref().map_or(u32::MAX, |window| window.room()) }
    }

    /// Whether a SENDME is due: enough was delivered, and its own side takes it.
    pub fn acknowledges(&mut self, increment: u32) -> bool {
        let owed = self.delivered >= increment && self.held <= HELD_BYTES;
        if owed {
            self.delivered -= increment;
        }
        owed
    }
}
