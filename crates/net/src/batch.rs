//! Cells that are written to a connection at once.

use tidegate_control::units::{Span, Time};
use tidegate_proto::crypto::encrypted::{self, Encrypted};
use tidegate_proto::crypto::layer::Body;
use tidegate_proto::crypto::wire::FIXED;
use tidegate_proto::links::Departure;
use tidegate_proto::node::{Budget, Sink};

/// Cells written at once to a connection that makes us wait: as many as one TLS record has room for. More would only
/// wait for the kernel instead of in circuit queues.
pub const ONE_RECORD: usize = 31;
/// And to one that takes all at once: as many as come in a lump.
pub const EIGHT_RECORDS: usize = 8 * ONE_RECORD;
/// Bytes that TLS may hold of them.
pub const HELD: usize = 256 << 10;

/// Bodies of cells kept for the next ones: as many as come in a few lumps.
const KEPT: usize = 512;

/// Where cells have waited, over all that were written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waits {
    /// Cells written.
    pub cells: u64,
    /// In circuit queues.
    pub circuit_queues: Span,
    /// In output buffers.
    pub output_buffers: Span,
    /// Answers of the kernel about connections, and bytes that they said to be written and never sent.
    pub inspections: u64,
    /// See `inspections`.
    pub unsent_bytes: u64,
}

/// Cells to be written at once, and where they have waited.
pub struct Batch<'a> {
    /// As they go over the wire.
    pub bytes: &'a mut Vec<u8>,
    /// So many at most.
    pub most: usize,
    /// What they were in, for others.
    pub bodies: &'a mut Vec<Body>,
    /// What is added to.
    pub waits: &'a mut Waits,
    /// The time.
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
        encrypted::write_cell(&departure.cell, self.bytes);
        if self.bodies.len() < KEPT {
            self.bodies.push(departure.cell.body);
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_proto::cell::{Cell, CircId, Command};

    use super::*;

    fn departure() -> Departure<Encrypted> {
        let cell = Cell { circ: CircId(1), command: Command::Relay, body: Body(Box::new([7; 509])) };
        Departure { cell, queued: Time::ZERO, buffered: Time::ZERO }
    }

    #[test]
    fn a_batch_ends_where_it_is_to_and_its_bodies_say_nothing_of_what_they_held() {
        let (mut bytes, mut bodies, mut waits) = (Vec::new(), Vec::new(), Waits::default());
        let mut batch =
            Batch { bytes: &mut bytes, most: 2, bodies: &mut bodies, waits: &mut waits, now: Time::ZERO };
        assert_eq!(batch.budget(), Budget::Cells(2));
        batch.write(departure());
        batch.write(departure());
        assert_eq!(batch.budget(), Budget::Blocked);
        assert_eq!((bytes.len(), bodies.len()), (2 * FIXED, 2));
        // One of our own cells, shorter than others: CONGESTED.
        let cell = encrypted::read_cell(CircId(1), 243, &[], &mut bodies).unwrap();
        assert_eq!((*cell.body.0, bodies.len()), ([0; 509], 1));
        let cell = encrypted::read_cell(CircId(1), 3, &[9; 509], &mut bodies).unwrap();
        assert_eq!((*cell.body.0, bodies.len()), ([9; 509], 0));
    }
}
