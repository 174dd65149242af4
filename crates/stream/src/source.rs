//! The source: payloads to groups, slices and parity; packets kept for repairs; the stream's rate.

use std::collections::VecDeque;

use bytes::Bytes;
use tidegate_control::random::mix;
use tidegate_control::units::{Rate, Span, Time};

use crate::framer::Framer;
use crate::packet::{Key, Video};
use crate::parity;

/// Packets are kept for repairs for so long, and so many bytes of them.
const KEEP: Span = Span::from_secs(4);
const MOST_BYTES: usize = 32 << 20;
/// An incomplete payload leaves after so long.
const FLUSH: Span = Span::from_millis(20);
/// The rate is the most of so many seconds, two at a time: a source that is late in one gives more in the next.
const SECONDS: usize = 4;

/// Cuts a stream into packets.
pub struct Source {
    slices: usize,
    parity: usize,
    /// Data slices in use: fewer if quality was reduced.
    active: usize,
    framer: Framer,
    next: Key,
    group: Vec<Bytes>,
    /// Data slices of the group that is being sent.
    width: usize,
    /// Data packets that were sent.
    sent: u64,
    recent: VecDeque<Group>,
    base: u32,
    bytes: usize,
    flush: Time,
    /// Bytes of TS by second, the current one last.
    seconds: VecDeque<u64>,
    second: Time,
    /// When the source last gave anything.
    last: Time,
}

struct Group {
    at: Time,
    /// Datagrams by slice; empty where there is none (yet).
    packets: Vec<Bytes>,
}

/// A short digest of a packet, for audits: 64 bits that depend on every byte.
pub fn digest(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|chunk| chunk.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
    words.fold(1, |hash, word| mix(hash ^ word)).max(1)
}

impl Source {
    /// A source of so many data and parity slices.
    pub fn new(slices: usize, parity: usize) -> Source {
        Source {
            slices,
            parity,
            active: slices,
            framer: Framer::default(),
            next: Key { group: 1, slice: 0 },
            group: Vec::new(),
            width: slices,
            sent: 0,
            recent: VecDeque::new(),
            base: 1,
            bytes: 0,
            flush: Time::NEVER,
            seconds: VecDeque::from([0]),
            second: Time::ZERO,
            last: Time::ZERO,
        }
    }

    /// The newest group.
    pub fn newest(&self) -> u32 {
        self.next.group
    }

    /// Bytes of the source that were no TS.
    pub fn garbage(&self) -> u64 {
        self.framer.garbage
    }

    /// How long the source gave nothing.
    pub fn stalled(&self, now: Time) -> Span {
        now.since(self.last)
    }

    /// Data slices in use.
    pub fn active(&self) -> usize {
        self.active
    }

    /// Data packets that were sent so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// From the next group on, only so many data slices are sent: of a layered stream the first ones. What
    /// would be in the others is left out.
    pub fn set_active(&mut self, active: usize) {
        self.active = active.clamp(1, self.slices);
    }

    /// Bits of TS per second, the most of the last seconds; zero before the second second is over.
    pub fn rate(&self) -> Rate {
        let whole = self.seconds.len().saturating_sub(1);
        let pairs = self.seconds.iter().zip(self.seconds.iter().skip(1)).take(whole.saturating_sub(1));
        Rate::from_bytes_per_s(pairs.map(|(one, next)| (one + next) / 2).max().unwrap_or(0))
    }

    /// When [`Source::flush`] has something to do.
    pub fn next_time(&self) -> Time {
        self.flush
    }

    /// Bytes of TS, however they are cut; gives datagrams for the slices' trees.
    pub fn push(&mut self, now: Time, bytes: &[u8]) -> Vec<(usize, Bytes)> {
        self.count(now, bytes.len());
        let mut out = Vec::new();
        for payload in self.framer.push(bytes) {
            self.send(now, payload, &mut out);
        }
        self.flush = if out.is_empty() { self.flush.min(now + FLUSH) } else { now + FLUSH };
        out
    }

    /// The source paused: what there is leaves.
    pub fn flush(&mut self, now: Time) -> Vec<(usize, Bytes)> {
        let mut out = Vec::new();
        self.flush = Time::NEVER;
        if let Some(payload) = self.framer.flush() {
            self.send(now, payload, &mut out);
        }
        out
    }

    fn count(&mut self, now: Time, bytes: usize) {
        const SECOND: Span = Span::from_secs(1);
        self.last = now;
        if now.since(self.second) > SECOND * SECONDS as u64 {
            (self.second, self.seconds) = (now, VecDeque::from([0]));
        }
        while now >= self.second + SECOND {
            self.second += SECOND;
            self.seconds.push_back(0);
            if self.seconds.len() > SECONDS + 1 {
                self.seconds.pop_front();
            }
        }
        if let Some(current) = self.seconds.back_mut() {
            *current += bytes as u64;
        }
    }

    fn send(&mut self, now: Time, payload: Bytes, out: &mut Vec<(usize, Bytes)>) {
        let key = self.next;
        if key.slice == 0 {
            self.open(now);
        }
        if usize::from(key.slice) < self.width {
            self.sent += 1;
            self.group.push(payload.clone());
            out.push(self.keep(now, key, payload));
        }
        if usize::from(key.slice) + 1 < self.slices {
            self.next.slice += 1;
            return;
        }
        if self.parity > 0 {
            for (n, shard) in parity::protect(&self.group, self.parity).into_iter().enumerate() {
                let key = Key { group: key.group, slice: (self.slices + n) as u8 };
                out.push(self.keep(now, key, shard));
            }
        }
        self.group.clear();
        self.next = Key { group: key.group + 1, slice: 0 };
    }

    fn open(&mut self, now: Time) {
        self.width = self.active;
        self.recent.push_back(Group { at: now, packets: vec![Bytes::new(); self.slices + self.parity] });
        while let Some(first) = self.recent.front() {
            if now.since(first.at) <= KEEP && self.bytes <= MOST_BYTES {
                break;
            }
            self.bytes -= first.packets.iter().map(Bytes::len).sum::<usize>();
            self.recent.pop_front();
            self.base += 1;
        }
    }

    fn keep(&mut self, now: Time, key: Key, payload: Bytes) -> (usize, Bytes) {
        let sent = (now.0 / 1_000_000) as u32;
        let datagram = Video { key, data: self.width as u8, sent, payload }.encode();
        self.bytes += datagram.len();
        if let Some(group) = self.recent.back_mut() {
            group.packets[usize::from(key.slice)] = datagram.clone();
        }
        (usize::from(key.slice), datagram)
    }

    /// A packet that is still kept.
    pub fn get(&self, key: Key) -> Option<Bytes> {
        let group = self.recent.get(key.group.checked_sub(self.base)? as usize)?;
        group.packets.get(usize::from(key.slice)).filter(|bytes| !bytes.is_empty()).cloned()
    }

    /// What a packet carried that was sent `age` ago, and its place: for audits.
    pub fn aged(&self, now: Time, age: Span, slice: u8) -> Option<(Key, Bytes)> {
        let index = self.recent.partition_point(|group| now.since(group.at) > age).checked_sub(1)?;
        let key = Key { group: self.base + index as u32, slice };
        let bytes = self.get(key)?;
        Some((key, bytes.slice(Video::HEAD..)))
    }

    /// A packet of `age` groups ago, for exploration.
    pub fn recent(&self, age: u32, slice: u8) -> Option<(Key, Bytes)> {
        let key = Key { group: self.next.group.checked_sub(age)?, slice };
        Some((key, self.get(key)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Datagram, decode};

    const TS: [u8; 188] = {
        let mut packet = [9; 188];
        packet[0] = 0x47;
        packet
    };

    #[test]
    fn packets_are_numbered_protected_and_kept_for_a_while() {
        let mut source = Source::new(4, 1);
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        let mut sent = Vec::new();
        for n in 0..2400 {
            sent.extend(source.push(at(n * 5), &TS.repeat(6)));
        }
        assert_eq!(sent.len(), 2400 / 4 * 5);
        let videos: Vec<Video> = sent
            .iter()
            .map(|(_, bytes)| match decode(bytes) {
                Some(Datagram::Video(video)) => video,
                other => panic!("{other:?}"),
            })
            .collect();
        let keys: Vec<u8> = videos[..6].iter().map(|video| video.key.slice).collect();
        assert_eq!(keys, [0, 1, 2, 3, 4, 0]);
        assert_eq!(source.rate(), Rate(200 * 6 * 188 * 8));
        let last = videos[videos.len() - 2].key;
        assert!(source.get(last).is_some());
        assert_eq!(source.get(videos[0].key), None);
        assert!(source.recent.len() < 250, "four seconds are kept");
        source.set_active(2);
        let fewer: Vec<usize> =
            (0..4).flat_map(|_| source.push(at(12_000), &TS.repeat(6))).map(|(s, _)| s).collect();
        assert_eq!(fewer, [0, 1, 4]);
    }

    #[test]
    fn what_does_not_fill_a_packet_leaves_soon() {
        let mut source = Source::new(4, 1);
        assert!(source.push(Time::ZERO, &TS.repeat(2)).is_empty());
        let due = source.next_time();
        assert_eq!(due, Time::ZERO + FLUSH);
        assert_eq!(source.flush(due).len(), 1);
        assert_eq!(source.next_time(), Time::NEVER);
    }
}
