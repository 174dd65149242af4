//! The circuit queues and output buffers of all channels: cells move from the first to the second.

use std::collections::VecDeque;

use slab::Slab;
use tidegate_control::units::Time;

use super::channels::insert_few;
use super::config::Config;
use super::leg::{Leg, Turn, View};
use super::waiting::Waiting;
use crate::cell::{CELL_BYTES, Cell, Command};
use crate::ids::{ChannelId, CircId, CircuitKey, LegId, Side};
use crate::onion::Onion;
use crate::scheduler::Scheduler;
use crate::sink::Departure;
use crate::switching::Occupancy;
use crate::transport::LOUDNESS_HALF_LIFE;

/// A circuit queue is full: the circuit must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueFull;

/// The sending side of one channel: its scheduler and its output buffer.
#[derive(Debug)]
struct Port<O: Onion> {
    /// The connection is established.
    open: bool,
    /// The output buffer takes cells: it fell below the low mark since it was full.
    filling: bool,
    /// The driver was told to flush and has not yet emptied the buffer.
    flushing: bool,
    scheduler: Box<dyn Scheduler + Send>,
    /// Scheduler key -> leg.
    keys: Slab<LegId>,
    /// Number of legs that the scheduler may choose, and the one that it chose last, if another one waited then and still waits.
    active: u32,
    last: Option<u32>,
    out: Waiting<O>,
    /// Cells in `out` that came past the circuit queues.
    unqueued: u32,
    /// Average fill of `out`, where circuits may move away.
    occupancy: Option<Occupancy>,
}

impl<O: Onion> Port<O> {
    fn activate(&mut self, now: Time, key: u32, legs: &Slab<Leg<O>>) {
        self.active += 1;
        self.scheduler.activate(now, key, &View { keys: &self.keys, legs, passing: None });
    }

    fn next(&mut self, now: Time, legs: &Slab<Leg<O>>) -> Option<u32> {
        self.scheduler.next(now, &View { keys: &self.keys, legs, passing: None })
    }

    /// Whether the next cell of a leg that may send goes straight to the output buffer if that has room: no other leg
    /// waits.
    fn is_clear(&self) -> bool {
        self.open && self.filling && self.active == 0
    }

    /// Forgets a leg, which was `active` or not.
    fn detach(&mut self, key: u32, active: bool) {
        self.active -= u32::from(active);
        self.last = None;
        self.scheduler.forget(key);
        self.keys.remove(key as usize);
    }
}

/// Cells that an output buffer takes.
fn high_cells(config: &Config) -> u32 {
    (config.output_buffer.high_bytes / CELL_BYTES).max(1)
}

/// All circuit queues and output buffers of a node. Ids of channels are those of the channel table.
#[derive(Debug)]
pub(super) struct Queues<O: Onion> {
    ports: Slab<Port<O>>,
    legs: Slab<Leg<O>>,
    /// Whether the cells that each leg sends are counted.
    count_cells: bool,
    /// Whether a cell may pass its empty queue: channels fill at once, and nothing watches how full buffers are.
    passable: bool,
    flushable: VecDeque<ChannelId>,
    drained: VecDeque<(CircuitKey, Side)>,
    queued_cells: u64,
    buffered_cells: u64,
    /// Cells that left right after one of the same circuit while another circuit waited all the time.
    repeated: u64,
    /// Longest queues towards clients and towards exits that the consensus states.
    pub limits: [Option<u32>; 2],
}

impl<O: Onion> Queues<O> {
    pub(crate) fn new(config: &Config) -> Queues<O> {
        Queues {
            ports: Slab::new(),
            legs: Slab::new(),
            count_cells: config.transport.needs_loudness()
                || config.switching.is_some()
                || config.scheduler.counts(),
            passable: config.kist.is_none() && config.switching.is_none(),
            flushable: VecDeque::new(),
            drained: VecDeque::new(),
            queued_cells: 0,
            buffered_cells: 0,
            repeated: 0,
            limits: [None; 2],
        }
    }

    /// Adds the queues of a channel that the channel table has just added.
    pub(crate) fn add_channel(&mut self, id: ChannelId, open: bool, scheduler: Box<dyn Scheduler + Send>) {
        let port = Port {
            open,
            filling: true,
            flushing: false,
            scheduler,
            keys: Slab::new(),
            active: 0,
            last: None,
            out: Waiting::of_channel(),
            unqueued: 0,
            occupancy: None,
        };
        let index = insert_few(&mut self.ports, port);
        assert_eq!(index, id.index(), "both tables add and remove channels together");
    }

    /// Drops a channel's output buffer and scheduler.
    pub(crate) fn remove_channel(&mut self, id: ChannelId) {
        let port = self.ports.remove(id.index());
        self.flushable.retain(|other| *other != id);
        self.buffered_cells -= u64::from(port.out.len());
    }

    pub(crate) fn add_leg(&mut self, leg: Leg<O>) -> LegId {
        let channel = leg.channel;
        let index = insert_few(&mut self.legs, leg);
        let id = LegId(index as u32);
        let port = &mut self.ports[channel.index()];
        let key = insert_few(&mut port.keys, id) as u32;
        port.scheduler.forget(key);
        self.legs[index].key = key;
        id
    }

    /// Removes a leg and drops the cells in its queue.
    pub(crate) fn remove_leg(&mut self, id: LegId) -> Leg<O> {
        let leg = self.legs.remove(id.index());
        self.queued_cells -= u64::from(leg.queue.len());
        if let Some(port) = self.ports.get_mut(leg.channel.index()) {
            port.detach(leg.key, leg.is_ready());
        }
        leg
    }

    pub(crate) fn leg(&self, id: LegId) -> &Leg<O> {
        &self.legs[id.index()]
    }

    /// The ids of all legs, and unused ids between them.
    pub(crate) fn leg_ids(&self) -> impl Iterator<Item = LegId> + use<O> {
        (0..self.legs.capacity() as u32).map(LegId)
    }

    /// Decayed number of cells that a leg has sent.
    pub(crate) fn loudness(&self, now: Time, id: LegId) -> f64 {
        self.legs[id.index()].loudness.value(now, LOUDNESS_HALF_LIFE)
    }

    /// Gives a leg to another circuit.
    pub(crate) fn assign(&mut self, id: LegId, circuit: CircuitKey) {
        self.legs[id.index()].circuit = circuit;
    }

    /// Lets a leg send on another channel under another circuit id.
    pub(crate) fn rebind(&mut self, now: Time, id: LegId, to: ChannelId, circ: CircId) {
        let leg = &mut self.legs[id.index()];
        self.ports[leg.channel.index()].detach(leg.key, leg.is_ready());
        let port = &mut self.ports[to.index()];
        let key = port.keys.insert(id) as u32;
        port.scheduler.forget(key);
        (leg.channel, leg.circ, leg.key) = (to, circ, key);
        leg.buffered = 0;
        if leg.is_ready() {
            port.activate(now, key, &self.legs);
        }
    }

    /// Cells that a leg's queue takes before the circuit ends.
    fn longest(&self, config: &Config, id: LegId) -> u32 {
        let stated = self.limits[usize::from(self.legs[id.index()].side == Side::Next)];
        stated.unwrap_or(config.queue_limit)
    }

    /// Whether a leg's queue holds half of the cells with which its circuit ends.
    pub(crate) fn is_half_full(&self, config: &Config, id: LegId) -> bool {
        self.legs[id.index()].queue.len() >= self.longest(config, id) / 2
    }

    /// Whether a leg's queue takes so many cells more before the circuit ends.
    pub(crate) fn has_place(&self, config: &Config, id: LegId, cells: u32) -> bool {
        self.legs[id.index()].queue.len() + cells <= self.longest(config, id)
    }

    /// Queues a run of equal cells on a leg. Returns the channel that has cells to move now, if not all cells passed.
    pub(crate) fn push(
        &mut self,
        config: &Config,
        now: Time,
        id: LegId,
        cell: (Command, O::Body),
        count: u32,
    ) -> Result<Option<ChannelId>, QueueFull> {
        if !self.has_place(config, id, count) {
            return Err(QueueFull);
        }
        let (command, body) = cell;
        let cell = Cell { circ: self.legs[id.index()].circ, command, body };
        let departure = Departure { cell, queued: now, buffered: now };
        let mut left = count;
        loop {
            let passing = self.passing(config, id).min(left);
            if passing == left {
                self.pass(now, id, departure, passing);
                return Ok(None);
            }
            if passing == 0 {
                return Ok(Some(self.wait(now, id, departure, left)));
            }
            self.pass(now, id, departure.clone(), passing);
            left -= passing;
        }
    }

    /// Number of further cells of a leg that would go straight to the output buffer.
    #[inline]
    fn passing(&self, config: &Config, id: LegId) -> u32 {
        let leg = &self.legs[id.index()];
        let port = &self.ports[leg.channel.index()];
        if self.passable && leg.queue.is_empty() && port.is_clear() {
            high_cells(config).saturating_sub(port.out.len()).min(leg.sendable())
        } else {
            0
        }
    }

    /// Moves a run past the empty queue of its leg, and tells the scheduler, which has only this leg.
    #[inline]
    fn pass(&mut self, now: Time, id: LegId, departure: Departure<O>, count: u32) {
        let Leg { channel, key, .. } = self.legs[id.index()];
        let port = &mut self.ports[channel.index()];
        // A scheduler that reads the count sees each cell.
        let together = if self.count_cells { 1 } else { count };
        for _ in 0..count / together {
            let view = View { keys: &port.keys, legs: &self.legs, passing: Some(key) };
            port.scheduler.passed(now, key, together, &view);
            self.legs[id.index()].count_sent(now, together, self.count_cells);
        }
        port.last = None;
        let leg = &mut self.legs[id.index()];
        if std::mem::take(&mut leg.high) {
            self.drained.push_back((leg.circuit, leg.side));
        }
        port.out.push_back(departure, count);
        self.buffered_cells += u64::from(count);
        if !port.flushing {
            port.flushing = true;
            self.flushable.push_back(channel);
        }
    }

    /// Puts a run into its leg's queue, and tells the scheduler if the leg may send now. Returns the leg's channel.
    fn wait(&mut self, now: Time, id: LegId, departure: Departure<O>, count: u32) -> ChannelId {
        let leg = &mut self.legs[id.index()];
        let (channel, key) = (leg.channel, leg.key);
        let is_first = leg.queue.is_empty();
        leg.queue.push_back(departure, count);
        self.queued_cells += u64::from(count);
        // The scheduler knows only legs with a cell that may leave.
        if is_first {
            if leg.may_send() {
                self.ports[channel.index()].activate(now, key, &self.legs);
            } else {
                leg.cut(now);
            }
        }
        channel
    }

    /// Cells that a leg's queue takes before its own end must stop packaging.
    pub(crate) fn room(&self, config: &Config, id: LegId) -> u32 {
        let leg = &self.legs[id.index()];
        if leg.high { 0 } else { config.queue_high.saturating_sub(leg.queue.len()) }
    }

    /// Notes whether the queue now stops the leg's own end.
    pub(crate) fn note_packaged(&mut self, config: &Config, id: LegId) {
        let leg = &mut self.legs[id.index()];
        leg.high |= leg.queue.len() >= config.queue_high;
    }

    /// Sets a leg's allowance. Returns its channel if that has cells to move now.
    pub(crate) fn allow(
        &mut self,
        now: Time,
        id: LegId,
        cells: f64,
        share: f64,
        carry: bool,
    ) -> Option<ChannelId> {
        let turn = self.legs[id.index()].allow(now, cells, share, carry);
        self.turn(now, id, &turn)
    }

    /// Adds a release's share to a leg, if there is such a leg. Returns its channel if that has cells to move now.
    pub(crate) fn release(&mut self, now: Time, id: LegId) -> Option<ChannelId> {
        let turn = self.legs.get_mut(id.index())?.release(now);
        self.turn(now, id, &turn)
    }

    fn turn(&mut self, now: Time, id: LegId, turn: &Turn) -> Option<ChannelId> {
        let leg = &self.legs[id.index()];
        let port = &mut self.ports[leg.channel.index()];
        match turn {
            Turn::Unchanged => None,
            Turn::Begins => {
                port.activate(now, leg.key, &self.legs);
                Some(leg.channel)
            }
            Turn::Ends => {
                port.active -= 1;
                port.last = None;
                port.scheduler.remove(leg.key);
                None
            }
        }
    }

    /// The connection of a channel is established.
    pub(crate) fn open(&mut self, id: ChannelId) {
        self.ports[id.index()].open = true;
    }

    pub(crate) fn is_open(&self, id: ChannelId) -> bool {
        self.ports[id.index()].open
    }

    /// Whether the output buffer takes cells.
    pub(crate) fn is_filling(&self, id: ChannelId) -> bool {
        self.ports[id.index()].filling
    }

    /// Cells in a channel's output buffer; zero for an unknown channel.
    pub(crate) fn ready(&self, id: ChannelId) -> u32 {
        self.ports.get(id.index()).map_or(0, |port| port.out.len())
    }

    /// Cells in a channel's output buffer that came past the circuit queues; zero for an unknown channel.
    pub(crate) fn unqueued(&self, id: ChannelId) -> u32 {
        self.ports.get(id.index()).map_or(0, |port| port.unqueued)
    }

    /// Bytes of the first `cells` cells in a channel's output buffer.
    pub(crate) fn front_bytes(&self, id: ChannelId, cells: u32) -> u64 {
        let (mut left, mut bytes) = (cells, 0);
        for (departure, count) in self.ports[id.index()].out.runs() {
            let taken = left.min(*count);
            bytes += u64::from(taken * departure.cell.wire_bytes());
            left -= taken;
            if left == 0 {
                break;
            }
        }
        bytes
    }

    /// Updates the average fill of an output buffer. Call it before the buffer changes.
    pub(crate) fn note_occupancy(&mut self, config: &Config, now: Time, id: ChannelId) {
        let Some(rules) = &config.switching else { return };
        let port = &mut self.ports[id.index()];
        let high_bytes = f64::from(config.output_buffer.high_bytes);
        // KIST ignores the high mark and may fill the buffer beyond it.
        let filled = (f64::from(port.out.len()) * f64::from(CELL_BYTES) / high_bytes).min(1.0);
        port.occupancy.get_or_insert_with(|| Occupancy::new(now)).note(rules, now, filled);
    }

    /// The average fill of a channel's output buffer, if it is measured, to ask for an alarm.
    pub(crate) fn occupancy_mut(&mut self, id: ChannelId) -> Option<&mut Occupancy> {
        self.ports[id.index()].occupancy.as_mut()
    }

    /// Moves cells from circuit queues to the output buffer, in the scheduler's order, up to the high mark.
    /// False, with nothing moved, if the channel is not open.
    pub(crate) fn fill(&mut self, config: &Config, now: Time, id: ChannelId) -> bool {
        self.note_occupancy(config, now, id);
        if !self.is_open(id) {
            return false;
        }
        let high = high_cells(config);
        loop {
            let room = high.saturating_sub(self.ports[id.index()].out.len());
            if room == 0 || self.move_run(config, now, id, room) == 0 {
                break;
            }
        }
        let idle = !self.has_next(now, id);
        self.ports[id.index()].filling = idle;
        self.want_flush(id);
        true
    }

    /// Whether the scheduler of a channel has a cell to send.
    pub(crate) fn has_next(&mut self, now: Time, id: ChannelId) -> bool {
        self.ports[id.index()].next(now, &self.legs).is_some()
    }

    /// Decayed number of cells sent by the circuit that sends next, by which KIST compares channels.
    pub(crate) fn load(&mut self, now: Time, id: ChannelId) -> Option<f64> {
        let port = &mut self.ports[id.index()];
        port.scheduler.load(now, &View { keys: &port.keys, legs: &self.legs, passing: None })
    }

    /// Moves the next cell to a channel's output buffer, and up to `most` cells if the next ones are equal and only their leg
    /// has cells. Returns how many.
    pub(crate) fn move_run(&mut self, config: &Config, now: Time, id: ChannelId, most: u32) -> u32 {
        let port = &mut self.ports[id.index()];
        let Some(key) = port.next(now, &self.legs) else { return 0 };
        let others_wait = port.active > 1;
        self.repeated += u64::from(others_wait && port.last == Some(key));
        port.last = others_wait.then_some(key);
        let index = port.keys[key as usize].index();
        let leg = &mut self.legs[index];
        // A scheduler that reads the count sees each cell.
        let most = if others_wait || self.count_cells { 1 } else { most.min(leg.sendable()) };
        let cells = leg.send(now, &mut port.out, most, self.count_cells);
        let more = leg.is_ready();
        port.active -= u32::from(!more);
        let view = View { keys: &port.keys, legs: &self.legs, passing: None };
        for _ in 1..cells {
            port.scheduler.sent(now, key, true, &view);
            let next = port.scheduler.next(now, &view);
            debug_assert_eq!(next, Some(key), "no other leg has cells");
        }
        port.scheduler.sent(now, key, more, &view);
        self.queued_cells -= u64::from(cells);
        self.buffered_cells += u64::from(cells);
        let leg = &mut self.legs[index];
        if leg.high && leg.queue.len() <= config.queue_low {
            leg.high = false;
            self.drained.push_back((leg.circuit, leg.side));
        }
        if !more {
            leg.cut(now);
        }
        cells
    }

    /// Puts a cell into an output buffer behind all others, past the circuit queues.
    pub(crate) fn buffer(&mut self, now: Time, id: ChannelId, cell: Cell<O>) {
        self.skip_queues(now, id, cell, |out, departure| out.push_back(departure, 1));
    }

    /// As [`buffer`](Self::buffer), but ahead of all others.
    pub(crate) fn buffer_first(&mut self, now: Time, id: ChannelId, cell: Cell<O>) {
        self.skip_queues(now, id, cell, Waiting::push_front);
    }

    fn skip_queues(
        &mut self,
        now: Time,
        id: ChannelId,
        cell: Cell<O>,
        put: fn(&mut Waiting<O>, Departure<O>),
    ) {
        assert!(cell.command.skips_queues(), "{:?} waits in its circuit's queue", cell.command);
        let port = &mut self.ports[id.index()];
        put(&mut port.out, Departure { cell, queued: now, buffered: now });
        port.unqueued += 1;
        self.buffered_cells += 1;
        self.want_flush(id);
    }

    /// Asks the driver to flush a channel that has cells, unless it was asked already.
    pub(crate) fn want_flush(&mut self, id: ChannelId) {
        let port = &mut self.ports[id.index()];
        if port.open && !port.flushing && !port.out.is_empty() {
            port.flushing = true;
            self.flushable.push_back(id);
        }
    }

    /// The driver flushes the channel no longer until it is asked again.
    pub(crate) fn stop_flushing(&mut self, id: ChannelId) {
        self.ports[id.index()].flushing = false;
    }

    /// Takes the first cells of an output buffer, which must have as many, in runs of equal ones: `most`, or fewer if the
    /// buffer falls to its low mark and must be filled again. Returns their number, and whether to fill it.
    pub(crate) fn pop(
        &mut self,
        config: &Config,
        now: Time,
        id: ChannelId,
        most: u32,
        mut take: impl FnMut(Departure<O>, u32),
    ) -> (u32, bool) {
        let low = config.output_buffer.low_bytes / CELL_BYTES;
        self.note_occupancy(config, now, id);
        let port = &mut self.ports[id.index()];
        let (mut taken, mut fill) = (0, false);
        while taken < most && !fill {
            // Not beyond the low mark, where the buffer is filled again.
            let above = if port.filling { u32::MAX } else { port.out.len().saturating_sub(low).max(1) };
            let run = port.out.pop_run(above.min(most - taken));
            let (departure, count) = run.expect("the buffer has as many cells as were begun");
            port.unqueued -= if departure.cell.command.skips_queues() { count } else { 0 };
            taken += count;
            fill = !port.filling && port.out.len() <= low;
            take(departure, count);
        }
        self.buffered_cells -= u64::from(taken);
        (taken, fill)
    }

    /// A cell of a leg left the output buffer of a channel.
    pub(crate) fn note_departed(&mut self, id: LegId, channel: ChannelId) {
        let leg = &mut self.legs[id.index()];
        // A leg that has moved counts what it sends on its new channel.
        if leg.channel == channel {
            leg.buffered = leg.buffered.saturating_sub(1);
        }
    }

    pub(crate) fn next_flushable(&mut self) -> Option<ChannelId> {
        self.flushable.pop_front()
    }

    pub(crate) fn next_drained(&mut self) -> Option<(CircuitKey, Side)> {
        self.drained.pop_front()
    }

    /// Cells in circuit queues and in output buffers.
    pub(crate) fn cells(&self) -> (u64, u64) {
        (self.queued_cells, self.buffered_cells)
    }

    /// Cells that left right after one of the same circuit while another circuit waited.
    pub(crate) fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Of the channels that count, the one with the oldest first cell in its output buffer.
    pub(crate) fn oldest_unread(&self, counts: impl Fn(ChannelId) -> bool) -> Option<ChannelId> {
        let ports = self.ports.iter().filter(|(id, _)| counts(ChannelId(*id as u32)));
        let unread = ports.filter_map(|(id, port)| {
            port.out.front().map(|departure| (departure.buffered, ChannelId(id as u32)))
        });
        unread.min().map(|(_, id)| id)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_control::units::Span;

    use super::*;
    use crate::links::config::OutputBuffer;
    use crate::onion::Clear;
    use crate::registry::SCHEDULERS;

    const CHANNEL: ChannelId = ChannelId(0);
    const LEGS: u32 = 3;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// A run of equal cells arrives for a leg.
        Push(u32, u32),
        /// The connection takes this many cells.
        Take(u32),
        Wait(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..LEGS, prop_oneof![Just(1), 1..7u32]).prop_map(|(leg, cells)| Step::Push(leg, cells)),
            2 => (1..6u32).prop_map(Step::Take),
            1 => (1..30_000u64).prop_map(Step::Wait),
        ];
        prop::collection::vec(step, 0..200)
    }

    /// Everything that can be seen: cells that left as (circuit, times of queueing and buffering), legs that may package
    /// again, cells in queues and buffers, and repeated turns.
    type Seen = (Vec<(u32, Time, Time)>, Vec<(CircuitKey, Side)>, (u64, u64), u64);

    /// Whether cells may pass empty queues, and whether a run moves as one object.
    fn run(config: &Config, steps: &[Step], (passable, together): (bool, bool)) -> (Seen, u32) {
        // Cells that are counted move one by one.
        let count_cells = !together || config.scheduler.counts();
        let mut queues = Queues::<Clear> { passable, count_cells, ..Queues::new(config) };
        queues.add_channel(CHANNEL, true, config.scheduler.build());
        for leg in 0..LEGS {
            let (circ, circuit) = (CircId(leg + 1), CircuitKey(leg));
            queues.add_leg(Leg::new(CHANNEL, circ, circuit, Side::Prev, f64::INFINITY));
        }
        let (mut now, mut left, mut passed) = (Time::ZERO, Vec::new(), 0);
        for step in steps {
            match *step {
                Step::Wait(ms) => now += Span::from_millis(ms),
                Step::Push(leg, cells) => {
                    let (each, times) = if together { (cells, 1) } else { (1, cells) };
                    for _ in 0..times {
                        let cell = (Command::Relay, Clear::empty());
                        let pushed = queues.push(config, now, LegId(leg), cell, each);
                        passed += u32::from(pushed == Ok(None));
                        if pushed == Ok(Some(CHANNEL)) && queues.is_filling(CHANNEL) {
                            queues.fill(config, now, CHANNEL);
                        }
                    }
                    queues.note_packaged(config, LegId(leg));
                }
                Step::Take(most) => {
                    let mut most = most.min(queues.ready(CHANNEL));
                    while most > 0 {
                        let (taken, fill) = queues.pop(config, now, CHANNEL, most, |departure, count| {
                            let seen = (departure.cell.circ.0, departure.queued, departure.buffered);
                            left.extend(std::iter::repeat_n(seen, count as usize));
                        });
                        most -= taken;
                        if fill {
                            queues.fill(config, now, CHANNEL);
                        }
                    }
                }
            }
        }
        let drained = std::iter::from_fn(|| queues.next_drained()).collect();
        ((left, drained, queues.cells(), queues.repeated()), passed)
    }

    proptest! {
        #[test]
        fn cells_that_pass_their_queues_or_come_together_change_nothing(steps in steps()) {
            for scheduler in SCHEDULERS {
                let output_buffer = OutputBuffer { high_bytes: 4 * CELL_BYTES, low_bytes: CELL_BYTES };
                let scheduler = scheduler.by_default();
                let config =
                    Config { scheduler, output_buffer, queue_high: 3, queue_low: 1, ..Config::default() };
                let (queued, none) = run(&config, &steps, (false, false));
                let (passing, passed) = run(&config, &steps, (true, false));
                let (together, _) = run(&config, &steps, (true, true));
                prop_assert_eq!(&passing, &queued);
                prop_assert_eq!(&together, &queued);
                prop_assert_eq!(none, 0);
                let begins_with_a_cell = matches!(steps.first(), Some(Step::Push(..)));
                prop_assert!(passed > 0 || !begins_with_a_cell, "the first cell of all passes");
            }
        }
    }
}
