//! Key files of relays and directories. Only the owner can read them. A file's identity stays; its onion keys are
//! renewed by replacing the whole file.

use std::path::Path;

use ed25519_dalek::SigningKey;
use serde::{Deserialize, Serialize};
use tidegate_proto::crypto::cert::RouterKeys;
use tidegate_proto::crypto::{OnionKey, OnionKeys};
use zeroize::{Zeroize as _, Zeroizing};

use crate::identity::{fill, hex, random, unhex};
use crate::private_file;

/// How far in the future an onion key may lie, seconds. Beyond it the clock is wrong, or was.
const AHEAD: u64 = 24 * 3600;

/// Least number of characters of a join token.
const SHORTEST_TOKEN: usize = 16;

/// The file: TOML, with secrets in hexadecimal and times in seconds since 1970.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    rsa_identity: String,
    ed25519_identity: String,
    onion_key: String,
    tap_onion_key: String,
    /// When the current onion keys were first published; absent before that.
    #[serde(skip_serializing_if = "Option::is_none")]
    onion_key_since: Option<u64>,
    /// The previous onion key, and its expiry.
    #[serde(skip_serializing_if = "Option::is_none")]
    previous_onion_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    previous_until: Option<u64>,
}

impl Drop for File {
    fn drop(&mut self) {
        let all = [
            &mut self.rsa_identity,
            &mut self.ed25519_identity,
            &mut self.onion_key,
            &mut self.tap_onion_key,
        ];
        all.into_iter().chain(&mut self.previous_onion_key).for_each(|text| text.zeroize());
    }
}

/// Formats an identity with these onion keys.
fn text(keys: &RouterKeys, onion: &OnionKeys) -> Zeroizing<String> {
    let [rsa, ed25519] = keys.to_bytes().map(|bytes| hex(&bytes));
    let [ntor, tap] = onion.current().to_bytes().map(|bytes| hex(&bytes));
    let previous = onion.previous();
    let file = File {
        rsa_identity: rsa,
        ed25519_identity: ed25519,
        onion_key: ntor,
        tap_onion_key: tap,
        onion_key_since: onion.since(),
        previous_onion_key: previous.as_ref().map(|(secret, _)| hex(secret)),
        previous_until: previous.map(|(_, until)| until),
    };
    let text = Zeroizing::new(toml::to_string(&file).expect("strings and numbers are TOML"));
    Zeroizing::new(format!(
        "# A relay's keys. Keep them secret: who holds them can act as this relay.\n{}",
        *text
    ))
}

/// Generates keys and writes them into a new file.
///
/// # Errors
/// If the file exists (keys are never overwritten) or cannot be written.
pub fn create(path: &Path) -> Result<RouterKeys, String> {
    let keys = RouterKeys::generate(&mut fill);
    private_file::write(path, &text(&keys, keys.onion_keys()))?;
    Ok(keys)
}

/// Replaces the onion keys in the file of `keys`, atomically.
///
/// # Errors
/// If it cannot be written. The file then keeps its contents.
pub fn replace(path: &Path, keys: &RouterKeys, onion: &OnionKeys) -> Result<(), String> {
    private_file::replace(path, &text(keys, onion))
}

/// Reads a directory's signing key; generates it if the file does not exist.
///
/// # Errors
/// If the file is not a key, or is readable by others.
pub fn signing_key(path: &Path) -> Result<SigningKey, String> {
    if !path.exists() {
        let secret = Zeroizing::new(random::<32>());
        private_file::write(path, &Zeroizing::new(hex(&*secret) + "\n"))?;
        return Ok(SigningKey::from_bytes(&secret));
    }
    let text = private_file::read(path)?;
    let secret = unhex(text.trim()).map(Zeroizing::new);
    secret
        .map(|secret| SigningKey::from_bytes(&secret))
        .ok_or_else(|| "is not a signing key of 64 hexadecimal digits".into())
}

/// Reads the join token of a directory; draws one if the file does not exist. The flag says that the token is new.
///
/// # Errors
/// If the file does not hold a token, or is readable by others.
pub fn join_token(path: &Path) -> Result<(String, bool), String> {
    if !path.exists() {
        let token = hex(&random::<16>());
        private_file::write(path, &format!("{token}\n"))?;
        return Ok((token, true));
    }
    let token = private_file::read(path)?.trim().to_owned();
    if !is_token(&token) {
        return Err("does not contain a token: one word of at least 16 characters".into());
    }
    Ok((token, false))
}

/// Whether a text can be a join token.
pub fn is_token(text: &str) -> bool {
    text.len() >= SHORTEST_TOKEN && !text.contains(char::is_whitespace)
}

/// Reads a key file. `now` is in seconds since 1970.
///
/// # Errors
/// If the file is missing, invalid, readable by others, or has an onion key from the future.
pub fn load(path: &Path, now: u64) -> Result<RouterKeys, String> {
    let text = private_file::read(path)?;
    let file: File =
        toml::from_str(&text).map_err(|cause| format!("is not a key file: {}", cause.message()))?;
    let secret = |text: &String| {
        private_file::unhex(text).ok_or_else(|| "is not a key file: a key is not hexadecimal".to_owned())
    };
    if let Some(since) = file.onion_key_since.filter(|since| *since > now + AHEAD) {
        return Err(format!(
            "has an onion key published at {since}, but the time is {now} (seconds since 1970): the clock is wrong, or was; \
             if it is right now, remove `onion-key-since`"
        ));
    }
    let texts = [&file.rsa_identity, &file.ed25519_identity, &file.onion_key, &file.tap_onion_key];
    let [rsa, ed25519, ntor, tap] =
        [secret(texts[0])?, secret(texts[1])?, secret(texts[2])?, secret(texts[3])?];
    let previous = match (&file.previous_onion_key, file.previous_until) {
        (Some(text), Some(until)) => Some((secret(text)?, until)),
        (None, None) => None,
        _ => {
            let cause = "`previous-onion-key` and `previous-until` must both be present or both be absent";
            return Err(format!("is not a key file: {cause}"));
        }
    };
    let previous = previous.as_ref().map(|(secret, until)| (&secret[..], *until));
    let keys = OnionKey::from_bytes(&ntor, &tap)
        .and_then(|current| OnionKeys::kept(current, file.onion_key_since, previous))
        .and_then(|onion| RouterKeys::from_bytes([&rsa, &ed25519], onion));
    keys.map_err(|why| format!("is not a key file: {why}"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use tidegate_proto::crypto::KeyLifetimes;

    use super::*;

    const NOW: u64 = 1_800_000_000;

    /// A temporary folder for key files.
    fn folder() -> PathBuf {
        let folder = std::env::temp_dir().join(format!("tidegate-keys-{}", hex(&random::<8>())));
        fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn key_files_are_private_and_never_overwritten() {
        let directory = folder();
        let path = directory.join("relay.keys");
        let keys = create(&path).unwrap();
        assert_eq!(load(&path, NOW).unwrap().fingerprint(), keys.fingerprint());
        assert_eq!(load(&path, NOW).unwrap().ed25519(), keys.ed25519());
        assert!(create(&path).err().unwrap().contains("cannot be written"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(load(&path, NOW).err().unwrap().contains("by others (mode 640)"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let whole = fs::read_to_string(&path).unwrap();
        let lone = format!("{whole}previous-until = 5\n");
        let cut = &whole[..whole.len() - 20];
        for bad in ["", "rsa-identity = 1", "\u{0}", "rsa-identity = \"00\"\n", &lone, cut] {
            fs::write(&path, bad).unwrap();
            assert!(load(&path, NOW).err().unwrap().contains("is not a key file"), "{bad:?}");
        }
        // As a pipe, it would have to wait.
        assert!(load(&directory, NOW).err().unwrap().contains("is not a regular file"));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn onion_keys_are_replaced_atomically_despite_leftovers() {
        let directory = folder();
        let path = directory.join("relay.keys");
        let keys = create(&path).unwrap();
        let lifetimes = KeyLifetimes::default();
        let announced = keys.onion_keys().advanced(NOW, &lifetimes, None).unwrap();
        let replaced = announced.advanced(NOW + 9, &lifetimes, Some(OnionKey::generate(&mut fill))).unwrap();
        // An interrupted write left a file, and the path is a symbolic link.
        fs::write(private_file::beside(&path), "rsa-identi").unwrap();
        let link = directory.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(load(&link, NOW).unwrap().onion(), keys.onion(), "what was left lying is not read");
        replace(&link, &keys, &replaced).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && !private_file::beside(&path).exists());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let read = load(&path, NOW).unwrap();
        assert_eq!((read.fingerprint(), read.ed25519()), (keys.fingerprint(), keys.ed25519()));
        assert_eq!(read.onion_keys().current().ntor(), replaced.current().ntor());
        assert_eq!(read.onion_keys().since(), Some(NOW + 9));
        let until = NOW + 9 + 7 * 24 * 3600;
        assert_eq!(read.onion_keys().previous(), Some((keys.onion_keys().current().ntor()[0], until)));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_failed_replacement_keeps_the_file() {
        let directory = folder();
        let path = directory.join("relay.keys");
        let keys = create(&path).unwrap();
        // A directory blocks the temporary file.
        fs::create_dir(private_file::beside(&path)).unwrap();
        let advanced = keys.onion_keys().advanced(NOW, &KeyLifetimes::default(), None).unwrap();
        assert!(replace(&path, &keys, &advanced).unwrap_err().contains("cannot be replaced"));
        assert_eq!(load(&path, NOW).unwrap().onion_keys().since(), None);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn onion_keys_from_the_future_are_rejected_beyond_an_hour() {
        let directory = folder();
        let path = directory.join("relay.keys");
        let keys = create(&path).unwrap();
        let advanced = keys.onion_keys().advanced(NOW, &KeyLifetimes::default(), None).unwrap();
        replace(&path, &keys, &advanced).unwrap();
        assert!(load(&path, NOW - 3600).is_ok());
        let error = load(&path, NOW - 40 * 24 * 3600).err().unwrap();
        assert!(error.contains("the clock is wrong"), "{error}");
        fs::remove_dir_all(&directory).unwrap();
    }
}
