//! KIST: cells leave circuit queues at intervals, over all channels at once, and only as many as the kernel
//! would send soon (Jansen, Geddes, Wacek, Sherr, Syverson: "Never Been KIST", USENIX Security 2014; Jansen,
//! Traudt, Geddes, Wacek, Sherr, Syverson, ACM TOPS 2018). The rules are those of tor's `scheduler_kist.c`.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use tidegate_control::units::Time;

pub use super::runs::KistParameters;
use super::state::Links;
use crate::cell::CELL_BYTES;
use crate::control::Timer;
use crate::ids::ChannelId;
use crate::onion::Onion;
pub use crate::sink::Socket;

/// A cell as KIST counts it: with tor's estimate of TLS overhead (`TLS_PER_CELL_OVERHEAD`).
const COUNTED_BYTES: i64 = CELL_BYTES as i64 + 29;

/// A channel that has cells and may write.
struct Turn {
    /// What its next circuit has sent.
    load: f64,
    /// Since when it waits for its turn.
    ticket: u64,
    id: ChannelId,
    limit: i64,
}

impl Ord for Turn {
    /// `BinaryHeap` pops the greatest: the least load, then the longest wait.
    fn cmp(&self, other: &Turn) -> Ordering {
        other.load.total_cmp(&self.load).then(other.ticket.cmp(&self.ticket))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Turn) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Turn {
    fn eq(&self, other: &Turn) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Turn {}

impl<O: Onion> Links<O> {
    /// When the next run is due.
    pub fn next_run(&self) -> Option<Timer> {
        self.runs.due
    }

    /// Begins the run that is due, if one is: first the sockets are looked at.
    pub fn begin_run(&mut self, now: Time) {
        if self.runs.due.is_none_or(|run| run.due > now) {
            return;
        }
        for id in self.runs.begin(now) {
            self.note_occupancy(now, id);
            if self.next_key(now, id).is_some() {
                self.runs.run.push((id, None));
                self.runs.unasked += 1;
            }
        }
    }

    /// A channel whose socket the run wants to know the state of.
    pub fn next_inspection(&mut self) -> Option<ChannelId> {
        self.runs.ask()
    }

    /// The state of a channel's socket. Where it is unknown, the output buffer is filled up to its high mark, as
    /// tor's KISTLite does. The last answer lets the run go on.
    pub fn inspected(&mut self, now: Time, id: ChannelId, socket: Option<Socket>) {
        let Some(parameters) = self.config.kist else { return };
        let Some(channel) = self.channels.get(id.0 as usize) else { return };
        let buffered = channel.out.len() * CELL_BYTES;
        let room = self.config.output_buffer.high_bytes.saturating_sub(buffered).div_ceil(CELL_BYTES);
        let limit = socket.map_or(i64::from(room) * COUNTED_BYTES, |socket| {
            socket.limit(parameters.buffer_factor, buffered.into())
        });
        if let Some((_, known)) = self.runs.run.iter_mut().find(|(other, _)| *other == id) {
            *known = Some(limit);
        }
        self.run_if_known(now);
    }

    /// A run of KIST, once every socket is known: moves cells one by one to output buffers, always from the channel
    /// whose next circuit has sent least, as far as the limits of the sockets allow. Channels are to be written in
    /// the order of their first turns.
    pub(super) fn run_if_known(&mut self, now: Time) {
        let Some(parameters) = self.config.kist else { return };
        if self.runs.run.is_empty() || self.runs.run.iter().any(|(_, limit)| limit.is_none()) {
            return;
        }
        let mut turns = BinaryHeap::new();
        let mut tickets = 0;
        for (id, limit) in std::mem::take(&mut self.runs.run) {
            let Some(load) = self.load(now, id) else { continue };
            turns.push(Turn { load, ticket: tickets, id, limit: limit.unwrap_or(0) });
            tickets += 1;
        }
        let (first_turns, mut served) = (tickets, Vec::new());
        while let Some(turn) = turns.pop() {
            if turn.ticket < first_turns {
                served.push(turn.id);
            }
            if turn.limit < COUNTED_BYTES {
                self.runs.add(now, turn.id, parameters.interval);
                continue;
            }
            self.move_one(now, turn.id);
            if let Some(load) = self.load(now, turn.id) {
                let limit = turn.limit - COUNTED_BYTES;
                turns.push(Turn { load, ticket: tickets, limit, ..turn });
                tickets += 1;
            }
        }
        for id in served {
            self.want_flush(id);
            self.relieve(now, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_takes_what_its_window_leaves_and_one_window_more() {
        let socket = Socket { window: 10, unacknowledged: 4, unsent_bytes: 1000, segment_bytes: 1460 };
        assert_eq!(socket.limit(1.0, 514), 16 * 1460 - 1514);
        assert_eq!(socket.limit(0.0, 0), 6 * 1460 - 1000);
        assert_eq!(Socket { unacknowledged: 40, ..socket }.limit(0.0, 0), 0);
        assert_eq!(Socket { unsent_bytes: u64::MAX, ..socket }.limit(1e300, 7), 0, "no overflow");
    }
}
