//! Links between neighbours.
//!
//! A link is a TLS connection that carries the handshake of [`tidegate_proto::crypto::link`] inside, since its
//! certificates do not identify their owners. If both sides announce QUIC in the handshake over TLS, channels move to
//! a QUIC connection, with the same handshake on its first stream.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use quinn::Incoming;
use rustls::server::Acceptor;
use rustls::{ClientConfig, ServerConfig};
use sha2::{Digest as _, Sha256};
use tidegate_control::units::Span;
use tidegate_proto::cell::RelayId;
use tidegate_proto::crypto::cert::{Certified, Fingerprint};
use tidegate_proto::crypto::link::{EXPORTER, Handshake, Peer, Start, Tls};
use tidegate_proto::crypto::wire::FIXED;
use tidegate_proto::crypto::{Router, SharedNames, padding};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor, TlsConnector, TlsStream, server};

use super::quic::{self, Neighbour, PATIENCE as QUICKLY, Quic, Way};
use crate::gate::Gate;
use crate::identity::{Identity, random};
use crate::link::{BufferedTcp, Carrier, buffered, read_cell, within};
use crate::overlay::{Dial, PeerLink};
use crate::{clock, sockets, tls};

/// Timeout of a whole TLS link handshake, as in tor.
pub(crate) const PATIENCE: Span = Span::from_secs(60);
/// Timeout of QUIC after a TLS link stands: this multiple of the TLS handshake time, and at least long enough for two
/// losses of one packet.
const TIMES_TLS: u64 = 4;
const LEAST_PATIENCE: Span = Span::from_millis(2500);

/// The certificates that a relay presents on new connections. Open connections keep theirs.
#[derive(Clone)]
pub(crate) struct Shown {
    keys: Arc<Certified>,
    server: Arc<ServerConfig>,
    quic: Option<Arc<quinn::ServerConfig>>,
}

/// Opens and accepts the links of a node.
pub struct Links {
    shown: RefCell<Option<Shown>>,
    client: Arc<ClientConfig>,
    names: SharedNames,
    addresses: RefCell<Vec<IpAddr>>,
    /// The relays that it may connect to.
    gate: Cell<Gate>,
    quic: Option<Quic>,
    /// It announces this project's extensions.
    extensions: bool,
    /// TLS configuration for FlashFlow's coordinators and measurers.
    measurement: Option<Arc<ServerConfig>>,
    /// QUIC connections that this node opened. The node's owner accepts the neighbour's streams on them.
    opened: (mpsc::UnboundedSender<(RelayId, Neighbour)>, RefCell<Opened>),
}

/// A connection that was accepted.
pub enum Accepted {
    /// A relay or a client.
    Neighbour(PeerLink),
    /// A coordinator or a measurer of FlashFlow, with the fingerprint that it proved and its first cell.
    Measurer(Box<server::TlsStream<BufferedTcp>>, Fingerprint, Box<[u8; FIXED]>),
}

/// See [`Links::take_opened`].
pub(crate) type Opened = Option<mpsc::UnboundedReceiver<(RelayId, Neighbour)>>;

/// The TLS or QUIC connection under a link handshake.
struct Binding<'a> {
    certificate: [u8; 32],
    carrier: &'a Carrier,
}

impl Tls for Binding<'_> {
    fn certificate(&self) -> [u8; 32] {
        self.certificate
    }

    fn export(&self, context: &[u8]) -> [u8; 32] {
        let mut secret = [0; 32];
        let exported = match self.carrier {
            Carrier::Tls(stream) => match &**stream {
                TlsStream::Client(stream) => {
                    stream.get_ref().1.export_keying_material(&mut secret, EXPORTER, Some(context)).is_ok()
                }
                TlsStream::Server(stream) => {
                    stream.get_ref().1.export_keying_material(&mut secret, EXPORTER, Some(context)).is_ok()
                }
            },
            Carrier::Quic(lane) => {
                lane.connection().export_keying_material(&mut secret, EXPORTER, context).is_ok()
            }
        };
        assert!(exported, "the TLS handshake is complete, and 32 bytes can be exported");
        secret
    }
}

impl Links {
    /// Links of a relay that others reach at `addresses`. `certified` are everyday keys for the TLS certificate of
    /// `identity`; `quic` lists the addresses for QUIC, possibly none.
    ///
    /// # Errors
    /// If TLS cannot be set up, or a UDP port is in use.
    pub fn relay(
        certified: Certified,
        names: SharedNames,
        addresses: Vec<IpAddr>,
        identity: &Identity,
        quic: &[SocketAddr],
    ) -> io::Result<Links> {
        let quic = (!quic.is_empty()).then(|| Quic::relay(identity, quic, names.clone())).transpose()?;
        let (tell, told) = mpsc::unbounded_channel();
        let links = Links {
            shown: RefCell::new(None),
            client: tls::any_server().map_err(io::Error::other)?,
            names,
            addresses: RefCell::new(addresses),
            gate: Cell::new(Gate::Public),
            quic,
            extensions: true,
            measurement: None,
            opened: (tell, RefCell::new(Some(told))),
        };
        links.show(certified, identity)?;
        Ok(links)
    }

    /// Presents other everyday keys and their TLS certificate on new connections.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub(crate) fn show(&self, certified: Certified, identity: &Identity) -> io::Result<()> {
        let server = tls::any_client(identity).map_err(io::Error::other)?;
        let quic = self.quic.is_some().then(|| quic::server(identity)).transpose()?;
        *self.shown.borrow_mut() =
            Some(Shown { keys: Arc::new(certified), server, quic: quic.map(Arc::new) });
        Ok(())
    }

    /// Links of another shard of a relay without QUIC, with the same keys.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub(crate) fn shard(shown: Shown, names: SharedNames, addresses: Vec<IpAddr>) -> io::Result<Links> {
        let links = Links { addresses: RefCell::new(addresses), ..Links::client(names, false)? };
        links.present(shown);
        Ok(links.without_extensions())
    }

    /// The keys that it presents, for another shard.
    pub(crate) fn shown(&self) -> Option<Shown> {
        self.shown.borrow().clone()
    }

    /// Presents the keys of another shard on new connections.
    pub(crate) fn present(&self, shown: Shown) {
        *self.shown.borrow_mut() = Some(shown);
    }

    /// Announces none of this project's extensions: to its neighbours, the node is like one of Tor.
    #[must_use]
    pub(crate) fn without_extensions(self) -> Links {
        Links { extensions: false, ..self }
    }

    /// Links of a client, which does not authenticate. `quic`: whether it supports QUIC.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub fn client(names: SharedNames, quic: bool) -> io::Result<Links> {
        let client = tls::any_server().map_err(io::Error::other)?;
        let quic = quic.then(|| Quic::client(names.clone())).transpose()?;
        Ok(Links {
            shown: RefCell::new(None),
            client,
            names,
            addresses: RefCell::default(),
            gate: Cell::new(Gate::Public),
            quic,
            extensions: true,
            measurement: None,
            opened: (mpsc::unbounded_channel().0, RefCell::new(None)),
        })
    }

    /// Sets which addresses it may connect to: hosts on the Internet by default.
    #[must_use]
    pub fn with_gate(self, gate: Gate) -> Links {
        Links { gate: Cell::new(gate), ..self }
    }

    /// Changes the node's addresses and which addresses it may connect to. Open connections stay.
    pub(crate) fn reload(&self, addresses: Vec<IpAddr>, gate: Gate) {
        self.addresses.replace(addresses);
        self.gate.set(gate);
    }

    /// Accepts FlashFlow's coordinators and measurers, too, with this TLS configuration.
    #[must_use]
    pub(crate) fn with_measurement(self, measurement: Option<Arc<ServerConfig>>) -> Links {
        Links { measurement, ..self }
    }

    /// The node's QUIC endpoint.
    pub fn quic(&self) -> Option<&Quic> {
        self.quic.as_ref()
    }

    /// Receives QUIC connections that this node opens from now on. Only the first call returns it.
    pub fn take_opened(&self) -> Opened {
        self.opened.1.borrow_mut().take()
    }

    /// The everyday keys that a relay presents.
    pub(crate) fn certified(&self) -> Option<Arc<Certified>> {
        self.shown.borrow().as_ref().map(|shown| shown.keys.clone())
    }

    fn start(&self, keys: Option<Arc<Certified>>, address: SocketAddr) -> Start {
        let ours = self.addresses.borrow().clone();
        let quic = self.quic.is_some();
        Start {
            keys,
            now: clock::unix(),
            random: random(),
            address: address.ip(),
            ours,
            quic,
            extensions: self.extensions,
        }
    }

    /// Connects to `router`, at the address that answers first, and authenticates it.
    ///
    /// # Errors
    /// If the connection or the handshake fails.
    pub async fn connect(
        &self,
        router: &Router,
        also: Option<SocketAddr>,
    ) -> io::Result<(Carrier, Peer, Vec<u8>)> {
        let tcp = sockets::connect(self.gate.get(), router.address, also).await?;
        let router = Router { address: tcp.peer_addr()?, ..*router };
        let tcp = buffered(tcp)?;
        let stream = TlsConnector::from(self.client.clone()).connect(tls::name(), tcp).await?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let certificate = certificate.map(|certificate| Sha256::digest(certificate).into());
        let certificate = certificate.ok_or(io::ErrorKind::InvalidData)?;
        self.meet(Carrier::Tls(Box::new(stream.into())), certificate, &router).await
    }

    /// Connects to `router` over QUIC, and authenticates it.
    async fn connect_quic(&self, quic: &Quic, router: &Router) -> io::Result<(Carrier, Vec<u8>, Neighbour)> {
        self.gate.get().check(router.address)?;
        let neighbour = quic.connect(router.address).await?;
        let certificate = neighbour.certificate().ok_or(io::ErrorKind::InvalidData)?;
        let lane = Carrier::Quic(Box::new(neighbour.open().await?));
        let (lane, _, rest) = self.meet(lane, certificate, router).await?;
        Ok((lane, rest, neighbour))
    }

    /// Runs the link handshake as the initiator.
    async fn meet(
        &self,
        carrier: Carrier,
        certificate: [u8; 32],
        router: &Router,
    ) -> io::Result<(Carrier, Peer, Vec<u8>)> {
        let handshake =
            Handshake::initiator(self.start(self.certified(), router.address), Some(router.fingerprint));
        let (carrier, peer, rest) = shake(carrier, handshake, certificate).await?;
        let proved = peer.proved.as_ref().map(|proved| proved.ed25519);
        if router.ed25519.is_some() && router.ed25519 != proved {
            return Err(io::Error::other("the relay's Ed25519 identity differs from the directory's"));
        }
        Ok((carrier, peer, rest))
    }

    /// Accepts a TCP connection.
    ///
    /// # Errors
    /// If the handshake fails.
    pub async fn accept(&self, tcp: TcpStream) -> io::Result<Accepted> {
        let address = tcp.peer_addr()?;
        // Copy them: a renewal may replace them during the handshake.
        let Shown { keys, server, .. } = self.shown.borrow().clone().ok_or(io::ErrorKind::Unsupported)?;
        within(PATIENCE, async {
            let stream = match &self.measurement {
                None => TlsAcceptor::from(server).accept(buffered(tcp)?).await?,
                Some(measurement) => {
                    let hello = LazyConfigAcceptor::new(Acceptor::default(), buffered(tcp)?).await?;
                    // Tor's links do not offer ALPN.
                    let measures = (hello.client_hello().alpn())
                        .is_some_and(|mut offered| offered.any(|protocol| protocol == tls::PROTOCOL));
                    if measures {
                        let mut stream = hello.into_stream(measurement.clone()).await?;
                        let peer = tls::peer(stream.get_ref().1).ok_or(io::ErrorKind::PermissionDenied)?;
                        let first = Box::new(read_cell(&mut stream).await?);
                        return Ok(Accepted::Measurer(Box::new(stream), peer, first));
                    }
                    hello.into_stream(server).await?
                }
            };
            let carrier = Carrier::Tls(Box::new(stream.into()));
            Ok(Accepted::Neighbour(self.respond(carrier, address, keys).await?))
        })
        .await
    }

    /// Accepts a QUIC connection. Its first stream becomes its first channel.
    ///
    /// # Errors
    /// If the handshake fails.
    pub async fn accept_quic(&self, incoming: Incoming) -> io::Result<(PeerLink, Neighbour)> {
        let shown = self.shown.borrow().clone();
        let (quic, Shown { keys, quic: config, .. }) =
            self.quic.as_ref().zip(shown).ok_or(io::ErrorKind::Unsupported)?;
        let config = config.ok_or(io::ErrorKind::Unsupported)?;
        within(QUICKLY, async {
            let neighbour = quic.answer(incoming, config).await?;
            let lane = Carrier::Quic(Box::new(neighbour.accept().await?));
            let peer_link = self.respond(lane, neighbour.address(), keys).await?;
            if let Some(relay) = peer_link.peer {
                quic.keep(relay, &neighbour);
            }
            Ok((peer_link, neighbour))
        })
        .await
    }

    async fn respond(
        &self,
        carrier: Carrier,
        address: SocketAddr,
        keys: Arc<Certified>,
    ) -> io::Result<PeerLink> {
        let certificate = keys.tls_digest;
        let handshake = Handshake::responder(self.start(Some(keys), address));
        let (carrier, peer, rest) = shake(carrier, handshake, certificate).await?;
        let pads = pads(&peer);
        let relay = peer.proved.map(|proved| {
            let ed25519 = Some(proved.ed25519);
            self.names.borrow_mut().met(Router { address, fingerprint: proved.fingerprint, ed25519 })
        });
        let shared = self.quic.is_some() && !peer.quic;
        Ok(PeerLink { carrier, rest, peer: relay, ours: peer.ours, shared, pads })
    }
}

/// Whether a neighbour understands padding.
fn pads(peer: &Peer) -> bool {
    peer.version >= padding::SINCE_VERSION
}

fn over_quic(carrier: Carrier, rest: Vec<u8>, relay: RelayId) -> PeerLink {
    PeerLink { carrier, rest, peer: Some(relay), ours: true, shared: false, pads: false }
}

async fn shake(
    mut stream: Carrier,
    mut handshake: Handshake,
    certificate: [u8; 32],
) -> io::Result<(Carrier, Peer, Vec<u8>)> {
    let mut buffer = [0; 4096];
    loop {
        stream.write_all(&handshake.output()).await?;
        stream.flush().await?;
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let binding = Binding { certificate, carrier: &stream };
        let peer = handshake.receive(&buffer[..count], &binding).map_err(io::Error::other)?;
        if let Some(peer) = peer {
            stream.write_all(&handshake.output()).await?;
            stream.flush().await?;
            return Ok((stream, peer, handshake.rest().to_vec()));
        }
    }
}

impl Dial for std::rc::Rc<Links> {
    async fn dial(&self, relay: RelayId) -> io::Result<PeerLink> {
        let (router, also) = {
            let names = self.names.borrow();
            (names.router(relay).ok_or(io::ErrorKind::NotFound)?, names.other_address(relay))
        };
        let mut shared = self.quic.is_some();
        let turn = match &self.quic {
            None => None,
            Some(quic) => match quic.way(relay).await {
                Way::QuicStream(lane) => {
                    return Ok(over_quic(Carrier::Quic(Box::new(lane)), Vec::new(), relay));
                }
                Way::Ask(turn) => Some((quic, turn)),
                Way::Plain => None,
                Way::Full => {
                    shared = false;
                    None
                }
            },
        };
        let begun = clock::now();
        let (carrier, peer, rest) = self.connect(&router, also).await?;
        let address = carrier.tcp().map_or(Ok(router.address), TcpStream::peer_addr)?;
        self.names.borrow_mut().reached(relay, address);
        // QUIC must use the address that TLS reached: UDP may be blocked on the way to the other.
        let router = Router { address, ..router };
        if let Some((quic, _turn)) = turn {
            let patience = (clock::now().since(begun) * TIMES_TLS).max(LEAST_PATIENCE);
            if peer.quic
                && let Ok((lane, rest, neighbour)) = within(patience, self.connect_quic(quic, &router)).await
            {
                quic.keep(relay, &neighbour);
                // Fails on clients, which do not accept streams.
                let _ = self.opened.0.send((relay, neighbour));
                return Ok(over_quic(lane, rest, relay));
            }
            quic.is_plain(relay);
        }
        Ok(PeerLink { carrier, rest, peer: Some(relay), ours: peer.ours, shared, pads: pads(&peer) })
    }

    fn asked(&self, relay: RelayId) {
        self.names.borrow_mut().attempted(relay);
    }

    fn tried(&self, relay: RelayId) {
        self.names.borrow_mut().attempt_ended(relay);
    }

    fn opened(&self, relay: RelayId) {
        self.names.borrow_mut().connected(relay);
    }

    fn ended(&self, relay: RelayId) {
        self.names.borrow_mut().disconnected(relay);
    }
}
