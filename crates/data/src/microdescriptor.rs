//! Microdescriptors (dir-spec, "Computing microdescriptors"; tor's `cached-microdescs`): the families of relays.
//!
//! A consensus of the `microdesc` flavour refers to them by digest. A family is mutual: two relays are relatives if
//! each names the fingerprint of the other, or if they share a family key. The relation is not transitive.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};

use crate::consensus::{Identity, MicrodescriptorDigest, RouterStatus};
use crate::descriptor::named_family;
use crate::document::{DataError, Document};
use crate::kinds;

/// Maximum length; authorities accept descriptors of up to 20,000 bytes.
const MAX_BYTES: usize = 20_000;

/// Maximum number of broken microdescriptors in a message; the rest are counted.
const MAX_NAMED: usize = 5;

/// The families that the microdescriptors of a file declare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Microdescriptors {
    declared: BTreeMap<MicrodescriptorDigest, Declared>,
    /// Number of skipped, broken microdescriptors.
    pub broken: usize,
    /// Line and mistake of the first of them.
    pub named: Vec<String>,
}

/// The family that a relay declares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Declared {
    family: BTreeSet<Identity>,
    keys: BTreeSet<String>,
}

/// Mutual families.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Families {
    /// The relatives of each relay that has some.
    pub relatives: BTreeMap<Identity, BTreeSet<Identity>>,
    /// Number of relays without a microdescriptor, so with unknown families.
    pub missing: usize,
}

/// The microdescriptors of a text, each with the number of its first line. One begins at `onion-key` and ends at the next one or
/// at an annotation.
pub fn texts(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let begins = |line: &str| line.split_ascii_whitespace().next() == Some("onion-key");
    let mut lines = (1..).zip(text.split_inclusive('\n')).peekable();
    let mut offset = 0;
    std::iter::from_fn(move || {
        let first = loop {
            let (number, line) = lines.next()?;
            offset += line.len();
            if begins(line) {
                break (number, offset - line.len());
            }
        };
        while let Some((_, line)) = lines.next_if(|(_, line)| !begins(line) && !line.starts_with('@')) {
            offset += line.len();
        }
        Some((first.0, &text[first.1..offset]))
    })
}

/// Reads a file of microdescriptors, with or without annotations of tor's cache.
///
/// Skips broken microdescriptors.
///
/// # Errors
/// If the file does not hold any valid microdescriptor.
pub fn read(document: &Document) -> Result<Microdescriptors, DataError> {
    kinds::expect(document, "microdescriptors", &[kinds::MICRODESCRIPTORS])?;
    let mut read = Microdescriptors::default();
    for (line, text) in texts(document.text()) {
        read.add(line, text);
    }
    if read.declared.is_empty() {
        let cause = match read.named.first() {
            Some(first) => format!("holds only broken microdescriptors ({first})"),
            None => "does not hold microdescriptors".into(),
        };
        return Err(document.error(cause, "give tor's cached-microdescs"));
    }
    Ok(read)
}

/// Reads microdescriptors and the families of these relays.
///
/// # Errors
/// As [`read`], or if none of the relays has a microdescriptor here.
pub fn families(
    document: &Document,
    relays: &[RouterStatus],
) -> Result<(Microdescriptors, Families), DataError> {
    let read = read(document)?;
    let families = read.families(relays);
    if families.missing == relays.len() {
        let cause = "lacks all microdescriptors of the consensus";
        let cure = "give a consensus of the microdesc flavour and the cached-microdescs beside it";
        return Err(document.error(cause, cure));
    }
    Ok((read, families))
}

impl Microdescriptors {
    fn add(&mut self, line: usize, text: &str) {
        match declared(text) {
            Ok(declared) => {
                self.declared.insert(Sha256::digest(text).into(), declared);
            }
            Err(cause) => {
                self.broken += 1;
                if self.named.len() < MAX_NAMED {
                    self.named.push(format!("line {line}: {cause}"));
                }
            }
        }
    }

    /// The families of these relays, found by the digests in the consensus.
    pub fn families(&self, relays: &[RouterStatus]) -> Families {
        let mut of = BTreeMap::new();
        for relay in relays {
            let declared = relay.microdescriptor.and_then(|digest| self.declared.get(&digest));
            of.extend(declared.map(|declared| (relay.identity, declared)));
        }
        let mut families = Families { missing: relays.len() - of.len(), ..Families::default() };
        let mut holders: BTreeMap<&str, BTreeSet<Identity>> = BTreeMap::new();
        for (identity, declared) in &of {
            for other in &declared.family {
                if other != identity && of.get(other).is_some_and(|them| them.family.contains(identity)) {
                    families.relatives.entry(*identity).or_default().insert(*other);
                }
            }
            for key in &declared.keys {
                holders.entry(key).or_default().insert(*identity);
            }
        }
        // Family keys are proven, so a shared key is mutual by itself.
        for holders in holders.values().filter(|holders| holders.len() > 1) {
            for one in holders {
                let others = holders.iter().filter(|other| *other != one);
                families.relatives.entry(*one).or_default().extend(others);
            }
        }
        families
    }
}

/// Parses a microdescriptor; `Err` says why it is broken.
fn declared(text: &str) -> Result<Declared, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("longer than {MAX_BYTES} bytes"));
    }
    if !text.ends_with('\n') {
        return Err("cut off: the last line does not end".into());
    }
    let (mut family, mut keys) = (None, None);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(kind) = line.strip_prefix("-----BEGIN ") {
            let end = format!("-----END {kind}");
            if !lines.any(|line| line == end) {
                return Err("cut off: an object does not end".into());
            }
        }
        let (keyword, rest) = line.split_once(' ').unwrap_or((line, ""));
        let before = match keyword {
            "family" => family.replace(named_family(rest)).is_some(),
            "family-ids" => {
                keys.replace(rest.split_ascii_whitespace().map(str::to_owned).collect()).is_some()
            }
            _ => false,
        };
        if before {
            return Err(format!("a second line `{keyword}`"));
        }
    }
    Ok(Declared { family: family.unwrap_or_default(), keys: keys.unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consensus;

    const TEXT: &str = include_str!("../fixtures/microdescriptors");

    fn text(text: &str) -> Result<Microdescriptors, DataError> {
        read(&Document::new("cached-microdescs", text)?)
    }

    /// The pairs of relatives by nickname in the test consensus, and the number of unknown relays.
    fn families(microdescriptors: &Microdescriptors) -> (Vec<String>, usize) {
        let document = Document::new("consensus", include_str!("../fixtures/consensus-microdesc")).unwrap();
        let relays = consensus::read(&document).unwrap().relays;
        let name = |identity: &Identity| {
            relays.iter().find(|relay| relay.identity == *identity).unwrap().nickname.clone()
        };
        let families = microdescriptors.families(&relays);
        let relatives = families.relatives.iter();
        let pair = |(one, others): (&Identity, &BTreeSet<Identity>)| {
            others.iter().map(|other| format!("{} {}", name(one), name(other))).collect::<Vec<_>>()
        };
        let mut pairs: Vec<String> = relatives.flat_map(pair).collect();
        pairs.sort();
        (pairs, families.missing)
    }

    #[test]
    fn families_are_mutual_and_not_transitive() {
        // Charlie names golf, and delta names hotel, without return. India is a relative of delta, not of charlie.
        let pairs =
            ["bravo golf", "charlie delta", "delta charlie", "delta india", "golf bravo", "india delta"];
        let read = text(TEXT).unwrap();
        assert_eq!(families(&read), (pairs.map(str::to_owned).to_vec(), 7));
        assert_eq!((read.broken, read.named), (1, vec!["line 24: a second line `family`".to_owned()]));
    }

    #[test]
    fn a_microdescriptor_counts_under_its_digest_alone() {
        let other = TEXT.replace("ntor-onion-key madeupdelta", "ntor-onion-key anotherdelta");
        let pairs = ["bravo golf", "golf bravo"].map(str::to_owned).to_vec();
        assert_eq!(families(&text(&other).unwrap()), (pairs, 8));
    }

    #[test]
    fn broken_microdescriptors_are_skipped_by_name() {
        let long = format!("onion-key\nfamily {}\n", "x ".repeat(MAX_BYTES));
        let open = "onion-key\n-----BEGIN RSA PUBLIC KEY-----\nAAAA\n";
        for (broken, cause) in [(long.as_str(), "longer"), (open, "object"), ("onion-key\nid x", "last line")]
        {
            let read = text(&format!("{TEXT}{broken}")).unwrap();
            assert_eq!(read.broken, 2);
            assert!(
                read.named[1].starts_with("line 44: ") && read.named[1].contains(cause),
                "{:?}",
                read.named
            );
            assert_eq!(families(&read).0.len(), 6);
            assert!(text(broken).unwrap_err().cause.contains(cause));
        }
        let many = text(&format!("{TEXT}{}", open.repeat(1000))).unwrap();
        assert_eq!((many.broken, many.named.len()), (1001, MAX_NAMED));
        assert!(text("hello\n").unwrap_err().cause.contains("not hold microdescriptors"));
    }
}
