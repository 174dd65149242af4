//! Cells that are written to a connection at once.

use tidegate_control::units::{Span, Time};
use tidegate_proto::crypto::encrypted::{self, Encrypted};
use tidegate_proto::crypto::wire::FIXED;
use tidegate_proto::links::Departure;
use tidegate_proto::node::{Budget, Sink};

/// Cells written at once: as many as one TLS record has room for.
const BATCH: usize = 31;

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
    /// What is added to.
    pub waits: &'a mut Waits,
    /// The time.
    pub now: Time,
}

impl Sink<Encrypted> for Batch<'_> {
    fn budget(&mut self) -> Budget {
        match (BATCH - self.bytes.len() / FIXED) as u32 {
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
    }
}
