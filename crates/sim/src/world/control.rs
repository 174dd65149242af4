//! What only a simulation can do with relays' controllers: clocks that drift, messages that go out of band, relays
//! that lie.

use tidegate_control::random::Seed;
use tidegate_control::units::Span;
use tidegate_proto::cell::{Cell, Command};
use tidegate_proto::control::{Clock, Control, Spread};
use tidegate_proto::ids::ChannelId;
use tidegate_proto::onion::{Clear, Onion};

use super::ends::{Attached, EndId};
use super::event::Event;
use super::state::World;
use crate::observe::Host;

/// The clock of a host's controller.
pub(super) fn clock(control: &dyn Control, seed: &Seed, host: u32) -> Clock {
    let Spread { random_phases, drift } = control.spread();
    let mut random = seed.fork("controllers").fork_index(host.into()).random();
    let (phase, slow) = (random.unit(), random.uniform(-drift, drift));
    Clock { phase: if random_phases { phase } else { 0.0 }, slow }
}

impl World<'_> {
    /// A message goes out of band.
    pub(super) fn send_out_of_band(&mut self, host: u32, channel: ChannelId, cell: Cell<Clear>, delay: Span) {
        let Some(end) = self.hosts[host as usize].channel(channel) else { return };
        let at = self.now + delay;
        let Some(cell) = self.out_of_band_across(end, at, cell) else { return };
        let message = self.out_of_band.insert((end.other(), cell));
        self.queue.push(at, Event::OutOfBand(message as u32));
    }

    pub(super) fn out_of_band_arrives(&mut self, message: usize) {
        let (id, cell) = self.out_of_band.remove(message);
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
        let lie = lie.and_then(|writer| self.byzantine.of(writer, now));
        let (Some(lie), Some(step)) = (lie, self.system.control.message_step()) else {
            return self.hosts[host as usize].node().cell(now, channel, cell);
        };
        let connection = (id.connection.0, id.side);
        for body in self.byzantine.instead(lie, (now, step), connection, Clear::recycle(cell.body)) {
            let cell = Cell { body: Clear::from_plain(body), ..cell };
            self.hosts[host as usize].node().cell(now, channel, cell);
        }
    }
}
