//! A sink that takes every cell.

use tidegate_proto::cell::Cell;
use tidegate_proto::crypto::Encrypted;
use tidegate_proto::links::Departure;
use tidegate_proto::node::{Budget, Sink};

/// Collects the written cells.
#[derive(Default)]
pub struct Taken(pub Vec<Cell<Encrypted>>);

impl Sink<Encrypted> for Taken {
    fn budget(&mut self) -> Budget {
        Budget::Cells(64)
    }
    fn begin(&mut self, _: u32, _: u64) -> bool {
        true
    }
    fn write(&mut self, departure: Departure<Encrypted>) {
        self.0.push(departure.cell);
    }
}
