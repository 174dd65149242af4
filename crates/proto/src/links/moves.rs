//! A leg moves from one channel to another while cells flow: the protocol of [`crate::switching`] between
//! neighbours. The side that opened the old channel moves; the other side asks it to.

use std::collections::VecDeque;

use tidegate_control::units::Time;

use super::state::{Channel, Join, Leg, Links, Move, OPENER_BIT};
use crate::cell::{CELL_BYTES, Cell, CircId, Command, DestroyReason, Nonce, RelayId};
use crate::ids::{ChannelId, CircuitKey, LegId, Side};
use crate::onion::Onion;
use crate::sink::Departure;
use crate::switching::{CongestionNotice, Form, MoveStart, MoveTimes, Occupancy, Switching};
use crate::transport::LOUDNESS_HALF_LIFE;

/// JOINs on one channel that wait for their LEAVE; more are refused.
const MAX_JOINS: usize = 64;

/// What a cell that arrived is.
#[derive(Debug)]
pub enum Arrival<O: Onion> {
    /// A cell of a circuit, from this side.
    Cell(CircuitKey, Side, Cell<O>),
    /// A cell of a circuit that there is not.
    UnknownCircuit(Cell<O>),
    /// The peer broke the rules of moving: its circuit ends.
    Violation(CircuitKey),
    /// The guard of our circuit asks for another one.
    Congested(CircuitKey, Option<CongestionNotice>),
    /// Dealt with; the channel may be spent now.
    Done,
}

/// The body of a LEAVE or JOIN.
fn nonce_body<O: Onion>(nonce: Nonce) -> O::Body {
    O::from_plain(nonce.0.to_vec())
}

/// The nonce that a LEAVE or JOIN says.
fn nonce_of<O: Onion>(cell: &Cell<O>) -> Option<Nonce> {
    let moves = matches!(cell.command, Command::Leave | Command::Join);
    if moves { O::plain(&cell.body).first_chunk().copied().map(Nonce) } else { None }
}

impl<O: Onion> Channel<O> {
    fn list(&mut self, circ: CircId, leg: LegId) {
        let at = self.circs.partition_point(|(other, _)| *other < circ);
        self.circs.insert(at, (circ, leg));
    }

    fn unlist(&mut self, circ: CircId) {
        if let Ok(at) = self.circs.binary_search_by_key(&circ, |(circ, _)| *circ) {
            self.circs.remove(at);
        }
    }

    fn fullness(&self, high_bytes: u32) -> f64 {
        // Without a high mark of its own, KIST may fill it beyond.
        (f64::from(self.out.len()) * f64::from(CELL_BYTES) / f64::from(high_bytes)).min(1.0)
    }
}

impl<O: Onion> Links<O> {
    /// Notes how full an output buffer has been until now.
    pub(super) fn note_occupancy(&mut self, now: Time, id: ChannelId) {
        let Some(rules) = &self.config.switching else { return };
        let channel = &mut self.channels[id.0 as usize];
        let filled = channel.fullness(self.config.output_buffer.high_bytes);
        channel.occupancy.get_or_insert_with(|| Occupancy::new(now)).note(rules, now, filled);
    }

    /// If an output buffer is overfull, its loudest circuit moves.
    pub(super) fn relieve(&mut self, now: Time, id: ChannelId) {
        let Some(rules) = self.config.switching else { return };
        let channel = &mut self.channels[id.0 as usize];
        if channel.stock {
            return;
        }
        if !channel.occupancy.as_mut().is_some_and(|occupancy| occupancy.alarm(&rules, now)) {
            return;
        }
        if let Some(leg) = self.loudest(now, id, &rules) {
            self.legs[leg.0 as usize].moved = now;
            let occupancy = self.channels[id.0 as usize].occupancy.as_mut();
            let detection = occupancy.and_then(|occupancy| occupancy.detection(now));
            if rules.form == Form::Connection && self.channels[id.0 as usize].ours {
                self.begin_move(now, leg, &rules, MoveStart::alone(now, detection));
            } else {
                self.ask(now, id, leg, CongestionNotice { said: now, detection });
            }
        }
    }

    /// The loudest circuit of a channel that may move.
    fn loudest(&self, now: Time, id: ChannelId, rules: &Switching) -> Option<LegId> {
        let legs = self.channels[id.0 as usize].circs.iter().map(|(_, leg)| *leg);
        let sending: Vec<(LegId, f64)> = legs
            .map(|id| (id, &self.legs[id.0 as usize]))
            .filter(|(_, leg)| leg.channel == id)
            .map(|(id, leg)| (id, leg.loudness.value(now, LOUDNESS_HALF_LIFE)))
            .filter(|(_, count)| *count >= 1.0)
            .collect();
        // On another connection a circuit makes room for others only if there are others.
        if rules.form == Form::Connection && sending.len() < 2 {
            return None;
        }
        let may_move = |id: LegId| {
            let leg = &self.legs[id.0 as usize];
            let place = match rules.form {
                Form::Connection => leg.at_guard || rules.everywhere,
                Form::Circuit => leg.at_guard && leg.side == Side::Prev,
            };
            let rested = leg.moved == Time::ZERO || now.since(leg.moved) >= rules.rest;
            place && leg.moving.is_none() && rested
        };
        let candidates = sending.into_iter().filter(|(id, _)| may_move(*id));
        candidates.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(id, _)| id)
    }

    /// Asks the neighbour to move a circuit. Its cells keep their order without this one, which need not wait
    /// behind those that the connection is congested with.
    fn ask(&mut self, now: Time, id: ChannelId, leg: LegId, notice: CongestionNotice) {
        let circ = self.legs[leg.0 as usize].circ;
        let cell = Cell { circ, command: Command::Congested, body: O::with_notice(notice) };
        let out = &mut self.channels[id.0 as usize].out;
        out.push_front(Departure { cell, queued: now, buffered: now });
        self.buffered_cells += 1;
        self.want_flush(id);
    }

    /// Says something about a circuit to the neighbour, after what is in the output buffer.
    fn signal(&mut self, now: Time, id: ChannelId, circ: CircId, command: Command, body: O::Body) {
        let cell = Cell { circ, command, body };
        let out = &mut self.channels[id.0 as usize].out;
        out.push_back(Departure { cell, queued: now, buffered: now });
        self.buffered_cells += 1;
        self.want_flush(id);
    }

    /// Begins to move a leg to another channel to the same relay, if there is or can be one.
    fn begin_move(&mut self, now: Time, leg: LegId, rules: &Switching, begun: MoveStart) {
        let old = self.legs[leg.0 as usize].channel;
        let channel = &self.channels[old.0 as usize];
        let Some(peer) = channel.peer.filter(|_| channel.ours) else { return };
        let here = channel.circs.len();
        let siblings = (self.channels.iter())
            .filter(|(id, other)| *id != old.0 as usize && other.ours && other.peer == Some(peer));
        let (count, least) = siblings.fold((1, None), |(count, least), (id, other)| {
            let load = other.circs.len();
            let less = least.is_none_or(|(known, _, _)| load < known);
            (count + 1, if less { Some((load, id, other.open)) } else { least })
        });
        let (to, open) = match least {
            _ if count < rules.connections => {
                let to = self.add_channel(Some(peer), true);
                self.openings.push_back((to, peer));
                (to, false)
            }
            Some((load, id, open)) if load < here => (ChannelId(id as u32), open),
            _ => return,
        };
        if open {
            self.move_leg(now, leg, to, begun);
        } else {
            self.legs[leg.0 as usize].moving = Some(Box::new(Move::Opening { to, begun }));
            self.channels[to.0 as usize].awaited.push(leg);
        }
    }

    /// A channel is open: legs that wait for it move.
    pub(super) fn move_awaiting(&mut self, now: Time, to: ChannelId) {
        for leg in std::mem::take(&mut self.channels[to.0 as usize].awaited) {
            let moving = self.legs.get(leg.0 as usize).and_then(|leg| leg.moving.as_deref());
            if let Some(Move::Opening { to: wanted, begun }) = moving
                && *wanted == to
            {
                let begun = *begun;
                self.move_leg(now, leg, to, begun);
            }
        }
    }

    /// Mover: our cells go the new way from now on.
    fn move_leg(&mut self, now: Time, id: LegId, to: ChannelId, begun: MoveStart) {
        let circ = self.fresh_circ(to);
        let nonce = Nonce(self.nonces.bits().to_le_bytes());
        let leg = &self.legs[id.0 as usize];
        let old = (leg.channel, leg.circ);
        self.signal(now, old.0, old.1, Command::Leave, nonce_body::<O>(nonce));
        self.signal(now, to, circ, Command::Join, nonce_body::<O>(nonce));
        let moving = Move::Leaving { nonce, old, held: VecDeque::new(), begun, left: now, first: None };
        self.legs[id.0 as usize].moving = Some(Box::new(moving));
        self.rebind(now, id, to, circ);
    }

    /// Lets a leg send on another channel. The old one still knows its circuit id.
    fn rebind(&mut self, now: Time, id: LegId, to: ChannelId, circ: CircId) {
        let leg = &mut self.legs[id.0 as usize];
        let old = &mut self.channels[leg.channel.0 as usize];
        old.scheduler.forget(leg.key);
        old.keys.remove(leg.key as usize);
        let new = &mut self.channels[to.0 as usize];
        let key = new.keys.insert(id) as u32;
        new.scheduler.forget(key);
        new.list(circ, id);
        (leg.channel, leg.circ, leg.key, leg.moved) = (to, circ, key, now);
        leg.buffered = 0;
        if !leg.queue.is_empty() && leg.may_send() {
            self.activate(now, to, key);
        }
        self.offer(now, to);
    }

    /// What a cell that arrived on a channel is. Then take what [`next_released`](Self::next_released)
    /// gives: cells that were held.
    pub fn arrive(&mut self, now: Time, id: ChannelId, cell: Cell<O>) -> Arrival<O> {
        let channel = &self.channels[id.0 as usize];
        let Ok(at) = channel.circs.binary_search_by_key(&cell.circ, |(circ, _)| *circ) else {
            return self.unknown_circuit(now, id, cell);
        };
        let (leg_id, ours) = (channel.circs[at].1, channel.ours);
        let limit = self.config.queue_limit as usize;
        let leg = &mut self.legs[leg_id.0 as usize];
        let (key, side) = (leg.circuit, leg.side);
        match (cell.command, nonce_of(&cell), leg.moving.as_deref_mut()) {
            (
                Command::Leave,
                Some(nonce),
                Some(Move::Leaving { nonce: own, old, held, begun, left, first }),
            ) if nonce == *own && *old == (id, cell.circ) => {
                self.held_cells -= held.len() as u64;
                self.released.extend(held.drain(..).map(|cell| (leg_id, cell)));
                self.switched.push_back((key, begun.over(*left, *first, now)));
                leg.moving = None;
                self.moved.push(key);
                self.channels[id.0 as usize].unlist(cell.circ);
                Arrival::Done
            }
            // Only the side that opened a channel moves away from it, so that never both do.
            (Command::Leave, Some(nonce), None) if !ours && !self.leaves.contains_key(&nonce) => {
                leg.moving = Some(Box::new(Move::Left { nonce }));
                self.leaves.insert(nonce, leg_id);
                self.follow(now, nonce);
                Arrival::Done
            }
            (Command::Leave | Command::Join, ..) => Arrival::Violation(key),
            (Command::Congested, ..) => match self.config.switching {
                Some(rules) if rules.form == Form::Connection => {
                    if leg.moving.is_none() {
                        self.begin_move(
                            now,
                            leg_id,
                            &rules,
                            MoveStart::on_notice(now, O::notice(&cell.body)),
                        );
                    }
                    Arrival::Done
                }
                Some(_) => Arrival::Congested(key, O::notice(&cell.body)),
                None => Arrival::Done,
            },
            (_, _, Some(Move::Leaving { old, held, first, .. })) if *old != (id, cell.circ) => {
                if held.len() >= limit {
                    return Arrival::Violation(key);
                }
                first.get_or_insert(now);
                held.push_back(cell);
                self.held_cells += 1;
                Arrival::Done
            }
            (Command::Destroy, ..) => Arrival::Cell(key, side, cell),
            (_, _, Some(Move::Left { .. })) => Arrival::Violation(key),
            _ => Arrival::Cell(key, side, cell),
        }
    }

    /// A cell with a circuit id that stands for no leg.
    fn unknown_circuit(&mut self, now: Time, id: ChannelId, cell: Cell<O>) -> Arrival<O> {
        match (cell.command, nonce_of(&cell)) {
            (Command::Join, Some(nonce)) => {
                let channel = &mut self.channels[id.0 as usize];
                let theirs =
                    (cell.circ.0 & OPENER_BIT != 0) != channel.ours && cell.circ.0 & !OPENER_BIT != 0;
                let known = channel.joins.iter().any(|(circ, _)| *circ == cell.circ);
                let limit = self.config.circuits_per_channel as usize;
                let full = channel.joins.len() >= MAX_JOINS || channel.circs.len() >= limit;
                if !theirs || known || full || self.joins.contains_key(&nonce) {
                    self.refuse(now, id, cell.circ, DestroyReason::PROTOCOL);
                    return Arrival::Done;
                }
                channel.joins.push((cell.circ, nonce));
                let join = Join { channel: id, circ: cell.circ, since: now, held: VecDeque::new() };
                self.joins.insert(nonce, join);
                self.follow(now, nonce);
                Arrival::Done
            }
            // The circuit ended here before its peer knew: the move is off.
            (Command::Leave, Some(nonce)) => {
                self.drop_join(nonce, |join, channels| {
                    channels[join.channel.0 as usize].peer == channels[id.0 as usize].peer
                });
                Arrival::Done
            }
            (Command::Leave | Command::Join | Command::Congested, _) => Arrival::Done,
            _ => {
                let channel = &self.channels[id.0 as usize];
                let Some((_, nonce)) = channel.joins.iter().find(|(circ, _)| *circ == cell.circ) else {
                    return Arrival::UnknownCircuit(cell);
                };
                let nonce = *nonce;
                let limit = self.config.queue_limit as usize;
                let join = self.joins.get_mut(&nonce).expect("a channel's joins are listed");
                if cell.command == Command::Destroy || join.held.len() >= limit {
                    self.drop_join(nonce, |_, _| true);
                } else {
                    join.held.push_back(cell);
                    self.held_cells += 1;
                }
                Arrival::Done
            }
        }
    }

    fn drop_join(&mut self, nonce: Nonce, when: impl Fn(&Join<O>, &slab::Slab<Channel<O>>) -> bool) {
        if self.joins.get(&nonce).is_some_and(|join| when(join, &self.channels)) {
            let join = self.joins.remove(&nonce).expect("looked at above");
            self.held_cells -= join.held.len() as u64;
            self.channels[join.channel.0 as usize].joins.retain(|(_, other)| *other != nonce);
        }
    }

    /// Forgets the JOIN that has waited longest for its LEAVE, and what it holds; false if there is none.
    pub fn drop_oldest_join(&mut self) -> bool {
        let oldest = self.joins.iter().min_by_key(|(_, join)| join.since).map(|(nonce, _)| *nonce);
        oldest.inspect(|nonce| self.drop_join(*nonce, |_, _| true)).is_some()
    }

    /// Follows the peer to the new way once both its LEAVE and its JOIN are here.
    fn follow(&mut self, now: Time, nonce: Nonce) {
        let (Some(id), Some(join)) = (self.leaves.get(&nonce).copied(), self.joins.get(&nonce)) else {
            return;
        };
        let leg = &self.legs[id.0 as usize];
        let (old, old_circ) = (leg.channel, leg.circ);
        // The nonce is a secret between the two; a relay must also be the same.
        if self.channels[join.channel.0 as usize].peer != self.channels[old.0 as usize].peer {
            return;
        }
        let join = self.joins.remove(&nonce).expect("looked at above");
        self.leaves.remove(&nonce);
        self.channels[join.channel.0 as usize].joins.retain(|(_, other)| *other != nonce);
        self.signal(now, old, old_circ, Command::Leave, nonce_body::<O>(nonce));
        self.channels[old.0 as usize].unlist(old_circ);
        let leg = &mut self.legs[id.0 as usize];
        leg.moving = None;
        self.moved.push(leg.circuit);
        self.rebind(now, id, join.channel, join.circ);
        self.held_cells -= join.held.len() as u64;
        self.released.extend(join.held.into_iter().map(|cell| (id, cell)));
    }

    /// Ends what is left of a move when a leg is removed; `gone`: a channel that is no longer there. The
    /// peer is told on the way that it may not be told on otherwise.
    pub(super) fn abandon_move(&mut self, now: Time, id: LegId, leg: &Leg<O>, gone: Option<ChannelId>) {
        self.released.retain(|(other, _)| *other != id);
        match leg.moving.as_deref() {
            Some(Move::Leaving { old, held, .. }) => {
                self.held_cells -= held.len() as u64;
                for (channel, circ) in [*old, (leg.channel, leg.circ)] {
                    if Some(channel) != gone {
                        self.channels[channel.0 as usize].unlist(circ);
                        self.signal(now, channel, circ, Command::Destroy, O::empty());
                    }
                }
            }
            Some(Move::Left { nonce }) => {
                self.leaves.remove(nonce);
            }
            Some(Move::Opening { .. }) | None => {}
        }
    }

    /// Forgets the moves that a closed channel was the aim of.
    pub(super) fn abandon_moves_to(&mut self, id: ChannelId, channel: &Channel<O>) {
        for (_, nonce) in &channel.joins {
            let join = self.joins.remove(nonce);
            self.held_cells -= join.map_or(0, |join| join.held.len() as u64);
        }
        for leg in &channel.awaited {
            if let Some(leg) = self.legs.get_mut(leg.0 as usize)
                && matches!(leg.moving.as_deref(), Some(Move::Opening { to, .. }) if *to == id)
            {
                leg.moving = None;
            }
        }
        self.openings.retain(|(other, _)| *other != id);
    }

    /// A cell that was held and is due now.
    pub fn next_released(&mut self) -> Option<(CircuitKey, Side, Cell<O>)> {
        let (id, cell) = self.released.pop_front()?;
        let leg = &self.legs[id.0 as usize];
        Some((leg.circuit, leg.side, cell))
    }

    /// A circuit one of whose legs has moved, so that both neighbours know.
    pub fn next_moved(&mut self) -> Option<CircuitKey> {
        self.moved.pop()
    }

    /// Whether the neighbours do not know a leg by the same name just now.
    pub fn is_moving(&self, id: LegId) -> bool {
        let moving = self.legs[id.0 as usize].moving.as_deref();
        matches!(moving, Some(Move::Leaving { .. } | Move::Left { .. }))
    }

    /// A channel to be opened for a leg that moves.
    pub fn next_opening(&mut self) -> Option<(ChannelId, RelayId)> {
        self.openings.pop_front()
    }

    /// A circuit of which we have moved a leg, and how long that took.
    pub fn next_switched(&mut self) -> Option<(CircuitKey, MoveTimes)> {
        self.switched.pop_front()
    }

    /// How full a channel's output buffer has been lately, as a share; zero if nobody watches it.
    pub fn occupancy(&self, id: ChannelId) -> f64 {
        self.channels[id.0 as usize].occupancy.as_ref().map_or(0.0, Occupancy::level)
    }

    /// Gives a leg to another circuit: the client, or the exit, has switched.
    pub fn assign(&mut self, id: LegId, circuit: CircuitKey) {
        self.legs[id.0 as usize].circuit = circuit;
    }
}
