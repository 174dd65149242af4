//! Routes: a Sphinx packet leaves a key at each peer it passes, which saves later packets the public-key
//! cryptography.
//!
//! A cell is a label, an annex and a payload. Label and keys derive from the secret that the Sphinx packet shared
//! with a relay; the label is valid only there. Each relay removes one layer of a wide-block cipher, so a cell looks
//! different on every link. A relay opens each payload only once. The label repeats on a link: relays of the route,
//! and observers of the link, can tell that cells belong to one route, until its source stops using it.
//!
//! A relay that may not forward a cell reports it (the drop locator). A refusal goes back from label to label, and
//! each relay adds one layer. Only the source can read which relay wrote it, and for which cell.

use std::collections::{BTreeMap, BTreeSet};

use aes::Aes128;
use aes::cipher::{BlockCipherDecrypt as _, BlockCipherEncrypt as _, KeyInit as _};
use sha2::{Digest, Sha256};
use sphinx_packet::payload::key::{PayloadKey, derive_payload_key};
use sphinx_packet::payload::{PAYLOAD_OVERHEAD_SIZE, Payload};
use tidegate_control::paths::Peer;
use tidegate_control::shares::Shares;
use tidegate_control::units::{Span, Time};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::wire::{ANNEX, DATA_SIZE, Entropy, OpenError, PacketId, within_rate};

/// Length of a cell's header before the annex: kind and label.
pub(crate) const CELL_HEAD: usize = 1 + 8;
/// Length of a cell's payload, bytes.
const CELL_PAYLOAD: usize = DATA_SIZE - CELL_HEAD - ANNEX;
/// Maximum length of the text in a cell, bytes.
pub(crate) const CELL_TEXT: usize = CELL_PAYLOAD - PAYLOAD_OVERHEAD_SIZE;
const REFUSAL: usize = 16;
/// How long a relay keeps a route.
pub(crate) const ROUTE_LIFE: Span = Span::from_secs(60);
/// Maximum number of cells on a route in each direction.
pub const MOST_USES: usize = 256;
/// Maximum number of routes of a peer. A new one displaces the idlest of the neighbour with the most.
///
/// A route takes 500 bytes plus 8 per cell.
const ROUTES: usize = 16_384;

/// A seed from the secret that a Sphinx header shares with one hop.
pub(crate) type Seed = [u8; 16];

/// The label of cells at one peer; never zero.
pub(crate) fn label(seed: &Seed) -> u64 {
    let digest = digest(b"tidegate more label", seed);
    u64::from_be_bytes(*digest.first_chunk().expect("32 bytes")) | 1
}

fn digest(what: &[u8], seed: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(what).chain_update(seed).finalize().into()
}

/// Keys that a source shares with one of its relays.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub(crate) struct RouteKey {
    cipher: PayloadKey,
    annex: [u8; 16],
    refusal: [u8; 16],
}

impl RouteKey {
    pub(crate) fn new(seed: &Seed) -> RouteKey {
        let part = |what: &[u8]| -> [u8; 16] { *digest(what, seed).first_chunk().expect("32 bytes") };
        RouteKey {
            cipher: derive_payload_key(&part(b"tidegate more route")),
            annex: part(b"tidegate more route annex"),
            refusal: part(b"tidegate more refusal"),
        }
    }

    /// Encrypts or decrypts a relay's entry in an annex. The key depends on `payload`.
    fn mask(&self, annex: &mut [u8], payload: &[u8]) {
        let digest = Sha256::new().chain_update(self.annex).chain_update(&payload[..16]).finalize();
        annex.iter_mut().zip(digest).for_each(|(byte, mask)| *byte ^= mask);
    }

    fn hide(&self, block: &mut [u8; REFUSAL]) {
        Aes128::new(&self.refusal.into()).encrypt_block(block.into());
    }

    fn show(&self, block: &mut [u8; REFUSAL]) {
        Aes128::new(&self.refusal.into()).decrypt_block(block.into());
    }
}

/// Encrypts a text end to end and pads it to the size of a cell's payload.
pub(crate) fn seal(text: &[u8], key: &PayloadKey) -> Payload {
    Payload::encapsulate_message(text, &[*key], CELL_PAYLOAD).expect("a text that fits")
}

/// The sending end of a route.
pub(crate) struct Outbound {
    /// The first relay.
    pub first: Peer,
    /// The label of its cells there.
    pub label: u64,
    keys: Vec<RouteKey>,
}

/// Tags of one cell, by which its source recognises refusals.
pub(crate) type Tags = Vec<u64>;

impl Outbound {
    pub(crate) fn new(first: Peer, seeds: &[Seed]) -> Outbound {
        Outbound { first, label: label(&seeds[0]), keys: seeds.iter().map(RouteKey::new).collect() }
    }

    /// The datagram of a cell with an end-to-end encrypted payload.
    pub(crate) fn cell(&self, kind: u8, mut payload: Payload, entropy: Entropy) -> (Vec<u8>, Tags) {
        let mut tags = Tags::new();
        for key in self.keys.iter().rev() {
            payload = payload.add_encryption_layer(key.cipher).expect("a payload is larger than a block");
            tags.push(tag(payload.as_bytes()));
        }
        tags.reverse();
        let mut datagram = Vec::with_capacity(DATA_SIZE);
        datagram.push(kind);
        datagram.extend_from_slice(&self.label.to_be_bytes());
        datagram.extend_from_slice(&entropy());
        datagram.extend_from_slice(payload.as_bytes());
        (datagram, tags)
    }

    /// Decrypts a refusal: the relay (0 is the first), the tag of the cell there, and the offered rate.
    pub(crate) fn refused(&self, block: &[u8; REFUSAL]) -> Option<(usize, u64, f32)> {
        let mut block = *block;
        self.keys.iter().enumerate().find_map(|(hop, key)| {
            key.show(&mut block);
            let (tag, rest) = block.split_first_chunk::<8>()?;
            let (rate, zeros) = rest.split_first_chunk::<4>()?;
            let rate = within_rate(f32::from_le_bytes(*rate));
            (*zeros == [0; 4]).then_some((hop, u64::from_be_bytes(*tag), rate))
        })
    }
}

fn tag(payload: &[u8]) -> u64 {
    u64::from_be_bytes(*payload.first_chunk().expect("a payload is longer"))
}

/// The receiving end of a route: the keys of its relays, beginning with the farthest.
pub(crate) struct Inbound {
    keys: Vec<RouteKey>,
}

impl Inbound {
    pub(crate) fn new(seeds: &[Seed]) -> Inbound {
        Inbound { keys: seeds.iter().map(RouteKey::new).collect() }
    }

    /// Decrypts a cell: its text and the stamped rates (zero if missing), the last relay first.
    pub(crate) fn open(
        &self,
        mut annex: [u8; ANNEX],
        payload: &[u8],
        key: &PayloadKey,
    ) -> Option<(Vec<u8>, Vec<f32>)> {
        let mut payload = Payload::from_bytes(payload).ok()?;
        let mut stamps = Vec::with_capacity(self.keys.len());
        for key in self.keys.iter().rev() {
            key.mask(&mut annex, payload.as_bytes());
            stamps.push(within_rate(f32::from_le_bytes(*annex.first_chunk().expect("an annex is longer"))));
            annex.copy_within(4.., 0);
            payload = payload.add_encryption_layer(key.cipher).ok()?;
        }
        let text = payload.unwrap(key).ok()?.recover_plaintext().ok()?;
        Some((text, stamps))
    }
}

/// The next hop of a route at one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Onward {
    /// Another peer, with the label there. Refusals travel back along the route unless another source begins there.
    Pass { to: Peer, label: u64, refusals: bool },
    /// The end of the route, with its owner's identifier.
    End(PacketId),
}

struct Transit {
    key: RouteKey,
    from: Peer,
    onward: Onward,
    seen: BTreeSet<u64>,
    until: Time,
    /// When its last cell came.
    used: Time,
}

/// Result of forwarding a cell.
pub(crate) enum Passed {
    Forward(Peer, Vec<u8>),
    End { id: PacketId, annex: [u8; ANNEX], payload: Vec<u8> },
}

/// The routes through a peer or ending there.
pub(crate) struct Routes {
    transits: BTreeMap<u64, Transit>,
    /// Routes by next hop, for refusals.
    back: BTreeMap<(Peer, u64), u64>,
    /// Routes by the time of their end.
    ends: BTreeSet<(Time, u64)>,
    /// Their places, by the network and the number of the neighbour that established them.
    places: Shares<Peer, Peer, u64>,
    networks: Vec<Peer>,
}

impl Routes {
    /// No routes. `networks`: the first peer of each peer's network.
    pub(crate) fn new(networks: Vec<Peer>) -> Routes {
        let (transits, back, ends) = Default::default();
        Routes { transits, back, ends, places: Shares::new(ROUTES), networks }
    }

    /// The first peer of a peer's network.
    pub(crate) fn network(&self, peer: Peer) -> Peer {
        self.networks.get(usize::from(peer)).copied().unwrap_or(peer)
    }

    /// Adds the route of an opened Sphinx packet from `from`.
    pub(crate) fn establish(&mut self, now: Time, from: Peer, seed: &Seed, onward: Onward) {
        while let Some((until, ended)) = self.ends.first().copied()
            && until <= now
        {
            self.remove(ended);
        }
        let (label, until) = (label(seed), now + ROUTE_LIFE);
        // Only its source can name it again, and that packet would be a replay.
        if self.transits.contains_key(&label) {
            return;
        }
        let of = (self.network(from), from);
        while let Some(displaced) = self.places.displaced(&of, |label| self.transits[label].used) {
            self.remove(displaced);
        }
        self.places.admit(now, of, label);
        self.ends.insert((until, label));
        if let Onward::Pass { to, label: next, refusals: true } = onward {
            self.back.insert((to, next), label);
        }
        let (key, seen) = (RouteKey::new(seed), BTreeSet::new());
        self.transits.insert(label, Transit { key, from, onward, seen, until, used: now });
    }

    fn remove(&mut self, label: u64) {
        let Some(transit) = self.transits.remove(&label) else { return };
        self.places.release(&label);
        self.ends.remove(&(transit.until, label));
        if let Onward::Pass { to, label: next, .. } = transit.onward
            && self.back.get(&(to, next)) == Some(&label)
        {
            self.back.remove(&(to, next));
        }
    }

    /// The route of a cell from `from`, if known.
    fn known(&mut self, now: Time, from: Peer, datagram: &[u8]) -> Option<(u64, &mut Transit)> {
        let label = u64::from_be_bytes(datagram[1..CELL_HEAD].try_into().ok()?);
        let transit = self.transits.get_mut(&label)?;
        (transit.from == from && transit.until > now).then_some((label, transit))
    }

    /// Checks that a cell belongs to a route and was not opened before.
    pub(crate) fn check(&mut self, now: Time, from: Peer, datagram: &[u8]) -> Result<(), OpenError> {
        let (_, transit) = self.known(now, from, datagram).ok_or(OpenError::Forged)?;
        let fresh = !transit.seen.contains(&tag(&datagram[CELL_HEAD + ANNEX..]));
        if fresh && transit.seen.len() < MOST_USES { Ok(()) } else { Err(OpenError::Replayed) }
    }

    /// Opens a checked cell. `stamp` is the rate that its source is offered.
    pub(crate) fn pass(
        &mut self,
        now: Time,
        from: Peer,
        datagram: &[u8],
        stamp: f32,
    ) -> Result<Passed, OpenError> {
        let (_, transit) = self.known(now, from, datagram).ok_or(OpenError::Forged)?;
        let (head, payload) = datagram.split_at(CELL_HEAD + ANNEX);
        let mut annex: [u8; ANNEX] = head[CELL_HEAD..].try_into().map_err(|_| OpenError::Shape)?;
        transit.seen.insert(tag(payload));
        transit.used = now;
        match transit.onward {
            Onward::End(id) => Ok(Passed::End { id, annex, payload: payload.to_vec() }),
            Onward::Pass { to, label, .. } => {
                let payload = Payload::from_bytes(payload).and_then(|it| it.unwrap(&transit.key.cipher));
                let payload = payload.map_err(|_| OpenError::Shape)?;
                annex.copy_within(..ANNEX - 4, 4);
                annex[..4].copy_from_slice(&stamp.to_le_bytes());
                transit.key.mask(&mut annex, payload.as_bytes());
                let kind = [datagram[0]];
                let label = label.to_be_bytes();
                Ok(Passed::Forward(to, [&kind[..], &label, &annex, payload.as_bytes()].concat()))
            }
        }
    }

    /// Makes the refusal of a dropped cell, and returns it with its next peer.
    pub(crate) fn refuse(
        &mut self,
        now: Time,
        from: Peer,
        datagram: &[u8],
        kind: u8,
        stamp: f32,
    ) -> Option<(Peer, Vec<u8>)> {
        let (label, transit) = self.known(now, from, datagram)?;
        let mut block = [0; REFUSAL];
        block[..8].copy_from_slice(&datagram[CELL_HEAD + ANNEX..][..8]);
        block[8..12].copy_from_slice(&stamp.to_le_bytes());
        transit.key.hide(&mut block);
        Some((from, refusal(kind, label, &block)))
    }

    /// Forwards a refusal towards the source of its cell, if the cell went to `from`.
    pub(crate) fn pass_back(&mut self, now: Time, from: Peer, datagram: &[u8]) -> Option<(Peer, Vec<u8>)> {
        let (next, mut block) = read_refusal(datagram)?;
        let label = *self.back.get(&(from, next))?;
        let transit = self.transits.get(&label).filter(|transit| transit.until > now)?;
        transit.key.hide(&mut block);
        Some((transit.from, refusal(datagram[0], label, &block)))
    }
}

fn refusal(kind: u8, label: u64, block: &[u8; REFUSAL]) -> Vec<u8> {
    [&[kind][..], &label.to_be_bytes(), block].concat()
}

/// The label and the block of a refusal.
pub(crate) fn read_refusal(datagram: &[u8]) -> Option<(u64, [u8; REFUSAL])> {
    let (label, block) = datagram.get(1..)?.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*label), block.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEDS: [Seed; 3] = [[1; 16], [2; 16], [3; 16]];
    const KIND: u8 = 4;
    const KEY: PayloadKey = [7; 192];

    /// Peers 1, 2 and 3 relay from peer 0 to peer 4.
    fn relays() -> Vec<Routes> {
        let mut relays: Vec<Routes> = (0..4).map(|_| Routes::new(Vec::new())).collect();
        for hop in 0..3usize {
            let label = if hop < 2 { label(&SEEDS[hop + 1]) } else { 9 };
            let onward = Onward::Pass { to: hop as Peer + 2, label, refusals: hop < 2 };
            relays[hop].establish(Time::ZERO, hop as Peer, &SEEDS[hop], onward);
        }
        relays
    }

    #[test]
    fn a_cell_looks_different_on_each_link_and_is_opened_once() {
        // The first two relays belong to the sender, the third to the receiver.
        let (mut relays, outbound) = (relays(), Outbound::new(1, &SEEDS[..2]));
        let (mut datagram, _) = outbound.cell(KIND, seal(b"text", &KEY), &mut || [5; 32]);
        for (hop, relay) in relays.iter_mut().enumerate().take(3) {
            let from = hop as Peer;
            assert_eq!(relay.check(Time::ZERO, from, &datagram), Ok(()));
            assert_eq!(relay.check(Time::ZERO, 9, &datagram), Err(OpenError::Forged), "another's route");
            let Ok(Passed::Forward(to, next)) = relay.pass(Time::ZERO, from, &datagram, 1000.0 + hop as f32)
            else {
                panic!("passes")
            };
            assert_eq!((to, next.len()), (hop as Peer + 2, DATA_SIZE));
            assert_eq!(relay.check(Time::ZERO, from, &datagram), Err(OpenError::Replayed));
            let same = datagram[1..].iter().zip(&next[1..]).filter(|(a, b)| a == b).count();
            assert!(same < 40, "{same} bytes are the same");
            datagram = next;
        }
        let annex = datagram[CELL_HEAD..][..ANNEX].try_into().expect("an annex");
        let end = Inbound::new(&SEEDS[2..]);
        let opened = end.open(annex, &datagram[CELL_HEAD + ANNEX..], &KEY);
        assert_eq!(opened, Some((b"text".to_vec(), vec![1002.0])));
        datagram[DATA_SIZE - 1] ^= 1;
        assert_eq!(end.open(annex, &datagram[CELL_HEAD + ANNEX..], &KEY), None, "damaged");
    }

    /// The first relay changes a bit of a payload, which another relay of the adversary looks for behind an honest one.
    #[test]
    fn a_changed_bit_of_a_payload_leaves_no_mark_behind_the_next_relay() {
        let outbound = Outbound::new(1, &SEEDS[..2]);
        let (datagram, _) = outbound.cell(KIND, seal(b"text", &KEY), &mut || [5; 32]);
        // The payload that the second relay gets, and whether the receiver can open the cell.
        let arrives = |changed: Option<usize>| {
            let mut relays = relays();
            let mut pass = |hop: usize, datagram: &[u8]| match relays[hop].pass(
                Time::ZERO,
                hop as Peer,
                datagram,
                1.0,
            ) {
                Ok(Passed::Forward(_, next)) => next,
                _ => panic!("passes"),
            };
            let mut sent = pass(0, &datagram);
            if let Some(place) = changed {
                sent[CELL_HEAD + ANNEX + place] ^= 1;
            }
            let there = pass(1, &sent);
            let last = pass(2, &there);
            let annex = last[CELL_HEAD..][..ANNEX].try_into().expect("an annex");
            let opened = Inbound::new(&SEEDS[2..]).open(annex, &last[CELL_HEAD + ANNEX..], &KEY);
            (there[CELL_HEAD + ANNEX..].to_vec(), opened.is_some())
        };
        let (honest, opened) = arrives(None);
        assert!(opened);
        let mut others = vec![honest];
        for place in [0, 15, 16, 31, 32, 700, CELL_PAYLOAD - 1] {
            let (there, opened) = arrives(Some(place));
            assert!(!opened, "the receiver drops it");
            for other in &others {
                let same = there.iter().zip(other).filter(|(a, b)| a == b).count();
                assert!(same < 30, "{same} of {CELL_PAYLOAD} bytes are the same, changed at {place}");
            }
            others.push(there);
        }
    }

    #[test]
    fn a_refusal_names_the_relay_and_the_cell_to_its_source_alone() {
        let outbound = Outbound::new(1, &SEEDS);
        for refuser in 0..3usize {
            let mut relays = relays();
            let (mut datagram, tags) = outbound.cell(KIND, seal(b"text", &KEY), &mut || [5; 32]);
            for (hop, relay) in relays.iter_mut().enumerate().take(refuser) {
                let Ok(Passed::Forward(_, next)) = relay.pass(Time::ZERO, hop as Peer, &datagram, 0.0) else {
                    panic!("passes")
                };
                datagram = next;
            }
            let refused = relays[refuser].refuse(Time::ZERO, refuser as Peer, &datagram, 6, 1500.0);
            let (mut to, mut refusal) = refused.expect("known");
            for hop in (0..refuser).rev() {
                assert_eq!(to, hop as Peer + 1);
                (to, refusal) = relays[hop].pass_back(Time::ZERO, to + 1, &refusal).expect("known");
            }
            assert_eq!((to, refusal.len()), (0, crate::wire::REFUSAL_SIZE));
            let (label, block) = read_refusal(&refusal).expect("well formed");
            assert_eq!(label, outbound.label);
            assert_eq!(outbound.refused(&block), Some((refuser, tags[refuser], 1500.0)));
            assert_eq!(outbound.refused(&[7; 16]), None);
        }
    }

    fn sizes(routes: &Routes) -> [usize; 4] {
        [routes.transits.len(), routes.back.len(), routes.ends.len(), routes.places.len()]
    }

    /// One peer establishes as many routes as it can. The others of the directory keep theirs, and newcomers get some.
    #[test]
    fn a_peer_with_many_routes_displaces_its_own_idlest_one() {
        // Peers 2 and 3 are in one network.
        let mut routes = Routes::new(vec![0, 1, 2, 2, 4]);
        let seed = |from: Peer, n: u64| (u128::from(from) << 64 | u128::from(n)).to_be_bytes();
        let establish = |routes: &mut Routes, at: u64, from: Peer, n: u64| {
            let onward = Onward::Pass { to: 5, label: u64::from(from) << 32 | n | 1, refusals: true };
            routes.establish(Time(at), from, &seed(from, n), onward);
        };
        let known =
            |routes: &Routes, from: Peer, n: u64| routes.transits.contains_key(&label(&seed(from, n)));
        for n in 0..20 {
            establish(&mut routes, n, 0, 2 * n);
        }
        for n in 0..ROUTES as u64 + 50 {
            establish(&mut routes, 100 + n, 1, 2 * n);
            // Its first route is in use.
            routes.transits.get_mut(&label(&seed(1, 0))).expect("it stays").used = Time(1 << 30);
        }
        assert!((0..20).all(|n| known(&routes, 0, 2 * n)), "the routes of another peer stay");
        assert!(known(&routes, 1, 0) && !known(&routes, 1, 2) && known(&routes, 1, 2 * ROUTES as u64));
        assert_eq!(sizes(&routes), [ROUTES; 4]);
        for n in 0..50 {
            (2..=4).for_each(|newcomer| establish(&mut routes, 1 << 31, newcomer, 2 * n));
        }
        assert_eq!([2, 4].map(|network| routes.places.of_group(&network)), [100, 50]);
        assert_eq!(sizes(&routes), [ROUTES; 4]);
        routes.establish(Time(1 << 31) + ROUTE_LIFE, 0, &[1; 16], Onward::End([1; 16]));
        assert_eq!(sizes(&routes), [1, 0, 1, 1]);
    }

    #[test]
    fn a_route_is_established_once() {
        let mut routes = Routes::new(vec![0, 1]);
        for from in [0, 1, 0] {
            routes.establish(Time::ZERO, from, &SEEDS[0], Onward::End([1; 16]));
        }
        assert_eq!((sizes(&routes), routes.transits[&label(&SEEDS[0])].from), ([1, 0, 1, 1], 0));
    }
}
