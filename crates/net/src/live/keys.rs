//! A router's keys on disk: a file that its owner alone can read.

use std::path::Path;

use ed25519_dalek::SigningKey;
use serde::{Deserialize, Serialize};
use tidegate_proto::crypto::cert::RouterKeys;
use zeroize::{Zeroize as _, Zeroizing};

use crate::identity::{fill, hex, random, unhex};
use crate::private;

/// The file: TOML, all in hexadecimal.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    rsa_identity: String,
    ed25519_identity: String,
    onion_key: String,
    tap_onion_key: String,
}

impl Drop for File {
    fn drop(&mut self) {
        let all = [
            &mut self.rsa_identity,
            &mut self.ed25519_identity,
            &mut self.onion_key,
            &mut self.tap_onion_key,
        ];
        all.into_iter().for_each(|text| text.zeroize());
    }
}

/// Draws new keys and writes them into a new file.
///
/// # Errors
/// If the file exists (keys are never overwritten) or cannot be written; the cause in words.
pub fn create(path: &Path) -> Result<RouterKeys, String> {
    let keys = RouterKeys::generate(&mut fill);
    let [rsa, ed25519, onion, tap] = keys.to_bytes().map(|bytes| hex(&bytes));
    let file = File { rsa_identity: rsa, ed25519_identity: ed25519, onion_key: onion, tap_onion_key: tap };
    let text = Zeroizing::new(toml::to_string(&file).expect("four strings are TOML"));
    let text = Zeroizing::new(format!("# A relay's keys. Whoever has this file is the relay.\n{}", *text));
    private::write(path, &text)?;
    Ok(keys)
}

/// A directory's signing key; it is drawn if the file does not exist.
///
/// # Errors
/// If the file is not a key, or readable by others; the cause in words.
pub fn signing_key(path: &Path) -> Result<SigningKey, String> {
    if !path.exists() {
        let secret = Zeroizing::new(random::<32>());
        private::write(path, &Zeroizing::new(hex(&*secret) + "\n"))?;
        return Ok(SigningKey::from_bytes(&secret));
    }
    let text = private::read(path)?;
    let secret = unhex(text.trim()).map(Zeroizing::new);
    secret.map(|secret| SigningKey::from_bytes(&secret)).ok_or_else(|| "is no signing key".into())
}

/// Reads a file of keys.
///
/// # Errors
/// If it is not there, not keys, or readable by others; the cause in words.
pub fn load(path: &Path) -> Result<RouterKeys, String> {
    let text = private::read(path)?;
    let file: File =
        toml::from_str(&text).map_err(|cause| format!("is no file of keys: {}", cause.message()))?;
    let texts = [&file.rsa_identity, &file.ed25519_identity, &file.onion_key, &file.tap_onion_key];
    let [Some(rsa), Some(ed25519), Some(onion), Some(tap)] = texts.map(|text| private::unhex(text)) else {
        return Err("is no file of keys: a key is not hexadecimal".into());
    };
    RouterKeys::from_bytes(&[rsa, ed25519, onion, tap]).map_err(|why| format!("is no file of keys: {why}"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn keys_are_kept_private_and_never_overwritten() {
        let directory = std::env::temp_dir().join(format!("tidegate-keys-{}", hex(&random::<8>())));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("relay.keys");
        let keys = create(&path).unwrap();
        assert_eq!(load(&path).unwrap().fingerprint(), keys.fingerprint());
        assert_eq!(load(&path).unwrap().ed25519(), keys.ed25519());
        assert!(create(&path).err().unwrap().contains("cannot be written"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(load(&path).err().unwrap().contains("by others (mode 640)"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        for bad in ["", "rsa-identity = 1", "\u{0}", "rsa-identity = \"00\"\n"] {
            fs::write(&path, bad).unwrap();
            assert!(load(&path).err().unwrap().contains("is no file of keys"), "{bad:?}");
        }
        fs::remove_dir_all(&directory).unwrap();
    }
}
