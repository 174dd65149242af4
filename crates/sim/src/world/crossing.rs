//! What goes from one process to another ([`super::borders`]): said here, and heard there when the next window begins.

use std::hint::black_box;

use tidegate_control::units::Time;
use tidegate_proto::cell::Cell;
use tidegate_proto::onion::Clear;

use crate::tcp;

use super::borders::{News, Opening, Told, What, Written};
use super::ends::{Across, Attached, Connection, ConnectionId, End, EndId};
use super::event::Event;
use super::state::World;

impl World<'_> {
    /// Whether a host is this process' own.
    pub(super) fn is_here(&self, host: u32) -> bool {
        self.division.hosts.process(host) == self.process
    }

    /// A connection's ends at hosts of this process.
    pub(super) fn ends_here<'c>(
        &self,
        connection: &'c Connection,
    ) -> impl Iterator<Item = &'c End> + use<'c> {
        let is_here = connection.ends.each_ref().map(|end| self.is_here(end.host));
        connection.ends.iter().zip(is_here).filter(|(_, is_here)| *is_here).map(|(end, _)| end)
    }

    /// Tells the acceptor's process of a connection.
    pub(super) fn open_across(&mut self, number: ConnectionId, stands: bool) {
        let Some(connection) = self.connections[number.0 as usize].as_deref_mut() else { return };
        let process = self.division.hosts.process(connection.ends[1].host);
        let opened = &mut self.borders.opened[process as usize];
        connection.across = Some(Across { process, number: *opened });
        *opened += 1;
        let opening = Opening {
            number,
            hosts: connection.ends.each_ref().map(|end| end.host),
            attached: connection.ends.each_ref().map(|end| end.attached),
            profile: connection.profile,
            flights: connection.flights,
            stands,
        };
        self.borders.news(process, News::Open(Box::new(opening)));
    }

    fn opened_across(&mut self, process: u32, now: Time, opening: &Opening) {
        let Opening { number, hosts, attached, profile, flights, stands } = *opening;
        let config = &self.tcp_parameters[profile as usize];
        let passive = || tcp::Endpoint::passive(config);
        let own = if stands { tcp::Endpoint::standing(config, now)[1].clone() } else { passive() };
        let ends = [End::new(hosts[0], passive(), attached[0]), End::new(hosts[1], own, attached[1])];
        let mut connection = Connection::new(ends, profile, flights);
        connection.across = Some(Across { process, number: number.0 });
        let id = self.add_connection(connection);
        self.borders.accepted[process as usize].push(id);
        let own = EndId { connection: id, side: 1 };
        if let Attached::Server(transfer) = attached[1]
            && let Some(transfer) = self.users.transfers.get(transfer)
        {
            transfer.exit = Some(own.other());
        }
        if stands {
            self.channel_opened(own);
        }
    }

    /// Tells the other process, if there is one, that this end of a connection is closed.
    pub(super) fn close_across(&mut self, connection: &Connection) {
        if let Some(across) = connection.across {
            let side = u8::from(!self.is_here(connection.ends[0].host));
            self.borders.tell(across, side, What::Closed);
        }
    }

    /// The other end, at a host of another process, was closed.
    pub(super) fn closed_across(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connection(id) {
            connection.across = None;
            self.kill(id);
        }
    }

    /// Sends a cell out of band, if it goes to another process; gives it back otherwise.
    pub(super) fn out_of_band_across(
        &mut self,
        end: EndId,
        at: Time,
        cell: Cell<Clear>,
    ) -> Option<Cell<Clear>> {
        let Some(across) = self.connection(end.connection).and_then(|connection| connection.across) else {
            return Some(cell);
        };
        self.borders.tell(across, end.side, What::OutOfBand(at, Box::new(cell)));
        None
    }

    /// Server: tells an exit of another process what it will get; false if it is none.
    pub(super) fn announce_across(&mut self, exit: EndId, bytes: u64) -> bool {
        let across = self.connection(exit.connection).and_then(|connection| connection.across);
        if let Some(across) = across {
            self.borders.tell(across, exit.other().side, What::Announced(bytes));
        }
        across.is_some()
    }

    /// Client: the processes of a transfer's exit and server will hear of it before its stream's first cell comes there.
    pub(super) fn tell_of_transfer(&mut self, transfer: u32, exit: Option<u32>) {
        if self.division.processes > 1 {
            let state = self.users.transfers[transfer as usize].clone();
            for process in self.concerned(exit, state.server) {
                self.borders.news(process, News::Begun(Box::new((transfer, state.clone()))));
            }
            self.users.transfers[transfer as usize].exit_host = exit;
        }
    }

    /// Client: a transfer is over.
    pub(super) fn transfer_over(&mut self, transfer: u32) {
        if self.division.processes > 1 {
            let state = &self.users.transfers[transfer as usize];
            for process in self.concerned(state.exit_host, state.server) {
                self.borders.news(process, News::Over(transfer));
            }
        }
    }

    /// The other processes that have an exit or a server.
    fn concerned(&self, exit: Option<u32>, server: u32) -> impl Iterator<Item = u32> + use<> {
        let own = self.process;
        let server = self.division.hosts.process(server);
        let exit = exit.map(|exit| self.division.hosts.process(exit)).filter(|exit| *exit != server);
        exit.into_iter().chain([server]).filter(move |process| *process != own)
    }

    /// The window is over: what others are to be told of it is complete.
    pub(super) fn told(&mut self) -> &mut [Told] {
        for (process, mut leaving) in self.underlay.leaving() {
            let connection = self.connections[leaving.packet.flow as usize].as_deref();
            // Of a connection that is closed nobody waits for packets.
            if let Some(across) = connection.and_then(|connection| connection.across) {
                leaving.packet.flow = across.number;
                self.borders.told[process as usize].packets.push(leaving);
            }
        }
        &mut self.borders.told
    }

    /// A window begins: what another process has told. Nothing is left of it but its memory.
    pub(super) fn hear(&mut self, from: u32, begins: Time, told: &mut Told) {
        for news in told.news.drain(..) {
            match news {
                News::Open(opening) => self.opened_across(from, begins, &opening),
                News::About { number, from_opener, what } => {
                    let end = self.borders.here(from, number, from_opener);
                    self.hear_of(end, begins, what);
                }
                News::Begun(begun) => self.users.transfers.learn(begun.0, begun.1),
                News::Over(transfer) => self.users.transfers.over(transfer),
            }
        }
        // All are loaded together before each is needed, as in [`super::ahead`].
        for Written { number, from_opener, .. } in &told.cells {
            let end = self.borders.here(from, *number, *from_opener);
            let connection = self.connections[end.connection.0 as usize].as_deref();
            let last = connection.and_then(|connection| connection.cells[usize::from(!from_opener)].back());
            black_box(last.map_or(0, |(offset, _)| *offset));
        }
        for Written { number, from_opener, offset, cell } in told.cells.drain(..) {
            let end = self.borders.here(from, number, from_opener);
            if let Some(connection) = self.connections[end.connection.0 as usize].as_deref_mut() {
                let cells = &mut connection.cells[usize::from(end.other().side)];
                self.spare.give(cells);
                cells.push_back((offset, cell));
            }
        }
        for mut leaving in told.packets.drain(..) {
            let from_opener = leaving.packet.payload.to() == 1;
            leaving.packet.flow = self.borders.here(from, leaving.packet.flow, from_opener).connection.0;
            self.underlay.arriving(&mut self.queue, leaving);
        }
    }

    fn hear_of(&mut self, end: EndId, begins: Time, what: What) {
        match what {
            What::OutOfBand(at, cell) => {
                let message = self.out_of_band.insert((end, *cell));
                self.queue.push(at.max(begins), Event::OutOfBand(message as u32));
            }
            What::Announced(bytes) => self.announced(end, bytes),
            What::Closed => self.queue.push(begins, Event::Closed(end.connection)),
        }
    }
}
