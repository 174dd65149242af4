//! Streams made by ffmpeg, sent at their own pace, and where what a client wrote lies in them.

use std::io::Write as _;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate_control::units::Span;
use tidegate_net::clock;

pub const TS: usize = 188;
/// TS packets in a packet of the stream.
pub const SIX: usize = 6;

/// A picture and a tone of this many seconds, with a key frame every second; `None` without ffmpeg.
pub fn made(seconds: u32) -> Option<Vec<u8>> {
    made_of(seconds, "320x180", "")
}

/// The same with a picture of this size, and more options.
pub fn made_of(seconds: u32, size: &str, more: &str) -> Option<Vec<u8>> {
    let picture = format!("testsrc2=size={size}:rate=25:duration={seconds}");
    let tone = format!("sine=frequency=440:duration={seconds}");
    ffmpeg(&format!(
        "-f lavfi -i {picture} -f lavfi -i {tone} -c:v libx264 -preset ultrafast -pix_fmt yuv420p -g 25 -b:v 900k \
         -c:a aac -b:a 64k {more} -f mpegts -"
    ))
}

/// The standard output of ffmpeg, in TS packets; `None` without ffmpeg.
pub fn ffmpeg(arguments: &str) -> Option<Vec<u8>> {
    let words = ["-v", "error"].into_iter().chain(arguments.split_whitespace());
    let output = Command::new("ffmpeg").args(words).stdin(Stdio::null()).output().ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout.len() % TS, 0);
    Some(output.stdout)
}

/// Longest time of a stream that is written at once. An emulated uplink drops what would wait longer than 250 ms.
const AT_ONCE: Span = Span::from_millis(200);

/// Writes a stream of so many seconds at its own pace, then ends the input or keeps it open until joined.
///
/// After a pause of the machine the rest comes later, as from a live encoder: all overdue bytes at once would be lost.
pub fn feed(mut to: ChildStdin, stream: Vec<u8>, seconds: u32) -> JoinHandle<ChildStdin> {
    std::thread::spawn(move || {
        let (mut looked, mut shown) = (clock::now(), Span::ZERO);
        let per_s = stream.len() as f64 / f64::from(seconds);
        let mut sent = 0;
        while sent < stream.len() {
            let now = clock::now();
            shown = shown + now.since(looked).min(AT_ONCE);
            looked = now;
            let due = (shown.as_secs_f64() * per_s) as usize / (SIX * TS) * SIX * TS;
            let due = if due + SIX * TS > stream.len() { stream.len() } else { due };
            to.write_all(&stream[sent..due.max(sent)]).unwrap();
            sent = due.max(sent);
            std::thread::sleep(Duration::from_millis(10));
        }
        to
    })
}

/// How a client's output lies in the stream: TS packets before its first, of it, and missing inside it. Fails if
/// it is not made of the stream's packets, in their order.
pub fn place(stream: &[u8], output: &[u8]) -> (usize, usize, usize) {
    assert_eq!(output.len() % TS, 0, "whole TS packets");
    let mut rest = stream.chunks_exact(TS).enumerate();
    let (mut first, mut last, mut count) = (None, 0, 0);
    for packet in output.chunks_exact(TS) {
        let (at, _) = rest.find(|(_, sent)| *sent == packet).expect("what is played was sent, in this order");
        first.get_or_insert(at);
        (last, count) = (at, count + 1);
    }
    let first = first.expect("something was played");
    (first, count, last + 1 - first - count)
}

/// Decodes what a client wrote from its first key frame on, and gives the frames and what the decoder says.
///
/// Unless the stream `ended`, the last frame is left out: the packets after a lost end are not known to be missing, and
/// the decoder complains of the part before it.
pub fn decode(output: &[u8], ended: bool, scratch: &Path) -> (u32, String) {
    let pid = |packet: &[u8]| u16::from(packet[1] & 0x1f) << 8 | u16::from(packet[2]);
    let tables = output.chunks_exact(TS).filter(|packet| [0, 0x1000].contains(&pid(packet))).take(2);
    let entry = |packet: &[u8]| pid(packet) == 0x100 && packet[3] & 0x20 != 0 && packet[5] & 0x40 != 0;
    let begin = output.chunks_exact(TS).position(entry).expect("a key frame");
    let starts = |packet: &[u8]| pid(packet) == 0x100 && packet[1] & 0x40 != 0;
    let end = if ended { None } else { output.chunks_exact(TS).rposition(starts) };
    let shown = &output[begin * TS..end.map_or(output.len(), |last| last * TS)];
    let cut: Vec<u8> = tables.flatten().chain(shown).copied().collect();
    std::fs::write(scratch, cut).unwrap();
    let probe = Command::new("ffprobe")
        .args("-v error -select_streams v:0 -count_frames -of csv=p=0".split(' '))
        .args(["-show_entries", "stream=nb_read_frames"])
        .arg(scratch)
        .output()
        .unwrap();
    let frames = String::from_utf8_lossy(&probe.stdout);
    let frames = frames.lines().next().and_then(|line| line.trim().trim_end_matches(',').parse().ok());
    (frames.unwrap_or(0), String::from_utf8_lossy(&probe.stderr).into_owned())
}
