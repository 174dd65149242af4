//! Tests: subtitles that ffmpeg makes reach players, and server and client name them.

use std::fs::File;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::media::{feed, ffmpeg};
use super::number;
use super::roles::{Role, Scratch, client};
use crate::skipped;

/// A part of a bitmap subtitle (PGS) at a time in ticks of 90 kHz.
fn part(time: u32, kind: u8, content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u16).to_be_bytes();
    [&b"PG"[..], &time.to_be_bytes(), &[0; 4], &[kind], &length, content].concat()
}

/// A white box that is shown each second for half a second. ffmpeg's encoder of DVB subtitles takes bitmaps only.
fn boxes(seconds: u32) -> Vec<u8> {
    let pair = |a: u16, b: u16| [a.to_be_bytes(), b.to_be_bytes()].concat();
    let window = [&[1, 0][..], &pair(60, 100), &pair(40, 10)].concat();
    let lines = [0, 0x80 | 40, 1, 0, 0].repeat(10);
    let picture = [&[0, 0, 0, 0xc0, 0, 0, lines.len() as u8 + 4][..], &pair(40, 10), &lines].concat();
    let mut all = Vec::new();
    for second in 1..seconds {
        let (shown, hidden) = (second * 90_000, second * 90_000 + 45_000);
        let head = |number: u16, state: u8, objects: u8| {
            [&pair(160, 120)[..], &[0x10], &number.to_be_bytes(), &[state, 0, 0, objects]].concat()
        };
        let number = 2 * second as u16;
        let composition = [&head(number, 0x80, 1)[..], &[0, 0, 0, 0], &pair(60, 100)].concat();
        all.extend(part(shown, 0x16, &composition));
        all.extend(part(shown, 0x17, &window));
        all.extend(part(shown, 0x14, &[0, 0, 1, 235, 128, 128, 255]));
        all.extend(part(shown, 0x15, &picture));
        all.extend(part(shown, 0x80, &[]));
        all.extend(part(hidden, 0x16, &head(number + 1, 0, 0)));
        all.extend(part(hidden, 0x17, &window));
        all.extend(part(hidden, 0x80, &[]));
    }
    all
}

/// A picture, a tone and subtitles of six seconds.
fn made(scratch: &Scratch) -> Option<Vec<u8>> {
    let file = scratch.path("boxes.sup");
    std::fs::write(&file, boxes(6)).unwrap();
    ffmpeg(&format!(
        "-i {} -f lavfi -i testsrc2=size=160x120:rate=25:duration=6 -f lavfi -i sine=duration=6 -map 1:v -map 2:a \
         -map 0:s -c:v libx264 -preset ultrafast -pix_fmt yuv420p -g 25 -c:a aac -c:s dvbsub \
         -metadata:s:a:0 language=eng -metadata:s:s:0 language=deu -f mpegts -",
        file.display()
    ))
}

#[test]
fn subtitles_reach_players_and_both_roles_say_what_becomes_of_them() {
    let scratch = Scratch::new("subtitles");
    let Some(stream) = made(&scratch) else { return skipped::skipped("subtitles of real media", "ffmpeg") };
    let log = scratch.path("log");
    let mut server = Role::start_with_log(
        "server --listen 127.0.0.1:0 --input -",
        &["--rate", "1 Mbit/s"],
        Stdio::from(File::create(&log).unwrap()),
    );
    let viewer = client(&server, "3 Mbit/s", "");
    viewer.until("in", |status| status["phase"] == "in");
    drop(feed(server.input(), stream, 6).join().unwrap());
    let expected = [
        "H.264 picture on PID 0x100: segments begin with it",
        "AAC sound on PID 0x101 (eng): in segments",
        "DVB subtitles on PID 0x102 (deu): passed on unchanged, also in segments; browsers do not show it",
    ];
    let says = |status: &Value| status["contents"] == serde_json::json!(expected);
    let status = server.wait();
    assert!(says(&status), "{status}");
    let said = std::fs::read_to_string(log).unwrap();
    assert_eq!(said.trim(), format!("source: holds {}", expected.join("; ")));
    viewer.until("saying so", says);
    let probe = Command::new("ffprobe")
        .args("-v error -select_streams s -count_packets -of csv=p=0".split(' '))
        .args(["-show_entries", "stream=codec_name,nb_read_packets"])
        .arg(format!("http://{}/hls/live.m3u8", viewer.text("page")))
        .output()
        .unwrap();
    let found = String::from_utf8(probe.stdout).unwrap();
    assert!(found.lines().any(|line| line == "dvb_subtitle,10"), "{found}");
    assert_eq!(number(&viewer.status(), "gaps"), 0);
}
