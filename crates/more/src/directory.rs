//! The static directory: which peers take part, under which key, signed by whoever runs the overlay.

use std::fmt;
use std::net::SocketAddr;

use ed25519_dalek::{Signature, Signer, SigningKey, Verifier, VerifyingKey};
use serde::{Deserialize, Serialize};

/// A directory whose signature was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Key epoch: keys change, and replay caches begin anew, with each epoch.
    pub epoch: u32,
    /// Peers by number.
    pub peers: Vec<PeerEntry>,
}

/// One peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerEntry {
    /// Where it receives datagrams.
    pub address: SocketAddr,
    /// Its X25519 key of this epoch, 64 hexadecimal digits.
    pub key: Hex<32>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    epoch: u32,
    signature: Hex<64>,
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

/// Why a directory is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryError {
    /// Not the TOML that is expected, and why.
    Syntax(String),
    /// Not signed by the given authority.
    Signature,
    /// The authority's key is no Ed25519 key.
    Authority,
    /// Too many peers or too few.
    Size(usize),
}

impl fmt::Display for DirectoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirectoryError::Syntax(why) => write!(f, "is no directory: {why}"),
            DirectoryError::Signature => {
                f.write_str("is not signed by the given authority; get it, or the authority's key, again")
            }
            DirectoryError::Authority => f.write_str("the authority's key is no Ed25519 public key"),
            DirectoryError::Size(peers) => {
                write!(f, "lists {peers} peers; 3 to {MAX_PEERS} can work together")
            }
        }
    }
}

impl std::error::Error for DirectoryError {}

/// Peers are numbered with 16 bits.
pub const MAX_PEERS: usize = 10_000;

impl Directory {
    /// Reads a directory and checks that `authority` signed it.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub fn parse(text: &str, authority: &[u8; 32]) -> Result<Directory, DirectoryError> {
        let file: File = toml::from_str(text).map_err(|e| DirectoryError::Syntax(e.to_string()))?;
        let key = VerifyingKey::from_bytes(authority).map_err(|_| DirectoryError::Authority)?;
        let directory = Directory { epoch: file.epoch, peers: file.peers };
        key.verify(&directory.signed_bytes(), &Signature::from_bytes(&file.signature.0))
            .map_err(|_| DirectoryError::Signature)?;
        match directory.peers.len() {
            3..=MAX_PEERS => Ok(directory),
            peers => Err(DirectoryError::Size(peers)),
        }
    }

    /// Writes the directory with a signature by `authority`, an Ed25519 secret.
    pub fn write(&self, authority: &[u8; 32]) -> String {
        let signature = SigningKey::from_bytes(authority).sign(&self.signed_bytes());
        let file =
            File { epoch: self.epoch, signature: Hex(signature.to_bytes()), peers: self.peers.clone() };
        toml::to_string(&file).expect("plain data can be written")
    }

    /// What the signature covers: unlike the text, it has one form only.
    fn signed_bytes(&self) -> Vec<u8> {
        let mut bytes = format!("tidegate more directory\nepoch {}\n", self.epoch).into_bytes();
        for peer in &self.peers {
            bytes.extend_from_slice(format!("{} {}\n", peer.address, peer.key).as_bytes());
        }
        bytes
    }
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
            address: SocketAddr::from(([127, 0, 0, 1], 9000 + u16::from(i))),
            key: Hex([i; 32]),
        });
        Directory { epoch: 7, peers: peers.collect() }
    }

    #[test]
    fn what_is_signed_is_read_and_what_is_changed_is_refused() {
        let text = directory().write(&[1; 32]);
        assert_eq!(Directory::parse(&text, &authority_key(&[1; 32])), Ok(directory()));
        assert_eq!(Directory::parse(&text, &authority_key(&[2; 32])), Err(DirectoryError::Signature));
        let forged = text.replace("127.0.0.1:9000", "127.0.0.1:9999");
        assert_eq!(Directory::parse(&forged, &authority_key(&[1; 32])), Err(DirectoryError::Signature));
        let small = Directory { peers: directory().peers[..2].to_vec(), ..directory() };
        let text = small.write(&[1; 32]);
        assert_eq!(Directory::parse(&text, &authority_key(&[1; 32])), Err(DirectoryError::Size(2)));
    }

    proptest! {
        #[test]
        fn garbage_is_refused(text in "\\PC{0,200}", at in 0usize..300, byte in any::<u8>()) {
            let authority = authority_key(&[1; 32]);
            prop_assert!(Directory::parse(&text, &authority).is_err());
            let mut bytes = directory().write(&[1; 32]).into_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(text) = String::from_utf8(bytes) {
                // Either the change does not matter to what is signed, or it is refused.
                if let Ok(read) = Directory::parse(&text, &authority) {
                    prop_assert_eq!(read, directory());
                }
            }
        }
    }
}
