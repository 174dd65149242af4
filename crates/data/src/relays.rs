//! Capacities of relays and locations of users: `tornettools stage` output and server descriptors.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use serde::Deserialize;

use crate::consensus::Identity;
use crate::country::Country;
use crate::csv;
use crate::document::{DataError, Document, quote};
use crate::torperf::json;

/// A relay over a month, from consensuses and descriptors.
#[derive(Clone, Debug, PartialEq)]
pub struct Capacity {
    /// Its name; empty if unknown.
    pub name: String,
    /// Its country.
    pub country: Option<Country>,
    /// Its node in the network graph of its simulation.
    pub node: Option<String>,
    /// Its IPv4 address.
    pub address: Option<Ipv4Addr>,
    /// Mean share of the consensus weight while it ran.
    pub weight: f64,
    /// Largest observed bandwidth, bytes/s; zero if unknown.
    pub capacity_bytes_per_s: u64,
    /// BandwidthRate, bytes/s.
    pub rate_bytes_per_s: u64,
    /// BandwidthBurst, bytes.
    pub burst_bytes: u64,
    /// Share of the time it ran.
    pub running: f64,
    /// Share of its running time with the flag Guard.
    pub guard: f64,
    /// Share of its running time with the flag Exit.
    pub exit: f64,
}

#[derive(Deserialize)]
struct Staging {
    relays: BTreeMap<String, Staged>,
}

#[derive(Deserialize)]
struct Staged {
    country_code: Option<String>,
    address: Option<String>,
    weight: f64,
    bandwidth_capacity: u64,
    bandwidth_rate: u64,
    bandwidth_burst: u64,
    running_frequency: f64,
    guard_frequency: f64,
    exit_frequency: f64,
}

/// Whether the document looks like JSON.
pub(crate) fn is_json(document: &Document) -> bool {
    document.text().trim_start().starts_with('{')
}

/// Whether the document looks like server descriptors.
pub(crate) fn are_descriptors(document: &Document) -> bool {
    document.lines().any(|(_, line)| line.starts_with("router ") || line.starts_with("fingerprint "))
}

/// Reads `relayinfo_staging_*.json`, by identity.
///
/// # Errors
/// If the JSON or a fingerprint is malformed, a share is outside `[0, 1]`, or the file lists zero relays.
pub fn capacities(document: &Document) -> Result<BTreeMap<Identity, Capacity>, DataError> {
    let staging: Staging = json(document)?;
    let mut relays = BTreeMap::new();
    for (fingerprint, staged) in staging.relays {
        let identity = Identity::from_hex(&fingerprint).ok_or_else(|| {
            document.error(format!("{} is not a relay's fingerprint", quote(&fingerprint)), "correct it")
        })?;
        let shares = [staged.weight, staged.running_frequency, staged.guard_frequency, staged.exit_frequency];
        if let Some(bad) = shares.iter().find(|share| !(0.0..=1.0).contains(*share)) {
            return Err(document.error(
                format!("relay {fingerprint} has {bad} instead of a share from 0 to 1"),
                "correct it",
            ));
        }
        relays.insert(
            identity,
            Capacity {
                name: String::new(),
                country: staged.country_code.as_deref().and_then(Country::from_code),
                node: None,
                address: staged.address.as_deref().and_then(|text| text.parse().ok()),
                weight: staged.weight,
                capacity_bytes_per_s: staged.bandwidth_capacity,
                rate_bytes_per_s: staged.bandwidth_rate,
                burst_bytes: staged.bandwidth_burst,
                running: staged.running_frequency,
                guard: staged.guard_frequency,
                exit: staged.exit_frequency,
            },
        );
    }
    if relays.is_empty() {
        return Err(document.error("does not hold any relay", "give the output of `tornettools stage`"));
    }
    Ok(relays)
}

/// Reads rate, burst and observed bandwidth from server descriptors (dir-spec 2.1.1).
///
/// Descriptors lack weights, flags and running time; a relay's weight is its observed bandwidth.
///
/// # Errors
/// If the document does not hold any descriptor with a fingerprint and a bandwidth.
pub(crate) fn descriptors(document: &Document) -> Result<BTreeMap<Identity, Capacity>, DataError> {
    let mut relays = BTreeMap::new();
    let (mut name, mut address, mut identity) = ("", None, None);
    for (line, text) in document.lines() {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let fail =
            |what: &str| document.error_at(line, format!("{} is not a {what}", quote(text)), "correct it");
        match words[..] {
            ["router", nickname, ip, ..] => {
                (name, address, identity) = (nickname, ip.parse::<Ipv4Addr>().ok(), None)
            }
            ["fingerprint", ..] | ["opt", "fingerprint", ..] => {
                // Fingerprints are written in groups of four digits.
                let hex: String = words.iter().filter(|word| word.len() == 4).copied().collect();
                identity = Some(Identity::from_hex(&hex).ok_or_else(|| fail("fingerprint"))?);
            }
            ["bandwidth", rate, burst, observed] => {
                let number = |text: &str| text.parse::<u64>().map_err(|_| fail("bandwidth"));
                let capacity = Capacity {
                    name: name.to_owned(),
                    country: None,
                    node: None,
                    address,
                    weight: 0.0,
                    capacity_bytes_per_s: number(observed)?,
                    rate_bytes_per_s: number(rate)?,
                    burst_bytes: number(burst)?,
                    running: 1.0,
                    guard: 0.0,
                    exit: 0.0,
                };
                if let Some(identity) = identity.take() {
                    relays.insert(identity, capacity);
                }
            }
            _ => {}
        }
    }
    if relays.is_empty() {
        return Err(document.error(
            "does not hold any descriptor with a fingerprint and a bandwidth",
            "give server descriptors",
        ));
    }
    Ok(relays)
}

/// Reads the countries of relays from a table with the columns `fingerprint` and `cc`.
///
/// Skips relays with an unknown country (`??`).
///
/// # Errors
/// If the table is malformed, or a relay repeats.
pub fn countries(document: &Document) -> Result<BTreeMap<Identity, Country>, DataError> {
    let mut relays = BTreeMap::new();
    for row in csv::rows(document, ["fingerprint", "cc"])? {
        let [fingerprint, code] = row.values();
        let identity = Identity::from_hex(fingerprint)
            .ok_or_else(|| row.fail(format!("{} is not a relay's fingerprint", quote(fingerprint))))?;
        if let Some(country) = Country::from_code(code)
            && relays.insert(identity, country).is_some()
        {
            return Err(row.fail(format!("relay {fingerprint} repeats")));
        }
    }
    Ok(relays)
}

/// Reads `userinfo_staging_*.json`: the share of Tor's users in each country.
///
/// Skips codes that are not a country and scales the other shares to a sum of one.
///
/// # Errors
/// If the JSON is malformed, a share is outside `[0, 1]`, or all countries have zero users.
pub fn users(document: &Document) -> Result<BTreeMap<Country, f64>, DataError> {
    let shares: BTreeMap<String, f64> = json(document)?;
    let mut users = BTreeMap::new();
    for (code, share) in shares {
        if !(0.0..=1.0).contains(&share) {
            return Err(document.error(
                format!("country {} has the share {share} of users, not 0 to 1", quote(&code)),
                "correct it",
            ));
        }
        if let Some(country) = Country::from_code(&code) {
            *users.entry(country).or_insert(0.0) += share;
        }
    }
    let total: f64 = users.values().sum();
    if total <= 0.0 {
        return Err(document.error("all countries have zero users", "give the output of `tornettools stage`"));
    }
    users.values_mut().for_each(|share| *share /= total);
    Ok(users)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Document {
        Document::new("x.json", text).unwrap()
    }

    fn staging(changes: &[(&str, &str)]) -> String {
        let mut relay = BTreeMap::from([
            ("country_code", "\"DE\""),
            ("weight", "0.25"),
            ("bandwidth_capacity", "1000"),
            ("bandwidth_rate", "900"),
            ("bandwidth_burst", "2147483647"),
            ("running_frequency", "1.0"),
            ("guard_frequency", "0.5"),
            ("exit_frequency", "0.0"),
        ]);
        relay.extend(changes.iter().copied());
        let fields: Vec<String> = relay.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
        format!("{{\"relays\": {{\"{}\": {{{}}}}}}}", "0A".repeat(20), fields.join(", "))
    }

    #[test]
    fn staged_relays_are_read() {
        let relays = capacities(&text(&staging(&[]))).unwrap();
        let relay = &relays[&Identity([10; 20])];
        assert_eq!((relay.country, relay.burst_bytes), (Country::from_code("DE"), 2_147_483_647));
        assert_eq!(relay.guard, 0.5);
    }

    #[test]
    fn malformed_relays_are_refused() {
        for changes in
            [("weight", "1.5"), ("weight", "null"), ("bandwidth_rate", "-3"), ("guard_frequency", "-0.1")]
        {
            assert!(capacities(&text(&staging(&[changes]))).is_err(), "{changes:?}");
        }
        assert!(capacities(&text(&staging(&[]).replace("0A0A", "0A"))).is_err());
        assert!(capacities(&text("{\"relays\": {}}")).is_err());
    }

    #[test]
    fn descriptors_say_rate_and_observed_bandwidth() {
        let one = "router a 1.2.3.4 9001 0 0\nfingerprint 0A0A 0A0A 0A0A 0A0A 0A0A 0A0A 0A0A 0A0A 0A0A 0A0A\n\
                   bandwidth 100 200 50\nfamily $x\n";
        let relays = descriptors(&text(one)).unwrap();
        let relay = &relays[&Identity([10; 20])];
        assert_eq!((relay.rate_bytes_per_s, relay.burst_bytes, relay.capacity_bytes_per_s), (100, 200, 50));
        let (negative, short) = (one.replace("100", "-1"), one.replace("0A0A 0A0A", "0A0A"));
        for bad in ["x\n", "router a b\n", negative.as_str(), short.as_str()] {
            assert!(descriptors(&text(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn users_are_shares_of_one() {
        let users = users(&text("{\"de\": 0.25, \"us\": 0.25, \"ap\": 0.5}")).unwrap();
        assert_eq!(users.len(), 2);
        assert_eq!(users[&Country::from_code("US").unwrap()], 0.5);
        for bad in ["{\"de\": -1}", "{\"de\": \"x\"}", "{}", "{\"??\": 1}", "[]"] {
            assert!(super::users(&text(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn relays_have_countries_by_table() {
        let row = |cc: &str| format!("{},x,{cc}\n", "0A".repeat(20));
        let table = countries(&text(&format!("fingerprint,nickname,cc\n{}", row("fr")))).unwrap();
        assert_eq!(table[&Identity([10; 20])].code(), "FR");
        let twice = countries(&text(&format!("fingerprint,nickname,cc\n{}{}", row("fr"), row("de"))));
        assert_eq!(twice.unwrap_err().line, Some(3));
    }
}
