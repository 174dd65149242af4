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
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use web_transport_quinn::proto::ConnectResponse;
use web_transport_quinn::{Request, Session};

use super::edge::Edge;
use crate::identity::fingerprint;
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
/// Validity of the certificate: browsers accept the hash of one that is valid for at most 14 days.
const VALID: Duration = Duration::from_secs(13 * 24 * 3600);
/// Clocks differ: it is valid from a bit earlier on.
const EARLIER: Duration = Duration::from_secs(3600);
/// Bytes of a track that are kept for readers that are behind, besides the newest group.
const CACHED: u64 = 64 << 20;

fn wrong(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error.to_string())
}

/// Makes a certificate of this machine and its key.
fn certificate() -> io::Result<(CertificateDer<'static>, PrivateKeyDer<'static>)> {
    let names = ["localhost", "127.0.0.1", "::1"].map(String::from).to_vec();
    let mut parameters = CertificateParams::new(names).map_err(wrong)?;
    let now = date_time_ymd(1970, 1, 1) + Duration::from_secs(tidegate_kernel::unix_s());
    (parameters.not_before, parameters.not_after) = (now - EARLIER, now + VALID);
    let key = KeyPair::generate().map_err(wrong)?;
    let certificate = parameters.self_signed(&key).map_err(wrong)?;
    Ok((certificate.der().clone(), PrivateKeyDer::Pkcs8(key.serialize_der().into())))
}

/// An endpoint with a new certificate. A peer may send `window` bytes ahead of what is read.
pub(super) fn open(listen: SocketAddr, window: u32) -> io::Result<(Endpoint, Edge)> {
    let (certificate, key) = certificate()?;
    let hash = fingerprint(&certificate);
    let mut protocols = vec![web_transport_quinn::ALPN.into()];
    protocols.extend(moq_net::ALPNS.iter().map(|name| name.as_bytes().to_vec()));
    let tls = tls::open_server(certificate, key, protocols).map_err(wrong)?;
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
    let socket = std::net::UdpSocket::bind(listen)?;
    let endpoint = Endpoint::new(EndpointConfig::default(), Some(server), socket, Arc::new(TokioRuntime))?;
    let address = endpoint.local_addr()?;
    Ok((endpoint, Edge { address, certificate: hash }))
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
