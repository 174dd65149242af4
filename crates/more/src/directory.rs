//! The static directory: peers, addresses and keys, signed by the authority of the overlay.

use std::fmt;

use ed25519_dalek::{Signature, Signer, SigningKey, Verifier, VerifyingKey};
use serde::{Deserialize, Serialize};

use crate::onion::Epoch;

/// Peers and key epochs. Onion keys and replay tags change with each epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Start of epoch 0, seconds since 1970.
    pub start: u64,
    /// Length of an epoch, seconds.
    pub seconds: u64,
    /// Peers by number.
    pub peers: Vec<PeerEntry>,
}

/// A peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerEntry {
    /// Address for datagrams: `relay.example:9700`, `192.0.2.1:9700` or `[2001:db8::1]:9700`.
    pub address: String,
    /// Its static X25519 key, which authenticates it to other peers; 64 hexadecimal digits.
    pub key: Hex<32>,
    /// Its X25519 keys for onions, one per epoch.
    pub epochs: Vec<Hex<32>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    start: u64,
    seconds: u64,
    /// `None` while peers are being added.
    signature: Option<Hex<64>>,
    #[serde(default)]
    peers: Vec<PeerEntry>,
}

/// Bytes written as hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hex<const N: usize>(pub [u8; N]);

impl<const N: usize> fmt::Display for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl<const N: usize> fmt::Debug for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<const N: usize> std::str::FromStr for Hex<N> {
    type Err = String;
    fn from_str(text: &str) -> Result<Hex<N>, String> {
        let text = text.trim();
        let wrong = || format!("must have {} hexadecimal digits", 2 * N);
        if text.len() != 2 * N || !text.is_ascii() {
            return Err(wrong());
        }
        let mut bytes = [0; N];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Hex(bytes))
    }
}

impl<const N: usize> Serialize for Hex<N> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, const N: usize> Deserialize<'de> for Hex<N> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Why a directory is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryError {
    /// The TOML is malformed, with the reason.
    Syntax(String),
    /// The directory is not signed.
    Unsigned,
    /// The signature of the given authority is wrong.
    Signature,
    /// The authority's key is not an Ed25519 key.
    Authority,
    /// Wrong number of peers.
    Size(usize),
    /// Epochs cannot have this length.
    Seconds(u64),
    /// This peer's address is malformed.
    Address(usize),
    /// This peer's number of keys is zero, too large, or differs from the first peer's.
    Epochs(usize),
    /// The current time is outside all epochs.
    Time {
        /// Start of the first epoch, seconds since 1970.
        from: u64,
        /// End of the last epoch.
        until: u64,
    },
}

impl fmt::Display for DirectoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirectoryError::Syntax(why) => write!(f, "is not a directory of peers: {why}"),
            DirectoryError::Unsigned => {
                f.write_str("is not signed; sign it with `tidegate more directory sign`")
            }
            DirectoryError::Signature => f.write_str(
                "is not signed by the given authority; get the directory or the authority's key again",
            ),
            DirectoryError::Authority => {
                f.write_str("the authority's key is not an Ed25519 public key; get it again")
            }
            DirectoryError::Size(peers) => {
                write!(f, "the number of peers is {peers}; add peers until there are 3 to {MAX_PEERS}")
            }
            DirectoryError::Seconds(seconds) => {
                write!(f, "has epochs of {seconds} s; give {SHORTEST} s to a year")
            }
            DirectoryError::Address(peer) => {
                write!(f, "peer {peer}: the address is not `host:port`; correct it")
            }
            DirectoryError::Epochs(peer) => write!(
                f,
                "peer {peer} has another number of epoch keys than peer 0, or not 1 to {MAX_EPOCHS}; draw its keys \
                 again with the --epochs of the others"
            ),
            DirectoryError::Time { from, until } => write!(
                f,
                "is valid from {from} to {until} (seconds since 1970), not now; get a new one, or set the clock"
            ),
        }
    }
}

impl std::error::Error for DirectoryError {}

/// Maximum number of peers. Numbers have 16 bits, and one of them stands for receivers.
pub(crate) const MAX_PEERS: usize = 10_000;
/// Maximum number of epochs: more than a year of hours.
pub const MAX_EPOCHS: usize = 10_000;
/// Shortest epoch, seconds. Clock errors must stay below an epoch.
const SHORTEST: u64 = 30;

impl Directory {
    /// Reads a directory and verifies the signature of `authority`.
    ///
    /// # Errors
    /// [`DirectoryError`] if it is malformed or not signed by the authority.
    pub fn parse(text: &str, authority: &[u8; 32]) -> Result<Directory, DirectoryError> {
        let (directory, signature) = Directory::parse_unsigned(text)?;
        let key = VerifyingKey::from_bytes(authority).map_err(|_| DirectoryError::Authority)?;
        let signature = signature.ok_or(DirectoryError::Unsigned)?;
        key.verify(&directory.signed_bytes(), &Signature::from_bytes(&signature.0))
            .map_err(|_| DirectoryError::Signature)?;
        match directory.peers.len() {
            3..=MAX_PEERS => Ok(directory),
            peers => Err(DirectoryError::Size(peers)),
        }
    }

    /// Reads a directory that may be incomplete or unsigned.
    ///
    /// # Errors
    /// [`DirectoryError`] for mistakes that more peers and a signature cannot correct.
    pub fn parse_unsigned(text: &str) -> Result<(Directory, Option<Hex<64>>), DirectoryError> {
        let file: File = toml::from_str(text).map_err(|e| DirectoryError::Syntax(e.to_string()))?;
        let directory = Directory { start: file.start, seconds: file.seconds, peers: file.peers };
        if !(SHORTEST..=366 * 86_400).contains(&directory.seconds) || directory.start > 1 << 40 {
            return Err(DirectoryError::Seconds(directory.seconds));
        }
        let epochs = directory.epochs();
        for (number, peer) in directory.peers.iter().enumerate() {
            if !is_host_and_port(&peer.address) {
                return Err(DirectoryError::Address(number));
            }
            if peer.epochs.len() != epochs || !(1..=MAX_EPOCHS).contains(&epochs) {
                return Err(DirectoryError::Epochs(number));
            }
        }
        match directory.peers.len() {
            0..=MAX_PEERS => Ok((directory, file.signature)),
            peers => Err(DirectoryError::Size(peers)),
        }
    }

    /// Number of epochs.
    pub fn epochs(&self) -> usize {
        self.peers.first().map_or(0, |peer| peer.epochs.len())
    }

    /// The epoch at `unix`, seconds since 1970.
    ///
    /// # Errors
    /// [`DirectoryError::Time`] outside all epochs.
    pub fn epoch_at(&self, unix: u64) -> Result<u32, DirectoryError> {
        let number = unix.checked_sub(self.start).map(|since| since / self.seconds);
        match number {
            Some(number) if number < self.epochs() as u64 => Ok(number as u32),
            _ => {
                let until = self.start + self.seconds * self.epochs() as u64;
                Err(DirectoryError::Time { from: self.start, until })
            }
        }
    }

    /// The onion keys of all peers in an epoch.
    ///
    /// # Panics
    /// If the directory lacks this epoch.
    pub fn epoch(&self, number: u32) -> Epoch {
        Epoch::new(number, self.peers.iter().map(|peer| peer.epochs[number as usize].0).collect())
    }

    /// The static keys of all peers.
    pub fn links(&self) -> Vec<[u8; 32]> {
        self.peers.iter().map(|peer| peer.key.0).collect()
    }

    /// Writes the directory, signed with the Ed25519 secret `authority` if there is one.
    pub fn write(&self, authority: Option<&[u8; 32]>) -> String {
        let sign = |secret| Hex(SigningKey::from_bytes(secret).sign(&self.signed_bytes()).to_bytes());
        let Directory { start, seconds, peers } = self.clone();
        toml::to_string(&File { start, seconds, signature: authority.map(sign), peers })
            .expect("plain data can be written")
    }

    /// The signed bytes, which unlike the text have only one form.
    fn signed_bytes(&self) -> Vec<u8> {
        let mut bytes = format!("tidegate more directory\n{} {}\n", self.start, self.seconds).into_bytes();
        for peer in &self.peers {
            bytes.extend_from_slice(format!("{} {}", peer.address, peer.key).as_bytes());
            peer.epochs.iter().for_each(|key| bytes.extend_from_slice(format!(" {key}").as_bytes()));
            bytes.push(b'\n');
        }
        bytes
    }
}

/// Whether the text has the form `host:port`. Its use shows whether the host exists.
fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let plain = |host: &str| host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
    let v6 = |host: &str| {
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).map(str::parse::<std::net::Ipv6Addr>)
    };
    port.parse::<u16>().is_ok_and(|port| port > 0)
        && (1..=255).contains(&host.len())
        && (plain(host) || v6(host).is_some_and(|address| address.is_ok()))
}

/// The public key of an authority's secret.
pub fn authority_key(secret: &[u8; 32]) -> [u8; 32] {
    SigningKey::from_bytes(secret).verifying_key().to_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn directory() -> Directory {
        let peers = (0..4).map(|i| PeerEntry {
            address: format!("127.0.0.1:{}", 9000 + i),
            key: Hex([i as u8; 32]),
            epochs: vec![Hex([i as u8; 32]); 3],
        });
        Directory { start: 1000, seconds: 60, peers: peers.collect() }
    }

    #[test]
    fn signatures_are_verified() {
        let authority = authority_key(&[1; 32]);
        let text = directory().write(Some(&[1; 32]));
        assert_eq!(Directory::parse(&text, &authority), Ok(directory()));
        assert_eq!(Directory::parse(&text, &authority_key(&[2; 32])), Err(DirectoryError::Signature));
        let forged = text.replace("127.0.0.1:9000", "127.0.0.1:9999");
        assert_eq!(Directory::parse(&forged, &authority), Err(DirectoryError::Signature));
        assert_eq!(Directory::parse(&directory().write(None), &authority), Err(DirectoryError::Unsigned));
        let refused = |change: &dyn Fn(&mut Directory)| {
            let mut directory = directory();
            change(&mut directory);
            Directory::parse(&directory.write(Some(&[1; 32])), &authority).expect_err("cannot work")
        };
        assert_eq!(refused(&|it| it.peers.truncate(2)), DirectoryError::Size(2));
        assert_eq!(refused(&|it| it.seconds = 0), DirectoryError::Seconds(0));
        assert_eq!(refused(&|it| it.peers[2].epochs.truncate(1)), DirectoryError::Epochs(2));
        for address in ["", "9000", "host:0", "host:70000", "a b:1", "[::1:9", ":9", "[1.2.3.4]:9"] {
            assert_eq!(
                refused(&|it| it.peers[1].address = address.into()),
                DirectoryError::Address(1),
                "{address}"
            );
        }
        let mut directory = directory();
        directory.peers[0].address = "[2001:db8::1]:9700".into();
        directory.peers[1].address = "relay-1.example:9700".into();
        assert_eq!(Directory::parse(&directory.write(Some(&[1; 32])), &authority), Ok(directory));
    }

    #[test]
    fn epochs_begin_and_end() {
        let at = |unix| directory().epoch_at(unix);
        assert_eq!((at(1000), at(1059), at(1060), at(1179)), (Ok(0), Ok(0), Ok(1), Ok(2)));
        let never = Err(DirectoryError::Time { from: 1000, until: 1180 });
        assert_eq!((at(999), at(1180)), (never.clone(), never));
        assert_eq!(directory().epoch(2), Epoch { tag: 2, keys: (0..4).map(|i| [i; 32]).collect() });
    }

    proptest! {
        #[test]
        fn garbage_is_refused(text in "\\PC{0,200}", at in 0usize..900, byte in any::<u8>()) {
            let authority = authority_key(&[1; 32]);
            prop_assert!(Directory::parse(&text, &authority).is_err());
            let mut bytes = directory().write(Some(&[1; 32])).into_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(text) = String::from_utf8(bytes) {
                // A change either does not affect the signed bytes, or is refused.
                if let Ok(read) = Directory::parse(&text, &authority) {
                    prop_assert_eq!(read, directory());
                }
            }
        }
    }
}
