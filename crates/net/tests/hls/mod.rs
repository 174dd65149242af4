//! HLS made of what ffmpeg makes: players read it, and the rules of RFC 8216 hold at every moment.

mod clips;
mod rules;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clips::{Folder, TS, clip, decode, ffmpeg, flags, pid};
use rules::Rules;
use tidegate_control::units::{Span, Time};
use tidegate_net::stream::hls::Hls;
use tidegate_stream::framer::Framer;

use crate::skipped;

/// A player that fetches every version of the playlist and every segment.
#[derive(Default)]
struct Watcher {
    hls: Hls,
    framer: Framer,
    now: Time,
    rules: Rules,
    segments: BTreeMap<u64, Vec<u8>>,
}

impl Watcher {
    /// Plays bytes within a time.
    fn play(&mut self, bytes: &[u8], within: Span) {
        let chunks = bytes.chunks(bytes.len().div_ceil(100).max(1));
        let step = Span(within.0 / chunks.len() as u64);
        for chunk in chunks {
            for payload in self.framer.push(chunk) {
                self.hls.push(self.now, &payload);
            }
            self.now += step;
            self.look();
        }
    }

    /// The source pauses.
    fn pause(&mut self, span: Span) {
        if let Some(payload) = self.framer.flush() {
            self.hls.push(self.now, &payload);
        }
        for _ in 0..10 {
            self.now += Span(span.0 / 10);
            self.hls.idle(self.now);
            self.look();
        }
    }

    /// The source ends.
    fn end(&mut self) {
        if let Some(payload) = self.framer.flush() {
            self.hls.push(self.now, &payload);
        }
        self.hls.end(self.now);
        self.look();
        assert!(self.hls.playlist().is_some_and(|text| text.ends_with("#EXT-X-ENDLIST\n")));
    }

    fn look(&mut self) {
        let Some(text) = self.hls.playlist() else { return };
        self.rules.check(self.now, &text, |number| self.hls.segment(number).is_some());
        for number in self.rules.known.keys() {
            if !self.segments.contains_key(number) {
                self.segments.insert(*number, self.hls.segment(*number).unwrap().to_vec());
            }
        }
    }

    /// Durations of all segments.
    fn durations(&self) -> Vec<f64> {
        self.rules.known.values().map(|segment| segment.seconds).collect()
    }

    fn discontinuities(&self) -> u64 {
        self.rules.known.values().map(|segment| segment.discontinuities).max().unwrap_or(0)
    }

    /// Decodes all segments as a player does, and each alone. Returns the number of frames.
    fn decode(&self, name: &str, streams: &str) -> usize {
        self.decode_all(name, streams, true)
    }

    /// As `decode`. In an open group, pictures that are shown before the key frame need the group before it, so a
    /// segment does not decode `alone`.
    fn decode_all(&self, name: &str, streams: &str, alone: bool) -> usize {
        let folder = Folder::new(name);
        let mut text = "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:12\n".to_owned();
        let mut before = 0;
        for (number, bytes) in &self.segments {
            let listed = &self.rules.known[number];
            if listed.discontinuities > before {
                text.push_str("#EXT-X-DISCONTINUITY\n");
            }
            before = listed.discontinuities;
            let _ = write!(text, "#EXTINF:{:.3},\n{number}.ts\n", listed.seconds);
            let path = folder.write(&format!("{number}.ts"), bytes);
            if !alone {
                continue;
            }
            let (frames, said) = decode(&path, streams);
            assert!(said.is_empty() && frames > 0, "{name}, segment {number} alone: {frames}, {said}");
        }
        text.push_str("#EXT-X-ENDLIST\n");
        let (frames, said) = decode(&folder.write("all.m3u8", text.as_bytes()), streams);
        assert!(said.is_empty(), "{name}: {said}");
        frames
    }

    /// Whether each segment begins with its tables and a flagged packet of that PID.
    fn begin_with(&self, first: u16) {
        for (number, bytes) in &self.segments {
            let pids: Vec<u16> = bytes.chunks_exact(TS).map(pid).collect();
            assert_eq!((pids[0], pids[2]), (0, first), "segment {number}: {:x?}", &pids[..6]);
        }
    }
}

/// Tells that ffmpeg is missing, once per test.
macro_rules! made {
    ($made:expr, $what:literal) => {
        match $made {
            Some(made) => made,
            None => return skipped::skipped($what, "ffmpeg"),
        }
    };
}

fn near(values: &[f64], expected: &[f64]) {
    let close = |(value, expected): (&f64, &f64)| (value - expected).abs() < 0.05;
    let same = values.len() == expected.len() && values.iter().zip(expected).all(close);
    assert!(same, "{values:?}, not {expected:?}");
}

#[test]
fn segments_begin_with_key_frames_and_last_as_long_as_they_say() {
    let sound = "-map 0:v -map 1:a -map 1:a";
    let stream = made!(clip(8, "160x120", 50, sound), "key frames of a picture with two sounds");
    for within in [Span::from_secs(8), Span::from_secs(1)] {
        let mut watcher = Watcher::default();
        watcher.play(&stream, within);
        watcher.end();
        near(&watcher.durations(), &[2.0; 4]);
        watcher.begin_with(0x100);
        if within == Span::from_secs(1) {
            assert_eq!(watcher.decode("keys", "v"), 200);
        }
        assert_eq!(watcher.discontinuities(), 0);
    }
}

#[test]
fn restarts_jumps_and_changes_of_size_are_discontinuities_and_wraps_are_none() {
    // 2^33 ticks are 95443.7 s: the first clip wraps in its middle.
    let wraps = made!(clip(4, "160x120", 25, "-output_ts_offset 95441.7"), "restarts of an encoder");
    let larger = clip(2, "192x144", 25, "").unwrap();
    let later = clip(2, "192x144", 25, "-output_ts_offset 3600").unwrap();
    let mut watcher = Watcher::default();
    watcher.play(&wraps, Span::from_secs(4));
    watcher.play(&larger, Span::from_secs(2));
    watcher.pause(Span::from_secs(3));
    watcher.play(&later, Span::from_secs(1));
    watcher.play(&later, Span::from_secs(2));
    watcher.end();
    near(&watcher.durations(), &[1.0; 10]);
    let numbers: Vec<u64> = watcher.rules.known.values().map(|segment| segment.discontinuities).collect();
    assert_eq!(numbers, [0, 0, 0, 0, 1, 1, 2, 2, 3, 3]);
    watcher.begin_with(0x100);
    assert_eq!(watcher.decode("restarts", "v"), 250);
}

#[test]
fn a_change_of_size_without_a_jump_is_a_discontinuity() {
    let one = made!(clip(2, "160x120", 25, ""), "changes of size");
    let two = clip(2, "192x144", 25, "-output_ts_offset 2").unwrap();
    let mut watcher = Watcher::default();
    watcher.play(&[one, two].concat(), Span::from_secs(4));
    watcher.end();
    near(&watcher.durations(), &[1.0; 4]);
    assert_eq!(watcher.discontinuities(), 1);
    assert_eq!(watcher.decode("sizes", "v"), 100);
}

#[test]
fn the_first_sound_of_another_format_is_behind_the_discontinuity() {
    let one = made!(clip(2, "160x120", 25, "-ar 44100"), "changes of the sound's format");
    let two = clip(2, "160x120", 25, "-ar 48000 -output_ts_offset 2").unwrap();
    let mut watcher = Watcher::default();
    watcher.play(&[one, two].concat(), Span::from_secs(4));
    watcher.end();
    let numbers: Vec<u64> = watcher.rules.known.values().map(|segment| segment.discontinuities).collect();
    assert_eq!(numbers, [0, 0, 1, 1]);
    assert_eq!(watcher.decode("rates", "v"), 100);
}

#[test]
fn small_jumps_are_discontinuities_and_their_holes_do_not_count() {
    let one = made!(clip(2, "160x120", 25, ""), "small jumps");
    for offset in ["5", "1.3", "0.5"] {
        let two = clip(2, "160x120", 25, &format!("-output_ts_offset {offset}")).unwrap();
        let mut watcher = Watcher::default();
        watcher.play(&[&one[..], &two].concat(), Span::from_secs(4));
        watcher.end();
        near(&watcher.durations(), &[1.0; 4]);
        assert_eq!(watcher.discontinuities(), 1, "{offset}");
    }
}

#[test]
fn stalls_leave_the_segment_open_and_long_ones_list_it() {
    let stream = made!(clip(6, "160x120", 50, ""), "stalls");
    let (one, two) = stream.split_at(stream.len() / 2 / TS * TS);
    for (stall, number) in [(10, 3), (16, 4)] {
        let mut watcher = Watcher::default();
        watcher.play(one, Span::from_secs(3));
        watcher.pause(Span::from_secs(stall));
        watcher.play(two, Span::from_secs(3));
        watcher.end();
        assert_eq!((watcher.durations().len(), watcher.discontinuities()), (number, 0), "{stall}");
        assert!((watcher.durations().iter().sum::<f64>() - 6.0).abs() < 0.05);
        assert_eq!(watcher.decode_all(&format!("stall-{stall}"), "v", stall == 10), 150);
    }
}

#[test]
fn groups_of_20_seconds_and_slides_are_not_divided() {
    let size = "-f lavfi -i testsrc=size=96x64";
    let codec = "-pix_fmt yuv420p -c:v libx264 -preset ultrafast -sc_threshold 0";
    for (name, arguments, durations) in [
        ("long", format!("{size}:rate=10:duration=50 {codec} -g 200 -f mpegts -"), vec![20.0, 20.0, 10.0]),
        ("slides", format!("{size}:rate=1/3:duration=24 {codec} -g 2 -f mpegts -"), vec![6.0; 4]),
    ] {
        let stream = made!(ffmpeg(&arguments), "long groups");
        let mut watcher = Watcher::default();
        watcher.play(&stream, Span::from_secs(20));
        watcher.end();
        near(&watcher.durations(), &durations);
        assert_eq!(watcher.discontinuities(), 0, "{name}");
        watcher.decode(name, "v");
    }
}

#[test]
fn groups_of_250_frames_are_not_divided_behind_a_short_one() {
    let stream = made!(
        clip(24, "96x64", 250, "-sc_threshold 0 -force_key_frames 0,3"),
        "ordinary groups behind a change of the scene"
    );
    let mut watcher = Watcher::default();
    watcher.play(&stream, Span::from_secs(24));
    watcher.end();
    near(&watcher.durations(), &[3.0, 10.0, 10.0, 1.0]);
    assert_eq!((watcher.decode("ordinary", "v"), watcher.discontinuities()), (600, 0));
}

#[test]
fn key_frames_without_flags_are_found_and_flags_of_others_are_ignored() {
    for (codec, kind) in [
        ("libx264 -preset ultrafast -bf 2 -g 25", "H.264"),
        (
            "libx265 -preset ultrafast -x265-params keyint=25:min-keyint=25:scenecut=0:log-level=error",
            "H.265",
        ),
        ("mpeg2video -g 25 -sc_threshold 1000000000", "MPEG-2"),
        ("mpeg4 -g 25 -sc_threshold 1000000000", "MPEG-4"),
    ] {
        let mut stream = made!(
            ffmpeg(&format!(
                "-f lavfi -i testsrc=size=160x120:rate=25:duration=3 -pix_fmt yuv420p -c:v {codec} -f mpegts -"
            )),
            "key frames without flags"
        );
        let mut lying = stream.clone();
        for packet in stream.chunks_exact_mut(TS) {
            flags(packet).into_iter().for_each(|flags| *flags &= !0x40);
        }
        for packet in lying.chunks_exact_mut(TS) {
            flags(packet).into_iter().for_each(|flags| *flags |= 0x40);
        }
        for (stream, name) in [(stream, "none"), (lying, "all")] {
            let mut watcher = Watcher::default();
            watcher.play(&stream, Span::from_secs(3));
            watcher.end();
            near(&watcher.durations(), &[1.0; 3]);
            assert_eq!(watcher.decode(&format!("flags-{kind}-{name}"), "v"), 75, "{kind}");
        }
    }
}

#[test]
fn sound_alone_is_cut_by_time_and_m2ts_is_read() {
    let sound = "-f lavfi -i sine=duration=4 -c:a";
    for (codec, format) in
        [("aac", "mpegts"), ("ac3", "mpegts -mpegts_m2ts_mode 1"), ("dca -strict -2", "mpegts")]
    {
        let made = ffmpeg(&format!("{sound} {codec} -f {format} -"));
        let stream = made!(made, "sound alone");
        let mut watcher = Watcher::default();
        watcher.play(&stream, Span::from_secs(1));
        watcher.end();
        let durations = watcher.durations();
        assert!((3..=5).contains(&durations.len()), "{codec}: {durations:?}");
        assert!((durations.iter().sum::<f64>() - 4.0).abs() < 0.1, "{codec}: {durations:?}");
        assert!(watcher.decode(&format!("sound-{}", &codec[..3]), "a") > 100);
    }
}

#[test]
fn rare_key_frames_and_long_streams_keep_the_rules() {
    let rare =
        made!(clip(24, "96x64", 250, "-r 25 -sc_threshold 0 -force_key_frames 0,1,2,7,8,9"), "long streams");
    let mut watcher = Watcher::default();
    for round in 0..6 {
        watcher.play(&rare, Span::from_secs(if round % 2 == 0 { 24 } else { 4 }));
    }
    watcher.end();
    assert_eq!(watcher.discontinuities(), 5);
    let durations = watcher.durations();
    near(&durations[..5], &[1.0, 1.0, 5.0, 1.0, 1.0]);
    assert!((durations.iter().sum::<f64>() - 144.0).abs() < 1.0, "{durations:?}");
}

/// Streams as ffmpeg makes them with other options: name, arguments, number of frames of the picture, durations.
const OTHERS: [(&str, &str, usize, &[f64]); 6] = [
    (
        "B-frames in an open group, 50 frames per second",
        "-f lavfi -i testsrc=size=96x64:rate=50:duration=4 -f lavfi -i sine=duration=4 -pix_fmt yuv420p -c:v libx264 \
         -preset veryfast -bf 3 -x264-params open-gop=1:keyint=50:min-keyint=50:scenecut=0 -c:a aac -f mpegts -",
        200,
        &[1.0; 4],
    ),
    (
        "interlaced MPEG-2 in open groups, with MP2",
        "-f lavfi -i testsrc=size=96x64:rate=25:duration=4 -f lavfi -i sine=duration=4 -pix_fmt yuv420p -c:v mpeg2video \
         -flags +ildct+ilme -bf 2 -g 25 -sc_threshold 1000000000 -c:a mp2 -f mpegts -",
        100,
        // The encoder sets key frames 27 and then 24 frames apart.
        &[1.08, 0.96, 0.96, 0.96, 0.04],
    ),
    (
        "H.265 with B-frames and two sounds before the picture",
        "-f lavfi -i testsrc=size=96x64:rate=25:duration=4 -f lavfi -i sine=duration=4 -map 1:a -map 1:a -map 0:v \
         -pix_fmt yuv420p -c:v libx265 -preset ultrafast -x265-params \
         bframes=3:keyint=25:min-keyint=25:scenecut=0:open-gop=0:log-level=error -c:a:0 aac -c:a:1 ac3 -f mpegts -",
        100,
        &[1.0; 4],
    ),
    (
        "30000/1001 frames per second",
        "-f lavfi -i testsrc=size=96x64:rate=30000/1001:duration=4 -f lavfi -i sine=duration=4 -pix_fmt yuv420p \
         -c:v libx264 -preset ultrafast -g 30 -c:a aac -f mpegts -",
        120,
        &[1.001, 1.001, 1.001, 1.001],
    ),
    (
        "a recovery point instead of IDR pictures",
        "-f lavfi -i testsrc=size=96x64:rate=25:duration=4 -f lavfi -i sine=duration=4 -pix_fmt yuv420p -c:v libx264 \
         -preset ultrafast -x264-params intra-refresh=1:keyint=25 -c:a aac -f mpegts -",
        100,
        &[],
    ),
    (
        "tables and headers repeated, other PIDs and a service name",
        "-f lavfi -i testsrc=size=96x64:rate=25:duration=4 -f lavfi -i sine=duration=4 -pix_fmt yuv420p -c:v libx264 \
         -preset ultrafast -g 25 -c:a aac -mpegts_flags resend_headers -mpegts_start_pid 0x1200 -pat_period 0.05 \
         -mpegts_pmt_start_pid 0x1f0 -metadata service_name=x -muxrate 2M -f mpegts -",
        100,
        &[1.0; 4],
    ),
];

#[test]
fn other_encoders_play() {
    for (number, (name, arguments, frames, durations)) in OTHERS.into_iter().enumerate() {
        let stream = made!(ffmpeg(arguments), "streams of other encoders");
        let mut watcher = Watcher::default();
        watcher.play(&stream, Span::from_secs(1));
        watcher.end();
        let got = watcher.durations();
        assert!((got.iter().sum::<f64>() - 4.0).abs() < 0.15, "{name}: {got:?}");
        if !durations.is_empty() {
            near(&got, durations);
            let alone = !name.contains("open group");
            assert_eq!(watcher.decode_all(&format!("others-{number}"), "v", alone), frames, "{name}");
        }
        assert_eq!(watcher.discontinuities(), 0, "{name}");
    }
}
