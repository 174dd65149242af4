//! Tests: a stock player plays what a client offers.

use std::process::{Command, Stdio};

use super::media::{feed, made, made_of};
use super::pause;
use super::roles::{client, get, server};
use crate::skipped;

/// The clock of ffplay, seconds of the stream, as it prints it while it plays.
fn clocks(said: &str) -> Vec<f64> {
    let clock = |line: &str| line.split_once(" A-V:")?.0.trim().parse().ok();
    said.split(['\r', '\n']).filter_map(clock).collect()
}

#[test]
fn ffplay_plays_over_a_restart_to_the_end() {
    let Some(first) = made(6) else { return skipped::skipped("a player over a restart", "ffmpeg") };
    // The encoder starts again: time stamps go back, and the picture has another size.
    let stream = [first, made_of(6, "256x144", "").unwrap()].concat();
    for path in ["/hls/live.m3u8", "/stream.ts"] {
        let mut server = server("1 Mbit/s", "6 Mbit/s", "");
        let viewer = client(&server, "3 Mbit/s", "");
        viewer.until("in", |status| status["phase"] == "in");
        let feeding = feed(server.input(), stream.clone(), 12);
        while path.starts_with("/hls") && !get(viewer.text("page"), path).contains("#EXTINF") {
            pause(100);
        }
        let player = Command::new("ffplay")
            .args(["-hide_banner", "-autoexit", "-loglevel", "error", "-stats"])
            .arg(format!("http://{}{path}", viewer.text("page")))
            .envs([("SDL_VIDEODRIVER", "dummy"), ("SDL_AUDIODRIVER", "dummy")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(player) = player else { return skipped::skipped("a player over a restart", "ffplay") };
        drop(feeding.join().unwrap());
        let output = player.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{path}: {said}");
        let clocks = clocks(&said);
        // Encoders begin at 1.4 s.
        let restart = clocks.windows(2).position(|pair| pair[1] < pair[0] - 3.0).expect(&said);
        let (before, after) = clocks.split_at(restart + 1);
        let highest = |clocks: &[f64]| clocks.iter().copied().fold(0.0, f64::max);
        assert!(highest(before) > 6.0 && highest(after) > 6.0, "{path}: {before:?}, {after:?}");
    }
}
