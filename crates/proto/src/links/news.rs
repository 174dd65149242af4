//! Messages between the controllers of neighbouring relays: one per channel, gathered from its circuits.

use std::collections::VecDeque;

use tidegate_control::units::{Span, Time};

use super::queues::Queues;
use crate::cell::{Cell, Command, NEIGHBOUR_BYTES};
use crate::control::Route;
use crate::ids::{ChannelId, CircId};
use crate::onion::Onion;

/// Buffers kept for further messages; a node rarely writes more at once.
const SPARES: usize = 256;

/// Messages of the controller to neighbours that are not in a cell yet.
#[derive(Debug)]
pub(super) struct News<O: Onion> {
    /// The message under construction, by channel. Empty without a controller.
    messages: Vec<Vec<u8>>,
    /// Channels with a message under construction; some may be closed since.
    told: Vec<ChannelId>,
    out_of_band: VecDeque<(ChannelId, Cell<O>, Span)>,
    /// Empty buffers for further messages.
    spare: Vec<Vec<u8>>,
}

impl<O: Onion> Default for News<O> {
    fn default() -> News<O> {
        News { messages: Vec::new(), told: Vec::new(), out_of_band: VecDeque::new(), spare: Vec::new() }
    }
}

impl<O: Onion> News<O> {
    /// Adds what `write` writes, at most `bytes`, to the message for a channel. Returns the bytes of a cell that
    /// this filled.
    pub(crate) fn advertise(
        &mut self,
        now: Time,
        id: ChannelId,
        bytes: usize,
        route: Route,
        queues: &mut Queues<O>,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> u64 {
        if self.messages.len() <= id.index() {
            self.messages.resize_with(id.index() + 1, Vec::new);
        }
        let full = self.messages[id.index()].len() + bytes > NEIGHBOUR_BYTES;
        let sent = if full { self.send_one(now, id, route, queues) } else { 0 };
        let message = &mut self.messages[id.index()];
        if message.is_empty() {
            self.told.push(id);
        }
        write(message);
        sent
    }

    /// Sends all messages under construction. Returns their bytes.
    pub(crate) fn send(&mut self, now: Time, route: Route, queues: &mut Queues<O>) -> u64 {
        let mut sent = 0;
        while let Some(id) = self.told.pop() {
            sent += self.send_one(now, id, route, queues);
        }
        sent
    }

    fn send_one(&mut self, now: Time, id: ChannelId, route: Route, queues: &mut Queues<O>) -> u64 {
        let message = &mut self.messages[id.index()];
        if message.is_empty() {
            return 0;
        }
        let message = std::mem::replace(message, self.spare.pop().unwrap_or_default());
        let cell = Cell { circ: CircId(0), command: Command::Plan, body: O::from_plain(message) };
        let bytes = u64::from(cell.wire_bytes());
        match route {
            Route::OutOfBand(delay) => self.out_of_band.push_back((id, cell, delay)),
            Route::InBand => queues.buffer(now, id, cell),
        }
        bytes
    }

    /// A channel closed: drops its message.
    pub(crate) fn remove_channel(&mut self, id: ChannelId) {
        if let Some(message) = self.messages.get_mut(id.index()) {
            message.clear();
        }
    }

    /// Takes back the memory of a message that has been read.
    pub(crate) fn recycle(&mut self, mut message: Vec<u8>) {
        if self.spare.len() < SPARES {
            message.clear();
            self.spare.push(message);
        }
    }

    pub(crate) fn next_out_of_band(&mut self) -> Option<(ChannelId, Cell<O>, Span)> {
        self.out_of_band.pop_front()
    }
}
