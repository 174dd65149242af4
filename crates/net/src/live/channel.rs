//! Connections of Tor's kind: TLS in which neither certificate says who its owner is, and inside it the handshake of
//! [`tidegate_proto::crypto::link`].

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rustls::{ClientConfig, ServerConfig};
use sha2::{Digest as _, Sha256};
use tidegate_control::units::Span;
use tidegate_proto::cell::RelayId;
use tidegate_proto::crypto::cert::{Certified, RouterKeys};
use tidegate_proto::crypto::link::{EXPORTER, Handshake, Peer, Start, Tls};
use tidegate_proto::crypto::names::{Router, SharedNames};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::identity::{Identity, random};
use crate::link::{Tcp, in_lumps, within};
use crate::overlay::{Dial, Met};
use crate::{clock, tls};

/// How long the whole handshake of a connection may take, as with tor.
pub const PATIENCE: Span = Span::from_secs(60);

/// What a node brings to its connections.
pub struct Links {
    keys: Option<Arc<Certified>>,
    server: Option<Arc<ServerConfig>>,
    client: Arc<ClientConfig>,
    names: SharedNames,
    address: Option<IpAddr>,
}

/// A connection as the handshake sees it.
struct Binding<'a> {
    certificate: [u8; 32],
    stream: &'a TlsStream<Tcp>,
}

impl Tls for Binding<'_> {
    fn certificate(&self) -> [u8; 32] {
        self.certificate
    }

    fn export(&self, context: &[u8]) -> [u8; 32] {
        let exported = match self.stream {
            TlsStream::Client(stream) => {
                stream.get_ref().1.export_keying_material([0; 32], EXPORTER, Some(context))
            }
            TlsStream::Server(stream) => {
                stream.get_ref().1.export_keying_material([0; 32], EXPORTER, Some(context))
            }
        };
        exported.expect("the TLS handshake is over, and 32 bytes are not too many")
    }
}

impl Links {
    /// A relay's, with everyday keys certified for a fresh TLS certificate.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub fn relay(keys: &RouterKeys, names: SharedNames, address: IpAddr) -> io::Result<Links> {
        let identity = Identity::for_links();
        let certified = keys.certify(clock::unix(), &identity.certificate, [random(), random()]);
        Ok(Links {
            keys: Some(Arc::new(certified)),
            server: Some(tls::any_client(&identity).map_err(io::Error::other)?),
            client: tls::any_server().map_err(io::Error::other)?,
            names,
            address: Some(address),
        })
    }

    /// A client's, which proves nothing.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub fn client(names: SharedNames) -> io::Result<Links> {
        let client = tls::any_server().map_err(io::Error::other)?;
        Ok(Links { keys: None, server: None, client, names, address: None })
    }

    /// What a relay shows of itself.
    pub fn certified(&self) -> Option<&Arc<Certified>> {
        self.keys.as_ref()
    }

    fn start(&self, address: SocketAddr) -> Start {
        let (keys, ours) = (self.keys.clone(), self.address);
        Start { keys, now: clock::unix(), random: random(), address: address.ip(), ours }
    }

    /// Connects to the router, and to no other.
    ///
    /// # Errors
    /// If that fails; why, in words.
    pub async fn connect(&self, router: &Router) -> io::Result<(TlsStream<Tcp>, Peer, Vec<u8>)> {
        let tcp = in_lumps(TcpStream::connect(router.address).await?)?;
        let stream = TlsConnector::from(self.client.clone()).connect(tls::name(), tcp).await?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let certificate = certificate.map(|certificate| Sha256::digest(certificate).into());
        let certificate = certificate.ok_or(io::ErrorKind::InvalidData)?;
        let handshake = Handshake::initiator(self.start(router.address), Some(router.fingerprint));
        let (stream, peer, rest) = shake(stream.into(), handshake, certificate).await?;
        let proved = peer.proved.as_ref().map(|proved| proved.ed25519);
        if router.ed25519.is_some() && router.ed25519 != proved {
            return Err(io::Error::other("the relay has another Ed25519 identity"));
        }
        Ok((stream, peer, rest))
    }

    /// Answers a connection.
    ///
    /// # Errors
    /// If the handshake fails; why, in words.
    pub async fn accept(&self, tcp: TcpStream) -> io::Result<Met> {
        let address = tcp.peer_addr()?;
        let (server, keys) =
            self.server.as_ref().zip(self.keys.as_ref()).ok_or(io::ErrorKind::Unsupported)?;
        within(PATIENCE, async {
            let stream = TlsAcceptor::from(server.clone()).accept(in_lumps(tcp)?).await?;
            let handshake = Handshake::responder(self.start(address));
            let (stream, peer, rest) = shake(stream.into(), handshake, keys.tls_digest).await?;
            let relay = peer.proved.map(|proved| {
                let ed25519 = Some(proved.ed25519);
                self.names.borrow_mut().find(Router { address, fingerprint: proved.fingerprint, ed25519 })
            });
            Ok(Met { stream, rest, peer: relay, ours: peer.ours })
        })
        .await
    }
}

async fn shake(
    mut stream: TlsStream<Tcp>,
    mut handshake: Handshake,
    certificate: [u8; 32],
) -> io::Result<(TlsStream<Tcp>, Peer, Vec<u8>)> {
    let mut buffer = [0; 4096];
    loop {
        stream.write_all(&handshake.output()).await?;
        stream.flush().await?;
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let binding = Binding { certificate, stream: &stream };
        let met = handshake.receive(&buffer[..count], &binding).map_err(io::Error::other)?;
        if let Some(peer) = met {
            stream.write_all(&handshake.output()).await?;
            stream.flush().await?;
            return Ok((stream, peer, handshake.rest().to_vec()));
        }
    }
}

impl Dial for std::rc::Rc<Links> {
    async fn dial(&self, relay: RelayId) -> io::Result<Met> {
        let router = self.names.borrow().router(relay).ok_or(io::ErrorKind::NotFound)?;
        let (stream, peer, rest) = self.connect(&router).await?;
        Ok(Met { stream, rest, peer: Some(relay), ours: peer.ours })
    }

    fn opened(&self, relay: RelayId) {
        self.names.borrow_mut().connected(relay);
    }

    fn ended(&self, relay: RelayId, was_open: bool) {
        self.names.borrow_mut().disconnected(relay, was_open);
    }
}
