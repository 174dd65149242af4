//! Circuit-level flow control of one end, shared by all streams of the circuit.

use std::collections::VecDeque;

use subtle::ConstantTimeEq as _;
use tidegate_control::units::{Span, Time};

use crate::cell::{DATA_BYTES, Digest};
use crate::conflux::split::Capacity;
use crate::control::windows::{Fixed, Windows};
use crate::control::{Violation, Window};

/// Flow control at one end of a circuit: its windows, and the SENDMEs that it owes its peer.
#[derive(Debug)]
pub(crate) struct Flow {
    /// The fixed windows, unless the circuit has congestion control.
    windows: Option<Windows>,
    in_flight: Box<dyn Window>,
    /// Cells packaged since the last one that a SENDME will acknowledge by digest, and the digests of those that are not
    /// acknowledged yet, oldest first (proposal 289).
    since: u32,
    expected: VecDeque<Digest>,
    /// Cells delivered since the last circuit SENDME that we sent.
    delivered: u32,
    /// Cells that a controller lets this end package in the current step; infinite without one.
    allowance: f64,
    /// Cells per second that the controller has planned for the circuit, if it plans.
    planned: Option<f64>,
    /// Cells packaged since the controller last asked.
    packaged: u32,
    /// Application bytes that fit into a message.
    data_bytes: u16,
}

impl Flow {
    /// With this congestion window, or else with the fixed windows.
    pub(crate) fn new(congestion: Option<Box<dyn Window>>, windows: Windows, allowance: f64) -> Flow {
        let fixed = || Box::new(Fixed::new(windows.circuit, windows.circuit_increment));
        Flow {
            windows: congestion.is_none().then_some(windows),
            in_flight: congestion.unwrap_or_else(|| fixed()),
            since: 0,
            expected: VecDeque::new(),
            delivered: 0,
            allowance,
            planned: None,
            packaged: 0,
            data_bytes: DATA_BYTES,
        }
    }

    /// The fixed windows, unless the circuit has congestion control.
    pub(crate) fn windows(&self) -> Option<Windows> {
        self.windows
    }

    /// The circuit's round-trip time, if congestion control has measured it.
    pub(crate) fn round_trip(&self) -> Option<Span> {
        self.in_flight.round_trip()
    }

    /// Application bytes that fit into a message; [`DATA_BYTES`] unless set.
    pub(crate) fn data_bytes(&self) -> u16 {
        self.data_bytes
    }

    /// Sets the application bytes that fit into a message.
    pub(crate) fn set_data_bytes(&mut self, bytes: u16) {
        self.data_bytes = bytes;
    }

    /// Delivered cells that a circuit SENDME acknowledges.
    pub(crate) fn increment(&self) -> u32 {
        self.in_flight.sendme_increment()
    }

    /// Cells that may be packaged now. `queue`: cells that the circuit queue takes.
    pub(crate) fn room(&self, queue: u32) -> u32 {
        self.in_flight.room().min(queue).min(self.allowance as u32)
    }

    /// The capacity of this circuit as a leg of a conflux set.
    pub(crate) fn capacity(&self, queue: u32) -> Capacity {
        Capacity {
            room: self.room(queue),
            window: self.in_flight.room(),
            planned: self.planned,
            increment: self.increment(),
        }
    }

    /// A DATA cell arrived. Returns whether a circuit SENDME is due.
    pub(crate) fn deliver(&mut self) -> Result<bool, Violation> {
        let increment = self.increment();
        self.delivered += 1;
        // The peer may use the window minus what our SENDMEs have not acknowledged. We send them at once, so the peer
        // is never ahead by more than the window.
        if self.windows.is_some_and(|windows| self.delivered > windows.circuit) {
            return Err(Violation);
        }
        let due = self.delivered >= increment;
        if due {
            self.delivered -= increment;
        }
        Ok(due)
    }

    /// A circuit SENDME arrived. Its digest must be that of the oldest cell that awaits one (proposal 289).
    pub(crate) fn acknowledged(
        &mut self,
        now: Time,
        digest: Option<Digest>,
        blocked: bool,
    ) -> Result<(), Violation> {
        // In constant time: the time of a refusal must not tell how much of a guess is right.
        let differs =
            |expected: Digest| digest.is_none_or(|said| !bool::from(said.bytes().ct_eq(expected.bytes())));
        if self.expected.pop_front().is_some_and(differs) {
            return Err(Violation);
        }
        self.in_flight.acknowledged(now, blocked)
    }

    /// Number of cells up to the next one that a SENDME will name by its digest.
    pub(crate) fn until_digest(&self) -> u32 {
        self.increment() - self.since
    }

    /// Counts DATA cells that `send` sends: at most as many as [`until_digest`](Self::until_digest). It returns the digest
    /// of the last one if asked to.
    pub(crate) fn sent(&mut self, now: Time, count: u32, send: impl FnOnce(bool) -> Option<Digest>) {
        // A SENDME names the digest of the last cell of its increment (proposal 289).
        self.since = (self.since + count) % self.increment();
        if let Some(digest) = send(self.since == 0) {
            self.expected.push_back(digest);
        }
        for _ in 0..count {
            self.in_flight.sent(now);
            self.allowance -= 1.0;
        }
        self.packaged += count;
    }

    /// Sets the allowance of a controller's step and its planned rate in cells per second. With `begun`, the unused part
    /// of a cell is added.
    pub(crate) fn allow(&mut self, cells: f64, planned: Option<f64>, begun: bool) {
        self.planned = planned;
        let left = if begun && self.allowance < 1.0 { self.allowance } else { 0.0 };
        self.allowance = cells + left;
    }

    /// Takes the number of cells packaged since the last call.
    pub(crate) fn take_packaged(&mut self) -> u32 {
        std::mem::take(&mut self.packaged)
    }
}
