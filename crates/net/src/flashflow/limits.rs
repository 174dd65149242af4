//! Limits of what peers may cost a relay.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;

use tidegate_control::units::Span;

use crate::overlay::Timeouts;

/// Limits of what peers may cost a relay.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Simultaneous connections.
    pub connections: usize,
    /// Connections without a first cell; when another one comes, the oldest is closed.
    pub unauthenticated: usize,
    /// Overlay connections from one address, not counting configured neighbours (tor:
    /// DoSConnectionMaxConcurrentCount).
    pub per_address: usize,
    /// Circuits on an overlay connection.
    pub circuits: u32,
    /// Time for the handshake, and again for the first cell.
    pub handshake: Span,
    /// Timeouts of an idle overlay connection and of unread output.
    pub timeouts: Timeouts,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 15_000,
            unauthenticated: 2_000,
            per_address: 100,
            circuits: 4_096,
            handshake: Span::from_secs(10),
            // As long as a relay's connection may be without circuits: circuits of measurements are never silent.
            timeouts: Timeouts { idle: Some(Span::from_secs(180)), ..Timeouts::default() },
        }
    }
}

/// Counts connections per address, up to a limit.
#[derive(Debug)]
pub(crate) struct Addresses {
    most: usize,
    counts: RefCell<BTreeMap<IpAddr, usize>>,
}

impl Addresses {
    /// With a limit per address.
    pub(crate) fn new(most: usize) -> Addresses {
        Addresses { most, counts: RefCell::default() }
    }

    /// Counts a connection until the place is dropped; `None` if the address is at its limit.
    pub(crate) fn enter(&self, address: IpAddr) -> Option<AddressPlace<'_>> {
        let mut counts = self.counts.borrow_mut();
        let count = counts.get(&address).copied().unwrap_or(0);
        if count >= self.most {
            return None;
        }
        counts.insert(address, count + 1);
        Some(AddressPlace { addresses: self, address })
    }
}

/// The place of one connection.
#[derive(Debug)]
pub(crate) struct AddressPlace<'a> {
    addresses: &'a Addresses,
    address: IpAddr,
}

impl Drop for AddressPlace<'_> {
    fn drop(&mut self) {
        let mut counts = self.addresses.counts.borrow_mut();
        match counts.get_mut(&self.address) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(counts.remove(&self.address)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_limited_per_address_until_the_last_closes() {
        let addresses = Addresses::new(2);
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
        let first = addresses.enter(one).unwrap();
        let second = addresses.enter(one).unwrap();
        assert!(addresses.enter(one).is_none() && addresses.enter(other).is_some());
        drop(first);
        assert!(addresses.enter(one).is_some());
        drop(second);
        assert!(addresses.counts.borrow().is_empty());
    }
}
