//! A role's identity: a self-signed certificate, pinned by fingerprint, and a relay's onion key.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
pub use tidegate_control::text::{hex, unhex};
use tidegate_proto::crypto::cert::Fingerprint;
use tidegate_proto::crypto::ntor::{RelayPublic, RelaySecret};
use tidegate_proto::crypto::rsa_keys::tls_identity;
use zeroize::Zeroizing;

use crate::private_file;

/// A peer's address and certificate fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contact {
    /// The address.
    pub address: SocketAddr,
    /// The SHA-256 fingerprint of its certificate.
    pub fingerprint: Fingerprint,
}

/// An identity file: TOML, readable only by its owner.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    certificate: String,
    private_key: String,
    onion_key: String,
}

/// The keys of a role.
pub struct Identity {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) key: PrivateKeyDer<'static>,
    onion: [u8; 32],
}

/// Why an identity file cannot be read or written.
#[derive(Debug)]
pub struct IdentityError {
    path: PathBuf,
    why: String,
}

impl IdentityError {
    /// The cause, without the path.
    pub fn why(&self) -> &str {
        &self.why
    }
}

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "identity {}: {}", self.path.display(), self.why)
    }
}

impl std::error::Error for IdentityError {}

/// Fresh random bytes from the operating system.
///
/// # Panics
/// If the operating system fails to give random bytes.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    fill(&mut bytes);
    bytes
}

/// Fills memory with [`random`] bytes.
///
/// # Panics
/// If the operating system fails to give random bytes.
pub fn fill(bytes: &mut [u8]) {
    let random = rustls::crypto::ring::default_provider().secure_random;
    random.fill(bytes).expect("the operating system gives random bytes");
}

/// SHA-256 in hexadecimal.
pub fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// SHA-256 of a certificate.
pub(crate) fn fingerprint(certificate: &CertificateDer<'_>) -> Fingerprint {
    Sha256::digest(certificate).into()
}

impl Identity {
    /// Creates an identity with fresh keys.
    pub fn generate() -> Identity {
        let made = rcgen::generate_simple_self_signed(vec!["tidegate.invalid".into()])
            .expect("a certificate for a fixed name can be made");
        Identity {
            certificate: made.cert.der().clone(),
            key: PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into()),
            onion: random(),
        }
    }

    /// Creates an identity for TLS links of stock tor.
    pub fn for_links() -> Identity {
        let (certificate, key) = tls_identity(&mut fill);
        Identity {
            certificate: certificate.into(),
            key: PrivateKeyDer::Pkcs8(key.to_vec().into()),
            onion: random(),
        }
    }

    /// Writes the identity into a new file that only its owner can read.
    ///
    /// # Errors
    /// If the file exists (keys are never overwritten) or cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), IdentityError> {
        let error = |why: String| IdentityError { path: path.into(), why };
        let file = File {
            certificate: hex(&self.certificate),
            private_key: hex(self.key.secret_der()),
            onion_key: hex(&self.onion),
        };
        let text = toml::to_string(&file).expect("three strings are TOML");
        let text = Zeroizing::new(format!(
            "# An identity of tidegate. Keep it secret: who holds it can act as this role.\n{text}"
        ));
        private_file::write(path, &text).map_err(error)
    }

    /// Reads an identity file.
    ///
    /// # Errors
    /// If the file is missing, is not an identity, or is readable by others.
    pub fn load(path: &Path) -> Result<Identity, IdentityError> {
        let error = |why: String| IdentityError { path: path.into(), why };
        let text = private_file::read(path)
            .map_err(|why| error(format!("{why}; `tidegate flashflow keygen` makes one")))?;
        let file: File = toml::from_str(&text)
            .map_err(|cause| error(format!("is not an identity: {}", cause.message())))?;
        let bytes = |text: &str, what: &str| {
            let secret =
                private_file::unhex(text).ok_or_else(|| error(format!("{what} is not hexadecimal")))?;
            Ok::<_, IdentityError>(secret.to_vec())
        };
        Ok(Identity {
            certificate: bytes(&file.certificate, "certificate")?.into(),
            key: PrivateKeyDer::Pkcs8(bytes(&file.private_key, "private_key")?.into()),
            onion: unhex(&file.onion_key)
                .ok_or_else(|| error("onion_key is not 32 bytes of hexadecimal".into()))?,
        })
    }

    /// The certificate, in DER.
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// The fingerprint that peers pin.
    pub fn fingerprint(&self) -> Fingerprint {
        fingerprint(&self.certificate)
    }

    /// A relay's keys. The relay's identity is the first 20 bytes of the certificate's fingerprint.
    pub(crate) fn relay(&self) -> RelaySecret {
        let identity = self.fingerprint()[..20].try_into().expect("a fingerprint has 32 bytes");
        RelaySecret::new(identity, self.onion)
    }

    /// A coordinator's contribution to the secret of its schedule.
    pub(crate) fn schedule_secret(&self) -> [u8; 32] {
        self.onion
    }

    /// The data that measurers need about a relay.
    pub fn relay_public(&self) -> RelayPublic {
        *self.relay().public()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_identity_file_is_never_overwritten() {
        let directory = std::env::temp_dir().join(format!("tidegate-identity-{}", hex(&random::<8>())));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("role.toml");
        let identity = Identity::generate();
        identity.save(&path).unwrap();
        let again = Identity::load(&path).unwrap();
        assert_eq!(again.fingerprint(), identity.fingerprint());
        assert_eq!(again.relay_public(), identity.relay_public());
        assert!(identity.save(&path).unwrap_err().to_string().contains("cannot be written"));
        for bad in
            ["", "certificate = 1", "certificate=\"zz\"\nprivate_key=\"00\"\nonion_key=\"00\"", "\u{0}"]
        {
            fs::write(&path, bad).unwrap();
            assert!(Identity::load(&path).is_err(), "{bad:?} was read");
        }
        fs::remove_dir_all(&directory).unwrap();
        assert!(Identity::load(&path).err().unwrap().to_string().contains("keygen"));
    }

    #[test]
    fn hexadecimal_is_strict() {
        assert_eq!(unhex("00fF"), Some([0, 255]));
        for bad in ["", "0", "00f", "00fg", "+0ff", "00ff0"] {
            assert_eq!(unhex::<2>(bad), None, "{bad}");
        }
    }
}
