//! One side's view of the legs of one client.

use std::collections::BTreeMap;

use tidegate_control::units::{Span, Time};

use super::link::{Link, Wish};
use super::split::{Capacity, Offer, Splitter};
use crate::ids::CircuitKey;

/// Legs of one set at most (tor: `cfx_max_legs_set`).
pub const MAX_LEGS: usize = 8;
/// Bytes of memory that a message takes that waits for one before it, and that all of a set may take: as much as a leg at
/// 100 Mbit/s sends while another takes a second longer.
const HELD_COST: u64 = 640;
const MAX_HELD: u64 = 16 << 20;

/// The peer broke the rules: all legs of its set end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// A leg cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There are as many as there may be: this one ends.
    TooMany,
    /// Something was lost with a leg that is gone: all end.
    Lost,
}

/// What a circuit is to others.
#[derive(Debug)]
pub enum Linked<M> {
    /// Nothing.
    No,
    /// The one of a set under which the streams of all are known.
    First(Box<Set<M>>),
    /// A leg of the set whose first has this key.
    With(CircuitKey),
}

/// The legs of one client's streams, as one of their two ends knows them. `M`: what is held until what precedes it has come.
#[derive(Debug)]
pub struct Set<M> {
    nonce: [u8; 32],
    /// By what the other side wishes, one leg alone.
    single: bool,
    split: Box<dyn Splitter>,
    legs: Vec<Leg>,
    /// The one that was sent on last.
    current: Option<CircuitKey>,
    delivered: u64,
    held: BTreeMap<u64, M>,
    /// Since when some are.
    held_since: Time,
}

#[derive(Debug)]
struct Leg {
    circuit: CircuitKey,
    /// The number of the last message sent on it, and of the last that came.
    sent: u64,
    received: u64,
    /// When we said LINK or LINKED, until it is answered.
    asked: Option<Time>,
    round_trip: Option<Span>,
    /// Data cells sent that no SENDME has acknowledged.
    in_flight: u32,
}

impl<M> Set<M> {
    /// A set without legs, among which this divides what we send.
    pub fn new(nonce: [u8; 32], split: Box<dyn Splitter>) -> Set<M> {
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

    /// What its legs have in common.
    pub fn nonce(&self) -> [u8; 32] {
        self.nonce
    }

    /// Its legs, in the order of their coming.
    pub fn legs(&self) -> impl Iterator<Item = CircuitKey> + '_ {
        self.legs.iter().map(|leg| leg.circuit)
    }

    /// What is said on a leg that is added now.
    pub fn link(&self, wish: Wish) -> Link {
        Link { nonce: self.nonce, sent: self.sent(), delivered: self.delivered, wish }
    }

    fn sent(&self) -> u64 {
        self.legs.iter().map(|leg| leg.sent).max().unwrap_or(0)
    }

    fn leg(&mut self, circuit: CircuitKey) -> Result<&mut Leg, Broken> {
        self.legs.iter_mut().find(|leg| leg.circuit == circuit).ok_or(Broken)
    }

    /// Adds a leg, on which we say [`link`](Self::link) now. `theirs`: what the other side has sent by its LINK, if it has
    /// spoken first.
    pub fn add(&mut self, now: Time, circuit: CircuitKey, theirs: u64) -> Result<(), Refused> {
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

    /// What we said on a leg is answered.
    ///
    /// # Errors
    /// If it was before.
    pub fn answered(&mut self, now: Time, circuit: CircuitKey) -> Result<(), Broken> {
        let leg = self.leg(circuit)?;
        let asked = leg.asked.take().ok_or(Broken)?;
        leg.round_trip = Some(now.since(asked));
        Ok(())
    }

    /// Whether all that we said is answered.
    pub fn is_linked(&self) -> bool {
        self.legs.iter().all(|leg| leg.asked.is_none())
    }

    /// Whether what we said on that leg is.
    pub fn is_answered(&self, circuit: CircuitKey) -> bool {
        self.legs.iter().any(|leg| leg.circuit == circuit && leg.asked.is_none())
    }

    /// The other side says what it wishes; the last word counts (tor's `conflux_choose_algorithm`).
    pub fn follow(&mut self, wish: Wish) {
        self.single = !matches!(wish, Wish::None | Wish::Throughput);
    }

    /// Legs that can be sent on, by their round-trip times. Those that are not known to be answered are slower than any
    /// (proposal 329, 2.2). A leg on which more than a SWITCH can say was missed is not gone back to.
    fn usable(&self) -> impl Iterator<Item = (Span, &Leg)> + '_ {
        let sent = self.sent();
        let usable = move |leg: &&Leg| sent - leg.sent <= u64::from(u32::MAX);
        let known = self.legs.iter().filter(usable);
        let by_time = known.filter_map(|leg| Some((leg.round_trip?, leg)));
        let key = |(time, leg): &(Span, &Leg)| (*time, leg.circuit);
        let fastest = by_time.clone().map(|leg| key(&leg)).min();
        by_time.filter(move |leg| !self.single || Some(key(leg)) == fastest)
    }

    /// What usable legs offer, and their room.
    fn offers(&self, capacity: impl Fn(CircuitKey) -> Capacity) -> impl Iterator<Item = (Offer, u32)> {
        self.usable().map(move |(round_trip, leg)| {
            let Leg { circuit, in_flight, .. } = *leg;
            let offer = Offer { circuit, capacity: capacity(circuit), in_flight, round_trip };
            (offer, if self.single { offer.capacity.room } else { self.split.room(&offer) })
        })
    }

    /// The leg that data cells go over next, and how many before it is time to choose again; `None`: they must wait. One leg
    /// alone is not left for another while it has no room (proposal 329, 3.1); else that goes first which the split prefers,
    /// and of several the one with the least round-trip time (3.2).
    pub fn choose(&self, capacity: impl Fn(CircuitKey) -> Capacity) -> Option<(Offer, u32)> {
        let rank = |leg: &Offer| if self.single { 0.0 } else { self.split.rank(leg) };
        let key = |leg: &Offer| (leg.round_trip, leg.circuit);
        let open = self.offers(capacity).filter(|(_, room)| *room > 0);
        let (leg, room) =
            open.min_by(|(a, _), (b, _)| rank(a).total_cmp(&rank(b)).then_with(|| key(a).cmp(&key(b))))?;
        Some((leg, if self.single { room } else { room.min(self.split.batch(&leg)) }))
    }

    /// Cells that may go over all legs that may be chosen.
    pub fn room(&self, capacity: impl Fn(CircuitKey) -> Capacity) -> u32 {
        self.offers(capacity).fold(0, |sum: u32, (_, room)| sum.saturating_add(room))
    }

    /// The leg for what no window bounds: as [`choose`](Self::choose), or else the one that was sent on last.
    pub fn choose_any(&self, capacity: impl Fn(CircuitKey) -> Capacity) -> Option<CircuitKey> {
        let fastest = || self.usable().map(|(time, leg)| (time, leg.circuit)).min().map(|(_, leg)| leg);
        let chosen = self.choose(capacity).map(|(leg, _)| leg.circuit);
        chosen.or(self.current).or_else(fastest).or(self.legs.first().map(|leg| leg.circuit))
    }

    /// A data cell goes over that leg now: what a SWITCH must say before it, if one is due.
    ///
    /// # Panics
    /// If the leg was not chosen.
    pub fn send_data(&mut self, now: Time, leg: &Offer) -> Option<u32> {
        if !self.single {
            self.split.sent(now, leg);
        }
        self.leg(leg.circuit).expect("it was chosen").in_flight += 1;
        self.send(leg.circuit)
    }

    /// The same of something else that concerns a stream.
    ///
    /// # Panics
    /// If the leg was not chosen.
    pub fn send(&mut self, circuit: CircuitKey) -> Option<u32> {
        let sent = self.sent();
        let before = self.current.replace(circuit);
        let leg = self.leg(circuit).expect("it was chosen");
        let missed = sent - std::mem::replace(&mut leg.sent, sent + 1);
        let missed = u32::try_from(missed).expect("such a leg is not usable");
        (before.is_some_and(|before| before != circuit)).then_some(missed)
    }

    /// A SENDME came on a leg, for so many cells; its circuit has that round-trip time now.
    pub fn acknowledged(&mut self, now: Time, circuit: CircuitKey, cells: u32, round_trip: Option<Span>) {
        if let Ok(leg) = self.leg(circuit) {
            leg.in_flight = leg.in_flight.saturating_sub(cells);
            leg.round_trip = round_trip.or(leg.round_trip);
            self.split.acknowledged(now, circuit);
        }
    }

    /// A SWITCH came on a leg.
    ///
    /// # Errors
    /// If it leaves out what no leg can bring.
    pub fn switched(&mut self, circuit: CircuitKey, missed: u32) -> Result<(), Broken> {
        let leg = self.leg(circuit)?;
        leg.received = leg.received.checked_add(missed.into()).ok_or(Broken)?;
        if self.is_torn() { Err(Broken) } else { Ok(()) }
    }

    /// Whether what is due next cannot come on any leg. An honest sender's leg that brings it has brought nothing after it.
    fn is_torn(&self) -> bool {
        self.legs.iter().all(|leg| leg.received > self.delivered)
    }

    /// A message came on a leg: it is given back if it is due. Then [`next_due`](Self::next_due) gives those that waited for it.
    ///
    /// # Errors
    /// If there was one with its number, or too many wait.
    pub fn receive(&mut self, now: Time, circuit: CircuitKey, message: M) -> Result<Option<M>, Broken> {
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

    /// A message that waited and is due.
    pub fn next_due(&mut self) -> Option<M> {
        let first = self.held.first_entry().filter(|first| *first.key() == self.delivered + 1)?;
        self.delivered += 1;
        Some(first.remove())
    }

    /// Bytes of memory that messages take that wait.
    pub fn held_bytes(&self) -> u64 {
        self.held.len() as u64 * HELD_COST
    }

    /// Since when some wait.
    pub fn held_since(&self) -> Option<Time> {
        (!self.held.is_empty()).then_some(self.held_since)
    }

    /// A leg is gone; whether the others can go on. They cannot if it was in use, or cells of it may be lost: nothing is
    /// said again (tor's `cfx_del_leg`). A SENDME acknowledges so many cells.
    pub fn remove(&mut self, circuit: CircuitKey, increment: u32) -> bool {
        let Some(at) = self.legs.iter().position(|leg| leg.circuit == circuit) else { return false };
        let gone = self.legs.remove(at);
        self.split.removed(circuit);
        let used = self.current == Some(circuit) || gone.in_flight >= increment;
        let behind = |most: fn(&Leg) -> u64| self.legs.iter().map(most).max().unwrap_or(0) < most(&gone);
        let ahead = behind(|leg| leg.sent) || behind(|leg| leg.received);
        !(used || ahead || self.legs.is_empty() || self.is_torn())
    }

    /// A leg's circuit is known by another key from now on.
    pub fn rename(&mut self, circuit: CircuitKey, to: CircuitKey) {
        if let Ok(leg) = self.leg(circuit) {
            leg.circuit = to;
            self.split.renamed(circuit, to);
        }
        if self.current == Some(circuit) {
            self.current = Some(to);
        }
    }
}
