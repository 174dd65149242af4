//! The endpoint below Media over QUIC: WebTransport over HTTP/3, and plain QUIC.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use moq_net::cache;
use moq_net::origin;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{
    Connection, Endpoint, EndpointConfig, Incoming, ServerConfig, TokioRuntime, TransportConfig, VarInt,
};
use tidegate_control::units::Span;
use web_transport_quinn::proto::ConnectResponse;
use web_transport_quinn::{Request, Session};

use super::certificates::{Certificate, Certificates};
use super::edge::{Edge, Lifetimes, Renewal};
use crate::clock;
use crate::tls;

/// How long a peer may take to say what it wants.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);
/// Idle timeout of a connection, and the interval of keep-alives.
const IDLE: Duration = Duration::from_secs(6);
const ALIVE: Duration = Duration::from_secs(2);
/// Streams that a peer may have open: requests, and groups.
const REQUESTS: u32 = 32;
const GROUPS: u32 = 8;
/// Pending handshakes.
const HANDSHAKES: usize = 32;
/// How often the age of the certificate is looked at.
const LOOK: Span = Span::from_secs(1);
/// Bytes of a track that are kept for readers that are behind, besides the newest group.
const CACHED: u64 = 64 << 20;

fn wrong(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error.to_string())
}

/// The configuration of a server with a certificate. A peer may send `window` bytes ahead of what is read.
fn server(certificate: Certificate, window: u32) -> io::Result<ServerConfig> {
    let mut protocols = vec![web_transport_quinn::ALPN.into()];
    protocols.extend(moq_net::ALPNS.iter().map(|name| name.as_bytes().to_vec()));
    let tls = tls::open_server(certificate.der, certificate.key, protocols).map_err(wrong)?;
    let mut server = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).map_err(wrong)?));
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(REQUESTS))
        .max_concurrent_uni_streams(VarInt::from_u32(GROUPS))
        .max_idle_timeout(Some(IDLE.try_into().expect("seconds")))
        .keep_alive_interval(Some(ALIVE))
        .stream_receive_window(VarInt::from_u32(window))
        .receive_window(VarInt::from_u32(window))
        .send_window(1 << 20)
        .datagram_receive_buffer_size(Some(1 << 16));
    server.transport_config(Arc::new(transport));
    server.max_incoming(HANDSHAKES).incoming_buffer_size(1 << 14);
    Ok(server)
}

/// An endpoint and its certificates, to be renewed.
pub(super) struct Opened {
    pub endpoint: Endpoint,
    pub edge: Edge,
    certificates: Certificates,
    window: u32,
}

/// Opens an endpoint with a new certificate. A peer may send `window` bytes ahead of what is read.
pub(super) fn open(listen: SocketAddr, window: u32, lifetimes: Lifetimes) -> io::Result<Opened> {
    let certificate = Certificate::make(clock::unix(), lifetimes.expires)?;
    let (hash, certificates) = (certificate.hash, Certificates::new(&certificate, lifetimes));
    let socket = std::net::UdpSocket::bind(listen)?;
    let server = server(certificate, window)?;
    let endpoint = Endpoint::new(EndpointConfig::default(), Some(server), socket, Arc::new(TokioRuntime))?;
    let edge = Edge { address: endpoint.local_addr()?, certificate: hash };
    Ok(Opened { endpoint, edge, certificates, window })
}

impl Opened {
    /// Renews the certificate for ever. Connections keep the one that they began with.
    pub(super) async fn renew(mut self, say: impl Fn(Renewal)) {
        loop {
            clock::until(clock::now() + LOOK).await;
            // Without randomness for a key, the next look tries again.
            let Ok(Some((renewal, next))) = self.certificates.step(clock::unix()) else { continue };
            if let Some(server) = next.and_then(|next| server(next, self.window).ok()) {
                self.endpoint.set_server_config(Some(server));
            }
            say(renewal);
        }
    }
}

/// Accepts a connection and agrees on a version, over HTTP/3 or plain QUIC.
pub(super) async fn session(incoming: Incoming) -> Result<(Connection, Session), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let connection = incoming.await.map_err(|error| text(&error))?;
    let data = connection
        .handshake_data()
        .and_then(|data| data.downcast::<quinn::crypto::rustls::HandshakeData>().ok());
    let protocol = data.and_then(|data| data.protocol);
    if protocol.as_deref() != Some(web_transport_quinn::ALPN.as_bytes()) {
        return Ok((connection.clone(), Session::raw(connection)));
    }
    let request = Request::accept(connection.clone()).await.map_err(|error| text(&error))?;
    let common = moq_net::ALPNS.iter().find(|name| request.protocols.iter().any(|offered| offered == *name));
    let answer = common.map_or(ConnectResponse::OK, |name| ConnectResponse::OK.with_protocol(*name));
    let session = request.respond(answer).await.map_err(|error| text(&error))?;
    Ok((connection, session))
}

/// An origin with a bounded cache, and its driver.
pub(super) fn origin() -> (origin::Producer, origin::Driver) {
    let mut config = origin::Config::default();
    let policy = cache::Config::default().with_capacity(CACHED).with_expiry(cache::DEFAULT_EXPIRY);
    config.pool = cache::Pool::new(policy);
    origin::Producer::new(config)
}
