//! What a node and its driver exchange about a connection.

use tidegate_control::units::Time;

use crate::cell::Cell;
use crate::onion::Onion;

/// A cell on its way out, with the times at which it came this far.
#[derive(Clone, Debug, PartialEq)]
pub struct Departure<O: Onion> {
    /// The cell.
    pub cell: Cell<O>,
    /// When it entered the circuit queue.
    pub queued: Time,
    /// When it entered the output buffer.
    pub buffered: Time,
}

/// How much of a channel its driver takes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// So many cells at most, together; not zero.
    Cells(u32),
    /// None; the driver drains again by itself.
    Blocked,
    /// None; the node says [`Output::Flush`](crate::node::Output::Flush) again when more cells come.
    Paused,
}

/// A connection as [`Node::drain`](crate::node::Node::drain) writes to it.
pub trait Sink<O: Onion> {
    /// What may come next.
    fn budget(&mut self) -> Budget;
    /// So many cells of so many bytes are next. False if they must stay where they are, because the connection has
    /// taken a part of them only: the driver drains again when it takes the rest.
    fn begin(&mut self, cells: u32, bytes: u64) -> bool;
    /// One of the cells begun.
    fn write(&mut self, departure: Departure<O>);
}

/// Takes all that there is.
impl<O: Onion> Sink<O> for Vec<Departure<O>> {
    fn budget(&mut self) -> Budget {
        Budget::Cells(u32::MAX)
    }
    fn begin(&mut self, _cells: u32, _bytes: u64) -> bool {
        true
    }
    fn write(&mut self, departure: Departure<O>) {
        self.push(departure);
    }
}

/// What the kernel says of a channel's connection (TCP_INFO, SIOCOUTQNSD).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Socket {
    /// Congestion window in segments.
    pub window: u32,
    /// Segments sent and not acknowledged.
    pub unacknowledged: u32,
    /// Bytes written and never sent.
    pub unsent_bytes: u64,
    /// Payload bytes of a full segment.
    pub segment_bytes: u32,
}

impl Socket {
    /// Bytes that may be written now, with so many in the output buffer.
    pub(crate) fn limit(&self, factor: f64, buffered: u64) -> i64 {
        let segment = i64::from(self.segment_bytes);
        let space = i64::from(self.window.saturating_sub(self.unacknowledged)) * segment;
        let extra = ((i64::from(self.window) * segment) as f64 * factor) as i64;
        let held = i64::try_from(self.unsent_bytes.saturating_add(buffered)).unwrap_or(i64::MAX);
        space.saturating_add(extra).saturating_sub(held).max(0)
    }
}
