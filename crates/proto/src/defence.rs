//! Defences of a relay against denial of service that a consensus turns on, with tor's rules (`dos.c` of tor 0.4.9).
//!
//! They count per address (IPv6: one /64), and on top of the operator's [`Limits`](crate::links::Limits). An address is
//! *marked* for a time if it connects or creates circuits too fast; while marked, it is refused.

mod parameters;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

pub use parameters::{
    CircuitDefence, ConnectionDefence, DefenceParameters, OPTIONS, StreamAction, StreamDefence,
};
use tidegate_control::random::{Random, Seed};
use tidegate_control::shares::network;
use tidegate_control::units::{Span, Time};

use crate::crypto::onion_services::IntroductionLimit;

/// Maximum number of addresses with counts. Above it, those without connections go, the ones not marked first.
const ADDRESSES: usize = 1 << 16;

/// Tor's bucket of whole tokens that is refilled every second (`token_bucket_ctr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    tokens: u32,
    second: u64,
}

impl Quota {
    pub(crate) fn full(now: Time, burst: u32) -> Quota {
        Quota { tokens: burst, second: second(now) }
    }

    /// Refills the bucket, and returns its tokens.
    pub(crate) fn refill(&mut self, now: Time, rate: u32, burst: u32) -> u32 {
        let seconds = second(now).saturating_sub(self.second);
        let gained = u32::try_from(seconds.saturating_mul(rate.into())).unwrap_or(u32::MAX);
        self.tokens = self.tokens.saturating_add(gained).min(burst);
        self.second = self.second.max(second(now));
        self.tokens
    }

    /// Takes a token, if there is one.
    pub(crate) fn take(&mut self) -> bool {
        let had = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        had
    }
}

fn second(now: Time) -> u64 {
    now.0 / Span::from_secs(1).0
}

/// The counts of one address.
#[derive(Debug)]
struct Address {
    connections: u32,
    connects: Quota,
    circuits: Quota,
    full_queues: u32,
    /// Until when its circuits and its connections are refused.
    circuits_until: Option<Time>,
    connections_until: Option<Time>,
}

impl Address {
    /// The end of the longest mark, if one lasts.
    fn marked_until(&self, now: Time) -> Option<Time> {
        self.circuits_until.max(self.connections_until).filter(|until| *until >= now)
    }
}

/// Number of refusals of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Connections of addresses that have too many.
    pub concurrent: u64,
    /// Connections of addresses that connect too fast.
    pub connects: u64,
    /// Circuits of addresses that create too many, or overflow queues.
    pub circuits: u64,
    /// Streams of circuits that open too many.
    pub streams: u64,
    /// Introductions beyond a service's limit.
    pub introductions: u64,
    /// Rendezvous points at clients' guards.
    pub rendezvous: u64,
}

#[derive(Debug)]
struct State {
    parameters: DefenceParameters,
    /// Addresses of known relays, which are never counted.
    relays: BTreeSet<IpAddr>,
    addresses: BTreeMap<IpAddr, Address>,
    refusals: Refusals,
    random: Random,
}

/// The defences of a relay. Clones share their counts, so that several threads can serve one relay.
#[derive(Clone, Debug)]
pub struct Defence(Arc<Mutex<State>>);

/// A connection that counts for its address until dropped.
#[derive(Debug)]
pub struct Counted(Option<(Defence, IpAddr)>);

impl Counted {
    /// A connection that does not count.
    pub fn none() -> Counted {
        Counted(None)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let Some((defence, address)) = self.0.take() else { return };
        if let Some(known) = defence.lock().addresses.get_mut(&address) {
            known.connections = known.connections.saturating_sub(1);
        }
    }
}

impl State {
    /// The counts of an address. They are created if a defence that needs them is on.
    fn known(&mut self, now: Time, address: IpAddr) -> Option<&mut Address> {
        let DefenceParameters { circuits, connections, .. } = self.parameters;
        if circuits.is_none() && connections.is_none() {
            return None;
        }
        if !self.addresses.contains_key(&address) && self.addresses.len() >= ADDRESSES {
            self.forget_some(now);
        }
        Some(self.addresses.entry(address).or_insert_with(|| Address {
            connections: 0,
            connects: Quota::full(now, connections.map_or(0, |of| of.burst)),
            circuits: Quota::full(now, circuits.map_or(0, |of| of.burst)),
            full_queues: 0,
            circuits_until: None,
            connections_until: None,
        }))
    }

    /// Forgets at least a quarter of the addresses that have no connection: first those without a mark, then those with
    /// marks that end first.
    fn forget_some(&mut self, now: Time) {
        let idle = self.addresses.iter().filter(|(_, known)| known.connections == 0);
        let mut idle: Vec<_> = idle.map(|(address, known)| (known.marked_until(now), *address)).collect();
        idle.sort_unstable();
        let quarter = idle.len().div_ceil(4);
        for (at, (mark, address)) in idle.into_iter().enumerate() {
            if mark.is_none() || at < quarter {
                self.addresses.remove(&address);
            }
        }
    }

    /// The end of a mark of an address.
    fn mark_until(&mut self, now: Time, period: Span) -> Time {
        // Tor adds up to half of the period, so that the end is hard to predict.
        let half = (period.0 / 2) as f64;
        now + period + Span(self.random.uniform(0.0, half) as u64)
    }
}

impl Defence {
    /// Without a consensus. The seed draws the ends of marks; it must be secret.
    pub fn new(seed: Seed) -> Defence {
        let random = seed.fork("defence").random();
        let (parameters, relays, addresses, refusals) = Default::default();
        Defence(Arc::new(Mutex::new(State { parameters, relays, addresses, refusals, random })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics while it counts")
    }

    /// Obeys the parameters of a new consensus.
    pub fn set(&self, parameters: DefenceParameters) {
        self.lock().parameters = parameters;
    }

    /// Counts no connections of relays at these addresses from now on: exits bring connections of many clients.
    pub fn know_relays(&self, relays: BTreeSet<IpAddr>) {
        self.lock().relays = relays;
    }

    /// The parameters in force.
    pub fn parameters(&self) -> DefenceParameters {
        self.lock().parameters
    }

    /// Refusals so far.
    pub fn refusals(&self) -> Refusals {
        self.lock().refusals
    }

    /// Counts a new connection of an address, before its handshake. `None` if it must be closed.
    pub fn connected(&self, now: Time, from: IpAddr) -> Option<Counted> {
        let address = network(from).1;
        let state = &mut *self.lock();
        if state.relays.contains(&from.to_canonical()) {
            return Some(Counted::none());
        }
        let defence = state.parameters.connections;
        let Some(known) = state.known(now, address) else { return Some(Counted::none()) };
        if let Some(ConnectionDefence { concurrent, closes, rate, burst, period }) = defence {
            let is_marked = known.connections_until.is_some_and(|until| until >= now);
            let are_many = known.connections > concurrent;
            if !is_marked {
                known.connections_until = None;
            }
            if (is_marked || are_many) && closes {
                let refusals = &mut state.refusals;
                *(if is_marked { &mut refusals.connects } else { &mut refusals.concurrent }) += 1;
                return None;
            }
            known.connects.refill(now, rate, burst);
            known.connects.take();
            // A mark that lasts is not prolonged.
            if known.connects.tokens == 0 && known.connections_until.is_none() {
                let until = state.mark_until(now, period);
                state.addresses.get_mut(&address).expect("it is known").connections_until = Some(until);
            }
        }
        state.addresses.get_mut(&address).expect("it is known").connections += 1;
        Some(Counted(Some((self.clone(), address))))
    }

    /// Counts a circuit that a client at this address creates; false if it must be refused.
    pub(crate) fn may_create(&self, now: Time, from: IpAddr) -> bool {
        let address = network(from).1;
        let state = &mut *self.lock();
        let Some(defence) = state.parameters.circuits else { return true };
        let Some(known) = state.addresses.get_mut(&address) else { return true };
        known.circuits.refill(now, defence.rate, defence.burst);
        known.circuits.take();
        // An address that goes on while marked is marked for longer.
        if known.circuits.tokens == 0 && known.connections >= defence.min_connections {
            let until = state.mark_until(now, defence.period);
            state.addresses.get_mut(&address).expect("it is known").circuits_until = Some(until);
        }
        let until = state.addresses[&address].circuits_until;
        let may = !defence.refuses || until.is_none_or(|until| until < now);
        state.refusals.circuits += u64::from(!may);
        may
    }

    /// Notes that a circuit of a client at this address had too many cells in its queue towards the exit.
    pub(crate) fn queue_overflowed(&self, now: Time, from: IpAddr) {
        let address = network(from).1;
        let state = &mut *self.lock();
        let Some(defence) = state.parameters.circuits.filter(|defence| defence.full_queues > 0) else {
            return;
        };
        let Some(known) = state.addresses.get_mut(&address) else { return };
        if known.circuits_until.is_some_and(|until| until >= now) {
            return;
        }
        known.full_queues += 1;
        if known.full_queues >= defence.full_queues {
            known.full_queues = 0;
            let until = state.mark_until(now, defence.period);
            state.addresses.get_mut(&address).expect("it is known").circuits_until = Some(until);
        }
    }

    /// Counts a stream that a circuit opens, and returns what happens to it. `opened` is the circuit's quota.
    pub(crate) fn stream(&self, now: Time, opened: &mut Option<Quota>) -> StreamAction {
        let state = &mut *self.lock();
        let Some(StreamDefence { rate, burst, action }) = state.parameters.streams else {
            return StreamAction::Accept;
        };
        let quota = opened.get_or_insert_with(|| Quota::full(now, burst));
        quota.refill(now, rate, burst);
        if quota.take() {
            return StreamAction::Accept;
        }
        state.refusals.streams += u64::from(action != StreamAction::Accept);
        action
    }

    /// The limit of introductions of services that state none.
    pub(crate) fn introductions(&self) -> Option<IntroductionLimit> {
        self.lock().parameters.introductions
    }

    /// Counts an introduction beyond a service's limit.
    pub(crate) fn introduction_refused(&self) {
        self.lock().refusals.introductions += 1;
    }

    /// Whether a client may not make its guard a rendezvous point. A refusal is counted.
    pub(crate) fn refuses_single_hop_rendezvous(&self) -> bool {
        let state = &mut *self.lock();
        let refuses = state.parameters.refuses_single_hop_rendezvous;
        state.refusals.rendezvous += u64::from(refuses);
        refuses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;

    fn at(second: u64) -> Time {
        Time::ZERO + Span::from_secs(second)
    }

    fn with(stated: &[(&str, i32)]) -> Defence {
        let defence = Defence::new(Seed::root(1));
        defence.set(DefenceParameters::of_consensus(|name| {
            stated.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
        }));
        defence
    }

    fn peer(last: u8) -> IpAddr {
        IpAddr::from([198, 51, 100, last])
    }

    #[test]
    fn one_more_connection_than_the_maximum_is_the_last() {
        let defence = with(&[
            ("DoSConnectionEnabled", 1),
            ("DoSConnectionMaxConcurrentCount", 5),
            ("DoSConnectionConnectBurst", 1000),
        ]);
        // Tor refuses when the count is above the maximum before the new connection.
        let mut open: Vec<_> = (0..6).map(|_| defence.connected(at(1), peer(1)).expect("accepted")).collect();
        assert!(defence.connected(at(1), peer(1)).is_none());
        assert!(defence.connected(at(1), peer(2)).is_some(), "another address");
        open.pop();
        assert!(defence.connected(at(1), peer(1)).is_some(), "one has ended");
        let refused = Refusals { concurrent: 1, ..Refusals::default() };
        assert_eq!(defence.refusals(), refused);
    }

    #[test]
    fn connections_of_known_relays_are_not_counted() {
        let defence = with(&[("DoSConnectionEnabled", 1), ("DoSConnectionConnectBurst", 1)]);
        defence.know_relays([peer(1)].into());
        assert!((0..100).all(|_| defence.connected(at(1), peer(1)).is_some()));
        assert_eq!((0..100).filter(|_| defence.connected(at(1), peer(2)).is_some()).count(), 1);
    }

    #[test]
    fn fast_connections_mark_an_address_for_the_period() {
        let defence = with(&[
            ("DoSConnectionEnabled", 1),
            ("DoSConnectionConnectRate", 2),
            ("DoSConnectionConnectBurst", 4),
            ("DoSConnectionConnectDefenseTimePeriod", 60),
        ]);
        let accepted = |now: Time| defence.connected(now, peer(1)).is_some();
        // Two per second forever are fine.
        assert!((1..=100).all(|second| accepted(at(second)) && accepted(at(second))));
        assert_eq!((0..10).filter(|_| accepted(at(200))).count(), 4, "the burst");
        assert!((200..=259).all(|second| !accepted(at(second))), "marked, whatever the bucket holds");
        assert!(accepted(at(291)), "at most half of the period more");
        let refused = defence.refusals();
        assert_eq!((refused.connects, refused.concurrent), (6 + 60, 0));
    }

    #[test]
    fn fast_circuits_of_several_connections_are_refused() {
        let defence = with(&[
            ("DoSCircuitCreationEnabled", 1),
            ("DoSCircuitCreationMinConnections", 3),
            ("DoSCircuitCreationRate", 1),
            ("DoSCircuitCreationBurst", 10),
            ("DoSCircuitCreationDefenseTimePeriod", HOUR as i32),
        ]);
        let mut open: Vec<_> = (0..2).map(|_| defence.connected(at(1), peer(1))).collect();
        assert!((0..100).all(|_| defence.may_create(at(1), peer(1))), "two connections are too few to tell");
        open.push(defence.connected(at(100), peer(1)));
        let created = (0..20).filter(|_| defence.may_create(at(100), peer(1))).count();
        assert_eq!(created, 9, "the tenth takes the last token and marks");
        assert!(!defence.may_create(at(100 + HOUR), peer(1)));
        assert!(defence.may_create(at(100), peer(2)), "an address without connections is unknown");
        // Closing the connections does not help.
        open.clear();
        assert!(!defence.may_create(at(101 + HOUR), peer(1)));
        assert!(defence.may_create(at(101 + 2 * HOUR), peer(1)));
        assert_eq!(defence.refusals().circuits, 13);
    }

    #[test]
    fn refused_circuits_prolong_the_mark() {
        let defence = with(&[
            ("DoSCircuitCreationEnabled", 1),
            ("DoSCircuitCreationMinConnections", 1),
            ("DoSCircuitCreationBurst", 1),
            ("DoSCircuitCreationDefenseTimePeriod", 100),
        ]);
        let _open = defence.connected(at(1), peer(1));
        assert!((1..1000).step_by(99).all(|second| !defence.may_create(at(second), peer(1))));
    }

    #[test]
    fn overflowing_queues_mark_an_address() {
        let defence = with(&[("DoSCircuitCreationEnabled", 1), ("dos_num_circ_max_outq", 3)]);
        let _open = defence.connected(at(1), peer(1));
        for _ in 0..2 {
            defence.queue_overflowed(at(1), peer(1));
            assert!(defence.may_create(at(1), peer(1)));
        }
        defence.queue_overflowed(at(1), peer(1));
        assert!(!defence.may_create(at(1), peer(1)));
        let never = with(&[("DoSCircuitCreationEnabled", 1), ("dos_num_circ_max_outq", 0)]);
        let _open = never.connected(at(1), peer(1));
        (0..100).for_each(|_| never.queue_overflowed(at(1), peer(1)));
        assert!(never.may_create(at(1), peer(1)));
    }

    #[test]
    fn streams_are_limited_per_circuit() {
        let on = ("DoSStreamCreationEnabled", 1);
        for (kind, action) in [(2, StreamAction::EndStream), (3, StreamAction::EndCircuit)] {
            let defence = with(&[
                on,
                ("DoSStreamCreationRate", 2),
                ("DoSStreamCreationBurst", 5),
                ("DoSStreamCreationDefenseType", kind),
            ]);
            let (mut one, mut other) = (None, None);
            let accepted = |second, opened: &mut Option<Quota>| {
                (0..10).take_while(|_| defence.stream(at(second), opened) == StreamAction::Accept).count()
            };
            assert_eq!(accepted(1, &mut one), 5);
            assert_eq!(accepted(1, &mut one), 0);
            assert_eq!(accepted(1, &mut other), 5);
            assert_eq!(accepted(2, &mut one), 2);
            assert_eq!(defence.stream(at(2), &mut one), action);
            assert_eq!(defence.refusals().streams, 5);
        }
        let counted = with(&[on, ("DoSStreamCreationBurst", 1), ("DoSStreamCreationDefenseType", 1)]);
        let mut opened = None;
        assert!((0..10).all(|_| counted.stream(at(1), &mut opened) == StreamAction::Accept));
    }

    #[test]
    fn a_defence_that_only_counts_refuses_nothing() {
        let defence = with(&[
            ("DoSCircuitCreationEnabled", 1),
            ("DoSCircuitCreationMinConnections", 1),
            ("DoSCircuitCreationBurst", 1),
            ("DoSCircuitCreationDefenseType", 1),
            ("DoSConnectionEnabled", 1),
            ("DoSConnectionMaxConcurrentCount", 1),
            ("DoSConnectionDefenseType", 1),
        ]);
        let open: Vec<_> = (0..100).map(|_| defence.connected(at(1), peer(1))).collect();
        assert!(open.iter().all(Option::is_some));
        assert!((0..100).all(|_| defence.may_create(at(1), peer(1))));
    }

    #[test]
    fn a_new_consensus_turns_defences_off() {
        let defence = with(&[("DoSConnectionEnabled", 1), ("DoSConnectionConnectBurst", 1)]);
        let first = defence.connected(at(1), peer(1));
        assert!(defence.connected(at(1), peer(1)).is_none());
        defence.set(DefenceParameters::default());
        assert!(defence.connected(at(1), peer(1)).is_some());
        // A connection that was counted is forgotten when it ends, though nothing is counted now.
        drop(first);
        assert_eq!(defence.lock().addresses[&peer(1)].connections, 0);
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_together() {
        let defence = with(&[("DoSConnectionEnabled", 1), ("DoSConnectionConnectBurst", 3)]);
        let address = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, last]);
        let accepted = (0..10).filter(|last| defence.connected(at(1), address(*last)).is_some()).count();
        assert_eq!(accepted, 3);
    }

    #[test]
    fn many_addresses_do_not_take_more_memory_than_allowed() {
        let defence = with(&[("DoSConnectionEnabled", 1), ("DoSConnectionConnectBurst", 1)]);
        let address = |number: u32| IpAddr::from(number.to_be_bytes());
        let stays = defence.connected(at(1), address(0));
        for number in 1..3 * ADDRESSES as u32 {
            drop(defence.connected(at(1), address(number)));
        }
        let state = defence.lock();
        assert!(state.addresses.len() <= ADDRESSES);
        assert!(state.addresses.contains_key(&address(0)), "it has a connection");
        drop(state);
        drop(stays);
    }
}
