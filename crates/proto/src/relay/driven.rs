//! The relay's implementation of [`Machine`] and [`Node`].

use std::net::IpAddr;

use tidegate_control::machine::Machine;
use tidegate_control::units::{Span, Time};

use super::Relay;
use super::watch::Watch;
use crate::cell::{Cell, Command, EndReason, Payload, RelayId};
use crate::conflux::Linked;
use crate::edge::Edge;
use crate::ending::Ending;
use crate::links::{Arrival, ChannelId, Side, kist};
use crate::node::{Node, Output, Sink, Source, StreamKey};
use crate::onion::Onion;

impl<O: Onion> Machine for Relay<O> {
    type Output = Output<O>;

    fn poll(&mut self) -> Option<Output<O>> {
        while let Some((key, side)) = self.table.links.next_drained() {
            if side == Side::Prev {
                self.table.package_again(key, Edge::reopened);
            }
        }
        let links = &mut self.table.links;
        (self.table.outputs.pop_front())
            .or_else(|| {
                links.next_out_of_band().map(|(channel, cell, delay)| Output::OutOfBand(channel, cell, delay))
            })
            .or_else(|| links.next_opening().map(|(channel, peer)| Output::OpenChannel(channel, peer)))
            .or_else(|| links.next_switched().map(|(key, took)| Output::Switched(key, took)))
            .or_else(|| links.next_inspection().map(Output::Inspect))
            .or_else(|| links.next_flushable().map(Output::Flush))
    }

    fn next_timeout(&self) -> Option<Time> {
        let watched = self.watch.as_ref().and_then(Watch::next_timeout);
        let timer = self.next_timer().map(|(timer, _)| timer.due);
        [watched, timer, self.table.wakes.next()].into_iter().flatten().min()
    }

    fn timeout(&mut self, now: Time) {
        if let Some(stream) = self.table.wakes.take_due(now) {
            return self.table.wake(now, stream);
        }
        if let Some(watch) = &mut self.watch {
            if let Some(circuit) = watch.overdue(now) {
                return self.end(now, circuit, Ending::ExtendTimedOut);
            }
            if let Some(channel) = watch.due_look(now) {
                let is_bare = self.table.links.is_bare(channel);
                self.table.rest(channel);
                if watch.looked(now, channel, is_bare) {
                    self.close_channel(now, channel);
                }
                return;
            }
        }
        match self.next_timer() {
            Some((timer, of_controller)) if timer.due <= now => match &mut self.controller {
                Some(controller) if of_controller => controller.step(now, &mut self.table),
                _ => self.table.links.begin_run(now),
            },
            _ => {}
        }
    }
}

impl<O: Onion> Node<O> for Relay<O> {
    fn channel_accepted(&mut self, peer: Option<RelayId>) -> ChannelId {
        self.table.links.accept(peer)
    }

    fn channel_is_stock(&mut self, channel: ChannelId) {
        self.table.links.set_stock(channel);
    }

    fn channel_is_shared(&mut self, channel: ChannelId) {
        self.table.links.set_shared(channel);
    }

    fn channel_is_at(&mut self, now: Time, channel: ChannelId, address: IpAddr) {
        if let Some(watch) = &mut self.watch {
            watch.reached(now, channel, address);
        }
    }

    fn channel_opened(&mut self, now: Time, channel: ChannelId) {
        self.table.links.opened(now, channel);
    }

    fn channel_closed(&mut self, now: Time, channel: ChannelId) {
        self.orphan(now, channel);
    }

    fn cell(&mut self, now: Time, channel: ChannelId, cell: Cell<O>) {
        // An earlier cell of the same read may have closed the channel.
        let Some(between_shards) = self.table.links.is_between_shards(channel) else { return };
        // The shard that received it has counted it.
        self.cells += u64::from(!between_shards);
        if cell.command == Command::Plan {
            return self.receive(now, channel, cell.body);
        }
        match self.table.links.arrive(now, channel, cell) {
            Arrival::Cell(key, side, cell) => {
                if let Some(watch) = &mut self.watch {
                    watch.active(now, channel);
                }
                self.circuit_cell(now, key, side, cell);
            }
            // Other cells of unknown circuits were sent before the neighbour knew of the circuit's end.
            Arrival::UnknownCircuit(cell)
                if matches!(cell.command, Command::Create | Command::CreateFast) =>
            {
                self.create(now, channel, cell.circ, &cell.body, cell.command == Command::CreateFast);
            }
            Arrival::Violation(key) => self.end(now, key, Ending::WrongMove),
            Arrival::Done => self.close_if_spent(now, channel),
            Arrival::UnknownCircuit(_) | Arrival::Congested(..) => {}
        }
        while let Some(key) = self.table.links.next_moved() {
            self.moves += 1;
            if let Some(controller) = &mut self.controller {
                controller.joined(key);
            }
        }
        while let Some((key, side, cell)) = self.table.links.next_released() {
            self.circuit_cell(now, key, side, cell);
        }
        if !between_shards && self.table.links.is_flooded(channel) {
            self.close_channel(now, channel);
        }
        self.relieve_memory(now);
    }

    fn cells_arrived(
        &mut self,
        now: Time,
        channel: ChannelId,
        runs: &mut dyn Iterator<Item = (Cell<O>, u32)>,
    ) {
        self.forward_runs(now, channel, runs);
    }

    fn drain(&mut self, now: Time, channel: ChannelId, sink: &mut dyn Sink<O>) {
        if self.table.links.drain(now, channel, sink) {
            self.close_if_spent(now, channel);
        }
    }

    fn socket(&mut self, now: Time, channel: ChannelId, state: Option<kist::Socket>) {
        self.table.links.inspected(now, channel, state);
    }

    fn package(&mut self, now: Time, stream: StreamKey, cells: u32, source: &mut dyn Source<O>) {
        let Some(circuit) = self.table.circuits.get_mut(stream.circuit.0 as usize) else { return };
        if let Linked::First(_) = circuit.linked {
            self.table.package_over_legs(now, stream, cells, source);
            self.table.package_again(stream.circuit, Edge::next_turn);
            return self.relieve_memory(now);
        }
        let Some(edge) = circuit.edge.as_deref_mut() else { return };
        let (hop, prev, links) = (&mut circuit.hop, circuit.prev, &mut self.table.links);
        let room = links.room(prev);
        let sent = edge.package(now, stream.stream, cells, room, source, |message, count, digest| {
            let full = links.push_run(now, prev, (Command::Relay, O::originate(hop, message)), count);
            debug_assert_eq!(full, Ok(()), "the high mark is below the limit");
            if digest { O::digests(hop).map(|[_, said]| said) } else { None }
        });
        links.note_packaged(prev);
        edge.settle(stream, &mut self.table.wakes);
        if sent == 0 {
            self.table.package_again(stream.circuit, Edge::next_turn);
        }
        self.relieve_memory(now);
    }

    fn stream_connected(&mut self, now: Time, stream: StreamKey) {
        let Some(circuit) = self.table.circuits.get_mut(stream.circuit.0 as usize) else { return };
        if circuit.edge.as_deref_mut().is_some_and(|edge| edge.connect(stream.stream)) {
            self.say(now, stream.circuit, stream.stream, Payload::Connected);
        }
    }

    fn announced(&mut self, stream: StreamKey, bytes: u64) {
        let circuit = self.table.circuits.get_mut(stream.circuit.0 as usize);
        if let Some(edge) = circuit.and_then(|circuit| circuit.edge.as_deref_mut()) {
            edge.announce(stream.stream, bytes);
        }
    }

    fn backlog(&mut self, now: Time, stream: StreamKey, bytes: u64, memory: u64) {
        let flow = self.table.links.config().stream_flow;
        loop {
            let circuit = self.table.circuits.get_mut(stream.circuit.0 as usize);
            let Some(edge) = circuit.and_then(|circuit| circuit.edge.as_deref_mut()) else { return };
            let before = edge.held();
            let said = edge.backlog(now, stream.stream, (bytes, memory), (flow.exit_bytes, &flow));
            self.held = self.held + edge.held() - before;
            match said {
                Some(payload) => self.say(now, stream.circuit, stream.stream, payload),
                None => return self.relieve_memory(now),
            }
        }
    }

    fn stream_ended(&mut self, now: Time, stream: StreamKey) {
        self.end_stream(now, stream, EndReason::DONE);
    }

    fn took(&mut self, now: Time, spent: Span) -> bool {
        self.controller.as_mut().is_some_and(|controller| controller.took(now, spent))
    }

    fn waiting(&self) -> (u64, u64) {
        self.table.links.waiting()
    }
}
