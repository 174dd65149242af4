//! Relays' controllers (PredicTor), step by step, and their messages where these go past the network.

use tidegate_control::units::Span;
use tidegate_proto::cell::{Cell, Command};
use tidegate_proto::flow::predictor::{Parameters, Phases};
use tidegate_proto::links::ChannelId;
use tidegate_proto::onion::{Clear, Onion};

use super::connection::{Attached, EndId};
use super::host::Machine;
use super::{Event, World};
use crate::observe::{Host, Recorder};
use crate::plan::Control;

impl<R: Recorder> World<'_, R> {
    fn predictor(&self) -> Option<&Parameters> {
        match &self.system.control {
            Control::Predictor(parameters) => Some(parameters),
            Control::Windows(_) | Control::Vegas(_) => None,
        }
    }

    /// Every relay takes its first step in its own phase.
    pub(super) fn start_control(&mut self) {
        let Some(&Parameters { step, first, phases, drift, .. }) = self.predictor() else { return };
        for index in 0..self.hosts.len() {
            if !self.hosts[index].is_relay() {
                continue;
            }
            let mut random = self.controllers.fork_index(index as u64).random();
            let (phase, fast) = (random.unit(), random.uniform(-drift, drift));
            let phase = if phases == Phases::Random { phase } else { 0.0 };
            self.hosts[index].step = Span::from_secs_f64(step.as_secs_f64() * (1.0 + fast));
            let at = first + Span::from_secs_f64(step.as_secs_f64() * phase);
            self.queue.push(self.now + at, Event::Step(index as u32));
        }
    }

    /// A relay solves for its circuits, and acts at once or when the time that this takes is over.
    pub(super) fn solve(&mut self, host: u32) {
        let Some(&Parameters { solve_time: (each, per_circuit), .. }) = self.predictor() else { return };
        let now = self.now;
        let Machine::Relay(relay) = &mut self.hosts[host as usize].machine else { return };
        let Some(circuits) = relay.solve(now) else { return };
        let takes = each + per_circuit * circuits as u64;
        if takes == Span::ZERO {
            self.act(host);
        } else {
            self.queue.push(now + takes, Event::Act(host));
        }
        self.queue.push(now + self.hosts[host as usize].step, Event::Step(host));
    }

    pub(super) fn act(&mut self, host: u32) {
        let now = self.now;
        if let Machine::Relay(relay) = &mut self.hosts[host as usize].machine {
            relay.act(now);
            self.drain(host);
        }
        let parts = self.predictor().map_or(1, |parameters| parameters.parts);
        self.release_again(host, parts - 1);
    }

    /// Lets another part of a relay's cells go.
    pub(super) fn release(&mut self, host: u32, parts: u32) {
        let now = self.now;
        if let Machine::Relay(relay) = &mut self.hosts[host as usize].machine {
            relay.release(now);
            self.drain(host);
        }
        self.release_again(host, parts - 1);
    }

    fn release_again(&mut self, host: u32, parts: u32) {
        let Some(&Parameters { parts: all, .. }) = self.predictor() else { return };
        if parts > 0 {
            let part = Span(self.hosts[host as usize].step.0 / u64::from(all));
            self.queue.push(self.now + part, Event::Release(host, parts));
        }
    }

    /// A message goes past the network.
    pub(super) fn aside(&mut self, host: u32, channel: ChannelId, cell: Cell<Clear>) {
        let Some(&Parameters { delay, .. }) = self.predictor() else { return };
        let Some(end) = self.hosts[host as usize].channel(channel) else { return };
        let message = self.asides.insert((end.other(), cell));
        self.queue.push(self.now + delay, Event::Aside(message as u32));
    }

    pub(super) fn aside_arrives(&mut self, message: usize) {
        let (id, cell) = self.asides.remove(message);
        let Some(end) = self.end(id) else { return };
        if let (Attached::Channel(channel), host) = (end.attached, end.host) {
            self.hand_over(id, (host, channel), cell);
            self.drain(host);
        }
    }

    /// A cell has come to this end of a connection; in place of messages of relays that lie come their lies.
    pub(super) fn hand_over(&mut self, id: EndId, (host, channel): (u32, ChannelId), cell: Cell<Clear>) {
        let now = self.now;
        let lie = match cell.command {
            Command::Plan => self.end(id.other()).map(|writer| Host(writer.host)),
            _ => None,
        };
        let lie = lie.and_then(|writer| self.lies.of(writer, now));
        let (Some(lie), Some(&Parameters { step, .. })) = (lie, self.predictor()) else {
            return self.hosts[host as usize].node().cell(now, channel, cell);
        };
        let connection = (id.connection.0, id.side);
        for body in self.lies.instead(lie, (now, step), connection, Clear::recycle(cell.body)) {
            let cell = Cell { body: Clear::bared(body), ..cell };
            self.hosts[host as usize].node().cell(now, channel, cell);
        }
    }
}
