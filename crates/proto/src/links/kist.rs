//! KIST: moves cells from circuit queues at intervals, over all channels at once, and only as many as the kernel
//! would send soon.
//!
//! Source: Jansen, Geddes, Wacek, Sherr, Syverson: "Never Been KIST", USENIX Security 2014; Jansen, Traudt, Geddes,
//! Wacek, Sherr, Syverson, ACM TOPS 2018. The rules are those of tor's `scheduler_kist.c`.

use std::cmp::Ordering;
use std::collections::{BTreeSet, BinaryHeap};

use tidegate_control::units::{Span, Time};

use super::config::Config;
pub use super::config::KistParameters;
use super::queues::Queues;
use crate::cell::CELL_BYTES;
use crate::control::Timer;
use crate::ids::ChannelId;
use crate::onion::Onion;
pub use crate::sink::Socket;

/// Bytes that KIST counts for a cell: with tor's estimate of TLS overhead (`TLS_PER_CELL_OVERHEAD`).
const COUNTED_BYTES: i64 = CELL_BYTES as i64 + 29;

/// Share of the time for which a socket took no cell after which its channel is looked at again. It is not looked at in every
/// run, because each look takes a system call, and a stranger can have thousands of connections that it does not read.
const REST: f64 = 0.125;
/// Longest time until such a channel is looked at again.
const LONGEST_REST: Span = Span::from_secs(1);

/// Bytes that a run may move to a channel's output buffer.
type Limit = i64;

/// A channel that has cells and may write.
#[derive(Debug)]
struct Turn {
    /// Decayed number of cells that its next circuit has sent.
    load: f64,
    /// Position in the order of waiting: the lowest has waited longest.
    ticket: u64,
    id: ChannelId,
    limit: Limit,
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

/// How a channel waits for a run.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    is_pending: bool,
    /// Since when its socket took no cell.
    blocked: Option<Time>,
    rests_until: Option<Time>,
}

/// When KIST runs, and for which channels.
#[derive(Debug, Default)]
pub(super) struct Kist {
    /// Channels with cells for the next run, in the order in which they got them.
    pending: Vec<ChannelId>,
    /// Channels with cells that rest, by the time of their next run.
    resting: BTreeSet<(Time, ChannelId)>,
    /// All channels, by number. To search for one would take time that grows with the square of their number.
    channels: Vec<Waiting>,
    last: Option<Time>,
    due: Option<Timer>,
    /// Channels of the current run, with their limits as far as the driver has reported their sockets.
    run: Vec<(ChannelId, Option<Limit>)>,
    /// Channels at the end of `run` that the driver is still to be asked about, and those without an answer.
    unasked: usize,
    unknown: usize,
    runs: u64,
    overtakes: u64,
    /// Memory of the last run.
    spare: Vec<ChannelId>,
    turns: BinaryHeap<Turn>,
    served: Vec<ChannelId>,
}

impl Kist {
    /// Number of runs so far.
    pub(crate) fn runs(&self) -> u64 {
        self.runs
    }

    /// Turns of a channel before one that had waited longer. With equal loads, as under round robin, the number stays 0.
    pub(crate) fn overtakes(&self) -> u64 {
        self.overtakes
    }

    /// When the next run is due.
    pub(crate) fn due(&self) -> Option<Timer> {
        match self.resting.first() {
            None => self.due,
            Some((due, _)) => self.due.into_iter().chain([Timer { due: *due, set: *due }]).min(),
        }
    }

    /// A channel has cells.
    pub(crate) fn add(&mut self, now: Time, id: ChannelId, interval: Span) {
        let number = id.0 as usize;
        if self.channels.len() <= number {
            self.channels.resize(number + 1, Waiting::default());
        }
        let channel = &mut self.channels[number];
        if channel.rests_until.is_some() {
            return;
        }
        if !std::mem::replace(&mut channel.is_pending, true) {
            self.pending.push(id);
        }
        if self.due.is_none() {
            let due = self.last.map_or(now, |last| now.max(last + interval));
            self.due = Some(Timer { due, set: now });
        }
    }

    /// A channel is gone.
    pub(crate) fn remove(&mut self, id: ChannelId) {
        let waiting = self.channels.get_mut(id.0 as usize).map(std::mem::take).unwrap_or_default();
        if waiting.is_pending {
            self.pending.retain(|other| *other != id);
        }
        if let Some(until) = waiting.rests_until {
            self.resting.remove(&(until, id));
        }
        if let Some(at) = self.run.iter().position(|(other, _)| *other == id) {
            self.unasked -= usize::from(at + self.unasked >= self.run.len());
            let (_, limit) = self.run.remove(at);
            self.unknown -= usize::from(limit.is_none());
        }
    }

    /// The channels for the run that begins now.
    fn take_pending(&mut self, now: Time) -> Vec<ChannelId> {
        (self.last, self.due) = (Some(now), None);
        self.runs += 1;
        while let Some((until, id)) = self.resting.first().copied()
            && until <= now
        {
            self.resting.pop_first();
            self.channels[id.0 as usize].rests_until = None;
            self.pending.push(id);
        }
        for id in &self.pending {
            self.channels[id.0 as usize].is_pending = false;
        }
        let spare = std::mem::take(&mut self.spare);
        std::mem::replace(&mut self.pending, spare)
    }

    /// Begins the run if one is due. The driver is asked about the sockets first.
    pub(crate) fn begin<O: Onion>(&mut self, config: &Config, now: Time, queues: &mut Queues<O>) {
        if self.due().is_none_or(|run| run.due > now) {
            return;
        }
        let mut pending = self.take_pending(now);
        for id in pending.drain(..) {
            queues.note_occupancy(config, now, id);
            if queues.has_next(now, id) {
                self.run.push((id, None));
                self.unasked += 1;
                self.unknown += 1;
            }
        }
        self.spare = pending;
    }

    /// The next channel to ask the driver about.
    pub(crate) fn next_inspection(&mut self) -> Option<ChannelId> {
        let at = self.run.len() - self.unasked;
        self.unasked = self.unasked.checked_sub(1)?;
        Some(self.run[at].0)
    }

    /// Sets the limit of a channel from the state of its socket. If the state is unknown, the output buffer is
    /// filled up to its high mark, as tor's KISTLite does.
    pub(crate) fn inspected(&mut self, config: &Config, id: ChannelId, socket: Option<Socket>, ready: u32) {
        let Some(parameters) = config.kist else { return };
        let buffered = ready * CELL_BYTES;
        let room = config.output_buffer.high_bytes.saturating_sub(buffered).div_ceil(CELL_BYTES);
        let limit = socket.map_or(i64::from(room) * COUNTED_BYTES, |socket| {
            let unsent_bytes = if parameters.counts_unsent { socket.unsent_bytes } else { 0 };
            Socket { unsent_bytes, ..socket }.limit(parameters.buffer_factor, buffered.into())
        });
        // Mostly the channel that was asked about last.
        let last = (self.run.len() - self.unasked).saturating_sub(1);
        let is_last = self.run.get(last).is_some_and(|(other, _)| *other == id);
        let at = if is_last { Some(last) } else { self.run.iter().position(|(other, _)| *other == id) };
        if let Some(at) = at {
            self.unknown -= usize::from(self.run[at].1.replace(limit).is_none());
        }
    }

    /// Finishes the run once all sockets are known. Returns the channels to write, in the order of their first turns; give
    /// the memory [back](Self::written).
    ///
    /// The next cell always comes from the channel that may write and has the circuit that has sent least.
    pub(crate) fn run_if_known<O: Onion>(
        &mut self,
        config: &Config,
        now: Time,
        queues: &mut Queues<O>,
    ) -> Vec<ChannelId> {
        let mut served = std::mem::take(&mut self.served);
        let Some(parameters) = config.kist else { return served };
        if self.run.is_empty() || self.unknown > 0 {
            return served;
        }
        let mut turns = std::mem::take(&mut self.turns);
        let alone = self.run.len() == 1;
        let mut tickets = 0;
        for (id, limit) in self.run.drain(..) {
            // A channel that is alone need not be compared.
            let load = if alone { queues.has_next(now, id).then_some(0.0) } else { queues.load(now, id) };
            let Some(load) = load else { continue };
            turns.push(Turn { load, ticket: tickets, id, limit: limit.unwrap_or(0) });
            tickets += 1;
        }
        let (first_turns, mut taken) = (tickets, 0);
        while let Some(mut turn) = turns.pop() {
            // Without overtaking, turns come in the order of their tickets.
            self.overtakes += u64::from(turn.ticket > taken);
            taken += 1;
            // A channel's first turn decides its place in the order of writing.
            if turn.ticket < first_turns {
                served.push(turn.id);
            }
            let alone = turns.is_empty();
            loop {
                if turn.limit < COUNTED_BYTES {
                    // The socket is full: the channel waits for a later run.
                    self.wait(config, now, turn.id, parameters.interval);
                    break;
                }
                let most = if alone { turn.limit / COUNTED_BYTES } else { 1 };
                let moved = queues.move_run(config, now, turn.id, most.try_into().unwrap_or(u32::MAX));
                self.channels[turn.id.0 as usize].blocked = None;
                turn.limit -= COUNTED_BYTES * i64::from(moved);
                if !alone {
                    if let Some(load) = queues.load(now, turn.id) {
                        turns.push(Turn { load, ticket: tickets, ..turn });
                        tickets += 1;
                    }
                    break;
                }
                if !queues.has_next(now, turn.id) {
                    break;
                }
            }
        }
        self.turns = turns;
        served
    }

    /// Lets a channel with a full socket wait. A relay that limits what neighbours can use lets it rest the longer, the longer
    /// its socket was full.
    fn wait(&mut self, config: &Config, now: Time, id: ChannelId, interval: Span) {
        let channel = &mut self.channels[id.0 as usize];
        let blocked = now.since(*channel.blocked.get_or_insert(now)).as_secs_f64();
        let rest = Span::from_secs_f64(REST * blocked).min(LONGEST_REST);
        if config.limits.is_none() || rest <= interval {
            return self.add(now, id, interval);
        }
        // Channels rest until common times, because each run takes time.
        let until = Time((now + rest).0.next_multiple_of(interval.0));
        channel.rests_until = Some(until);
        self.resting.insert((until, id));
    }

    /// Takes back the memory of the last run's channels.
    pub(crate) fn written(&mut self, mut served: Vec<ChannelId>) {
        served.clear();
        self.served = served;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_accepts_its_free_window_and_one_more_window() {
        let socket = Socket { window: 10, unacknowledged: 4, unsent_bytes: 1000, segment_bytes: 1460 };
        assert_eq!(socket.limit(1.0, 514), 16 * 1460 - 1514);
        assert_eq!(socket.limit(0.0, 0), 6 * 1460 - 1000);
        assert_eq!(Socket { unacknowledged: 40, ..socket }.limit(0.0, 0), 0);
        assert_eq!(Socket { unsent_bytes: u64::MAX, ..socket }.limit(1e300, 7), 0, "no overflow");
    }

    #[test]
    fn runs_are_an_interval_apart() {
        let mut runs = Kist::default();
        let interval = Span::from_millis(10);
        runs.add(Time(5), ChannelId(1), interval);
        assert_eq!(runs.due, Some(Timer { due: Time(5), set: Time(5) }));
        assert_eq!(runs.take_pending(Time(5)), [ChannelId(1)]);
        runs.add(Time(9), ChannelId(2), interval);
        runs.add(Time(9), ChannelId(1), interval);
        assert_eq!(runs.due, Some(Timer { due: Time(10_000_005), set: Time(9) }));
        runs.remove(ChannelId(2));
        assert_eq!(runs.take_pending(Time(10_000_005)), [ChannelId(1)]);
        assert_eq!(runs.due, None);
    }
}
