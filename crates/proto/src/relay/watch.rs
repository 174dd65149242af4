//! Limits per address of connections, circuits and handshakes, and timeouts of idle channels and pending extensions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use tidegate_control::shares::{Shares, network};
use tidegate_control::units::{Span, Time};

use crate::bucket::{BucketPlan, TokenBucket};
use crate::ids::{ChannelId, CircuitKey};
use crate::links::Limits;

/// Refill interval of the handshake buckets.
const REFILL: Span = Span::from_millis(100);
/// Addresses remembered without a connection before the list is swept.
const STALE: usize = 1024;

/// Counts per address, and timers.
pub(super) struct Watch {
    pub limits: Limits,
    addresses: AddressCounts,
    channels: BTreeMap<ChannelId, Channel>,
    /// The places of connections: of those from an address, and of those that this relay opened for its circuits.
    places: Shares<IpAddr, IpAddr, ChannelId>,
    /// The places of circuits that this relay holds.
    circuits: Shares<IpAddr, IpAddr, CircuitKey>,
    /// When a cell of a circuit last came on each channel, by the channel's number.
    active: Vec<Time>,
    /// When to check which channels for circuits.
    looks: BTreeSet<(Time, ChannelId)>,
    /// Circuits that wait for the next relay, by the time since when.
    extending: BTreeSet<(Time, CircuitKey)>,
}

/// Counts per address. The shards of a relay share them; they are only locked when connections and circuits begin, are
/// extended or end.
#[derive(Clone, Default)]
pub struct AddressCounts(Arc<Mutex<Addresses>>);

#[derive(Default)]
struct Addresses {
    known: BTreeMap<IpAddr, Address>,
    /// Above this number, forgettable addresses are dropped.
    sweep_at: usize,
    /// Handshakes that all addresses together may still begin; full until the first one.
    handshakes: Option<TokenBucket>,
    shaken: Handshakes,
}

/// Circuits that all neighbours asked a relay to create or extend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handshakes {
    /// All that no limit of one address refused.
    pub asked: u64,
    /// Those of `asked` that the limit of all addresses together refused.
    pub refused: u64,
}

struct Address {
    channels: u32,
    circuits: u32,
    handshakes: TokenBucket,
}

struct Channel {
    /// The neighbour's address; unknown until a connection that this relay opens is there.
    address: Option<IpAddr>,
    /// It counts among the connections of its address, because that opened it.
    counted: bool,
    look: Time,
    /// The last check found the channel without circuits.
    was_bare: bool,
}

impl AddressCounts {
    /// The handshakes so far.
    pub fn handshakes(&self) -> Handshakes {
        self.lock().shaken
    }

    fn lock(&self) -> MutexGuard<'_, Addresses> {
        self.0.lock().expect("no shard panics while it counts")
    }
}

impl Addresses {
    /// The counts of an address, which are created if it is new.
    fn count(&mut self, now: Time, address: IpAddr, limits: &Limits) -> &mut Address {
        if self.known.len() >= self.sweep_at.max(STALE) {
            let burst = u64::from(limits.handshake_burst);
            // An address that is forgotten before its bucket is full would get a new burst.
            self.known.retain(|_, known| {
                known.channels + known.circuits > 0 || known.handshakes.available(now) < burst
            });
            self.sweep_at = 2 * self.known.len() + STALE;
        }
        self.known.entry(address).or_insert_with(|| Address {
            channels: 0,
            circuits: 0,
            handshakes: bucket(limits.handshakes_per_second, limits.handshake_burst),
        })
    }

    /// Takes a handshake from the allowances of an address and of all addresses; false if either is used up.
    fn shake(&mut self, now: Time, address: IpAddr, limits: &Limits) -> bool {
        let burst = limits.handshake_burst;
        let own = self.count(now, address, limits).handshakes.available(now);
        let most = limits.all_handshakes_per_second;
        let all = self.handshakes.get_or_insert_with(|| bucket(most, most));
        let left = all.available(now);
        // When less than half of the common allowance is left, an address that used up its burst waits first, and then
        // those that used less of theirs. An address that asks for little gets the rest.
        let used = u64::from(burst).saturating_sub(own);
        let may_wait = u128::from(used) * u128::from(most) > 2 * u128::from(left) * u128::from(burst);
        if own == 0 {
            return false;
        }
        self.shaken.asked += 1;
        if left == 0 || may_wait {
            self.shaken.refused += 1;
            return false;
        }
        all.take(1);
        self.count(now, address, limits).handshakes.take(1);
        true
    }
}

/// A bucket of handshakes, which begins full.
fn bucket(per_second: u32, burst: u32) -> TokenBucket {
    TokenBucket::new(BucketPlan {
        rate_bytes_per_s: per_second.into(),
        burst_bytes: burst.into(),
        refill_every: REFILL,
        drop_fractions: false,
    })
}

impl Watch {
    pub(crate) fn new(limits: Limits) -> Watch {
        Watch {
            limits,
            addresses: AddressCounts::default(),
            channels: BTreeMap::new(),
            places: Shares::new(limits.connections.max(1) as usize),
            circuits: Shares::new(limits.circuits.max(1) as usize),
            active: Vec::new(),
            looks: BTreeSet::new(),
            extending: BTreeSet::new(),
        }
    }

    /// Replaces the limits. Allowances that change begin full.
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        let allowances =
            |of: &Limits| [of.handshakes_per_second, of.handshake_burst, of.all_handshakes_per_second];
        let stays = allowances(&self.limits) == allowances(&limits);
        self.limits = limits;
        // The shards of a relay divide other limits ten times a second.
        if stays {
            return;
        }
        let mut addresses = self.addresses.lock();
        addresses.handshakes = None;
        for known in addresses.known.values_mut() {
            known.handshakes = bucket(limits.handshakes_per_second, limits.handshake_burst);
        }
    }

    /// Counts with other shards from now on.
    pub(crate) fn count_with(&mut self, addresses: AddressCounts) {
        self.addresses = addresses;
    }

    /// Whether an address has its maximum number of connections.
    pub(crate) fn is_crowded(&self, address: IpAddr) -> bool {
        let addresses = self.addresses.lock();
        let known = addresses.known.get(&network(address).1);
        known.is_some_and(|known| known.channels >= self.limits.connections_per_address)
    }

    /// The connection that makes room for a new one from an address, if the relay has its maximum number: the idlest
    /// of the network that has the most. `is_bare` says whether a channel is without circuits.
    pub(crate) fn displaced(
        &mut self,
        address: IpAddr,
        is_bare: impl Fn(ChannelId) -> bool,
    ) -> Option<ChannelId> {
        let (active, grace) = (&self.active, self.limits.without_circuits / 2);
        // A channel without circuits goes before one with idle circuits, unless it is much younger.
        let used = |id: &ChannelId| match is_bare(*id) {
            true => Time::ZERO,
            false => active.get(id.0 as usize).map_or(Time::ZERO, |active| *active + grace),
        };
        self.places.set_places(self.limits.connections.max(1) as usize);
        self.places.displaced(&network(address), used)
    }

    /// Notes that a cell of a circuit came on a channel.
    pub(crate) fn active(&mut self, now: Time, channel: ChannelId) {
        if let Some(active) = self.active.get_mut(channel.0 as usize) {
            *active = now;
        }
    }

    /// Notes a connection from an address.
    pub(crate) fn accepted(&mut self, now: Time, channel: ChannelId, address: IpAddr) {
        let host = network(address).1;
        self.addresses.lock().count(now, host, &self.limits).channels += 1;
        self.admit(now, channel, address, Some(host), true);
    }

    /// Notes a connection that a circuit asks for. It takes a place of the circuit's address.
    pub(crate) fn opens(&mut self, now: Time, channel: ChannelId, of: IpAddr) {
        self.admit(now, channel, of, None, false);
    }

    /// Notes the neighbour's address on a connection that this relay opened. Circuits that the neighbour begins count there.
    pub(crate) fn reached(&mut self, now: Time, channel: ChannelId, address: IpAddr) {
        let host = Some(network(address).1);
        match self.channels.get_mut(&channel) {
            Some(known) => known.address = host,
            None => self.admit(now, channel, address, host, false),
        }
    }

    /// Gives a connection a place of address `of`.
    fn admit(&mut self, now: Time, id: ChannelId, of: IpAddr, address: Option<IpAddr>, counted: bool) {
        let number = id.0 as usize;
        if self.active.len() <= number {
            self.active.resize(number + 1, Time::ZERO);
        }
        self.active[number] = now;
        self.places.admit(now, network(of), id);
        let look = now + self.limits.without_circuits / 2;
        self.looks.insert((look, id));
        self.channels.insert(id, Channel { address, counted, look, was_bare: false });
    }

    /// Notes that a channel closed.
    pub(crate) fn closed(&mut self, id: ChannelId) {
        let Some(channel) = self.channels.remove(&id) else { return };
        self.places.release(&id);
        self.looks.remove(&(channel.look, id));
        if let Some(address) = channel.address.filter(|_| channel.counted)
            && let Some(known) = self.addresses.lock().known.get_mut(&address)
        {
            known.channels -= 1;
        }
    }

    /// Takes a handshake from the allowance of the channel's address; false if it is used up.
    pub(crate) fn may_shake(&mut self, now: Time, channel: ChannelId) -> bool {
        let Some(address) = self.address(channel) else { return true };
        self.addresses.lock().shake(now, address, &self.limits)
    }

    /// Counts a circuit that a channel begins. Returns the address it counts for.
    ///
    /// # Errors
    /// If the address has too many circuits or handshakes.
    pub(crate) fn begin(&mut self, now: Time, channel: ChannelId) -> Result<Option<IpAddr>, ()> {
        let most = self.limits.circuits_per_address;
        let Some(address) = self.address(channel) else { return Ok(None) };
        let mut addresses = self.addresses.lock();
        let circuits = addresses.count(now, address, &self.limits).circuits;
        if circuits >= most || !addresses.shake(now, address, &self.limits) {
            return Err(());
        }
        addresses.count(now, address, &self.limits).circuits += 1;
        Ok(Some(address))
    }

    /// The circuit that makes room for a new one of an address, if the relay has its maximum number: the idlest of the
    /// network that has the most. `used` says when a circuit last carried a cell.
    pub(crate) fn displaced_circuit(
        &mut self,
        of: IpAddr,
        used: impl Fn(&CircuitKey) -> Time,
    ) -> Option<CircuitKey> {
        self.circuits.set_places(self.limits.circuits.max(1) as usize);
        self.circuits.displaced(&network(of), used)
    }

    /// Gives a circuit of an address a place.
    pub(crate) fn holds(&mut self, now: Time, of: IpAddr, circuit: CircuitKey) {
        self.circuits.admit(now, network(of), circuit);
    }

    /// Notes that a circuit is gone from this relay, whether it had a place or not.
    pub(crate) fn gone(&mut self, circuit: CircuitKey) {
        self.circuits.release(&circuit);
    }

    /// The number of circuits with a place.
    pub(crate) fn held(&self) -> usize {
        self.circuits.len()
    }

    /// Notes that a circuit of an address has ended.
    pub(crate) fn ended(&mut self, address: IpAddr) {
        if let Some(known) = self.addresses.lock().known.get_mut(&address) {
            known.circuits -= 1;
        }
    }

    /// The address of the neighbour on a channel.
    pub(crate) fn address(&self, channel: ChannelId) -> Option<IpAddr> {
        self.channels.get(&channel)?.address
    }

    /// Notes that a circuit waits for the next relay.
    pub(crate) fn extends(&mut self, now: Time, circuit: CircuitKey) {
        self.extending.insert((now, circuit));
    }

    /// Notes that a circuit, which waited since `since`, waits no longer.
    pub(crate) fn extended(&mut self, since: Time, circuit: CircuitKey) {
        self.extending.remove(&(since, circuit));
    }

    /// When the next extension times out or the next channel check is due.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        let extending = self.extending.first().map(|(since, _)| *since + self.limits.extending);
        let look = self.looks.first().map(|(due, _)| *due);
        [extending, look].into_iter().flatten().min()
    }

    /// A circuit with a timed-out extension.
    pub(crate) fn overdue(&self, now: Time) -> Option<CircuitKey> {
        let (since, circuit) = self.extending.first()?;
        (*since + self.limits.extending <= now).then_some(*circuit)
    }

    /// A channel with a check that is due. Call [`looked`](Self::looked) with the result.
    pub(crate) fn due_look(&self, now: Time) -> Option<ChannelId> {
        let (due, channel) = self.looks.first()?;
        (*due <= now).then_some(*channel)
    }

    /// Notes the result of a check. True if the channel was without circuits in the previous check, too.
    pub(crate) fn looked(&mut self, now: Time, id: ChannelId, is_bare: bool) -> bool {
        let next = now + self.limits.without_circuits / 2;
        let Some(channel) = self.channels.get_mut(&id) else { return false };
        self.looks.remove(&(channel.look, id));
        self.looks.insert((next, id));
        channel.look = next;
        std::mem::replace(&mut channel.was_bare, is_bare) && is_bare
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_count_unless_they_are_due_to_one_address() {
        let counts = AddressCounts::default();
        let limits = Limits { all_handshakes_per_second: 10, handshake_burst: 20, ..Limits::default() };
        let shake = |last: u8| counts.lock().shake(Time::ZERO, IpAddr::from([192, 0, 2, last]), &limits);
        let accepted = (0..20).filter(|last| shake(*last)).count() as u64;
        let Handshakes { asked, refused } = counts.handshakes();
        assert_eq!((asked, refused), (20, 20 - accepted));
        assert!((5..=10).contains(&accepted), "{accepted}");

        let alone = AddressCounts::default();
        let limits = Limits { all_handshakes_per_second: 1_000, handshake_burst: 20, ..limits };
        let stranger = IpAddr::from([192, 0, 2, 1]);
        let shaken = (0..100).filter(|_| alone.lock().shake(Time::ZERO, stranger, &limits)).count();
        assert_eq!((shaken, alone.handshakes()), (20, Handshakes { asked: 20, refused: 0 }));
    }
}
