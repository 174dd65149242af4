//! Descriptor of a hidden receiver: its name, its key for messages, and receiver paths.

use std::fmt;

use ed25519_dalek::{Signature, Signer, SigningKey, Verifier, VerifyingKey};
use serde::{Deserialize, Serialize};

use crate::directory::Hex;
use crate::message::{PATH_SIZE, ReceiverPath};

/// A descriptor with a verified signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The receiver's name: the Ed25519 key that signs its descriptors.
    pub name: [u8; 32],
    /// The directory's key epoch at the time of signing. Each path names its own epoch.
    pub epoch: u32,
    /// The receiver's X25519 key for messages.
    pub key: [u8; 32],
    /// Receiver paths, each for one packet of one reader.
    pub paths: Vec<ReceiverPath>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Hex<32>,
    epoch: u32,
    key: Hex<32>,
    signature: Hex<64>,
    paths: Vec<Hex<PATH_SIZE>>,
}

/// Why a descriptor is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DescriptorError {
    /// The TOML is malformed, with the reason.
    Syntax(String),
    /// The signature of the named receiver is wrong.
    Signature,
    /// Wrong number of paths.
    Size(usize),
}

impl fmt::Display for DescriptorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DescriptorError::Syntax(why) => write!(f, "is not a descriptor: {why}"),
            DescriptorError::Signature => {
                f.write_str("is not signed by the receiver that it names; get it again")
            }
            DescriptorError::Size(paths) => {
                write!(f, "holds {paths} receiver paths; give 1 to {MAX_PATHS}")
            }
        }
    }
}

impl std::error::Error for DescriptorError {}

/// Maximum number of paths; more would need a file of megabytes.
pub const MAX_PATHS: usize = 2048;

impl Descriptor {
    /// Reads a descriptor and verifies its signature.
    ///
    /// # Errors
    /// [`DescriptorError`] if it is malformed or not signed by the receiver it names.
    pub fn parse(text: &str) -> Result<Descriptor, DescriptorError> {
        let file: File = toml::from_str(text).map_err(|e| DescriptorError::Syntax(e.to_string()))?;
        let paths = file.paths.iter().map(|bytes| ReceiverPath::from_bytes(bytes.0)).collect();
        let descriptor = Descriptor { name: file.name.0, epoch: file.epoch, key: file.key.0, paths };
        let name = VerifyingKey::from_bytes(&descriptor.name).map_err(|_| DescriptorError::Signature)?;
        name.verify(&descriptor.signed_bytes(), &Signature::from_bytes(&file.signature.0))
            .map_err(|_| DescriptorError::Signature)?;
        match descriptor.paths.len() {
            1..=MAX_PATHS => Ok(descriptor),
            paths => Err(DescriptorError::Size(paths)),
        }
    }

    /// Writes the descriptor, signed with the secret key of its name.
    pub fn write(&self, secret: &[u8; 32]) -> String {
        let signature = SigningKey::from_bytes(secret).sign(&self.signed_bytes());
        let file = File {
            name: Hex(self.name),
            epoch: self.epoch,
            key: Hex(self.key),
            signature: Hex(signature.to_bytes()),
            paths: self.paths.iter().map(|path| Hex(path.to_bytes())).collect(),
        };
        toml::to_string(&file).expect("plain data can be written")
    }

    /// The signed bytes, which unlike the text have only one form.
    fn signed_bytes(&self) -> Vec<u8> {
        let mut bytes = format!("tidegate more descriptor\nepoch {}\n", self.epoch).into_bytes();
        bytes.extend_from_slice(&self.name);
        bytes.extend_from_slice(&self.key);
        self.paths.iter().for_each(|path| bytes.extend_from_slice(&path.to_bytes()));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::directory::authority_key;

    fn descriptor() -> Descriptor {
        let paths = (0..3).map(|i| ReceiverPath::from_bytes([i; PATH_SIZE])).collect();
        Descriptor { name: authority_key(&[1; 32]), epoch: 2, key: [7; 32], paths }
    }

    #[test]
    fn signatures_are_verified() {
        let text = descriptor().write(&[1; 32]);
        assert_eq!(Descriptor::parse(&text), Ok(descriptor()));
        let stolen = descriptor().write(&[2; 32]);
        assert_eq!(Descriptor::parse(&stolen), Err(DescriptorError::Signature));
        assert_eq!(
            Descriptor::parse(&text.replace("epoch = 2", "epoch = 3")),
            Err(DescriptorError::Signature)
        );
        let empty = Descriptor { paths: vec![], ..descriptor() };
        assert_eq!(Descriptor::parse(&empty.write(&[1; 32])), Err(DescriptorError::Size(0)));
    }

    proptest! {
        #[test]
        fn garbage_is_refused(text in "\\PC{0,200}", at in 0usize..3000, byte in any::<u8>()) {
            prop_assert!(Descriptor::parse(&text).is_err());
            let mut bytes = descriptor().write(&[1; 32]).into_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            // A change either does not affect the signed bytes, or is refused.
            if let Ok(Ok(read)) = String::from_utf8(bytes).map(|text| Descriptor::parse(&text)) {
                prop_assert_eq!(read, descriptor());
            }
        }
    }
}
