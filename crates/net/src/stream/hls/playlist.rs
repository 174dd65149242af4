//! The playlist's window of segments, by the rules of RFC 8216.

use std::collections::VecDeque;
use std::fmt::Write as _;

use bytes::Bytes;
use tidegate_control::units::{Span, Time};

/// Least target duration, seconds.
///
/// It cannot change later (section 6.2.1), so it leaves room for key frames that become rarer. Ordinary encoders set one
/// every 250 frames at least, 10 s at 25 frames per second, and more where the scene changes.
const TARGET: u64 = 10;
/// Largest target duration, if the first group of pictures is that long.
const LARGEST_TARGET: u64 = 30;
/// Rounded, a segment must not be longer than the target (section 4.3.3.1).
const ROUNDED: f64 = 0.45;
/// Target durations that a playlist keeps when a segment leaves it (section 6.2.2).
const LEAST_TARGETS: f64 = 3.0;
/// Least number of segments in a full playlist.
const LISTED: usize = 5;
/// Limits of stored segments. Streams of more than 20 Mbit/s, and ones of tiny segments, keep less than the rules ask.
const MOST_BYTES: usize = 128 << 20;
const MOST_SEGMENTS: usize = 1024;

/// The segments of a live playlist.
#[derive(Debug, Default)]
pub(crate) struct Playlist {
    /// Stored segments; the first ones have left the playlist.
    segments: VecDeque<Segment>,
    /// Number of segments that have left the playlist and are still stored.
    unlisted: usize,
    next: u64,
    /// Fixed with the first segment; zero before.
    target: u64,
    /// Discontinuities that left the playlist.
    discontinuities: u64,
    bytes: usize,
    /// Whether the stream ended with the last segment.
    has_ended: bool,
    /// Duration of the longest playlist so far.
    longest: f64,
}

#[derive(Debug)]
struct Segment {
    number: u64,
    seconds: f64,
    discontinuity: bool,
    bytes: Bytes,
    /// When it left the playlist.
    left: Option<Time>,
}

impl Playlist {
    /// The longest segment that may be added, seconds. `first` limits the first one, which decides.
    pub(crate) fn longest_segment(&self, first: Span) -> f64 {
        let largest = first.as_secs_f64().min(LARGEST_TARGET as f64);
        let target = if self.target == 0 { largest } else { self.target as f64 };
        target + ROUNDED
    }

    /// Adds a segment. `discontinuity` says that it does not continue the last one.
    pub(crate) fn push(&mut self, now: Time, seconds: f64, discontinuity: bool, bytes: Bytes) {
        if self.target == 0 {
            self.target = (seconds.round() as u64).clamp(TARGET, LARGEST_TARGET);
        }
        let discontinuity = discontinuity && self.next > 0;
        self.bytes += bytes.len();
        self.segments.push_back(Segment { number: self.next, seconds, discontinuity, bytes, left: None });
        self.next += 1;
        self.has_ended = false;
        self.longest = self.longest.max(self.duration());
        self.unlist(now);
        self.forget(now);
    }

    /// Says that no segment follows (section 4.3.3.4).
    pub(crate) fn end(&mut self) {
        self.has_ended = true;
    }

    fn listed(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().skip(self.unlisted)
    }

    fn duration(&self) -> f64 {
        self.listed().map(|segment| segment.seconds).sum()
    }

    /// Takes the oldest segments from the playlist as soon as the rules allow.
    fn unlist(&mut self, now: Time) {
        // Unlisted segments make room first.
        while self.unlisted > 0 && self.bytes > MOST_BYTES {
            self.drop_first();
        }
        let mut left = self.duration();
        while let Some(first) = self.segments.get_mut(self.unlisted) {
            let rest = left - first.seconds;
            let enough =
                rest >= LEAST_TARGETS * self.target as f64 && self.segments.len() - self.unlisted > LISTED;
            if !enough && self.segments.len() - self.unlisted <= MOST_SEGMENTS / 2 && self.bytes <= MOST_BYTES
            {
                break;
            }
            let first = &mut self.segments[self.unlisted];
            first.left = Some(now);
            self.discontinuities += u64::from(first.discontinuity);
            (left, self.unlisted) = (rest, self.unlisted + 1);
            if self.bytes > MOST_BYTES {
                self.drop_first();
            }
        }
    }

    /// Drops unlisted segments that no player may still fetch (section 6.2.2).
    fn forget(&mut self, now: Time) {
        while let Some(Segment { left: Some(left), seconds, .. }) = self.segments.front() {
            let until = *left + Span::from_secs_f64(seconds + self.longest);
            if now < until && self.segments.len() <= MOST_SEGMENTS && self.bytes <= MOST_BYTES {
                break;
            }
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        if let Some(first) = self.segments.pop_front() {
            self.bytes -= first.bytes.len();
            self.unlisted = self.unlisted.saturating_sub(1);
        }
    }

    /// A segment that is still stored.
    pub(crate) fn segment(&self, number: u64) -> Option<Bytes> {
        let at = number.checked_sub(self.segments.front()?.number)?;
        self.segments.get(usize::try_from(at).ok()?).map(|segment| segment.bytes.clone())
    }

    /// Bytes of all stored segments.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The playlist as text; `None` before the first segment.
    pub(crate) fn text(&self) -> Option<String> {
        let first = self.listed().next()?.number;
        let mut text = format!(
            "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:{}\n#EXT-X-MEDIA-SEQUENCE:{first}\n",
            self.target
        );
        if self.discontinuities > 0 {
            let _ = writeln!(text, "#EXT-X-DISCONTINUITY-SEQUENCE:{}", self.discontinuities);
        }
        for segment in self.listed() {
            if segment.discontinuity {
                text.push_str("#EXT-X-DISCONTINUITY\n");
            }
            let _ = write!(text, "#EXTINF:{:.3},\n{}.ts\n", segment.seconds, segment.number);
        }
        if self.has_ended {
            text.push_str("#EXT-X-ENDLIST\n");
        }
        Some(text)
    }
}
