//! QUIC between neighbours that both support it: one connection per pair, on which both open streams as channels. The
//! link handshake on the first stream authenticates both ends, as on a TLS connection.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, Incoming, ServerConfig, TokioRuntime,
    TransportConfig, VarInt,
};
use rustls::pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};
use tidegate_control::shares::{Shares, network};
use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::RelayId;
use tidegate_proto::crypto::SharedNames;
use tokio::sync::Notify;

use crate::identity::Identity;
use crate::link::within;
use crate::quic_stream::QuicStream;
use crate::turns::Turns;
use crate::{clock, sockets, tls};

/// ALPN protocol. It names the version of the streams' contents.
const PROTOCOL: &[u8] = b"tidegate-link/1";
/// Receive windows of a stream and of a connection, bytes.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Maximum number of a peer's open streams per connection.
const STREAMS: u32 = 2048;
/// Maximum number of accepted connections. A new one displaces one of the network with the most.
const CONNECTIONS: usize = 256;
/// Maximum number of pending handshakes, and of their bytes. Beyond half of them, a peer must first prove its address
/// (Retry).
const HANDSHAKES: usize = 128;
const HANDSHAKE_BYTES: u64 = 1 << 14;
/// Idle timeout of a connection. QUIC extends it to 3 PTOs on slow paths. Clients should have another circuit 5 s
/// after a relay was killed: neighbours may notice one after another, and circuits are built afterwards.
const DEAD: Duration = Duration::from_secs(2);
/// Keep-alive interval.
const ALIVE: Duration = Duration::from_millis(500);
/// Timeout of connecting or opening a stream. TLS is the fallback.
pub(crate) const PATIENCE: Span = Span::from_secs(5);
/// How long TLS is used after QUIC failed with a neighbour.
const AGAIN: Span = Span::from_secs(600);
/// Interval of looking for unused connections. A connection without streams is closed the second time it is seen.
const UNUSED: Span = Span::from_secs(90);
/// Maximum number of neighbours remembered as TLS-only. Beyond it, all are tried again.
const PLAIN: usize = 4096;

/// A QUIC connection with a neighbour.
#[derive(Clone)]
pub struct Neighbour {
    connection: Connection,
    /// How many streams are in use.
    used: Rc<Cell<u32>>,
    turns: Arc<Turns>,
}

impl Neighbour {
    fn new(connection: Connection) -> Neighbour {
        Neighbour { connection, used: Rc::default(), turns: Arc::default() }
    }

    /// The neighbour's address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    /// SHA-256 of the certificate that the neighbour presented.
    pub(crate) fn certificate(&self) -> Option<[u8; 32]> {
        let shown = self.connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        shown.first().map(|certificate| Sha256::digest(certificate).into())
    }

    /// Opens a stream. The neighbour learns of it with the first bytes.
    ///
    /// # Errors
    /// If the connection is closed, or has too many streams.
    pub async fn open(&self) -> io::Result<QuicStream> {
        let streams = within(PATIENCE, async { Ok(self.connection.open_bi().await?) }).await?;
        Ok(QuicStream::new(self.connection.clone(), streams, &self.used, &self.turns))
    }

    /// Accepts the next stream of the neighbour.
    ///
    /// # Errors
    /// If the connection is closed.
    pub async fn accept(&self) -> io::Result<QuicStream> {
        let streams = self.connection.accept_bi().await?;
        Ok(QuicStream::new(self.connection.clone(), streams, &self.used, &self.turns))
    }

    /// Closes the connection once it is unused for a while. Returns when it is closed.
    async fn last(&self) {
        let unused = async {
            let mut before = false;
            loop {
                clock::until(clock::now() + UNUSED).await;
                let now = self.used.get() == 0;
                if before && now {
                    return self.connection.close(VarInt::from_u32(0), b"");
                }
                before = now;
            }
        };
        tokio::select! {
            _ = self.connection.closed() => {}
            () = unused => {}
        }
    }
}

/// How to reach a relay.
pub(crate) enum Way<'a> {
    /// By a new stream of an open connection.
    QuicStream(QuicStream),
    /// Unknown. The caller tries QUIC while others wait.
    Ask(Turn<'a>),
    /// By TLS only.
    Plain,
    /// By TLS this time: the connection has too many streams.
    Full,
}

/// The right to try QUIC with a relay, held by one task at a time.
pub(crate) struct Turn<'a> {
    quic: &'a Quic,
    relay: RelayId,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.quic.asking.borrow_mut().remove(&self.relay);
        self.quic.asked.notify_waiters();
    }
}

type Neighbours = RefCell<BTreeMap<RelayId, Neighbour>>;

/// Forgets a closed connection.
fn forget(neighbours: &Neighbours, relay: RelayId, gone: &Neighbour) {
    let mut all = neighbours.borrow_mut();
    if all.get(&relay).is_some_and(|kept| Rc::ptr_eq(&kept.used, &gone.used)) {
        all.remove(&relay);
    }
}

/// Connections that neighbours opened.
struct Accepted {
    places: Shares<IpAddr, IpAddr, u64>,
    open: BTreeMap<u64, Neighbour>,
    last: u64,
}

impl Accepted {
    fn new() -> Accepted {
        Accepted { places: Shares::new(CONNECTIONS), open: BTreeMap::new(), last: 0 }
    }

    /// Gives a connection a place. Of the network with the most, one without streams makes room, or else the oldest.
    fn admit(&mut self, neighbour: &Neighbour) -> u64 {
        let (now, of) = (clock::now(), network(neighbour.address().ip()));
        let in_use = |number: &u64| self.open.get(number).is_some_and(|open| open.used.get() > 0);
        let last = |number: &u64| if in_use(number) { now } else { Time::ZERO };
        if let Some(displaced) = self.places.displaced(&of, last)
            && let Some(displaced) = self.open.remove(&displaced)
        {
            displaced.connection.close(VarInt::from_u32(0), b"displaced");
        }
        self.last += 1;
        self.places.admit(now, of, self.last);
        self.open.insert(self.last, neighbour.clone());
        self.last
    }

    fn release(&mut self, number: u64) {
        self.places.release(&number);
        self.open.remove(&number);
    }
}

/// A node's QUIC endpoints and connections.
pub struct Quic {
    /// One endpoint, or one each for IPv4 and IPv6.
    endpoints: Vec<Endpoint>,
    client: ClientConfig,
    names: SharedNames,
    neighbours: Rc<Neighbours>,
    /// The accepted connections, and their places by address.
    accepted: Rc<RefCell<Accepted>>,
    asking: RefCell<BTreeSet<RelayId>>,
    asked: Notify,
    /// Relays with which QUIC failed, and until when TLS is used.
    plain: RefCell<BTreeMap<RelayId, Time>>,
}

fn wrong(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error.to_string())
}

fn transport() -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW))
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(Some(DEAD.try_into().expect("seconds")))
        .keep_alive_interval(Some(ALIVE));
    Arc::new(config)
}

/// The configuration of a relay that presents this certificate.
///
/// # Errors
/// If TLS cannot be set up.
pub fn server(identity: &Identity) -> io::Result<ServerConfig> {
    let mut tls = (*tls::any_client(identity).map_err(wrong)?).clone();
    tls.alpn_protocols = vec![PROTOCOL.into()];
    let crypto = QuicServerConfig::try_from(tls).map_err(wrong)?;
    let mut server = ServerConfig::with_crypto(Arc::new(crypto));
    // Neighbours are counted by address, so a connection must not migrate.
    server.migration(false).transport_config(transport());
    server.max_incoming(HANDSHAKES).incoming_buffer_size(HANDSHAKE_BYTES);
    Ok(server)
}

impl Quic {
    /// A relay's endpoints at these addresses, with its link certificate.
    ///
    /// # Errors
    /// If the port is in use, or TLS cannot be set up.
    pub fn relay(identity: &Identity, at: &[SocketAddr], names: SharedNames) -> io::Result<Quic> {
        let (server, apart) = (server(identity)?, at.len() > 1);
        let bind = |at: &SocketAddr| {
            sockets::datagrams(*at, apart).map_err(|cause| {
                io::Error::new(
                    cause.kind(),
                    format!("UDP {at}: {cause}; QUIC needs the same port number as TLS"),
                )
            })
        };
        let bound = at.iter().map(bind).collect::<io::Result<Vec<_>>>()?;
        Quic::new(bound, Some(&server), names)
    }

    /// A client's endpoints, which accept nothing.
    ///
    /// # Errors
    /// If sockets cannot be bound, or TLS cannot be set up.
    pub fn client(names: SharedNames) -> io::Result<Quic> {
        let v4 = sockets::datagrams((Ipv4Addr::UNSPECIFIED, 0).into(), true);
        let v6 = sockets::datagrams((Ipv6Addr::UNSPECIFIED, 0).into(), true);
        // A machine may support only one address family.
        let bound = match (v4, v6) {
            (Err(cause), Err(_)) => return Err(cause),
            (v4, v6) => v4.into_iter().chain(v6).collect(),
        };
        Quic::new(bound, None, names)
    }

    fn new(bound: Vec<UdpSocket>, server: Option<&ServerConfig>, names: SharedNames) -> io::Result<Quic> {
        let mut tls = (*tls::any_server().map_err(wrong)?).clone();
        tls.alpn_protocols = vec![PROTOCOL.into()];
        let crypto = QuicClientConfig::try_from(tls).map_err(wrong)?;
        let mut client = ClientConfig::new(Arc::new(crypto));
        client.transport_config(transport());
        let endpoint = |socket| {
            Endpoint::new(EndpointConfig::default(), server.cloned(), socket, Arc::new(TokioRuntime))
        };
        Ok(Quic {
            endpoints: bound.into_iter().map(endpoint).collect::<io::Result<_>>()?,
            client,
            names,
            neighbours: Rc::default(),
            accepted: Rc::new(RefCell::new(Accepted::new())),
            asking: RefCell::default(),
            asked: Notify::new(),
            plain: RefCell::default(),
        })
    }

    /// The next connection attempt that is admitted. Others are refused or must retry.
    pub async fn incoming(&self) -> Option<Incoming> {
        loop {
            let incoming = match &self.endpoints[..] {
                [first, second] => tokio::select! {
                    incoming = first.accept() => incoming,
                    incoming = second.accept() => incoming,
                },
                endpoints => endpoints.first()?.accept().await,
            }?;
            let open = self.endpoints.iter().map(Endpoint::open_connections).sum::<usize>();
            // Accepted connections make room once the handshake is over.
            if open >= CONNECTIONS + HANDSHAKES {
                incoming.refuse();
            } else if open >= HANDSHAKES / 2 && !incoming.remote_address_validated() {
                // The error is impossible unless Retry was sent already.
                let _ = incoming.retry();
            } else {
                return Some(incoming);
            }
        }
    }

    /// Accepts a connection without authentication yet.
    ///
    /// # Errors
    /// If its handshake fails or times out.
    pub async fn answer(&self, incoming: Incoming, config: Arc<ServerConfig>) -> io::Result<Neighbour> {
        let neighbour =
            within(PATIENCE, async { Ok(Neighbour::new(incoming.accept_with(config)?.await?)) }).await?;
        let number = self.accepted.borrow_mut().admit(&neighbour);
        let (accepted, connection) = (self.accepted.clone(), neighbour.connection.clone());
        tokio::task::spawn_local(async move {
            connection.closed().await;
            accepted.borrow_mut().release(number);
        });
        Ok(neighbour)
    }

    /// Connects without authentication yet.
    ///
    /// # Errors
    /// If the handshake fails or times out.
    pub async fn connect(&self, at: SocketAddr) -> io::Result<Neighbour> {
        let name = tls::name().to_str().into_owned();
        let fits =
            |endpoint: &&Endpoint| endpoint.local_addr().is_ok_and(|own| own.is_ipv4() == at.is_ipv4());
        // A lone IPv6 endpoint may serve both families.
        let endpoint =
            self.endpoints.iter().find(fits).or(self.endpoints.first()).ok_or(io::ErrorKind::Unsupported)?;
        let connecting = endpoint.connect_with(self.client.clone(), at, &name).map_err(wrong)?;
        within(PATIENCE, async { Ok(Neighbour::new(connecting.await?)) }).await
    }

    /// How to reach a relay now.
    pub(crate) async fn way(&self, relay: RelayId) -> Way<'_> {
        loop {
            let known = self.neighbours.borrow().get(&relay).cloned();
            if let Some(known) = known {
                match known.open().await {
                    Ok(lane) => return Way::QuicStream(lane),
                    Err(_) if known.connection.close_reason().is_none() => return Way::Full,
                    Err(_) => forget(&self.neighbours, relay, &known),
                }
                continue;
            }
            if self.plain.borrow().get(&relay).is_some_and(|until| clock::now() < *until) {
                return Way::Plain;
            }
            if self.asking.borrow_mut().insert(relay) {
                return Way::Ask(Turn { quic: self, relay });
            }
            self.asked.notified().await;
        }
    }

    /// Marks a relay as TLS-only for a while.
    pub(crate) fn is_plain(&self, relay: RelayId) {
        let mut plain = self.plain.borrow_mut();
        if plain.len() >= PLAIN {
            plain.clear();
        }
        plain.insert(relay, clock::now() + AGAIN);
    }

    /// Keeps an authenticated connection with a relay. New channels become its streams, unless another connection is
    /// kept already.
    pub(crate) fn keep(&self, relay: RelayId, neighbour: &Neighbour) {
        let (neighbours, names, neighbour) = (self.neighbours.clone(), self.names.clone(), neighbour.clone());
        names.borrow_mut().connected(relay);
        neighbours.borrow_mut().entry(relay).or_insert_with(|| neighbour.clone());
        self.plain.borrow_mut().remove(&relay);
        tokio::task::spawn_local(async move {
            neighbour.last().await;
            forget(&neighbours, relay, &neighbour);
            names.borrow_mut().disconnected(relay);
        });
    }

    /// Closes all connections.
    pub(crate) async fn close(&self) {
        for endpoint in &self.endpoints {
            endpoint.close(VarInt::from_u32(0), b"");
        }
        let told = async {
            for endpoint in &self.endpoints {
                endpoint.wait_idle().await;
            }
            Ok(())
        };
        // A neighbour that misses the close message notices by the idle timeout.
        let _ = within(Span::from_millis(200), told).await;
    }
}
