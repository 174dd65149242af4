//! Authentication between neighbours, before any expensive processing of a datagram.
//!
//! Every pair of peers shares a key, derived from their static keys (X25519). Outsiders cannot compute it from the
//! public directory. A datagram names its sender and carries a SipHash-2-4 tag under that key. A check of the tag
//! takes about a microsecond, the opening of a Sphinx packet a hundred times that.

use std::hash::Hasher;

use sha2::{Digest, Sha256};
use siphasher::sip::SipHasher24;
use subtle::ConstantTimeEq as _;
use tidegate_control::paths::Peer;
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Length of the link header: the sender's number and the tag.
pub const LINK: usize = 2 + 8;

/// The links of one peer to all others.
pub struct Links {
    me: Peer,
    secret: StaticSecret,
    neighbours: Vec<Neighbour>,
}

struct Neighbour {
    key: [u8; 32],
    /// Derived from both static keys at the first use.
    tags: Option<TagKeys>,
}

/// One key per direction, so that datagrams cannot be reflected.
#[derive(Zeroize, ZeroizeOnDrop)]
struct TagKeys {
    to: [u8; 16],
    from: [u8; 16],
}

impl Links {
    /// The links of the peer `me` with this secret to peers with these static keys.
    pub fn new(me: Peer, secret: StaticSecret, keys: &[[u8; 32]]) -> Links {
        let neighbours = keys.iter().map(|key| Neighbour { key: *key, tags: None }).collect();
        Links { me, secret, neighbours }
    }

    /// Adds the link header for `to`; `None` if the directory lacks this peer.
    pub fn seal(&mut self, to: Peer, datagram: &[u8]) -> Option<Vec<u8>> {
        let tag = tag(&self.tags(to)?.to, datagram);
        Some([&self.me.to_be_bytes()[..], &tag, datagram].concat())
    }

    /// Verifies and removes the link header; `None` if sender or tag are wrong.
    pub(crate) fn open<'a>(&mut self, wire: &'a [u8]) -> Option<(Peer, &'a [u8])> {
        let (head, datagram) = wire.split_first_chunk::<LINK>()?;
        let from = Peer::from_be_bytes([head[0], head[1]]);
        let tags = self.tags(from)?;
        let valid: bool = tag(&tags.from, datagram).ct_eq(&head[2..]).into();
        valid.then_some((from, datagram))
    }

    fn tags(&mut self, peer: Peer) -> Option<&TagKeys> {
        let (me, secret) = (self.me, &self.secret);
        let neighbour = self.neighbours.get_mut(usize::from(peer)).filter(|_| peer != me)?;
        let key = &neighbour.key;
        Some(neighbour.tags.get_or_insert_with(|| {
            let shared = secret.diffie_hellman(&PublicKey::from(*key));
            let direction = |from: Peer, to: Peer| {
                let digest = Sha256::new()
                    .chain_update(b"tidegate more link")
                    .chain_update(shared.as_bytes())
                    .chain_update(from.to_be_bytes())
                    .chain_update(to.to_be_bytes());
                let digest: [u8; 32] = digest.finalize().into();
                *digest.first_chunk().expect("32 bytes")
            };
            TagKeys { to: direction(me, peer), from: direction(peer, me) }
        }))
    }
}

fn tag(key: &[u8; 16], datagram: &[u8]) -> [u8; 8] {
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write(datagram);
    hasher.finish().to_be_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pair() -> (Links, Links) {
        let secret = |seed: u8| StaticSecret::from([seed; 32]);
        let keys: Vec<[u8; 32]> = (1..4).map(|seed| PublicKey::from(&secret(seed)).to_bytes()).collect();
        (Links::new(0, secret(1), &keys), Links::new(2, secret(3), &keys))
    }

    #[test]
    fn a_datagram_is_valid_for_one_sender_and_receiver() {
        let (mut zero, mut two) = pair();
        let wire = zero.seal(2, b"datagram").expect("another peer");
        assert_eq!(two.open(&wire), Some((0, &b"datagram"[..])));
        assert_eq!(zero.open(&wire), None, "sent back");
        for at in 0..wire.len() {
            let mut damaged = wire.clone();
            damaged[at] ^= 1;
            assert_eq!(two.open(&damaged), None, "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn outsiders_are_refused(wire in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(pair().1.open(&wire), None);
        }
    }
}
