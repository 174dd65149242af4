//! Who makes the relay do how much, by the addresses that connections come from, and what has waited too long.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use tidegate_control::units::{Span, Time};

use crate::bucket::{BucketPlan, TokenBucket};
use crate::ids::{ChannelId, CircuitKey};
use crate::links::Limits;

/// How often handshakes are allowed anew.
const REFILL: Span = Span::from_millis(100);
/// Channels without circuits that are looked for before a newcomer is turned away.
const CANDIDATES: usize = 64;
/// Addresses that are remembered without a connection before the list is swept.
const STALE: usize = 1024;

/// Counts by address, and timers.
pub(super) struct Watch {
    pub limits: Limits,
    addresses: BTreeMap<IpAddr, Address>,
    sweep_at: usize,
    channels: BTreeMap<ChannelId, Channel>,
    /// When channels are looked at for circuits.
    looks: BTreeSet<(Time, ChannelId)>,
    /// Since when circuits wait for the next relay.
    extending: BTreeSet<(Time, CircuitKey)>,
}

struct Address {
    channels: u32,
    circuits: u32,
    handshakes: TokenBucket,
}

struct Channel {
    address: IpAddr,
    look: Time,
    /// It had no circuit when it was looked at last.
    was_bare: bool,
}

/// One customer's network: an IPv6 host has as many addresses as it likes.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

impl Watch {
    pub fn new(limits: Limits) -> Watch {
        Watch {
            limits,
            addresses: BTreeMap::new(),
            sweep_at: STALE,
            channels: BTreeMap::new(),
            looks: BTreeSet::new(),
            extending: BTreeSet::new(),
        }
    }

    /// Whether another connection from there is too many.
    pub fn is_crowded(&self, address: IpAddr) -> bool {
        let known = self.addresses.get(&network(address));
        known.is_some_and(|known| known.channels >= self.limits.connections_per_address)
    }

    /// Whether another connection from anywhere is too many.
    pub fn is_full(&self) -> bool {
        self.channels.len() >= self.limits.connections as usize
    }

    /// A neighbour connected from that address.
    pub fn accepted(&mut self, now: Time, channel: ChannelId, address: IpAddr) {
        let address = network(address);
        if self.addresses.len() >= self.sweep_at {
            let burst = u64::from(self.limits.handshake_burst);
            // One that is forgotten earlier would have its whole burst again.
            self.addresses.retain(|_, known| {
                known.channels + known.circuits > 0 || known.handshakes.available(now) < burst
            });
            self.sweep_at = 2 * self.addresses.len() + STALE;
        }
        let limits = &self.limits;
        let known = self.addresses.entry(address).or_insert_with(|| Address {
            channels: 0,
            circuits: 0,
            handshakes: TokenBucket::new(BucketPlan {
                rate_bytes_per_s: limits.handshakes_per_second.into(),
                burst_bytes: limits.handshake_burst.into(),
                refill_every: REFILL,
                drop_fractions: false,
            }),
        });
        known.channels += 1;
        let look = now + self.limits.without_circuits / 2;
        self.looks.insert((look, channel));
        self.channels.insert(channel, Channel { address, look, was_bare: false });
    }

    /// A channel is gone.
    pub fn closed(&mut self, id: ChannelId) {
        let Some(channel) = self.channels.remove(&id) else { return };
        self.looks.remove(&(channel.look, id));
        if let Some(known) = self.addresses.get_mut(&channel.address) {
            known.channels -= 1;
        }
    }

    /// Whether a channel may have another handshake now.
    pub fn may_shake(&mut self, now: Time, channel: ChannelId) -> bool {
        let Some(known) = self.address(channel) else { return true };
        let may = known.handshakes.available(now) > 0;
        if may {
            known.handshakes.take(1);
        }
        may
    }

    /// A channel begins a circuit, if it may: whose it is from now on.
    pub fn begin(&mut self, now: Time, channel: ChannelId) -> Result<Option<IpAddr>, ()> {
        let most = self.limits.circuits_per_address;
        let Some(known) = self.address(channel) else { return Ok(None) };
        if known.circuits >= most || !self.may_shake(now, channel) {
            return Err(());
        }
        let address = self.channels[&channel].address;
        self.addresses.get_mut(&address).expect("it has a channel").circuits += 1;
        Ok(Some(address))
    }

    /// A circuit of that address has ended.
    pub fn ended(&mut self, address: IpAddr) {
        if let Some(known) = self.addresses.get_mut(&address) {
            known.circuits -= 1;
        }
    }

    fn address(&mut self, channel: ChannelId) -> Option<&mut Address> {
        self.addresses.get_mut(&self.channels.get(&channel)?.address)
    }

    /// A circuit waits for the next relay from now on.
    pub fn extends(&mut self, now: Time, circuit: CircuitKey) {
        self.extending.insert((now, circuit));
    }

    /// A circuit that has waited since then waits no longer.
    pub fn extended(&mut self, since: Time, circuit: CircuitKey) {
        self.extending.remove(&(since, circuit));
    }

    /// When something has waited too long, or a channel is to be looked at.
    pub fn next_timeout(&self) -> Option<Time> {
        let extending = self.extending.first().map(|(since, _)| *since + self.limits.extending);
        let look = self.looks.first().map(|(due, _)| *due);
        [extending, look].into_iter().flatten().min()
    }

    /// A circuit that has waited for the next relay for too long.
    pub fn overdue(&self, now: Time) -> Option<CircuitKey> {
        let (since, circuit) = self.extending.first()?;
        (*since + self.limits.extending <= now).then_some(*circuit)
    }

    /// A channel that is due to be looked at; then say [`looked`](Self::looked).
    pub fn due_look(&self, now: Time) -> Option<ChannelId> {
        let (due, channel) = self.looks.first()?;
        (*due <= now).then_some(*channel)
    }

    /// What was seen: true if the channel was bare before, too.
    pub fn looked(&mut self, now: Time, id: ChannelId, is_bare: bool) -> bool {
        let next = now + self.limits.without_circuits / 2;
        let Some(channel) = self.channels.get_mut(&id) else { return false };
        self.looks.remove(&(channel.look, id));
        self.looks.insert((next, id));
        channel.look = next;
        std::mem::replace(&mut channel.was_bare, is_bare) && is_bare
    }

    /// Channels that may have been without circuits for longest, the first before others.
    pub fn candidates(&self) -> impl Iterator<Item = ChannelId> {
        self.looks.iter().take(CANDIDATES).map(|(_, channel)| *channel)
    }
}
