//! A relay on sockets: answers measurement circuits and forwards at most at its rate.
//!
//! All work is on one thread, as in tor. An unauthenticated peer costs one TLS handshake of limited duration
//! and one of a limited number of places; a new peer takes the place of the oldest. Only peers of a running
//! measurement get a buffer.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use tidegate_control::shares::network;
use tidegate_control::turns::Sharing;
use tidegate_control::units::Rate;
use tidegate_proto::cell::RelayId;
use tidegate_proto::crypto::{Encrypted, wire};
use tidegate_proto::flashflow::Fingerprint;
use tidegate_proto::flashflow::relay::Config;
use tidegate_proto::links;
use tidegate_proto::node::{Node as _, Output as Asked};
use tidegate_proto::relay::Relay;
use tokio::net::{TcpListener, TcpStream};

use super::limits::Addresses;
pub use super::limits::Limits;
use super::measured::{Forwarded, Measured};
use crate::admission::{Admission, next_connection};
use crate::identity::{Contact, Identity, random};
use crate::link;
use crate::overlay::{Connection, Overlay, RateLimit};

/// A running relay. Clones are handles to the same relay.
#[derive(Clone)]
pub struct MeasuredRelay {
    measured: Measured,
    shared: Rc<Shared>,
    /// Ordinary circuits.
    overlay: Overlay<Relay<Encrypted>, Background>,
}

/// Paces ordinary circuits and counts their bytes for the measurement.
struct Background(Measured);

impl RateLimit for Background {
    async fn leave(&self, connection: Connection, bytes: u64) {
        let group = connection.address.map(|address| Sharing { group: network(address).0, turns: 1 });
        self.0.leave(connection.channel, group, bytes).await;
    }

    fn received(&self, bytes: u64) {
        self.0.received(bytes);
    }
}

struct Shared {
    limits: Limits,
    /// Places of all connections, and of those without a first cell.
    places: Admission,
    admission: Admission,
    addresses: Addresses,
    /// Certificates of the relays to which circuits are extended.
    neighbours: BTreeSet<Fingerprint>,
    connections: Cell<usize>,
}

impl MeasuredRelay {
    /// A relay that forwards at most at `rate` and can be measured as `config` says.
    ///
    /// # Errors
    /// If the identity's key does not fit its certificate.
    pub fn new(
        identity: Arc<Identity>,
        rate: Rate,
        config: Config,
        limits: Limits,
        neighbours: BTreeMap<RelayId, Contact>,
    ) -> Result<MeasuredRelay, rustls::Error> {
        let measured = Measured::new(&identity, rate, config)?;
        let shared = Rc::new(Shared {
            limits,
            places: Admission::new(limits.connections),
            admission: Admission::new(limits.unauthenticated),
            addresses: Addresses::new(limits.per_address),
            neighbours: neighbours.values().map(|contact| contact.fingerprint).collect(),
            connections: Cell::new(0),
        });
        let onion = Encrypted::new(Some(identity.relay()), BTreeMap::new(), random());
        // This relay only forwards: it refuses streams that would leave the overlay here.
        let owner = Box::new(|node: &mut Relay<Encrypted>, now, asked| {
            if let Asked::Connect(stream, _) = asked {
                node.stream_ended(now, stream);
            }
        });
        let config = links::Config { circuits_per_channel: limits.circuits, ..links::Config::default() };
        let node = Relay::new(onion, config);
        let overlay = Overlay::new(node, Background(measured.clone()), Some(identity), neighbours, owner);
        overlay.set_timeouts(limits.timeouts);
        Ok(MeasuredRelay { measured, shared, overlay })
    }

    /// Makes the relay decrypt at `rate` and lie about it, for demonstrations.
    ///
    /// See [`tidegate_proto::flashflow::Hold`].
    pub fn hold_back(&self, rate: Rate) {
        self.measured.hold_back(rate);
    }

    /// Bytes forwarded since the start.
    pub fn forwarded(&self) -> Forwarded {
        self.measured.forwarded()
    }

    /// Whether a measurement is agreed or running.
    pub fn is_busy(&self) -> bool {
        self.measured.is_busy()
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.shared.connections.get()
    }

    /// Serves until dropped. Must run inside a [`tokio::task::LocalSet`].
    pub async fn serve(self, listener: TcpListener) {
        tokio::select! {
            () = self.accept(listener) => {}
            () = self.measured.timers() => {}
        }
    }

    async fn accept(&self, listener: TcpListener) {
        loop {
            let (tcp, from) = next_connection(&listener).await;
            let (relay, from) = (self.clone(), from.ip());
            tokio::task::spawn_local(async move {
                let _counted = Counted::new(&relay.shared.connections);
                // Errors of one connection are not reported: a hostile peer could fill the log.
                if relay.measured.expects(from) {
                    return relay.run(tcp, from).await.unwrap_or_default();
                }
                // Of the network with the most connections, the oldest makes room.
                let ran = relay.shared.places.run(from, relay.run(tcp, from)).await;
                ran.unwrap_or(Ok(())).unwrap_or_default();
            });
        }
    }

    async fn run(&self, tcp: TcpStream, from: IpAddr) -> io::Result<()> {
        let shared = &self.shared;
        let limit = shared.limits.handshake;
        let handshake = async {
            let (mut stream, peer) = link::accept(tcp, self.measured.tls(), limit).await?;
            let first = link::within(limit, link::read_cell(&mut stream)).await?;
            io::Result::Ok((stream, peer, first))
        };
        let Some(admitted) = shared.admission.run(from, handshake).await else { return Ok(()) };
        let (stream, peer, first) = admitted?;
        // The first cell decides: an overlay peer, a coordinator or a measurer.
        if wire::circuit_command(first[4], &first[5..]).is_some() {
            let neighbour = peer.is_some_and(|peer| shared.neighbours.contains(&peer));
            let counted = shared.addresses.enter(from);
            if neighbour || counted.is_some() {
                self.overlay.accepted(stream, first).await;
            }
            return Ok(());
        }
        let Some(peer) = peer else { return Ok(()) };
        self.measured.serve(stream, peer, first).await
    }
}

/// Counts a connection while it lives.
struct Counted<'a>(&'a Cell<usize>);

impl<'a> Counted<'a> {
    fn new(count: &'a Cell<usize>) -> Counted<'a> {
        count.set(count.get() + 1);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
