//! Cells as they are written to a connection.

use tidegate_control::units::Time;
use tidegate_proto::cell::CELL_BYTES;
use tidegate_proto::links::Departure;
use tidegate_proto::node::{Budget, Sink};
use tidegate_proto::onion::{Clear, ClearBody};

use super::ends::{End, Place, Record, Spare, Unread};
use super::follow::Follow;
use crate::plan::System;
use crate::quic::Lanes;

/// Sink that writes a channel's cells to TCP, in TLS records.
pub(super) struct Records<'a> {
    pub now: Time,
    pub system: &'a System,
    pub side: u8,
    pub end: &'a mut End,
    pub cells: &'a mut Unread,
    pub spare: &'a mut Spare,
    pub follows: &'a mut Vec<Follow>,
    /// Where the bytes go, if they go over QUIC.
    pub lane: Option<(&'a mut Lanes, u32)>,
    /// Bytes that the host's bucket lets this connection write now.
    pub share: u64,
    /// Bytes written so far.
    pub written: u64,
    /// The share is used up.
    pub gated: bool,
}

impl Records<'_> {
    fn space(&self) -> u64 {
        self.lane.as_ref().map_or_else(|| self.end.tcp.send_space(), |(lanes, lane)| lanes.space(*lane))
    }

    fn take(&mut self, bytes: u64) -> u64 {
        match &mut self.lane {
            Some((lanes, lane)) => lanes.write(*lane, bytes),
            None => self.end.tcp.write(bytes),
        }
    }

    /// Bytes that TLS adds to a record, and the limit of its cells. QUIC does not use records: cells are read one by
    /// one.
    fn record(&self) -> (u32, u32) {
        let tls = &self.system.tls;
        if self.lane.is_some() { (0, 1) } else { (tls.record_overhead, tls.record_cells) }
    }
}

impl Sink<Clear> for Records<'_> {
    fn budget(&mut self) -> Budget {
        if let Some(record) = &self.end.record {
            return Budget::Cells(record.cells);
        }
        if self.space() == 0 {
            self.end.wants_write = true;
            return Budget::Blocked;
        }
        // Every cell counts as a full one here; few are shorter.
        let (overhead, cells) = self.record();
        let cell = CELL_BYTES + overhead;
        let allowed = self.share.div_ceil(cell.into());
        if allowed == 0 {
            self.gated = true;
            return Budget::Paused;
        }
        Budget::Cells(allowed.min(cells.into()) as u32)
    }

    fn begin(&mut self, cells: u32, bytes: u64) -> bool {
        let bytes = bytes + u64::from(self.record().0);
        let mut record = self.end.record.take().unwrap_or(Record { cells, bytes, left: bytes });
        record.left -= self.take(record.left);
        if record.left > 0 {
            self.end.record = Some(record);
            self.end.wants_write = true;
            return false;
        }
        let bytes = record.bytes;
        self.end.written += bytes;
        self.share = self.share.saturating_sub(bytes);
        if let Some(half_life) = self.system.connection_half_life {
            self.end.loudness.add(self.now, half_life, cells);
        }
        self.written += bytes;
        true
    }

    fn write(&mut self, departure: Departure<Clear>) {
        self.write_run(departure, 1);
    }

    fn write_run(&mut self, mut departure: Departure<Clear>, count: u32) {
        if count > Place::CELLS {
            self.write_run(departure.clone(), count - Place::CELLS);
            return self.write_run(departure, Place::CELLS);
        }
        let end = &mut *self.end;
        if let ClearBody::Data { stamp, .. } = &mut departure.cell.body {
            if stamp.departed == Time::ZERO {
                stamp.departed = departure.buffered;
            }
            if stamp.trace != 0 {
                let times = [departure.queued, departure.buffered, self.now];
                self.follows.push(Follow::new(stamp.trace, self.side, end.written, times));
            }
        }
        // Equal cells of a record are one run, even if they have waited for different times.
        let before = self.cells.back().filter(|(place, cell)| {
            place.offset() == end.written && place.count() + count <= Place::CELLS && *cell == departure.cell
        });
        if let Some((place, _)) = before {
            let place = Place::new(end.written, place.count() + count);
            self.cells.back_mut().expect("it is there").0 = place;
        } else {
            self.spare.give(self.cells);
            self.cells.push_back((Place::new(end.written, count), departure.cell));
        }
    }
}
