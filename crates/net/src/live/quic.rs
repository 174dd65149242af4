//! QUIC between neighbours that both speak it: one connection for a pair, over which both open streams for channels. Who
//! the ends are is proved on the first stream, as on a TLS connection.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
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
use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::RelayId;
use tidegate_proto::crypto::names::SharedNames;
use tokio::sync::Notify;

use crate::identity::Identity;
use crate::lane::Lane;
use crate::link::within;
use crate::{clock, sockets, tls};

/// Names the version of what streams carry.
const PROTOCOL: &[u8] = b"tidegate-link/1";
/// Bytes that a peer may have sent and we have not read: on a stream, and on a connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Streams that a peer may have open on a connection.
const STREAMS: u32 = 2048;
/// Connections; beyond them neighbours are left to TLS.
const CONNECTIONS: usize = 256;
/// Handshakes that wait and their bytes; beyond half of them a peer must first show that it gets our packets.
const HANDSHAKES: usize = 128;
const HANDSHAKE_BYTES: u64 = 1 << 14;
/// A connection without a word for so long is dead, and for three times as long as an acknowledgement may take on slow paths; how
/// often there is a word. Clients are to have another circuit five seconds after a relay was killed: neighbours may
/// find out a while after each other, and circuits are built after that.
const DEAD: Duration = Duration::from_secs(2);
const ALIVE: Duration = Duration::from_millis(500);
/// How long a connection, or another stream, may take; then TLS will do.
pub const PATIENCE: Span = Span::from_secs(5);
/// A neighbour with which it did not work is asked again after this.
const AGAIN: Span = Span::from_secs(600);
/// A connection without a stream is closed when it is seen for the second time, so far apart.
const UNUSED: Span = Span::from_secs(90);
/// Neighbours of which is known that it does not work: then all are asked again.
const PLAIN: usize = 4096;

/// A connection with a neighbour.
#[derive(Clone)]
pub struct Neighbour {
    connection: Connection,
    /// How many streams are in use.
    used: Rc<Cell<u32>>,
}

impl Neighbour {
    fn new(connection: Connection) -> Neighbour {
        Neighbour { connection, used: Rc::default() }
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    /// SHA-256 of the certificate that the neighbour answered with.
    pub fn certificate(&self) -> Option<[u8; 32]> {
        let shown = self.connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        shown.first().map(|certificate| Sha256::digest(certificate).into())
    }

    /// Opens a stream. The neighbour hears of it with its first bytes.
    ///
    /// # Errors
    /// If the connection is gone, or has too many.
    pub async fn open(&self) -> io::Result<Lane> {
        let streams = within(PATIENCE, async { Ok(self.connection.open_bi().await?) }).await?;
        Ok(Lane::new(self.connection.clone(), streams, &self.used))
    }

    /// The next stream that the neighbour opens.
    ///
    /// # Errors
    /// If the connection is gone.
    pub async fn accept(&self) -> io::Result<Lane> {
        let streams = self.connection.accept_bi().await?;
        Ok(Lane::new(self.connection.clone(), streams, &self.used))
    }

    /// Ends the connection once it has not been used for a while; returns when it is gone.
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

/// How a relay is reached.
pub enum Way<'a> {
    /// By another stream.
    Lane(Lane),
    /// Not known: who asks finds out, while others wait.
    Ask(Turn<'a>),
    /// By TLS alone.
    Plain,
    /// By TLS this time: there are too many streams.
    Full,
}

/// Leave to find out how a relay is reached.
pub struct Turn<'a> {
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

/// A connection is over: another may take its place.
fn forget(neighbours: &Neighbours, relay: RelayId, gone: &Neighbour) {
    let mut all = neighbours.borrow_mut();
    if all.get(&relay).is_some_and(|kept| Rc::ptr_eq(&kept.used, &gone.used)) {
        all.remove(&relay);
    }
}

/// A node's QUIC.
pub struct Quic {
    /// One, or one of IPv4 and one of IPv6.
    endpoints: Vec<Endpoint>,
    client: ClientConfig,
    names: SharedNames,
    neighbours: Rc<Neighbours>,
    asking: RefCell<BTreeSet<RelayId>>,
    asked: Notify,
    /// Relays with which it does not work, and until when that is believed.
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

/// How a relay answers with that certificate.
///
/// # Errors
/// If TLS cannot be set up.
pub fn server(identity: &Identity) -> io::Result<ServerConfig> {
    let mut tls = (*tls::any_client(identity).map_err(wrong)?).clone();
    tls.alpn_protocols = vec![PROTOCOL.into()];
    let crypto = QuicServerConfig::try_from(tls).map_err(wrong)?;
    let mut server = ServerConfig::with_crypto(Arc::new(crypto));
    // Neighbours are counted by address.
    server.migration(false).transport_config(transport());
    server.max_incoming(HANDSHAKES).incoming_buffer_size(HANDSHAKE_BYTES);
    Ok(server)
}

impl Quic {
    /// A relay's, which answers at these addresses with its certificate for links.
    ///
    /// # Errors
    /// If the port is in use, or TLS cannot be set up.
    pub fn relay(identity: &Identity, at: &[SocketAddr], names: SharedNames) -> io::Result<Quic> {
        let (server, apart) = (server(identity)?, at.len() > 1);
        let bind = |at: &SocketAddr| {
            sockets::datagrams(*at, apart).map_err(|cause| {
                io::Error::new(cause.kind(), format!("UDP {at}: {cause}; QUIC needs the port that TLS has"))
            })
        };
        let bound = at.iter().map(bind).collect::<io::Result<Vec<_>>>()?;
        Quic::new(bound, Some(&server), names)
    }

    /// A client's, which answers nobody.
    ///
    /// # Errors
    /// If there is no socket to be had, or TLS cannot be set up.
    pub fn client(names: SharedNames) -> io::Result<Quic> {
        let v4 = sockets::datagrams((Ipv4Addr::UNSPECIFIED, 0).into(), true);
        let v6 = sockets::datagrams((Ipv6Addr::UNSPECIFIED, 0).into(), true);
        // A machine may have one of the two alone.
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
            asking: RefCell::default(),
            asked: Notify::new(),
            plain: RefCell::default(),
        })
    }

    /// The next who wants to connect and may; the others hear so.
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
            if open >= CONNECTIONS {
                incoming.refuse();
            } else if open >= HANDSHAKES / 2 && !incoming.remote_address_validated() {
                // An error is one of ours: it has shown so already.
                let _ = incoming.retry();
            } else {
                return Some(incoming);
            }
        }
    }

    /// Answers a connection in that way, before anybody has proved anything.
    ///
    /// # Errors
    /// If its handshake fails, or takes too long.
    pub async fn answer(&self, incoming: Incoming, config: Arc<ServerConfig>) -> io::Result<Neighbour> {
        within(PATIENCE, async { Ok(Neighbour::new(incoming.accept_with(config)?.await?)) }).await
    }

    /// Connects, before anybody has proved anything.
    ///
    /// # Errors
    /// If nobody answers in time.
    pub async fn connect(&self, at: SocketAddr) -> io::Result<Neighbour> {
        let name = tls::name().to_str().into_owned();
        let fits =
            |endpoint: &&Endpoint| endpoint.local_addr().is_ok_and(|own| own.is_ipv4() == at.is_ipv4());
        // One of IPv6 that is alone may reach both.
        let endpoint =
            self.endpoints.iter().find(fits).or(self.endpoints.first()).ok_or(io::ErrorKind::Unsupported)?;
        let connecting = endpoint.connect_with(self.client.clone(), at, &name).map_err(wrong)?;
        within(PATIENCE, async { Ok(Neighbour::new(connecting.await?)) }).await
    }

    /// How a relay is reached now.
    pub async fn way(&self, relay: RelayId) -> Way<'_> {
        loop {
            let known = self.neighbours.borrow().get(&relay).cloned();
            if let Some(known) = known {
                match known.open().await {
                    Ok(lane) => return Way::Lane(lane),
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

    /// It does not work with this relay, for now.
    pub fn is_plain(&self, relay: RelayId) {
        let mut plain = self.plain.borrow_mut();
        if plain.len() >= PLAIN {
            plain.clear();
        }
        plain.insert(relay, clock::now() + AGAIN);
    }

    /// Both ends know that this connection is with that relay: channels to it are streams of it from now on, unless there
    /// is one already.
    pub fn keep(&self, relay: RelayId, neighbour: &Neighbour) {
        let (neighbours, names, neighbour) = (self.neighbours.clone(), self.names.clone(), neighbour.clone());
        names.borrow_mut().connected(relay);
        neighbours.borrow_mut().entry(relay).or_insert_with(|| neighbour.clone());
        self.plain.borrow_mut().remove(&relay);
        tokio::task::spawn_local(async move {
            neighbour.last().await;
            forget(&neighbours, relay, &neighbour);
            names.borrow_mut().disconnected(relay, true);
        });
    }

    /// Tells all neighbours that it is over.
    pub async fn close(&self) {
        for endpoint in &self.endpoints {
            endpoint.close(VarInt::from_u32(0), b"");
        }
        let told = async {
            for endpoint in &self.endpoints {
                endpoint.wait_idle().await;
            }
            Ok(())
        };
        // Who has not heard it by then finds out.
        let _ = within(Span::from_millis(200), told).await;
    }
}
