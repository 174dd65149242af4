//! Streams: their wire format, and a server and a viewer under arbitrary datagrams and messages.

use bytes::Bytes;
use tidegate_control::machine::Machine as _;
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_stream::message::{Contact, Join, Message, VERSION, Welcome};
use tidegate_stream::packet;
use tidegate_stream::server::{Server, ServerConfig};
use tidegate_stream::signing::SharedChecks;
use tidegate_stream::viewer::{SKIP_AFTER, Viewer, ViewerConfig};
use tidegate_stream::{Input, Peer, SERVER};

/// Messages and datagrams: writing and reading again gives the same.
pub fn stream_wire(input: &[u8]) {
    if let Some(message) = Message::decode(input) {
        assert_eq!(Message::decode(&message.encode()), Some(message));
    }
    let _ = packet::decode(&input.to_vec().into());
    let _ = packet::share(input);
}

/// One event at a server or a viewer.
#[derive(Debug, arbitrary::Arbitrary)]
enum Event {
    /// A QUIC datagram (RFC 9221) from peer `from`.
    Datagram { from: u8, bytes: Vec<u8> },
    /// A message from peer `from`, in wire format.
    Message { from: u8, bytes: Vec<u8> },
    /// The connection to the peer ended.
    Lost { from: u8 },
    /// A peer connects to the server.
    Connect { address: u8 },
    /// The source sends packets of 188 bytes.
    Video { packets: u8 },
    /// Time passes, and the machine acts.
    Wait { ms: u16 },
}

/// Outputs of one event. More are a loop.
const OUTPUTS: usize = 100_000;

/// The server's Ed25519 key, secret and public.
const SECRET: [u8; 32] = [1; 32];
const PUBLIC: [u8; 32] = [
    0x8a, 0x88, 0xe3, 0xdd, 0x74, 0x09, 0xf1, 0x95, 0xfd, 0x52, 0xdb, 0x2d, 0x3c, 0xba, 0x5d, 0x72, 0xca,
    0x67, 0x09, 0xbf, 0x1d, 0x94, 0x12, 0x1b, 0xf3, 0x74, 0x88, 0x01, 0xb4, 0x0f, 0x6f, 0x5c,
];

/// A server and a viewer under arbitrary QUIC datagrams and messages at arbitrary times.
pub fn stream_datagrams(input: &[u8]) {
    let Some(events) = crate::typed::<Vec<Event>>(input) else { return };
    let mut server = Server::new(ServerConfig::new(Rate(20_000_000), 10), Seed::root(1), &SECRET);
    for n in 1..=3 {
        if let Ok(from) = server.connect(Time::ZERO, contact(n)) {
            let join = Join { version: VERSION, token: [0; 16], uplink: 8_000_000, forwards: true };
            server.handle(Time::ZERO, Input::Message { from, message: Message::Join(join) });
        }
    }
    let mut viewer = Viewer::new(ViewerConfig {
        token: [0; 16],
        uplink: Rate(6_000_000),
        forwards: true,
        skip_after: SKIP_AFTER,
        stamping: None,
        checks: SharedChecks::default(),
    });
    viewer.begin(Time::ZERO);
    let welcome = Message::Welcome(Welcome { me: 3, slices: 2, parity: 1, key: PUBLIC });
    viewer.handle(Time::ZERO, Input::Message { from: SERVER, message: welcome });
    let mut now = Time::ZERO;
    for event in events {
        let input = match event {
            Event::Datagram { from, bytes } => {
                Input::Datagram { from: Peer::from(from), bytes: Bytes::from(bytes) }
            }
            Event::Message { from, bytes } => {
                let Some(message) = Message::decode(&bytes) else { continue };
                Input::Message { from: Peer::from(from), message }
            }
            Event::Lost { from } => Input::Lost(Peer::from(from)),
            Event::Connect { address } => {
                let _ = server.connect(now, contact(address));
                continue;
            }
            Event::Video { packets } => {
                let mut bytes = vec![9; usize::from(packets) * 188];
                bytes.iter_mut().step_by(188).for_each(|first| *first = 0x47);
                server.video(now, &bytes);
                continue;
            }
            Event::Wait { ms } => {
                now += Span::from_millis(u64::from(ms));
                server.catch_up(now);
                viewer.catch_up(now);
                continue;
            }
        };
        server.handle(now, input.clone());
        viewer.handle(now, input);
        assert!(std::iter::from_fn(|| server.poll()).take(OUTPUTS).count() < OUTPUTS);
        assert!(std::iter::from_fn(|| viewer.poll()).take(OUTPUTS).count() < OUTPUTS);
    }
}

fn contact(n: u8) -> Contact {
    Contact { address: ([10, 0, 0, n], 4000).into(), fingerprint: [n; 32] }
}
