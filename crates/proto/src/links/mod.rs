//! The channels of a node, the circuits multiplexed on them, and the order in which cells leave.
//!
//! A *channel* is one connection to a neighbour. A *leg* is one circuit on one channel, with the queue of cells that
//! wait to leave there. Cells move from a leg's queue to the channel's output buffer in the order of the channel's
//! scheduler, and from there to the driver's connection in order.
//!
//! `Links` is the only type that knows all parts; no part calls back:
//!
//! - `channels`: neighbours and circuit ids; `queues`: circuit queues (`leg`), schedulers and output buffers;
//! - [`kist`]: when and how far KIST moves cells; `moves`: legs that move from channel to channel;
//! - `news`: messages between controllers of neighbouring relays;
//! - `config`, `limits`: what an operator sets.

mod channels;
mod config;
pub mod kist;
mod leg;
mod limits;
mod moves;
mod news;
mod queues;
#[cfg(test)]
mod tests;
mod waiting;

use tidegate_control::units::{Span, Time};

pub(crate) use channels::insert_few;
use channels::{Channels, Choice};
pub use config::{CircuitQueue, Config, Ends, OutputBuffer};
use kist::{Kist, Socket};
use leg::Leg;
pub use limits::Limits;
pub(crate) use moves::Arrival;
use moves::{Moves, Step, Surroundings};
use news::News;
pub(crate) use queues::QueueFull;
use queues::Queues;

use crate::cell::{CELL_BYTES, Cell, Command, DestroyReason};
pub use crate::control::Clock;
use crate::control::{Route, StreamFlow, Timer};
pub(crate) use crate::ids::LegId;
pub use crate::ids::{ChannelId, Side};
use crate::ids::{CircId, CircuitKey, RelayId};
use crate::onion::Onion;
pub use crate::sink::Departure;
use crate::sink::{Budget, Sink};
use crate::switching::MoveTimes;

/// All channels and legs of a node.
#[derive(Debug)]
pub(crate) struct Links<O: Onion> {
    config: Config,
    /// Cells that a new leg to the client may send before a controller's first step; `None` without a controller.
    first_allowance: Option<f64>,
    channels: Channels,
    queues: Queues<O>,
    kist: Kist,
    moves: Moves<O>,
    news: News<O>,
}

impl<O: Onion> Links<O> {
    /// A node without channels. `first_allowance`: the cells that a leg may send before a controller's first step, if
    /// a controller steers legs.
    pub(crate) fn new(config: Config, first_allowance: Option<f64>) -> Links<O> {
        Links {
            first_allowance,
            channels: Channels::default(),
            queues: Queues::new(&config),
            kist: Kist::default(),
            moves: Moves::new(config.nonces.random()),
            news: News::default(),
            config,
        }
    }

    /// The configuration of this node.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The moves, and the state that they read and change.
    fn moves(&mut self) -> (&mut Moves<O>, Surroundings<'_, O>) {
        let Links { config, channels, queues, moves, .. } = self;
        (moves, Surroundings { config, channels, queues })
    }

    fn add_channel(&mut self, peer: Option<RelayId>, ours: bool) -> ChannelId {
        let id = self.channels.add(&self.config, peer, ours);
        self.queues.add_channel(id, !ours, self.config.scheduler.build());
        id
    }

    /// A neighbour connected to us.
    pub(crate) fn accept(&mut self, peer: Option<RelayId>) -> ChannelId {
        self.add_channel(peer, false)
    }

    /// Adds a channel to another shard of this relay, for circuits from clients or from relays. `ours`: this shard gives
    /// circuit ids as the side that opened the channel.
    pub(crate) fn add_between(&mut self, shard: usize, clients: bool, ours: bool) -> ChannelId {
        // Names never give the last numbers to relays.
        let peer = (!clients).then(|| RelayId(u32::MAX - shard as u32));
        let id = self.channels.add_between(peer, ours);
        self.queues.add_channel(id, true, self.config.scheduler.build());
        id
    }

    /// The neighbour understands nothing beyond Tor's protocol.
    pub(crate) fn set_stock(&mut self, id: ChannelId) {
        self.channels.channel_mut(id).stock = true;
    }

    /// The neighbour does not speak our transport.
    pub(crate) fn set_shared(&mut self, id: ChannelId) {
        self.channels.set_shared(id);
    }

    /// The channel for a new circuit to `peer`, and whether it must be opened first.
    pub(crate) fn channel_to(&mut self, now: Time, peer: RelayId) -> (ChannelId, bool) {
        match self.channels.choice(&self.config, peer) {
            Choice::Open => (self.add_channel(Some(peer), true), true),
            Choice::Share(transport, known) => {
                let queues = &self.queues;
                (self.channels.share(transport, &known, |leg| queues.loudness(now, leg)), false)
            }
        }
    }

    /// A channel that we asked for is open: its cells may leave.
    pub(crate) fn opened(&mut self, now: Time, id: ChannelId) {
        self.queues.open(id);
        self.offer(now, id);
        for leg in self.moves.take_awaiting(id) {
            let (moves, mut at) = self.moves();
            if moves.move_awaiting(now, leg, id, &mut at) {
                self.offer(now, id);
            }
        }
    }

    /// Forgets a channel and its legs; returns the circuits that were on it.
    pub(crate) fn closed(&mut self, now: Time, id: ChannelId) -> Vec<(CircuitKey, Side)> {
        let channel = self.channels.remove(id);
        self.queues.remove_channel(id);
        self.kist.remove(id);
        self.news.remove_channel(id);
        self.moves.abandon_moves_to(id);
        let mut orphans = Vec::new();
        for leg_id in channel.legs() {
            let leg = self.queues.remove_leg(leg_id);
            let (moves, mut at) = self.moves();
            moves.abandon(now, leg_id, (leg.channel, leg.circ), Some(id), &mut at);
            orphans.push((leg.circuit, leg.side));
        }
        self.run_kist(now);
        orphans
    }

    /// Whether there is such a channel.
    pub(crate) fn has(&self, id: ChannelId) -> bool {
        self.channels.get(id).is_some()
    }

    /// Whether a channel leads to another shard of this relay; `None` without such a channel.
    pub(crate) fn is_between_shards(&self, id: ChannelId) -> Option<bool> {
        self.channels.get(id).map(|channel| channel.between_shards)
    }

    /// Whether a channel exists and carries no circuit.
    pub(crate) fn is_bare(&self, id: ChannelId) -> bool {
        self.channels.get(id).is_some_and(|channel| channel.circuits() == 0)
    }

    /// The circuits of clients in the direction of a channel.
    pub(crate) fn circuits_from(&self, id: ChannelId) -> impl Iterator<Item = CircuitKey> {
        let legs = self.channels.get(id).into_iter().flat_map(|channel| channel.legs());
        let legs = legs.map(|leg| self.queues.leg(leg));
        legs.filter(|leg| leg.side == Side::Prev).map(|leg| leg.circuit)
    }

    /// Whether the neighbour leaves more cells unread than [`Config::unread_limit`] allows.
    pub(crate) fn is_flooded(&self, id: ChannelId) -> bool {
        // KIST fills the output buffer as far as the kernel has room, megabytes on a fast connection. Those cells are
        // bounded by windows and by the memory limit, so they say nothing about the neighbour.
        self.queues.unqueued(id) > self.config.unread_limit
    }

    /// Whether a channel closes with its last circuit, is without circuits, and has nothing to write.
    pub(crate) fn is_spent(&self, id: ChannelId) -> bool {
        self.channels.channel(id).is_spent() && self.queues.ready(id) == 0
    }

    fn add_leg(
        &mut self,
        id: ChannelId,
        circ: CircId,
        circuit: CircuitKey,
        side: Side,
        at_guard: bool,
    ) -> LegId {
        // A controller steers only the direction to the client.
        let steered = if side == Side::Prev { self.first_allowance } else { None };
        let mut leg = Leg::new(id, circ, circuit, side, steered.unwrap_or(f64::INFINITY));
        leg.at_guard = at_guard;
        let leg = self.queues.add_leg(leg);
        self.channels.channel_mut(id).list(circ, leg);
        leg
    }

    /// Adds a leg for a circuit that we begin on a channel. `at_guard`: this node is the circuit's guard.
    pub(crate) fn begin_leg(
        &mut self,
        id: ChannelId,
        circuit: CircuitKey,
        side: Side,
        at_guard: bool,
    ) -> LegId {
        let circ = self.channels.channel_mut(id).fresh_circ();
        self.add_leg(id, circ, circuit, side, at_guard)
    }

    /// Adds a leg for a circuit that the neighbour begins.
    ///
    /// `None` if the id is in use or not the neighbour's to give (tor-spec, "Choosing circuit IDs in create cells"),
    /// or if the channel has too many circuits.
    pub(crate) fn accept_leg(
        &mut self,
        id: ChannelId,
        circ: CircId,
        circuit: CircuitKey,
        side: Side,
    ) -> Option<LegId> {
        let channel = self.channels.channel(id);
        // A neighbour without an identity is a client, and we are the guard of its circuits.
        let at_guard = channel.peer.is_none();
        let accepted = channel.accepts(circ, self.config.circuits_per_channel);
        accepted.then(|| self.add_leg(id, circ, circuit, side, at_guard))
    }

    /// Removes a leg, drops what waits in its queue, and sends DESTROY if `destroy` gives a reason. Returns its
    /// channel.
    pub(crate) fn remove_leg(&mut self, now: Time, id: LegId, destroy: Option<DestroyReason>) -> ChannelId {
        let leg = self.queues.remove_leg(id);
        self.channels.channel_mut(leg.channel).unlist(leg.circ);
        let (moves, mut at) = self.moves();
        let told = moves.abandon(now, id, (leg.channel, leg.circ), None, &mut at);
        if let Some(reason) = destroy.filter(|_| !told) {
            self.refuse(now, leg.channel, leg.circ, reason);
        }
        leg.channel
    }

    /// Tells the neighbour that a circuit id is not, or no longer, in use here.
    pub(crate) fn refuse(&mut self, now: Time, id: ChannelId, circ: CircId, reason: DestroyReason) {
        let cell = Cell { circ, command: Command::Destroy, body: O::destroy(reason) };
        self.queues.buffer(now, id, cell);
    }

    /// The circuit id of a leg on its channel.
    pub(crate) fn circ_of(&self, id: LegId) -> CircId {
        self.queues.leg(id).circ
    }

    /// The channel of a leg.
    pub(crate) fn channel_of(&self, id: LegId) -> ChannelId {
        self.queues.leg(id).channel
    }

    /// The relay at the other end of a leg's channel.
    pub(crate) fn peer(&self, id: LegId) -> Option<RelayId> {
        self.channels.channel(self.channel_of(id)).peer
    }

    /// Whether the neighbour on a channel has proved no identity, as clients do not.
    pub(crate) fn is_client(&self, id: ChannelId) -> bool {
        self.channels.get(id).is_some_and(|channel| channel.peer.is_none())
    }

    /// Replaces the longest queues towards clients and towards exits; `None` keeps one as configured.
    pub(crate) fn limit_queues(&mut self, stated: [Option<u32>; 2]) {
        self.queues.limits = stated;
    }

    /// Replaces the parameters of streams' flow control.
    pub(crate) fn set_stream_flow(&mut self, flow: StreamFlow) {
        self.config.stream_flow = flow;
    }

    /// Whether this node is the guard of a leg's circuit.
    pub(crate) fn is_at_guard(&self, id: LegId) -> bool {
        self.queues.leg(id).at_guard
    }

    /// The circuit of a circuit id on a channel, and the side of it that the channel is on.
    pub(crate) fn circuit_of(&self, id: ChannelId, circ: CircId) -> Option<(CircuitKey, Side)> {
        let leg = self.queues.leg(self.channels.get(id)?.leg(circ)?);
        Some((leg.circuit, leg.side))
    }

    /// As [`circuit_of`](Self::circuit_of), if neither this node nor its neighbour can be moving circuits between
    /// channels.
    pub(crate) fn settled_circuit(&self, id: ChannelId, circ: CircId) -> Option<(CircuitKey, Side)> {
        let leg = self.channels.get(id)?.leg(circ)?;
        if self.config.switching.is_some() || !self.moves.is_idle(leg) {
            return None;
        }
        let leg = self.queues.leg(leg);
        Some((leg.circuit, leg.side))
    }

    /// Gives a leg to another circuit, after a client or an exit has switched circuits.
    pub(crate) fn assign(&mut self, id: LegId, circuit: CircuitKey) {
        self.queues.assign(id, circuit);
    }

    /// Queues a cell on a leg.
    pub(crate) fn push(
        &mut self,
        now: Time,
        id: LegId,
        command: Command,
        body: O::Body,
    ) -> Result<(), QueueFull> {
        self.push_run(now, id, (command, body), 1)
    }

    /// Queues a run of equal cells on a leg: all of them or none.
    pub(crate) fn push_run(
        &mut self,
        now: Time,
        id: LegId,
        cell: (Command, O::Body),
        count: u32,
    ) -> Result<(), QueueFull> {
        // Each cell may move a circuit to another channel.
        if count > 1 && self.config.switching.is_some() {
            (1..count).try_for_each(|_| self.push_run(now, id, cell.clone(), 1))?;
            return self.push_run(now, id, cell, 1);
        }
        if let Some(channel) = self.queues.push(&self.config, now, id, cell, count)? {
            self.offer(now, channel);
        }
        Ok(())
    }

    /// Whether a leg's queue takes so many cells more before the circuit ends.
    pub(crate) fn has_place(&self, id: LegId, cells: u32) -> bool {
        self.queues.has_place(&self.config, id, cells)
    }

    /// Lets a channel move cells: now, or when KIST runs next.
    fn offer(&mut self, now: Time, mut id: ChannelId) {
        loop {
            match self.config.kist {
                Some(kist) if self.queues.is_open(id) => return self.kist.add(now, id, kist.interval),
                None if self.queues.is_filling(id) => {}
                _ => return,
            }
            match self.fill(now, id) {
                Some(to) => id = to,
                None => return,
            }
        }
    }

    /// Fills an output buffer. Returns a channel that has cells to move now because a leg moved there.
    fn fill(&mut self, now: Time, id: ChannelId) -> Option<ChannelId> {
        if self.queues.fill(&self.config, now, id) { self.relieve(now, id) } else { None }
    }

    fn relieve(&mut self, now: Time, id: ChannelId) -> Option<ChannelId> {
        self.config.switching?;
        let (moves, mut at) = self.moves();
        moves.relieve(now, id, &mut at)
    }

    /// Cells that a leg's queue takes before its own end must stop packaging.
    pub(crate) fn room(&self, id: LegId) -> u32 {
        self.queues.room(&self.config, id)
    }

    /// Whether a leg's queue holds half of the cells with which its circuit ends.
    pub(crate) fn is_half_full(&self, id: LegId) -> bool {
        self.queues.is_half_full(&self.config, id)
    }

    /// Whether a leg's queue has stopped its own end.
    pub(crate) fn is_blocked(&self, id: LegId) -> bool {
        self.queues.leg(id).high
    }

    /// Notes that a leg's own end has packaged. If the queue stops it, [`next_drained`](Self::next_drained) says when
    /// it may go on.
    pub(crate) fn note_packaged(&mut self, id: LegId) {
        self.queues.note_packaged(&self.config, id);
    }

    /// Cells in a channel's output buffer.
    #[cfg(test)]
    pub(crate) fn ready(&self, id: ChannelId) -> u64 {
        self.queues.ready(id).into()
    }

    /// Writes a channel's cells as far as its driver takes them; true if the channel is spent with
    /// them.
    pub(crate) fn drain(&mut self, now: Time, id: ChannelId, sink: &mut dyn Sink<O>) -> bool {
        let mut spent = false;
        // The driver may not know yet that a channel is closed.
        if !self.has(id) {
            return spent;
        }
        loop {
            let most = match sink.budget() {
                Budget::Cells(most) => most,
                Budget::Blocked => break,
                Budget::Paused => {
                    self.queues.stop_flushing(id);
                    break;
                }
            };
            let cells = most.min(self.queues.ready(id));
            if cells == 0 {
                self.queues.stop_flushing(id);
                self.queues.note_occupancy(&self.config, now, id);
                break;
            }
            // Only messages between controllers differ in length.
            let bytes = match self.first_allowance {
                None => u64::from(cells * CELL_BYTES),
                Some(_) => self.queues.front_bytes(id, cells),
            };
            if !sink.begin(cells, bytes) {
                break;
            }
            let mut left = cells;
            while left > 0 {
                let (taken, last) = self.pop(now, id, left, sink);
                left -= taken;
                spent |= last && self.is_spent(id);
            }
        }
        spent
    }

    /// Writes the first cells of a channel's output buffer, and fills the buffer again if that is due. Returns the number of
    /// cells, at most `most`, and whether a channel may close with the last of them.
    fn pop(&mut self, now: Time, id: ChannelId, most: u32, sink: &mut dyn Sink<O>) -> (u32, bool) {
        // A controller counts each cell that leaves.
        let steered = self.first_allowance.is_some();
        let (mut circ, mut last) = (None, false);
        let most = if steered { 1 } else { most };
        let (taken, refill) = self.queues.pop(&self.config, now, id, most, |departure, count| {
            circ = steered.then_some(departure.cell.circ);
            last = matches!(departure.cell.command, Command::Destroy | Command::Plan);
            sink.write_run(departure, count);
        });
        if let Some(leg) = circ.and_then(|circ| self.channels.channel(id).leg(circ)) {
            self.queues.note_departed(leg, id);
        }
        if refill && let Some(to) = self.fill(now, id) {
            self.offer(now, to);
        }
        (taken, last)
    }

    /// A channel that has cells since the driver last emptied it.
    pub(crate) fn next_flushable(&mut self) -> Option<ChannelId> {
        self.queues.next_flushable()
    }

    /// A circuit that its queue had stopped at its own end and that may go on.
    pub(crate) fn next_drained(&mut self) -> Option<(CircuitKey, Side)> {
        self.queues.next_drained()
    }

    /// Cells of all kinds that are held in memory.
    pub(crate) fn cells(&self) -> u64 {
        let (queued, buffered) = self.queues.cells();
        queued + buffered + self.moves.held_cells()
    }

    /// Cells that left right after one of the same circuit while another waited. Round robin never sends so.
    pub(crate) fn repeated(&self) -> u64 {
        self.queues.repeated()
    }

    /// Cells in circuit queues and bytes in output buffers.
    pub(crate) fn waiting(&self) -> (u64, u64) {
        let (queued, buffered) = self.queues.cells();
        (queued, buffered * u64::from(CELL_BYTES))
    }

    /// Cells that wait in a leg's queue, that have left it, and that a controller let go.
    pub(crate) fn traffic(&self, id: LegId) -> (u32, u64, f64) {
        let leg = self.queues.leg(id);
        (leg.queue.len(), leg.sent, leg.allowed())
    }

    /// Since when a leg's first cell has waited, in the queue or for the end of a move.
    pub(crate) fn oldest(&self, id: LegId) -> Option<Time> {
        let queued = self.queues.leg(id).queue.front().map(|departure| departure.queued);
        [queued, self.moves.held_since(id)].into_iter().flatten().min()
    }

    /// The channel with the longest unread first cell in its output buffer.
    pub(crate) fn oldest_unread(&self) -> Option<ChannelId> {
        self.queues.oldest_unread(|id| !self.channels.channel(id).between_shards)
    }

    /// Sets how many cells a leg may send until the controller's next word, and how many more at each release.
    ///
    /// With `carry` the unused part of a cell is added. Without it that part is lost, unless a cell waits: the cell is
    /// cut then, and its rest goes later.
    pub(crate) fn allow(&mut self, now: Time, id: LegId, cells: f64, share: f64, carry: bool) {
        if let Some(channel) = self.queues.allow(now, id, cells, share, carry) {
            self.offer(now, channel);
        }
    }

    /// Lets every leg send its share of one release.
    pub(crate) fn release(&mut self, now: Time) {
        for id in self.queues.leg_ids() {
            if let Some(channel) = self.queues.release(now, id) {
                self.offer(now, channel);
            }
        }
    }

    /// Cells of a leg that wait in its queue and in the output buffer.
    pub(crate) fn backlog(&self, id: LegId) -> f64 {
        self.queues.leg(id).backlog()
    }

    /// Whether the neighbour on a leg's channel is a relay that understands plans.
    pub(crate) fn is_to_relay(&self, id: LegId) -> bool {
        let channel = self.channels.channel(self.channel_of(id));
        channel.peer.is_some() && !channel.stock
    }

    /// Adds what `write` writes, at most `bytes`, to the message for a leg's neighbour. Returns the bytes of a cell
    /// that this filled.
    pub(crate) fn advertise(
        &mut self,
        now: Time,
        id: LegId,
        bytes: usize,
        route: Route,
        write: impl FnOnce(CircId, &mut Vec<u8>),
    ) -> u64 {
        let leg = self.queues.leg(id);
        let (channel, circ) = (leg.channel, leg.circ);
        self.news.advertise(now, channel, bytes, route, &mut self.queues, |message| write(circ, message))
    }

    /// Sends the messages for all neighbours. Returns their bytes.
    pub(crate) fn send_told(&mut self, now: Time, route: Route) -> u64 {
        self.news.send(now, route, &mut self.queues)
    }

    /// Takes back the memory of a message that has been read.
    pub(crate) fn recycle(&mut self, message: Vec<u8>) {
        self.news.recycle(message);
    }

    /// A message that reaches the neighbour out of band, after this time.
    pub(crate) fn next_out_of_band(&mut self) -> Option<(ChannelId, Cell<O>, Span)> {
        self.news.next_out_of_band()
    }

    /// Number of KIST's runs so far.
    pub(crate) fn kist_runs(&self) -> u64 {
        self.kist.runs()
    }

    /// Turns that KIST gave a connection before one that had waited longer.
    pub(crate) fn overtakes(&self) -> u64 {
        self.kist.overtakes()
    }

    /// When KIST's next run is due.
    pub(crate) fn next_run(&self) -> Option<Timer> {
        self.kist.due()
    }

    /// Begins KIST's run if one is due. [`next_inspection`](Self::next_inspection) asks for the sockets first.
    pub(crate) fn begin_run(&mut self, now: Time) {
        self.kist.begin(&self.config, now, &mut self.queues);
    }

    /// A channel with a socket that the run wants to know the state of.
    pub(crate) fn next_inspection(&mut self) -> Option<ChannelId> {
        self.kist.next_inspection()
    }

    /// The state of a channel's socket; `None` if it is unknown. The last answer finishes the run.
    pub(crate) fn inspected(&mut self, now: Time, id: ChannelId, socket: Option<Socket>) {
        // The channel may have closed since the driver was asked.
        if self.has(id) {
            self.kist.inspected(&self.config, id, socket, self.queues.ready(id));
            self.run_kist(now);
        }
    }

    /// Finishes KIST's run if all its sockets are known.
    fn run_kist(&mut self, now: Time) {
        let served = self.kist.run_if_known(&self.config, now, &mut self.queues);
        for id in &served {
            self.queues.want_flush(*id);
            if let Some(to) = self.relieve(now, *id) {
                self.offer(now, to);
            }
        }
        self.kist.written(served);
    }

    /// Says what an arrived cell means. Afterwards take the held cells from
    /// [`next_released`](Self::next_released).
    pub(crate) fn arrive(&mut self, now: Time, id: ChannelId, cell: Cell<O>) -> Arrival<O> {
        let step = match self.channels.channel(id).leg(cell.circ) {
            Some(leg) if self.moves.is_idle(leg) && !cell.command.is_about_moves() => {
                let leg = self.queues.leg(leg);
                return Arrival::Cell(leg.circuit, leg.side, cell);
            }
            Some(leg) => {
                let (moves, mut at) = self.moves();
                moves.arrive(now, (id, leg), cell, &mut at)
            }
            None => {
                let (moves, mut at) = self.moves();
                moves.unknown_circuit(now, id, cell, &mut at)
            }
        };
        match step {
            Step::Arrived(arrival) => arrival,
            Step::Moved(to) => {
                self.offer(now, to);
                Arrival::Done
            }
        }
    }

    /// Drops the JOIN that has waited longest for its LEAVE, and the cells it holds; false without one.
    pub(crate) fn drop_oldest_join(&mut self) -> bool {
        self.moves.drop_oldest_join()
    }

    /// A cell that was held for a move and is due now.
    pub(crate) fn next_released(&mut self) -> Option<(CircuitKey, Side, Cell<O>)> {
        let (id, cell) = self.moves.next_released()?;
        let leg = self.queues.leg(id);
        Some((leg.circuit, leg.side, cell))
    }

    /// A circuit with a leg that has moved, so that both neighbours know.
    pub(crate) fn next_moved(&mut self) -> Option<CircuitKey> {
        self.moves.next_moved()
    }

    /// Whether the two neighbours currently use different channels for a leg.
    pub(crate) fn is_moving(&self, id: LegId) -> bool {
        self.moves.is_between(id)
    }

    /// A channel to open for a leg that moves.
    pub(crate) fn next_opening(&mut self) -> Option<(ChannelId, RelayId)> {
        self.moves.next_opening()
    }

    /// A circuit that we have moved to another channel, with the times of the move.
    pub(crate) fn next_switched(&mut self) -> Option<(CircuitKey, MoveTimes)> {
        self.moves.next_switched()
    }
}
