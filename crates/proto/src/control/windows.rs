//! Fixed SENDME windows (tor-spec, "Flow control").

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::keys::Parameters;
use tidegate_control::units::Time;

use super::{Control, Violation, Window};

/// Only the fixed windows bound the cells in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedWindows;

impl Control for FixedWindows {}

/// Tor's fixed flow-control windows, in cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Windows {
    /// In flight per circuit. Source: tor's `CIRCWINDOW_START`.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub circuit: u32,
    /// Acknowledged by one circuit SENDME; at most `circuit`. Source: tor's `CIRCWINDOW_INCREMENT`.
    #[schemars(range(min = 1))]
    pub circuit_increment: u32,
    /// In flight per stream. Source: tor's `STREAMWINDOW_START`.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub stream: u32,
    /// Acknowledged by one stream SENDME; at most `stream`. Source: tor's `STREAMWINDOW_INCREMENT`.
    #[schemars(range(min = 1))]
    pub stream_increment: u32,
}

impl Parameters for Windows {
    fn mistake(&self) -> Option<(&'static str, &'static str)> {
        (self.circuit_increment > self.circuit || self.stream_increment > self.stream).then_some((
            "a window's increment is above the window",
            "tor: 1000/100 per circuit, 500/50 per stream",
        ))
    }
}

impl Default for Windows {
    fn default() -> Windows {
        Windows { circuit: 1000, circuit_increment: 100, stream: 500, stream_increment: 50 }
    }
}

/// A window of fixed size: of a circuit or a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fixed {
    left: u32,
    size: u32,
    increment: u32,
}

impl Fixed {
    pub(crate) fn new(size: u32, increment: u32) -> Fixed {
        Fixed { left: size, size, increment }
    }
}

impl Window for Fixed {
    fn room(&self) -> u32 {
        self.left
    }

    fn sent(&mut self, _: Time) {
        self.left -= 1;
    }

    fn acknowledged(&mut self, _: Time, _: bool) -> Result<(), Violation> {
        self.left += self.increment;
        if self.left > self.size { Err(Violation) } else { Ok(()) }
    }

    fn sendme_increment(&self) -> u32 {
        self.increment
    }
}
