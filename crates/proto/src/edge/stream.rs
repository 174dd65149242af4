//! One stream's flow control.

use tidegate_control::units::{Span, Time};

use crate::bucket::{BucketPlan, TokenBucket};
use crate::cell::{DATA_BYTES, StreamId};
use crate::control::Window as _;
use crate::control::windows::Fixed;

use super::drain::Drain;
use super::signals::Signals;

/// A stream sends no SENDME while its local side holds more than this (tor's `connection_outbuf_too_full`, ten cells).
pub(crate) const HELD_BYTES: u64 = 10 * 509;

/// Interval at which a rate limit adds bytes (tor's `TokenBucketRefillInterval`).
const REFILL: Span = Span::from_millis(100);

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
    /// The rate at which the peer lets it send (XON), if there is one.
    pub rate: Option<Box<TokenBucket>>,
    /// When it may go on, if this rate has stopped it.
    pub wakes: Option<Time>,
    /// Client: counts of what the exit may signal.
    pub signals: Signals,
    /// What we tell the peer about our own side.
    pub drain: Drain,
    /// Memory of delivered bytes that the stream's local side has not consumed, and since when there are some.
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
            rate: None,
            wakes: None,
            signals: Signals::default(),
            drain: Drain::default(),
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
        if self.stopped {
            return 0;
        }
        // The last cell may overdraw the bucket.
        let cells =
            |rate: &TokenBucket| rate.left().div_ceil(DATA_BYTES.into()).try_into().unwrap_or(u32::MAX);
        let allowed = self.rate.as_deref().map_or(u32::MAX, cells);
        self.window.as_ref().map_or(u32::MAX, |window| window.room()).min(allowed)
    }

    /// Adds what the peer's rate has allowed by now.
    pub(crate) fn refill(&mut self, now: Time) {
        if let Some(rate) = &mut self.rate {
            rate.available(now);
        }
    }

    /// Sends at most at this rate from now on, in units of 1,000 bytes per second (tor's `circuit_process_stream_xon`). A
    /// bucket holds what may pass in a second.
    pub(crate) fn limit(&mut self, now: Time, rate: u32) {
        let bytes = u64::from(rate) * 1000;
        if bytes == 0 || bytes > i32::MAX as u64 {
            self.rate = None;
            return;
        }
        let plan = BucketPlan {
            rate_bytes_per_s: bytes,
            burst_bytes: bytes,
            refill_every: REFILL,
            drop_fractions: false,
        };
        self.rate.get_or_insert_with(|| Box::new(TokenBucket::new(plan))).change(now, bytes, bytes);
    }

    /// When it may go on, if it has bytes left and only the peer's rate stops it. A whole cell fits then, so a timer moves a cell.
    pub(crate) fn waits_until(&self) -> Option<Time> {
        let rate = self.rate.as_deref().filter(|rate| rate.left() == 0)?;
        (self.starved && !self.stopped).then(|| rate.due(DATA_BYTES.into()))
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
