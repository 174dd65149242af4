//! Types that a node and its driver exchange about a connection.

use tidegate_control::units::Time;

use crate::cell::Cell;
use crate::onion::Onion;

/// A cell that leaves the node, with timestamps.
#[derive(Clone, Debug, PartialEq)]
pub struct Departure<O: Onion> {
    /// The cell.
    pub cell: Cell<O>,
    /// When it entered the circuit queue.
    pub queued: Time,
    /// When it entered the output buffer.
    pub buffered: Time,
}

/// How many cells of a channel the driver takes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// At most this number, which is not zero.
    Cells(u32),
    /// None for now; the driver drains again by itself.
    Blocked,
    /// None; the node requests [`Output::Flush`](crate::node::Output::Flush) again when more cells come.
    Paused,
}

/// A connection that [`Node::drain`](crate::node::Node::drain) writes to.
pub trait Sink<O: Onion> {
    /// How many cells may come next.
    fn budget(&mut self) -> Budget;
    /// Announces the next cells and their total bytes. False if they must stay in the output buffer because the
    /// connection has taken only a part of them; the driver drains again when it takes the rest.
    fn begin(&mut self, cells: u32, bytes: u64) -> bool;
    /// Writes one of the announced cells.
    fn write(&mut self, departure: Departure<O>);
    /// Writes a run: so many equal ones of the announced cells.
    fn write_run(&mut self, departure: Departure<O>, count: u32) {
        (1..count).for_each(|_| self.write(departure.clone()));
        self.write(departure);
    }
}

/// Takes all cells.
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

/// State of a channel's TCP connection in the kernel (TCP_INFO, SIOCOUTQNSD).
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
    /// Bytes that may be written now, by the formula of tor's `update_socket_info_impl`. `buffered`: bytes in the output
    /// buffer.
    pub(crate) fn limit(&self, factor: f64, buffered: u64) -> i64 {
        let segment = i64::from(self.segment_bytes);
        let space = i64::from(self.window.saturating_sub(self.unacknowledged)) * segment;
        let extra = ((i64::from(self.window) * segment) as f64 * factor) as i64;
        let held = i64::try_from(self.unsent_bytes.saturating_add(buffered)).unwrap_or(i64::MAX);
        space.saturating_add(extra).saturating_sub(held).max(0)
    }
}
