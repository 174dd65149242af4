//! Onion routing with cryptography: key exchanges and encrypted layers for the state machines of this crate. Relay messages are
//! Tor's (tor-spec, "Relay cells"), except that a directory of this project may identify relays by number.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tidegate_control::random::Random;

use super::cgo::Side;
use super::fast;
pub use super::hop::Hop;
use super::layer::{BODY, Body};
use super::message::{read, write};
use super::names::{Peer, SharedNames, Target};
use super::negotiation::Wishes;
use super::ntor::{self, RelayPublic, RelaySecret};
use super::ntor_v3;
use super::own_keys::OwnKeys;
use crate::cell::{DestroyReason, Digest, Message, RelayId};
use crate::onion::{Malformed, Onion, Terms};
use crate::switching::CongestionNotice;

/// Handshake types of ntor and ntor-v3 (tor-spec, "CREATE and CREATED cells").
const NTOR: u16 = 2;
const NTOR_V3: u16 = 3;

/// One node's keys, and those of the relays it knows.
#[derive(Clone)]
pub struct Encrypted {
    ours: Option<OwnKeys>,
    directory: BTreeMap<RelayId, RelayPublic>,
    /// Relays that this client makes wishes to, with ntor-v3.
    modern: BTreeMap<RelayId, (ntor_v3::Public, Wishes)>,
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

/// A key exchange that this client has begun.
pub enum Handshake {
    /// With ntor.
    Ntor(ntor::ClientHandshake),
    /// With ntor-v3.
    V3(ntor_v3::ClientHandshake, Wishes),
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

    /// Client: adds a relay. Circuits use ntor-v3 with these wishes if its Ed25519 identity is given.
    pub fn learn(&mut self, relay: RelayId, public: RelayPublic, modern: Option<([u8; 32], Wishes)>) {
        self.directory.insert(relay, public);
        match modern {
            Some((identity, wishes)) => {
                let public = ntor_v3::Public { identity, onion: public.onion };
                self.modern.insert(relay, (public, wishes));
            }
            None => drop(self.modern.remove(&relay)),
        }
    }

    fn draw(&mut self) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.seed).expect("HMAC takes keys of any size");
        mac.update(&self.drawn.to_be_bytes());
        self.drawn += 1;
        mac.finalize().into_bytes().into()
    }
}

/// The body of CREATE2: handshake type, length, onion skin.
fn create(kind: u16, skin: &[u8]) -> Body {
    Body::of(&[&kind.to_be_bytes(), &(skin.len() as u16).to_be_bytes(), skin])
}

/// A byte string behind its length.
fn measured(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    rest.get(..usize::from(u16::from_be_bytes(*length)))
}

impl Onion for Encrypted {
    type Body = Body;
    type Data = Bytes;
    type Address = Target;
    type Peer = Peer;
    type RelayHop = Hop;
    type ClientHop = Hop;
    type Handshake = Option<Handshake>;

    // Each cell has bytes of its own.
    const REPEATS: bool = false;

    fn empty() -> Body {
        Body::of(&[])
    }

    fn destroy(reason: DestroyReason) -> Body {
        Body::of(&[&[reason.0]])
    }

    fn from_plain(bytes: Vec<u8>) -> Body {
        let length = bytes.len().min(BODY - 2);
        Body::of(&[&(length as u16).to_be_bytes(), &bytes[..length]])
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

    fn is_directory(target: &Target) -> bool {
        matches!(target, Target::Directory)
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
        if let Some((public, wishes)) = self.modern.get(&relay).copied() {
            let started = ntor_v3::ClientHandshake::start(public, self.draw(), &wishes.write());
            let Some((handshake, skin)) = started else { return (None, Encrypted::empty()) };
            return (Some(Handshake::V3(handshake, wishes)), create(NTOR_V3, &skin));
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
            return Some((Hop::plain(&keys), Body::of(&[half, &proof])));
        }
        let (kind, rest) = create.0.split_first_chunk::<2>()?;
        let skin = measured(rest)?;
        match u16::from_be_bytes(*kind) {
            NTOR => {
                let (keys, reply) = self.ours.as_ref()?.answer(skin.try_into().ok()?, ephemeral).ok()?;
                Some((Hop::plain(&keys), Body::of(&[&(ntor::REPLY as u16).to_be_bytes(), &reply])))
            }
            NTOR_V3 => {
                let mut granted = Wishes::default();
                let grant = |asked: &[u8]| {
                    granted = Wishes::read(asked)?;
                    Some(granted.grant())
                };
                let (material, reply) = self.ours.as_ref()?.answer_v3(skin, &ephemeral, grant).ok()?;
                let hop = Hop::agreed(Side::Relay, &material, granted);
                Some((hop, Body::of(&[&(reply.len() as u16).to_be_bytes(), &reply])))
            }
            _ => None,
        }
    }

    fn finish(&mut self, handshake: Option<Handshake>, created: &Body) -> Option<Hop> {
        let reply = measured(&created.0[..])?;
        match handshake? {
            Handshake::Ntor(handshake) => Some(Hop::plain(&handshake.finish(reply.try_into().ok()?).ok()?)),
            Handshake::V3(handshake, wishes) => {
                let (material, said) = handshake.finish(reply).ok()?;
                Some(Hop::agreed(Side::Client, &material, wishes.granted(&said)?))
            }
        }
    }

    fn terms(hop: &Hop) -> Terms {
        hop.terms()
    }

    fn client_terms(hop: &Hop) -> Terms {
        hop.terms()
    }

    fn binding(hop: &Hop) -> Option<[u8; 20]> {
        Some(*hop.binding())
    }

    fn digests(hop: &Hop) -> Option<[Digest; 2]> {
        Some(hop.digests())
    }

    fn client_digests(hop: &Hop) -> Option<[Digest; 2]> {
        let [said, heard] = hop.digests();
        Some([heard, said])
    }

    fn rest(hop: &mut Hop) {
        hop.rest();
    }

    fn peel(hop: &mut Hop, early: bool, body: &mut Body) -> Result<Option<Message<Encrypted>>, Malformed> {
        if hop.peel(early, &mut body.0) { read(&body.0, hop.format()).map(Some) } else { Ok(None) }
    }

    fn wrap(hop: &mut Hop, body: &mut Body) {
        hop.wrap(&mut body.0);
    }

    fn originate(hop: &mut Hop, message: Message<Encrypted>) -> Body {
        let mut body = write(&message, hop.format());
        hop.originate(&mut body.0);
        body
    }

    fn seal(hops: &mut [Hop], to: usize, early: bool, message: Message<Encrypted>) -> Body {
        let mut body = write(&message, hops[to].format());
        hops[to].seal(early, &mut body.0);
        hops[..to].iter_mut().rev().for_each(|hop| hop.cover(early, &mut body.0));
        body
    }

    fn open(hops: &mut [Hop], mut body: Body) -> Result<(usize, Message<Encrypted>), Malformed> {
        for (n, hop) in hops.iter_mut().enumerate() {
            if hop.open(&mut body.0) {
                return Ok((n, read(&body.0, hop.format())?));
            }
        }
        Err(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::Format;
    use super::super::names::Router;
    use super::*;
    use crate::cell::{EndReason, Nonce, Payload, ServiceCommand, StreamId};
    use crate::conflux::{Link, Wish};
    use proptest::prelude::*;

    const CONTROL: Wishes = Wishes { congestion_control: true, cgo: false };
    const CGO: Wishes = Wishes { congestion_control: true, cgo: true };

    /// A client with a hop per element, by ntor or by ntor-v3 with these wishes, and the relays' sides of those hops.
    fn circuit(wishes: [Option<Wishes>; 3]) -> (Vec<Hop>, Vec<Hop>) {
        let mut client = Encrypted::new(None, BTreeMap::new(), [9; 32]);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for (n, wishes) in wishes.into_iter().enumerate() {
            let fill = n as u8 + 1;
            let mut relay = Encrypted::new(None, BTreeMap::new(), [fill; 32]);
            relay.answer_with(OwnKeys::new([fill; 20], [fill + 20; 32], [fill + 10; 32], None));
            let public = *RelaySecret::new([fill; 20], [fill + 10; 32]).public();
            client.learn(RelayId(n as u32), public, wishes.map(|wishes| ([fill + 20; 32], wishes)));
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

    /// One message of each kind for a circuit with these terms.
    fn messages(Terms { data_bytes, circuit_bytes, .. }: Terms) -> Vec<Message<Encrypted>> {
        let mut client = Encrypted::new(
            None,
            BTreeMap::from([(RelayId(7), RelayPublic { identity: [1; 20], onion: [9; 32] })]),
            [1; 32],
        );
        let create = client.start(RelayId(7)).1;
        let reply = Body::of(&[&(ntor::REPLY as u16).to_be_bytes(), &[7; ntor::REPLY]]);
        let link = Link { nonce: [6; 32], sent: 7, delivered: 8, wish: Wish::Throughput };
        [
            Payload::Data(data_bytes, vec![5; data_bytes.into()].into()),
            Payload::Data(0, Bytes::new()),
            Payload::Begin(Target::parse("[::1]:8080", 7).unwrap()),
            Payload::Begin(Target::Resolve("a.example".into())),
            Payload::Begin(Target::Directory),
            Payload::Connected,
            Payload::Resolved(vec![4, 4, 127, 0, 0, 1, 0, 0, 0, 60].into()),
            Payload::End(EndReason::RESET),
            Payload::Sendme(None),
            Payload::Sendme(Some(Digest::Sha1([8; 20]))),
            Payload::Sendme(Some(Digest::Tag([8; 16]))),
            Payload::Nothing,
            Payload::Service(ServiceCommand::Introduce1, vec![6; circuit_bytes.into()].into()),
            Payload::Service(ServiceCommand::RendezvousEstablished, Box::default()),
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
        .map(|(payload, n)| {
            // Message format 1 has stream ids only in these messages.
            let stream = if payload.is_of_stream() { StreamId(n) } else { StreamId(0) };
            Message { stream, payload }
        })
        .collect()
    }

    #[test]
    fn every_message_reaches_its_hop_and_comes_back() {
        for wishes in [
            [None; 3],
            [Some(CONTROL); 3],
            [Some(CGO); 3],
            // As stock clients build circuits: only the exit has congestion control.
            [None, Some(Wishes::default()), Some(CGO)],
            [Some(CGO), None, Some(CONTROL)],
        ] {
            let (mut client, mut relays) = circuit(wishes);
            for to in [0, 1, 2] {
                let terms = Encrypted::terms(&relays[to]);
                assert_eq!(terms, Encrypted::client_terms(&client[to]));
                let wishes = wishes[to].unwrap_or_default();
                assert_eq!(terms.congestion_control, Some(wishes.congestion_control));
                assert_eq!(terms.data_bytes, if wishes.cgo { 488 } else { 498 });
                assert_eq!(relays[to].binding(), client[to].binding());
                for (n, message) in messages(terms).into_iter().enumerate() {
                    pass(&mut client, &mut relays, to, n % 2 == 0, &message);
                }
            }
        }
    }

    /// Sends a message to a hop and back. Both ends know both cells by the same digests.
    fn pass(client: &mut [Hop], relays: &mut [Hop], to: usize, early: bool, message: &Message<Encrypted>) {
        let mut cell = Encrypted::seal(client, to, early, message.clone());
        for relay in &mut relays[..to] {
            assert_eq!(Encrypted::peel(relay, early, &mut cell), Ok(None));
        }
        assert_eq!(Encrypted::peel(&mut relays[to], early, &mut cell), Ok(Some(message.clone())));
        let mut cell = Encrypted::originate(&mut relays[to], message.clone());
        relays[..to].iter_mut().rev().for_each(|relay| Encrypted::wrap(relay, &mut cell));
        assert_eq!(Encrypted::open(client, cell), Ok((to, message.clone())));
        let [said, heard] = Encrypted::digests(&relays[to]).unwrap();
        assert_eq!(Encrypted::client_digests(&client[to]), Some([heard, said]));
    }

    #[test]
    fn format_1_defines_every_command_and_its_stream() {
        let (mut client, mut relays) = circuit([Some(CGO); 3]);
        let mut tell = |command: u8, stream: u16, length: u16| {
            let mut cell =
                Body::of(&[&[0; 16], &[command], &length.to_be_bytes(), &stream.to_be_bytes(), &[0; 8]]);
            client[0].seal(false, &mut cell.0);
            Encrypted::peel(&mut relays[0], false, &mut cell)
        };
        let of = |stream, payload| Ok(Some(Message { stream: StreamId(stream), payload }));
        assert_eq!(tell(2, 7, 3), of(7, Payload::Data(3, vec![0; 3].into())));
        assert_eq!(tell(2, 7, 488), of(7, Payload::Data(488, vec![0; 488].into())));
        assert_eq!(tell(10, 7, 490), of(0, Payload::Nothing), "DROP has no stream");
        assert_eq!(tell(2, 0, 3), Err(Malformed), "DATA without a stream");
        assert_eq!(tell(2, 7, 489), Err(Malformed), "longer than the cell");
        assert_eq!(tell(10, 0, 491), Err(Malformed), "longer than the cell");
        for unknown in [0, 16, 18, 23, 45, 240, 255] {
            assert_eq!(tell(unknown, 0, 0), Err(Malformed), "command {unknown}");
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
        assert!(client.finish(handshake, &Body::of(&[&[0, 64], &[1; 64]])).is_none());
        let (unknown, create) = client.start(RelayId(5));
        assert!(unknown.is_none() && thief.accept(&create, false).is_none());
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), BODY), command in 0u8..20) {
            let mut plain: [u8; BODY] = bytes.try_into().unwrap();
            plain[0] = command;
            // `Misread` is a parse result and never sent.
            for format in [Format::V0, Format::V1] {
                if let Ok(message) = read::<Encrypted>(&plain, format)
                    && message.payload != Payload::Misread
                {
                    prop_assert_eq!(read(&write(&message, format).0, format), Ok(message));
                }
                plain[16] = command;
            }
            let cell = Body::from(plain);
            for wishes in [None, Some(CGO)] {
                let (mut client, mut relays) = circuit([wishes; 3]);
                prop_assert_eq!(Encrypted::peel(&mut relays[0], false, &mut cell.clone()), Ok(None));
                prop_assert_eq!(Encrypted::open(&mut client, cell.clone()), Err(Malformed));
            }
            let relay = RelaySecret::new([1; 20], [2; 32]);
            prop_assert!(Encrypted::new(Some(relay), BTreeMap::new(), [1; 32]).accept(&cell, false).is_none());
        }
    }
}
