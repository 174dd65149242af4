//! The client's implementation of [`Machine`] and [`Node`].

use tidegate_control::machine::Machine;
use tidegate_control::units::Time;

use super::{Circuit, Client};
use crate::cell::{Cell, Command, EndReason, RelayId};
use crate::conflux::Linked;
use crate::edge::Edge;
use crate::links::{Arrival, ChannelId, kist};
use crate::node::{CircuitKey, Node, Output, Sink, Source, StreamKey};
use crate::onion::Onion;
use crate::switching::MoveStart;

impl<O: Onion> Machine for Client<O> {
    type Output = Output<O>;

    fn poll(&mut self) -> Option<Output<O>> {
        while let Some((key, _)) = self.links.next_drained() {
            if self.circuits.contains(key.0 as usize) {
                self.package_again(key, Edge::reopened);
            }
        }
        let links = &mut self.links;
        (self.outputs.pop_front())
            .or_else(|| links.next_opening().map(|(channel, peer)| Output::OpenChannel(channel, peer)))
            .or_else(|| links.next_switched().map(|(key, took)| Output::Switched(key, took)))
            .or_else(|| links.next_inspection().map(Output::Inspect))
            .or_else(|| links.next_flushable().map(Output::Flush))
    }

    fn next_timeout(&self) -> Option<Time> {
        let run = self.links.next_run().map(|run| run.due);
        [run, self.wakes.next()].into_iter().flatten().min()
    }

    fn timeout(&mut self, now: Time) {
        match self.wakes.take_due(now) {
            Some(stream) => self.wake(now, stream),
            None => self.links.begin_run(now),
        }
    }
}

impl<O: Onion> Node<O> for Client<O> {
    fn channel_accepted(&mut self, peer: Option<RelayId>) -> ChannelId {
        self.links.accept(peer)
    }

    fn channel_is_stock(&mut self, channel: ChannelId) {
        self.links.set_stock(channel);
    }

    fn channel_is_shared(&mut self, channel: ChannelId) {
        self.links.set_shared(channel);
    }

    fn channel_opened(&mut self, now: Time, channel: ChannelId) {
        self.links.opened(now, channel);
    }

    fn channel_closed(&mut self, now: Time, channel: ChannelId) {
        // The legs on the channel are removed already: first forget all their circuits, then handle the consequences.
        let orphans: Vec<CircuitKey> =
            self.links.closed(now, channel).into_iter().map(|(key, _)| key).collect();
        let circuits: Vec<Circuit<O>> = (orphans.iter())
            .filter_map(|key| {
                let key = self.unlink(now, *key, true, &orphans);
                let circuit = self.circuits.try_remove(key.0 as usize)?;
                circuit.edge.forget_wakes(key, &mut self.wakes);
                self.outputs.push_back(Output::CircuitClosed(key));
                Some(circuit)
            })
            .collect();
        for circuit in circuits {
            self.end_switch(now, &circuit.switch);
        }
    }

    fn cell(&mut self, now: Time, channel: ChannelId, cell: Cell<O>) {
        match self.links.arrive(now, channel, cell) {
            Arrival::Cell(key, _, cell) => self.circuit_cell(now, key, cell),
            Arrival::Violation(key) => self.end(now, key, true),
            Arrival::Congested(key, notice) => self.switch_as(now, key, MoveStart::on_notice(now, notice)),
            Arrival::Done => self.close_if_spent(now, channel),
            Arrival::UnknownCircuit(_) => {}
        }
        while self.links.next_moved().is_some() {}
        while let Some((key, _, cell)) = self.links.next_released() {
            self.circuit_cell(now, key, cell);
        }
    }

    fn cells_arrived(
        &mut self,
        now: Time,
        channel: ChannelId,
        runs: &mut dyn Iterator<Item = (Cell<O>, u32)>,
    ) {
        for (cell, count) in runs {
            if count == 1 || !self.data_run(now, channel, &cell, count) {
                self.each_cell(now, channel, cell, count);
            }
        }
    }

    fn drain(&mut self, now: Time, channel: ChannelId, sink: &mut dyn Sink<O>) {
        if self.links.drain(now, channel, sink) {
            self.close_if_spent(now, channel);
        }
    }

    fn socket(&mut self, now: Time, channel: ChannelId, state: Option<kist::Socket>) {
        self.links.inspected(now, channel, state);
    }

    fn package(&mut self, now: Time, stream: StreamKey, cells: u32, source: &mut dyn Source<O>) {
        let Some(circuit) = self.circuits.get_mut(stream.circuit.0 as usize) else { return };
        if let Linked::First(_) = circuit.linked {
            self.package_over_legs(now, stream, cells, source);
            return self.package_again(stream.circuit, Edge::next_turn);
        }
        let (hops, leg, links) = (&mut circuit.hops, circuit.leg, &mut self.links);
        let room = links.room(leg);
        let sent = circuit.edge.package(now, stream.stream, cells, room, source, |message, count, digest| {
            let last = hops.len() - 1;
            let full = links.push_run(now, leg, (Command::Relay, O::seal(hops, last, false, message)), count);
            debug_assert_eq!(full, Ok(()), "the high mark is below the limit");
            if digest { O::client_digests(&hops[last]).map(|[_, said]| said) } else { None }
        });
        links.note_packaged(leg);
        circuit.edge.settle(stream, &mut self.wakes);
        if sent == 0 {
            self.package_again(stream.circuit, Edge::next_turn);
        }
    }

    /// Not used: only exits connect streams.
    fn stream_connected(&mut self, _: Time, _: StreamKey) {}

    fn backlog(&mut self, now: Time, stream: StreamKey, bytes: u64, memory: u64) {
        let flow = self.links.config().stream_flow;
        let limit = (flow.client_bytes, &flow);
        while let Some(circuit) = self.circuits.get_mut(stream.circuit.0 as usize)
            && let Some(payload) = circuit.edge.backlog(now, stream.stream, (bytes, memory), limit)
        {
            self.say(now, stream.circuit, stream.stream, payload);
        }
    }

    fn stream_ended(&mut self, now: Time, stream: StreamKey) {
        self.end_stream(now, stream, EndReason::DONE);
    }

    fn waiting(&self) -> (u64, u64) {
        self.links.waiting()
    }
}
