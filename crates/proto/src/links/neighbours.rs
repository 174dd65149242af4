//! What neighbouring relays' controllers tell each other: a message per channel, gathered from its circuits.

use tidegate_control::units::{Span, Time};

use super::state::Links;
use crate::cell::{CELL_BYTES, Cell, Command, NEIGHBOUR_BYTES};
use crate::control::Route;
use crate::ids::{ChannelId, CircId, CircuitKey, LegId, Side};
use crate::onion::Onion;
use crate::sink::Departure;

/// Buffers kept for further messages; a node rarely writes more at once.
const SPARES: usize = 256;

impl<O: Onion> Links<O> {
    /// Bytes of the first `cells` cells in a channel's output buffer.
    pub(super) fn front_bytes(&self, id: ChannelId, cells: u32) -> u64 {
        // Only controllers' messages are not of the usual length.
        if self.first_allowance.is_none() {
            return u64::from(cells * CELL_BYTES);
        }
        let front = self.channels[id.0 as usize].out.iter().take(cells as usize);
        front.map(|departure| u64::from(departure.cell.wire_bytes())).sum()
    }

    /// Whether the neighbour on a leg's channel is a relay that understands plans.
    pub fn is_to_relay(&self, id: LegId) -> bool {
        let channel = &self.channels[self.legs[id.0 as usize].channel.0 as usize];
        channel.peer.is_some() && !channel.stock
    }

    /// The circuit behind a circuit id of a channel, and on which side of it the channel is.
    pub fn circuit_of(&self, id: ChannelId, circ: CircId) -> Option<(CircuitKey, Side)> {
        let channel = self.channels.get(id.0 as usize)?;
        let at = channel.circs.binary_search_by_key(&circ, |(circ, _)| *circ).ok()?;
        let leg = &self.legs[channel.circs[at].1.0 as usize];
        Some((leg.circuit, leg.side))
    }

    /// Adds what `write` writes to what is sent to a leg's neighbour; `bytes`: as many at most. Returns the
    /// bytes of a cell that this filled.
    pub fn advertise(
        &mut self,
        now: Time,
        id: LegId,
        bytes: usize,
        route: Route,
        write: impl FnOnce(CircId, &mut Vec<u8>),
    ) -> u64 {
        let leg = &self.legs[id.0 as usize];
        let (circ, id) = (leg.circ, leg.channel);
        let full = self.channels[id.0 as usize].news.len() + bytes > NEIGHBOUR_BYTES;
        let sent = if full { self.send_news(now, id, route) } else { 0 };
        let channel = &mut self.channels[id.0 as usize];
        if channel.news.is_empty() {
            self.told.push(id);
        }
        write(circ, &mut channel.news);
        sent
    }

    /// Sends what neighbours have been told since the last call; its bytes.
    pub fn send_told(&mut self, now: Time, route: Route) -> u64 {
        let mut sent = 0;
        while let Some(id) = self.told.pop() {
            if self.channels.contains(id.0 as usize) {
                sent += self.send_news(now, id, route);
            }
        }
        sent
    }

    fn send_news(&mut self, now: Time, id: ChannelId, route: Route) -> u64 {
        let spare = self.spare.pop().unwrap_or_default();
        let channel = &mut self.channels[id.0 as usize];
        let news = std::mem::replace(&mut channel.news, spare);
        if news.is_empty() {
            return 0;
        }
        let cell = Cell { circ: CircId(0), command: Command::Plan, body: O::from_plain(news) };
        let bytes = u64::from(cell.wire_bytes());
        match route {
            Route::OutOfBand(delay) => self.out_of_band.push_back((id, cell, delay)),
            Route::InBand => {
                channel.out.push_back(Departure { cell, queued: now, buffered: now });
                self.buffered_cells += 1;
                self.want_flush(id);
            }
        }
        bytes
    }

    /// Takes back the memory of a message that has been read.
    pub fn recycle(&mut self, mut news: Vec<u8>) {
        if self.spare.len() < SPARES {
            news.clear();
            self.spare.push(news);
        }
    }

    /// A message that goes to the neighbour out of band, in so much time.
    pub fn next_out_of_band(&mut self) -> Option<(ChannelId, Cell<O>, Span)> {
        self.out_of_band.pop_front()
    }
}
