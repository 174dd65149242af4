//! A relay's descriptor and extra-info document for Tor's authorities (dir-spec, "Server descriptor format" and "Extra-info
//! document format").

use std::fmt::Write as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use tidegate_proto::crypto::FamilyKey;
use tidegate_proto::crypto::cert::{Certified, RouterKeys};

use super::addresses::Addresses;
use super::history::Line;
use super::policy::Policy;

/// Supported protocol versions besides `Relay`, and those of relays that serve directory streams. Not among them: `Desc=3-4`
/// and `Microdesc=3`, which readers of descriptors support, and `Padding=2`, since circuits' padding machines are not run.
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

/// The operator of a relay.
#[derive(Clone, Default)]
pub struct Operator {
    /// How to reach the operator: one line.
    pub contact: Option<String>,
    /// Fingerprints of the other relays of the operator.
    pub family: Vec<[u8; 20]>,
    /// Keys of families that the relay belongs to (proposal 321).
    pub family_keys: Vec<Arc<FamilyKey>>,
}

/// The identity of a family, as tor's `FamilyId` names it.
pub fn family_id(key: &FamilyKey) -> String {
    STANDARD_NO_PAD.encode(key.public())
}

/// The contents of a descriptor besides keys.
pub(crate) struct Facts<'a> {
    /// Nickname: 1 to 19 letters and digits.
    pub nickname: &'a str,
    /// OR addresses: IPv4, and optionally IPv6.
    pub address: Addresses,
    /// The rate limit, bytes per second.
    pub bandwidth: u64,
    /// The relay's observations.
    pub reported: Reported,
    /// Time since the relay's start, seconds.
    pub uptime: u64,
    /// The exit policy.
    pub policy: &'a Policy,
    /// Whether the relay serves directory streams.
    pub directory: bool,
    /// Its operator.
    pub operator: &'a Operator,
    /// Bytes written and read per period.
    pub history: [Option<Line>; 2],
}

/// Observations of a relay until it published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reported {
    /// Publication time, seconds since 1970.
    pub published: u64,
    /// The bandwidth, bytes per second.
    pub observed: u64,
    /// The hour of an overload, if one is to be reported.
    pub overloaded: Option<u64>,
    /// The hour in which no file descriptor was free, if it is to be reported.
    pub without_descriptors: Option<u64>,
    /// The rate limit's exhaustion, if it is to be reported.
    pub exhausted: Option<Exhausted>,
}

/// A relay publishes new documents after this many seconds: as usual, and while the consensus lacks it (tor's
/// `FORCE_REGENERATE_DESCRIPTOR_INTERVAL` and `FAST_RETRY_DESCRIPTOR_INTERVAL`).
const LASTS: u64 = 18 * 3600;
const LASTS_UNLISTED: u64 = 90 * 60;
/// It also publishes when the bandwidth changed by this factor (tor's `BANDWIDTH_CHANGE_FACTOR`).
const CHANGED: u64 = 2;

impl Reported {
    /// Whether a report should replace this one.
    pub(crate) fn is_outdated(&self, by: &Reported, unlisted: bool) -> bool {
        let lasts = if unlisted { LASTS_UNLISTED } else { LASTS };
        let changed = |from: u64, to: u64| to > from.saturating_mul(CHANGED);
        let lines = |report: &Reported| {
            [report.overloaded.is_some(), report.without_descriptors.is_some(), report.exhausted.is_some()]
        };
        by.published.saturating_sub(self.published) >= lasts
            || changed(self.observed, by.observed)
            || changed(by.observed, self.observed)
            || lines(self) != lines(by)
    }
}

/// When a rate limit was last exhausted, and in how many minutes so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted {
    /// Hour, in seconds since 1970.
    pub hour: u64,
    /// The limit, bytes per second, and its burst, bytes.
    pub rate: u64,
    pub burst: u64,
    /// Number of minutes.
    pub minutes: u64,
}

/// Writes and signs a descriptor, followed by its extra-info document.
pub(crate) fn build(keys: &RouterKeys, certified: &Certified, facts: &Facts<'_>) -> String {
    let (extra, digests) = extra_info(keys, certified, facts);
    let mut text = String::new();
    write(&mut text, keys, certified, facts, &digests).expect("a string takes all");
    sign(&mut text, keys, certified);
    text + &extra
}

/// Signs a document from its first byte up to `router-sig-ed25519 `. Returns the SHA-1 that the RSA identity signed.
fn sign(text: &mut String, keys: &RouterKeys, certified: &Certified) -> [u8; 20] {
    text.push_str("router-sig-ed25519 ");
    let ed25519 = Sha256::digest([ED25519_PREFIX, text.as_bytes()].concat());
    text.push_str(&STANDARD_NO_PAD.encode(certified.sign(&ed25519)));
    text.push_str("\nrouter-signature\n");
    let digest = Sha1::digest(text.as_bytes());
    text.push_str(&armour("SIGNATURE", &keys.sign_rsa(&digest)));
    digest.into()
}

/// The extra-info document, and the arguments of the line that refers to it.
fn extra_info(keys: &RouterKeys, certified: &Certified, facts: &Facts<'_>) -> (String, String) {
    let mut text = format!("extra-info {} {}\n", facts.nickname, upper(&keys.fingerprint()));
    text.push_str(&format!("identity-ed25519\n{}", armour("ED25519 CERT", &certified.signing_certificate)));
    text.push_str(&format!("published {}\n", calendar(facts.reported.published)));
    for (line, name) in facts.history.iter().zip(["write-history", "read-history"]) {
        if let Some((end, numbers)) = line {
            text.push_str(&format!("{name} {} {numbers}\n", calendar(*end)));
        }
    }
    if let Some(Exhausted { hour, rate, burst, minutes }) = facts.reported.exhausted {
        // One bucket limits what the relay writes; reading waits for no tokens.
        text.push_str(&format!("overload-ratelimits 1 {} {rate} {burst} 0 {minutes}\n", calendar(hour)));
    }
    if let Some(hour) = facts.reported.without_descriptors {
        text.push_str(&format!("overload-fd-exhausted 1 {}\n", calendar(hour)));
    }
    let signed = sign(&mut text, keys, certified);
    let digests = format!("{} {}", upper(&signed), STANDARD_NO_PAD.encode(Sha256::digest(text.as_bytes())));
    (text, digests)
}

fn upper(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

fn write(
    text: &mut String,
    keys: &RouterKeys,
    certified: &Certified,
    facts: &Facts<'_>,
    extra_info: &str,
) -> std::fmt::Result {
    let Facts { nickname, bandwidth, uptime, .. } = *facts;
    let Reported { observed, published, .. } = facts.reported;
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
    let fingerprint: Vec<String> = keys.fingerprint().chunks(2).map(upper).collect();
    writeln!(text, "fingerprint {}", fingerprint.join(" "))?;
    writeln!(text, "uptime {uptime}\nbandwidth {bandwidth} {bandwidth} {observed}")?;
    writeln!(text, "extra-info-digest {extra_info}")?;
    write!(text, "onion-key\n{}", armour("RSA PUBLIC KEY", &tap))?;
    write!(text, "signing-key\n{}", armour("RSA PUBLIC KEY", &identity))?;
    write!(text, "onion-key-crosscert\n{}", armour("CROSSCERT", &keys.tap_cross_certificate()))?;
    write!(text, "ntor-onion-key-crosscert {sign}\n{}", armour("ED25519 CERT", &onion_cross))?;
    writeln!(text, "ntor-onion-key {}", STANDARD_NO_PAD.encode(keys.onion()))?;
    write_operator(text, keys, facts)?;
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
    if let Some(hour) = facts.reported.overloaded {
        writeln!(text, "overload-general 1 {}", calendar(hour))?;
    }
    Ok(())
}

fn write_operator(text: &mut String, keys: &RouterKeys, facts: &Facts<'_>) -> std::fmt::Result {
    let Operator { contact, family, family_keys } = facts.operator;
    if !family.is_empty() {
        // As tor does, the relay lists itself, in the order of fingerprints.
        let mut members: Vec<String> = family.iter().map(|member| format!("${}", upper(member))).collect();
        members.push(format!("${}", upper(&keys.fingerprint())));
        members.sort_unstable();
        members.dedup();
        writeln!(text, "family {}", members.join(" "))?;
    }
    for key in family_keys {
        let certificate = key.certify(&keys.ed25519(), facts.reported.published);
        write!(text, "family-cert\n{}", armour("FAMILY CERT", &certificate))?;
    }
    if let Some(contact) = contact {
        writeln!(text, "contact {contact}")?;
    }
    Ok(())
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
    use tidegate_proto::crypto::cert::Signing;

    use super::*;
    use crate::identity::fill;

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

    fn documents(operator: &Operator, change: impl FnOnce(&mut Facts<'_>)) -> String {
        let keys = RouterKeys::generate(&mut fill);
        let certified = keys.certify(Signing::new([7; 32], 1_800_000_000), 1_800_000_000, b"tls", [8; 32]);
        let policy = Policy::default();
        let mut facts = Facts {
            nickname: "tide",
            address: Addresses::from(std::net::SocketAddr::from(([192, 0, 2, 1], 9001))),
            bandwidth: 5000,
            reported: Reported { published: 1_795_345_325, ..NOTHING },
            uptime: 0,
            policy: &policy,
            directory: false,
            operator,
            history: [None, None],
        };
        change(&mut facts);
        build(&keys, &certified, &facts)
    }

    const NOTHING: Reported =
        Reported { published: 0, observed: 0, overloaded: None, without_descriptors: None, exhausted: None };

    #[test]
    fn documents_are_replaced_when_tor_would_replace_them() {
        let before = Reported { observed: 1_000, ..NOTHING };
        let outdated = |by: Reported, unlisted| before.is_outdated(&by, unlisted);
        let of = |observed| Reported { observed, ..before };
        assert!(!outdated(of(2_000), false) && !outdated(of(500), false));
        assert!(outdated(of(2_001), false) && outdated(of(499), false));
        let at = |published| Reported { published, ..before };
        assert!(!outdated(at(LASTS - 1), false) && outdated(at(LASTS), false));
        assert!(!outdated(at(LASTS_UNLISTED - 1), true) && outdated(at(LASTS_UNLISTED), true));
        let overloaded = Reported { overloaded: Some(3_600), ..before };
        assert!(outdated(overloaded, false) && overloaded.is_outdated(&before, false));
        let later = Reported { overloaded: Some(7_200), ..before };
        assert!(!overloaded.is_outdated(&later, false), "the line is there");
    }

    #[test]
    fn a_new_relay_claims_nothing_it_has_not_done() {
        let text = documents(&Operator::default(), |_| {});
        assert!(text.contains("\nuptime 0\nbandwidth 5000 5000 0\n"), "{text}");
        for line in [
            "family",
            "contact",
            "overload",
            "history",
            "hidden-service-dir",
            "tunnelled",
            "DirCache",
            "Padding",
        ] {
            assert!(!text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn documents_have_history_overload_and_operator() {
        let operator = Operator {
            contact: Some("tide <a@example>".into()),
            family: vec![[0xab; 20]],
            family_keys: vec![Arc::new(
                FamilyKey::from_file(&[&b"== ed25519v1-secret: fmly-id ==\0"[..], &[9; 64]].concat())
                    .unwrap(),
            )],
        };
        let text = documents(&operator, |facts| {
            facts.reported.observed = 77;
            facts.uptime = 3600;
            facts.reported.overloaded = Some(1_795_341_600);
            facts.reported.without_descriptors = Some(1_795_341_600);
            facts.reported.exhausted =
                Some(Exhausted { hour: 1_795_341_600, rate: 4000, burst: 400, minutes: 12 });
            facts.history = [Some((1_795_345_325, "(86400 s) 1024,2048".into())), None];
        });
        let (descriptor, extra) = text.split_once("extra-info tide ").unwrap();
        for line in [
            "uptime 3600\nbandwidth 5000 5000 77\n",
            "\nfamily $",
            "$ABABABABABABABABABABABABABABABABABABABAB",
            "\nfamily-cert\n-----BEGIN FAMILY CERT-----\nAQwAB",
            "\ncontact tide <a@example>\n",
            "\noverload-general 1 2026-11-22 10:00:00\nrouter-sig-ed25519 ",
        ] {
            assert!(descriptor.contains(line), "{line}: {descriptor}");
        }
        for line in [
            "\nwrite-history 2026-11-22 11:02:05 (86400 s) 1024,2048\n",
            "\noverload-ratelimits 1 2026-11-22 10:00:00 4000 400 0 12\n",
            "\noverload-fd-exhausted 1 2026-11-22 10:00:00\nrouter-sig-ed25519 ",
        ] {
            assert!(extra.contains(line), "{line}: {extra}");
        }
        // The digest is that of the document as it follows.
        let extra = format!("extra-info tide {extra}");
        let whole = STANDARD_NO_PAD.encode(Sha256::digest(extra.as_bytes()));
        let signed = extra.split_inclusive("router-signature\n").next().unwrap();
        let line = format!("\nextra-info-digest {} {whole}\n", upper(&Sha1::digest(signed.as_bytes())));
        assert!(descriptor.contains(&line), "{line}: {descriptor}");
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
