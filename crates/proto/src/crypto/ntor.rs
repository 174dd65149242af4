//! The ntor handshake (tor-spec, "The ntor handshake"; proposal 216): a one-way authenticated key exchange
//! over Curve25519, and the keys of a circuit hop derived from it (HKDF-SHA256, RFC 5869).

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use x25519_dalek::{X25519_BASEPOINT_BYTES, x25519};

/// Bytes of a client's onion skin: identity, onion key, ephemeral key.
pub const ONION_SKIN: usize = 84;
/// Bytes of a relay's reply: ephemeral key, authenticator.
pub(crate) const REPLY: usize = 64;

const PROTOCOL: &[u8] = b"ntor-curve25519-sha256-1";
const KEY_EXTRACT: &[u8] = b"ntor-curve25519-sha256-1:key_extract";
const KEY_EXPAND: &[u8] = b"ntor-curve25519-sha256-1:key_expand";
const MAC: &[u8] = b"ntor-curve25519-sha256-1:mac";
const VERIFY: &[u8] = b"ntor-curve25519-sha256-1:verify";

/// Public keys of a relay, as a client knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayPublic {
    /// The identity fingerprint.
    pub identity: [u8; 20],
    /// The onion key `B`.
    pub onion: [u8; 32],
}

/// A relay's keys.
#[derive(Clone)]
pub struct RelaySecret {
    public: RelayPublic,
    onion: [u8; 32],
}

impl RelaySecret {
    /// From the identity fingerprint and the secret half `b` of the onion key.
    pub fn new(identity: [u8; 20], onion: [u8; 32]) -> RelaySecret {
        RelaySecret { public: RelayPublic { identity, onion: x25519(onion, X25519_BASEPOINT_BYTES) }, onion }
    }

    /// The public keys.
    pub fn public(&self) -> &RelayPublic {
        &self.public
    }
}

/// Keys of one hop, in the order tor derives them.
#[derive(Clone, PartialEq, Eq)]
pub struct HopKeys {
    /// `Df`: seeds the running digest away from the client.
    pub forward_digest: [u8; 20],
    /// `Db`: seeds the running digest towards the client.
    pub backward_digest: [u8; 20],
    /// `Kf`: AES-128 key away from the client.
    pub forward: [u8; 16],
    /// `Kb`: AES-128 key towards the client.
    pub backward: [u8; 16],
    /// Proves knowledge of the circuit's keys, in messages of onion services ("KH" in tor-spec).
    pub binding: [u8; 20],
}

/// Why a handshake failed. Details are omitted so that a peer learns nothing from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NtorError {
    /// The onion skin is for another relay or another onion key.
    WrongRelay,
    /// A public key of low order, or a wrong authenticator.
    Rejected,
    /// The client asks for what this relay does not support (ntor-v3).
    Unsupported,
}

impl std::fmt::Display for NtorError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NtorError::WrongRelay => "the onion skin is meant for another relay or onion key",
            NtorError::Rejected => "the peer does not hold the expected key",
            NtorError::Unsupported => "the client asks for what this relay does not support",
        })
    }
}

impl std::error::Error for NtorError {}

/// A client that waits for the relay's reply.
pub struct ClientHandshake {
    relay: RelayPublic,
    ephemeral: [u8; 32],
    public: [u8; 32],
}

impl ClientHandshake {
    /// Begins with a fresh random secret `x`. The onion skin goes into a CREATE2 cell.
    pub fn start(relay: RelayPublic, ephemeral: [u8; 32]) -> (ClientHandshake, [u8; ONION_SKIN]) {
        let public = x25519(ephemeral, X25519_BASEPOINT_BYTES);
        let mut skin = [0; ONION_SKIN];
        skin[..20].copy_from_slice(&relay.identity);
        skin[20..52].copy_from_slice(&relay.onion);
        skin[52..].copy_from_slice(&public);
        (ClientHandshake { relay, ephemeral, public }, skin)
    }

    /// Checks the relay's reply and derives the keys.
    ///
    /// # Errors
    /// [`NtorError::Rejected`] if the sender of the reply does not hold the onion key.
    pub fn finish(self, reply: &[u8; REPLY]) -> Result<HopKeys, NtorError> {
        let (theirs, authenticator) = reply.split_at(32);
        let theirs: [u8; 32] = theirs.try_into().expect("split at 32");
        let shared = [x25519(self.ephemeral, theirs), x25519(self.ephemeral, self.relay.onion)];
        let (keys, mac) = derive(shared, &self.relay, &self.public, &theirs)?;
        mac.verify_slice(authenticator).map_err(|_| NtorError::Rejected)?;
        Ok(keys)
    }
}

/// The relay's side: answers an onion skin with a fresh random secret `y`.
///
/// # Errors
/// If the onion skin is for another relay, or its key is of low order.
pub fn answer(
    secret: &RelaySecret,
    skin: &[u8; ONION_SKIN],
    ephemeral: [u8; 32],
) -> Result<(HopKeys, [u8; REPLY]), NtorError> {
    if skin[..20] != secret.public.identity || skin[20..52] != secret.public.onion {
        return Err(NtorError::WrongRelay);
    }
    let theirs: [u8; 32] = skin[52..].try_into().expect("84 - 52 = 32");
    let public = x25519(ephemeral, X25519_BASEPOINT_BYTES);
    let shared = [x25519(ephemeral, theirs), x25519(secret.onion, theirs)];
    let (keys, mac) = derive(shared, &secret.public, &theirs, &public)?;
    let mut reply = [0; REPLY];
    reply[..32].copy_from_slice(&public);
    reply[32..].copy_from_slice(&mac.finalize().into_bytes());
    Ok((keys, reply))
}

/// Keys and authenticator from `EXP(X,y) | EXP(X,b)`, the relay, `X` and `Y`.
fn derive(
    shared: [[u8; 32]; 2],
    relay: &RelayPublic,
    client: &[u8; 32],
    server: &[u8; 32],
) -> Result<(HopKeys, Hmac<Sha256>), NtorError> {
    // A zero secret comes from a public key of low order (RFC 7748, section 6.1).
    if shared.contains(&[0; 32]) {
        return Err(NtorError::Rejected);
    }
    let secret_input: Vec<u8> =
        [&shared[0], &shared[1], &relay.identity[..], &relay.onion, client, server, PROTOCOL].concat();
    let verify = hmac(VERIFY, &secret_input).finalize().into_bytes();
    let auth_input =
        [&verify[..], &relay.identity, &relay.onion, server, client, PROTOCOL, b"Server"].concat();
    let mut okm = [0; 92];
    Hkdf::<Sha256>::new(Some(KEY_EXTRACT), &secret_input)
        .expand(KEY_EXPAND, &mut okm)
        .expect("92 bytes are within HKDF's limit");
    let keys = HopKeys {
        forward_digest: okm[..20].try_into().expect("20 bytes"),
        backward_digest: okm[20..40].try_into().expect("20 bytes"),
        forward: okm[40..56].try_into().expect("16 bytes"),
        backward: okm[56..72].try_into().expect("16 bytes"),
        binding: okm[72..].try_into().expect("20 bytes"),
    };
    Ok((keys, hmac(MAC, &auth_input)))
}

fn hmac(key: &[u8], message: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any size");
    mac.update(message);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unhex<const N: usize>(text: &str) -> [u8; N] {
        assert_eq!(text.len(), 2 * N);
        std::array::from_fn(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
    }

    /// Test vector from tor's `ntor_ref.py` with fixed secrets, published with Arti's tests.
    #[test]
    fn the_reference_implementation_derives_the_same_keys() {
        let secret = RelaySecret::new(
            unhex("69546f6c64596f7541626f75745374616972732e"),
            unhex("4820544f4c4420594f5520444f474954204b454550532048415050454e494e47"),
        );
        let x = unhex("706f6461792069207075742e2e2e2e2e2e2e2e4a454c4c59206f6e2074686973");
        let y = unhex("70686520737175697272656c2e2e2e2e2e2e2e2e686173206869732067616d65");
        let (client, skin) = ClientHandshake::start(*secret.public(), x);
        assert_eq!(
            skin,
            unhex(
                "69546f6c64596f7541626f75745374616972732eccbc8541904d18af08753eae967874749e6149f873de937f57f8fd90\
                 3a21c471e65dfdbef8b2635837fe2cebc086a8096eae3213e6830dc407516083d412b078"
            )
        );
        let (ours, reply) = answer(&secret, &skin, y).unwrap();
        assert_eq!(
            reply,
            unhex(
                "390480a14362761d6aec1fea840f6e9e928fb2adb7b25c670be1045e35133a37\
                 1cbdf68b89923e1f85e8e18ee6e805ea333fe4849c790ffd2670bd80fec95cc8"
            )
        );
        let theirs = client.finish(&reply).unwrap();
        assert!(ours == theirs);
        assert_eq!(ours.forward_digest, unhex("0c62dee7f48893370d0ef896758d35729867beef"));
        assert_eq!(ours.backward_digest, unhex("1a5121df80e00f79ed349af39b51cae125719182"));
        assert_eq!(ours.forward, unhex("f19d932a667dae1afbf2e336e6910e78"));
        assert_eq!(ours.backward, unhex("22223e763afad0a13342157969dc6b79"));
    }

    #[test]
    fn a_wrong_relay_or_a_changed_reply_is_refused() {
        let secret = RelaySecret::new([1; 20], [2; 32]);
        let (client, mut skin) = ClientHandshake::start(*secret.public(), [3; 32]);
        let other = RelaySecret::new([1; 20], [4; 32]);
        assert_eq!(answer(&other, &skin, [5; 32]).err(), Some(NtorError::WrongRelay));
        let (_, mut reply) = answer(&secret, &skin, [5; 32]).unwrap();
        reply[63] ^= 1;
        assert_eq!(client.finish(&reply).err(), Some(NtorError::Rejected));
        skin[52..].fill(0);
        assert_eq!(answer(&secret, &skin, [5; 32]).err(), Some(NtorError::Rejected), "a key of low order");
    }
}
