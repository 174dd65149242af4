//! Rules of RFC 8216 for live playlists, checked over all versions of a playlist.

use std::collections::BTreeMap;

use tidegate_control::units::{Span, Time};

/// A segment as a playlist lists it.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    pub seconds: f64,
    /// Number of discontinuities before it since the beginning of the stream.
    pub discontinuities: u64,
}

/// One version of a playlist.
#[derive(Clone, Debug, Default)]
struct Version {
    target: u64,
    first: u64,
    segments: Vec<Listed>,
}

impl Version {
    fn duration(&self) -> f64 {
        self.segments.iter().map(|segment| segment.seconds).sum()
    }
}

/// Promises of earlier versions of a playlist.
#[derive(Debug, Default)]
pub struct Rules {
    last: Option<Version>,
    longest: f64,
    /// All segments so far.
    pub known: BTreeMap<u64, Listed>,
    /// Until when segments that left the playlist must be served.
    served_until: BTreeMap<u64, Time>,
}

impl Rules {
    /// Checks the next version. `is_served` says whether a segment can be fetched now.
    pub fn check(&mut self, now: Time, text: &str, is_served: impl Fn(u64) -> bool) {
        let version = read(text);
        for (at, segment) in version.segments.iter().enumerate() {
            let number = version.first + at as u64;
            // 4.3.3.1: rounded to the nearest integer.
            assert!(segment.seconds.round() as u64 <= version.target, "{number} is too long: {text}");
            // 6.2.1: only appending and removing is allowed.
            let known = self.known.entry(number).or_insert_with(|| segment.clone());
            assert_eq!(known, segment, "{number} changed: {text}");
            assert!(is_served(number), "{number} is listed and not there");
        }
        if let Some(last) = &self.last {
            assert_eq!(version.target, last.target, "6.2.1: the target duration changed");
            assert!(version.first >= last.first, "6.2.2: the sequence went back: {text}");
            let end = |version: &Version| version.first + version.segments.len() as u64;
            assert!(end(&version) >= end(last), "6.2.1: segments vanished from the end: {text}");
            for number in last.first..version.first {
                let seconds = self.known[&number].seconds;
                self.served_until.insert(number, now + Span::from_secs_f64(seconds + self.longest));
            }
            if version.first > last.first {
                let least = 3.0 * version.target as f64;
                assert!(version.duration() >= least, "6.2.2: a segment left too early: {text}");
            }
        }
        for (number, until) in &self.served_until {
            assert!(now >= *until || is_served(*number), "6.2.2: {number} must still be there");
        }
        self.longest = self.longest.max(version.duration());
        self.last = Some(version);
    }
}

fn read(text: &str) -> Version {
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("#EXTM3U"), "4.3.1.1");
    let mut version = Version::default();
    let (mut discontinuities, mut seconds, mut counts) = (0, None, [0; 3]);
    for line in lines {
        if let Some(value) = line.strip_prefix("#EXT-X-VERSION:") {
            assert!(value.parse::<u32>().unwrap() >= 3, "4.3.4.1: fractions need version 3");
        } else if let Some(value) = line.strip_prefix("#EXT-X-TARGETDURATION:") {
            (version.target, counts[0]) = (value.parse().unwrap(), counts[0] + 1);
        } else if let Some(value) = line.strip_prefix("#EXT-X-MEDIA-SEQUENCE:") {
            (version.first, counts[1]) = (value.parse().unwrap(), counts[1] + 1);
            assert!(version.segments.is_empty(), "4.3.3.2: before the first segment");
        } else if let Some(value) = line.strip_prefix("#EXT-X-DISCONTINUITY-SEQUENCE:") {
            assert!(version.segments.is_empty() && discontinuities == 0, "4.3.3.3: before the first segment");
            (discontinuities, counts[2]) = (value.parse().unwrap(), counts[2] + 1);
        } else if line == "#EXT-X-ENDLIST" {
            assert!(text.ends_with("#EXT-X-ENDLIST\n"), "{text}");
        } else if line == "#EXT-X-DISCONTINUITY" {
            discontinuities += 1;
        } else if let Some(value) = line.strip_prefix("#EXTINF:") {
            let (duration, _) = value.split_once(',').expect("4.3.2.1: a comma");
            seconds = Some(duration.parse().unwrap());
        } else {
            let number = line.strip_suffix(".ts").and_then(|number| number.parse::<u64>().ok());
            assert_eq!(number, Some(version.first + version.segments.len() as u64), "{text}");
            let seconds = seconds.take().expect("4.3.2.1: each segment has a duration");
            version.segments.push(Listed { seconds, discontinuities });
        }
    }
    assert!(counts[0] == 1 && counts[1] == 1 && counts[2] <= 1, "tags repeat: {text}");
    version
}
