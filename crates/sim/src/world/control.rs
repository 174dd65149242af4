//! What only a simulation can do with relays' controllers: clocks that drift, messages that go out of band, relays
//! that lie.

use tidegate_control::random::Seed;
use tidegate_proto::cell::{Cell, Command};
use tidegate_proto::flow::predictor::{Parameters, Phases};
use tidegate_proto::links::{ChannelId, Clock};
use tidegate_proto::onion::{Clear, Onion};

use super::connection::{Attached, EndId};
use super::{Event, World};
use crate::observe::{Host, Recorder};
use crate::plan::Control;

/// The clock of a host's controller.
pub(super) fn clock(control: &Control, seed: &Seed, host: u32) -> Clock {
    let Control::Predictor(Parameters { phases, drift, .. }) = *control else { return Clock::default() };
    let mut random = seed.fork("controllers").fork_index(host.into()).random();
    let (phase, slow) = (random.unit(), random.uniform(-drift, drift));
    Clock { phase: if phases == Phases::Random { phase } else { 0.0 }, slow }
}

impl<R: Recorder> World<'_, R> {
    fn predictor(&self) -> Option<&Parameters> {
        match &self.system.control {
            Control::Predictor(parameters) => Some(parameters),
            Control::Windows(_) | Control::Vegas(_) => None,
        }
    }

    /// A message goes out of band.
    pub(super) fn send_out_of_band(&mut self, host: u32, channel: ChannelId, cell: Cell<Clear>) {
        let Some(&Parameters { delay, .. }) = self.predictor() else { return };
        let Some(end) = self.hosts[host as usize].channel(channel) else { return };
        let message = self.out_of_band.insert((end.other(), cell));
        self.queue.push(self.now + delay, Event::OutOfBand(message as u32));
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
