//! The keys with which a relay answers key exchanges: the announced onion key, and the previous one for clients that do
//! not know its replacement yet.

use super::ntor::{self, HopKeys, NtorError, RelaySecret};
use super::ntor_v3;

/// One onion key, in the form of both key exchanges.
#[derive(Clone)]
struct OwnKey {
    ntor: RelaySecret,
    /// For ntor-v3, if the relay has an Ed25519 identity.
    v3: Option<(ntor_v3::Public, [u8; 32])>,
}

/// A relay's onion keys, under its identity.
#[derive(Clone)]
pub struct OwnKeys {
    current: OwnKey,
    previous: Option<OwnKey>,
}

impl From<RelaySecret> for OwnKeys {
    /// A permanent key, for ntor only.
    fn from(ntor: RelaySecret) -> OwnKeys {
        OwnKeys { current: OwnKey { ntor, v3: None }, previous: None }
    }
}

impl OwnKeys {
    /// Keys of the relay with this fingerprint and Ed25519 identity: the announced secret and the previous one.
    pub fn new(
        fingerprint: [u8; 20],
        identity: [u8; 32],
        secret: [u8; 32],
        previous: Option<[u8; 32]>,
    ) -> OwnKeys {
        let key = |secret| {
            let ntor = RelaySecret::new(fingerprint, secret);
            let public = ntor_v3::Public { identity, onion: ntor.public().onion };
            OwnKey { ntor, v3: Some((public, secret)) }
        };
        OwnKeys { current: key(secret), previous: previous.map(key) }
    }

    /// SHA-1 of the RSA identity.
    pub(crate) fn fingerprint(&self) -> [u8; 20] {
        self.current.ntor.public().identity
    }

    fn all(&self) -> impl Iterator<Item = &OwnKey> {
        [Some(&self.current), self.previous.as_ref()].into_iter().flatten()
    }

    /// Answers ntor with the key that the client knows; see [`ntor::answer`].
    ///
    /// # Errors
    /// If the client's key is not one of this relay, or the handshake fails.
    pub(crate) fn answer(
        &self,
        skin: &[u8; ntor::ONION_SKIN],
        ephemeral: [u8; 32],
    ) -> Result<(HopKeys, [u8; ntor::REPLY]), NtorError> {
        let mut answers = self.all().map(|key| ntor::answer(&key.ntor, skin, ephemeral));
        answers
            .find(|answer| !matches!(answer, Err(NtorError::WrongRelay)))
            .unwrap_or(Err(NtorError::WrongRelay))
    }

    /// Answers ntor-v3 with the key that the client knows; see [`ntor_v3::answer`].
    ///
    /// # Errors
    /// If the client's key is not one of this relay, or the handshake fails.
    pub(crate) fn answer_v3(
        &self,
        skin: &[u8],
        ephemeral: &[u8; 32],
        mut grant: impl FnMut(&[u8]) -> Option<Vec<u8>>,
    ) -> Result<(ntor_v3::KeyMaterial, Vec<u8>), NtorError> {
        let keys = self.all().filter_map(|key| key.v3.as_ref());
        let mut answers =
            keys.map(|(public, secret)| ntor_v3::answer(public, secret, skin, ephemeral, &mut grant));
        answers
            .find(|answer| !matches!(answer, Err(NtorError::WrongRelay)))
            .unwrap_or(Err(NtorError::WrongRelay))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ntor::RelayPublic;
    use super::*;

    const IDENTITY: [u8; 32] = [3; 32];

    fn keys(secret: u8, previous: Option<u8>) -> OwnKeys {
        OwnKeys::new([1; 20], IDENTITY, [secret; 32], previous.map(|secret| [secret; 32]))
    }

    fn public(secret: u8) -> RelayPublic {
        *RelaySecret::new([1; 20], [secret; 32]).public()
    }

    /// Whether handshakes with the key of this secret succeed: with ntor, and with ntor-v3.
    fn answers(keys: &OwnKeys, secret: u8) -> [bool; 2] {
        let public = public(secret);
        let (client, skin) = ntor::ClientHandshake::start(public, [9; 32]);
        let old = keys
            .answer(&skin, [5; 32])
            .is_ok_and(|(theirs, reply)| client.finish(&reply).is_ok_and(|ours| ours == theirs));
        let public = ntor_v3::Public { identity: IDENTITY, onion: public.onion };
        let (client, skin) = ntor_v3::ClientHandshake::start(public, [9; 32], b"please").unwrap();
        let new =
            keys.answer_v3(&skin, &[5; 32], |_| Some(b"granted".to_vec())).is_ok_and(|(theirs, reply)| {
                client.finish(&reply).is_ok_and(|(ours, said)| ours == theirs && said == b"granted")
            });
        [old, new]
    }

    #[test]
    fn the_key_before_answers_until_it_is_forgotten() {
        assert_eq!([20, 21].map(|secret| answers(&keys(20, None), secret)), [[true; 2], [false; 2]]);
        assert_eq!(
            [20, 21, 22].map(|secret| answers(&keys(21, Some(20)), secret)),
            [[true; 2], [true; 2], [false; 2]]
        );
        assert_eq!([20, 21].map(|secret| answers(&keys(21, None), secret)), [[false; 2], [true; 2]]);
    }

    #[test]
    fn a_bad_handshake_is_refused_by_the_key_that_it_is_for() {
        let keys = keys(21, Some(20));
        let (_, mut skin) = ntor::ClientHandshake::start(public(20), [9; 32]);
        skin[52..].fill(0);
        assert_eq!(keys.answer(&skin, [5; 32]).err(), Some(NtorError::Rejected));
        let (_, skin) = ntor::ClientHandshake::start(public(22), [9; 32]);
        assert_eq!(keys.answer(&skin, [5; 32]).err(), Some(NtorError::WrongRelay));
    }
}
