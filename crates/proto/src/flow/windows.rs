//! Fixed SENDME windows (tor-spec, "Flow control").

use super::Violation;

/// Tor's fixed flow-control windows, in cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// In flight per circuit (CIRCWINDOW_START).
    pub circuit: u32,
    /// Acknowledged by one circuit SENDME (CIRCWINDOW_INCREMENT).
    pub circuit_increment: u32,
    /// In flight per stream (STREAMWINDOW_START).
    pub stream: u32,
    /// Acknowledged by one stream SENDME (STREAMWINDOW_INCREMENT).
    pub stream_increment: u32,
}

impl Default for Windows {
    fn default() -> Windows {
        Windows { circuit: 1000, circuit_increment: 100, stream: 500, stream_increment: 50 }
    }
}

/// One window: of a circuit or a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    left: u32,
    size: u32,
    increment: u32,
}

impl Window {
    pub fn new(size: u32, increment: u32) -> Window {
        Window { left: size, size, increment }
    }

    /// Cells that may still be packaged before a SENDME arrives.
    pub fn room(&self) -> u32 {
        self.left
    }

    pub fn sent(&mut self) {
        self.left -= 1;
    }

    /// A SENDME arrived. One that nothing was sent for is a violation.
    pub fn acknowledged(&mut self) -> Result<(), Violation> {
        self.left += self.increment;
        if self.left > self.size { Err(Violation) } else { Ok(()) }
    }
}
