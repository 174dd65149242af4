//! One side's view of one client's legs.

use std::collections::BTreeMap;

use tidegate_control::units::{Span, Time};

use super::link::{Link, Wish};
use super::split::{Capacity, Offer, Splitter};
use crate::ids::CircuitKey;

/// The most legs of a set (tor: `cfx_max_legs_set`).
pub(crate) const MAX_LEGS: usize = 8;
/// Memory of one message in the reorder buffer, bytes. The buffer's limit is the data of a leg at 100 Mbit/s while
/// another takes a second longer.
const HELD_COST: u64 = 640;
const MAX_HELD: u64 = 16 << 20;

/// The peer broke the protocol: all legs of its set end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// The reason why a leg cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The set is full; only this leg ends.
    TooMany,
    /// A removed leg lost messages; all legs end.
    Lost,
}

/// A circuit's role in a set.
#[derive(Debug)]
pub(crate) enum Linked<M> {
    /// The circuit is not in a set.
    No,
    /// The first leg; it holds the set, and the streams refer to it.
    First(Box<Set<M>>),
    /// Another leg; this is the key of the first.
    With(CircuitKey),
}

/// The legs of one client's streams at one end. `M` is a message in the reorder buffer.
#[derive(Debug)]
pub(crate) struct Set<M> {
    nonce: [u8; 32],
    /// Whether the other side wants a single leg.
    single: bool,
    split: Box<dyn Splitter>,
    legs: Vec<Leg>,
    /// The leg of the last message sent.
    current: Option<CircuitKey>,
    delivered: u64,
    held: BTreeMap<u64, M>,
    /// When the reorder buffer last became non-empty.
    held_since: Time,
}

#[derive(Debug)]
struct Leg {
    circuit: CircuitKey,
    /// Number of the last message sent on this leg.
    sent: u64,
    received: u64,
    /// When we sent LINK or LINKED, until the answer arrives.
    asked: Option<Time>,
    round_trip: Option<Span>,
    /// Data cells without a SENDME yet.
    in_flight: u32,
}

impl<M> Set<M> {
    /// A set without legs; `split` divides our messages.
    pub(crate) fn new(nonce: [u8; 32], split: Box<dyn Splitter>) -> Set<M> {
        Set {
            nonce,
            single: false,
            split,
            legs: Vec::new(),
            current: None,
            delivered: 0,
            held: BTreeMap::new(),
            held_since: Time::ZERO,
        }
    }

    /// The set's secret.
    pub(crate) fn nonce(&self) -> [u8; 32] {
        self.nonce
    }

    /// Its legs in the order of their arrival.
    pub(crate) fn legs(&self) -> impl Iterator<Item = CircuitKey> + '_ {
        self.legs.iter().map(|leg| leg.circuit)
    }

    /// The LINK message for a leg that is added now.
    pub(crate) fn link(&self, wish: Wish) -> Link {
        Link { nonce: self.nonce, sent: self.sent(), delivered: self.delivered, wish }
    }

    fn sent(&self) -> u64 {
        self.legs.iter().map(|leg| leg.sent).max().unwrap_or(0)
    }

    fn leg(&mut self, circuit: CircuitKey) -> Result<&mut Leg, Broken> {
        self.legs.iter_mut().find(|leg| leg.circuit == circuit).ok_or(Broken)
    }

    /// Adds a leg, on which the caller sends [`link`](Self::link) now. `theirs`: the messages that the peer's LINK
    /// counts, if the peer was first.
    pub(crate) fn add(&mut self, now: Time, circuit: CircuitKey, theirs: u64) -> Result<(), Refused> {
        if theirs > self.delivered {
            return Err(Refused::Lost);
        }
        if self.legs.len() >= MAX_LEGS {
            return Err(Refused::TooMany);
        }
        let (sent, asked) = (self.sent(), Some(now));
        self.legs.push(Leg { circuit, sent, received: theirs, asked, round_trip: None, in_flight: 0 });
        Ok(())
    }

    /// The answer to our LINK or LINKED on a leg arrived.
    ///
    /// # Errors
    /// If it was answered before.
    pub(crate) fn answered(&mut self, now: Time, circuit: CircuitKey) -> Result<(), Broken> {
        let leg = self.leg(circuit)?;
        let asked = leg.asked.take().ok_or(Broken)?;
        leg.round_trip = Some(now.since(asked));
        Ok(())
    }

    /// Whether all legs are answered.
    pub(crate) fn is_linked(&self) -> bool {
        self.legs.iter().all(|leg| leg.asked.is_none())
    }

    /// Whether this leg is answered.
    pub(crate) fn is_answered(&self, circuit: CircuitKey) -> bool {
        self.legs.iter().any(|leg| leg.circuit == circuit && leg.asked.is_none())
    }

    /// Follows the other side's wish; the latest counts (tor's `conflux_choose_algorithm`).
    pub(crate) fn follow(&mut self, wish: Wish) {
        self.single = !matches!(wish, Wish::None | Wish::Throughput);
    }

    /// Legs that can carry messages, with their round-trip times; unanswered legs count as slowest (proposal 329, 2.2). A
    /// leg is not usable again if the number of missed messages exceeds a SWITCH's field.
    fn usable(&self) -> impl Iterator<Item = (Span, &Leg)> + '_ {
        let sent = self.sent();
        let usable = move |leg: &&Leg| sent - leg.sent <= u64::from(u32::MAX);
        let known = self.legs.iter().filter(usable);
        let by_time = known.filter_map(|leg| Some((leg.round_trip?, leg)));
        let key = |(time, leg): &(Span, &Leg)| (*time, leg.circuit);
        let fastest = by_time.clone().map(|leg| key(&leg)).min();
        by_time.filter(move |leg| !self.single || Some(key(leg)) == fastest)
    }

    /// The usable legs and their room.
    fn offers(&self, capacity: impl Fn(CircuitKey) -> Capacity) -> impl Iterator<Item = (Offer, u32)> {
        let offer = move |(round_trip, leg): (Span, &Leg)| {
            let Leg { circuit, in_flight, .. } = *leg;
            Offer { circuit, capacity: capacity(circuit), in_flight, round_trip }
        };
        self.usable().map(move |usable| {
            let leg = offer(usable);
            let fastest = || self.usable().min_by_key(|(time, leg)| (*time, leg.circuit)).map_or(leg, &offer);
            (leg, if self.single { leg.capacity.room } else { self.split.room(&leg, &fastest) })
        })
    }

    /// The leg for the next data cells, and how many cells before the next choice; `None` if they must wait.
    ///
    /// A single leg is not left for another while it lacks room (proposal 329, 3.1). Otherwise the split's preference
    /// counts, then the least round-trip time (3.2).
    pub(crate) fn choose(&self, capacity: impl Fn(CircuitKey) -> Capacity) -> Option<(Offer, u32)> {
        let rank = |leg: &Offer| if self.single { 0.0 } else { self.split.rank(leg) };
        let key = |leg: &Offer| (leg.round_trip, leg.circuit);
        let open = self.offers(capacity).filter(|(_, room)| *room > 0);
        let (leg, room) =
            open.min_by(|(a, _), (b, _)| rank(a).total_cmp(&rank(b)).then_with(|| key(a).cmp(&key(b))))?;
        Some((leg, if self.single { room } else { room.min(self.split.batch(&leg)) }))
    }

    /// Cells that all eligible legs accept now.
    pub(crate) fn room(&self, capacity: impl Fn(CircuitKey) -> Capacity) -> u32 {
        self.offers(capacity).fold(0, |sum: u32, (_, room)| sum.saturating_add(room))
    }

    /// The leg for messages outside of windows: as [`choose`](Self::choose), otherwise the last leg.
    pub(crate) fn choose_any(&self, capacity: impl Fn(CircuitKey) -> Capacity) -> Option<CircuitKey> {
        let fastest = || self.usable().map(|(time, leg)| (time, leg.circuit)).min().map(|(_, leg)| leg);
        let chosen = self.choose(capacity).map(|(leg, _)| leg.circuit);
        chosen.or(self.current).or_else(fastest).or(self.legs.first().map(|leg| leg.circuit))
    }

    /// Counts a data cell on this leg; returns the number for a SWITCH before it, if one is due.
    ///
    /// # Panics
    /// If the leg was not chosen.
    pub(crate) fn send_data(&mut self, now: Time, leg: &Offer) -> Option<u32> {
        if !self.single {
            self.split.sent(now, leg);
        }
        self.leg(leg.circuit).expect("it was chosen").in_flight += 1;
        self.send(leg.circuit)
    }

    /// The same for other stream messages.
    ///
    /// # Panics
    /// If the leg was not chosen.
    pub(crate) fn send(&mut self, circuit: CircuitKey) -> Option<u32> {
        let sent = self.sent();
        let before = self.current.replace(circuit);
        let leg = self.leg(circuit).expect("it was chosen");
        let missed = sent - std::mem::replace(&mut leg.sent, sent + 1);
        let missed = u32::try_from(missed).expect("such a leg is not usable");
        (before.is_some_and(|before| before != circuit)).then_some(missed)
    }

    /// A SENDME for `cells` arrived on a leg; updates its round-trip time.
    pub(crate) fn acknowledged(
        &mut self,
        now: Time,
        circuit: CircuitKey,
        cells: u32,
        round_trip: Option<Span>,
    ) {
        if let Ok(leg) = self.leg(circuit) {
            leg.in_flight = leg.in_flight.saturating_sub(cells);
            leg.round_trip = round_trip.or(leg.round_trip);
            self.split.acknowledged(now, circuit);
        }
    }

    /// A SWITCH arrived on a leg.
    ///
    /// # Errors
    /// If it skips messages that cannot arrive on another leg.
    pub(crate) fn switched(&mut self, circuit: CircuitKey, missed: u32) -> Result<(), Broken> {
        let leg = self.leg(circuit)?;
        leg.received = leg.received.checked_add(missed.into()).ok_or(Broken)?;
        if self.is_torn() { Err(Broken) } else { Ok(()) }
    }

    /// Whether the next message cannot arrive on any leg: all legs are already past it.
    fn is_torn(&self) -> bool {
        self.legs.iter().all(|leg| leg.received > self.delivered)
    }

    /// A message arrived on a leg. Returns it if it is next; then [`next_due`](Self::next_due) returns its successors.
    ///
    /// # Errors
    /// If its number repeats, or the reorder buffer is full.
    pub(crate) fn receive(
        &mut self,
        now: Time,
        circuit: CircuitKey,
        message: M,
    ) -> Result<Option<M>, Broken> {
        let leg = self.leg(circuit)?;
        leg.received = leg.received.checked_add(1).ok_or(Broken)?;
        let number = leg.received;
        if number == self.delivered + 1 {
            self.delivered = number;
            return Ok(Some(message));
        }
        if self.held.is_empty() {
            self.held_since = now;
        }
        let doubled = number <= self.delivered || self.held.insert(number, message).is_some();
        if doubled || self.held_bytes() > MAX_HELD || self.is_torn() { Err(Broken) } else { Ok(None) }
    }

    /// Takes the next message in order from the reorder buffer.
    pub(crate) fn next_due(&mut self) -> Option<M> {
        let first = self.held.first_entry().filter(|first| *first.key() == self.delivered + 1)?;
        self.delivered += 1;
        Some(first.remove())
    }

    /// Bytes in the reorder buffer.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held.len() as u64 * HELD_COST
    }

    /// Since when the reorder buffer is non-empty.
    pub(crate) fn held_since(&self) -> Option<Time> {
        (!self.held.is_empty()).then_some(self.held_since)
    }

    /// Removes a leg; returns whether the others can continue. They cannot if it was in use or may have lost cells, because
    /// messages are not retransmitted (tor's `cfx_del_leg`). `increment`: cells per SENDME.
    pub(crate) fn remove(&mut self, circuit: CircuitKey, increment: u32) -> bool {
        let Some(at) = self.legs.iter().position(|leg| leg.circuit == circuit) else { return false };
        let gone = self.legs.remove(at);
        self.split.removed(circuit);
        let used = self.current == Some(circuit) || gone.in_flight >= increment;
        let behind = |most: fn(&Leg) -> u64| self.legs.iter().map(most).max().unwrap_or(0) < most(&gone);
        let ahead = behind(|leg| leg.sent) || behind(|leg| leg.received);
        !(used || ahead || self.legs.is_empty() || self.is_torn())
    }

    /// Gives a leg's circuit a new key.
    pub(crate) fn rename(&mut self, circuit: CircuitKey, to: CircuitKey) {
        if let Ok(leg) = self.leg(circuit) {
            leg.circuit = to;
            self.split.renamed(circuit, to);
        }
        if self.current == Some(circuit) {
            self.current = Some(to);
        }
    }
}
