//! A router's keys on disk: a file that its owner alone can read. The identity in it stays; onion keys come and go, and
//! the file is replaced as a whole.

use std::path::Path;

use ed25519_dalek::SigningKey;
use serde::{Deserialize, Serialize};
use tidegate_proto::crypto::cert::RouterKeys;
use tidegate_proto::crypto::onion_keys::{OnionKey, OnionKeys};
use zeroize::{Zeroize as _, Zeroizing};

use crate::identity::{fill, hex, random, unhex};
use crate::private;

/// How far ahead of the clock a key may have been drawn, in seconds: more is a mistake of the clock's, now or then.
const AHEAD: u64 = 24 * 3600;

/// The file: TOML, secrets in hexadecimal, times in seconds since 1970.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    rsa_identity: String,
    ed25519_identity: String,
    onion_key: String,
    tap_onion_key: String,
    /// Since when these two are announced; not yet without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    onion_key_since: Option<u64>,
    /// The onion key before, and until when it answers.
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

/// What is written: an identity, and such onion keys.
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
    Zeroizing::new(format!("# A relay's keys. Whoever has this file is the relay.\n{}", *text))
}

/// Draws new keys and writes them into a new file.
///
/// # Errors
/// If the file exists (keys are never overwritten) or cannot be written; the cause in words.
pub fn create(path: &Path) -> Result<RouterKeys, String> {
    let keys = RouterKeys::generate(&mut fill);
    private::write(path, &text(&keys, keys.onion_keys()))?;
    Ok(keys)
}

/// Writes other onion keys into the file of these keys, at once or not at all.
///
/// # Errors
/// If it cannot be written; the cause in words. Then it holds what it held.
pub fn replace(path: &Path, keys: &RouterKeys, onion: &OnionKeys) -> Result<(), String> {
    private::replace(path, &text(keys, onion))
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

/// Reads a file of keys at that time (seconds since 1970).
///
/// # Errors
/// If it is not there, not keys, readable by others, or of a time to come; the cause in words.
pub fn load(path: &Path, now: u64) -> Result<RouterKeys, String> {
    let text = private::read(path)?;
    let file: File =
        toml::from_str(&text).map_err(|cause| format!("is no file of keys: {}", cause.message()))?;
    let secret = |text: &String| {
        private::unhex(text).ok_or_else(|| "is no file of keys: a key is not hexadecimal".to_owned())
    };
    if let Some(since) = file.onion_key_since.filter(|since| *since > now + AHEAD) {
        return Err(format!(
            "has an onion key of {since}, and it is {now} (seconds since 1970): the clock is wrong, or was; if it is \
             right now, take `onion-key-since` out"
        ));
    }
    let texts = [&file.rsa_identity, &file.ed25519_identity, &file.onion_key, &file.tap_onion_key];
    let [rsa, ed25519, ntor, tap] =
        [secret(texts[0])?, secret(texts[1])?, secret(texts[2])?, secret(texts[3])?];
    let previous = match (&file.previous_onion_key, file.previous_until) {
        (Some(text), Some(until)) => Some((secret(text)?, until)),
        (None, None) => None,
        _ => {
            let cause = "`previous-onion-key` and `previous-until` belong together";
            return Err(format!("is no file of keys: {cause}"));
        }
    };
    let previous = previous.as_ref().map(|(secret, until)| (&secret[..], *until));
    let keys = OnionKey::from_bytes(&ntor, &tap)
        .and_then(|current| OnionKeys::kept(current, file.onion_key_since, previous))
        .and_then(|onion| RouterKeys::from_bytes([&rsa, &ed25519], onion));
    keys.map_err(|why| format!("is no file of keys: {why}"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use tidegate_proto::crypto::lifetimes::KeyLifetimes;

    use super::*;

    const NOW: u64 = 1_800_000_000;

    /// A folder for files of keys.
    fn folder() -> PathBuf {
        let folder = std::env::temp_dir().join(format!("tidegate-keys-{}", hex(&random::<8>())));
        fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn keys_are_kept_private_and_never_overwritten() {
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
            assert!(load(&path, NOW).err().unwrap().contains("is no file of keys"), "{bad:?}");
        }
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn replaced_onion_keys_are_there_whole_and_private_whatever_was_left_lying() {
        let directory = folder();
        let path = directory.join("relay.keys");
        let keys = create(&path).unwrap();
        let lifetimes = KeyLifetimes::default();
        let announced = keys.onion_keys().advanced(NOW, &lifetimes, None).unwrap();
        let replaced = announced.advanced(NOW + 9, &lifetimes, Some(OnionKey::generate(&mut fill))).unwrap();
        // Somebody was cut short while writing, and the file is reached by a link.
        fs::write(private::beside(&path), "rsa-identi").unwrap();
        let link = directory.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(load(&link, NOW).unwrap().onion(), keys.onion(), "what was left lying is not read");
        replace(&link, &keys, &replaced).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && !private::beside(&path).exists());
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
    fn what_cannot_be_replaced_stays_as_it_was() {
        let directory = folder();
        let path = directory.join("relay.keys");
        let keys = create(&path).unwrap();
        // Nothing can be written there: a folder has the name.
        fs::create_dir(private::beside(&path)).unwrap();
        let advanced = keys.onion_keys().advanced(NOW, &KeyLifetimes::default(), None).unwrap();
        assert!(replace(&path, &keys, &advanced).unwrap_err().contains("cannot be replaced"));
        assert_eq!(load(&path, NOW).unwrap().onion_keys().since(), None);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn keys_of_a_time_to_come_are_refused_if_a_clock_an_hour_off_does_not_explain_it() {
        let directory = folder();
        let path = directory.join("relay.keys");
        let keys = create(&path).unwrap();
        let advanced = keys.onion_keys().advanced(NOW, &KeyLifetimes::default(), None).unwrap();
        replace(&path, &keys, &advanced).unwrap();
        assert!(load(&path, NOW - 3600).is_ok());
        let said = load(&path, NOW - 40 * 24 * 3600).err().unwrap();
        assert!(said.contains("the clock is wrong"), "{said}");
        fs::remove_dir_all(&directory).unwrap();
    }
}
