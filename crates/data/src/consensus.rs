//! A strict reader of consensuses, version 3, flavours `ns` and `microdesc`.
//!
//! See dir-spec, "Format of consensus".
//!
//! The reader requires a complete document, relays in order, and well-formed fields. It skips unknown keywords, as
//! the specification asks. It does not verify signatures; see [`authority`](crate::authority).

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use crate::document::{DataError, Document, quote, timestamp};
use crate::identity::base64;
pub use crate::identity::{Identity, MicrodescriptorDigest};

/// Maximum number of relays; the largest network so far had about 10,000.
const MAX_RELAYS: usize = 100_000;

/// Flavour of a consensus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// The full flavour, with port summaries.
    Ns,
    /// The flavour for clients, which names microdescriptors.
    Microdesc,
}

/// A consensus.
#[derive(Clone, Debug, PartialEq)]
pub struct Consensus {
    /// Its flavour.
    pub flavour: Flavour,
    /// The consensus method of the authorities.
    pub method: u32,
    /// Start of validity, seconds since 1970.
    pub valid_after: u64,
    /// Flags that the authorities voted on.
    pub known_flags: Vec<String>,
    /// Network parameters.
    pub params: BTreeMap<String, i32>,
    /// Relays, ascending by identity.
    pub relays: Vec<RouterStatus>,
    /// Weights such as `Wgg` and `Wmd`; empty if missing.
    pub bandwidth_weights: BTreeMap<String, i32>,
}

/// A relay in a consensus.
#[derive(Clone, Debug, PartialEq)]
pub struct RouterStatus {
    /// Its name, not unique.
    pub nickname: String,
    /// The digest of its RSA identity key.
    pub identity: Identity,
    /// Its IPv4 address.
    pub address: Ipv4Addr,
    /// The port for other relays and clients.
    pub or_port: u16,
    /// Flags that the authorities assigned.
    pub flags: Flags,
    /// Software version, such as `Tor 0.4.8.17`.
    pub version: Option<String>,
    /// Consensus weight, kB/s, scaled by the bandwidth authorities.
    pub bandwidth: u32,
    /// Whether too few authorities measured it. The weight is then self-reported and capped.
    pub unmeasured: bool,
    /// Exit ports (`ns` flavour only).
    pub ports: Option<PortSummary>,
    /// Digest of its microdescriptor (`microdesc` flavour only).
    pub microdescriptor: Option<MicrodescriptorDigest>,
}

/// A relay's flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u32);

macro_rules! flags {
    ($($bit:literal $method:ident $name:literal),* $(,)?) => {
        impl Flags {
            const NAMES: &[(&str, u32)] = &[$(($name, 1 << $bit)),*];
            $(#[doc = concat!("Has the flag `", $name, "`.")]
            pub fn $method(self) -> bool { self.0 & (1 << $bit) != 0 })*
        }
    };
}

flags! {
    0 authority "Authority", 1 bad_exit "BadExit", 2 exit "Exit", 3 fast "Fast", 4 guard "Guard",
    5 hsdir "HSDir", 6 middle_only "MiddleOnly", 7 named "Named", 8 no_ed_consensus "NoEdConsensus",
    9 running "Running", 10 stable "Stable", 11 stale_desc "StaleDesc", 12 sybil "Sybil",
    13 unnamed "Unnamed", 14 v2dir "V2Dir", 15 v3dir "V3Dir", 16 valid "Valid",
}

impl Flags {
    /// Parses names and skips unknown flags.
    pub fn from_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Flags {
        let bit = |name| Self::NAMES.iter().find(|(known, _)| *known == name).map_or(0, |(_, bit)| *bit);
        Flags(names.into_iter().map(bit).fold(0, |all, bit| all | bit))
    }

    /// The names of the flags that are set, in alphabetical order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.iter().filter(move |(_, bit)| self.0 & bit != 0).map(|(name, _)| *name)
    }
}

/// The `p` line: exit ports that are open to most addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSummary {
    /// Whether the ranges are accepted; otherwise they are rejected.
    pub accept: bool,
    /// Inclusive ranges, ascending.
    pub ranges: Vec<(u16, u16)>,
}

impl PortSummary {
    /// Whether the relay exits to this port.
    pub fn allows(&self, port: u16) -> bool {
        self.ranges.iter().any(|(low, high)| (*low..=*high).contains(&port)) == self.accept
    }
}

/// Reads a consensus of either flavour.
///
/// # Errors
/// If the document is not a consensus, is truncated, or a field is malformed.
pub fn read(document: &Document) -> Result<Consensus, DataError> {
    Reader { document, lines: document.lines(), line: 0, ended: false }.consensus()
}

/// The last shared random value of the authorities, if any.
pub fn shared_random(document: &Document) -> Option<[u8; 32]> {
    let line = document.lines().find_map(|(_, line)| line.strip_prefix("shared-rand-current-value "))?;
    base64(line.split(' ').nth(1)?.trim_end_matches('='))
}

/// The end of the time in which no newer consensus exists, seconds since 1970, if it is stated.
pub fn fresh_until(document: &Document) -> Option<u64> {
    document.lines().find_map(|(_, line)| timestamp(line.strip_prefix("fresh-until ")?))
}

/// Whether the document begins like a consensus.
pub fn looks_like(document: &Document) -> bool {
    let mut lines = document.lines().map(|(_, line)| line).skip_while(|line| line.starts_with("@type "));
    lines.next().is_some_and(|line| line.starts_with("network-status-version "))
}

struct Reader<'a, Lines> {
    document: &'a Document,
    lines: Lines,
    line: usize,
    ended: bool,
}

/// The keyword of a line and the rest of the line.
type Item<'a> = (&'a str, &'a str);

impl<'a, Lines: Iterator<Item = (usize, &'a str)>> Reader<'a, Lines> {
    fn fail(&self, cause: impl Into<String>, cure: &str) -> DataError {
        self.document.error_at(self.line, cause, cure)
    }

    fn bad(&self, what: &str, text: &str) -> DataError {
        self.fail(format!("{what} {}", quote(text)), "fetch the consensus again")
    }

    fn cut_off(&self, missing: &str) -> DataError {
        self.fail(format!("the consensus is cut off: {missing}"), "fetch the whole consensus")
    }

    /// The next line with a keyword. Skips objects (`-----BEGIN ...`).
    fn item(&mut self) -> Result<Option<Item<'a>>, DataError> {
        while let Some((number, line)) = self.lines.next() {
            self.line = number;
            let Some(kind) = line.strip_prefix("-----BEGIN ") else {
                let line = line.strip_prefix("opt ").unwrap_or(line);
                return Ok(Some(line.split_once(' ').unwrap_or((line, ""))));
            };
            let end = format!("-----END {kind}");
            loop {
                let Some((number, line)) = self.lines.next() else {
                    return Err(self.cut_off("an object does not end"));
                };
                self.line = number;
                if line == end {
                    break;
                }
                if !line.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b)) {
                    return Err(self.bad("an object holds", line));
                }
            }
        }
        self.ended = true;
        Ok(None)
    }

    fn consensus(mut self) -> Result<Consensus, DataError> {
        let mut item = self.item()?;
        // CollecTor precedes documents with an annotation.
        while let Some(("@type", _)) = item {
            item = self.item()?;
        }
        let flavour = match item {
            Some(("network-status-version", "3")) => Flavour::Ns,
            Some(("network-status-version", "3 microdesc")) => Flavour::Microdesc,
            Some(("network-status-version", other)) => {
                let cause = format!("network status version {} is not supported", quote(other));
                return Err(self.fail(cause, "give a version 3 consensus, plain or microdesc"));
            }
            _ => {
                let cause = "does not begin with `network-status-version`";
                return Err(
                    self.fail(cause, "give a Tor consensus (cached-consensus, or one from CollecTor)")
                );
            }
        };
        let text = self.document.text();
        if !text.ends_with('\n') {
            // Where it ends, a shortened word would be the wrong cause.
            self.line = text.lines().count();
            return Err(self.cut_off("its last line is incomplete"));
        }
        let mut consensus = Consensus {
            flavour,
            method: 1,
            valid_after: 0,
            known_flags: Vec::new(),
            params: BTreeMap::new(),
            relays: Vec::new(),
            bandwidth_weights: BTreeMap::new(),
        };
        let mut item = self.preamble(&mut consensus)?;
        while let Some(("r", rest)) = item {
            let (relay, next) = self.relay(&consensus, rest)?;
            consensus.relays.push(relay);
            if consensus.relays.len() > MAX_RELAYS {
                return Err(self.fail(format!("has more than {MAX_RELAYS} relays"), "give a real consensus"));
            }
            item = next;
        }
        if consensus.relays.is_empty() {
            return Err(self.fail("does not list any relay", "give a whole consensus"));
        }
        consensus.relays.shrink_to_fit();
        self.footer(&mut consensus, item)?;
        Ok(consensus)
    }

    /// Reads the preamble; returns the item after it.
    fn preamble(&mut self, consensus: &mut Consensus) -> Result<Option<Item<'a>>, DataError> {
        let mut seen: Vec<&str> = Vec::new();
        loop {
            let item = self.item()?;
            let Some((keyword, rest)) = item else {
                return Err(self.cut_off("the relays are missing"));
            };
            if keyword == "r" || keyword == "directory-footer" {
                for needed in ["vote-status", "valid-after", "known-flags"] {
                    if !seen.contains(&needed) {
                        return Err(
                            self.fail(format!("the line `{needed}` is missing"), "give a whole consensus")
                        );
                    }
                }
                return Ok(item);
            }
            // dir-spec allows these keywords only once.
            let once = ["vote-status", "consensus-method", "valid-after", "known-flags", "params"];
            if once.contains(&keyword) {
                if seen.contains(&keyword) {
                    return Err(self.bad("a second line", keyword));
                }
                seen.push(keyword);
            }
            match keyword {
                "vote-status" if rest != "consensus" => {
                    let cause = format!("is a {}, not a consensus", quote(rest));
                    return Err(self.fail(cause, "give the consensus of these votes"));
                }
                "consensus-method" => {
                    consensus.method = rest.parse().map_err(|_| self.bad("consensus-method", rest))?;
                }
                "valid-after" => {
                    consensus.valid_after = timestamp(rest).ok_or_else(|| self.bad("valid-after", rest))?;
                }
                "known-flags" => consensus.known_flags = rest.split(' ').map(str::to_owned).collect(),
                "params" => consensus.params = self.numbers("params", rest)?,
                _ => {}
            }
        }
    }

    /// Reads a relay from its `r` line on; returns it with the item after it.
    fn relay(&mut self, before: &Consensus, r: &str) -> Result<(RouterStatus, Option<Item<'a>>), DataError> {
        let mut relay = self.r_line(before.flavour, r)?;
        if before.relays.last().is_some_and(|last| last.identity >= relay.identity) {
            return Err(
                self.bad("relays are out of order or repeated at identity", &relay.identity.to_string())
            );
        }
        let (mut flags, mut weight) = (false, false);
        loop {
            let item = self.item()?;
            let Some((keyword, rest)) = item else {
                return Err(self.cut_off("it ends among the relays"));
            };
            match keyword {
                // dir-spec: a relay has exactly one `s` line and at most one `w` line.
                "r" | "directory-footer" if !flags => {
                    return Err(self.bad("the line `s` is missing for relay", &relay.nickname));
                }
                "r" | "directory-footer" => return Ok((relay, item)),
                "s" if flags => return Err(self.bad("a second line `s` for relay", &relay.nickname)),
                "s" => {
                    flags = true;
                    for flag in rest.split_ascii_whitespace() {
                        if !before.known_flags.iter().any(|known| known == flag) {
                            return Err(self.bad("`known-flags` does not list flag", flag));
                        }
                    }
                    relay.flags = Flags::from_names(rest.split_ascii_whitespace());
                }
                "v" => relay.version = Some(rest.to_owned()),
                "w" if weight => return Err(self.bad("a second line `w` for relay", &relay.nickname)),
                "w" => {
                    weight = true;
                    (relay.bandwidth, relay.unmeasured) = self.weight(rest)?;
                }
                "m" if before.flavour == Flavour::Microdesc => {
                    let digest = base64(rest).ok_or_else(|| self.bad("microdescriptor digest", rest))?;
                    relay.microdescriptor = Some(digest);
                }
                "p" => relay.ports = Some(ports(rest).ok_or_else(|| self.bad("port summary", rest))?),
                _ => {}
            }
        }
    }

    fn r_line(&self, flavour: Flavour, r: &str) -> Result<RouterStatus, DataError> {
        let mut fields: Vec<&str> = r.split(' ').collect();
        if flavour == Flavour::Ns && fields.len() >= 3 {
            fields.remove(2); // the descriptor's digest
        }
        let [nickname, identity, date, time, address, or_port, _, ..] = fields[..] else {
            return Err(self.bad("too few fields in relay", r));
        };
        let named = (1..=19).contains(&nickname.len()) && nickname.bytes().all(|b| b.is_ascii_alphanumeric());
        if !named {
            return Err(self.bad("a bad nickname:", nickname));
        }
        if timestamp(&format!("{date} {time}")).is_none() {
            return Err(self.bad("a bad publication time:", &format!("{date} {time}")));
        }
        Ok(RouterStatus {
            nickname: nickname.to_owned(),
            identity: Identity::from_base64(identity).ok_or_else(|| self.bad("a bad identity:", identity))?,
            address: address.parse().map_err(|_| self.bad("a bad IPv4 address:", address))?,
            or_port: or_port.parse().map_err(|_| self.bad("a bad ORPort:", or_port))?,
            flags: Flags::default(),
            version: None,
            bandwidth: 0,
            unmeasured: true,
            ports: None,
            microdescriptor: None,
        })
    }

    /// Parses `Bandwidth=3870 Unmeasured=1`; skips other keys.
    fn weight(&self, rest: &str) -> Result<(u32, bool), DataError> {
        let (mut bandwidth, mut unmeasured) = (None, false);
        for pair in rest.split_ascii_whitespace() {
            match pair.split_once('=') {
                Some(("Bandwidth", value)) => {
                    bandwidth = Some(value.parse().map_err(|_| self.bad("a bad bandwidth:", value))?);
                }
                Some(("Unmeasured", value)) => unmeasured = value == "1",
                Some(_) => {}
                None => return Err(self.bad("a weight without a value:", pair)),
            }
        }
        bandwidth.map(|kb| (kb, unmeasured)).ok_or_else(|| self.bad("a missing bandwidth in", rest))
    }

    /// Parses `name=number name=number ...`.
    fn numbers(&self, what: &str, rest: &str) -> Result<BTreeMap<String, i32>, DataError> {
        let mut numbers = BTreeMap::new();
        for pair in rest.split_ascii_whitespace() {
            let (name, value) =
                pair.split_once('=').ok_or_else(|| self.bad(&format!("{what} without a value:"), pair))?;
            let value = value.parse().map_err(|_| self.bad(&format!("{what} with a bad number:"), pair))?;
            if numbers.insert(name.to_owned(), value).is_some() {
                return Err(self.bad(&format!("{what} has a second"), name));
            }
        }
        Ok(numbers)
    }

    fn footer(&mut self, consensus: &mut Consensus, item: Option<Item<'a>>) -> Result<(), DataError> {
        debug_assert!(matches!(item, Some(("directory-footer", _))));
        let mut signatures = 0;
        while let Some((keyword, rest)) = self.item()? {
            match keyword {
                "bandwidth-weights" => {
                    consensus.bandwidth_weights = self.numbers("bandwidth-weights", rest)?;
                    if let Some((name, _)) = consensus.bandwidth_weights.iter().find(|(_, v)| **v < 0) {
                        return Err(self.bad("negative bandwidth weight", name));
                    }
                }
                "directory-signature" => signatures += 1,
                "r" => return Err(self.bad("a relay after the footer:", rest)),
                _ => {}
            }
        }
        let text = self.document.text();
        if signatures == 0 || !text.trim_end().ends_with("-----END SIGNATURE-----") {
            return Err(self.cut_off("it does not end with a signature"));
        }
        Ok(())
    }
}

/// Parses `reject 25,119,135-139`.
fn ports(text: &str) -> Option<PortSummary> {
    let (verb, list) = text.split_once(' ')?;
    if !matches!(verb, "accept" | "reject") {
        return None;
    }
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for range in list.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (low, high) = (low.parse().ok()?, high.parse().ok()?);
        if low > high || ranges.last().is_some_and(|(_, last)| *last >= low) {
            return None;
        }
        ranges.push((low, high));
    }
    Some(PortSummary { accept: verb == "accept", ranges })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_summaries_accept_or_reject() {
        let most = ports("reject 25,119,135-139").unwrap();
        assert!(most.allows(80) && !most.allows(137) && !most.allows(25));
        let web = ports("accept 80,443").unwrap();
        assert!(web.allows(443) && !web.allows(22));
        for bad in ["reject", "accept 80-79", "accept 1,1", "accept 70000", "maybe 80", "accept 80,", ""] {
            assert_eq!(ports(bad), None, "{bad}");
        }
    }
}
