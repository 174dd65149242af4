//! Microdescriptors that a relay keeps, by digest: clients ask for lists of them (dir-spec, "General-use HTTP URLs").

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use sha2::{Digest as _, Sha256};

/// Maximum of kept microdescriptors, bytes. Those of the public network take 5 MB.
const MEMORY: usize = 16 << 20;
/// Longest microdescriptor that is kept, bytes.
const LONGEST: usize = 64 << 10;
const PATH: &str = "/tor/micro/d/";
/// Each microdescriptor begins with this keyword.
const BEGIN: &[u8] = b"onion-key";

type Digest = [u8; 32];

/// A client's request for microdescriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    digests: BTreeSet<Digest>,
    /// Whether the client takes an answer in zlib's format.
    deflated: bool,
}

impl Asked {
    /// Parses the path of a request; `None` if it asks for something else.
    pub(crate) fn parse(path: &str, encodings: &str) -> Option<Asked> {
        let list = path.strip_prefix(PATH)?;
        let (list, old) = list.strip_suffix(".z").map_or((list, false), |list| (list, true));
        let digest = |text: &str| STANDARD_NO_PAD.decode(text).ok()?.try_into().ok();
        let digests = list.split('-').map(digest).collect::<Option<_>>()?;
        let deflated = old || encodings.split(',').any(|name| name.trim().eq_ignore_ascii_case("deflate"));
        Some(Asked { digests, deflated })
    }

    /// The path of a request for these alone.
    pub(crate) fn path(digests: &[Digest]) -> String {
        let digests: Vec<String> = digests.iter().map(|digest| STANDARD_NO_PAD.encode(digest)).collect();
        format!("{PATH}{}", digests.join("-"))
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
    /// Those of a request that are not kept.
    pub(crate) fn missing(&self, asked: &Asked) -> Vec<Digest> {
        asked.digests.iter().filter(|digest| !self.kept.contains_key(*digest)).copied().collect()
    }

    /// Keeps those of a directory's answer that a request asks for, in place of those that were not used for the longest
    /// time. The digest proves each of them.
    pub(crate) fn keep(&mut self, asked: &Asked, answer: &[u8]) {
        for text in split(answer) {
            let digest: Digest = Sha256::digest(text).into();
            if text.len() > LONGEST || !asked.digests.contains(&digest) || self.kept.contains_key(&digest) {
                continue;
            }
            self.bytes += text.len();
            self.kept.insert(digest, Kept { text: Bytes::copy_from_slice(text), used: 0 });
            self.used(digest);
        }
        while self.bytes > MEMORY {
            let (_, digest) = self.uses.pop_first().expect("what is kept was used");
            let kept = self.kept.remove(&digest).expect("what was used is kept");
            self.bytes -= kept.text.len();
        }
    }

    /// The answer to a request with those that are kept; `None` without any.
    pub(crate) fn answer(&mut self, asked: &Asked) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        for digest in &asked.digests {
            if let Some(kept) = self.kept.get(digest) {
                body.extend_from_slice(&kept.text);
                self.used(*digest);
            }
        }
        if body.is_empty() {
            return None;
        }
        let mut encoding = "identity";
        if asked.deflated {
            let mut packer = ZlibEncoder::new(Vec::new(), Compression::fast());
            packer.write_all(&body).expect("memory takes all");
            (body, encoding) = (packer.finish().expect("memory takes all"), "deflate");
        }
        let length = body.len();
        let head = format!(
            "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: {encoding}\r\nContent-Length: {length}\r\n\r\n"
        );
        Some([head.as_bytes(), &body].concat())
    }

    fn used(&mut self, digest: Digest) {
        let kept = self.kept.get_mut(&digest).expect("the caller found it");
        self.uses.remove(&kept.used);
        self.last += 1;
        kept.used = self.last;
        self.uses.insert(self.last, digest);
    }
}

/// The microdescriptors of an answer's body.
fn split(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    let is_begin = |at: &usize| body[*at..].starts_with(BEGIN) && (*at == 0 || body[at - 1] == b'\n');
    let begins: Vec<usize> = (0..body.len()).filter(is_begin).collect();
    let ends: Vec<usize> = begins.iter().skip(1).copied().chain([body.len()]).collect();
    begins.into_iter().zip(ends).map(|(begin, end)| &body[begin..end])
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn text(number: usize, length: usize) -> Vec<u8> {
        let begin = format!("onion-key\nntor-onion-key {number}\nid ed25519 onion-key\n");
        [begin.as_bytes(), &b"p".repeat(length), b"\n"].concat()
    }

    fn asked(texts: &[Vec<u8>], suffix: &str, encodings: &str) -> Asked {
        let digests: Vec<Digest> = texts.iter().map(|text| Sha256::digest(text).into()).collect();
        Asked::parse(&format!("{}{suffix}", Asked::path(&digests)), encodings).unwrap()
    }

    fn body(answer: &[u8]) -> (String, Vec<u8>) {
        let at = answer.windows(4).position(|end| end == b"\r\n\r\n").unwrap();
        (String::from_utf8(answer[..at].to_vec()).unwrap(), answer[at + 4..].to_vec())
    }

    #[test]
    fn lists_are_answered_with_what_is_kept() {
        let texts: Vec<Vec<u8>> = (0..3).map(|number| text(number, 9)).collect();
        let mut kept = Microdescriptors::default();
        let all = asked(&texts, "", "");
        assert_eq!((kept.answer(&all), kept.missing(&all).len()), (None, 3));
        // A directory lacks one, and sends one that nobody asked for.
        kept.keep(&all, &[texts[2].clone(), text(7, 7), texts[0].clone()].concat());
        assert_eq!((kept.kept.len(), kept.missing(&all)), (2, vec![Sha256::digest(&texts[1]).into()]));
        let (head, answer) = body(&kept.answer(&all).unwrap());
        assert!(head.ends_with(&format!("Content-Encoding: identity\r\nContent-Length: {}", answer.len())));
        let mut both = [&texts[0][..], &texts[2]];
        both.sort_by_key(|text| Sha256::digest(text));
        assert_eq!(answer, both.concat());
        for (suffix, encodings) in [(".z", ""), ("", "gzip, deflate"), ("", "Deflate")] {
            let (head, packed) = body(&kept.answer(&asked(&texts, suffix, encodings)).unwrap());
            assert!(head.contains("Content-Encoding: deflate"), "{head}");
            let mut unpacked = Vec::new();
            flate2::read::ZlibDecoder::new(&packed[..]).read_to_end(&mut unpacked).unwrap();
            assert_eq!(unpacked, answer);
        }
    }

    #[test]
    fn other_requests_are_not_of_microdescriptors() {
        let digest = STANDARD_NO_PAD.encode([7; 32]);
        for path in ["", "/tor/micro/d/", "/tor/micro/d/x", "/tor/micro/d/.z", "/tor/keys/all"] {
            assert_eq!(Asked::parse(path, ""), None, "{path}");
        }
        assert!(Asked::parse(&format!("/tor/micro/d/{digest}-{}", &digest[1..]), "").is_none());
        assert!(Asked::parse(&format!("/tor/micro/d/{digest}-{digest}"), "").is_some());
    }

    #[test]
    fn memory_is_bounded_and_the_least_used_go() {
        let mut kept = Microdescriptors::default();
        let first = [text(0, 1000)];
        kept.keep(&asked(&first, "", ""), &first[0]);
        for number in 1..300 {
            let another = [text(number, LONGEST - 100)];
            kept.keep(&asked(&another, "", ""), &another[0]);
            assert!(kept.answer(&asked(&first, "", "")).is_some(), "it is used");
        }
        assert!(kept.bytes <= MEMORY && kept.bytes > MEMORY - LONGEST);
        assert_eq!(kept.kept.len(), kept.uses.len());
        assert_eq!(kept.bytes, kept.kept.values().map(|kept| kept.text.len()).sum::<usize>());
        let long = [text(1, LONGEST)];
        kept.keep(&asked(&long, "", ""), &long[0]);
        assert_eq!(kept.missing(&asked(&long, "", "")).len(), 1);
    }
}
