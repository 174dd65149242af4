//! A neighbour that sends arbitrary cells to a relay and reads the answers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use rustls::pki_types::ServerName;
use sha2::{Digest as _, Sha256};
use tidegate_control::units::Span;
use tidegate_net::identity::random;
use tidegate_net::{clock, link, tls};
use tidegate_proto::crypto::cert::{RouterKeys, Signing};
use tidegate_proto::crypto::layer::{BODY, Layer};
use tidegate_proto::crypto::link::{EXPORTER, Handshake, Start, Tls};
use tidegate_proto::crypto::wire::{self, Splitter, command};
use tidegate_proto::crypto::{KeyLifetimes, Router, fast};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How long to wait for a cell that may not come.
const SILENCE: Duration = Duration::from_millis(700);
/// How long to wait for a cell that must come, also on a busy machine.
const ANSWER: Duration = Duration::from_secs(60);

/// Cell commands.
pub const CREATED_FAST: u8 = 6;
pub const RELAY: u8 = 3;
pub const DESTROY: u8 = 4;
pub const CREATE_FAST: u8 = 5;
pub const EARLY: u8 = 9;
pub const CREATE2: u8 = 10;
pub const CREATED2: u8 = 11;
/// Relay commands.
pub const BEGIN: u8 = 1;
pub const DATA: u8 = 2;
pub const END: u8 = 3;
pub const CONNECTED: u8 = 4;
pub const SENDME: u8 = 5;
pub const TRUNCATE: u8 = 8;
pub const RESOLVE: u8 = 11;
pub const RESOLVED: u8 = 12;
pub const BEGIN_DIR: u8 = 13;
pub const EXTEND2: u8 = 14;
pub const EXTENDED2: u8 = 15;
pub const XOFF: u8 = 43;

/// A circuit id of the initiator.
pub const CIRCUIT: u32 = 0x8000_0001;

/// A relay's reaction to a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It closes the connection.
    Closed,
    /// It closes the circuit, with this reason.
    Destroyed(u8),
    /// It closes the stream, with this reason.
    Ended(u8),
    /// It ignores the fault: the circuit, or without one the connection, still works.
    Ignored,
}

/// The TLS values that a link handshake needs.
struct Binding<'a>(&'a TlsStream<link::BufferedTcp>);

impl Tls for Binding<'_> {
    fn certificate(&self) -> [u8; 32] {
        Sha256::digest(&self.0.get_ref().1.peer_certificates().unwrap()[0]).into()
    }
    fn export(&self, context: &[u8]) -> [u8; 32] {
        self.0.get_ref().1.export_keying_material([0; 32], EXPORTER, Some(context)).unwrap()
    }
}

/// The relay under test.
#[derive(Clone, Copy)]
pub struct Relay {
    pub address: SocketAddr,
    pub fingerprint: [u8; 20],
}

impl From<Router> for Relay {
    fn from(router: Router) -> Relay {
        Relay { address: router.address, fingerprint: router.fingerprint }
    }
}

/// A connection with it.
pub struct Link {
    stream: TlsStream<link::BufferedTcp>,
    splitter: Splitter,
    forward: Layer,
    backward: Layer,
}

pub async fn connect(relay: Relay) -> TlsStream<link::BufferedTcp> {
    secure(TcpStream::connect(relay.address).await.unwrap()).await
}

async fn secure(tcp: TcpStream) -> TlsStream<link::BufferedTcp> {
    let tcp = link::buffered(tcp).unwrap();
    TlsConnector::from(tls::any_server().unwrap())
        .connect(ServerName::try_from("tidegate.invalid").unwrap(), tcp)
        .await
        .unwrap()
}

/// Runs a link handshake, as a relay if given keys. `change` modifies the outgoing cells. `None`: the relay closed.
pub async fn shake(relay: Relay, keys: Option<&RouterKeys>, change: impl Fn(&mut Vec<u8>)) -> Option<Link> {
    shake_over(connect(relay).await, relay, keys, change).await
}

async fn shake_over(
    mut stream: TlsStream<link::BufferedTcp>,
    relay: Relay,
    keys: Option<&RouterKeys>,
    change: impl Fn(&mut Vec<u8>),
) -> Option<Link> {
    let now = clock::unix();
    let [signing, link] = KeyLifetimes::default().certified(now);
    let certify = |keys: &RouterKeys| keys.certify(Signing::new(random(), signing), link, &[], random());
    let keys = keys.map(|keys| certify(keys).into());
    let start = Start {
        keys,
        now,
        random: random(),
        address: relay.address.ip(),
        ours: Vec::new(),
        quic: true,
        extensions: true,
    };
    let mut handshake = Handshake::initiator(start, Some(relay.fingerprint));
    let mut buffer = [0; 4096];
    loop {
        let mut bytes = handshake.output();
        change(&mut bytes);
        stream.write_all(&bytes).await.ok()?;
        let count = stream.read(&mut buffer).await.unwrap_or(0);
        if count == 0 {
            return None;
        }
        let met = handshake.receive(&buffer[..count], &Binding(&stream)).unwrap();
        if met.is_some() {
            let mut bytes = handshake.output();
            change(&mut bytes);
            stream.write_all(&bytes).await.ok()?;
            stream.flush().await.ok()?;
            let splitter = Splitter::new(handshake.rest());
            let none = || Layer::new(&[0; 16], &[0; 20]);
            return Some(Link { stream, splitter, forward: none(), backward: none() });
        }
    }
}

/// A link after a valid handshake.
pub async fn good(relay: Relay) -> Link {
    shake(relay, None, |_| {}).await.expect("a handshake without faults")
}

/// A link with a circuit.
pub async fn circuit(relay: Relay) -> Link {
    let mut link = good(relay).await;
    link.create().await;
    link
}

/// An address of this machine: the 127.0.0.0/8 network stands for strangers from different networks.
pub fn host(number: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, number).into()
}

/// As [`good`], from this address.
pub async fn good_from(source: IpAddr, relay: Relay) -> Link {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((source, 0).into()).unwrap();
    let stream = secure(socket.connect(relay.address).await.unwrap()).await;
    shake_over(stream, relay, None, |_| {}).await.expect("a handshake without faults")
}

/// As [`circuit`], from this address.
pub async fn circuit_from(source: IpAddr, relay: Relay) -> Link {
    let mut link = good_from(source, relay).await;
    link.create().await;
    link
}

/// An unencrypted relay message.
pub fn message(command: u8, stream: u16, data: &[u8]) -> [u8; BODY] {
    let mut body = [0; BODY];
    body[0] = command;
    body[3..5].copy_from_slice(&stream.to_be_bytes());
    body[9..11].copy_from_slice(&(data.len() as u16).to_be_bytes());
    body[11..][..data.len()].copy_from_slice(data);
    body
}

/// BEGIN of a stream to an address.
pub fn begin(stream: u16, to: SocketAddr) -> [u8; BODY] {
    message(BEGIN, stream, format!("{to}\0\0\0\0\0").as_bytes())
}

/// EXTEND2 to an IPv4 or IPv6 address and an identity.
pub fn extend(to: SocketAddr, identity: [u8; 20]) -> [u8; BODY] {
    let (kind, ip) = match to.ip() {
        IpAddr::V4(ip) => (0, ip.octets().to_vec()),
        IpAddr::V6(ip) => (1, ip.octets().to_vec()),
    };
    let address = [&[kind, ip.len() as u8 + 2][..], &ip, &to.port().to_be_bytes()].concat();
    let identity = [&[2, 20][..], &identity].concat();
    message(EXTEND2, 0, &[&[2][..], &address, &identity, &[0, 2, 0, 84], &[7; 84]].concat())
}

impl Link {
    pub async fn cell(&mut self, circuit: u32, command: u8, body: &[u8]) {
        let mut cell = circuit.to_be_bytes().to_vec();
        cell.push(command);
        if wire::is_variable(command) {
            cell.extend_from_slice(&(body.len() as u16).to_be_bytes());
        }
        cell.extend_from_slice(body);
        if !wire::is_variable(command) {
            cell.resize(wire::FIXED, 0);
        }
        // Reading detects that the relay has closed.
        let _ = self.stream.write_all(&cell).await;
        let _ = self.stream.flush().await;
    }

    /// Reads the next cell; `Ok(None)` if none comes in this time. An error means closed.
    async fn next(&mut self, within: Duration) -> Result<Option<(u32, u8, Vec<u8>)>, ()> {
        loop {
            if let Some((circuit, number, body)) = self.splitter.take().unwrap() {
                let cell = (circuit.0, number, body.to_vec());
                if [command::PADDING, command::VPADDING, command::NETINFO].contains(&number) {
                    continue;
                }
                return Ok(Some(cell));
            }
            let read = link::read_some(&mut self.stream, self.splitter.space());
            match tokio::time::timeout(within, read).await {
                Err(_) => return Ok(None),
                Ok(Ok(count @ 1..)) => self.splitter.filled(count),
                Ok(_) => return Err(()),
            }
        }
    }

    /// Waits for padding; `None` if none comes in this time.
    pub async fn padding(&mut self, within: Span) -> Option<Span> {
        let begun = clock::now();
        loop {
            if let Some((_, number, _)) = self.splitter.take().unwrap() {
                if number == command::PADDING {
                    return Some(clock::now().since(begun));
                }
                continue;
            }
            let read = link::read_some(&mut self.stream, self.splitter.space());
            let count = tokio::select! {
                count = read => count.expect("it stays open"),
                () = clock::until(begun + within) => return None,
            };
            self.splitter.filled(count);
        }
    }

    pub async fn create(&mut self) {
        let half: [u8; fast::HALF] = random();
        self.cell(CIRCUIT, CREATE_FAST, &half).await;
        let (circuit, number, body) = self.next(ANSWER).await.unwrap().expect("it answers");
        assert_eq!((circuit, number), (CIRCUIT, CREATED_FAST));
        let (keys, proof) = fast::derive(&half, body[..20].try_into().unwrap());
        assert_eq!(proof, body[20..40]);
        self.forward = Layer::new(&keys.forward, &keys.forward_digest);
        self.backward = Layer::new(&keys.backward, &keys.backward_digest);
    }

    /// Begins a circuit of this number, to which nothing can be said. Returns whether the relay created it.
    pub async fn begins(&mut self, circuit: u32) -> bool {
        let half: [u8; fast::HALF] = random();
        self.cell(circuit, CREATE_FAST, &half).await;
        self.created().await
    }

    /// Whether the next cell, an answer to CREATE_FAST, says that the relay created the circuit.
    pub async fn created(&mut self) -> bool {
        let (_, number, _) = self.next(ANSWER).await.unwrap().expect("it answers");
        number == CREATED_FAST
    }

    /// Sends a message on the circuit.
    pub async fn say(&mut self, number: u8, mut body: [u8; BODY]) {
        self.forward.seal(&mut body);
        self.cell(CIRCUIT, number, &body).await;
    }

    /// Reads a message of the circuit, or another reaction. One of them must come.
    pub async fn hear(&mut self) -> Result<[u8; BODY], Answer> {
        let heard = self.heard(ANSWER).await;
        assert_ne!(heard, Err(Answer::Ignored), "the relay does not answer");
        heard
    }

    /// As [`Link::hear`], but the relay may stay silent.
    pub async fn hear_or_silence(&mut self) -> Result<[u8; BODY], Answer> {
        self.heard(SILENCE).await
    }

    async fn heard(&mut self, within: Duration) -> Result<[u8; BODY], Answer> {
        match self.next(within).await {
            Err(()) => Err(Answer::Closed),
            Ok(None) => Err(Answer::Ignored),
            Ok(Some((_, DESTROY, body))) => Err(Answer::Destroyed(body[0])),
            Ok(Some((_, RELAY, body))) => {
                let mut body: [u8; BODY] = body.try_into().unwrap();
                self.backward.pass(&mut body);
                assert!(self.backward.recognises(&body));
                Ok(body)
            }
            Ok(Some(other)) => panic!("{other:?}"),
        }
    }

    /// The reaction to a fault of an open circuit.
    pub async fn answer(&mut self) -> Answer {
        loop {
            match self.hear_or_silence().await {
                Ok(body) if body[0] == END => return Answer::Ended(body[11]),
                Ok(_) => {}
                Err(Answer::Ignored) => break,
                Err(other) => return other,
            }
        }
        // A directory request must be answered, even by 404. On a busy machine the reaction may come just before.
        self.say(RELAY, message(BEGIN_DIR, 77, &[])).await;
        loop {
            match self.hear().await {
                Ok(body) if body[3..5] == [0, 77] => return Answer::Ignored,
                Ok(body) if body[0] == END => return Answer::Ended(body[11]),
                Ok(_) => {}
                Err(other) => return other,
            }
        }
    }

    /// The reaction to a fault of a link without a circuit.
    pub async fn link_answer(&mut self) -> Answer {
        match self.next(SILENCE).await {
            Err(()) => return Answer::Closed,
            Ok(Some((_, DESTROY, body))) => return Answer::Destroyed(body[0]),
            Ok(Some(other)) => panic!("{other:?}"),
            Ok(None) => {}
        }
        let half: [u8; fast::HALF] = random();
        self.cell(CIRCUIT + 1, CREATE_FAST, &half).await;
        match self.next(ANSWER).await {
            Ok(Some((_, CREATED_FAST, _))) => Answer::Ignored,
            // On a busy machine the reaction may come after the silence.
            Ok(Some((CIRCUIT, DESTROY, body))) => Answer::Destroyed(body[0]),
            Err(()) => Answer::Closed,
            other => panic!("{other:?}"),
        }
    }

    /// Requests a directory document until `count` DATA cells came. Returns the digest that acknowledges the last
    /// one.
    pub async fn digest_of(&mut self, cells: u32) -> [u8; 20] {
        let (mut come, mut stream, mut digest) = (0, 1, None);
        loop {
            self.say(RELAY, message(BEGIN_DIR, stream, &[])).await;
            self.say(RELAY, message(DATA, stream, b"GET /tor/none HTTP/1.0\r\n\r\n")).await;
            loop {
                let body = self.hear().await.expect("the directory answers");
                come += u32::from(body[0] == DATA);
                if body[0] == DATA && come == cells {
                    digest = Some(self.backward.digest());
                }
                if body[0] == END {
                    break;
                }
            }
            if let Some(digest) = digest {
                return digest;
            }
            stream += 1;
        }
    }
}
