//! Relays by address and identity, and targets of streams, as relay messages name them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;

use crate::cell::RelayId;

/// A relay in the form of link specifiers (tor-spec, "EXTEND and EXTENDED cells").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Router {
    /// The address where it listens.
    pub address: SocketAddr,
    /// SHA-1 of its RSA identity.
    pub fingerprint: [u8; 20],
    /// Its Ed25519 identity, if the handshake must check that too.
    pub ed25519: Option<[u8; 32]>,
}

/// How an EXTEND message names the next relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// By number in a directory that both ends have, as this project's measurements do.
    Number(RelayId),
    /// By address and identity, as Tor does.
    Router(Router),
}

/// The target of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A TCP connection.
    Host {
        /// A name, or an address without brackets.
        host: String,
        /// The TCP port.
        port: u16,
        /// Address family flags (tor-spec, "Opening streams and transferring data").
        flags: u32,
    },
    /// The relay's own directory.
    Directory,
    /// The addresses of a host name, or the name of an address (RESOLVE).
    Resolve(String),
}

impl Target {
    /// IPv6 is acceptable.
    pub const IPV6_OKAY: u32 = 1;
    /// IPv4 is not acceptable.
    pub const IPV4_NOT_OKAY: u32 = 2;
    /// IPv6 is preferred.
    pub const IPV6_PREFERRED: u32 = 4;

    /// Parses a host name or address and a port.
    pub fn parse(text: &str, flags: u32) -> Option<Target> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok()?;
        let host = host.strip_prefix('[').map_or(Some(host), |host| host.strip_suffix(']'))?;
        (!host.is_empty()).then(|| Target::Host { host: host.to_owned(), port, flags })
    }
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Target {
        Target::Host { host: address.ip().to_string(), port: address.port(), flags: Target::IPV6_OKAY }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Host { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Target::Host { host, port, .. } => write!(f, "{host}:{port}"),
            Target::Directory => f.write_str("directory"),
            Target::Resolve(host) => write!(f, "resolve {host}"),
        }
    }
}

/// The relays that a node knows, by number.
///
/// Peers can name any number of relays, so an entry lasts only as long as a connection, unless it comes from the
/// node's own directory.
#[derive(Debug, Default)]
pub struct Names {
    routers: BTreeMap<RelayId, Entry>,
    numbers: BTreeMap<Router, RelayId>,
    by_fingerprint: BTreeMap<[u8; 20], Vec<RelayId>>,
    last: u32,
}

#[derive(Debug)]
struct Entry {
    router: Router,
    /// The address that connections go to.
    dial: SocketAddr,
    /// Another address, by IPv6.
    also: Option<SocketAddr>,
    /// The relay connected to us, from a port where it does not listen. The last circuit that names it decides its
    /// address, until a connection to that address has proved its identity.
    came: bool,
    kept: bool,
    connections: u32,
    /// Attempts to connect that are under way.
    attempts: u32,
}

/// A node's names, shared with its driver.
pub type SharedNames = Rc<RefCell<Names>>;

impl Names {
    /// The number of a relay of our directory. The entry is permanent.
    pub fn keep(&mut self, router: Router) -> RelayId {
        let id = self.number(router);
        self.routers.get_mut(&id).expect("it has a number").kept = true;
        id
    }

    /// Sets or removes the second address of a relay of our directory.
    pub fn also(&mut self, id: RelayId, at: Option<SocketAddr>) {
        if let Some(entry) = self.routers.get_mut(&id) {
            entry.also = at;
        }
    }

    /// The second address of a relay.
    pub fn other_address(&self, id: RelayId) -> Option<SocketAddr> {
        self.routers.get(&id)?.also
    }

    /// The number of a relay that a circuit names. A connected relay keeps its number under any address.
    pub(crate) fn find(&mut self, router: Router) -> RelayId {
        let Some(id) = self.connected_as(&router) else { return self.number(router) };
        if let Some(entry) = self.routers.get_mut(&id).filter(|entry| entry.came) {
            entry.dial = router.address;
        }
        id
    }

    /// The number of a relay that connected to us from an address.
    pub fn met(&mut self, router: Router) -> RelayId {
        let connected = self.connected_as(&router);
        connected.unwrap_or_else(|| {
            let id = self.number(router);
            let entry = self.routers.get_mut(&id).expect("it has a number");
            entry.came = !entry.kept;
            id
        })
    }

    /// The connected relay with these identities. A circuit need not name the Ed25519 identity, but must not name a wrong one.
    fn connected_as(&self, router: &Router) -> Option<RelayId> {
        let known = self.by_fingerprint.get(&router.fingerprint).into_iter().flatten();
        let is_same = |entry: &Entry| router.ed25519.is_none() || router.ed25519 == entry.router.ed25519;
        known.copied().find(|id| {
            let entry = &self.routers[id];
            entry.connections > 0 && is_same(entry)
        })
    }

    /// The relay has proved its identity at the address that we connected to.
    pub fn reached(&mut self, id: RelayId, at: SocketAddr) {
        if let Some(entry) = self.routers.get_mut(&id).filter(|entry| entry.dial == at) {
            entry.came = false;
        }
    }

    fn number(&mut self, router: Router) -> RelayId {
        if let Some(id) = self.numbers.get(&router) {
            return *id;
        }
        self.last += 1;
        let id = RelayId(self.last);
        let dial = router.address;
        let (came, kept, connections, attempts) = (false, false, 0, 0);
        let entry = Entry { router, dial, also: None, came, kept, connections, attempts };
        self.routers.insert(id, entry);
        self.numbers.insert(router, id);
        self.by_fingerprint.entry(router.fingerprint).or_default().push(id);
        id
    }

    /// The relay with a number.
    pub fn router(&self, id: RelayId) -> Option<Router> {
        self.routers.get(&id).map(|entry| Router { address: entry.dial, ..entry.router })
    }

    /// Whether a connection to the relay is open.
    pub fn is_connected(&self, id: RelayId) -> bool {
        self.routers.get(&id).is_some_and(|entry| entry.connections > 0)
    }

    /// Notes that a connection to the relay is open.
    pub fn connected(&mut self, id: RelayId) {
        if let Some(entry) = self.routers.get_mut(&id) {
            entry.connections += 1;
        }
    }

    /// Notes that a connection to the relay has ended.
    pub fn disconnected(&mut self, id: RelayId) {
        if let Some(entry) = self.routers.get_mut(&id) {
            entry.connections -= 1;
        }
        self.forget_unused(id);
    }

    /// Notes that an attempt to connect to the relay begins: its entry stays meanwhile.
    pub fn attempted(&mut self, id: RelayId) {
        if let Some(entry) = self.routers.get_mut(&id) {
            entry.attempts += 1;
        }
    }

    /// Notes that an attempt is over. If it led to a connection, note that first.
    pub fn attempt_ended(&mut self, id: RelayId) {
        if let Some(entry) = self.routers.get_mut(&id) {
            entry.attempts -= 1;
        }
        self.forget_unused(id);
    }

    fn forget_unused(&mut self, id: RelayId) {
        let Some(entry) = self.routers.get(&id) else { return };
        if entry.connections + entry.attempts > 0 || entry.kept {
            return;
        }
        let router = entry.router;
        self.routers.remove(&id);
        self.numbers.remove(&router);
        if let Some(ids) = self.by_fingerprint.get_mut(&router.fingerprint) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_fingerprint.remove(&router.fingerprint);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn router(n: u8, port: u16) -> Router {
        Router { address: ([127, 0, 0, 1], port).into(), fingerprint: [n; 20], ed25519: None }
    }

    #[test]
    fn a_forged_address_does_not_affect_other_circuits() {
        let mut names = Names::default();
        let lie = names.find(router(1, 666));
        let truth = names.find(router(1, 9001));
        assert_ne!(lie, truth);
        names.connected(truth);
        assert_eq!(names.find(router(1, 666)), truth, "a connected relay has proved its identity");
        names.attempted(lie);
        names.attempt_ended(lie);
        assert_eq!(names.router(lie), None);
        names.disconnected(truth);
        assert_eq!((names.router(truth), names.numbers.len(), names.by_fingerprint.len()), (None, 0, 0));
        let kept = names.keep(router(2, 1));
        names.attempted(kept);
        names.attempt_ended(kept);
        assert_eq!(names.router(kept), Some(router(2, 1)));
    }

    #[test]
    fn who_connected_to_us_is_reached_where_circuits_say_it_listens() {
        let mut names = Names::default();
        let id = names.met(router(1, 50_000));
        names.connected(id);
        assert_eq!(names.find(router(1, 666)), id, "it is connected");
        assert_eq!(names.find(router(1, 9001)), id);
        assert_eq!(names.router(id), Some(router(1, 9001)), "the identity at that address is not proved yet");
        names.reached(id, router(1, 9001).address);
        assert_eq!(names.find(router(1, 666)), id);
        assert_eq!(names.router(id), Some(router(1, 9001)), "the identity there is proved");
        names.disconnected(id);
        assert_eq!((names.router(id), names.numbers.len(), names.by_fingerprint.len()), (None, 0, 0));
    }

    #[test]
    fn a_wrong_ed25519_identity_names_another_relay() {
        let mut names = Names::default();
        let named = |ed25519| Router { ed25519, ..router(1, 9001) };
        let id = names.met(named(Some([7; 32])));
        names.connected(id);
        assert_eq!(names.find(named(Some([7; 32]))), id);
        assert_eq!(names.find(named(None)), id);
        assert_ne!(names.find(named(Some([8; 32]))), id);
    }

    #[test]
    fn a_relay_keeps_its_number_while_an_attempt_is_under_way() {
        let mut names = Names::default();
        let id = names.find(router(1, 9001));
        names.attempted(id);
        assert_eq!(names.find(router(1, 9001)), id, "another circuit");
        names.attempted(id);
        names.attempt_ended(id);
        assert_eq!(names.router(id), Some(router(1, 9001)), "the first circuit was given up");
        names.connected(id);
        names.attempt_ended(id);
        names.disconnected(id);
        assert_eq!(names.router(id), None);
    }

    #[test]
    fn targets_are_read_strictly() {
        let host = |host: &str, port| Some(Target::Host { host: host.to_owned(), port, flags: 0 });
        assert_eq!(Target::parse("a.example:80", 0), host("a.example", 80));
        assert_eq!(Target::parse("[::1]:443", 0), host("::1", 443));
        for bad in ["", "a", ":80", "a:", "a:99999", "[::1:80", "a:-1"] {
            assert_eq!(Target::parse(bad, 0), None, "{bad}");
        }
    }
}
