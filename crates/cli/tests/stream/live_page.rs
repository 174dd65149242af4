//! Tests: a browser plays a client's track of Media over QUIC, and its demuxer bears hard input.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tidegate_net::identity::hex;
use tidegate_net::stream::moq;

use super::browser::Browser;
use super::media::{feed, made};
use super::number;
use super::roles::{Role, Scratch, client, server};
use crate::skipped;

/// Why a test that needs Media over QUIC is skipped.
const UNBUILT: &str = "`cargo test --workspace`, which builds `moq`";

#[test]
fn a_browser_reads_media_over_quic_by_web_transport() {
    if !moq::IS_BUILT {
        return skipped::skipped("a browser on WebTransport", UNBUILT);
    }
    let Some(stream) = made(60) else { return skipped::skipped("a browser on WebTransport", "ffmpeg") };
    let mut server = server("1 Mbit/s", "6 Mbit/s", "");
    let mut viewer = client(&server, "3 Mbit/s", "--moq 127.0.0.1:0");
    let edge = viewer.event();
    let feeding = feed(server.input(), stream, 60);
    viewer.until("playing", |status| number(status, "delivered") > 200);
    let scratch = Scratch::new("web-transport");
    // Best of three: a pause of the machine also delays the first bytes.
    for attempt in 0..3 {
        let profile = scratch.path(&format!("profile-{attempt}"));
        let Some(seen) = subscribed(edge["page"].as_str().unwrap(), &profile) else {
            return skipped::skipped("a browser on WebTransport", "chromium");
        };
        assert!(seen["error"] == "" && seen["protocol"] == "moq-lite-04" && seen["broken"] == 0, "{seen}");
        // Groups follow each other, and begin with the program association table.
        let numbers = |key: &str| -> Vec<u64> {
            seen[key].as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
        };
        assert!(numbers("groups").windows(2).all(|pair| pair[1] == pair[0] + 1), "{seen}");
        assert!(numbers("starts").chunks(3).all(|start| start == [0x47, 0x40, 0]), "{seen}");
        // Playing begins in the middle of one, without waiting for the next.
        let is_soon = seen["wait_ms"].as_f64().unwrap() < 1000.0;
        assert!(is_soon || attempt < 2, "{seen}");
        if is_soon {
            break;
        }
    }
    drop((viewer, server));
    let _ = feeding.join();
}

/// A browser's measurements of some groups of the track; `None` without Chromium.
fn subscribed(page: &str, profile: &Path) -> Option<Value> {
    let mut browser = Browser::open(page, profile)?;
    browser.until_above("document.body && isSecureContext ? 1 : 0", 0.0);
    browser.read(include_str!("subscription.js"));
    browser.until_above("seen.error === '' ? seen.groups.length : 9", 3.0);
    Some(browser.read("seen"))
}

/// An encoder that sends its picture and tone at their own pace. The time of each picture is drawn into it.
struct Encoder(Child);

impl Encoder {
    /// `None` without ffmpeg.
    fn start(size: &str, to: &OwnedFd) -> Option<Encoder> {
        let square = |bit: u32| {
            let place = format!("drawbox=x={}:y=0:w=16:h=16:t=fill", 16 * bit);
            // Units of 20 ms.
            let time = format!("mod(floor(time(0)*50/{}),2)", 1 << bit);
            format!(",{place}:color=black,{place}:color=white:enable='{time}'")
        };
        let squares: String = (0..12).map(square).collect();
        let picture = format!("testsrc2=size={size}:rate=25{squares}");
        let coding = "-c:v libx264 -preset ultrafast -tune zerolatency -pix_fmt yuv420p -g 25 -b:v 900k -c:a aac \
                      -b:a 64k -f mpegts -";
        let encoder = Command::new("ffmpeg")
            .args(["-v", "error", "-re", "-f", "lavfi", "-i", &picture])
            .args(["-re", "-f", "lavfi", "-i", "sine=frequency=440"])
            .args(coding.split_whitespace())
            .stdin(Stdio::null())
            .stdout(to.try_clone().unwrap())
            .stderr(Stdio::null())
            .spawn();
        encoder.ok().map(Encoder)
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for so many different pictures, and gives the median time from drawing a picture to its display, seconds.
fn watch(browser: &mut Browser, pictures: f64) -> f64 {
    browser.read(include_str!("watch.js"));
    browser.until_above("watched.times.size", pictures);
    browser.read("median(watched.delays)").as_f64().unwrap() / 1e3
}

#[test]
fn a_browser_plays_media_over_quic_with_less_delay_than_hls() {
    if !moq::IS_BUILT {
        return skipped::skipped("a browser that plays Media over QUIC", UNBUILT);
    }
    let mut server = server("1 Mbit/s", "6 Mbit/s", "");
    let input = OwnedFd::from(server.input());
    let mut viewer = client(&server, "3 Mbit/s", "--moq 127.0.0.1:0");
    let pages =
        [viewer.event()["page"].as_str().unwrap().to_owned(), format!("http://{}/", viewer.text("page"))];
    // A pause of the machine lengthens delays, so one of three comparisons is enough.
    for attempt in 0..3 {
        let scratch = Scratch::new("live-page");
        let (live, restarted, hls) = match delays(&input, &pages, &scratch) {
            Ok(delays) => delays,
            Err(program) => return skipped::skipped("a browser that plays Media over QUIC", program),
        };
        if live < hls && restarted < hls {
            return;
        }
        assert!(attempt < 2, "{live} s, {restarted} s, HLS {hls} s");
    }
}

/// Median delays from drawing to display in seconds, of these pages: live, live after the encoder starts again, and HLS.
/// Fails with the name of a program that is not there.
fn delays(
    input: &OwnedFd,
    [live, hls]: &[String; 2],
    scratch: &Scratch,
) -> Result<(f64, f64, f64), &'static str> {
    let encoder = Encoder::start("320x180", input).ok_or("ffmpeg")?;
    let mut page = Browser::open(live, &scratch.path("live")).ok_or("chromium")?;
    page.until_above("document.querySelector('canvas')?.width == 320 ? 1 : 0", 0.0);
    let live = watch(&mut page, 50.0);
    // A busy machine has a longer buffer at first.
    let within = 1.0 - page.until_above("1 - parseFloat(row('arrival to display'))", 0.0);
    assert_eq!(page.read("document.querySelector('canvas').width"), 320);
    assert_eq!(page.read("document.getElementById('wrong').hidden"), true);
    page.read("document.getElementById('sound').click()");
    page.until_above(
        "row('sound') == 'on' && Math.abs(parseFloat(row('sound behind picture'))) < 60 ? 1 : 0",
        0.0,
    );
    for (width, name) in [(1280, "live.png.base64"), (390, "live-phone.png.base64")] {
        page.fit(width, name);
    }
    // The encoder starts again: time stamps go back, and the picture has another size.
    drop(encoder);
    let _encoder = Encoder::start("256x192", input).unwrap();
    page.until_above("document.querySelector('canvas').width == 256 ? 1 : 0", 0.0);
    let restarted = watch(&mut page, 50.0);
    drop(page);
    let mut page = Browser::open(hls, &scratch.path("hls")).unwrap();
    page.until_above("document.querySelector('video')?.currentTime", 0.1);
    page.until_above("document.getElementById('live').hidden ? 0 : 1", 0.0);
    let hls = watch(&mut page, 50.0);
    eprintln!(
        "from drawing to display: {live:.2} s, {restarted:.2} s after a restart, {within:.2} s of it in the page; HLS {hls:.2} s"
    );
    Ok((live, restarted, hls))
}

#[test]
fn a_page_without_media_over_quic_says_so_and_its_demuxer_bears_hard_input() {
    let Some(stream) = made(2) else { return skipped::skipped("a demuxer in a browser", "ffmpeg") };
    let server =
        Role::start("server --listen 127.0.0.1:0", &["--input", "pattern:1 Mbit/s", "--rate", "1 Mbit/s"]);
    let viewer = client(&server, "3 Mbit/s", "");
    let scratch = Scratch::new("demuxer");
    let url = format!("http://{}/live.html", viewer.text("page"));
    let Some(mut page) = Browser::open(&url, &scratch.path("profile")) else {
        return skipped::skipped("a demuxer in a browser", "chromium");
    };
    page.until_above("document.getElementById('wrong')?.textContent.includes('--moq') ? 1 : 0", 0.0);
    let script = include_str!("hard_input.js").replace("STREAM", &hex(&stream));
    page.read(&script);
    page.until_above("hard.isDone", 0.0);
    let wrong = page.read("hard.wrong");
    assert!(wrong.as_array().unwrap().is_empty(), "{wrong}");
}
