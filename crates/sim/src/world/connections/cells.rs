//! A channel's cells on a connection: written and read in TLS records.

use tidegate_control::units::Time;
use tidegate_proto::cell::Cell;
use tidegate_proto::node::Sink;
use tidegate_proto::onion::{Clear, ClearBody};

use super::ends::{Attached, Connection, End, EndId, Place};
use super::records::Records;
use super::table::Connections;
use crate::observe::{Circuit, Host, Observation};
use crate::plan::System;
use crate::tcp;
use crate::world::context::Context;

/// A cell, and how many equal ones there are.
pub(in crate::world) type CellRun = (Cell<Clear>, u32);

/// The two ends of a run of cells.
#[derive(Clone, Copy)]
pub(in crate::world) struct Reading {
    /// The host and the user of the end that reads.
    pub host: u32,
    pub attached: Attached,
    /// The host that wrote the cells.
    pub from: u32,
}

/// Bytes that a server has sent to an exit.
pub(in crate::world) struct ServerBytes<'a> {
    tcp: &'a mut tcp::Endpoint,
    config: &'a tcp::Config,
    /// Bytes of the last read that are not in cells yet.
    unpackaged: &'a mut u32,
}

impl ServerBytes<'_> {
    /// Whether the receive buffer is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.tcp.readable() == 0
    }

    /// Takes at most `max` bytes out of the receive buffer. The exit reads `read_bytes` at a time; a cell does not
    /// hold bytes of two reads.
    pub(crate) fn take(&mut self, now: Time, max: u32, read_bytes: u32) -> u64 {
        if *self.unpackaged == 0 {
            *self.unpackaged = self.tcp.readable().min(u64::from(read_bytes)) as u32;
        }
        let bytes = self.tcp.read(self.config, now, u64::from(max.min(*self.unpackaged)));
        *self.unpackaged -= bytes as u32;
        bytes
    }

    /// Takes a further number of cells of `bytes` bytes each, at most `most`, of the same read.
    pub(crate) fn take_more(&mut self, now: Time, bytes: u32, most: u32) -> u32 {
        let cells = (*self.unpackaged / bytes).min(most);
        let taken = self.tcp.read(self.config, now, u64::from(cells * bytes));
        assert_eq!(taken, u64::from(cells * bytes), "a read's bytes are in the receive buffer");
        *self.unpackaged -= taken as u32;
        cells
    }
}

impl Connections {
    /// Exit: the transfer of an open connection to a server, and the bytes that wait in it.
    pub(crate) fn server_bytes_from(&mut self, id: EndId) -> Option<(u32, ServerBytes<'_>)> {
        let connection = self.all[id.connection.0 as usize].as_deref_mut()?;
        let transfer = connection.server_transfer()?;
        let config = &self.parameters[connection.profile as usize];
        let End { tcp, unpackaged, .. } = &mut connection.ends[usize::from(id.side)];
        Some((transfer, ServerBytes { tcp, config, unpackaged }))
    }

    /// Server: reads everything that has arrived; 0 bytes if the connection has closed.
    pub(crate) fn read_request(&mut self, now: Time, id: EndId) -> u64 {
        self.tcp(id).map_or(0, |(tcp, config)| tcp.read(config, now, u64::MAX))
    }

    /// Server: writes as many of `bytes` bytes as TCP takes; `None` if the connection has closed.
    pub(crate) fn write_response(&mut self, id: EndId, bytes: u64) -> Option<u64> {
        self.tcp(id).map(|(tcp, _)| tcp.write(bytes))
    }

    /// Whether the next cell has arrived whole (all of its TLS record).
    pub(crate) fn can_read(&self, id: EndId) -> bool {
        self.live(id.connection).is_some_and(|connection| {
            let next = connection.cells[usize::from(1 - id.side)].front();
            next.is_some_and(|(place, _)| {
                let tcp = &connection.ends[usize::from(id.side)].tcp;
                let lane = connection.over.and_then(|_| self.lane_arrived(id.other()));
                place.offset() <= lane.unwrap_or_else(|| tcp.delivered_in_order())
            })
        })
    }

    /// Passes the cells that have arrived whole to `deliver`, in runs of equal ones, until they have `share` bytes or more.
    /// Returns the bytes read: of the cells, and what TLS added to the records that ended with one of them.
    pub(crate) fn read_cells(
        &mut self,
        ctx: &mut Context<'_>,
        id: EndId,
        mut share: u64,
        deliver: impl FnOnce(Reading, &mut dyn Iterator<Item = CellRun>),
    ) -> u64 {
        let Some(connection) = self.all[id.connection.0 as usize].as_deref_mut() else { return 0 };
        if connection.over.is_some() {
            return self.read_lane(ctx, id, share, deliver);
        }
        let config = &self.parameters[connection.profile as usize];
        let side = usize::from(id.side);
        let arrived = connection.ends[side].tcp.delivered_in_order();
        let reading = reading(connection, id.side);
        let mut spent = 0;
        let mut next = || {
            let (run, offset, record_done) = next_run(ctx, connection, id.side, arrived, share)?;
            let bytes = bytes_of(&run);
            share = share.saturating_sub(bytes);
            spent += bytes;
            if record_done {
                let tcp = &mut connection.ends[side].tcp;
                // Bytes after this record stay in the receive buffer, so that the window stays honest.
                tcp.read(config, ctx.now, tcp.readable() - (arrived - offset));
                spent += u64::from(ctx.system.tls.record_overhead);
            }
            Some(run)
        };
        deliver(reading, &mut std::iter::from_fn(&mut next));
        self.spare.take_empty(&mut connection.cells[1 - side]);
        spent
    }

    /// As [`read_cells`](Self::read_cells), from a lane.
    fn read_lane(
        &mut self,
        ctx: &mut Context<'_>,
        id: EndId,
        mut share: u64,
        deliver: impl FnOnce(Reading, &mut dyn Iterator<Item = CellRun>),
    ) -> u64 {
        let Some(arrived) = self.lane_arrived(id.other()) else { return 0 };
        let lane = self.all[id.connection.0 as usize].as_deref_mut().expect("its bytes have arrived");
        let reading = reading(lane, id.side);
        let (mut first, mut spent) = (0, 0);
        let mut next = || {
            let (run, ..) = next_run(ctx, lane, id.side, arrived, share)?;
            let bytes = bytes_of(&run);
            share = share.saturating_sub(bytes);
            first = if spent == 0 { bytes } else { first };
            spent += bytes;
            Some(run)
        };
        deliver(reading, &mut std::iter::from_fn(&mut next));
        // The receive buffer grows by what one read takes: cells are read one by one, at one time.
        for bytes in [first, spent - first].into_iter().filter(|bytes| *bytes > 0) {
            self.lane_read(ctx.now, id, bytes);
        }
        if let Some(lane) = self.all[id.connection.0 as usize].as_deref_mut() {
            self.spare.take_empty(&mut lane.cells[usize::from(id.other().side)]);
        }
        spent
    }

    /// Lets `write` write a channel's cells to an end, at most about `share` bytes. Returns the bytes written and
    /// whether the share is used up.
    pub(crate) fn write_cells(
        &mut self,
        (now, system): (Time, &System),
        id: EndId,
        share: u64,
        write: impl FnOnce(&mut dyn Sink<Clear>),
    ) -> (u64, bool) {
        // The lanes live in another connection, which cannot be borrowed beside this one.
        let mut trunk = self.take_trunk(id.connection);
        let connection = self.all[id.connection.0 as usize].as_deref_mut();
        let connection = connection.expect("a node's channel has an open connection");
        let Connection { ends, cells, follows, over, across, .. } = connection;
        let (over, across) = (*over, *across);
        let end = &mut ends[usize::from(id.side)];
        end.wants_write = false;
        let mut records = Records {
            now,
            system,
            side: id.side,
            end,
            cells: &mut cells[usize::from(id.side)],
            spare: &mut self.spare,
            follows,
            lane: trunk.as_deref_mut().zip(over).map(|(trunk, over)| {
                (&mut trunk.written_by[usize::from(over.side(id.side))], id.connection.0)
            }),
            share,
            written: 0,
            gated: false,
        };
        write(&mut records);
        let (written, gated) = (records.written, records.gated);
        if let Some(across) = across {
            let cells = &mut cells[usize::from(id.side)];
            self.borders.cells(across, id.side, cells);
            self.spare.take(cells);
        }
        if let Some((over, trunk)) = over.zip(trunk) {
            self.put_trunk(over.trunk, trunk);
        }
        (written, gated)
    }

    /// Writes to an end's TCP at most `share` of the bytes that are due for its server: those that TCP did not take
    /// before, and `bytes` more. Returns the bytes written, and those left before and now.
    pub(crate) fn write_to_server(&mut self, id: EndId, bytes: u64, share: u64) -> (u64, u64, u64) {
        let end = self.end_mut(id).expect("an exit's stream has an open connection");
        let before = end.unwritten;
        let written = end.tcp.write((before + bytes).min(share));
        end.unwritten = before + bytes - written;
        (written, before, end.unwritten)
    }
}

/// The ends of a connection of which the end at `side` reads.
fn reading(connection: &Connection, side: u8) -> Reading {
    let [end, writer] = [side, 1 - side].map(|side| &connection.ends[usize::from(side)]);
    Reading { host: end.host, attached: end.attached, from: writer.host }
}

/// Bytes of a run's cells.
fn bytes_of((cell, count): &CellRun) -> u64 {
    u64::from(cell.wire_bytes() * count)
}

/// Takes the next run of cells at an end if all of its TLS record has arrived: as many cells as it takes to reach `share`
/// bytes. Returns it with the offset after the record, and whether the record ends with it.
fn next_run(
    ctx: &mut Context<'_>,
    connection: &mut Connection,
    side: u8,
    arrived: u64,
    share: u64,
) -> Option<(CellRun, u64, bool)> {
    let Connection { ends, cells, follows, .. } = connection;
    let writer = usize::from(1 - side);
    let cells = &mut cells[writer];
    let (place, cell) = cells.front_mut().filter(|(place, _)| place.offset() <= arrived && share > 0)?;
    let (offset, count) = (place.offset(), place.count());
    let most = share.div_ceil(cell.wire_bytes().into());
    if most < u64::from(count) {
        *place = Place::new(offset, count - most as u32);
        return Some(((cell.clone(), most as u32), offset, false));
    }
    let (_, cell) = cells.pop_front()?;
    let record_done = cells.front().is_none_or(|(next, _)| next.offset() > offset);
    if let ClearBody::Data { stamp, .. } = &cell.body
        && stamp.trace != 0
        && let Some(at) = follows.iter().position(|follow| follow.trace == stamp.trace)
    {
        let follow = follows.swap_remove(at);
        let (circuit, hop) = ctx.next_hop(follow.trace);
        let (waits, at) = (follow.read(ctx.now), Host(ends[writer].host));
        ctx.record(Observation::Waited { circuit: Circuit(circuit), hop, at, waits });
    }
    Some(((cell, count), offset, record_done))
}
