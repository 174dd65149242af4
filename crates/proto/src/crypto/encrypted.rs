//! Onion routing with its cryptography: ntor and AES-CTR layers under the machines of this crate. Relay
//! messages are Tor's (tor-spec, "Relay cells"), but for relays' names, which are the numbers that our
//! directory gives them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::layer::{BODY, Layer};
use super::ntor::{self, ClientHandshake, HopKeys, RelayPublic, RelaySecret};
use crate::cell::{Cell, Command, DATA_BYTES, Message, Nonce, Payload, RelayId, StreamId};
use crate::onion::{Malformed, Onion};
use crate::switching::Word;

/// Relay commands.
const BEGIN: u8 = 1;
const DATA: u8 = 2;
const END: u8 = 3;
const CONNECTED: u8 = 4;
/// Proposal 324.
const XOFF: u8 = 43;
const XON: u8 = 44;
const SENDME: u8 = 5;
const EXTEND2: u8 = 14;
const EXTENDED2: u8 = 15;

/// Key exchange type of ntor.
const NTOR: u16 = 2;
/// Our link specifier: a relay's number in the directory.
const NUMBER: u8 = 241;
/// Bytes of a relay header: command, recognized, stream, digest, length.
const RELAY_HEADER: usize = 11;

/// One node's keys, and those of the relays it knows.
#[derive(Clone)]
pub struct Encrypted {
    ours: Option<RelaySecret>,
    directory: BTreeMap<RelayId, RelayPublic>,
    /// Ephemeral keys are HMAC-SHA256(seed, counter).
    seed: [u8; 32],
    drawn: u64,
}

/// The body of a cell.
#[derive(Clone, PartialEq)]
pub struct Body(pub Box<[u8; BODY]>);

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({:02x?}..)", &self.0[..8])
    }
}

impl fmt::Debug for Encrypted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encrypted").field("relays", &self.directory.len()).finish_non_exhaustive()
    }
}

impl PartialEq for Encrypted {
    fn eq(&self, other: &Encrypted) -> bool {
        self.seed == other.seed && self.drawn == other.drawn && self.directory == other.directory
    }
}

/// Both directions of a hop, as one side of it keeps them.
pub struct Hop {
    forward: Layer,
    backward: Layer,
}

impl Hop {
    fn new(keys: &HopKeys) -> Hop {
        Hop {
            forward: Layer::new(&keys.forward, &keys.forward_digest),
            backward: Layer::new(&keys.backward, &keys.backward_digest),
        }
    }
}

impl Encrypted {
    /// A node that knows these relays, is one itself if it has a secret, and draws its ephemeral keys from a
    /// seed that nobody else knows and that was never used before.
    pub fn new(
        ours: Option<RelaySecret>,
        directory: BTreeMap<RelayId, RelayPublic>,
        seed: [u8; 32],
    ) -> Encrypted {
        Encrypted { ours, directory, seed, drawn: 0 }
    }

    fn draw(&mut self) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.seed).expect("HMAC takes keys of any size");
        mac.update(&self.drawn.to_be_bytes());
        self.drawn += 1;
        mac.finalize().into_bytes().into()
    }
}

/// Commands of moves between neighbours ([`crate::switching`]), and relay commands of moves between client
/// and exit: ours, beyond Tor's numbers. The nonce comes first in the body.
const LEAVE: u8 = 241;
const JOIN: u8 = 242;
const CONGESTED: u8 = 243;
/// Trajectories ([`crate::control::predictor`]). Their length comes first in the body.
const PLAN: u8 = 244;

/// Appends a cell as it goes over the wire.
pub fn write_cell(cell: &Cell<Encrypted>, wire: &mut Vec<u8>) {
    let (number, nonce) = match cell.command {
        Command::Relay => (3, None),
        Command::Destroy => (4, None),
        Command::Create => (10, None),
        Command::Created => (11, None),
        Command::Leave(nonce) => (LEAVE, Some(nonce)),
        Command::Join(nonce) => (JOIN, Some(nonce)),
        Command::Congested => (CONGESTED, None),
        Command::Plan => (PLAN, None),
    };
    wire.extend_from_slice(&cell.circ.0.to_be_bytes());
    wire.push(number);
    let at = wire.len();
    wire.extend_from_slice(&cell.body.0[..]);
    if let Some(Nonce(nonce)) = nonce {
        wire[at..at + nonce.len()].copy_from_slice(&nonce);
    }
}

/// The command of a cell with this number and body; `None` if it is not one of ordinary circuits.
pub fn command(number: u8, body: &[u8]) -> Option<Command> {
    let nonce = || Some(Nonce(body.first_chunk().copied()?));
    match number {
        3 => Some(Command::Relay),
        4 => Some(Command::Destroy),
        10 => Some(Command::Create),
        11 => Some(Command::Created),
        LEAVE => nonce().map(Command::Leave),
        JOIN => nonce().map(Command::Join),
        CONGESTED => Some(Command::Congested),
        PLAN => Some(Command::Plan),
        _ => None,
    }
}

/// A body with a prefix, the rest zero.
fn body(parts: &[&[u8]]) -> Body {
    let mut bytes = Box::new([0; BODY]);
    let mut at = 0;
    for part in parts {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    Body(bytes)
}

fn write(message: &Message<Encrypted>) -> Body {
    let (command, data): (u8, Vec<u8>) = match &message.payload {
        Payload::Data(bytes, data) => (DATA, data[..usize::from(*bytes)].to_vec()),
        Payload::Begin(address) => (BEGIN, [address.to_string().as_bytes(), &[0, 0, 0, 0, 0]].concat()),
        Payload::Connected => (CONNECTED, Vec::new()),
        // REASON_DONE
        Payload::End => (END, vec![6]),
        Payload::Sendme => (SENDME, Vec::new()),
        // Version 0; a rate of 0 means none (proposal 324).
        Payload::Xoff => (XOFF, vec![0]),
        Payload::Xon => (XON, vec![0; 5]),
        Payload::Leave(Nonce(nonce)) => (LEAVE, nonce.to_vec()),
        Payload::Join(Nonce(nonce)) => (JOIN, nonce.to_vec()),
        Payload::Extend(relay, Body(create)) => {
            // CREATE2's handshake type, length and onion skin follow the link specifiers.
            let handshake = &create[..4 + ntor::ONION_SKIN];
            (EXTEND2, [&[1, NUMBER, 4], &relay.0.to_be_bytes()[..], handshake].concat())
        }
        Payload::Extended(Body(created)) => (EXTENDED2, created[..2 + ntor::REPLY].to_vec()),
    };
    body(&[
        &[command, 0, 0],
        &message.stream.0.to_be_bytes(),
        &[0; 4],
        &(data.len() as u16).to_be_bytes(),
        &data,
    ])
}

fn read(body: &[u8; BODY]) -> Result<Message<Encrypted>, Malformed> {
    let stream = StreamId(u16::from_be_bytes([body[3], body[4]]));
    let length = usize::from(u16::from_be_bytes([body[9], body[10]]));
    let data = body[RELAY_HEADER..].get(..length).ok_or(Malformed)?;
    let payload = match body[0] {
        DATA => Payload::Data(length as u16, data.into()),
        BEGIN => {
            let end = data.iter().position(|byte| *byte == 0).ok_or(Malformed)?;
            let text = std::str::from_utf8(&data[..end]).map_err(|_| Malformed)?;
            Payload::Begin(text.parse().map_err(|_| Malformed)?)
        }
        CONNECTED => Payload::Connected,
        END => Payload::End,
        SENDME => Payload::Sendme,
        XOFF if data == [0] => Payload::Xoff,
        XON if length == 5 && data[0] == 0 => Payload::Xon,
        LEAVE => Payload::Leave(Nonce(data.try_into().map_err(|_| Malformed)?)),
        JOIN => Payload::Join(Nonce(data.try_into().map_err(|_| Malformed)?)),
        EXTEND2 => match data {
            [1, NUMBER, 4, a, b, c, d, handshake @ ..] if handshake.len() == 4 + ntor::ONION_SKIN => {
                Payload::Extend(RelayId(u32::from_be_bytes([*a, *b, *c, *d])), self::body(&[handshake]))
            }
            _ => return Err(Malformed),
        },
        EXTENDED2 if length == 2 + ntor::REPLY => Payload::Extended(self::body(&[data])),
        _ => return Err(Malformed),
    };
    Ok(Message { stream, payload })
}

impl Onion for Encrypted {
    type Body = Body;
    type Data = Box<[u8]>;
    type Address = SocketAddr;
    type RelayHop = Hop;
    type ClientHop = Hop;
    type Handshake = Option<ClientHandshake>;

    fn empty() -> Body {
        body(&[])
    }

    fn bared(bytes: Vec<u8>) -> Body {
        let length = bytes.len().min(BODY - 2);
        body(&[&(length as u16).to_be_bytes(), &bytes[..length]])
    }

    fn bare(body: &Body) -> &[u8] {
        let length = usize::from(u16::from_be_bytes([body.0[0], body.0[1]]));
        body.0[2..].get(..length).unwrap_or(&[])
    }

    fn recycle(_: Body) -> Vec<u8> {
        Vec::new()
    }

    fn worded(_: Word) -> Body {
        Encrypted::empty()
    }

    fn word(_: &Body) -> Option<Word> {
        None
    }

    fn start(&mut self, relay: RelayId) -> (Option<ClientHandshake>, Body) {
        let Some(public) = self.directory.get(&relay).copied() else { return (None, Encrypted::empty()) };
        let (handshake, skin) = ClientHandshake::start(public, self.draw());
        let head = [NTOR.to_be_bytes(), (ntor::ONION_SKIN as u16).to_be_bytes()].concat();
        (Some(handshake), body(&[&head, &skin]))
    }

    fn accept(&mut self, create: &Body) -> Option<(Hop, Body)> {
        let head = [NTOR.to_be_bytes(), (ntor::ONION_SKIN as u16).to_be_bytes()].concat();
        let skin = create.0.strip_prefix(&head[..])?.first_chunk()?;
        let ephemeral = self.draw();
        let (keys, reply) = ntor::answer(self.ours.as_ref()?, skin, ephemeral).ok()?;
        Some((Hop::new(&keys), body(&[&(ntor::REPLY as u16).to_be_bytes(), &reply])))
    }

    fn finish(&mut self, handshake: Option<ClientHandshake>, created: &Body) -> Option<Hop> {
        let reply = created.0.strip_prefix(&(ntor::REPLY as u16).to_be_bytes())?.first_chunk()?;
        Some(Hop::new(&handshake?.finish(reply).ok()?))
    }

    fn peel(hop: &mut Hop, body: &mut Body) -> Result<Option<Message<Encrypted>>, Malformed> {
        hop.forward.pass(&mut body.0);
        if hop.forward.recognises(&body.0) { read(&body.0).map(Some) } else { Ok(None) }
    }

    fn wrap(hop: &mut Hop, body: &mut Body) {
        hop.backward.pass(&mut body.0);
    }

    fn originate(hop: &mut Hop, message: Message<Encrypted>) -> Body {
        let mut body = write(&message);
        hop.backward.seal(&mut body.0);
        body
    }

    fn seal(hops: &mut [Hop], to: usize, message: Message<Encrypted>) -> Body {
        let mut body = write(&message);
        hops[to].forward.seal(&mut body.0);
        hops[..to].iter_mut().rev().for_each(|hop| hop.forward.pass(&mut body.0));
        body
    }

    fn open(hops: &mut [Hop], mut body: Body) -> Result<(usize, Message<Encrypted>), Malformed> {
        for (n, hop) in hops.iter_mut().enumerate() {
            hop.backward.pass(&mut body.0);
            if hop.backward.recognises(&body.0) {
                return Ok((n, read(&body.0)?));
            }
        }
        Err(Malformed)
    }
}

/// Application bytes that fit into a cell, for sources.
pub fn data(bytes: &[u8]) -> (u16, Box<[u8]>) {
    let taken = &bytes[..bytes.len().min(usize::from(DATA_BYTES))];
    (taken.len() as u16, taken.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A client with three hops, and the relays' ends of them.
    fn circuit() -> (Vec<Hop>, Vec<Hop>) {
        let secrets = [1, 2, 3].map(|n| RelaySecret::new([n; 20], [n + 10; 32]));
        let directory: BTreeMap<RelayId, RelayPublic> =
            secrets.iter().zip(0..).map(|(secret, n)| (RelayId(n), *secret.public())).collect();
        let mut client = Encrypted::new(None, directory, [9; 32]);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for (n, secret) in secrets.into_iter().enumerate() {
            let mut relay = Encrypted::new(Some(secret), BTreeMap::new(), [n as u8; 32]);
            let (handshake, create) = client.start(RelayId(n as u32));
            let (hop, created) = relay.accept(&create).unwrap();
            theirs.push(hop);
            ours.push(client.finish(handshake, &created).unwrap());
        }
        (ours, theirs)
    }

    fn messages() -> Vec<Message<Encrypted>> {
        let mut client = Encrypted::new(
            None,
            BTreeMap::from([(RelayId(7), RelayPublic { identity: [1; 20], onion: [9; 32] })]),
            [1; 32],
        );
        let create = client.start(RelayId(7)).1;
        let reply = body(&[&(ntor::REPLY as u16).to_be_bytes(), &[7; ntor::REPLY]]);
        [
            Payload::Data(498, vec![5; 498].into()),
            Payload::Data(0, Box::default()),
            Payload::Begin("[::1]:8080".parse().unwrap()),
            Payload::Connected,
            Payload::End,
            Payload::Sendme,
            Payload::Leave(Nonce([3; 8])),
            Payload::Join(Nonce([4; 8])),
            Payload::Extend(RelayId(7), create),
            Payload::Extended(reply),
        ]
        .into_iter()
        .zip(1..)
        .map(|(payload, n)| Message { stream: StreamId(n), payload })
        .collect()
    }

    #[test]
    fn every_message_reaches_its_hop_and_comes_back() {
        let (mut client, mut relays) = circuit();
        for message in messages() {
            for to in 0..3 {
                let mut cell = Encrypted::seal(&mut client, to, message.clone());
                for relay in &mut relays[..to] {
                    assert_eq!(Encrypted::peel(relay, &mut cell), Ok(None));
                }
                assert_eq!(Encrypted::peel(&mut relays[to], &mut cell), Ok(Some(message.clone())));
                let mut cell = Encrypted::originate(&mut relays[to], message.clone());
                relays[..to].iter_mut().rev().for_each(|relay| Encrypted::wrap(relay, &mut cell));
                assert_eq!(Encrypted::open(&mut client, cell), Ok((to, message.clone())));
            }
        }
    }

    #[test]
    fn who_does_not_hold_the_key_cannot_answer() {
        let relay = RelaySecret::new([1; 20], [2; 32]);
        let directory = BTreeMap::from([(RelayId(0), *relay.public())]);
        let mut client = Encrypted::new(None, directory, [1; 32]);
        let (handshake, create) = client.start(RelayId(0));
        let mut thief = Encrypted::new(Some(RelaySecret::new([1; 20], [3; 32])), BTreeMap::new(), [2; 32]);
        assert!(thief.accept(&create).is_none());
        assert!(client.finish(handshake, &body(&[&[0, 64], &[1; 64]])).is_none());
        let (unknown, create) = client.start(RelayId(5));
        assert!(unknown.is_none() && thief.accept(&create).is_none());
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), BODY), command in 0u8..20) {
            let mut plain: [u8; BODY] = bytes.try_into().unwrap();
            plain[0] = command;
            if let Ok(message) = read(&plain) {
                prop_assert_eq!(read(&write(&message).0), Ok(message));
            }
            let (mut client, mut relays) = circuit();
            let cell = Body(Box::new(plain));
            prop_assert_eq!(Encrypted::peel(&mut relays[0], &mut cell.clone()), Ok(None));
            prop_assert_eq!(Encrypted::open(&mut client, cell.clone()), Err(Malformed));
            let relay = RelaySecret::new([1; 20], [2; 32]);
            prop_assert!(Encrypted::new(Some(relay), BTreeMap::new(), [1; 32]).accept(&cell).is_none());
        }
    }
}
