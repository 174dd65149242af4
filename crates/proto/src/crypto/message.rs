//! Wire format of relay messages (tor-spec, "Relay cells").

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::Bytes;

use super::cgo;
use super::layer::{BODY, Body, Buffer};
use super::names::{Peer, Router, Target};
use crate::cell::{Digest, EndReason, Message, Nonce, Payload, RelayId, ServiceCommand, StreamId};
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
const DROP: u8 = 10;
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

/// Bytes of a relay header of format 0: command, recognized, stream, digest, length.
const HEADER: usize = 11;

/// Onion routing with Tor's message format.
pub(super) trait Tors: Onion<Body = Body, Data = Bytes, Address = Target, Peer = Peer> {}
impl<O: Onion<Body = Body, Data = Bytes, Address = Target, Peer = Peer>> Tors for O {}

/// How a message lies in a cell's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Under AES-CTR and SHA-1: command, "recognized", stream, digest, length, data.
    V0,
    /// Under Counter Galois Onion: tag, command, length, stream if the command has one, data.
    V1,
}

/// Where format 1 has its command and its data.
const V1_COMMAND: usize = cgo::TAG;
const V1_DATA: usize = V1_COMMAND + 3;
/// Bytes of a stream id.
const STREAM: usize = 2;

/// Whether messages with this command belong to a stream. In format 1 only they have a stream id.
fn has_stream(command: u8) -> bool {
    matches!(command, BEGIN | DATA | END | CONNECTED | RESOLVE | RESOLVED | BEGIN_DIR | XOFF | XON)
}

/// Whether format 1 defines the command. Without that the place of its data is unknown.
fn is_known(command: u8) -> bool {
    // 16 to 18 are reserved, 32 to 42 belong to onion services and padding.
    matches!(command, BEGIN..=EXTENDED2 | LINK..=SWITCH | 32..=XON | LEAVE | JOIN)
}

impl Format {
    /// Bytes of application data that a message takes.
    pub(crate) fn data_bytes(self) -> u16 {
        (BODY - self.data_at(DATA)) as u16
    }

    /// Bytes that a message without a stream takes.
    pub(crate) fn circuit_bytes(self) -> u16 {
        (BODY - self.data_at(SENDME)) as u16
    }

    /// Where the data of a message begins.
    fn data_at(self, command: u8) -> usize {
        match self {
            Format::V0 => HEADER,
            Format::V1 if has_stream(command) => V1_DATA + STREAM,
            Format::V1 => V1_DATA,
        }
    }

    fn write_header(self, bytes: &mut [u8; BODY], command: u8, stream: StreamId, length: usize) {
        let length = (length as u16).to_be_bytes();
        let (command_at, length_at, stream_at) = match self {
            Format::V0 => (0, 9, 3),
            Format::V1 => (V1_COMMAND, V1_COMMAND + 1, V1_DATA),
        };
        bytes[command_at] = command;
        bytes[length_at..length_at + 2].copy_from_slice(&length);
        if self == Format::V0 || has_stream(command) {
            bytes[stream_at..stream_at + STREAM].copy_from_slice(&stream.0.to_be_bytes());
        }
    }

    /// Command, stream and data of a body.
    fn parts(self, body: &[u8; BODY]) -> Result<(u8, StreamId, &[u8]), Malformed> {
        let number = |at: usize| u16::from_be_bytes([body[at], body[at + 1]]);
        let (command, stream, length) = match self {
            Format::V0 => (body[0], number(3), number(9)),
            Format::V1 => {
                let command = body[V1_COMMAND];
                let stream = if has_stream(command) { number(V1_DATA) } else { 0 };
                if !is_known(command) || (has_stream(command) && stream == 0) {
                    return Err(Malformed);
                }
                (command, stream, number(V1_COMMAND + 1))
            }
        };
        let data = body[self.data_at(command)..].get(..usize::from(length)).ok_or(Malformed)?;
        Ok((command, StreamId(stream), data))
    }
}

/// A message's body, without layers.
pub(super) fn write<O: Tors>(message: &Message<O>, format: Format) -> Body {
    let mut bytes = Buffer::zeros();
    let command = command(&message.payload);
    let length = write_data(&message.payload, &mut bytes[format.data_at(command)..]);
    format.write_header(&mut bytes, command, message.stream, length);
    Body(bytes)
}

fn command<O: Tors>(payload: &Payload<O>) -> u8 {
    match payload {
        Payload::Data(..) => DATA,
        Payload::Begin(Target::Directory) => BEGIN_DIR,
        Payload::Begin(Target::Resolve(_)) => RESOLVE,
        Payload::Begin(Target::Host { .. }) => BEGIN,
        Payload::Connected => CONNECTED,
        Payload::Resolved(_) => RESOLVED,
        Payload::End(_) | Payload::Refused(..) => END,
        Payload::Sendme(_) => SENDME,
        Payload::Xoff => XOFF,
        Payload::Xon(_) => XON,
        Payload::Leave(_) => LEAVE,
        Payload::Join(_) => JOIN,
        Payload::Link(_) => LINK,
        Payload::Linked(_) => LINKED,
        Payload::LinkedAck => LINKED_ACK,
        Payload::Switch(_) => SWITCH,
        Payload::Extend(..) => EXTEND2,
        Payload::Extended(_) => EXTENDED2,
        Payload::Truncate => TRUNCATE,
        Payload::Truncated => TRUNCATED,
        Payload::Service(command, _) => *command as u8,
        Payload::Misread | Payload::Nothing => DROP,
    }
}

/// Writes a message's data. Returns its length.
fn write_data<O: Tors>(payload: &Payload<O>, data: &mut [u8]) -> usize {
    let room = data.len();
    let mut put = |parts: &[&[u8]]| {
        let mut at = 0;
        for part in parts {
            data[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        at
    };
    match payload {
        Payload::Data(length, data) => put(&[&data[..usize::from(*length)]]),
        Payload::Begin(Target::Directory) => 0,
        Payload::Begin(Target::Resolve(host)) => put(&[host.as_bytes(), &[0]]),
        Payload::Begin(target @ Target::Host { flags, .. }) => {
            put(&[target.to_string().as_bytes(), &[0], &flags.to_be_bytes()])
        }
        Payload::Resolved(bytes) | Payload::Service(_, bytes) => put(&[bytes]),
        Payload::End(EndReason(reason)) => put(&[&[*reason]]),
        // tor-spec, "Closing streams": a client that is not told the address avoids the exit altogether.
        Payload::Refused(address, seconds) => {
            let octets: &[u8] = match address {
                IpAddr::V4(v4) => &v4.octets(),
                IpAddr::V6(v6) => &v6.octets(),
            };
            put(&[&[EndReason::EXIT_POLICY.0], octets, &seconds.to_be_bytes()])
        }
        Payload::Sendme(None) => 0,
        Payload::Sendme(Some(digest)) => {
            let digest = digest.bytes();
            put(&[&[1, 0, digest.len() as u8], digest])
        }
        // The first byte is the version (proposal 324).
        Payload::Xoff => put(&[&[0]]),
        Payload::Xon(rate) => put(&[&[0], &rate.to_be_bytes()]),
        Payload::Leave(Nonce(nonce)) | Payload::Join(Nonce(nonce)) => put(&[nonce]),
        Payload::Link(link) | Payload::Linked(link) => put(&[&link.write()]),
        Payload::Switch(missed) => put(&[&missed.to_be_bytes()]),
        Payload::Extend(peer, Body(create)) => {
            // The handshake's type and length precede it.
            let handshake = 4 + usize::from(u16::from_be_bytes([create[2], create[3]]));
            put(&[&specifiers(peer), &create[..handshake]])
        }
        Payload::Extended(Body(created)) => {
            let handshake = usize::from(u16::from_be_bytes([created[0], created[1]]));
            // A length beyond the message is cut here; the client refuses the handshake then.
            put(&[&created[..(2 + handshake).min(room)]])
        }
        Payload::Truncate => put(&[&[0]]),
        Payload::Connected
        | Payload::LinkedAck
        | Payload::Truncated
        | Payload::Misread
        | Payload::Nothing => 0,
    }
}

/// Whether a target fits into a message.
pub fn fits(target: &Target) -> bool {
    target.to_string().len() + 5 <= usize::from(Format::V1.data_bytes())
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

/// Parses a body without layers.
pub(super) fn read<O: Tors>(body: &[u8; BODY], format: Format) -> Result<Message<O>, Malformed> {
    let (command, stream, data) = format.parts(body)?;
    let payload = match (command, data) {
        (DATA, _) => Payload::Data(data.len() as u16, Bytes::copy_from_slice(data)),
        (BEGIN, _) => begin(data).map_or(Payload::Misread, Payload::Begin),
        (RESOLVE, _) => {
            text(data).map_or(Payload::Misread, |(name, _)| Payload::Begin(Target::Resolve(name.to_owned())))
        }
        (BEGIN_DIR, _) => Payload::Begin(Target::Directory),
        (CONNECTED, _) => Payload::Connected,
        (RESOLVED, _) => Payload::Resolved(data.into()),
        (END, _) => Payload::End(data.first().map_or(EndReason::MISC, |reason| EndReason(*reason))),
        (SENDME, [] | [0, ..]) => Payload::Sendme(None),
        (SENDME, [1, 0, length, digest @ ..]) => {
            let digest = digest.get(..usize::from(*length)).and_then(Digest::read).ok_or(Malformed)?;
            Payload::Sendme(Some(digest))
        }
        (XOFF, [0]) => Payload::Xoff,
        (XON, [0, a, b, c, d]) => Payload::Xon(u32::from_be_bytes([*a, *b, *c, *d])),
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
            Payload::Extend(peer, Body::of(&[handshake.get(..handshake_length).ok_or(Malformed)?]))
        }
        (EXTENDED2, [high, low, rest @ ..])
            if usize::from(u16::from_be_bytes([*high, *low])) <= rest.len() =>
        {
            Payload::Extended(Body::of(&[data]))
        }
        (TRUNCATE, _) => Payload::Truncate,
        (TRUNCATED, _) => Payload::Truncated,
        (SENDME | XOFF | XON | EXTENDED2, _) => return Err(Malformed),
        (command, _) => match ServiceCommand::read(command) {
            Some(command) => Payload::Service(command, data.into()),
            None => Payload::Nothing,
        },
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
