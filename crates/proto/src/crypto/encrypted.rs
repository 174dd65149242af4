//! Onion routing with cryptography: ntor and AES-CTR layers for the state machines of this crate. Relay messages are
//! Tor's (tor-spec, "Relay cells"), except that a directory of this project may identify relays by number.

use std::collections::BTreeMap;
use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tidegate_control::random::Random;

use super::fast;
use super::layer::{BODY, Body, Layer};
use super::message::{read, write};
use super::names::{Peer, SharedNames, Target};
use super::ntor::{self, HopKeys, RelayPublic, RelaySecret};
use super::ntor_v3;
use super::own_keys::OwnKeys;
use crate::cell::{DATA_BYTES, DestroyReason, Digest, Message, RelayId};
use crate::onion::{Malformed, Onion};
use crate::switching::CongestionNotice;

/// Handshake types of ntor and ntor-v3 (tor-spec, "CREATE and CREATED cells").
const NTOR: u16 = 2;
const NTOR_V3: u16 = 3;
/// ntor-v3 extensions for congestion control (proposal 324): request, grant with the number of cells that a SENDME
/// acknowledges, refusal.
const ASK_CONGESTION_CONTROL: &[u8] = &[1, 1, 0];
const GRANT_CONGESTION_CONTROL: &[u8] = &[1, 2, 1, 31];
const NO_EXTENSIONS: &[u8] = &[0];

/// One node's keys, and those of the relays it knows.
#[derive(Clone)]
pub struct Encrypted {
    ours: Option<OwnKeys>,
    directory: BTreeMap<RelayId, RelayPublic>,
    /// Relays that this client asks for congestion control, with ntor-v3.
    modern: BTreeMap<RelayId, ntor_v3::Public>,
    /// Addresses and identities of relays, where circuits name them as Tor does.
    names: Option<SharedNames>,
    /// Ephemeral keys are HMAC-SHA256(seed, counter).
    seed: [u8; 32],
    drawn: u64,
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

/// One side's layers of a hop, for both directions.
pub struct Hop {
    forward: Layer,
    backward: Layer,
    congestion_control: bool,
}

/// A key exchange that this client has begun.
pub enum Handshake {
    /// With ntor.
    Ntor(ntor::ClientHandshake),
    /// With ntor-v3.
    V3(ntor_v3::ClientHandshake),
}

impl Hop {
    fn new(keys: &HopKeys, congestion_control: bool) -> Hop {
        Hop {
            congestion_control,
            forward: Layer::new(&keys.forward, &keys.forward_digest),
            backward: Layer::new(&keys.backward, &keys.backward_digest),
        }
    }
}

impl Encrypted {
    /// A node that knows these relays, and is a relay itself if it has a secret. It derives ephemeral keys from
    /// `seed`, which must be secret and never used before.
    pub fn new(
        ours: Option<RelaySecret>,
        directory: BTreeMap<RelayId, RelayPublic>,
        seed: [u8; 32],
    ) -> Encrypted {
        let ours = ours.map(OwnKeys::from);
        Encrypted { ours, directory, modern: BTreeMap::new(), names: None, seed, drawn: 0 }
    }

    /// Lets circuits name relays as Tor does, by address and identity.
    pub fn with_names(mut self, names: SharedNames) -> Encrypted {
        self.names = Some(names);
        self
    }

    /// Replaces the keys that this relay answers key exchanges with.
    pub fn answer_with(&mut self, keys: OwnKeys) {
        self.ours = Some(keys);
    }

    /// Client: adds a relay. If it has an Ed25519 identity, circuits ask it for congestion control.
    pub fn learn(&mut self, relay: RelayId, public: RelayPublic, ed25519: Option<[u8; 32]>) {
        self.directory.insert(relay, public);
        match ed25519 {
            Some(identity) => self.modern.insert(relay, ntor_v3::Public { identity, onion: public.onion }),
            None => self.modern.remove(&relay),
        };
    }

    fn draw(&mut self) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.seed).expect("HMAC takes keys of any size");
        mac.update(&self.drawn.to_be_bytes());
        self.drawn += 1;
        mac.finalize().into_bytes().into()
    }
}

/// A body that starts with `prefix` and is zero behind it.
fn body(parts: &[&[u8]]) -> Body {
    let mut bytes = Box::new([0; BODY]);
    let mut at = 0;
    for part in parts {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    Body(bytes)
}

/// The body of CREATE2: handshake type, length, onion skin.
fn create(kind: u16, skin: &[u8]) -> Body {
    body(&[&kind.to_be_bytes(), &(skin.len() as u16).to_be_bytes(), skin])
}

/// A byte string behind its length.
fn measured(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    rest.get(..usize::from(u16::from_be_bytes(*length)))
}

impl Onion for Encrypted {
    type Body = Body;
    type Data = Box<[u8]>;
    type Address = Target;
    type Peer = Peer;
    type RelayHop = Hop;
    type ClientHop = Hop;
    type Handshake = Option<Handshake>;

    fn empty() -> Body {
        body(&[])
    }

    fn destroy(reason: DestroyReason) -> Body {
        body(&[&[reason.0]])
    }

    fn from_plain(bytes: Vec<u8>) -> Body {
        let length = bytes.len().min(BODY - 2);
        body(&[&(length as u16).to_be_bytes(), &bytes[..length]])
    }

    fn plain(body: &Body) -> &[u8] {
        let length = usize::from(u16::from_be_bytes([body.0[0], body.0[1]]));
        body.0[2..].get(..length).unwrap_or(&[])
    }

    fn recycle(_: Body) -> Vec<u8> {
        Vec::new()
    }

    fn with_notice(_: CongestionNotice) -> Body {
        Encrypted::empty()
    }

    fn notice(_: &Body) -> Option<CongestionNotice> {
        None
    }

    fn is_lookup(target: &Target) -> bool {
        matches!(target, Target::Resolve(_))
    }

    fn peer(&self, relay: RelayId) -> Peer {
        let router = self.names.as_ref().and_then(|names| names.borrow().router(relay));
        router.map_or(Peer::Number(relay), Peer::Router)
    }

    fn relay(&mut self, peer: &Peer) -> Option<RelayId> {
        match (peer, &self.names) {
            (Peer::Number(number), None) => Some(*number),
            (Peer::Router(router), Some(names)) => {
                let ours = self.ours.as_ref().is_some_and(|ours| ours.fingerprint() == router.fingerprint);
                // Tor refuses to extend to the relay itself, and to port 0.
                (!ours && router.address.port() != 0).then(|| names.borrow_mut().find(*router))
            }
            _ => None,
        }
    }

    fn secret(&mut self, _: &mut Random) -> [u8; 32] {
        self.draw()
    }

    fn start(&mut self, relay: RelayId) -> (Option<Handshake>, Body) {
        if let Some(public) = self.modern.get(&relay).copied() {
            let started = ntor_v3::ClientHandshake::start(public, self.draw(), ASK_CONGESTION_CONTROL);
            let Some((handshake, skin)) = started else { return (None, Encrypted::empty()) };
            return (Some(Handshake::V3(handshake)), create(NTOR_V3, &skin));
        }
        let Some(public) = self.directory.get(&relay).copied() else { return (None, Encrypted::empty()) };
        let (handshake, skin) = ntor::ClientHandshake::start(public, self.draw());
        (Some(Handshake::Ntor(handshake)), create(NTOR, &skin))
    }

    fn accept(&mut self, create: &Body, fast: bool) -> Option<(Hop, Body)> {
        let ephemeral = self.draw();
        if fast {
            let half = ephemeral[..fast::HALF].try_into().expect("20 of 32 bytes");
            let (keys, proof) = fast::derive(create.0.first_chunk()?, half);
            self.ours.as_ref()?;
            return Some((Hop::new(&keys, false), body(&[half, &proof])));
        }
        let (kind, rest) = create.0.split_first_chunk::<2>()?;
        let skin = measured(rest)?;
        match u16::from_be_bytes(*kind) {
            NTOR => {
                let (keys, reply) = self.ours.as_ref()?.answer(skin.try_into().ok()?, ephemeral).ok()?;
                Some((Hop::new(&keys, false), body(&[&(ntor::REPLY as u16).to_be_bytes(), &reply])))
            }
            NTOR_V3 => {
                let mut granted = false;
                let grant = |asked: &[u8]| {
                    granted = ntor_v3::asks_congestion_control(asked);
                    if granted { GRANT_CONGESTION_CONTROL.to_vec() } else { NO_EXTENSIONS.to_vec() }
                };
                let (keys, reply) = self.ours.as_ref()?.answer_v3(skin, &ephemeral, grant).ok()?;
                Some((Hop::new(&keys, granted), body(&[&(reply.len() as u16).to_be_bytes(), &reply])))
            }
            _ => None,
        }
    }

    fn finish(&mut self, handshake: Option<Handshake>, created: &Body) -> Option<Hop> {
        let reply = measured(&created.0[..])?;
        match handshake? {
            Handshake::Ntor(handshake) => {
                Some(Hop::new(&handshake.finish(reply.try_into().ok()?).ok()?, false))
            }
            Handshake::V3(handshake) => {
                let (keys, said) = handshake.finish(reply).ok()?;
                Some(Hop::new(&keys, said == GRANT_CONGESTION_CONTROL))
            }
        }
    }

    fn asks_congestion_control(hop: &Hop) -> Option<bool> {
        Some(hop.congestion_control)
    }

    fn has_congestion_control(hop: &Hop) -> Option<bool> {
        Some(hop.congestion_control)
    }

    fn digests(hop: &Hop) -> Option<[Digest; 2]> {
        Some([hop.forward.digest(), hop.backward.digest()])
    }

    fn client_digests(hop: &Hop) -> Option<[Digest; 2]> {
        Some([hop.backward.digest(), hop.forward.digest()])
    }

    fn rest(hop: &mut Hop) {
        hop.forward.rest();
        hop.backward.rest();
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

/// A chunk of application bytes that fits into a cell.
pub fn data(bytes: &[u8]) -> (u16, Box<[u8]>) {
    let taken = &bytes[..bytes.len().min(usize::from(DATA_BYTES))];
    (taken.len() as u16, taken.into())
}

#[cfg(test)]
mod tests {
    use super::super::names::Router;
    use super::*;
    use crate::cell::{EndReason, Nonce, Payload, StreamId};
    use crate::conflux::{Link, Wish};
    use proptest::prelude::*;

    /// A client with three hops, and the relays' sides of those hops.
    fn circuit() -> (Vec<Hop>, Vec<Hop>) {
        let secrets = [1, 2, 3].map(|n| RelaySecret::new([n; 20], [n + 10; 32]));
        let directory: BTreeMap<RelayId, RelayPublic> =
            secrets.iter().zip(0..).map(|(secret, n)| (RelayId(n), *secret.public())).collect();
        let mut client = Encrypted::new(None, directory, [9; 32]);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for (n, secret) in secrets.into_iter().enumerate() {
            let mut relay = Encrypted::new(Some(secret), BTreeMap::new(), [n as u8; 32]);
            let (handshake, create) = client.start(RelayId(n as u32));
            let (hop, created) = relay.accept(&create, false).unwrap();
            theirs.push(hop);
            ours.push(client.finish(handshake, &created).unwrap());
        }
        (ours, theirs)
    }

    fn router(address: &str, ed25519: Option<[u8; 32]>) -> Router {
        Router { address: address.parse().unwrap(), fingerprint: [5; 20], ed25519 }
    }

    fn messages() -> Vec<Message<Encrypted>> {
        let mut client = Encrypted::new(
            None,
            BTreeMap::from([(RelayId(7), RelayPublic { identity: [1; 20], onion: [9; 32] })]),
            [1; 32],
        );
        let create = client.start(RelayId(7)).1;
        let reply = body(&[&(ntor::REPLY as u16).to_be_bytes(), &[7; ntor::REPLY]]);
        let link = Link { nonce: [6; 32], sent: 7, delivered: 8, wish: Wish::Throughput };
        [
            Payload::Data(498, vec![5; 498].into()),
            Payload::Data(0, Box::default()),
            Payload::Begin(Target::parse("[::1]:8080", 7).unwrap()),
            Payload::Begin(Target::Resolve("a.example".into())),
            Payload::Begin(Target::Directory),
            Payload::Connected,
            Payload::Resolved(vec![4, 4, 127, 0, 0, 1, 0, 0, 0, 60].into()),
            Payload::End(EndReason::RESET),
            Payload::Sendme(None),
            Payload::Sendme(Some([8; 20])),
            Payload::Nothing,
            Payload::Leave(Nonce([3; 8])),
            Payload::Join(Nonce([4; 8])),
            Payload::Link(Box::new(link)),
            Payload::Linked(Box::new(link)),
            Payload::LinkedAck,
            Payload::Switch(70_000),
            Payload::Extend(Peer::Number(RelayId(7)), create.clone()),
            Payload::Extend(Peer::Router(router("[::1]:443", None)), create.clone()),
            Payload::Extend(Peer::Router(router("127.0.0.1:443", Some([9; 32]))), create),
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
    fn a_handshake_needs_the_relays_key() {
        let relay = RelaySecret::new([1; 20], [2; 32]);
        let directory = BTreeMap::from([(RelayId(0), *relay.public())]);
        let mut client = Encrypted::new(None, directory, [1; 32]);
        let (handshake, create) = client.start(RelayId(0));
        let mut thief = Encrypted::new(Some(RelaySecret::new([1; 20], [3; 32])), BTreeMap::new(), [2; 32]);
        assert!(thief.accept(&create, false).is_none());
        assert!(client.finish(handshake, &body(&[&[0, 64], &[1; 64]])).is_none());
        let (unknown, create) = client.start(RelayId(5));
        assert!(unknown.is_none() && thief.accept(&create, false).is_none());
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), BODY), command in 0u8..20) {
            let mut plain: [u8; BODY] = bytes.try_into().unwrap();
            plain[0] = command;
            // `Misread` is a parse result and never sent.
            if let Ok(message) = read::<Encrypted>(&plain)
                && message.payload != Payload::Misread
            {
                prop_assert_eq!(read(&write(&message).0), Ok(message));
            }
            let (mut client, mut relays) = circuit();
            let cell = Body(Box::new(plain));
            prop_assert_eq!(Encrypted::peel(&mut relays[0], &mut cell.clone()), Ok(None));
            prop_assert_eq!(Encrypted::open(&mut client, cell.clone()), Err(Malformed));
            let relay = RelaySecret::new([1; 20], [2; 32]);
            prop_assert!(Encrypted::new(Some(relay), BTreeMap::new(), [1; 32]).accept(&cell, false).is_none());
        }
    }
}
