//! Datagrams with which measurers probe their capacity, and their authentication.
//!
//! Section 6.1: UDP from and to all other measurers at the same time. Every datagram begins with a [`Head`] of
//! [`HEAD`] bytes that ends in a MAC under a key of the two measurers. A datagram without a valid MAC costs one
//! MAC computation and is not answered. Answers are not larger than requests.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Bytes of a head.
pub const HEAD: usize = 64;
/// Bytes of a datagram with data: with IP and UDP headers it fits into any path.
pub const DATAGRAM: usize = 1200;
/// Longest probe in seconds.
pub const MAX_SECONDS: u64 = 120;

const MAGIC: [u8; 7] = *b"TGprobe";
const CODE: usize = 16;

/// Sender: the first bytes of its public key.
pub type Sender = [u8; 8];
/// Random number of one side, fresh for each session.
pub type Nonce = [u8; 16];

/// Kind of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ProbeKind {
    /// Request of a probe: `number` seconds, at most `value` bit/s towards the sender. Uses the pair's key.
    Start = 1,
    /// Nonce of the answering side; `number` is the start of the requester's nonce. Uses the pair's key.
    Challenge = 2,
    /// Data, with sequence number `number`. Uses the session's key, which proves that both nonces are fresh.
    Data = 3,
    /// Report of `value` bytes received in second `number`. Uses the session's key.
    Report = 4,
}

/// Fields of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Kind.
    pub kind: ProbeKind,
    /// Sender.
    pub sender: Sender,
    /// The sender's nonce in `Start` and `Challenge`; zero elsewhere.
    pub nonce: Nonce,
    /// See [`ProbeKind`].
    pub number: u64,
    /// See [`ProbeKind`].
    pub value: u64,
}

/// A MAC key that two measurers share.
#[derive(Clone)]
pub struct Key(Hmac<Sha256>);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// Derives a pair's key from the X25519 shared secret.
    pub fn of_pair(shared: &[u8; 32]) -> Key {
        Key::derive(shared, &[b"tidegate probe 1, pair"])
    }

    /// Derives a session's key from both nonces.
    pub fn of_session(&self, initiator: &Nonce, other: &Nonce) -> Key {
        let mut mac = self.0.clone();
        for part in [b"tidegate probe 1, session".as_slice(), initiator, other] {
            mac.update(part);
        }
        Key::new(&mac.finalize().into_bytes())
    }

    fn derive(secret: &[u8], parts: &[&[u8]]) -> Key {
        let Key(mut mac) = Key::new(secret);
        parts.iter().for_each(|part| mac.update(part));
        Key::new(&mac.finalize().into_bytes())
    }

    fn new(bytes: &[u8]) -> Key {
        Key(Hmac::new_from_slice(bytes).expect("HMAC takes keys of any length"))
    }
}

impl Head {
    /// Formats the head with its MAC.
    pub fn seal(&self, key: &Key) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..7].copy_from_slice(&MAGIC);
        bytes[7] = self.kind as u8;
        bytes[8..16].copy_from_slice(&self.sender);
        bytes[16..32].copy_from_slice(&self.nonce);
        bytes[32..40].copy_from_slice(&self.number.to_be_bytes());
        bytes[40..48].copy_from_slice(&self.value.to_be_bytes());
        let code = key.0.clone().chain_update(&bytes[..HEAD - CODE]).finalize().into_bytes();
        bytes[HEAD - CODE..].copy_from_slice(&code[..CODE]);
        bytes
    }

    /// The claimed sender, to look up the key; unauthenticated.
    pub fn claimed(datagram: &[u8]) -> Option<Sender> {
        let fine = datagram.len() >= HEAD && datagram.len() <= DATAGRAM && datagram[..7] == MAGIC;
        fine.then(|| datagram[8..16].try_into().expect("8 bytes"))
    }

    /// Parses a head if its MAC is valid under the key. Runs in the same time for valid and invalid MACs.
    pub fn open(datagram: &[u8], key: &Key) -> Option<Head> {
        let bytes: &[u8; HEAD] = datagram.get(..HEAD)?.try_into().ok()?;
        let mac = key.0.clone().chain_update(&bytes[..HEAD - CODE]);
        mac.verify_truncated_left(&bytes[HEAD - CODE..]).ok()?;
        let kind = match bytes[7] {
            1 => ProbeKind::Start,
            2 => ProbeKind::Challenge,
            3 => ProbeKind::Data,
            4 => ProbeKind::Report,
            _ => return None,
        };
        let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        Some(Head {
            kind,
            sender: bytes[8..16].try_into().expect("8 bytes"),
            nonce: bytes[16..32].try_into().expect("16 bytes"),
            number: number(32),
            value: number(40),
        })
    }
}

/// The first bytes of a nonce, which a `Challenge` repeats.
pub fn beginning(nonce: &Nonce) -> u64 {
    u64::from_be_bytes(nonce[..8].try_into().expect("8 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head() -> Head {
        Head { kind: ProbeKind::Start, sender: [1; 8], nonce: [2; 16], number: 30, value: 1_000_000_000 }
    }

    #[test]
    fn heads_come_back_and_every_changed_bit_is_noticed() {
        let key = Key::of_pair(&[7; 32]);
        for kind in [ProbeKind::Start, ProbeKind::Challenge, ProbeKind::Data, ProbeKind::Report] {
            let head = Head { kind, ..head() };
            let bytes = head.seal(&key);
            assert_eq!(Head::claimed(&bytes), Some([1; 8]));
            assert_eq!(Head::open(&bytes, &key), Some(head));
            for bit in 0..HEAD * 8 {
                let mut changed = bytes;
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Head::open(&changed, &key), None, "bit {bit}");
            }
            let session = key.of_session(&[1; 16], &[2; 16]);
            assert_eq!(Head::open(&bytes, &session), None);
            assert_eq!(Head::open(&head.seal(&session), &key.of_session(&[2; 16], &[1; 16])), None);
        }
    }

    proptest! {
        #[test]
        fn garbage_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), magic: bool) {
            let mut bytes = bytes;
            if magic && bytes.len() >= 7 {
                bytes[..7].copy_from_slice(&MAGIC);
            }
            prop_assert_eq!(Head::claimed(&bytes).is_some(), magic && bytes.len() >= HEAD);
            prop_assert_eq!(Head::open(&bytes, &Key::of_pair(&[0; 32])), None);
        }
    }
}
