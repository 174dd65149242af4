//! QUIC connections between peers that authenticate by certificate fingerprint.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use quinn::congestion::{Controller, ControllerFactory};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    AckFrequencyConfig, ClientConfig, Connection, Endpoint, EndpointConfig, ServerConfig, TokioRuntime,
    TransportConfig, VarInt,
};
use rustls::pki_types::CertificateDer;
use tidegate_proto::flashflow::Fingerprint;

use super::path::Socket;
use crate::identity::{Identity, fingerprint};
use crate::tls;

/// ALPN protocol. It names the version of the messages.
const PROTOCOL: &[u8] = b"tidegate-stream/1";
/// Maximum UDP payload: every path carries IPv6's minimum MTU, less IPv6 and UDP headers.
const MTU: u16 = 1232;
/// Idle timeout of a connection.
pub(super) const IDLE: Duration = Duration::from_secs(6);
/// Keep-alive interval to the server.
const ALIVE: Duration = Duration::from_secs(2);
/// Initial RTT: a lost handshake packet is repeated after three of them.
const FIRST_ROUND_TRIP: Duration = Duration::from_millis(100);
/// Datagram buffers of a connection, bytes.
const DATAGRAMS: usize = 1 << 18;
/// Receive window of messages, bytes.
const MESSAGES: u32 = 1 << 16;
/// Pending handshakes beyond which a peer must prove its address (Retry).
const HANDSHAKES: usize = 64;

fn wrong(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error.to_string())
}

fn transport(keep_alive: bool) -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(VarInt::from_u32(24)).max_ack_delay(Some(Duration::from_millis(60)));
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .max_idle_timeout(Some(IDLE.try_into().expect("seconds")))
        .keep_alive_interval(keep_alive.then_some(ALIVE))
        .stream_receive_window(VarInt::from_u32(MESSAGES))
        .receive_window(VarInt::from_u32(MESSAGES))
        .send_window(u64::from(MESSAGES))
        .datagram_receive_buffer_size(Some(DATAGRAMS))
        .datagram_send_buffer_size(DATAGRAMS)
        .initial_mtu(MTU)
        .initial_rtt(FIRST_ROUND_TRIP)
        .mtu_discovery_config(None)
        .ack_frequency_config(Some(acks))
        .congestion_controller_factory(Arc::new(Planned));
    Arc::new(config)
}

/// An endpoint that accepts and opens connections.
///
/// # Errors
/// If the identity's key does not fit its certificate, or the socket's local address is unknown.
pub(crate) fn endpoint(identity: &Identity, socket: Arc<Socket>) -> io::Result<Endpoint> {
    let mut tls = (*tls::server(identity).map_err(wrong)?).clone();
    tls.alpn_protocols = vec![PROTOCOL.into()];
    let mut server = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).map_err(wrong)?));
    server.transport_config(transport(false));
    server.max_incoming(HANDSHAKES * 2).incoming_buffer_size(1 << 14);
    Endpoint::new_with_abstract_socket(
        EndpointConfig::default(),
        Some(server),
        socket,
        Arc::new(TokioRuntime),
    )
}

/// A configuration for connections to the peer with that fingerprint, or to any peer without one.
///
/// # Errors
/// If the identity's key does not fit its certificate.
pub(crate) fn client(
    identity: &Identity,
    peer: Option<Fingerprint>,
    to_server: bool,
) -> io::Result<ClientConfig> {
    let mut tls = (*match peer {
        Some(peer) => tls::client(Some(identity), peer),
        None => tls::client_without_pin(identity),
    }
    .map_err(wrong)?)
    .clone();
    tls.alpn_protocols = vec![PROTOCOL.into()];
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).map_err(wrong)?));
    config.transport_config(transport(to_server));
    Ok(config)
}

/// The peer's fingerprint.
pub(crate) fn peer(connection: &Connection) -> Option<Fingerprint> {
    let identity = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    identity.first().map(fingerprint)
}

/// Congestion control for live streams. The server's trees plan the rates and learn from losses; a congestion window
/// would stall the stream at random losses. The window only falls if all packets are lost, so that a dead path is not
/// flooded.
#[derive(Debug)]
struct Planned;

#[derive(Clone, Debug)]
struct Window(u64);

const WINDOW: u64 = 512 << 10;
const LEAST: u64 = 16 << 10;

impl ControllerFactory for Planned {
    fn build(self: Arc<Self>, _: std::time::Instant, _: u16) -> Box<dyn Controller> {
        Box::new(Window(WINDOW))
    }
}

impl Controller for Window {
    fn on_end_acks(&mut self, _: std::time::Instant, _: u64, _: bool, _: Option<u64>) {
        self.0 = (self.0 + u64::from(MTU)).min(WINDOW);
    }

    fn on_congestion_event(
        &mut self,
        _: std::time::Instant,
        _: std::time::Instant,
        persistent: bool,
        _: u64,
    ) {
        if persistent {
            self.0 = (self.0 / 2).max(LEAST);
        }
    }

    fn on_mtu_update(&mut self, _: u16) {}

    fn window(&self) -> u64 {
        self.0
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        WINDOW
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }
}
