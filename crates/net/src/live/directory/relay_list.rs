//! The relays of an authority as a file, so that a directory that restarts lists them at once.
//!
//! The text has the authority's signature and a validity, like the directory. Its lines are the relays' own entries, each
//! behind the address that it joined from, because the number of relays per address is limited. `named` stands there for
//! a relay of the allow-list.

use std::net::{IpAddr, Ipv4Addr};

use sha2::{Digest as _, Sha256};

use super::{Authority, DirectoryError, Entry, SKEW, check_time, signed, signed_part};
use crate::identity::{hex, unhex};

const HEAD: &str = "tidegate-overlay-relays 1";
const PREFIX: &str = "tidegate overlay relays 1\n";
/// The place of an address before the entry of a relay of the allow-list.
const NAMED: &str = "named";
const UNPLACED: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

impl Authority {
    /// The signed text of the listed relays at `now`.
    pub(in crate::live) fn relay_list(&mut self, now: u64) -> String {
        self.expire(now);
        let line = |entry: &Entry| match self.places.holder(&entry.fingerprint) {
            Some(address) => format!("{address} {}\n", entry.line()),
            None => format!("{NAMED} {}\n", entry.line()),
        };
        let lines: String = self.relays.values().map(line).collect();
        let (until, token) = (now + self.validity, self.token_digest());
        signed(&self.key, PREFIX, &format!("{HEAD}\nvalid {now} {until}\ntoken {}\n{lines}", hex(&token)))
    }

    /// Lists the relays of an earlier [`relay_list`](Self::relay_list) that may still join and are not silent for too
    /// long. Returns their number.
    ///
    /// # Errors
    /// If the text is malformed, not signed by this authority, or not valid at `now`.
    pub(in crate::live) fn restore(&mut self, now: u64, text: &str) -> Result<usize, DirectoryError> {
        let mut lines = signed_part(text, &self.key.verifying_key().to_bytes(), PREFIX)?.lines();
        if lines.next() != Some(HEAD) {
            return Err(DirectoryError::Syntax(1));
        }
        check_time(lines.next(), now, 2)?;
        let token = lines.next().and_then(|line| unhex(line.strip_prefix("token ")?));
        // An operator who replaced the token excludes the relays that joined with the old one.
        let same_token = token.ok_or(DirectoryError::Syntax(3))? == self.token_digest();
        let entries = lines.zip(4..).map(|(line, at)| read(line).ok_or(DirectoryError::Syntax(at)));
        // All or none: a malformed line must not leave half a list.
        for (from, entry) in entries.collect::<Result<Vec<_>, _>>()? {
            let by_name = self.admission.allowed.contains(&entry.ed25519);
            let by_token = same_token && self.admission.token.is_some();
            // Relays of the allow-list do not use up places.
            let from = from.filter(|_| by_token).or(by_name.then_some(UNPLACED));
            let is_current = entry.published + self.validity >= now && entry.published <= now + SKEW;
            let Some(from) = from.filter(|_| is_current && entry.passes(self.admission.gate).is_ok()) else {
                continue;
            };
            // A limit per address that is lower than before leaves out some relays.
            if self.place(from, &entry, by_name).is_ok() {
                self.relays.insert(entry.fingerprint, entry);
            }
        }
        Ok(self.relays.len())
    }

    /// Digest of the join token. Only its owner knows whether it changed: the file is private, and a token is long.
    fn token_digest(&self) -> [u8; 32] {
        Sha256::digest(format!("{PREFIX}{}", self.admission.token.as_deref().unwrap_or_default())).into()
    }
}

/// Parses a relay's line: the address that it joined from, if it has a place, and its entry.
fn read(line: &str) -> Option<(Option<IpAddr>, Entry)> {
    let (from, line) = line.split_once(' ')?;
    let from = if from == NAMED { None } else { Some(from.parse().ok()?) };
    Some((from, Entry::parse(line).ok()?))
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::SigningKey;
    use tidegate_proto::crypto::cert::RouterKeys;

    use super::super::{Admission, DIRECTORY_PREFIX, proof, withdrawal};
    use super::*;
    use crate::gate::Gate;
    use crate::identity::fill;

    const NOW: u64 = 1_800_000_000;
    const VALIDITY: u64 = 600;

    fn host(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    fn rules(named: &[&RouterKeys]) -> Admission {
        let allowed = named.iter().map(|keys| keys.ed25519()).collect();
        Admission { allowed, token: Some("secret".into()), per_address: 2, gate: Gate::Private }
    }

    fn authority(rules: Admission) -> Authority {
        Authority::new(SigningKey::from_bytes(&[7; 32]), rules, VALIDITY)
    }

    fn join(authority: &mut Authority, now: u64, from: u8, keys: &RouterKeys) -> Result<(), String> {
        let entry = Entry::new("tide", "127.0.0.1:9001".parse().unwrap(), keys, (1000, true, now));
        let post = format!("token secret\n{}\n{}", proof(keys), entry.line());
        authority.join(now, host(from), &post).map(drop)
    }

    fn keys<const N: usize>() -> [RouterKeys; N] {
        std::array::from_fn(|_| RouterKeys::generate(&mut fill))
    }

    #[test]
    fn a_restarted_directory_lists_the_same_relays_within_the_same_limits() {
        let [named, a, b, further] = keys();
        let mut before = authority(rules(&[&named]));
        for (from, keys) in [(2, &named), (2, &a), (2, &b)] {
            join(&mut before, NOW, from, keys).unwrap();
        }
        let text = before.relay_list(NOW + 20);
        assert!(text.len() as u64 <= super::super::LONGEST_LIST);
        let mut after = authority(rules(&[&named]));
        assert_eq!(after.restore(NOW + 30, &text), Ok(3));
        assert_eq!(after.directory(NOW + 30), before.directory(NOW + 30));
        assert_eq!(after.relay_list(NOW + 30), before.relay_list(NOW + 30));
        assert!(after.take_changes().is_empty(), "the relays were there before");
        // The address has its two relays, whichever they are.
        assert!(join(&mut after, NOW + 30, 2, &further).unwrap_err().contains("--relays-per-address"));
        assert!(join(&mut after, NOW + 30, 2, &a).is_ok() && join(&mut after, NOW + 30, 3, &further).is_ok());
        after.withdraw(NOW + 31, &withdrawal(&b, NOW + 31)).unwrap();
        assert!(join(&mut after, NOW + 32, 2, &keys::<1>()[0]).is_ok(), "a place is free");
        // A relay that stays silent leaves as it would have left without the restart.
        after.directory(NOW + VALIDITY + 1);
        assert_eq!(after.len(), 3);
    }

    #[test]
    fn forged_old_and_malformed_lists_are_refused() {
        let [a, b] = keys();
        let mut before = authority(rules(&[]));
        join(&mut before, NOW, 1, &a).unwrap();
        join(&mut before, NOW, 1, &b).unwrap();
        let text = before.relay_list(NOW);
        let again = |now, text: &str| {
            let mut after = authority(rules(&[]));
            let restored = after.restore(now, text);
            assert!(restored.is_ok() || after.len() == 0);
            restored
        };
        assert_eq!(again(NOW, &text), Ok(2));
        assert_eq!(again(NOW, &text.replace("tide", "tidy")), Err(DirectoryError::Signature));
        assert_eq!(again(NOW, &before.directory(NOW)), Err(DirectoryError::Signature), "signed for clients");
        let mut stranger = Authority::new(SigningKey::from_bytes(&[8; 32]), rules(&[]), VALIDITY);
        assert_eq!(again(NOW, &stranger.relay_list(NOW)), Err(DirectoryError::Signature));
        for wrong in [NOW + VALIDITY + SKEW, NOW - SKEW - 1] {
            assert!(matches!(again(wrong, &text), Err(DirectoryError::Time(..))), "{wrong}");
        }
        for length in [0, 1, text.len() / 2, text.len() - 1] {
            assert!(again(NOW, &text[..length]).is_err(), "{length} bytes");
        }
        let part = text.rsplit_once("signature ").unwrap().0;
        let last = part.lines().last().unwrap();
        for (from, to, line) in [
            (HEAD, "tidegate-overlay-relays 2", 1),
            ("valid ", "from ", 2),
            ("token ", "token x", 3),
            (last, "nobody relay x", 5),
            (last, &last[..last.len() - 1], 5),
        ] {
            let signed = signed(&before.key, PREFIX, &part.replacen(from, to, 1));
            assert_eq!(again(NOW, &signed), Err(DirectoryError::Syntax(line)), "{to}");
        }
        assert_ne!(PREFIX, DIRECTORY_PREFIX);
    }

    #[test]
    fn relays_that_may_join_no_longer_are_left_out() {
        let [named, old, new] = keys();
        let mut before = authority(rules(&[&named]));
        join(&mut before, NOW, 1, &old).unwrap();
        join(&mut before, NOW + 20, 1, &named).unwrap();
        join(&mut before, NOW + 20, 1, &new).unwrap();
        let text = before.relay_list(NOW + 20);
        let count = |now, rules: Admission| authority(rules).restore(now, &text).unwrap();
        assert_eq!(count(NOW + 20, rules(&[&named])), 3);
        assert_eq!(count(NOW + VALIDITY + 1, rules(&[&named])), 2, "one has been silent since");
        assert_eq!(count(NOW + 20, rules(&[])), 2, "the allow-list has changed");
        for token in [None, Some("another".to_owned())] {
            assert_eq!(count(NOW + 20, Admission { token, ..rules(&[&named]) }), 1);
        }
        let one = Admission { per_address: 1, ..rules(&[&named]) };
        assert_eq!(count(NOW + 20, one), 2, "the limit per address is lower");
        assert_eq!(count(NOW + 20, Admission { gate: Gate::Public, ..rules(&[&named]) }), 0);
    }
}
