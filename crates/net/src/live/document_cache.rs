//! Directory documents that a relay keeps for its directory streams: one answer of the authority serves all clients
//! (dir-spec, "General-use HTTP URLs").
//!
//! Times are seconds since 1970.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tidegate_control::units::Time;

use super::allowances::Allowances;
use super::microdescriptors::Microdescriptors;

/// Maximum of cached answers, bytes. The public network's consensus takes 3 MB.
const MEMORY: usize = 64 << 20;
/// Maximum of cached answers and of those that streams still send, bytes. Above it, streams get their answers from the
/// authority.
const HELD: usize = 2 * MEMORY;
/// Maximum number of cached answers.
const PLACES: usize = 4096;
/// Bytes that an answer takes beside its text and the request.
const PLACE: usize = 256;
/// Longest path, and longest list of consensuses to compare with, of a request that is kept, bytes. Tor names at most 20
/// authorities of 40 digits in a path, and the consensuses of three days.
const LONGEST_PATH: usize = 1024;
const LONGEST_KNOWN: usize = 8192;
/// Longest answer that is kept, bytes.
pub(crate) const LONGEST: usize = 8 << 20;
/// Maximum number of answers that are being fetched.
const FETCHES: usize = 8;
/// For how long an answer is kept: one that new votes replace, if the next vote is unknown, and any other one.
const CURRENT: u64 = 1;
const OTHER: u64 = 600;
/// For how long an answer is kept after that, in case the authority does not answer: a consensus is valid for two more hours.
const OLD: u64 = 2 * 3600;
const CURRENT_PATH: &str = "/tor/status-vote/current/";
/// Encodings of answers (dir-spec, "Standards compliance"), in the order of a request.
const ENCODINGS: [&str; 6] = ["identity", "deflate", "gzip", "x-zstd", "x-tor-lzma", "zstd"];
/// Paths of documents that many clients ask for in the same words, and of which an answer is never a part.
const PATHS: [&str; 2] = [CURRENT_PATH, "/tor/keys/"];

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wanted {
    /// The path.
    pub path: String,
    /// The `Accept-Encoding` field.
    pub encodings: String,
    /// The consensuses that a difference may start from: the field `X-Or-Diff-From-Consensus`.
    pub known: String,
}

impl Wanted {
    /// The request for a document that can be kept, with the fields of a client's request. Words that select no other answer
    /// are left out, or a client could have one document fetched and kept any number of times.
    pub(crate) fn new(path: &str, encodings: &str, known: &str) -> Option<Wanted> {
        let fits = path.len() <= LONGEST_PATH && known.len() <= LONGEST_KNOWN;
        let is_document = fits && PATHS.iter().any(|start| path.starts_with(start));
        let named = |encoding: &&str| encodings.split(',').any(|other| other.trim() == *encoding);
        let is_digest =
            |digest: &&str| digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_document.then(|| Wanted {
            path: path.to_owned(),
            encodings: ENCODINGS.into_iter().filter(named).collect::<Vec<_>>().join(", "),
            known: known.split(',').map(str::trim).filter(is_digest).collect::<Vec<_>>().join(", "),
        })
    }

    /// Bytes that an answer to it takes.
    fn place(&self, answer: &Answer) -> usize {
        answer.bytes.len() + self.path.len() + self.encodings.len() + self.known.len() + PLACE
    }
}

/// A whole answer. It counts as held until its last stream has sent it.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Head and body.
    pub bytes: Bytes,
    held: Arc<AtomicUsize>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

struct Entry {
    answer: Arc<Answer>,
    /// The neighbour that used it last.
    of: Option<IpAddr>,
    /// When a newer one may exist.
    until: u64,
    /// Number of the last use.
    used: u64,
}

/// The permission to fetch an answer. It ends when it is dropped.
pub(crate) struct Fetch(Arc<AtomicUsize>);

impl Drop for Fetch {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The answers.
#[derive(Default)]
pub(crate) struct DocumentCache {
    entries: BTreeMap<Wanted, Entry>,
    /// Bytes of the answers with their requests.
    bytes: usize,
    /// The remaining allowances of neighbours.
    allowances: Allowances,
    uses: u64,
    /// When the network votes again, if it is known.
    fresh_until: Option<u64>,
    held: Arc<AtomicUsize>,
    fetches: Arc<AtomicUsize>,
    /// Microdescriptors. Each client asks for its own list.
    pub(crate) microdescriptors: Microdescriptors,
    /// Number of the directory that answered last.
    pub(crate) preferred: usize,
}

impl DocumentCache {
    /// Notes when the network votes again.
    pub(crate) fn votes_at(&mut self, fresh_until: Option<u64>) {
        self.fresh_until = fresh_until;
    }

    /// Forgets all answers: they were another network's.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.microdescriptors = Microdescriptors::default();
        self.bytes = 0;
        self.fresh_until = None;
    }

    /// The answer for a stream that came by a neighbour, if it is kept and not too old.
    pub(crate) fn find(&mut self, now: u64, of: Option<IpAddr>, wanted: &Wanted) -> Option<Arc<Answer>> {
        let uses = self.uses + 1;
        let entry = self.entries.get_mut(wanted).filter(|entry| now < entry.until)?;
        self.uses = uses;
        (entry.used, entry.of) = (uses, of);
        Some(entry.answer.clone())
    }

    /// The answer, even if a newer one may exist: for when the authority does not answer.
    pub(crate) fn find_old(&self, now: u64, wanted: &Wanted) -> Option<Arc<Answer>> {
        let entry = self.entries.get(wanted).filter(|entry| now < entry.until + OLD)?;
        Some(entry.answer.clone())
    }

    /// Whether another answer may be held.
    pub(crate) fn has_room(&self) -> bool {
        self.held.load(Ordering::Relaxed) < HELD
    }

    /// The permission to fetch an answer that is not kept; `None` if too many are being fetched or held, or if the neighbour had
    /// too much fetched.
    pub(crate) fn fetch(&mut self, now: Time, of: Option<IpAddr>) -> Option<Fetch> {
        let may = self.fetches.load(Ordering::Relaxed) < FETCHES
            && self.has_room()
            && self.allowances.may_fetch(now, of);
        may.then(|| {
            self.fetches.fetch_add(1, Ordering::Relaxed);
            Fetch(self.fetches.clone())
        })
    }

    /// Notes that a neighbour had this many bytes fetched.
    pub(crate) fn fetched(&mut self, now: Time, of: Option<IpAddr>, bytes: usize) {
        self.allowances.fetched(now, of, bytes);
    }

    /// Makes an answer that counts as held.
    pub(crate) fn answer(&self, bytes: Vec<u8>) -> Arc<Answer> {
        self.held.fetch_add(bytes.len(), Ordering::Relaxed);
        Arc::new(Answer { bytes: bytes.into(), held: self.held.clone() })
    }

    /// Keeps an answer that a neighbour's stream asked for. Without room, the neighbour with the most loses the answer that
    /// it has not used for the longest time.
    pub(crate) fn keep(
        &mut self,
        now: u64,
        of: Option<IpAddr>,
        wanted: Wanted,
        answer: Vec<u8>,
    ) -> Arc<Answer> {
        let answer = self.answer(answer);
        let place = wanted.place(&answer);
        self.remove(&wanted);
        self.entries.retain(|wanted, entry| {
            let lasts = now < entry.until + OLD;
            self.bytes -= if lasts { 0 } else { wanted.place(&entry.answer) };
            lasts
        });
        while self.entries.len() >= PLACES || self.bytes + place > MEMORY {
            let displaced = self.displaced().expect("an answer is shorter than the memory");
            self.remove(&displaced);
        }
        let lasts = if !wanted.path.starts_with(CURRENT_PATH) {
            OTHER
        } else {
            self.fresh_until.map_or(0, |until| until.saturating_sub(now)).clamp(CURRENT, 3600)
        };
        self.bytes += place;
        self.uses += 1;
        let (until, used) = (now + lasts, self.uses);
        self.entries.insert(wanted, Entry { answer: answer.clone(), of, until, used });
        answer
    }

    /// The answer that makes room for another one.
    fn displaced(&self) -> Option<Wanted> {
        let mut held = BTreeMap::<_, usize>::new();
        for (wanted, entry) in &self.entries {
            *held.entry(entry.of).or_default() += wanted.place(&entry.answer);
        }
        let (most, _) = held.into_iter().max_by_key(|(_, bytes)| *bytes)?;
        let own = self.entries.iter().filter(|(_, entry)| entry.of == most);
        own.min_by_key(|(_, entry)| entry.used).map(|(wanted, _)| wanted.clone())
    }

    fn remove(&mut self, wanted: &Wanted) {
        if let Some(entry) = self.entries.remove(wanted) {
            self.bytes -= wanted.place(&entry.answer);
        }
    }
}

/// The head of an authority's answer with the fields that hold for every client, and the body. `None` if the answer is not a
/// success, is not HTTP, or is cut.
pub(crate) fn for_everybody(answer: &[u8]) -> Option<Vec<u8>> {
    const FIELDS: [&str; 4] = ["Content-Type", "Content-Encoding", "Last-Modified", "Vary"];
    let mut fields = [httparse::EMPTY_HEADER; 32];
    let mut parsed = httparse::Response::new(&mut fields);
    let Ok(httparse::Status::Complete(length)) = parsed.parse(answer) else { return None };
    if parsed.code != Some(200) {
        return None;
    }
    let body = &answer[length..];
    let stated = parsed.headers.iter().find(|field| field.name.eq_ignore_ascii_case("content-length"));
    let stated = stated.map(|field| std::str::from_utf8(field.value).ok()?.trim().parse::<usize>().ok());
    if stated.is_some_and(|stated| stated != Some(body.len())) {
        return None;
    }
    let mut head = b"HTTP/1.0 200 OK\r\n".to_vec();
    // The date and the client's address are those of the fetch.
    for field in
        parsed.headers.iter().filter(|field| FIELDS.iter().any(|name| field.name.eq_ignore_ascii_case(name)))
    {
        head.extend_from_slice(&[field.name.as_bytes(), b": ", field.value, b"\r\n"].concat());
    }
    head.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
    Some([&head, body].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(path: &str) -> Wanted {
        Wanted { path: path.into(), encodings: String::new(), known: String::new() }
    }

    const NOBODY: Option<IpAddr> = None;

    fn keep(cache: &mut DocumentCache, now: u64, path: &str, length: usize) {
        cache.keep(now, NOBODY, wanted(path), vec![0; length]);
    }

    fn address(last: u8) -> Option<IpAddr> {
        Some([192, 0, 2, last].into())
    }

    #[test]
    fn a_consensus_is_kept_until_the_next_vote() {
        let mut cache = DocumentCache::default();
        let consensus = "/tor/status-vote/current/consensus-microdesc.z";
        keep(&mut cache, 1000, consensus, 5);
        assert!(cache.find(1000, NOBODY, &wanted(consensus)).is_some());
        assert!(cache.find(1001, NOBODY, &wanted(consensus)).is_none());
        cache.votes_at(Some(1500));
        keep(&mut cache, 1010, consensus, 6);
        assert_eq!(cache.find(1499, NOBODY, &wanted(consensus)).unwrap().bytes.len(), 6);
        assert!(cache.find(1500, NOBODY, &wanted(consensus)).is_none());
        assert!(cache.find_old(1499 + OLD, &wanted(consensus)).is_some(), "in case the authority is down");
        assert!(cache.find_old(1500 + OLD, &wanted(consensus)).is_none());
        keep(&mut cache, 1500, "/tor/keys/a", 7);
        assert!(cache.find(2099, NOBODY, &wanted("/tor/keys/a")).is_some());
        let other = Wanted { encodings: "deflate".into(), ..wanted("/tor/keys/a") };
        assert!(cache.find(1501, NOBODY, &other).is_none(), "another encoding is another answer");
        keep(&mut cache, 1500 + OLD, "/tor/keys/b", 1);
        assert_eq!(cache.entries.len(), 2, "older answers are forgotten");
        assert_eq!(cache.bytes, 8 + 2 * (PLACE + "/tor/keys/a".len()));
        cache.clear();
        assert!(cache.find(1501, NOBODY, &wanted("/tor/keys/a")).is_none() && cache.bytes == 0);
    }

    #[test]
    fn memory_is_bounded_and_the_least_used_answers_go() {
        let mut cache = DocumentCache::default();
        for number in 0..20 {
            keep(&mut cache, 0, &format!("/tor/keys/all/{number}"), LONGEST);
            assert!(cache.find(0, NOBODY, &wanted("/tor/keys/all/0")).is_some(), "it is used");
        }
        assert_eq!(cache.entries.len(), 7);
        assert!((7 * LONGEST..MEMORY).contains(&cache.bytes));
        assert!(cache.find(0, NOBODY, &wanted("/tor/keys/all/1")).is_none());
        for number in 0..2 * PLACES {
            keep(&mut cache, 0, &format!("/tor/keys/{number}"), 1);
        }
        assert!(cache.entries.len() == PLACES && cache.bytes <= MEMORY);
    }

    #[test]
    fn fetches_and_answers_in_use_are_bounded() {
        let mut cache = DocumentCache::default();
        let fetches: Vec<_> = (0..FETCHES).map(|_| cache.fetch(Time::ZERO, NOBODY).unwrap()).collect();
        assert!(cache.fetch(Time::ZERO, NOBODY).is_none());
        drop(fetches);
        let sending: Vec<_> = (0..HELD / LONGEST).map(|_| cache.answer(vec![0; LONGEST])).collect();
        assert!(cache.fetch(Time::ZERO, NOBODY).is_none(), "streams hold them, though none is kept");
        drop(sending);
        assert!(cache.fetch(Time::ZERO, NOBODY).is_some());
    }

    #[test]
    fn a_neighbour_beyond_its_allowance_has_nothing_fetched() {
        let mut cache = DocumentCache::default();
        cache.fetched(Time::ZERO, address(1), 17 << 20);
        assert!(
            cache.fetch(Time::ZERO, address(1)).is_none() && cache.fetch(Time::ZERO, address(2)).is_some()
        );
    }

    #[test]
    fn who_keeps_most_makes_room_for_others() {
        let mut cache = DocumentCache::default();
        cache.keep(0, address(1), wanted("/tor/keys/all"), vec![0; 100]);
        for number in 0..20 {
            cache.keep(0, address(2), wanted(&format!("/tor/keys/{number}")), vec![0; LONGEST]);
        }
        assert!(cache.find(0, address(1), &wanted("/tor/keys/all")).is_some());
        assert!(cache.find(0, address(1), &wanted("/tor/keys/19")).is_some());
        assert!(cache.find(0, address(1), &wanted("/tor/keys/0")).is_none());
    }

    #[test]
    fn requests_that_select_one_answer_are_one() {
        let digest = "Ab".repeat(32);
        let path = "/tor/status-vote/current/consensus";
        let plain = Wanted::new(path, "x-zstd, gzip;q=0.5,deflate , x1", &format!("x, {digest}")).unwrap();
        assert_eq!((plain.encodings.as_str(), plain.known.as_str()), ("deflate, x-zstd", digest.as_str()));
        assert_eq!(Wanted::new(path, "deflate, deflate, x-zstd, x2", &digest), Some(plain));
        assert_eq!(Wanted::new("/tor/server/all", "", ""), None);
        assert_eq!(Wanted::new(&format!("{path}{}", "x".repeat(LONGEST_PATH)), "", ""), None);
        assert_eq!(Wanted::new(path, "", &"x".repeat(LONGEST_KNOWN + 1)), None);
    }

    #[test]
    fn answers_lose_what_is_meant_for_one_client() {
        let answer =
            b"HTTP/1.0 200 OK\r\nDate: x\r\nContent-Type: text/plain\r\nX-Your-Address-Is: 192.0.2.1\r\n\
            content-encoding: identity\r\nContent-Length: 4\r\n\r\nbody";
        let kept = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\ncontent-encoding: identity\r\nContent-Length: 4\r\n\r\nbody";
        assert_eq!(for_everybody(answer).unwrap(), kept);
        for bad in [
            &b""[..],
            b"HTTP/1.0 404 Not found\r\n\r\n",
            b"HTTP/1.0 200 OK\r\n",
            b"nonsense\r\n\r\n",
            b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\nbody",
        ] {
            assert_eq!(for_everybody(bad), None);
        }
    }
}
