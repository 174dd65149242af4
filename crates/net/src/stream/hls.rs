//! Converts MPEG-TS to HLS segments (RFC 8216), sans-IO. A segment begins with the program tables and a key frame.

use std::collections::VecDeque;
use std::fmt::Write as _;

use bytes::{Bytes, BytesMut};
use tidegate_control::units::{Span, Time};
use tidegate_stream::framer::TS;

/// Segments in the playlist, and further segments that slow players may still fetch.
const LISTED: usize = 5;
const KEPT: usize = 8;
/// Minimum and maximum duration of a segment. Between them a key frame ends it.
const SHORTEST: Span = Span::from_millis(900);
const LONGEST: Span = Span::from_secs(6);
/// Maximum size of a segment, bytes.
const MOST_BYTES: usize = 16 << 20;

/// The HLS segments of one stream.
#[derive(Debug, Default)]
pub struct Hls {
    /// The last packets of the program tables. Each segment begins with them.
    pat: Option<Bytes>,
    pmt: Option<Bytes>,
    pmt_pid: Option<u16>,
    open: Option<(Time, BytesMut)>,
    segments: VecDeque<Segment>,
    next: u64,
}

#[derive(Debug)]
struct Segment {
    number: u64,
    seconds: f64,
    bytes: Bytes,
}

fn pid(packet: &[u8]) -> u16 {
    u16::from(packet[1] & 0x1f) << 8 | u16::from(packet[2])
}

/// Whether decoding can start at this packet (ISO 13818-1, random_access_indicator).
fn is_entry(packet: &[u8]) -> bool {
    packet[3] & 0x20 != 0 && packet[4] > 0 && packet[5] & 0x40 != 0
}

/// The PID of the first program's map in a program association table.
fn first_map(packet: &[u8]) -> Option<u16> {
    let start = if packet[3] & 0x20 != 0 { 5 + usize::from(packet[4]) } else { 4 };
    let section = packet.get(start..)?;
    let section = section.get(1 + usize::from(*section.first()?)..)?;
    let entries = section.get(8..)?.chunks_exact(4);
    entries
        .take(40)
        .find(|entry| entry[..2] != [0, 0])
        .map(|entry| u16::from(entry[2] & 0x1f) << 8 | u16::from(entry[3]))
}

impl Hls {
    /// Adds whole TS packets as they are played.
    pub fn push(&mut self, now: Time, bytes: &[u8]) {
        for packet in bytes.chunks_exact(TS).filter(|packet| packet[0] == 0x47) {
            let pid = pid(packet);
            if pid == 0 {
                self.pat = Some(Bytes::copy_from_slice(packet));
                self.pmt_pid = first_map(packet);
            } else if Some(pid) == self.pmt_pid {
                self.pmt = Some(Bytes::copy_from_slice(packet));
            }
            let cut = match &self.open {
                None => is_entry(packet),
                Some((since, open)) => {
                    let age = now.since(*since);
                    is_entry(packet) && age >= SHORTEST || age >= LONGEST || open.len() >= MOST_BYTES
                }
            };
            if cut {
                self.cut(now);
            }
            if let Some((_, open)) = &mut self.open {
                open.extend_from_slice(packet);
            }
        }
    }

    fn cut(&mut self, now: Time) {
        let mut fresh = BytesMut::new();
        self.pat.iter().chain(&self.pmt).for_each(|table| fresh.extend_from_slice(table));
        if let Some((since, bytes)) = self.open.replace((now, fresh)) {
            let seconds = now.since(since).as_secs_f64();
            self.segments.push_back(Segment { number: self.next, seconds, bytes: bytes.freeze() });
            self.next += 1;
            if self.segments.len() > KEPT {
                self.segments.pop_front();
            }
        }
    }

    /// A segment that is still stored.
    pub fn segment(&self, number: u64) -> Option<Bytes> {
        self.segments.iter().find(|segment| segment.number == number).map(|segment| segment.bytes.clone())
    }

    /// The playlist; `None` before the first segment is complete.
    pub fn playlist(&self) -> Option<String> {
        let listed = self.segments.iter().skip(self.segments.len().saturating_sub(LISTED));
        let first = listed.clone().next()?.number;
        let target = listed.clone().map(|segment| segment.seconds.round() as u64).max().unwrap_or(1).max(1);
        let mut text = format!(
            "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:{target}\n#EXT-X-MEDIA-SEQUENCE:{first}\n"
        );
        for segment in listed {
            let _ = write!(text, "#EXTINF:{:.3},\n{}.ts\n", segment.seconds, segment.number);
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(pid: u16, entry: bool) -> Vec<u8> {
        let mut packet = vec![0xff; TS];
        packet[..4].copy_from_slice(&[0x47, (pid >> 8) as u8, pid as u8, if entry { 0x30 } else { 0x10 }]);
        if entry {
            packet[4..6].copy_from_slice(&[7, 0x40]);
        }
        packet
    }

    fn tables() -> Vec<u8> {
        let mut pat = packet(0, false);
        pat[4..21].copy_from_slice(&[0, 0, 0xb0, 13, 0, 1, 0xc1, 0, 0, 0, 1, 0xe1, 0x00, 1, 2, 3, 4]);
        [pat, packet(0x100, false)].concat()
    }

    #[test]
    fn segments_begin_with_tables_and_a_key_frame() {
        let mut hls = Hls::default();
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        hls.push(at(0), &packet(0x101, false));
        assert_eq!(hls.playlist(), None);
        for n in 0..100 {
            hls.push(at(n * 100), &tables());
            hls.push(at(n * 100), &packet(0x101, n % 5 == 0));
            hls.push(at(n * 100), &packet(0x101, false));
        }
        let playlist = hls.playlist().unwrap();
        assert!(playlist.contains("#EXTINF:1.000,\n8.ts"), "{playlist}");
        assert!(playlist.contains("MEDIA-SEQUENCE:4"), "{playlist}");
        let segment = hls.segment(8).unwrap();
        assert_eq!(segment[..2 * TS], tables());
        assert!(is_entry(&segment[2 * TS..3 * TS]));
        assert!(hls.segment(0).is_none() && hls.segment(99).is_none());
    }

    #[test]
    fn segments_end_without_key_frames() {
        let mut hls = Hls::default();
        hls.push(Time::ZERO, &packet(0x101, true));
        for n in 0..200 {
            hls.push(Time::ZERO + Span::from_millis(n * 100), &packet(0x101, false));
        }
        assert!(hls.playlist().unwrap().contains("TARGETDURATION:6"));
    }
}
