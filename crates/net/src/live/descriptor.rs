//! A relay's descriptor for Tor's authorities (dir-spec, "Server descriptor format").

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use tidegate_proto::crypto::cert::{Certified, RouterKeys};

use super::addresses::Addresses;
use super::policy::Policy;

/// Supported protocol versions besides `Relay`, and those of relays that serve directory streams.
const PROTOCOLS: &str =
    "Conflux=1 Cons=1-2 Desc=1-2 FlowCtrl=1-2 HSIntro=4-5 HSRend=1-2 Link=4-5 LinkAuth=3 Microdesc=1-2";
const DIRECTORY_PROTOCOLS: &str = "DirCache=2 HSDir=2";
/// Supported versions of the subprotocol `Relay`: 4 is ntor-v3, 5 its request for subprotocols, 6 Counter Galois Onion.
pub(crate) const RELAY_VERSIONS: &str = "2-6";
const ED25519_PREFIX: &[u8] = b"Tor router descriptor signature v1";

/// The supported protocol versions of a relay that serves directory streams or not.
fn protocols(directory: bool) -> String {
    let of_directories = if directory { DIRECTORY_PROTOCOLS } else { "" };
    format!("{of_directories} {PROTOCOLS} Relay={RELAY_VERSIONS}").trim_start().to_owned()
}

/// The contents of a descriptor besides keys.
pub(crate) struct Facts<'a> {
    /// Nickname: 1 to 19 letters and digits.
    pub nickname: &'a str,
    /// OR addresses: IPv4, and optionally IPv6.
    pub address: Addresses,
    /// Bandwidth, bytes per second.
    pub bandwidth: u64,
    /// The exit policy.
    pub policy: &'a Policy,
    /// Whether the relay serves directory streams.
    pub directory: bool,
    /// Publication time, seconds since 1970.
    pub published: u64,
}

/// Writes and signs a descriptor.
pub(crate) fn build(keys: &RouterKeys, certified: &Certified, facts: &Facts<'_>) -> String {
    let mut text = String::new();
    write(&mut text, keys, certified, facts).expect("a string takes all");
    let ed25519 = Sha256::digest([ED25519_PREFIX, text.as_bytes()].concat());
    text += &STANDARD_NO_PAD.encode(certified.sign(&ed25519));
    text += "\nrouter-signature\n";
    let signature = keys.sign_rsa(&Sha1::digest(text.as_bytes()));
    text += &armour("SIGNATURE", &signature);
    text
}

fn write(text: &mut String, keys: &RouterKeys, certified: &Certified, facts: &Facts<'_>) -> std::fmt::Result {
    let Facts { nickname, bandwidth, published, .. } = *facts;
    let address = facts.address.first();
    let [identity, tap] = keys.rsa_public();
    let (onion_cross, sign) = keys.onion_cross_certificate(published);
    writeln!(text, "router {nickname} {} {} 0 0", address.ip(), address.port())?;
    write!(text, "identity-ed25519\n{}", armour("ED25519 CERT", &certified.signing_certificate))?;
    writeln!(text, "master-key-ed25519 {}", STANDARD_NO_PAD.encode(keys.ed25519()))?;
    if let Some(second) = facts.address.second() {
        writeln!(text, "or-address {second}")?;
    }
    writeln!(text, "platform Tidegate {}", env!("CARGO_PKG_VERSION"))?;
    writeln!(text, "proto {}", protocols(facts.directory))?;
    writeln!(text, "published {}", calendar(published))?;
    let fingerprint: Vec<String> =
        keys.fingerprint().chunks(2).map(|pair| format!("{:02X}{:02X}", pair[0], pair[1])).collect();
    writeln!(text, "fingerprint {}", fingerprint.join(" "))?;
    writeln!(text, "uptime 0\nbandwidth {bandwidth} {bandwidth} {bandwidth}")?;
    write!(text, "onion-key\n{}", armour("RSA PUBLIC KEY", &tap))?;
    write!(text, "signing-key\n{}", armour("RSA PUBLIC KEY", &identity))?;
    write!(text, "onion-key-crosscert\n{}", armour("CROSSCERT", &keys.tap_cross_certificate()))?;
    write!(text, "ntor-onion-key-crosscert {sign}\n{}", armour("ED25519 CERT", &onion_cross))?;
    writeln!(text, "ntor-onion-key {}", STANDARD_NO_PAD.encode(keys.onion()))?;
    // Authorities reject IPv6 rules here; the summary below covers them.
    for rule in facts.policy.rules().iter().filter(|rule| !rule.is_of_ipv6()) {
        writeln!(text, "{rule}")?;
    }
    writeln!(text, "reject *:*")?;
    let ports = facts.policy.ports_by_ipv6();
    if !ports.is_empty() {
        writeln!(text, "ipv6-policy accept {ports}")?;
    }
    if facts.directory {
        writeln!(text, "hidden-service-dir\ntunnelled-dir-server")?;
    }
    write!(text, "router-sig-ed25519 ")
}

fn armour(what: &str, bytes: &[u8]) -> String {
    let encoded = STANDARD.encode(bytes);
    let lines =
        encoded.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).expect("base 64 is ASCII"));
    format!("-----BEGIN {what}-----\n{}\n-----END {what}-----\n", lines.collect::<Vec<_>>().join("\n"))
}

/// Formats seconds since 1970 as date and time in UTC.
fn calendar(unix: u64) -> String {
    let (days, second) = (unix / 86_400, unix % 86_400);
    // Years begin in March here, so that leap days come last (Hinnant, "chrono-compatible low-level date
    // algorithms").
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Protocols and versions of a list such as `Link=4-5 Relay=2`.
    fn versions(list: &str) -> Vec<(&str, u8)> {
        let of_protocol = |entry| {
            let (protocol, ranges) = str::split_once(entry, '=').unwrap();
            ranges.split(',').flat_map(move |range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let [first, last] = [first, last].map(|version| version.parse::<u8>().unwrap());
                (first..=last).map(move |version| (protocol, version))
            })
        };
        list.split(' ').flat_map(of_protocol).collect()
    }

    /// `required-relay-protocols` and `recommended-relay-protocols` of the consensus of 2025-08-08 09:00.
    #[test]
    fn relays_support_what_the_public_consensus_of_2025_requires_and_recommends() {
        let required =
            "Cons=2 Desc=2 DirCache=2 HSDir=2 HSIntro=4 HSRend=2 Link=4-5 LinkAuth=3 Microdesc=2 Relay=2";
        let recommended = "Cons=2 Desc=2 DirCache=2 FlowCtrl=1-2 HSDir=2 HSIntro=4-5 HSRend=2 Link=4-5 LinkAuth=3 \
            Microdesc=2 Relay=2-4";
        let text = protocols(true);
        let ours = versions(&text);
        for wanted in versions(required).into_iter().chain(versions(recommended)) {
            assert!(ours.contains(&wanted), "{wanted:?} of {text}");
        }
        assert!(!versions(&protocols(false)).contains(&("HSDir", 2)), "only directories store descriptors");
    }

    #[test]
    fn calendar_times_match_date() {
        for (unix, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_709_251_199, "2024-02-29 23:59:59"),
            (1_795_345_325, "2026-11-22 11:02:05"),
        ] {
            assert_eq!(calendar(unix), text);
        }
    }
}
