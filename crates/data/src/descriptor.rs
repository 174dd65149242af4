//! Server descriptors and extra-infos (formats: dir-spec).
//!
//! The reader takes only the lines with bandwidths, times and families, and does not verify signatures. The crates of
//! the Tor project read whole documents, but would cost more build time than this tool.

use std::collections::BTreeSet;

use crate::consensus::Identity;
use crate::document::timestamp;

/// A relay's server descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The relay's name, not unique.
    pub nickname: String,
    /// The digest of its RSA identity key.
    pub identity: Identity,
    /// Time of publication, seconds since 1970.
    pub published: u64,
    /// BandwidthRate, bytes/s.
    pub rate: u64,
    /// BandwidthBurst, bytes.
    pub burst: u64,
    /// Observed bandwidth, bytes/s: the maximum over ten seconds of the last five days.
    pub observed: u64,
    /// The other members of its declared family.
    pub family: BTreeSet<Identity>,
}

impl Descriptor {
    /// Advertised bandwidth, bytes/s: the least of rate, burst and observed bandwidth.
    pub fn advertised(&self) -> u64 {
        self.rate.min(self.burst).min(self.observed)
    }
}

/// A relay's history of written bytes from an extra-info.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtraInfo {
    /// The digest of its RSA identity key.
    pub identity: Identity,
    /// Time of publication, seconds since 1970.
    pub published: u64,
    /// End of the history, seconds since 1970.
    pub end: u64,
    /// Length of an interval of the history, seconds.
    pub interval: u64,
    /// Bytes written in each interval, oldest first.
    pub written: Vec<u64>,
}

/// Reads a server descriptor; `Err` says what is wrong with it.
///
/// # Errors
/// If a needed line is missing, malformed or repeated, or the document is truncated.
///
/// # Examples
///
/// ```
/// let text = "router anna 10.0.0.1 9001 0 0\npublished 2019-08-01 12:00:00\n\
///     fingerprint 0A0A 0A0A 0A0A 0A0A 0A0A 0A0A 0A0A 0A0A 0A0A 0A0A\n\
///     bandwidth 2000 3000 1500\nrouter-signature\n";
/// let relay = tidegate_data::descriptor::read(text).unwrap();
/// assert_eq!(relay.advertised(), 1500);
/// ```
pub fn read(text: &str) -> Result<Descriptor, String> {
    let mut lines = Lines::of(text, &["router", "published", "fingerprint", "bandwidth", "family"]);
    let router = lines.need("router")?;
    let nickname = router.split(' ').next().unwrap_or_default().to_owned();
    let published = lines.time("published")?;
    let fingerprint: String = lines.need("fingerprint")?.split_ascii_whitespace().collect();
    let identity =
        Identity::from_hex(&fingerprint).ok_or_else(|| "`fingerprint` is not 40 digits".to_owned())?;
    let bandwidth = lines.need("bandwidth")?;
    let numbers: Option<Vec<u64>> = bandwidth.split_ascii_whitespace().map(|n| n.parse().ok()).collect();
    let Some([rate, burst, observed]) = numbers.as_deref() else {
        return Err(format!("`bandwidth` is not three numbers: `{bandwidth}`"));
    };
    lines.signed()?;
    let mut family = named_family(lines.last("family").unwrap_or_default());
    family.remove(&identity);
    let (rate, burst, observed) = (*rate, *burst, *observed);
    Ok(Descriptor { nickname, identity, published, rate, burst, observed, family })
}

/// Parses a `family` line. Skips bare nicknames, which prove nothing; `$digest=name` and `$digest~name` count.
pub(crate) fn named_family(names: &str) -> BTreeSet<Identity> {
    let digests = names.split_ascii_whitespace().filter(|name| name.starts_with('$'));
    digests.filter_map(|name| name.get(..41)).filter_map(Identity::from_hex).collect()
}

/// Reads an extra-info; `Ok(None)` without a history of written bytes.
///
/// # Errors
/// If a needed line is missing, malformed or repeated, or the document is truncated.
pub fn read_extra_info(text: &str) -> Result<Option<ExtraInfo>, String> {
    let mut lines = Lines::of(text, &["extra-info", "published", "write-history"]);
    let head = lines.need("extra-info")?;
    let digest = head.split(' ').nth(1).unwrap_or_default();
    let identity = Identity::from_hex(digest)
        .ok_or_else(|| "`extra-info` lacks a fingerprint of 40 hexadecimal digits".to_owned())?;
    let published = lines.time("published")?;
    lines.signed()?;
    let Some(history) = lines.last("write-history") else { return Ok(None) };
    let malformed = || format!("`write-history` is malformed: `{history}`");
    let (end, rest) = history.split_at_checked(19).ok_or_else(malformed)?;
    let end = timestamp(end).ok_or_else(malformed)?;
    let (interval, bytes) =
        rest.trim_start().strip_prefix('(').and_then(|rest| rest.split_once(" s)")).ok_or_else(malformed)?;
    let interval: u64 = interval.parse().ok().filter(|interval| *interval > 0).ok_or_else(malformed)?;
    let bytes = bytes.trim().split(',').filter(|number| !number.is_empty());
    let written: Option<Vec<u64>> = bytes.map(|number| number.parse().ok()).collect();
    let written = written.ok_or_else(malformed)?;
    Ok(Some(ExtraInfo { identity, published, end, interval, written }))
}

/// The lines of a document with the wanted keywords.
struct Lines<'a> {
    found: Vec<(&'a str, &'a str)>,
    twice: Option<&'a str>,
    signed: bool,
}

impl<'a> Lines<'a> {
    fn of(text: &'a str, keywords: &[&str]) -> Lines<'a> {
        let mut lines = Lines { found: Vec::new(), twice: None, signed: false };
        for line in text.lines() {
            // Documents before 2010 mark new keywords with `opt`.
            let line = line.strip_prefix("opt ").unwrap_or(line);
            let (keyword, rest) = line.split_once(' ').unwrap_or((line, ""));
            if keyword == "router-signature" {
                lines.signed = true;
            } else if keywords.contains(&keyword) {
                if lines.last(keyword).is_some() {
                    lines.twice = Some(keyword);
                }
                lines.found.push((keyword, rest));
            }
        }
        lines
    }

    fn last(&self, keyword: &str) -> Option<&'a str> {
        self.found.iter().rev().find(|(known, _)| *known == keyword).map(|(_, rest)| *rest)
    }

    fn need(&mut self, keyword: &str) -> Result<&'a str, String> {
        match self.twice {
            Some(keyword) => Err(format!("a second line `{keyword}`")),
            None => self.last(keyword).ok_or_else(|| format!("the line `{keyword}` is missing")),
        }
    }

    fn time(&mut self, keyword: &str) -> Result<u64, String> {
        let text = self.need(keyword)?;
        timestamp(text).ok_or_else(|| format!("`{keyword}` is no time: `{text}`"))
    }

    fn signed(&self) -> Result<(), String> {
        if self.signed { Ok(()) } else { Err("is cut off: `router-signature` is missing".into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "@type server-descriptor 1.0\nrouter anna 10.0.0.1 9001 0 0\nplatform Tor\n\
        published 2019-08-01 12:00:00\nopt fingerprint 0A0A 0A0A 0A0A 0A0A 0A0A 0A0A 0A0A 0A0A 0A0A 0A0A\n\
        bandwidth 2000 3000 1500\nfamily $0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B~bert carl\n\
        reject *:*\nrouter-signature\n-----BEGIN SIGNATURE-----\n";

    #[test]
    fn a_descriptor_is_read() {
        let relay = read(TEXT).unwrap();
        assert_eq!((relay.nickname.as_str(), relay.identity), ("anna", Identity([10; 20])));
        assert_eq!((relay.published, relay.advertised()), (1_564_660_800, 1500));
        assert_eq!(relay.family, BTreeSet::from([Identity([11; 20])]));
    }

    #[test]
    fn broken_descriptors_are_refused_with_the_line() {
        for (find, put, cause) in [
            ("bandwidth 2000 3000 1500", "bandwidth 2000 3000", "three numbers"),
            ("bandwidth 2000 3000 1500", "bandwidth 2000 -1 1500", "three numbers"),
            ("bandwidth 2000 3000 1500", "x", "`bandwidth` is missing"),
            ("reject *:*", "bandwidth 1 1 1", "second line `bandwidth`"),
            ("12:00:00", "12:61:00", "no time"),
            (" 0A0A\nbandwidth", "\nbandwidth", "40 digits"),
            ("router-signature", "router", "second line `router`"),
            ("router-signature\n", "\n", "cut off"),
        ] {
            let error = read(&TEXT.replacen(find, put, 1)).unwrap_err();
            assert!(error.contains(cause), "{find} -> {put}: {error}");
        }
    }

    #[test]
    fn an_extra_info_is_read() {
        let text = format!(
            "extra-info anna {}\npublished 2019-08-01 12:00:00\n\
            write-history 2019-08-01 11:45:00 (900 s) 90000,180000\nrouter-signature\n",
            "0A".repeat(20)
        );
        let info = read_extra_info(&text).unwrap().unwrap();
        assert_eq!((info.interval, info.written.as_slice()), (900, &[90_000, 180_000][..]));
        assert_eq!(read_extra_info(&text.replace("write-history", "read-history")).unwrap(), None);
        for bad in [text.replace("900", "0"), text.replace(",", ";"), text.replace("(900 s)", "900")] {
            assert!(read_extra_info(&bad).unwrap_err().contains("write-history"));
        }
    }
}
