//! The directory of a self-hosted overlay: entries that relays sign, under the authority's signature. Clients are
//! configured with the authority's key.

mod relay_list;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ed25519_dalek::{Signer as _, SigningKey};
use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tidegate_control::shares::{Shares, network};
use tidegate_control::units::{Span, Time};
use tidegate_proto::crypto::cert::{self, RouterKeys};
use tidegate_proto::crypto::rsa_keys;

use super::addresses::Addresses;
use super::descriptor::RELAY_VERSIONS;
use super::weights::Weights;
use crate::gate::{Gate, Refused};
use crate::identity::{hex, unhex};

const HEAD: &str = "tidegate-overlay 1";
/// Signature contexts: a signature for one purpose is invalid for another.
const RELAY_PREFIX: &str = "tidegate overlay relay 1\n";
const WITHDRAWAL_PREFIX: &str = "tidegate overlay withdrawal 1\n";
const DIRECTORY_PREFIX: &str = "tidegate overlay directory 1\n";
const PROOF_PREFIX: &[u8] = b"tidegate overlay fingerprint 1\n";
/// Maximum number of relays.
const MAX_RELAYS: usize = 10_000;
/// Longest list of relays in a file, bytes. A line has at most 640: an IPv6 address, and an entry.
pub(super) const LONGEST_LIST: u64 = 640 * MAX_RELAYS as u64 + 1000;
/// Maximum bandwidth of a relay, bytes per second: a port of the fastest Ethernet (800 Gbit/s, IEEE 802.3df).
const MAX_BANDWIDTH: u64 = 100_000_000_000;
/// Maximum clock difference, seconds.
const SKEW: u64 = 300;

/// A relay's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The nickname.
    pub nickname: String,
    /// The OR addresses.
    pub address: Addresses,
    /// SHA-1 of its RSA identity.
    pub fingerprint: [u8; 20],
    /// Its Ed25519 identity, which signs the entry.
    pub ed25519: [u8; 32],
    /// Its ntor onion key.
    pub onion: [u8; 32],
    /// Bandwidth, bytes per second.
    pub bandwidth: u64,
    /// Whether it is an exit.
    pub exit: bool,
    /// The versions of Tor's subprotocol `Relay` that it supports, as in descriptors; empty if it states none.
    pub versions: String,
    /// When it was signed, seconds since 1970.
    pub published: u64,
    signature: [u8; 64],
}

/// Why a directory or an entry is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryError {
    /// Invalid syntax, and the line number.
    Syntax(usize),
    /// The signature does not verify.
    Signature,
    /// The entry names an address that is never connected to.
    Address(Refused),
    /// The entry names a bandwidth that no machine has.
    Bandwidth(u64),
    /// Not valid now: our time, and the bounds of the validity.
    Time(u64, [u64; 2]),
    /// Older than a directory seen before: both numbers.
    Rollback(u64, u64),
}

impl fmt::Display for DirectoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirectoryError::Syntax(line) => write!(f, "line {line} is malformed"),
            DirectoryError::Address(why) => why.fmt(f),
            DirectoryError::Bandwidth(rate) => {
                write!(f, "a bandwidth of {rate} B/s is impossible; give 1 to {MAX_BANDWIDTH} B/s")
            }
            DirectoryError::Signature => f.write_str("the signature does not verify under the expected key"),
            DirectoryError::Time(now, [from, until]) => {
                write!(
                    f,
                    "it is valid from {from} until {until}, but the time is {now} (seconds since 1970); check the clocks"
                )
            }
            DirectoryError::Rollback(number, seen) => {
                write!(f, "its number {number} is lower than {seen}, which was seen before")
            }
        }
    }
}

impl std::error::Error for DirectoryError {}

impl Entry {
    /// Signs a relay's own entry. `facts`: its bandwidth, whether it is an exit, and the time.
    pub fn new(nickname: &str, address: Addresses, keys: &RouterKeys, facts: (u64, bool, u64)) -> Entry {
        let (bandwidth, exit, published) = facts;
        let mut entry = Entry {
            nickname: nickname.to_owned(),
            address,
            fingerprint: keys.fingerprint(),
            ed25519: keys.ed25519(),
            onion: keys.onion(),
            bandwidth,
            exit,
            versions: RELAY_VERSIONS.into(),
            published,
            signature: [0; 64],
        };
        entry.signature = keys.sign_ed25519(&entry.signed());
        entry
    }

    fn facts(&self) -> String {
        let versions = if self.versions.is_empty() { "" } else { &format!(" Relay={}", self.versions) };
        format!(
            "relay {} {} {} {} {} {} {}{versions} {}",
            self.nickname,
            self.address,
            hex(&self.fingerprint),
            hex(&self.ed25519),
            hex(&self.onion),
            self.bandwidth,
            if self.exit { "exit" } else { "middle" },
            self.published
        )
    }

    fn signed(&self) -> Vec<u8> {
        format!("{RELAY_PREFIX}{}", self.facts()).into_bytes()
    }

    /// The signed line.
    pub fn line(&self) -> String {
        format!("{} {}", self.facts(), hex(&self.signature))
    }

    /// Parses a line and verifies its signature.
    ///
    /// # Errors
    /// If the line is malformed, not signed by the identity in it, or has impossible values.
    pub fn parse(line: &str) -> Result<Entry, DirectoryError> {
        let syntax = DirectoryError::Syntax(1);
        let mut words: Vec<&str> = line.split(' ').collect();
        // Relays of earlier versions do not state it.
        let stated = words.get(8).and_then(|word| word.strip_prefix("Relay="));
        let versions = stated.filter(|_| words.len() == 11);
        if versions.is_some() {
            words.remove(8);
        }
        let ["relay", nickname, address, fingerprint, ed25519, onion, bandwidth, exit, published, signature] =
            words[..]
        else {
            return Err(syntax);
        };
        // A closure, so that `?` covers every field.
        let read = || {
            Some(Entry {
                nickname: Some(nickname).filter(|name| is_nickname(name))?.to_owned(),
                address: address.parse().ok()?,
                fingerprint: unhex(fingerprint)?,
                ed25519: unhex(ed25519)?,
                onion: unhex(onion)?,
                bandwidth: bandwidth.parse().ok()?,
                exit: ["middle", "exit"].iter().position(|kind| *kind == exit)? == 1,
                versions: match versions {
                    Some(versions) => Some(versions).filter(|text| are_versions(text))?.to_owned(),
                    None => String::new(),
                },
                published: published.parse().ok()?,
                signature: unhex(signature)?,
            })
        };
        let entry = read().ok_or(syntax)?;
        let valid = cert::verifies(&entry.ed25519, &entry.signed(), &entry.signature);
        if !valid {
            return Err(DirectoryError::Signature);
        }
        // No setting allows these addresses.
        entry.passes(Gate::Private).map_err(DirectoryError::Address)?;
        if !(1..=MAX_BANDWIDTH).contains(&entry.bandwidth) {
            return Err(DirectoryError::Bandwidth(entry.bandwidth));
        }
        Ok(entry)
    }

    /// Whether the relay supports a version of the subprotocol `Relay`.
    pub(crate) fn has_version(&self, version: u8) -> bool {
        ranges(&self.versions).any(|range| range.is_some_and(|range| range.contains(&version)))
    }

    /// Checks the addresses.
    ///
    /// # Errors
    /// Why the gate refuses one of them.
    pub(crate) fn passes(&self, gate: Gate) -> Result<(), Refused> {
        self.address.all().into_iter().try_for_each(|address| gate.check(address))
    }
}

/// The addresses of the relays that a directory lists. Its signatures are not checked.
pub(super) fn addresses(text: &str) -> BTreeSet<IpAddr> {
    let listed = text.lines().filter_map(|line| line.strip_prefix("relay ")?.split(' ').nth(1)?.parse().ok());
    listed.flat_map(|of: Addresses| of.all()).map(|address| address.ip()).collect()
}

/// The ranges of a list of versions such as `2-4,6`; `None` for a malformed one.
fn ranges(versions: &str) -> impl Iterator<Item = Option<RangeInclusive<u8>>> + '_ {
    versions.split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    })
}

/// Whether a text is a list of versions, of at most 40 characters.
fn are_versions(text: &str) -> bool {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || b"-,".contains(&byte));
    plain && text.len() <= 40 && ranges(text).all(|range| range.is_some())
}

/// A relay's signed request to remove its entry, at a time in seconds since 1970.
pub(super) fn withdrawal(keys: &RouterKeys, now: u64) -> String {
    let facts = format!("withdraw {} {now}", hex(&keys.fingerprint()));
    let signature = keys.sign_ed25519(format!("{WITHDRAWAL_PREFIX}{facts}").as_bytes());
    format!("{facts} {}", hex(&signature))
}

/// A relay's proof that a fingerprint is its own, for the directory: its RSA identity, and that identity's signature
/// over its Ed25519 identity, which signs the entry.
pub fn proof(keys: &RouterKeys) -> String {
    let [identity, _] = keys.rsa_public();
    let signature = keys.sign_rsa(&proof_digest(&keys.ed25519()));
    format!("proof {} {}", hex(&identity), hex(&signature))
}

fn proof_digest(ed25519: &[u8; 32]) -> [u8; 32] {
    Sha256::digest([PROOF_PREFIX, ed25519].concat()).into()
}

/// Whether a proof fits an entry.
fn proves(entry: &Entry, proof: &str) -> bool {
    let Some((identity, signature)) = proof.split_once(' ') else { return false };
    let (Some(identity), Some(signature)) = (unhex_any(identity), unhex_any(signature)) else { return false };
    let fingerprint: [u8; 20] = Sha1::digest(&identity).into();
    fingerprint == entry.fingerprint
        && rsa_keys::verifies(&identity, &proof_digest(&entry.ed25519), &signature)
}

/// Reads hexadecimal digits of any number.
fn unhex_any(text: &str) -> Option<Vec<u8>> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| unhex::<1>(std::str::from_utf8(pair).ok()?).map(|[byte]| byte))
        .collect()
}

/// Whether a text is a valid nickname (dir-spec).
pub fn is_nickname(text: &str) -> bool {
    (1..=19).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// A verified directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Sequence number: it grows with every directory.
    pub number: u64,
    /// End of its validity, seconds since 1970.
    pub until: u64,
    /// The relays.
    pub relays: Vec<Entry>,
    /// Their measured weights, if they were measured.
    pub(crate) weights: Option<Weights>,
}

impl Directory {
    /// The weight by which clients select a relay, bytes per second: its measured one, or what it says of itself.
    pub fn weight(&self, relay: &Entry) -> u64 {
        let said = relay.bandwidth;
        self.weights.as_ref().map_or(said, |weights| weights.of(&relay.fingerprint, said))
    }
}

/// Signs a directory that is valid for `validity` seconds, with the weights of its relays if they were measured. Its
/// number is the time.
pub(crate) fn sign(
    key: &SigningKey,
    now: u64,
    validity: u64,
    relays: &BTreeMap<[u8; 20], Entry>,
    weights: Option<&Weights>,
) -> String {
    let mut lines: String = relays.values().map(|entry| entry.line() + "\n").collect();
    if let Some(weights) = weights {
        lines += &format!("measured {}\n", weights.measured);
        let listed = weights.relays.iter().filter(|(relay, _)| relays.contains_key(*relay));
        lines.extend(listed.map(|(relay, weight)| format!("weight {} {weight}\n", hex(relay))));
    }
    let text = format!("{HEAD}\nnumber {now}\nvalid {now} {}\n{lines}", now + validity);
    signed(key, DIRECTORY_PREFIX, &text)
}

/// Parses a directory, and checks the authority's signature, the validity, and that its number is at least `seen`.
///
/// # Errors
/// If any check fails.
pub fn check(text: &str, key: &[u8; 32], now: u64, seen: u64) -> Result<Directory, DirectoryError> {
    // Verify the signature before parsing anything.
    let mut lines = signed_part(text, key, DIRECTORY_PREFIX)?.lines();
    if lines.next() != Some(HEAD) {
        return Err(DirectoryError::Syntax(1));
    }
    let number = lines.next().and_then(|line| line.strip_prefix("number ")?.parse().ok());
    let number = number.ok_or(DirectoryError::Syntax(2))?;
    let until = check_time(lines.next(), now, 3)?;
    if number < seen {
        return Err(DirectoryError::Rollback(number, seen));
    }
    let (mut relays, mut weights) = (Vec::new(), None::<Weights>);
    for (line, at) in lines.zip(4..) {
        if let Some(time) = line.strip_prefix("measured ").filter(|_| weights.is_none()) {
            let measured = time.parse().map_err(|_| DirectoryError::Syntax(at))?;
            weights = Some(Weights { measured, relays: BTreeMap::new() });
            continue;
        }
        if let Some(weights) = &mut weights {
            let (relay, weight) = weight(line).ok_or(DirectoryError::Syntax(at))?;
            if weights.relays.insert(relay, weight).is_some() {
                return Err(DirectoryError::Syntax(at));
            }
            continue;
        }
        let entry = match Entry::parse(line) {
            Ok(entry) => entry,
            // One relay with impossible values must not take the others away from clients.
            Err(DirectoryError::Address(_) | DirectoryError::Bandwidth(_)) => continue,
            Err(DirectoryError::Syntax(_)) => return Err(DirectoryError::Syntax(at)),
            Err(other) => return Err(other),
        };
        if relays.len() == MAX_RELAYS {
            return Err(DirectoryError::Syntax(at));
        }
        relays.push(entry);
    }
    Ok(Directory { number, until, relays, weights })
}

/// Signs a text for one purpose: its last line is the signature.
fn signed(key: &SigningKey, prefix: &str, text: &str) -> String {
    let signature = key.sign(format!("{prefix}{text}").as_bytes());
    format!("{text}signature {}\n", hex(&signature.to_bytes()))
}

/// The part of a text of [`signed`] before its last line, once the signature is verified.
fn signed_part<'a>(text: &'a str, key: &[u8; 32], prefix: &str) -> Result<&'a str, DirectoryError> {
    let syntax = || DirectoryError::Syntax(text.lines().count());
    let (part, signature) =
        text.strip_suffix('\n').and_then(|text| text.rsplit_once("\nsignature ")).ok_or_else(syntax)?;
    let signature = unhex(signature).ok_or_else(syntax)?;
    let valid = cert::verifies(key, format!("{prefix}{part}\n").as_bytes(), &signature);
    if valid { Ok(part) } else { Err(DirectoryError::Signature) }
}

/// Checks the line `valid FROM UNTIL`, which has this number. Returns the end of the validity.
fn check_time(line: Option<&str>, now: u64, number: usize) -> Result<u64, DirectoryError> {
    let read = || {
        let (from, until) = line?.strip_prefix("valid ")?.split_once(' ')?;
        Some([from.parse().ok()?, until.parse().ok()?])
    };
    let valid @ [from, until]: [u64; 2] = read().ok_or(DirectoryError::Syntax(number))?;
    let is_valid = now + SKEW >= from && now < until + SKEW;
    if is_valid { Ok(until) } else { Err(DirectoryError::Time(now, valid)) }
}

/// Parses a relay's measured weight.
fn weight(line: &str) -> Option<([u8; 20], u64)> {
    let (relay, weight) = line.strip_prefix("weight ")?.split_once(' ')?;
    Some((unhex(relay)?, weight.parse().ok()?))
}

/// Admission to an authority's directory: relays by identity, or with a token.
#[derive(Clone, Debug)]
pub struct Admission {
    /// Ed25519 identities of relays. A fingerprint alone would prove nothing.
    pub allowed: Vec<[u8; 32]>,
    /// The join token; never empty.
    pub token: Option<String>,
    /// How many relays of one IPv4 address or IPv6 /48 may join with the token.
    pub per_address: usize,
    /// The addresses that relays may have.
    pub gate: Gate,
}

/// Why a relay left a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It withdrew its entry.
    Withdrawn,
    /// It sent nothing for the validity of a directory.
    Silent,
    /// The directory was full, and made room for a relay of another network.
    Displaced,
}

/// A relay that joined a directory, left it, or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its nickname.
    pub nickname: String,
    /// SHA-1 of its RSA identity.
    pub fingerprint: [u8; 20],
    /// The kind of the change.
    pub what: Happened,
    /// The number of listed relays after the change.
    pub relays: usize,
}

/// The kind of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happened {
    /// It joined.
    Joined,
    /// It left, and why.
    Left(Departure),
    /// It has another name or other addresses than before.
    Moved {
        /// Name and addresses before.
        from: String,
        /// Name and addresses now.
        to: String,
    },
    /// Its name and addresses change back and forth: two relays with the same keys announce themselves in turn.
    Twins {
        /// Name and addresses of the one.
        one: String,
        /// Name and addresses of the other.
        other: String,
    },
}

/// The relays of an authority.
pub struct Authority {
    key: SigningKey,
    admission: Admission,
    validity: u64,
    relays: BTreeMap<[u8; 20], Entry>,
    /// The places of relays that joined with the token, by the address that they joined from.
    places: Shares<IpAddr, IpAddr, [u8; 20]>,
    weights: Option<Weights>,
    /// Relays of which an entry with another name or other addresses was listed before.
    moved: BTreeMap<[u8; 20], Moved>,
    /// When relays withdrew, while entries that they signed before are still young enough to be accepted.
    withdrawn: BTreeMap<[u8; 20], u64>,
    /// Changes since [`Authority::take_changes`].
    changes: Vec<Change>,
}

/// The earlier entry of a relay that changed its name or its addresses.
struct Moved {
    /// Name and addresses before.
    from: String,
    /// When they changed, seconds since 1970.
    at: u64,
    /// When the log last said that two relays have its keys, seconds since 1970.
    said: Option<u64>,
}

/// Pause between two warnings about one pair of relays with the same keys, seconds.
const SAY_AGAIN: u64 = 3600;

impl Authority {
    /// Without relays. A relay that is silent for `validity` seconds is removed.
    pub fn new(key: SigningKey, admission: Admission, validity: u64) -> Authority {
        // Relays of the allow-list always have a place.
        let places = Shares::new(MAX_RELAYS.saturating_sub(admission.allowed.len()).max(1));
        let (relays, moved, withdrawn) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (weights, changes) = (None, Vec::new());
        Authority { key, admission, validity, relays, places, weights, moved, withdrawn, changes }
    }

    /// Publishes measured weights from now on, until the file that they are from is too old.
    pub(crate) fn set_weights(&mut self, weights: Weights) {
        self.weights = Some(weights);
    }

    /// The number of listed relays with a measured weight; `None` without current weights.
    pub(crate) fn measured(&self, now: u64) -> Option<usize> {
        let weights = self.weights.as_ref().filter(|weights| weights.is_current(now))?;
        Some(self.relays.keys().filter(|relay| weights.relays.contains_key(*relay)).count())
    }

    /// Handles a relay's post from an address: an optional `token ...` line, its [proof], and its entry. Returns the
    /// answer.
    ///
    /// # Errors
    /// Why the entry is rejected.
    pub fn join(&mut self, now: u64, from: IpAddr, text: &str) -> Result<&'static str, String> {
        let (head, line) = text.trim_end().rsplit_once('\n').unwrap_or(("", text.trim_end()));
        let word = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
        let entry = Entry::parse(line).map_err(|error| format!("the entry is invalid: {error}"))?;
        let (ours, theirs) = (self.admission.token.as_deref(), word("token "));
        let by_token = ours.zip(theirs).is_some_and(|(ours, theirs)| same(ours, theirs));
        let by_name = self.admission.allowed.contains(&entry.ed25519);
        if !by_token && !by_name {
            let identity = hex(&entry.ed25519);
            let why = match (ours, theirs) {
                (Some(_), Some(_)) => {
                    "its token is not valid; copy the directory's --token-file to its `token`"
                }
                (Some(_), None) => "it sends no token; copy the directory's --token-file to its `token`",
                (None, Some(_)) => {
                    "the directory takes no token; start the directory with --allow and this identity"
                }
                (None, None) => "it sends no token; start the directory with --allow and this identity",
            };
            return Err(format!("relay {identity} is not on the allow-list, and {why}"));
        }
        if !word("proof ").is_some_and(|proof| proves(&entry, proof)) {
            let fingerprint = hex(&entry.fingerprint);
            return Err(format!(
                "the entry does not prove that fingerprint {fingerprint} is its own: the relay's software is older"
            ));
        }
        if entry.published.abs_diff(now) > SKEW {
            return Err(format!(
                "the entry was signed at {}, but the time is {now} (seconds since 1970); check the clocks",
                entry.published
            ));
        }
        entry
            .passes(self.admission.gate)
            .map_err(|why| format!("{why}: start the directory with --allow-private-addresses"))?;
        self.expire(now);
        if self.relays.get(&entry.fingerprint).is_some_and(|known| known.published > entry.published) {
            return Err("a later entry of this relay is listed".into());
        }
        // A reader of the network must not list the old entry again.
        if self.withdrawn.get(&entry.fingerprint).is_some_and(|time| *time >= entry.published) {
            return Err("the relay has withdrawn this entry".into());
        }
        self.place(from, &entry, by_name)?;
        let (nickname, fingerprint) = (entry.nickname.clone(), entry.fingerprint);
        let now_listed = described(&entry);
        let happened = match self.relays.insert(fingerprint, entry) {
            None => Some(Happened::Joined),
            Some(before) => self.moved(now, fingerprint, described(&before), now_listed),
        };
        let relays = self.relays.len();
        let change = |what| Change { nickname, fingerprint, what, relays };
        self.changes.extend(happened.map(change));
        Ok("listed\n")
    }

    /// Compares the entries of a listed relay; `None` if its name and addresses stay, or if it was said before.
    fn moved(&mut self, now: u64, fingerprint: [u8; 20], from: String, to: String) -> Option<Happened> {
        if from == to {
            return None;
        }
        // A relay has moved once. Two relays with one key file take turns.
        let earlier = self.moved.get(&fingerprint);
        let is_back = |earlier: &Moved| earlier.from == to && now.saturating_sub(earlier.at) <= self.validity;
        let are_two = earlier.is_some_and(is_back);
        let said = earlier.and_then(|earlier| earlier.said).filter(|_| are_two);
        let is_said = said.is_some_and(|said| now.saturating_sub(said) < SAY_AGAIN);
        let said = if are_two && !is_said { Some(now) } else { said };
        self.moved.insert(fingerprint, Moved { from: from.clone(), at: now, said });
        match are_two {
            true => (!is_said).then_some(Happened::Twins { one: to, other: from }),
            false => Some(Happened::Moved { from, to }),
        }
    }

    /// Handles a relay's [withdrawal]: removes its entry. Returns the answer.
    ///
    /// # Errors
    /// Why the withdrawal is rejected.
    pub(super) fn withdraw(&mut self, now: u64, text: &str) -> Result<&'static str, String> {
        // A closure, so that `?` covers every field.
        let read = || {
            let (facts, signature) = text.trim_end().rsplit_once(' ')?;
            let (fingerprint, time) = facts.strip_prefix("withdraw ")?.split_once(' ')?;
            Some((facts, unhex(fingerprint)?, time.parse::<u64>().ok()?, unhex(signature)?))
        };
        let (facts, fingerprint, time, signature) = read().ok_or("the withdrawal is malformed")?;
        let entry = self.relays.get(&fingerprint).ok_or("the relay is not listed")?;
        if !cert::verifies(&entry.ed25519, format!("{WITHDRAWAL_PREFIX}{facts}").as_bytes(), &signature) {
            return Err("the signature does not verify under the identity of the listed entry".into());
        }
        if time.abs_diff(now) > SKEW {
            return Err(format!(
                "the withdrawal was signed at {time}, but the time is {now} (seconds since 1970); check the clocks"
            ));
        }
        if entry.published > time {
            return Err("a later entry of this relay is listed".into());
        }
        // The entry's time, not the withdrawal's: a relay that restarts at once may publish in the second of its withdrawal.
        let published = entry.published;
        self.withdrawn.insert(fingerprint, published);
        if self.withdrawn.len() > MAX_RELAYS {
            let oldest = self.withdrawn.iter().min_by_key(|(_, time)| **time).map(|(relay, _)| *relay);
            self.withdrawn.remove(&oldest.expect("the map is not empty"));
        }
        self.places.release(&fingerprint);
        self.remove(&fingerprint, Departure::Withdrawn);
        Ok("withdrawn\n")
    }

    /// Removes a relay that is listed.
    fn remove(&mut self, fingerprint: &[u8; 20], why: Departure) {
        if let Some(Entry { nickname, fingerprint, .. }) = self.relays.remove(fingerprint) {
            self.moved.remove(&fingerprint);
            let relays = self.relays.len();
            self.changes.push(Change { nickname, fingerprint, what: Happened::Left(why), relays });
        }
    }

    /// Takes the changes since the last call.
    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Gives a relay a place: the policy of [`tidegate_control::shares`], with a limit per address.
    fn place(&mut self, from: IpAddr, entry: &Entry, by_name: bool) -> Result<(), String> {
        if by_name {
            self.places.release(&entry.fingerprint);
            return Ok(());
        }
        if self.relays.contains_key(&entry.fingerprint) {
            return Ok(());
        }
        let (of, most) = (network(from), self.admission.per_address);
        if self.places.of_group(&of.0) >= most {
            return Err(format!(
                "{most} relays joined from this address with the token; list identities with --allow, or start the \
                 directory with a higher --relays-per-address"
            ));
        }
        let seconds = |seconds: u64| Time::ZERO + Span::from_secs(seconds);
        let last = |key: &[u8; 20]| self.relays.get(key).map_or(Time::ZERO, |entry| seconds(entry.published));
        if let Some(displaced) = self.places.displaced(&of, last) {
            self.remove(&displaced, Departure::Displaced);
        }
        self.places.admit(seconds(entry.published), of, entry.fingerprint);
        Ok(())
    }

    /// Removes relays that are silent, and forgets withdrawals once older entries are too old to be accepted.
    pub(super) fn expire(&mut self, now: u64) {
        let silent = self.relays.values().filter(|entry| entry.published + self.validity < now);
        let silent: Vec<[u8; 20]> = silent.map(|entry| entry.fingerprint).collect();
        for fingerprint in silent {
            self.places.release(&fingerprint);
            self.remove(&fingerprint, Departure::Silent);
        }
        self.withdrawn.retain(|_, time| *time + SKEW >= now);
    }

    /// The signed directory as of now.
    pub fn directory(&mut self, now: u64) -> String {
        self.expire(now);
        let weights = self.weights.as_ref().filter(|weights| weights.is_current(now));
        sign(&self.key, now, self.validity, &self.relays, weights)
    }

    /// The number of listed relays.
    pub(crate) fn len(&self) -> usize {
        self.relays.len()
    }
}

/// The name and the addresses of an entry.
fn described(entry: &Entry) -> String {
    format!("{} at {}", entry.nickname, entry.address)
}

/// Compares two texts in constant time. Their lengths are not secret.
fn same(a: &str, b: &str) -> bool {
    a.as_bytes().ct_eq(b.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::identity::fill;

    const NOW: u64 = 1_800_000_000;
    const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn rules() -> Admission {
        Admission { allowed: Vec::new(), token: None, per_address: 100, gate: Gate::Private }
    }

    fn relay(name: &str, published: u64) -> (RouterKeys, Entry) {
        let keys = RouterKeys::generate(&mut fill);
        let entry = Entry::new(name, "127.0.0.1:9001".parse().unwrap(), &keys, (1_000_000, true, published));
        (keys, entry)
    }

    /// The post of a relay.
    fn post((keys, entry): &(RouterKeys, Entry)) -> String {
        format!("{}\n{}", proof(keys), entry.line())
    }

    fn with_token(relay: &(RouterKeys, Entry)) -> String {
        format!("token secret\n{}", post(relay))
    }

    /// An entry of the first keys' identity that names the second keys' fingerprint.
    fn thief_entry(keys: &RouterKeys, of: &Entry) -> String {
        let mut entry = Entry { ed25519: keys.ed25519(), ..of.clone() };
        entry.signature = keys.sign_ed25519(&entry.signed());
        entry.line()
    }

    #[test]
    fn a_fingerprint_belongs_to_one_identity() {
        let listed = relay("listed", NOW);
        let rules = Admission { token: Some("secret".into()), ..rules() };
        let mut authority = Authority::new(SigningKey::from_bytes(&[7; 32]), rules, 3600);
        let thief = RouterKeys::generate(&mut fill);
        let stolen = thief_entry(&thief, &listed.1);
        // Neither before nor after its owner joins, with any proof that a thief can have.
        for _ in 0..2 {
            for proof in [String::new(), proof(&thief), proof(&listed.0)] {
                let refused = authority.join(NOW, HOME, &format!("token secret\n{proof}\n{stolen}"));
                assert!(refused.unwrap_err().contains("does not prove"), "{proof}");
            }
            authority.join(NOW, HOME, &with_token(&listed)).unwrap();
        }
        assert!(authority.directory(NOW).contains(&listed.1.line()));
        let unproved = format!("token secret\n{}", listed.1.line());
        assert!(authority.join(NOW, HOME, &unproved).unwrap_err().contains("does not prove"));
    }

    #[test]
    fn a_relay_withdraws_its_entry() {
        let (alpha, other) = (relay("alpha", NOW), relay("other", NOW));
        let rules = Admission { token: Some("secret".into()), ..rules() };
        let mut authority = Authority::new(SigningKey::from_bytes(&[7; 32]), rules, 3600);
        let withdraw = |authority: &mut Authority, now, text: &str| authority.withdraw(now, text);
        let own = withdrawal(&alpha.0, NOW + 5);
        assert!(withdraw(&mut authority, NOW, &own).unwrap_err().contains("not listed"));
        for joining in [&alpha, &other] {
            authority.join(NOW, HOME, &with_token(joining)).unwrap();
        }
        let early = withdrawal(&alpha.0, NOW - 1);
        let forged =
            withdrawal(&other.0, NOW + 5).replace(&hex(&other.1.fingerprint), &hex(&alpha.1.fingerprint));
        let entry = format!("withdraw {} {NOW} {}", hex(&alpha.1.fingerprint), hex(&alpha.1.signature));
        for (wrong, now, why) in [
            (&*early, NOW, "a later entry"),
            (&forged, NOW + 5, "does not verify"),
            (&entry, NOW, "does not verify"),
            (&own, NOW + 5 + SKEW + 1, "clocks"),
            ("withdraw", NOW, "malformed"),
        ] {
            assert!(withdraw(&mut authority, now, wrong).unwrap_err().contains(why), "{why}");
        }
        assert_eq!(withdraw(&mut authority, NOW + 5, &(own + "\n")), Ok("withdrawn\n"));
        assert!(!authority.directory(NOW + 5).contains("alpha") && authority.len() == 1);
        // The old entry stays out; a restarted relay is listed at once.
        let again = authority.join(NOW + 6, HOME, &with_token(&alpha));
        assert!(again.unwrap_err().contains("has withdrawn"));
        let later = Entry::new("alpha", alpha.1.address, &alpha.0, (1000, true, NOW + 5));
        authority.join(NOW + 5, HOME, &with_token(&(alpha.0, later))).unwrap();
        authority.expire(NOW + 3602);
        let changes = authority.take_changes();
        let seen = changes.into_iter().map(|change| (change.nickname, change.what, change.relays));
        let expected = [
            ("alpha", Happened::Joined, 1),
            ("other", Happened::Joined, 2),
            ("alpha", Happened::Left(Departure::Withdrawn), 1),
            ("alpha", Happened::Joined, 2),
            ("other", Happened::Left(Departure::Silent), 1),
        ]
        .map(|(name, what, relays)| (name.to_owned(), what, relays));
        assert_eq!(seen.collect::<Vec<_>>(), expected);
        assert!(authority.withdrawn.is_empty() && authority.take_changes().is_empty());
    }

    /// Two relays with one key file, as a copied image of a machine makes them, replace each other's entry in turn.
    #[test]
    fn two_relays_with_one_key_file_are_told_from_one_that_moves() {
        let keys = RouterKeys::generate(&mut fill);
        let rules = Admission { token: Some("secret".into()), ..rules() };
        let mut authority = Authority::new(SigningKey::from_bytes(&[7; 32]), rules, 86_400);
        let mut announce = |now: u64, name: &str, port: u16| {
            let address = format!("127.0.0.1:{port}").parse().unwrap();
            let entry = Entry::new(name, address, &keys, (1000, false, now));
            let post = format!("token secret\n{}\n{}", proof(&keys), entry.line());
            authority.join(now, HOME, &post).unwrap();
            let changes = authority.take_changes();
            assert!(changes.len() <= 1 && changes.iter().all(|change| change.relays == 1));
            changes.into_iter().next().map(|change| change.what)
        };
        assert_eq!(announce(NOW, "alpha", 9001), Some(Happened::Joined));
        assert_eq!(announce(NOW + 1, "alpha", 9001), None);
        let [a, b] = ["alpha at 127.0.0.1:9001", "copy at 127.0.0.1:9002"].map(str::to_owned);
        let moved = Happened::Moved { from: a.clone(), to: b.clone() };
        assert_eq!(announce(NOW + 2, "copy", 9002), Some(moved));
        let twins = Happened::Twins { one: a.clone(), other: b.clone() };
        assert_eq!(announce(NOW + 15, "alpha", 9001), Some(twins));
        // They go on; the log says it once an hour.
        for seconds in 1..60 {
            assert_eq!(announce(NOW + 15 + 30 * seconds, "copy", 9002), None);
            assert_eq!(announce(NOW + 30 + 30 * seconds, "alpha", 9001), None);
        }
        let again = announce(NOW + 15 + SAY_AGAIN, "copy", 9002);
        assert_eq!(again, Some(Happened::Twins { one: b.clone(), other: a }));
        // The one that stays moves to a third address.
        let third = "copy at 127.0.0.1:9003".to_owned();
        let moved = Happened::Moved { from: b.clone(), to: third.clone() };
        let then = NOW + 30 + SAY_AGAIN;
        assert_eq!(announce(then, "copy", 9003), Some(moved));
        // It comes back a day later.
        assert_eq!(announce(then + 86_400, "copy", 9003), None);
        let moved = Happened::Moved { from: third, to: b };
        assert_eq!(announce(then + 86_401, "copy", 9002), Some(moved));
    }

    #[test]
    fn a_refusal_says_whether_a_token_is_missing_or_wrong() {
        let unlisted = relay("unlisted", NOW);
        let refusal = |ours: Option<&str>, text: &str| {
            let rules = Admission { token: ours.map(str::to_owned), ..rules() };
            let mut authority = Authority::new(SigningKey::from_bytes(&[7; 32]), rules, 3600);
            authority.join(NOW, HOME, text).unwrap_err()
        };
        let (with, without) = (format!("token wrong\n{}", post(&unlisted)), post(&unlisted));
        for (ours, text, cause) in [
            (Some("secret"), &with, "its token is not valid; copy"),
            (Some("secret"), &without, "it sends no token; copy"),
            (None, &with, "takes no token; start the directory with --allow"),
            (None, &without, "sends no token; start the directory with --allow"),
        ] {
            let said = refusal(ours, text);
            assert!(said.contains(cause) && said.contains(&hex(&unlisted.1.ed25519)), "{said}");
        }
    }

    #[test]
    fn entries_state_versions_or_none() {
        let keys = RouterKeys::generate(&mut fill);
        let of = |versions: &str| {
            let address = "127.0.0.1:9001".parse().unwrap();
            let mut entry = Entry::new("alpha", address, &keys, (1000, true, NOW));
            entry.versions = versions.into();
            entry.signature = keys.sign_ed25519(&entry.signed());
            entry
        };
        assert!(relay("alpha", NOW).1.has_version(6), "this version supports Counter Galois Onion");
        for (versions, six) in [("", false), ("2-4", false), ("2-6", true), ("1,5-7", true), ("6", true)] {
            let entry = Entry::parse(&of(versions).line()).unwrap();
            assert_eq!((&entry, entry.has_version(6)), (&of(versions), six), "{versions}");
        }
        for versions in ["x", "2-", "-", "2,,3", "256", "2 6"] {
            assert_eq!(Entry::parse(&of(versions).line()), Err(DirectoryError::Syntax(1)), "{versions}");
        }
        assert!(Entry::parse(&of(&"1,".repeat(30)).line()).is_err());
        let forged = of("2-4").line().replace("Relay=2-4", "Relay=2-6");
        assert_eq!(Entry::parse(&forged), Err(DirectoryError::Signature));
    }

    #[test]
    fn a_holder_of_the_token_gets_a_share() {
        let rules = Admission { token: Some("secret".into()), per_address: 8, ..rules() };
        let mut authority = Authority::new(SigningKey::from_bytes(&[7; 32]), rules, 3600);
        let from = |n: u8| IpAddr::from([127, 0, 0, n]);
        let join = |authority: &mut Authority, at: u8, name: &str, published| {
            authority.join(published, from(at), &with_token(&relay(name, published)))
        };
        let joined: Vec<_> = (0..12).map(|n| join(&mut authority, 2, &format!("flood{n}"), NOW)).collect();
        assert_eq!(joined.iter().filter(|answer| answer.is_ok()).count(), 8);
        assert!(joined[8].as_ref().unwrap_err().contains("--relays-per-address"));
        assert!(join(&mut authority, 3, "newcomer", NOW).is_ok());
        // If the directory is full, the address with the most relays makes room.
        authority.places.set_places(9);
        assert!(join(&mut authority, 4, "another", NOW + 1).is_ok());
        let text = authority.directory(NOW + 1);
        assert_eq!((text.matches("relay flood").count(), authority.len()), (7, 9));
        assert!(text.contains("relay newcomer") && text.contains("relay another"));
        // A silent relay frees its place.
        authority.directory(NOW + 3602);
        assert!(authority.len() == 0 && authority.places.is_empty());
    }

    #[test]
    fn impossible_entries_are_refused_and_do_not_spoil_the_directory() {
        let key = SigningKey::from_bytes(&[7; 32]);
        let keys = RouterKeys::generate(&mut fill);
        let entry = |address: &str, bandwidth| {
            Entry::new("odd", address.parse().unwrap(), &keys, (bandwidth, false, NOW))
        };
        let good = relay("good", NOW).1;
        let mut authority = Authority::new(key.clone(), Admission { per_address: 8, ..rules() }, 3600);
        authority.admission.allowed = vec![keys.ed25519()];
        let own = proof(&keys);
        for odd in [
            entry("127.0.0.1:9001", u64::MAX),
            entry("127.0.0.1:9001", MAX_BANDWIDTH + 1),
            entry("127.0.0.1:9001", 0),
            entry("127.0.0.1:0", 1000),
            entry("0.0.0.0:9001", 1000),
            entry("[::]:9001", 1000),
            entry("224.0.0.1:9001", 1000),
            entry("255.255.255.255:9001", 1000),
            entry("[ff02::1]:9001", 1000),
            entry("169.254.169.254:80", 1000),
            entry("127.0.0.1:9001,[2002:7f00:1::]:9001", 1000),
        ] {
            let line = odd.line();
            assert!(authority.join(NOW, HOME, &format!("{own}\n{line}")).is_err(), "{line}");
            let relays = BTreeMap::from([(good.fingerprint, good.clone()), (odd.fingerprint, odd)]);
            let text = sign(&key, NOW, 3600, &relays, None);
            let directory = check(&text, &key.verifying_key().to_bytes(), NOW, 0).unwrap();
            assert_eq!(directory.relays, std::slice::from_ref(&good), "{line}");
        }
        authority.admission.gate = Gate::Public;
        let private = format!("{own}\n{}", entry("10.0.0.1:9001", 1000).line());
        assert!(authority.join(NOW, HOME, &private).unwrap_err().contains("--allow-private-addresses"));
        assert!(authority.join(NOW, HOME, &format!("{own}\n{}", entry("8.8.8.8:9001", 1000).line())).is_ok());
    }

    #[test]
    fn an_invalid_directory_is_rejected() {
        let key = SigningKey::from_bytes(&[7; 32]);
        let public = key.verifying_key().to_bytes();
        let (_, entry) = relay("alpha", NOW);
        let text = sign(&key, NOW, 3600, &BTreeMap::from([(entry.fingerprint, entry.clone())]), None);
        let directory = check(&text, &public, NOW + 10, NOW).unwrap();
        let listed: BTreeSet<IpAddr> = entry.address.all().iter().map(|address| address.ip()).collect();
        assert_eq!(
            (addresses(&text), addresses("relay alpha 1.2.3:9 x\nrelay\n")),
            (listed, BTreeSet::new())
        );
        assert_eq!((directory.number, &directory.relays[..]), (NOW, &[entry][..]));
        assert_eq!(check(&text, &public, NOW, NOW + 1), Err(DirectoryError::Rollback(NOW, NOW + 1)));
        for hour_off in [NOW - 3600, NOW + 3600 + SKEW] {
            assert!(matches!(check(&text, &public, hour_off, 0), Err(DirectoryError::Time(..))));
        }
        assert_eq!(check(&text, &[9; 32], NOW, 0), Err(DirectoryError::Signature));
        assert_eq!(check(&text.replace("alpha", "omega"), &public, NOW, 0), Err(DirectoryError::Signature));
        for short in [0, 10, text.len() / 2, text.len() - 1] {
            assert!(check(&text[..short], &public, NOW, 0).is_err(), "{short} bytes");
        }
    }

    #[test]
    fn measured_weights_replace_what_relays_say_of_themselves() {
        let joining = ["honest", "liar", "new"].map(|name| relay(name, NOW));
        let key = SigningKey::from_bytes(&[7; 32]);
        let public = key.verifying_key().to_bytes();
        let mut authority = Authority::new(key, Admission { token: Some("secret".into()), ..rules() }, 3600);
        for relay in &joining {
            authority.join(NOW, HOME, &with_token(relay)).unwrap();
        }
        let [honest, liar, new] = joining.each_ref().map(|(_, entry)| entry);
        let weights = |text: &str, now| {
            let directory = check(text, &public, now, 0).unwrap();
            [honest, liar, new].map(|entry| directory.weight(entry))
        };
        assert_eq!(weights(&authority.directory(NOW), NOW), [1_000_000; 3], "self-reported");
        let measured = [(honest.fingerprint, 900_000), (liar.fingerprint, 100_000), ([9; 20], 5)];
        authority.set_weights(Weights { measured: NOW, relays: measured.into() });
        let text = authority.directory(NOW);
        assert_eq!(weights(&text, NOW), [900_000, 100_000, crate::live::weights::UNMEASURED]);
        assert_eq!((authority.measured(NOW), text.matches("\nweight ").count()), (Some(2), 2));
        for wrong in ["weight x 5", "measured 5", "relay x"] {
            let signed = text.rsplit_once("signature ").unwrap().0.to_owned() + wrong + "\n";
            let signature = authority.key.sign(format!("{DIRECTORY_PREFIX}{signed}").as_bytes());
            let whole = format!("{signed}signature {}\n", hex(&signature.to_bytes()));
            assert!(matches!(check(&whole, &public, NOW, 0), Err(DirectoryError::Syntax(_))), "{wrong}");
        }
        let old = NOW + crate::live::weights::MAX_AGE + 1;
        assert_eq!(authority.measured(old), None);
        assert!(!authority.directory(NOW + 3600 * 24 * 3 + 1).contains("measured"));
    }

    #[test]
    fn relays_join_by_identity_or_token() {
        let (listed, unlisted) = (relay("listed", NOW), relay("unlisted", NOW));
        let admission =
            Admission { allowed: vec![listed.1.ed25519], token: Some("secret".into()), ..rules() };
        let mut authority = Authority::new(SigningKey::from_bytes(&[7; 32]), admission, 3600);
        let mut join = |now, text: &str| authority.join(now, HOME, text);
        assert!(join(NOW, &post(&listed)).is_ok());
        assert!(join(NOW, &post(&unlisted)).unwrap_err().contains("not on the allow-list"));
        assert!(join(NOW, &format!("token wrong\n{}", post(&unlisted))).is_err());
        assert!(join(NOW, &(with_token(&unlisted) + "\n")).is_ok());
        let forged = with_token(&unlisted).replace("unlisted", "unlistet");
        assert!(join(NOW, &forged).unwrap_err().contains("signature"));
        assert!(join(NOW + 3600, &post(&listed)).unwrap_err().contains("clocks"));
        assert_eq!(authority.len(), 2);
        authority.directory(NOW + 3601);
        assert!(authority.len() == 0, "a relay that is silent for an hour is removed");
    }

    /// A relay's line: which relay, when, and a change on the way.
    fn posts() -> impl Strategy<Value = (usize, i64, bool, Option<(usize, u8)>)> {
        (0usize..4, -700i64..700, any::<bool>(), proptest::option::of((0usize..500, any::<u8>())))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Whatever is posted in any order, only valid entries of relays that may join are listed, at most 600 bytes
        /// each, and clients accept the result.
        #[test]
        fn arbitrary_posts_leave_a_valid_directory(posts in prop::collection::vec(posts(), 0..40)) {
            static KEYS: std::sync::LazyLock<[RouterKeys; 4]> =
                std::sync::LazyLock::new(|| std::array::from_fn(|_| RouterKeys::generate(&mut fill)));
            let entry = |keys: &RouterKeys, published| {
                Entry::new("any", "127.0.0.1:9001".parse().unwrap(), keys, (1_000_000, true, published))
            };
            let admission = Admission { allowed: vec![KEYS[0].ed25519(), KEYS[1].ed25519()], token: Some("secret".into()), ..rules() };
            let key = SigningKey::from_bytes(&[7; 32]);
            let public = key.verifying_key().to_bytes();
            let mut authority = Authority::new(key, admission, 600);
            for (who, later, token, changed) in posts {
                let entry = entry(&KEYS[who], NOW.saturating_add_signed(later));
                let line = format!("{}\n{}", proof(&KEYS[who]), entry.line());
                let mut bytes = if token { format!("token secret\n{line}") } else { line }.into_bytes();
                if let Some((at, byte)) = changed {
                    let at = at % bytes.len();
                    bytes[at] = byte;
                }
                let heard = authority.join(NOW, HOME, &String::from_utf8_lossy(&bytes));
                prop_assert!(heard.is_err() || who < 2 || token, "{:?}", heard);
                let text = authority.directory(NOW);
                prop_assert!(text.len() <= 300 + 600 * authority.len());
                let directory = check(&text, &public, NOW, 0).unwrap();
                prop_assert!(directory.relays.len() == authority.len() && authority.len() <= 4);
                prop_assert!(directory.relays.iter().all(|relay| relay.published.abs_diff(NOW) <= SKEW));
            }
        }
    }
}
