//! The circuits by which clients and onion services find each other (rend-spec-v3).

use std::collections::BTreeMap;
use std::net::IpAddr;

use tidegate_control::shares::Shares;
use tidegate_control::units::Time;

use crate::crypto::onion_services::{AuthKey, COOKIE, IntroductionLimit, ServiceLimit};
use crate::defence::Quota;
use crate::ids::CircuitKey;

/// A rendezvous cookie.
pub(super) type Cookie = [u8; COOKIE];

/// The part of a circuit in an onion service's connection.
#[derive(Debug, Default)]
pub(super) enum Role {
    /// None.
    #[default]
    None,
    /// A service waits for introductions.
    Introduction(Box<Introduction>),
    /// A client waits for a service.
    Waiting(Cookie),
    /// Cells beyond this circuit's end go to that circuit's client.
    Joined(CircuitKey),
    /// Another shard of the relay has the circuit's end.
    Passed,
}

/// An introduction circuit.
#[derive(Debug)]
pub(super) struct Introduction {
    key: AuthKey,
    limit: ServiceLimit,
    /// Introductions that are left, once there is a limit.
    left: Option<Quota>,
}

/// The circuits by which clients and services find each other.
pub(super) struct Points {
    pub introductions: BTreeMap<AuthKey, CircuitKey>,
    pub waiting: BTreeMap<Cookie, CircuitKey>,
    /// The places of both, by the neighbour's address.
    pub places: Shares<IpAddr, IpAddr, CircuitKey>,
}

impl Points {
    /// With this maximum number of circuits.
    pub(crate) fn new(places: u32) -> Points {
        Points {
            introductions: BTreeMap::new(),
            waiting: BTreeMap::new(),
            places: Shares::new(places.max(1) as usize),
        }
    }

    /// Forgets a circuit with this role.
    pub(crate) fn forget(&mut self, key: CircuitKey, role: &Role) {
        self.places.release(&key);
        match role {
            Role::Introduction(introduction) => drop(self.introductions.remove(&introduction.key)),
            Role::Waiting(cookie) => drop(self.waiting.remove(cookie)),
            Role::None | Role::Joined(_) | Role::Passed => {}
        }
    }
}

impl Introduction {
    /// With the limit of introductions that the service has set.
    pub(crate) fn new(key: AuthKey, limit: ServiceLimit) -> Introduction {
        Introduction { key, limit, left: None }
    }

    /// Counts an introduction; false if it is beyond the limit. `otherwise` is the limit of services that state none.
    pub(crate) fn may_pass(&mut self, now: Time, otherwise: Option<IntroductionLimit>) -> bool {
        let limit = match self.limit {
            ServiceLimit::At(limit) => Some(limit),
            ServiceLimit::Unlimited => None,
            ServiceLimit::Unstated => otherwise,
        };
        let Some(IntroductionLimit { rate, burst }) = limit else { return true };
        let left = self.left.get_or_insert_with(|| Quota::full(now, burst));
        left.refill(now, rate, burst);
        left.take()
    }
}
