//! QUIC connections between peers that prove who they are by certificates.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use quinn::congestion::{Controller, ControllerFactory};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    AckFrequencyConfig, ClientConfig, Connection, Endpoint, EndpointConfig, ServerConfig, TokioRuntime,
};
use quinn::{TransportConfig, VarInt};
use rustls::pki_types::CertificateDer;
use tidegate_proto::flashflow::message::Fingerprint;

use super::path::Socket;
use crate::identity::{Identity, fingerprint};
use crate::tls;

/// Names the version of the messages inside.
const PROTOCOL: &[u8] = b"tidegate-stream/1";
/// Every path carries datagrams of this size: IPv6's least packet, less its and UDP's headers.
const MTU: u16 = 1232;
/// A connection without a word for so long is dead.
const IDLE: Duration = Duration::from_secs(6);
/// Between signs of life to the server.
const ALIVE: Duration = Duration::from_secs(2);
/// What a round trip is taken for before the first: a lost handshake is repeated after three of them.
const FIRST_ROUND_TRIP: Duration = Duration::from_millis(100);
/// Datagrams that wait to be sent or read, per connection.
const DATAGRAMS: usize = 1 << 18;
/// Messages that wait, per connection.
const MESSAGES: u32 = 1 << 16;
/// Handshakes that wait; more must first show that they get our packets.
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

/// An endpoint that accepts connections and makes them.
///
/// # Errors
/// If the identity's key does not fit its certificate, or the socket has no address.
pub fn endpoint(identity: &Identity, socket: Arc<Socket>) -> io::Result<Endpoint> {
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

/// For connections to the peer with that fingerprint; to whoever answers if there is none.
///
/// # Errors
/// If the identity's key does not fit its certificate.
pub fn client(identity: &Identity, peer: Option<Fingerprint>, to_server: bool) -> io::Result<ClientConfig> {
    let mut tls = (*match peer {
        Some(peer) => tls::client(Some(identity), peer),
        None => tls::client_of_anybody(identity),
    }
    .map_err(wrong)?)
    .clone();
    tls.alpn_protocols = vec![PROTOCOL.into()];
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).map_err(wrong)?));
    config.transport_config(transport(to_server));
    Ok(config)
}

/// Who the other side proved to be.
pub fn peer(connection: &Connection) -> Option<Fingerprint> {
    let identity = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    identity.first().map(fingerprint)
}

/// Rates are planned by the server's trees and learnt from losses there; a window per connection would only
/// stall a live stream at random losses. It falls when a connection loses everything, so that a path that is
/// gone is not flooded.
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
