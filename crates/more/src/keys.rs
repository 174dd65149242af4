//! A peer's secrets: a static key for its links and an onion key per epoch, all derived from one seed.

use sha2::{Digest, Sha256};
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// The secrets of a peer.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct PeerKeys {
    seed: [u8; 32],
}

impl PeerKeys {
    /// Derives the keys from a seed of the operating system's random numbers.
    pub fn new(seed: [u8; 32]) -> PeerKeys {
        PeerKeys { seed }
    }

    /// The static secret of its links.
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

    /// The public onion key of an epoch.
    pub fn onion_key(&self, epoch: u32) -> [u8; 32] {
        PublicKey::from(&self.onion(epoch)).to_bytes()
    }

    fn secret(&self, what: &[u8], epoch: u32) -> StaticSecret {
        let digest =
            Sha256::new().chain_update(what).chain_update(epoch.to_be_bytes()).chain_update(self.seed);
        StaticSecret::from(<[u8; 32]>::from(digest.finalize()))
    }
}
