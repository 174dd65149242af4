//! Tests: a stock player plays what a client offers, and a browser reads it by WebTransport.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use tidegate_net::stream::moq;

use super::browser::Browser;
use super::media::{feed, made, made_of};
use super::roles::{Scratch, client, get, server};
use super::{number, pause};
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

/// A page of this machine without a content security policy, from which scripts may connect anywhere.
fn blank_page() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut tcp in listener.incoming().flatten() {
            let answer = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<body>";
            // The browser may have gone.
            let _ = tcp.read(&mut [0; 4096]).and_then(|_| tcp.write_all(answer.as_bytes()));
        }
    });
    url
}

#[test]
fn a_browser_reads_media_over_quic_by_web_transport() {
    if !moq::IS_BUILT {
        return skipped::skipped("a browser on WebTransport", "`cargo test --workspace`, which builds `moq`");
    }
    let Some(stream) = made(20) else { return skipped::skipped("a browser on WebTransport", "ffmpeg") };
    let mut server = server("1 Mbit/s", "6 Mbit/s", "");
    let mut viewer = client(&server, "3 Mbit/s", "--moq 127.0.0.1:0");
    let edge = viewer.event();
    let feeding = feed(server.input(), stream, 20);
    viewer.until("playing", |status| number(status, "delivered") > 200);
    let scratch = Scratch::new("web-transport");
    let Some(mut browser) = Browser::open(&blank_page(), &scratch.path("profile")) else {
        return skipped::skipped("a browser on WebTransport", "chromium");
    };
    browser.until_above("document.body && isSecureContext ? 1 : 0", 0.0);
    let [address, certificate] = ["address", "certificate"].map(|key| edge[key].as_str().unwrap());
    let script = include_str!("subscriber.js").replace("ADDRESS", address);
    browser.read(&script.replace("CERTIFICATE", certificate));
    browser.until_above("seen.error === '' ? seen.groups : 9", 3.0);
    let seen = browser.read("seen");
    assert!(seen["error"] == "" && seen["protocol"] == "moq-lite-04" && seen["broken"] == 0, "{seen}");
    // Groups begin with the program association table. Playing begins in the middle of one, without waiting for the next.
    let starts: Vec<u64> =
        seen["starts"].as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap()).collect();
    assert!(starts.chunks(3).all(|start| start == [0x47, 0x40, 0]), "{seen}");
    assert!(seen["wait_ms"].as_f64().unwrap() < 1000.0, "{seen}");
    drop((browser, viewer, server));
    let _ = feeding.join();
}
