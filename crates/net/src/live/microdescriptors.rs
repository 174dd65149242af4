//! Microdescriptors that a relay keeps, by digest: clients ask for lists of them (dir-spec, "General-use HTTP URLs").

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use sha2::{Digest as _, Sha256};
use tidegate_data::microdescriptor::texts;

/// Maximum of kept microdescriptors, bytes. Those of the public network take 5 MB.
const MEMORY: usize = 16 << 20;
/// Longest microdescriptor that is kept, bytes.
const LONGEST: usize = 64 << 10;
const PATH: &str = "/tor/micro/d/";

pub(crate) type Digest = [u8; 32];

/// A client's request for microdescriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct List {
    digests: BTreeSet<Digest>,
    /// Whether the client accepts zlib's format.
    deflated: bool,
}

impl List {
    /// A list of these.
    pub(crate) fn of(digests: BTreeSet<Digest>) -> List {
        List { digests, deflated: false }
    }

    /// Parses the path of a request; `None` if it asks for something else.
    pub(crate) fn parse(path: &str, encodings: &str) -> Option<List> {
        let list = path.strip_prefix(PATH)?;
        let (list, old) = list.strip_suffix(".z").map_or((list, false), |list| (list, true));
        let digest = |text: &str| STANDARD_NO_PAD.decode(text).ok()?.try_into().ok();
        let digests = list.split('-').map(digest).collect::<Option<_>>()?;
        let deflated = old || encodings.split(',').any(|name| name.trim().eq_ignore_ascii_case("deflate"));
        Some(List { digests, deflated })
    }

    /// The path of a request for these alone.
    pub(crate) fn path(&self) -> String {
        let digests: Vec<String> = self.digests.iter().map(|digest| STANDARD_NO_PAD.encode(digest)).collect();
        format!("{PATH}{}", digests.join("-"))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.digests.is_empty()
    }

    /// The microdescriptors of this list in a directory's answer. The digest proves each of them.
    pub(crate) fn proved(&self, answer: &[u8]) -> Vec<Bytes> {
        let texts = texts(str::from_utf8(answer).unwrap_or_default()).map(|(_, text)| text.as_bytes());
        texts.filter(|text| self.digests.contains(&digest_of(text))).map(Bytes::copy_from_slice).collect()
    }

    /// The encoding and the body of an answer.
    pub(crate) fn body(&self, texts: &[Bytes]) -> (&'static str, Vec<u8>) {
        let body = texts.concat();
        if !self.deflated {
            return ("identity", body);
        }
        let mut packer = ZlibEncoder::new(Vec::new(), Compression::fast());
        packer.write_all(&body).expect("memory takes all");
        ("deflate", packer.finish().expect("memory takes all"))
    }
}

struct Kept {
    text: Bytes,
    /// Number of the last use.
    used: u64,
}

/// The microdescriptors.
#[derive(Default)]
pub(crate) struct Microdescriptors {
    kept: BTreeMap<Digest, Kept>,
    /// Digests by their last use.
    uses: BTreeMap<u64, Digest>,
    bytes: usize,
    last: u64,
}

impl Microdescriptors {
    /// The kept ones of a list, and a list of the others.
    pub(crate) fn find(&mut self, list: &List) -> (Vec<Bytes>, List) {
        let (mut found, mut missing) =
            (Vec::new(), List { digests: BTreeSet::new(), deflated: list.deflated });
        for digest in &list.digests {
            match self.kept.get(digest).map(|kept| kept.text.clone()) {
                Some(text) => {
                    found.push(text);
                    self.used(*digest);
                }
                None => drop(missing.digests.insert(*digest)),
            }
        }
        (found, missing)
    }

    /// Keeps microdescriptors in place of those that were not used for the longest time.
    pub(crate) fn keep(&mut self, texts: &[Bytes]) {
        for text in texts.iter().filter(|text| text.len() <= LONGEST) {
            let digest = digest_of(text);
            if !self.kept.contains_key(&digest) {
                self.bytes += text.len();
                self.kept.insert(digest, Kept { text: text.clone(), used: 0 });
            }
            self.used(digest);
        }
        while self.bytes > MEMORY {
            let (_, digest) = self.uses.pop_first().expect("what is kept was used");
            let kept = self.kept.remove(&digest).expect("what was used is kept");
            self.bytes -= kept.text.len();
        }
    }

    fn used(&mut self, digest: Digest) {
        let kept = self.kept.get_mut(&digest).expect("the caller found it");
        self.uses.remove(&kept.used);
        self.last += 1;
        kept.used = self.last;
        self.uses.insert(self.last, digest);
    }
}

/// The digest by which a consensus names a microdescriptor.
pub(crate) fn digest_of(text: &[u8]) -> Digest {
    Sha256::digest(text).into()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn text(number: usize, length: usize) -> Bytes {
        let begin = format!("onion-key\nntor-onion-key {number}\nid ed25519 onion-key\n");
        [begin.as_bytes(), &b"p".repeat(length), b"\n"].concat().into()
    }

    fn list(texts: &[Bytes]) -> List {
        List { digests: texts.iter().map(|text| digest_of(text)).collect(), deflated: false }
    }

    #[test]
    fn lists_are_answered_with_what_is_kept() {
        let texts: Vec<Bytes> = (0..3).map(|number| text(number, 9)).collect();
        let mut kept = Microdescriptors::default();
        let all = list(&texts);
        assert_eq!(kept.find(&all), (Vec::new(), all.clone()));
        // The directory sends two of the list and one that is not on it.
        let answer = [b"HTTP/1.0 200 OK\r\n\r\n", &texts[2][..], &text(7, 7), &texts[0]].concat();
        let proved = all.proved(&answer);
        assert_eq!(proved, [texts[2].clone(), texts[0].clone()]);
        kept.keep(&proved);
        let (found, missing) = kept.find(&all);
        assert_eq!((found.len(), missing), (2, list(&texts[1..2])));
        assert_eq!(all.body(&found), ("identity", found.concat()));
        for (suffix, encodings) in [(".z", ""), ("", "gzip, deflate"), ("", "Deflate")] {
            let asked = List::parse(&format!("{}{suffix}", all.path()), encodings).unwrap();
            let (encoding, packed) = asked.body(&found);
            assert_eq!(encoding, "deflate");
            let mut unpacked = Vec::new();
            flate2::read::ZlibDecoder::new(&packed[..]).read_to_end(&mut unpacked).unwrap();
            assert_eq!(unpacked, found.concat());
        }
    }

    #[test]
    fn other_requests_are_not_of_microdescriptors() {
        let digest = STANDARD_NO_PAD.encode([7; 32]);
        for path in ["", "/tor/micro/d/", "/tor/micro/d/x", "/tor/micro/d/.z", "/tor/keys/all"] {
            assert_eq!(List::parse(path, ""), None, "{path}");
        }
        assert!(List::parse(&format!("/tor/micro/d/{digest}-{}", &digest[1..]), "").is_none());
        assert!(List::parse(&format!("/tor/micro/d/{digest}-{digest}"), "").is_some());
    }

    #[test]
    fn memory_is_bounded_and_the_least_used_go() {
        let mut kept = Microdescriptors::default();
        let first = [text(0, 1000)];
        kept.keep(&first);
        for number in 1..300 {
            kept.keep(&[text(number, LONGEST - 100)]);
            assert!(kept.find(&list(&first)).1.is_empty(), "it is used");
        }
        assert!(kept.bytes <= MEMORY && kept.bytes > MEMORY - LONGEST);
        assert_eq!(kept.kept.len(), kept.uses.len());
        assert_eq!(kept.bytes, kept.kept.values().map(|kept| kept.text.len()).sum::<usize>());
        let long = [text(1, LONGEST)];
        kept.keep(&long);
        assert!(kept.find(&list(&long)).0.is_empty());
    }
}
