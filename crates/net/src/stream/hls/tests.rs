//! Segments of streams that are made packet by packet.

use super::*;
use psi::{packets, seal};

const MAP: u16 = 0x1000;
const PICTURE: u16 = 0x100;
const SOUND: u16 = 0x101;
/// Ticks of a frame of the picture, and of the sound.
const FRAME: i64 = 3600;
const BLOCK: i64 = 1920;

/// Makes TS packets.
#[derive(Default)]
struct Muxer {
    counters: [u8; 4],
    out: Vec<u8>,
}

impl Muxer {
    /// Tables that name these streams: kind and PID.
    fn tables(&mut self, streams: &[(u8, u16)]) {
        let length = |more: usize| [0xb0 | (more >> 8) as u8, more as u8];
        let [high, low] = MAP.to_be_bytes();
        let association = [&[0][..], &length(13), &[0, 1, 0xc1, 0, 0, 0, 1, 0xe0 | high, low]].concat();
        self.out.extend(packets(&seal(association), 0, &mut self.counters[0]));
        let body = streams.iter().flat_map(|(kind, pid)| {
            let [high, low] = pid.to_be_bytes();
            [*kind, 0xe0 | high, low, 0xf0, 0]
        });
        let body: Vec<u8> = body.collect();
        let head = [0, 1, 0xc1, 0, 0, 0xe1, 0, 0xf0, 0];
        let map = [&[2][..], &length(head.len() + body.len() + 4), &head, &body].concat();
        self.out.extend(packets(&seal(map), MAP, &mut self.counters[1]));
    }

    /// A frame that is shown then.
    fn frame(&mut self, pid: u16, time: i64, content: &[u8]) {
        let stamp = time.rem_euclid(1 << 33);
        let bits = |shift: u32, mask: i64| (stamp >> shift & mask) as u8;
        let id = if pid == PICTURE { 0xe0 } else { 0xc0 };
        let head = [0, 0, 1, id, 0, 0, 0x80, 0x80, 5, 0x21 | bits(30, 7) << 1];
        let stamp = [bits(22, 0xff), bits(15, 0x7f) << 1 | 1, bits(7, 0xff), bits(0, 0x7f) << 1 | 1];
        let counter = usize::from(pid - PICTURE) + 2;
        for (at, part) in [&head[..], &stamp, content].concat().chunks(184).enumerate() {
            let start = if at == 0 { 0x40 } else { 0 };
            let field = 184 - part.len();
            let kind = if field > 0 { 0x30 } else { 0x10 };
            let [high, low] = pid.to_be_bytes();
            self.out.extend([0x47, start | high, low, kind | self.counters[counter] & 0xf]);
            self.counters[counter] = self.counters[counter].wrapping_add(1);
            if field > 0 {
                self.out.push(field as u8 - 1);
                self.out.extend(std::iter::once(0).chain(std::iter::repeat(0xff)).take(field - 1));
            }
            self.out.extend_from_slice(part);
        }
    }

    /// A picture: a key frame or another one.
    fn picture(&mut self, time: i64, is_key: bool) {
        let unit: &[u8] = if is_key { &[0, 0, 1, 0x67, 1, 2, 0, 0, 1, 0x65] } else { &[0, 0, 1, 0x41] };
        self.frame(PICTURE, time, &[unit, &[7; 300]].concat());
    }

    fn sound(&mut self, time: i64) {
        self.frame(SOUND, time, &[7; 100]);
    }

    /// A picture with a key frame every second and sound, for a number of seconds from a time on.
    fn both(&mut self, from: i64, seconds: i64) {
        let mut heard = from;
        for n in 0..seconds * 25 {
            let time = from + n * FRAME;
            self.picture(time, n % 25 == 0);
            while heard < time + FRAME {
                self.sound(heard);
                heard += BLOCK;
            }
        }
    }

    fn sounds(&mut self, from: i64, seconds: i64) {
        (0..seconds * HZ / BLOCK).for_each(|n| self.sound(from + n * BLOCK));
    }
}

const BOTH: [(u8, u16); 2] = [(0x1b, PICTURE), (0x03, SOUND)];

fn muxer() -> Muxer {
    let mut muxer = Muxer::default();
    muxer.tables(&BOTH);
    muxer
}

/// The segments of a stream: seconds, and whether they do not continue the one before.
fn listed(hls: &Hls) -> Vec<(f64, bool)> {
    let text = hls.playlist().unwrap_or_default();
    let mut discontinuity = false;
    let mut listed = Vec::new();
    for line in text.lines() {
        discontinuity |= line == "#EXT-X-DISCONTINUITY";
        if let Some(seconds) = line.strip_prefix("#EXTINF:") {
            listed.push((seconds.trim_end_matches(',').parse().unwrap(), std::mem::take(&mut discontinuity)));
        }
    }
    listed
}

fn segments(muxer: &Muxer) -> (Hls, Vec<(f64, bool)>) {
    let mut hls = Hls::default();
    hls.push(Time::ZERO, &muxer.out);
    hls.end(Time::ZERO);
    let listed = listed(&hls);
    (hls, listed)
}

/// Number of packets of a PID in a segment.
fn count(hls: &Hls, number: u64, pid: u16) -> usize {
    let segment = hls.segment(number).unwrap();
    segment.chunks(TS).filter(|packet| u16::from(packet[1] & 0x1f) << 8 | u16::from(packet[2]) == pid).count()
}

#[test]
fn sound_that_jumps_before_the_picture_belongs_to_the_next_segment() {
    for jump in [3600 * HZ, -3600 * HZ, -HZ * 3] {
        let mut muxer = muxer();
        muxer.both(10_000 * HZ, 3);
        let next = 10_003 * HZ + jump;
        muxer.sounds(next - HZ / 2, 1);
        muxer.both(next, 2);
        let (hls, listed) = segments(&muxer);
        assert_eq!(
            listed.iter().map(|(_, apart)| *apart).collect::<Vec<_>>(),
            [false, false, false, true, false]
        );
        assert!(listed.iter().all(|(seconds, _)| (seconds - 1.0).abs() < 0.03), "{listed:?}");
        // 47 blocks in a second, and those that were early.
        let early = (HZ / BLOCK) as usize;
        assert!(count(&hls, 2, SOUND) <= 47, "{}", count(&hls, 2, SOUND));
        assert!(count(&hls, 3, SOUND) >= 46 + early, "{}", count(&hls, 3, SOUND));
    }
}

#[test]
fn sound_alone_that_jumps_and_comes_back_changes_nothing() {
    let mut muxer = muxer();
    muxer.both(0, 2);
    muxer.sounds(500 * HZ, 1);
    muxer.both(2 * HZ, 3);
    let (hls, listed) = segments(&muxer);
    assert_eq!(listed, [(1.0, false); 5]);
    let all: usize = (0..5).map(|number| count(&hls, number, SOUND)).sum();
    assert_eq!(all, muxer.out.chunks(TS).filter(|packet| packet[2] == 1).count());
}

#[test]
fn sound_alone_that_jumps_and_stays_there_does_not_end_the_picture() {
    let mut muxer = muxer();
    muxer.both(0, 3);
    for n in 0..125 {
        let time = 3 * HZ + n * FRAME;
        muxer.picture(time, n % 25 == 0);
        (0..2).for_each(|half| muxer.sound(60 * HZ + time + half * FRAME / 2));
    }
    let (hls, listed) = segments(&muxer);
    let seconds: Vec<f64> = listed.iter().map(|(seconds, _)| *seconds).collect();
    assert_eq!(seconds, [1.0; 8]);
    // The sound waits for more than a second, and then for a key frame.
    let apart: Vec<bool> = listed.iter().map(|(_, apart)| *apart).collect();
    assert_eq!(apart, [false, false, false, false, false, true, false, false]);
    assert_eq!([3, 4, 5, 6].map(|number| count(&hls, number, SOUND)), [0, 0, 150, 50]);
    assert!((0..8).all(|number| count(&hls, number, PICTURE) == 50), "each has its pictures");
    // All of it is there.
    let all: usize = (0..8).map(|number| count(&hls, number, SOUND)).sum();
    assert_eq!(all, muxer.out.chunks(TS).filter(|packet| packet[2] == 1).count());
}

#[test]
fn sound_that_the_multiplexer_sends_early_is_no_other_time_line() {
    let mut muxer = muxer();
    muxer.both(0, 3);
    muxer.sounds(3 * HZ, 6);
    (0..150).for_each(|n| muxer.picture(3 * HZ + n * FRAME, n % 25 == 0));
    muxer.both(9 * HZ, 3);
    let (_, listed) = segments(&muxer);
    assert_eq!(listed, [(1.0, false); 12]);
}

#[test]
fn a_picture_that_is_named_and_never_comes_is_not_waited_for_for_long() {
    let mut muxer = muxer();
    muxer.sounds(0, 20);
    let (_, listed) = segments(&muxer);
    assert!(
        listed.len() >= 7 && listed.iter().all(|(seconds, apart)| *seconds < 1.5 && !apart),
        "{listed:?}"
    );
    // It comes at last.
    muxer.both(20 * HZ, 3);
    let (_, listed) = segments(&muxer);
    let apart: Vec<bool> = listed.iter().rev().map(|(_, apart)| *apart).take(4).collect();
    assert_eq!(apart, [false, false, true, false]);
}

#[test]
fn a_picture_that_stops_leaves_the_sound() {
    let mut muxer = muxer();
    muxer.both(0, 2);
    muxer.sounds(2 * HZ, 14);
    muxer.both(16 * HZ, 2);
    let (_, listed) = segments(&muxer);
    let whole: f64 = listed.iter().map(|(seconds, _)| seconds).sum();
    assert!((whole - 18.0).abs() < 0.1, "{listed:?}");
    assert_eq!(listed.iter().filter(|(_, apart)| *apart).count(), 2, "{listed:?}");
    assert!(listed.iter().all(|(seconds, _)| *seconds < 10.5), "{listed:?}");
}

#[test]
fn a_still_picture_is_no_jump_while_the_sound_goes_on() {
    let mut muxer = muxer();
    muxer.both(0, 2);
    muxer.sounds(2 * HZ, 11);
    muxer.both(13 * HZ, 2);
    let (_, listed) = segments(&muxer);
    assert!(listed.iter().all(|(_, apart)| !apart), "{listed:?}");
    assert!((listed.iter().map(|(seconds, _)| seconds).sum::<f64>() - 15.0).abs() < 0.1, "{listed:?}");
}

#[test]
fn a_stream_without_segments_or_picture_says_why() {
    let says = |make: &dyn Fn(&mut Muxer)| {
        let (mut muxer, mut hls) = (Muxer::default(), Hls::default());
        make(&mut muxer);
        hls.push(Time::ZERO, &muxer.out);
        hls.problem().map(|problem| problem.to_string()).unwrap_or_default()
    };
    let scrambled = |muxer: &mut Muxer, seconds: i64| {
        let from = muxer.out.len();
        (0..25 * seconds).for_each(|n| muxer.picture(n * FRAME, n % 25 == 0));
        for packet in muxer.out[from..].chunks_mut(TS) {
            packet[3] |= 0x80;
            let field = if packet[3] & 0x20 != 0 { 1 + usize::from(packet[4]) } else { 0 };
            packet[4 + field..].fill(0x55);
        }
    };
    assert!(says(&|_| ()).contains("no TS packet"));
    assert!(says(&|muxer| muxer.sounds(0, 1)).contains("no program association table"));
    let association = says(&|muxer| {
        muxer.tables(&BOTH);
        muxer.out.truncate(TS);
    });
    assert!(association.contains("no program map has arrived on PID 0x1000"), "{association}");
    let data = says(&|muxer| muxer.tables(&[(0x06, PICTURE), (0x86, SOUND)]));
    assert!(data.contains("type 0x06 on PID 0x100, type 0x86 on PID 0x101"), "{data}");
    let named = |make: &dyn Fn(&mut Muxer)| {
        says(&|muxer| {
            muxer.tables(&BOTH);
            make(muxer);
        })
    };
    assert!(named(&|_| ()).contains("picture on PID 0x100 sends no frames"));
    assert!(named(&|muxer| scrambled(muxer, 1)).contains("picture on PID 0x100 is scrambled"));
    assert!(named(&|muxer| muxer.picture(0, false)).contains("no key frame"));
    assert_eq!(named(&|muxer| muxer.picture(0, true)), "");
    let sound = named(&|muxer| {
        scrambled(muxer, 1);
        muxer.sounds(0, 20);
    });
    assert!(sound.contains("sound only: the picture on PID 0x100 is scrambled"), "{sound}");
    let stopped = named(&|muxer| {
        muxer.both(0, 2);
        muxer.sounds(2 * HZ, 20);
    });
    assert!(stopped.contains("sound only: the picture on PID 0x100 sends no frames"), "{stopped}");
    let unknown = says(&|muxer| {
        muxer.tables(&[(0x06, PICTURE), (0x03, SOUND)]);
        muxer.sounds(0, 3);
    });
    assert!(unknown.contains("no picture of a known codec (type 0x06 on PID 0x100)"), "{unknown}");
}

#[test]
fn repeated_packets_are_dropped() {
    let mut muxer = muxer();
    muxer.both(0, 3);
    let twice: Vec<u8> = muxer.out.chunks(TS).flat_map(|packet| packet.repeat(2)).collect();
    let (hls, listed) = segments(&muxer);
    let (other, same) = segments(&Muxer { out: twice, ..Muxer::default() });
    assert_eq!((listed, hls.segment(1)), (same, other.segment(1)));
}

#[test]
fn a_stream_that_begins_again_goes_on_behind_its_end() {
    let mut muxer = muxer();
    muxer.both(0, 2);
    let (mut hls, listed) = segments(&muxer);
    assert_eq!(listed, [(1.0, false); 2]);
    assert!(hls.playlist().unwrap().ends_with("#EXT-X-ENDLIST\n"));
    hls.push(Time::ZERO, &muxer.out);
    let text = hls.playlist().unwrap();
    assert!(!text.contains("ENDLIST"), "{text}");
    assert_eq!(tests::listed(&hls), [(1.0, false), (1.0, false), (1.0, true)]);
}

#[test]
fn the_parts_of_a_segment_are_its_bytes() {
    let mut muxer = muxer();
    muxer.both(0, 5);
    let mut hls = Hls::default();
    hls.follow();
    let (mut segments, mut ended) = (Vec::<Vec<u8>>::new(), 0);
    for bytes in muxer.out.chunks(6 * TS) {
        hls.push(Time::ZERO, bytes);
        for part in hls.take_parts() {
            match part {
                Part::Begin => segments.push(Vec::new()),
                Part::Packets(bytes) => segments.last_mut().unwrap().extend_from_slice(&bytes),
                Part::End => ended += 1,
            }
        }
    }
    assert_eq!((segments.len(), ended), (5, 4));
    for (number, segment) in segments[..4].iter().enumerate() {
        assert_eq!(hls.segment(number as u64).unwrap(), *segment);
    }
}

#[test]
fn memory_is_bounded_for_hostile_streams() {
    let size = |hls: &Hls| {
        let pending = hls.leader.as_ref().and_then(|leader| leader.pending.as_ref());
        hls.open.as_ref().map_or(0, |open| open.bytes.len())
            + pending.map_or(0, |pending| pending.packets.len())
            + hls.playlist.bytes()
    };
    let endless = |muxer: &mut Muxer, n: i64| muxer.frame(PICTURE, n * FRAME, &vec![7; 1 << 20]);
    let headless = |muxer: &mut Muxer, n: i64| {
        muxer.frame(PICTURE, 0, &vec![7; 1 << 20]);
        // Without a beginning, all of it belongs to the first frame.
        if n > 0 {
            muxer.out.drain(..TS);
        }
    };
    let backwards = |muxer: &mut Muxer, n: i64| {
        muxer.frame(
            PICTURE,
            -n * 20 * HZ,
            &[&[0, 0, 1, 0x67, 1, 0, 0, 1, 0x65][..], &vec![7; 1 << 20]].concat(),
        );
    };
    let elsewhere = |muxer: &mut Muxer, n: i64| {
        if n == 0 {
            muxer.both(0, 1);
        }
        muxer.frame(SOUND, 9000 * HZ, &vec![7; 1 << 20]);
    };
    type Kind<'a> = &'a dyn Fn(&mut Muxer, i64);
    let kinds: [Kind<'_>; 4] = [&endless, &headless, &backwards, &elsewhere];
    for (kind, make) in kinds.into_iter().enumerate() {
        let mut hls = Hls::default();
        hls.push(Time::ZERO, &muxer().out);
        let mut counters = [0; 4];
        for n in 0..300 {
            let mut muxer = Muxer { counters, out: Vec::new() };
            make(&mut muxer, n);
            counters = muxer.counters;
            hls.push(Time::ZERO + Span::from_millis(40 * n as u64), &muxer.out);
            assert!(size(&hls) <= (128 << 20) + 2 * MOST_BYTES + (2 << 20), "{kind}, {n}: {}", size(&hls));
        }
    }
}

#[test]
fn lying_tables_are_bounded_and_harmless() {
    let mut muxer = Muxer::default();
    // The map's PID is also a stream's, and each version names other streams.
    for n in 0..200_u16 {
        let streams: Vec<(u8, u16)> = (0..150).map(|at| (0x1b, (n * 31 + at) & 0x1fff)).collect();
        muxer.tables(&streams);
        muxer.tables(&[(0x1b, MAP), (0x03, 0)]);
        muxer.picture(i64::from(n) * FRAME, true);
    }
    let (hls, _) = segments(&muxer);
    assert!(hls.playlist().is_none_or(|text| text.len() < 1 << 16));
    // Real ones afterwards work.
    let mut after = tests::muxer();
    after.both(0, 3);
    let mut hls = hls;
    hls.push(Time::ZERO, &after.out);
    hls.end(Time::ZERO);
    assert!(listed(&hls).len() >= 3, "{:?}", listed(&hls));
}

#[test]
fn adaptation_fields_of_any_length_are_read() {
    let mut muxer = muxer();
    muxer.both(0, 2);
    let mut odd = Vec::new();
    for packet in muxer.out.chunks(TS) {
        odd.extend_from_slice(packet);
        for length in [0, 1, 183, 184, 255] {
            // Without a payload, with one, and longer than the packet.
            for control in [0x20, 0x30] {
                let mut packet = [0xff; TS];
                packet[..6].copy_from_slice(&[0x47, 0x01, 0x00, control, length, 0]);
                odd.extend_from_slice(&packet);
            }
        }
    }
    let (_, listed) = segments(&Muxer { out: odd, ..Muxer::default() });
    assert_eq!(listed, [(1.0, false); 2]);
}
