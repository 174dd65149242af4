//! A peer's secrets: one static key for its links, one onion key per epoch, all from one seed in a file.

use sha2::{Digest, Sha256};
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Everything a peer must keep to itself.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct PeerKeys {
    seed: [u8; 32],
}

impl PeerKeys {
    /// The keys that follow from a seed of the operating system's random numbers.
    pub fn new(seed: [u8; 32]) -> PeerKeys {
        PeerKeys { seed }
    }

    /// The static secret of this peer's links.
    pub fn link(&self) -> StaticSecret {
        self.secret(b"tidegate more static", 0)
    }

    /// The secret that opens onions of an epoch.
    pub fn onion(&self, epoch: u32) -> StaticSecret {
        self.secret(b"tidegate more epoch", epoch)
    }

    /// The public key of its links.
    pub fn link_key(&self) -> [u8; 32] {
        PublicKey::from(&self.link()).to_bytes()
    }

    /// The public key of an epoch.
    pub fn onion_key(&self, epoch: u32) -> [u8; 32] {
        PublicKey::from(&self.onion(epoch)).to_bytes()
    }

    fn secret(&self, what: &[u8], epoch: u32) -> StaticSecret {
        let digest =
            Sha256::new().chain_update(what).chain_update(epoch.to_be_bytes()).chain_update(self.seed);
        StaticSecret::from(<[u8; 32]>::from(digest.finalize()))
    }
}
