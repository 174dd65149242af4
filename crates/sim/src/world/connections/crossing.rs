//! Connections between processes of a divided run: tells the other process, and hears what it told
//! ([`super::borders`]).

use std::hint::black_box;

use tidegate_control::units::Time;
use tidegate_proto::cell::Cell;
use tidegate_proto::onion::Clear;

use super::borders::{ConnectionMessage, Opening, Outbox, ProcessMessage, Written};
use super::ends::{Across, Connection, ConnectionId, End, EndId};
use super::table::Connections;
use crate::queue::Queue;
use crate::tcp;
use crate::world::context::Context;
use crate::world::event::Event;

impl Connections {
    /// Adds the connection that another process has opened; returns the end at the host here.
    pub(crate) fn opened_across(
        &mut self,
        ctx: &Context<'_>,
        begins: Time,
        process: u32,
        opening: &Opening,
    ) -> EndId {
        let Opening { number, hosts, attached, profile, flights, stands } = *opening;
        let config = &self.parameters[profile as usize];
        let passive = || tcp::Endpoint::passive(config);
        let own = if stands { tcp::Endpoint::standing(config, begins)[1].clone() } else { passive() };
        let ends = [End::new(hosts[0], passive(), attached[0]), End::new(hosts[1], own, attached[1])];
        let mut connection = Connection::new(ends, profile, flights);
        connection.across = Some(Across { process, number: number.0 });
        let id = self.add(ctx, connection);
        self.borders.accepted[process as usize].push(id);
        EndId { connection: id, side: 1 }
    }

    /// The end at the other process is closed: nothing more is told about this connection.
    pub(crate) fn forget_across(&mut self, id: ConnectionId) {
        if let Some(connection) = self.live_mut(id) {
            connection.across = None;
        }
    }

    /// Sends a cell out of band from an end; it arrives at `at`.
    pub(crate) fn send_out_of_band(
        &mut self,
        queue: &mut Queue<Event>,
        from: EndId,
        at: Time,
        cell: Cell<Clear>,
    ) {
        let across = self.live(from.connection).and_then(|connection| connection.across);
        match across {
            Some(across) => {
                self.borders.tell(across, from.side, ConnectionMessage::OutOfBand(at, Box::new(cell)))
            }
            None => self.deliver_out_of_band(queue, from.other(), at, cell),
        }
    }

    /// Schedules the arrival of a cell that goes out of band.
    pub(crate) fn deliver_out_of_band(
        &mut self,
        queue: &mut Queue<Event>,
        to: EndId,
        at: Time,
        cell: Cell<Clear>,
    ) {
        let message = self.out_of_band.insert((to, cell));
        queue.push(at, Event::OutOfBand(message as u32));
    }

    /// Takes a cell that has arrived out of band, and the end that it is for.
    pub(crate) fn take_out_of_band(&mut self, message: u32) -> (EndId, Cell<Clear>) {
        self.out_of_band.remove(message as usize)
    }

    /// Server: tells an exit of another process how many bytes the server will write; false if the exit is here or
    /// gone.
    pub(crate) fn announce_across(&mut self, exit: EndId, bytes: u64) -> bool {
        let across = self.live(exit.connection).and_then(|connection| connection.across);
        if let Some(across) = across {
            self.borders.tell(across, exit.other().side, ConnectionMessage::Announced(bytes));
        }
        across.is_some()
    }

    /// Tells another process something.
    pub(crate) fn tell_process(&mut self, process: u32, message: ProcessMessage) {
        self.borders.send(process, message);
    }

    /// By process: everything to tell it at the end of a window.
    pub(crate) fn told(&mut self) -> &mut [Outbox] {
        for (process, mut leaving) in self.underlay.leaving() {
            let connection = self.all[leaving.packet.flow as usize].as_deref();
            // Packets of a closed connection are not needed.
            if let Some(across) = connection.and_then(|connection| connection.across) {
                leaving.packet.flow = across.number;
                self.borders.told[process as usize].packets.push(leaving);
            }
        }
        &mut self.borders.told
    }

    /// The end that another process means, which is at a host here.
    pub(crate) fn told_about(&self, from: u32, number: u32, from_opener: bool) -> EndId {
        self.borders.here(from, number, from_opener)
    }

    /// Takes the cells and packets that another process has told.
    pub(crate) fn hear(&mut self, queue: &mut Queue<Event>, from: u32, told: &mut Outbox) {
        // Touching all connections first lets the processor load them together, as in `ahead`.
        for Written { number, from_opener, .. } in &told.cells {
            let end = self.borders.here(from, *number, *from_opener);
            let connection = self.live(end.connection);
            let last = connection.and_then(|connection| connection.cells[usize::from(!from_opener)].back());
            black_box(last.map_or(0, |(place, _)| place.offset()));
        }
        for Written { number, from_opener, place, cell } in told.cells.drain(..) {
            let end = self.borders.here(from, number, from_opener);
            if let Some(connection) = self.all[end.connection.0 as usize].as_deref_mut() {
                let cells = &mut connection.cells[usize::from(end.other().side)];
                self.spare.give(cells);
                cells.push_back((place, cell));
            }
        }
        for mut leaving in told.packets.drain(..) {
            let from_opener = leaving.packet.payload.to() == 1;
            leaving.packet.flow = self.borders.here(from, leaving.packet.flow, from_opener).connection.0;
            self.underlay.arriving(queue, leaving);
        }
    }
}
