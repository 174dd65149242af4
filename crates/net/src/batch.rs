//! Batches of cells that one write sends.

use tidegate_control::units::{Span, Time};
use tidegate_proto::crypto::wire::FIXED;
use tidegate_proto::crypto::{Encrypted, wire};
use tidegate_proto::links::Departure;
use tidegate_proto::node::{Budget, Sink};

/// Cells per write to a connection that made the last write wait: one TLS record. More would wait in the kernel
/// instead of in circuit queues.
pub(crate) const ONE_RECORD: usize = 31;
/// Cells per write to a connection that took the last write at once: one read block.
pub(crate) const EIGHT_RECORDS: usize = 8 * ONE_RECORD;
/// Bytes of cells that TLS may buffer.
pub(crate) const HELD: usize = 256 << 10;

/// Waiting times, summed over all cells written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waits {
    /// Cells written.
    pub cells: u64,
    /// Time in circuit queues.
    pub circuit_queues: Span,
    /// Time in output buffers.
    pub output_buffers: Span,
    /// How often the kernel reported on a connection, and the sum of the unsent bytes that it reported.
    pub inspections: u64,
    /// See `inspections`.
    pub unsent_bytes: u64,
}

/// The cells of one write, and where their statistics go.
pub(crate) struct Batch<'a> {
    /// The cells in wire format.
    pub bytes: &'a mut Vec<u8>,
    /// The maximum number of cells.
    pub most: usize,
    /// The sums that each cell adds to.
    pub waits: &'a mut Waits,
    /// The current time.
    pub now: Time,
}

impl Sink<Encrypted> for Batch<'_> {
    fn budget(&mut self) -> Budget {
        match self.most.saturating_sub(self.bytes.len() / FIXED) as u32 {
            0 => Budget::Blocked,
            cells => Budget::Cells(cells),
        }
    }

    fn begin(&mut self, _: u32, _: u64) -> bool {
        true
    }

    fn write(&mut self, departure: Departure<Encrypted>) {
        self.waits.cells += 1;
        self.waits.circuit_queues.0 += departure.buffered.since(departure.queued).0;
        self.waits.output_buffers.0 += self.now.since(departure.buffered).0;
        wire::write_cell(&departure.cell, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_proto::cell::{Cell, CircId, Command};
    use tidegate_proto::crypto::layer::Body;

    use super::*;

    fn departure() -> Departure<Encrypted> {
        let cell = Cell { circ: CircId(1), command: Command::Relay, body: Body::from([7; 509]) };
        Departure { cell, queued: Time::ZERO, buffered: Time::ZERO }
    }

    #[test]
    fn a_batch_is_bounded_and_reused_bodies_are_cleared() {
        let (mut bytes, mut waits) = (Vec::new(), Waits::default());
        let mut batch = Batch { bytes: &mut bytes, most: 2, waits: &mut waits, now: Time::ZERO };
        assert_eq!(batch.budget(), Budget::Cells(2));
        batch.write(departure());
        batch.write(departure());
        assert_eq!(batch.budget(), Budget::Blocked);
        assert_eq!(bytes.len(), 2 * FIXED);
        // CONGESTED, one of our own cells, is shorter than other cells.
        let cell = wire::read_cell(CircId(1), 243, &[]).unwrap();
        assert_eq!(*cell.body.0, [0; 509]);
        let cell = wire::read_cell(CircId(1), 3, &[9; 509]).unwrap();
        assert_eq!(*cell.body.0, [9; 509]);
    }
}
