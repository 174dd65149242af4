//! A leg moves from one channel to another while cells flow: the protocol of [`crate::switching`] between
//! neighbours. The side that opened the old channel moves; the other side asks it to.

use std::collections::{BTreeMap, VecDeque};

use tidegate_control::random::Random;
use tidegate_control::units::Time;

use super::channels::Channels;
use super::config::Config;
use super::queues::Queues;
use crate::cell::{Cell, CircId, Command, DestroyReason, Nonce, RelayId};
use crate::ids::{ChannelId, CircuitKey, LegId, Side};
use crate::onion::Onion;
use crate::switching::{CongestionNotice, Form, MoveStart, MoveTimes, Switching};

/// JOINs on one channel that wait for their LEAVE; more are refused.
const MAX_JOINS: usize = 64;

/// Meaning of a received cell.
#[derive(Debug)]
pub(crate) enum Arrival<O: Onion> {
    /// A cell of a circuit, from this side.
    Cell(CircuitKey, Side, Cell<O>),
    /// A cell with a circuit id that is not in use.
    UnknownCircuit(Cell<O>),
    /// The peer broke the rules of moving: its circuit ends.
    Violation(CircuitKey),
    /// The guard of our circuit asks for another circuit.
    Congested(CircuitKey, Option<CongestionNotice>),
    /// The cell is handled; the channel may be spent now.
    Done,
}

/// Consequence of a cell about a move.
pub(super) enum Step<O: Onion> {
    Arrived(Arrival<O>),
    /// A leg sends on this channel now: offer the channel its cells.
    Moved(ChannelId),
}

/// State of a leg's move.
#[derive(Debug)]
enum Move<O: Onion> {
    /// Mover: the new channel is being opened.
    Opening { to: ChannelId, begun: MoveStart },
    /// Mover: our cells use the new channel; those of the peer still use the old one.
    Leaving {
        nonce: Nonce,
        old: (ChannelId, CircId),
        held: VecDeque<Cell<O>>,
        begun: MoveStart,
        left: Time,
        first: Option<Time>,
    },
    /// The peer has left the old channel and not yet joined on a new one.
    Left { nonce: Nonce },
}

/// A JOIN that waits for its LEAVE.
#[derive(Debug)]
struct Join<O: Onion> {
    channel: ChannelId,
    circ: CircId,
    since: Time,
    held: VecDeque<Cell<O>>,
}

/// The state of a node that moves read and change.
pub(super) struct Surroundings<'a, O: Onion> {
    pub config: &'a Config,
    pub channels: &'a mut Channels,
    pub queues: &'a mut Queues<O>,
}

/// All moves of a node.
#[derive(Debug)]
pub(super) struct Moves<O: Onion> {
    nonces: Random,
    moving: BTreeMap<LegId, Move<O>>,
    /// When legs moved last, or were asked to.
    last: BTreeMap<LegId, Time>,
    /// Legs that move to a channel once it is open, in the order in which they began.
    awaiting: Vec<(ChannelId, LegId)>,
    /// JOINs without a LEAVE, by nonce and by where they came.
    joins: BTreeMap<Nonce, Join<O>>,
    joined: BTreeMap<(ChannelId, CircId), Nonce>,
    /// LEAVEs without a JOIN.
    leaves: BTreeMap<Nonce, LegId>,
    openings: VecDeque<(ChannelId, RelayId)>,
    released: VecDeque<(LegId, Cell<O>)>,
    switched: VecDeque<(CircuitKey, MoveTimes)>,
    moved: Vec<CircuitKey>,
    /// Cells that wait for the end of a move.
    held_cells: u64,
}

/// The body of a LEAVE or JOIN.
fn nonce_body<O: Onion>(nonce: Nonce) -> O::Body {
    O::from_plain(nonce.0.to_vec())
}

/// The nonce of a LEAVE or JOIN.
fn nonce_of<O: Onion>(cell: &Cell<O>) -> Option<Nonce> {
    let moves = matches!(cell.command, Command::Leave | Command::Join);
    if moves { O::plain(&cell.body).first_chunk().copied().map(Nonce) } else { None }
}

impl<O: Onion> Moves<O> {
    pub(crate) fn new(nonces: Random) -> Moves<O> {
        Moves {
            nonces,
            moving: BTreeMap::new(),
            last: BTreeMap::new(),
            awaiting: Vec::new(),
            joins: BTreeMap::new(),
            joined: BTreeMap::new(),
            leaves: BTreeMap::new(),
            openings: VecDeque::new(),
            released: VecDeque::new(),
            switched: VecDeque::new(),
            moved: Vec::new(),
            held_cells: 0,
        }
    }

    /// Moves the loudest circuit away from an overfull output buffer. Returns the channel that it sends on now.
    pub(crate) fn relieve(
        &mut self,
        now: Time,
        id: ChannelId,
        at: &mut Surroundings<'_, O>,
    ) -> Option<ChannelId> {
        let rules = at.config.switching?;
        let channel = at.channels.channel(id);
        if channel.stock || !at.queues.occupancy_mut(id)?.alarm(&rules, now) {
            return None;
        }
        let ours = channel.ours;
        let leg = self.loudest(now, id, &rules, at)?;
        self.last.insert(leg, now);
        let detection = at.queues.occupancy_mut(id)?.detection(now);
        if rules.form == Form::Connection && ours {
            self.begin(now, leg, &rules, MoveStart::alone(now, detection), at)
        } else {
            // The notice keeps no order with the circuit's other cells. It overtakes those that the connection is
            // congested with.
            let circ = at.queues.leg(leg).circ;
            let body = O::with_notice(CongestionNotice { said: now, detection });
            at.queues.buffer_first(now, id, Cell { circ, command: Command::Congested, body });
            None
        }
    }

    /// The loudest circuit of a channel that may move.
    fn loudest(
        &self,
        now: Time,
        id: ChannelId,
        rules: &Switching,
        at: &Surroundings<'_, O>,
    ) -> Option<LegId> {
        let sending: Vec<(LegId, f64)> = (at.channels.channel(id).legs())
            .filter(|leg| at.queues.leg(*leg).channel == id)
            .map(|leg| (leg, at.queues.loudness(now, leg)))
            .filter(|(_, count)| *count >= 1.0)
            .collect();
        // On another connection a circuit makes room for others only if there are others.
        if rules.form == Form::Connection && sending.len() < 2 {
            return None;
        }
        let may_move = |id: LegId| {
            let leg = at.queues.leg(id);
            let place = match rules.form {
                Form::Connection => leg.at_guard || rules.everywhere,
                Form::Circuit => leg.at_guard && leg.side == Side::Prev,
            };
            let rested = self.last.get(&id).is_none_or(|last| now.since(*last) >= rules.rest);
            place && !self.moving.contains_key(&id) && rested
        };
        let candidates = sending.into_iter().filter(|(id, _)| may_move(*id));
        candidates.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(id, _)| id)
    }

    /// Puts a cell about a circuit behind what is in the output buffer.
    fn signal(
        at: &mut Surroundings<'_, O>,
        now: Time,
        way: (ChannelId, CircId),
        command: Command,
        body: O::Body,
    ) {
        let (channel, circ) = way;
        at.queues.buffer(now, channel, Cell { circ, command, body });
    }

    /// Begins to move a leg to another channel to the same relay, if there is or can be one. Returns the channel
    /// that the leg sends on now.
    fn begin(
        &mut self,
        now: Time,
        leg: LegId,
        rules: &Switching,
        begun: MoveStart,
        at: &mut Surroundings<'_, O>,
    ) -> Option<ChannelId> {
        let old = at.queues.leg(leg).channel;
        let channel = at.channels.channel(old);
        let peer = channel.peer.filter(|_| channel.ours)?;
        let here = channel.circuits();
        let siblings =
            (at.channels.iter()).filter(|(id, other)| *id != old && other.ours && other.peer == Some(peer));
        let (count, least) = siblings.fold((1, None), |(count, least), (id, other)| {
            let load = other.circuits();
            let less = least.is_none_or(|(known, _)| load < known);
            (count + 1, if less { Some((load, id)) } else { least })
        });
        // A new connection is preferred as long as the limit allows one.
        let to = match least {
            _ if count < rules.connections => {
                let to = at.channels.add(at.config, Some(peer), true);
                at.queues.add_channel(to, false, at.config.scheduler.build());
                self.openings.push_back((to, peer));
                to
            }
            Some((load, id)) if load < here => id,
            _ => return None,
        };
        if at.queues.is_open(to) {
            self.move_leg(now, leg, to, begun, at);
            Some(to)
        } else {
            self.moving.insert(leg, Move::Opening { to, begun });
            self.awaiting.push((to, leg));
            None
        }
    }

    /// The legs that wait for a channel, which is open now.
    pub(crate) fn take_awaiting(&mut self, to: ChannelId) -> Vec<LegId> {
        self.awaiting.extract_if(.., |(channel, _)| *channel == to).map(|(_, leg)| leg).collect()
    }

    /// Moves a leg that waited for a channel; false if it waits no longer.
    pub(crate) fn move_awaiting(
        &mut self,
        now: Time,
        leg: LegId,
        to: ChannelId,
        at: &mut Surroundings<'_, O>,
    ) -> bool {
        match self.moving.get(&leg) {
            Some(Move::Opening { to: wanted, begun }) if *wanted == to => {
                let begun = *begun;
                self.move_leg(now, leg, to, begun, at);
                true
            }
            _ => false,
        }
    }

    /// Mover: our cells use the new channel from now on.
    fn move_leg(
        &mut self,
        now: Time,
        id: LegId,
        to: ChannelId,
        begun: MoveStart,
        at: &mut Surroundings<'_, O>,
    ) {
        let circ = at.channels.channel_mut(to).fresh_circ();
        let nonce = Nonce(self.nonces.bits().to_le_bytes());
        let leg = at.queues.leg(id);
        let old = (leg.channel, leg.circ);
        Self::signal(at, now, old, Command::Leave, nonce_body::<O>(nonce));
        Self::signal(at, now, (to, circ), Command::Join, nonce_body::<O>(nonce));
        let moving = Move::Leaving { nonce, old, held: VecDeque::new(), begun, left: now, first: None };
        self.moving.insert(id, moving);
        self.rebind(now, id, (to, circ), at);
    }

    /// Lets a leg send on another channel. The mover's old channel still lists its circuit id.
    fn rebind(
        &mut self,
        now: Time,
        id: LegId,
        (to, circ): (ChannelId, CircId),
        at: &mut Surroundings<'_, O>,
    ) {
        at.channels.channel_mut(to).list(circ, id);
        at.queues.rebind(now, id, to, circ);
        self.last.insert(id, now);
    }

    /// Whether a leg is not part of a move. Then only cells about moves need further handling.
    pub(crate) fn is_idle(&self, leg: LegId) -> bool {
        !self.moving.contains_key(&leg)
    }

    /// A cell arrived for a leg that moves, or is about moves.
    pub(crate) fn arrive(
        &mut self,
        now: Time,
        (id, leg_id): (ChannelId, LegId),
        cell: Cell<O>,
        at: &mut Surroundings<'_, O>,
    ) -> Step<O> {
        let leg = at.queues.leg(leg_id);
        let (key, side) = (leg.circuit, leg.side);
        let ours = at.channels.channel(id).ours;
        Step::Arrived(match (cell.command, nonce_of(&cell), self.moving.get_mut(&leg_id)) {
            (
                Command::Leave,
                Some(nonce),
                Some(Move::Leaving { nonce: own, old, held, begun, left, first }),
            ) if nonce == *own && *old == (id, cell.circ) => {
                self.held_cells -= held.len() as u64;
                self.released.extend(held.drain(..).map(|cell| (leg_id, cell)));
                self.switched.push_back((key, begun.over(*left, *first, now)));
                self.moving.remove(&leg_id);
                self.moved.push(key);
                at.channels.channel_mut(id).unlist(cell.circ);
                Arrival::Done
            }
            // Only the side that opened a channel moves away from it, so that never both do.
            (Command::Leave, Some(nonce), None) if !ours && !self.leaves.contains_key(&nonce) => {
                self.moving.insert(leg_id, Move::Left { nonce });
                self.leaves.insert(nonce, leg_id);
                return self.follow(now, nonce, at);
            }
            (Command::Leave | Command::Join, ..) => Arrival::Violation(key),
            (Command::Congested, _, moving) => match at.config.switching {
                Some(rules) if rules.form == Form::Connection => {
                    let begun = MoveStart::on_notice(now, O::notice(&cell.body));
                    let idle = moving.is_none();
                    if let Some(to) = idle.then(|| self.begin(now, leg_id, &rules, begun, at)).flatten() {
                        return Step::Moved(to);
                    }
                    Arrival::Done
                }
                Some(_) => Arrival::Congested(key, O::notice(&cell.body)),
                None => Arrival::Done,
            },
            (_, _, Some(Move::Leaving { old, held, first, .. })) if *old != (id, cell.circ) => {
                if held.len() >= at.config.queue_limit as usize {
                    return Step::Arrived(Arrival::Violation(key));
                }
                first.get_or_insert(now);
                held.push_back(cell);
                self.held_cells += 1;
                Arrival::Done
            }
            (Command::Destroy, ..) => Arrival::Cell(key, side, cell),
            (_, _, Some(Move::Left { .. })) => Arrival::Violation(key),
            _ => Arrival::Cell(key, side, cell),
        })
    }

    /// A cell arrived with a circuit id that is not in use.
    pub(crate) fn unknown_circuit(
        &mut self,
        now: Time,
        id: ChannelId,
        cell: Cell<O>,
        at: &mut Surroundings<'_, O>,
    ) -> Step<O> {
        Step::Arrived(match (cell.command, nonce_of(&cell)) {
            (Command::Join, Some(nonce)) => {
                let way = (id, cell.circ);
                let limit = at.config.circuits_per_channel;
                let waiting = self.joined.range((id, CircId(0))..=(id, CircId(u32::MAX))).count();
                let fits = at.channels.channel(id).accepts(cell.circ, limit) && waiting < MAX_JOINS;
                if !fits || self.joined.contains_key(&way) || self.joins.contains_key(&nonce) {
                    let body = O::destroy(DestroyReason::PROTOCOL);
                    Self::signal(at, now, way, Command::Destroy, body);
                    return Step::Arrived(Arrival::Done);
                }
                self.joined.insert(way, nonce);
                let join = Join { channel: id, circ: cell.circ, since: now, held: VecDeque::new() };
                self.joins.insert(nonce, join);
                return self.follow(now, nonce, at);
            }
            // The circuit ended here before its peer knew: the move is off.
            (Command::Leave, Some(nonce)) => {
                let peer = at.channels.channel(id).peer;
                let join = self.joins.get(&nonce);
                if join.is_some_and(|join| at.channels.channel(join.channel).peer == peer) {
                    self.drop_join(nonce);
                }
                Arrival::Done
            }
            (Command::Leave | Command::Join | Command::Congested, _) => Arrival::Done,
            _ => match self.joined.get(&(id, cell.circ)).copied() {
                None => Arrival::UnknownCircuit(cell),
                Some(nonce) => {
                    self.hold(nonce, cell, at.config.queue_limit);
                    Arrival::Done
                }
            },
        })
    }

    /// Holds a cell that came behind a JOIN, until its LEAVE comes.
    fn hold(&mut self, nonce: Nonce, cell: Cell<O>, limit: u32) {
        let join = self.joins.get_mut(&nonce).expect("both maps list the same JOINs");
        if cell.command == Command::Destroy || join.held.len() >= limit as usize {
            self.drop_join(nonce);
        } else {
            join.held.push_back(cell);
            self.held_cells += 1;
        }
    }

    fn take_join(&mut self, nonce: Nonce) -> Option<Join<O>> {
        let join = self.joins.remove(&nonce)?;
        self.held_cells -= join.held.len() as u64;
        self.joined.remove(&(join.channel, join.circ));
        Some(join)
    }

    fn drop_join(&mut self, nonce: Nonce) {
        drop(self.take_join(nonce));
    }

    /// Drops the JOIN that has waited longest for its LEAVE, and the cells it holds; false without one.
    pub(crate) fn drop_oldest_join(&mut self) -> bool {
        let oldest = self.joins.iter().min_by_key(|(_, join)| join.since).map(|(nonce, _)| *nonce);
        oldest.inspect(|nonce| self.drop_join(*nonce)).is_some()
    }

    /// Follows the peer to the new channel once both its LEAVE and its JOIN are here.
    fn follow(&mut self, now: Time, nonce: Nonce, at: &mut Surroundings<'_, O>) -> Step<O> {
        let waits = Step::Arrived(Arrival::Done);
        let (Some(id), Some(join)) = (self.leaves.get(&nonce).copied(), self.joins.get(&nonce)) else {
            return waits;
        };
        let leg = at.queues.leg(id);
        let (old, circuit) = ((leg.channel, leg.circ), leg.circuit);
        // The nonce is a secret between the two; the peers' identities must match as well.
        if at.channels.channel(join.channel).peer != at.channels.channel(old.0).peer {
            return waits;
        }
        let join = self.take_join(nonce).expect("it was found above");
        self.leaves.remove(&nonce);
        Self::signal(at, now, old, Command::Leave, nonce_body::<O>(nonce));
        at.channels.channel_mut(old.0).unlist(old.1);
        self.moving.remove(&id);
        self.moved.push(circuit);
        self.released.extend(join.held.into_iter().map(|cell| (id, cell)));
        self.rebind(now, id, (join.channel, join.circ), at);
        Step::Moved(join.channel)
    }

    /// Ends the move of a leg that is removed; `gone` is a channel that has closed. Returns whether the peer was
    /// told of the end on the channels of the move.
    pub(crate) fn abandon(
        &mut self,
        now: Time,
        id: LegId,
        way: (ChannelId, CircId),
        gone: Option<ChannelId>,
        at: &mut Surroundings<'_, O>,
    ) -> bool {
        self.released.retain(|(other, _)| *other != id);
        self.last.remove(&id);
        match self.moving.remove(&id) {
            Some(Move::Leaving { old, held, .. }) => {
                self.held_cells -= held.len() as u64;
                // Both channels list the circuit. The peer may know it on either, so it hears of the end on both.
                for way in [old, way].into_iter().filter(|(channel, _)| Some(*channel) != gone) {
                    at.channels.channel_mut(way.0).unlist(way.1);
                    Self::signal(at, now, way, Command::Destroy, O::empty());
                }
                return true;
            }
            Some(Move::Left { nonce }) => {
                self.leaves.remove(&nonce);
            }
            Some(Move::Opening { .. }) | None => {}
        }
        false
    }

    /// Forgets the moves to a channel that has closed.
    pub(crate) fn abandon_moves_to(&mut self, id: ChannelId) {
        let joined = self.joined.range((id, CircId(0))..=(id, CircId(u32::MAX)));
        let nonces: Vec<Nonce> = joined.map(|(_, nonce)| *nonce).collect();
        nonces.into_iter().for_each(|nonce| self.drop_join(nonce));
        for leg in self.take_awaiting(id) {
            if matches!(self.moving.get(&leg), Some(Move::Opening { to, .. }) if *to == id) {
                self.moving.remove(&leg);
            }
        }
        self.openings.retain(|(other, _)| *other != id);
    }

    /// A cell that was held and is due now, with its leg.
    pub(crate) fn next_released(&mut self) -> Option<(LegId, Cell<O>)> {
        self.released.pop_front()
    }

    pub(crate) fn next_moved(&mut self) -> Option<CircuitKey> {
        self.moved.pop()
    }

    /// Whether the two neighbours currently use different channels for a leg.
    pub(crate) fn is_between(&self, id: LegId) -> bool {
        matches!(self.moving.get(&id), Some(Move::Leaving { .. } | Move::Left { .. }))
    }

    /// When the first cell came that a leg holds until its move ends.
    pub(crate) fn held_since(&self, id: LegId) -> Option<Time> {
        match self.moving.get(&id) {
            Some(Move::Leaving { first, .. }) => *first,
            _ => None,
        }
    }

    pub(crate) fn next_opening(&mut self) -> Option<(ChannelId, RelayId)> {
        self.openings.pop_front()
    }

    pub(crate) fn next_switched(&mut self) -> Option<(CircuitKey, MoveTimes)> {
        self.switched.pop_front()
    }

    pub(crate) fn held_cells(&self) -> u64 {
        self.held_cells
    }
}
