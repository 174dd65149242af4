//! Wire format of relay messages (tor-spec, "Relay cells").

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use super::layer::{BODY, Body};
use super::names::{Peer, Router, Target};
use crate::cell::{DATA_BYTES, EndReason, Message, Nonce, Payload, RelayId, StreamId};
use crate::conflux::Link;
use crate::onion::{Malformed, Onion};

/// Relay commands.
const BEGIN: u8 = 1;
const DATA: u8 = 2;
const END: u8 = 3;
const CONNECTED: u8 = 4;
const SENDME: u8 = 5;
const TRUNCATE: u8 = 8;
const TRUNCATED: u8 = 9;
const RESOLVE: u8 = 11;
const RESOLVED: u8 = 12;
const BEGIN_DIR: u8 = 13;
const EXTEND2: u8 = 14;
const EXTENDED2: u8 = 15;
/// Conflux commands (proposal 329).
const LINK: u8 = 19;
const LINKED: u8 = 20;
const LINKED_ACK: u8 = 21;
const SWITCH: u8 = 22;
/// Flow control commands (proposal 324).
const XOFF: u8 = 43;
const XON: u8 = 44;
/// Commands that move streams between circuits ([`crate::switching`]). They extend Tor's numbers.
const LEAVE: u8 = 241;
const JOIN: u8 = 242;

/// Link specifiers: IPv4, IPv6, RSA fingerprint, Ed25519 identity, and our extension, a relay's number in a directory.
const IPV4: u8 = 0;
const IPV6: u8 = 1;
const FINGERPRINT: u8 = 2;
const ED25519: u8 = 3;
const NUMBER: u8 = 241;

/// Bytes of a relay header: command, recognized, stream, digest, length.
const HEADER: usize = 11;

/// Onion routing with Tor's message format.
pub(super) trait Tors: Onion<Body = Body, Data = Box<[u8]>, Address = Target, Peer = Peer> {}
impl<O: Onion<Body = Body, Data = Box<[u8]>, Address = Target, Peer = Peer>> Tors for O {}

/// A message's body, without layers.
pub(super) fn write<O: Tors>(message: &Message<O>) -> Body {
    let mut bytes = Box::new([0; BODY]);
    let (command, length) = {
        let data = &mut bytes[HEADER..];
        let mut put = |parts: &[&[u8]]| {
            let mut at = 0;
            for part in parts {
                data[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            at
        };
        match &message.payload {
            Payload::Data(length, data) => (DATA, put(&[&data[..usize::from(*length)]])),
            Payload::Begin(Target::Directory) => (BEGIN_DIR, 0),
            Payload::Begin(Target::Resolve(host)) => (RESOLVE, put(&[host.as_bytes(), &[0]])),
            Payload::Begin(target @ Target::Host { flags, .. }) => {
                (BEGIN, put(&[target.to_string().as_bytes(), &[0], &flags.to_be_bytes()]))
            }
            Payload::Connected => (CONNECTED, 0),
            Payload::Resolved(answer) => (RESOLVED, put(&[answer])),
            Payload::End(EndReason(reason)) => (END, put(&[&[*reason]])),
            Payload::Sendme(None) => (SENDME, 0),
            Payload::Sendme(Some(digest)) => (SENDME, put(&[&[1, 0, 20], digest])),
            // Version 0; a rate of 0 means unlimited (proposal 324).
            Payload::Xoff => (XOFF, put(&[&[0]])),
            Payload::Xon => (XON, put(&[&[0; 5]])),
            Payload::Leave(Nonce(nonce)) => (LEAVE, put(&[nonce])),
            Payload::Join(Nonce(nonce)) => (JOIN, put(&[nonce])),
            Payload::Link(link) => (LINK, put(&[&link.write()])),
            Payload::Linked(link) => (LINKED, put(&[&link.write()])),
            Payload::LinkedAck => (LINKED_ACK, 0),
            Payload::Switch(missed) => (SWITCH, put(&[&missed.to_be_bytes()])),
            Payload::Extend(peer, Body(create)) => {
                // The handshake's type and length precede it.
                let handshake = 4 + usize::from(u16::from_be_bytes([create[2], create[3]]));
                (EXTEND2, put(&[&specifiers(peer), &create[..handshake]]))
            }
            Payload::Extended(Body(created)) => {
                let handshake = usize::from(u16::from_be_bytes([created[0], created[1]]));
                // A length beyond the message is cut here; the client refuses the handshake then.
                (EXTENDED2, put(&[&created[..(2 + handshake).min(usize::from(DATA_BYTES))]]))
            }
            Payload::Truncate => (TRUNCATE, put(&[&[0]])),
            Payload::Truncated => (TRUNCATED, 0),
            // DROP
            Payload::Misread | Payload::Nothing => (10, 0),
        }
    };
    bytes[0] = command;
    bytes[3..5].copy_from_slice(&message.stream.0.to_be_bytes());
    bytes[9..11].copy_from_slice(&(length as u16).to_be_bytes());
    Body(bytes)
}

/// Whether a target fits into a message.
pub fn fits(target: &Target) -> bool {
    target.to_string().len() + 5 <= usize::from(DATA_BYTES)
}

fn specifiers(peer: &Peer) -> Vec<u8> {
    match peer {
        Peer::Number(RelayId(number)) => [&[1, NUMBER, 4], &number.to_be_bytes()[..]].concat(),
        Peer::Router(Router { address, fingerprint, ed25519 }) => {
            let mut bytes = vec![2 + u8::from(ed25519.is_some())];
            match address {
                SocketAddr::V4(address) => {
                    bytes.extend_from_slice(&[IPV4, 6]);
                    bytes.extend_from_slice(&address.ip().octets());
                }
                SocketAddr::V6(address) => {
                    bytes.extend_from_slice(&[IPV6, 18]);
                    bytes.extend_from_slice(&address.ip().octets());
                }
            }
            bytes.extend_from_slice(&address.port().to_be_bytes());
            bytes.extend_from_slice(&[FINGERPRINT, 20]);
            bytes.extend_from_slice(fingerprint);
            if let Some(identity) = ed25519 {
                bytes.extend_from_slice(&[ED25519, 32]);
                bytes.extend_from_slice(identity);
            }
            bytes
        }
    }
}

fn read_specifiers(data: &[u8]) -> Option<(Peer, &[u8])> {
    let (&count, mut rest) = data.split_first()?;
    let (mut v4, mut v6, mut fingerprint, mut ed25519, mut number) = (None, None, None, None, None);
    for _ in 0..count {
        let (&[kind, length], bytes) = rest.split_first_chunk::<2>()?;
        let (value, next) = bytes.split_at_checked(usize::from(length))?;
        rest = next;
        match (kind, value) {
            (IPV4, [a, b, c, d, port @ ..]) => {
                let port = u16::from_be_bytes(port.try_into().ok()?);
                v4.get_or_insert(SocketAddr::from((Ipv4Addr::new(*a, *b, *c, *d), port)));
            }
            (IPV6, _) => {
                let (address, port) = value.split_first_chunk::<16>()?;
                let port = u16::from_be_bytes(port.try_into().ok()?);
                v6.get_or_insert(SocketAddr::from((Ipv6Addr::from(*address), port)));
            }
            (FINGERPRINT, _) => fingerprint = Some(value.try_into().ok()?),
            (ED25519, _) => ed25519 = Some(value.try_into().ok()?),
            (NUMBER, _) => number = Some(RelayId(u32::from_be_bytes(value.try_into().ok()?))),
            _ => {}
        }
    }
    // Unknown specifiers are ignored (tor-spec, "EXTEND and EXTENDED cells"); ours comes alone.
    if let (Some(number), 1) = (number, count) {
        return Some((Peer::Number(number), rest));
    }
    let router = Router { address: v4.or(v6)?, fingerprint: fingerprint?, ed25519 };
    Some((Peer::Router(router), rest))
}

fn body(bytes: &[u8]) -> Body {
    let mut body = Box::new([0; BODY]);
    body[..bytes.len()].copy_from_slice(bytes);
    Body(body)
}

/// Parses a body without layers.
pub(super) fn read<O: Tors>(body: &[u8; BODY]) -> Result<Message<O>, Malformed> {
    let stream = StreamId(u16::from_be_bytes([body[3], body[4]]));
    let length = usize::from(u16::from_be_bytes([body[9], body[10]]));
    let data = body[HEADER..].get(..length).ok_or(Malformed)?;
    let payload = match (body[0], data) {
        (DATA, _) => Payload::Data(length as u16, data.into()),
        (BEGIN, _) => begin(data).map_or(Payload::Misread, Payload::Begin),
        (RESOLVE, _) => {
            text(data).map_or(Payload::Misread, |(name, _)| Payload::Begin(Target::Resolve(name.to_owned())))
        }
        (BEGIN_DIR, _) => Payload::Begin(Target::Directory),
        (CONNECTED, _) => Payload::Connected,
        (RESOLVED, _) => Payload::Resolved(data.into()),
        (END, _) => Payload::End(data.first().map_or(EndReason::MISC, |reason| EndReason(*reason))),
        (SENDME, [] | [0, ..]) => Payload::Sendme(None),
        (SENDME, [1, 0, 20, digest @ ..]) => Payload::Sendme(Some(*digest.first_chunk().ok_or(Malformed)?)),
        (XOFF, [0]) => Payload::Xoff,
        (XON, [0, _, _, _, _]) => Payload::Xon,
        (LEAVE, _) => Payload::Leave(Nonce(data.try_into().map_err(|_| Malformed)?)),
        (JOIN, _) => Payload::Join(Nonce(data.try_into().map_err(|_| Malformed)?)),
        (LINK, _) => Payload::Link(Box::new(Link::read(data).ok_or(Malformed)?)),
        (LINKED, _) => Payload::Linked(Box::new(Link::read(data).ok_or(Malformed)?)),
        (LINKED_ACK, _) => Payload::LinkedAck,
        // Tor pads the cell behind it.
        (SWITCH, _) => Payload::Switch(u32::from_be_bytes(*data.first_chunk().ok_or(Malformed)?)),
        (EXTEND2, _) => {
            let (peer, handshake) = read_specifiers(data).ok_or(Malformed)?;
            let head = handshake.get(2..4).ok_or(Malformed)?;
            let handshake_length = 4 + usize::from(u16::from_be_bytes([head[0], head[1]]));
            Payload::Extend(peer, self::body(handshake.get(..handshake_length).ok_or(Malformed)?))
        }
        (EXTENDED2, [high, low, rest @ ..])
            if usize::from(u16::from_be_bytes([*high, *low])) <= rest.len() =>
        {
            Payload::Extended(self::body(data))
        }
        (TRUNCATE, _) => Payload::Truncate,
        (TRUNCATED, _) => Payload::Truncated,
        (SENDME | XOFF | XON | EXTENDED2, _) => return Err(Malformed),
        _ => Payload::Nothing,
    };
    Ok(Message { stream, payload })
}

/// Parses the target of a stream.
fn begin(data: &[u8]) -> Option<Target> {
    let (text, rest) = text(data)?;
    let flags = rest.first_chunk::<4>().map_or(0, |flags| u32::from_be_bytes(*flags));
    Target::parse(text, flags)
}

/// Splits off a text that ends with a zero byte.
fn text(data: &[u8]) -> Option<(&str, &[u8])> {
    let end = data.iter().position(|byte| *byte == 0)?;
    Some((std::str::from_utf8(&data[..end]).ok()?, &data[end + 1..]))
}
