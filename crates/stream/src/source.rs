//! The source: cuts the stream into slices and parity, keeps packets for repairs, measures the rate.

use std::collections::VecDeque;

use bytes::Bytes;
use tidegate_control::units::{Rate, Span, Time};

use crate::framer::Framer;
use crate::packet::{Key, Video};
use crate::parity;

/// Limits of packets kept for repairs: time and bytes.
const KEEP: Span = Span::from_secs(4);
const MOST_BYTES: usize = 32 << 20;
/// An incomplete payload is sent after this time.
const FLUSH: Span = Span::from_millis(20);
/// Window of the rate, seconds. Averages of two adjacent seconds smooth a source that is late once.
const SECONDS: usize = 4;

/// Cuts a stream into packets.
pub struct Source {
    slices: usize,
    parity: usize,
    /// Data slices in use, fewer with reduced quality.
    active: usize,
    framer: Framer,
    next: Key,
    group: Vec<Bytes>,
    /// Number of data slices of the current group.
    width: usize,
    /// Number of data packets so far.
    sent: u64,
    recent: VecDeque<Group>,
    base: u32,
    bytes: usize,
    flush: Time,
    /// TS bytes of each second, the current one last.
    seconds: VecDeque<u64>,
    second: Time,
    /// When the source last delivered bytes.
    last: Time,
}

struct Group {
    at: Time,
    /// Datagrams by slice; empty if not sent.
    packets: Vec<Bytes>,
}

impl Source {
    /// A source with these numbers of data and parity slices.
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

    /// Number of skipped bytes that were not TS.
    pub fn garbage(&self) -> u64 {
        self.framer.garbage
    }

    /// Time since the source last delivered bytes.
    pub fn stalled(&self, now: Time) -> Span {
        now.since(self.last)
    }

    /// Number of data slices in use.
    pub fn active(&self) -> usize {
        self.active
    }

    /// Number of data packets so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Sets the number of data slices, from the next group on.
    ///
    /// The stream loses the contents of the other slices.
    pub(crate) fn set_active(&mut self, active: usize) {
        self.active = active.clamp(1, self.slices);
    }

    /// Rate of the TS, the maximum over the last seconds; zero during the first two seconds.
    pub fn rate(&self) -> Rate {
        let whole = self.seconds.len().saturating_sub(1);
        let pairs = self.seconds.iter().zip(self.seconds.iter().skip(1)).take(whole.saturating_sub(1));
        Rate::from_bytes_per_s(pairs.map(|(one, next)| (one + next) / 2).max().unwrap_or(0))
    }

    /// When [`Source::flush`] is due.
    pub(crate) fn next_time(&self) -> Time {
        self.flush
    }

    /// Takes TS bytes in chunks of any size; returns datagrams with their positions.
    pub fn push(&mut self, now: Time, bytes: &[u8]) -> Vec<(Key, Bytes)> {
        self.count(now, bytes.len());
        let mut out = Vec::new();
        for payload in self.framer.push(bytes) {
            self.send(now, payload, &mut out);
        }
        self.flush = if out.is_empty() { self.flush.min(now + FLUSH) } else { now + FLUSH };
        out
    }

    /// Sends the incomplete payload because the source paused.
    pub(crate) fn flush(&mut self, now: Time) -> Vec<(Key, Bytes)> {
        let mut out = Vec::new();
        self.flush = Time::NEVER;
        if let Some(payload) = self.framer.flush() {
            self.send(now, payload, &mut out);
        }
        out
    }

    /// Sends what is left and completes the last group, so that its parity protects it. Returns the next group too.
    pub(crate) fn end(&mut self, now: Time) -> (Vec<(Key, Bytes)>, u32) {
        let mut out = self.flush(now);
        while self.next.slice != 0 {
            self.send(now, Bytes::new(), &mut out);
        }
        (out, self.next.group)
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

    fn send(&mut self, now: Time, payload: Bytes, out: &mut Vec<(Key, Bytes)>) {
        let key = self.next;
        if key.slice == 0 {
            self.open(now);
        }
        if usize::from(key.slice) < self.width {
            self.sent += 1;
            self.group.push(payload.clone());
            out.push(self.keep(key, payload));
        }
        if usize::from(key.slice) + 1 < self.slices {
            self.next.slice += 1;
            return;
        }
        if self.parity > 0 {
            for (n, shard) in parity::protect(&self.group, self.parity).into_iter().enumerate() {
                let key = Key { group: key.group, slice: (self.slices + n) as u8 };
                out.push(self.keep(key, shard));
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

    fn keep(&mut self, key: Key, payload: Bytes) -> (Key, Bytes) {
        let group = self.recent.back_mut().expect("a group is open while packets are made");
        // The same for all packets of a group, so that a recovered packet equals the signed one.
        let sent = (group.at.0 / 1_000_000) as u32;
        let datagram = Video { key, data: self.width as u8, sent, payload }.encode();
        self.bytes += datagram.len();
        group.packets[usize::from(key.slice)] = datagram.clone();
        (key, datagram)
    }

    /// A packet that is still kept.
    pub(crate) fn get(&self, key: Key) -> Option<Bytes> {
        let group = self.recent.get(key.group.checked_sub(self.base)? as usize)?;
        group.packets.get(usize::from(key.slice)).filter(|bytes| !bytes.is_empty()).cloned()
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
        let fewer: Vec<u8> =
            (0..4).flat_map(|_| source.push(at(12_000), &TS.repeat(6))).map(|(key, _)| key.slice).collect();
        assert_eq!(fewer, [0, 1, 4]);
    }

    #[test]
    fn the_last_group_is_completed_at_the_end() {
        let mut source = Source::new(4, 1);
        assert_eq!(source.push(Time::ZERO, &TS.repeat(13)).len(), 2);
        let (rest, next) = source.end(Time::ZERO);
        let slices: Vec<u8> = rest.iter().map(|(key, _)| key.slice).collect();
        assert_eq!((slices, next), (vec![2, 3, 4], 2));
        assert_eq!(source.end(Time::ZERO), (Vec::new(), 2));
    }

    #[test]
    fn an_incomplete_payload_leaves_soon() {
        let mut source = Source::new(4, 1);
        assert!(source.push(Time::ZERO, &TS.repeat(2)).is_empty());
        let due = source.next_time();
        assert_eq!(due, Time::ZERO + FLUSH);
        assert_eq!(source.flush(due).len(), 1);
        assert_eq!(source.next_time(), Time::NEVER);
    }
}
