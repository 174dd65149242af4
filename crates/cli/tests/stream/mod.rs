//! `tidegate stream` with real media: what clients play is what ffmpeg made.

pub mod browser;
mod contents;
mod forgers;
mod live_page;
mod media;
mod options;
mod players;
mod roles;
mod translated;

use crate::skipped;
use std::cell::Cell;
use std::io::Write as _;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use browser::Browser;
use media::{SIX, decode, feed, made, made_of, place};
use roles::{Role, Scratch, client, server};
use serde_json::Value;
use tidegate_control::units::Span;
use tidegate_net::clock;

fn number(status: &Value, key: &str) -> u64 {
    status[key].as_u64().unwrap()
}

fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Clients that write what they play.
fn audience(server: &Role, scratch: &Scratch, count: usize, uplink: &str, more: &str) -> Vec<Role> {
    let start = |n: usize| {
        let out = scratch.path(&format!("{n}.ts"));
        let seed = if more.contains("--loss") { format!("--seed {n}") } else { String::new() };
        client(server, uplink, &format!("--out {} {seed} {more}", out.display()))
    };
    let clients: Vec<Role> = (0..count).map(start).collect();
    clients.iter().for_each(|client| client.until("in", |status| status["phase"] == "in"));
    clients
}

/// Tries up to three times whether clients miss few packets: a pause of the machine costs some.
fn misses_few(mut attempt: impl FnMut() -> Result<(), String>) {
    let tried = attempt().or_else(|_| attempt()).or_else(|_| attempt());
    tried.unwrap_or_else(|missed| panic!("{missed}"));
}

/// TS packets that a client may miss at the beginning and at the end.
const ABOUT: usize = 60 * SIX;

/// A client's output holds the stream from about its beginning to its end, in order, but for the gaps it counted.
fn check(stream: &[u8], output: &[u8], status: &Value) -> usize {
    let (before, count, missing) = place(stream, output);
    let gaps = number(status, "gaps") as usize;
    assert!(missing <= gaps * SIX && (missing > 0) == (gaps > 0), "{missing} missing, {status}");
    assert_eq!(count.div_ceil(SIX), number(status, "delivered") as usize, "{status}");
    let whole = stream.len() / media::TS;
    assert!(before < ABOUT && before + count + missing + ABOUT > whole, "{before}, {count} of {whole}");
    missing
}

#[test]
fn the_played_stream_equals_the_source_byte_for_byte() {
    let Some(stream) = made(6) else { return skipped::skipped("streams of real media", "ffmpeg") };
    let scratch = Scratch::new("exact");
    let mut server = server("1 Mbit/s", "4 Mbit/s", "");
    let clients = audience(&server, &scratch, 4, "3 Mbit/s", "--loss 0.01");
    let input = feed(server.input(), stream.clone(), 6).join().unwrap();
    await_output(&scratch, &stream, 0..4);
    let (mut played, mut missed) = (0, 0);
    for (n, client) in clients.into_iter().enumerate() {
        let status = client.end();
        let output = std::fs::read(scratch.path(&format!("{n}.ts"))).unwrap();
        let missing = check(&stream, &output, &status);
        (played, missed) = (played + output.len() / media::TS, missed + missing);
        let ended = output.ends_with(&stream[stream.len() - media::TS..]);
        let (frames, said) = decode(&output, ended, &scratch.path("cut.ts"));
        assert!(missing > 0 || said.is_empty(), "{said}");
        assert!(frames >= 70, "{frames} frames decoded");
    }
    assert!(missed * 100 <= played, "{missed} of {played} missed at a loss of 1 %");
    drop(input);
}

/// Waits until the clients have written the whole stream, or its end and then nothing for 1.5 s: the last packets may be
/// lost. Whatever is there after 30 s is checked.
fn await_output(scratch: &Scratch, stream: &[u8], clients: std::ops::Range<usize>) {
    let whole = stream.len() / media::TS;
    // TS packets of the stream up to the last one that a client has written.
    let written = || -> Vec<usize> {
        let end = |n| {
            let mut output = std::fs::read(scratch.path(&format!("{n}.ts"))).unwrap_or_default();
            output.truncate(output.len() / media::TS * media::TS);
            let (before, count, missing) = if output.is_empty() { (0, 0, 0) } else { place(stream, &output) };
            before + count + missing
        };
        clients.clone().map(end).collect()
    };
    let begun = clock::now();
    let (mut before, mut changed) = (written(), begun);
    while clock::now().since(begun) < Span::from_secs(30) {
        // The server keeps an incomplete packet until more input comes.
        if before.iter().all(|end| end + SIX > whole) {
            return;
        }
        pause(100);
        let now = written();
        if now != before {
            (before, changed) = (now, clock::now());
        } else if before.iter().all(|end| end + ABOUT > whole)
            && clock::now().since(changed) > Span::from_millis(1500)
        {
            return;
        }
    }
}

#[test]
fn the_end_of_the_input_reaches_everybody() {
    let Some(stream) = made(3) else { return skipped::skipped("the end of real media", "ffmpeg") };
    let scratch = Scratch::new("end");
    let mut server = server("1 Mbit/s", "4 Mbit/s", "");
    let clients = audience(&server, &scratch, 2, "3 Mbit/s", "");
    drop(feed(server.input(), stream.clone(), 3).join().unwrap());
    // The server ends by itself.
    let status = server.wait();
    assert_eq!(number(&status, "died"), 0, "{status}");
    for (n, client) in clients.into_iter().enumerate() {
        // Its player may be behind the server.
        let begun = clock::now();
        let mut text = roles::get(client.text("page"), "/hls/live.m3u8");
        while !text.ends_with("#EXT-X-ENDLIST\n") {
            assert!(clock::now().since(begun) < Span::from_secs(30), "{text}");
            pause(100);
            text = roles::get(client.text("page"), "/hls/live.m3u8");
        }
        let seconds = text
            .lines()
            .filter_map(|line| line.strip_prefix("#EXTINF:")?.strip_suffix(',')?.parse::<f64>().ok());
        assert!((seconds.sum::<f64>() - 3.0).abs() < 0.05, "{text}");
        client.end();
        let output = std::fs::read(scratch.path(&format!("{n}.ts"))).unwrap();
        let (before, count, missing) = place(&stream, &output);
        assert_eq!((before + count + missing, missing), (stream.len() / media::TS, 0));
    }
}

#[test]
fn roles_outlive_sighup() {
    let server = server("500 kbit/s", "20 Mbit/s", "");
    let client = client(&server, "2 Mbit/s", "");
    for role in [&server, &client] {
        role.signal(rustix::process::Signal::HUP);
    }
    pause(300);
    assert!(server.status().is_object() && client.status().is_object());
    assert!(client.end().is_object() && server.end().is_object());
}

#[test]
fn only_clients_with_the_token_are_admitted() {
    let scratch = Scratch::new("token");
    let (token, other) = (scratch.path("token"), scratch.path("other"));
    let with = |file: &std::path::Path| format!("--token-file {}", file.display());
    let server = server("500 kbit/s", "20 Mbit/s", &with(&token));
    std::fs::write(&other, "another-word-of-16").unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o600)).unwrap();
    client(&server, "2 Mbit/s", &with(&token)).until("in", |status| status["phase"] == "in");
    for (options, cause) in [(with(&other), "the token is wrong"), (String::new(), "asks for a token")] {
        let said = roles::refusal(&server, &options);
        assert!(said.contains("--token-file") && said.contains(cause), "{said}");
    }
    for (file, cause) in [(scratch.path("none"), "does not exist"), (token, "can be read by others")] {
        if file.exists() {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        }
        let mut tool = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        tool.args(["stream", "client", "--server", "127.0.0.1:9", "--token-file"]).arg(&file);
        let output = tool.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(cause) && said.contains(file.to_str().unwrap()), "{said}");
    }
}

/// A client says why it does not get the stream, on its page too.
#[test]
fn a_client_without_its_server_says_why() {
    let server = server("500 kbit/s", "20 Mbit/s", "");
    let wrong = format!("--fingerprint {}", "0".repeat(64));
    let said = roles::refusal(&server, &wrong);
    assert!(said.contains("another fingerprint than --fingerprint"), "{said}");
    assert!(said.contains(server.text("address")), "{said}");
    let mut steady = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let refused =
        steady.args(["stream", "client", "--server", "127.0.0.1:9", "--seed", "3"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("--seed: has no effect without --jitter and --loss"), "{said}");
    // An address that cannot be dialled: a silent one shows after the six seconds of a handshake.
    let log = Scratch::new("unreachable");
    let file = std::fs::File::create(log.path("log")).unwrap();
    let client = Role::start_with_log("client --server 127.0.0.1:0", &[], file.into());
    let why = "cannot reach the server at 127.0.0.1:0: port 0 is not a destination";
    client.until(why, |status| status["problem"].as_str().is_some_and(|problem| problem.contains(why)));
    let said = std::fs::read_to_string(log.path("log")).unwrap();
    assert!(said.contains(why) && said.contains("check --server"), "{said}");
}

#[test]
fn an_input_that_is_not_mpeg_ts_is_refused() {
    for (input, cause) in
        [(&b"root:x:0:0:root\n".repeat(500)[..], "is not MPEG-TS: 8000 bytes"), (b"", "without a byte")]
    {
        let mut server = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["stream", "server", "--input", "-", "--listen", "127.0.0.1:0"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        server.stdin.take().unwrap().write_all(input).unwrap();
        let output = server.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(cause) && said.contains("-f mpegts"), "{said}");
    }
}

#[test]
fn departing_clients_do_not_affect_others() {
    let Some(stream) = made(7) else { return skipped::skipped("churn with real media", "ffmpeg") };
    let scratch = Scratch::new("churn");
    let mut server = server("1 Mbit/s", "6 Mbit/s", "");
    let mut clients = audience(&server, &scratch, 6, "4 Mbit/s", "");
    let feeding = feed(server.input(), stream.clone(), 7);
    pause(2000);
    clients.remove(0).kill();
    pause(2000);
    clients.remove(0).end();
    let input = feeding.join().unwrap();
    await_output(&scratch, &stream, 2..6);
    for (n, client) in clients.into_iter().enumerate() {
        let status = client.end();
        let output = std::fs::read(scratch.path(&format!("{}.ts", n + 2))).unwrap();
        let missing = check(&stream, &output, &status);
        assert!(missing * 50 <= stream.len() / media::TS, "{missing} missing: {status}");
    }
    let status = server.end();
    assert_eq!((number(&status, "died"), number(&status, "left")), (1, 5), "{status}");
    drop(input);
}

#[test]
fn playback_is_unaffected_by_strangers_garbage_and_stalls() {
    let Some(stream) = made(3) else { return skipped::skipped("garbage among real media", "ffmpeg") };
    let scratch = Scratch::new("garbage");
    let mut server = server("1 Mbit/s", "6 Mbit/s", "");
    let clients = audience(&server, &scratch, 2, "3 Mbit/s", "");
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = server.text("address").to_owned();
    let forging = std::thread::spawn(move || {
        for n in 0..2000_u32 {
            // The beginning of a video packet, and of a QUIC packet.
            let head: u8 = if n % 2 == 0 { 1 } else { 0x40 | n as u8 };
            let forged: Vec<u8> = std::iter::once(head).chain((0..1199).map(|at| (at + n) as u8)).collect();
            let _ = stranger.send_to(&forged, &address);
            if n % 20 == 0 {
                pause(20);
            }
        }
    });
    let half = stream.len() / media::TS / 2 / SIX * SIX * media::TS;
    let mut input = feed(server.input(), stream[..half].to_vec(), 2).join().unwrap();
    input.write_all(&[0x11; 50_000]).unwrap();
    server.until("silent", |status| status["stalled_s"].as_f64().unwrap() > 1.0);
    server.until("garbage", |status| number(status, "garbage_bytes") >= 49_000);
    // Half again the rate.
    let input = feed(input, stream[half..].to_vec(), 1).join().unwrap();
    forging.join().unwrap();
    await_output(&scratch, &stream, 0..2);
    for (n, client) in clients.into_iter().enumerate() {
        let status = client.end();
        let output = std::fs::read(scratch.path(&format!("{n}.ts"))).unwrap();
        check(&stream, &output, &status);
    }
    drop(input);
}

#[test]
fn a_server_that_starts_again_gets_its_clients_back() {
    let scratch = Scratch::new("restart");
    let identity = scratch.path("server.key");
    let keygen = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["flashflow", "keygen"])
        .arg(&identity)
        .output()
        .unwrap();
    assert!(keygen.status.success(), "{}", String::from_utf8_lossy(&keygen.stderr));
    let serve = |listen: &str| {
        let options = format!("server --listen {listen} --identity {}", identity.display());
        Role::start(&options, &["--input", "pattern:1 Mbit/s", "--rate", "1 Mbit/s"])
    };
    let first = serve("127.0.0.1:0");
    let clients: Vec<Role> = (0..2).map(|_| client(&first, "3 Mbit/s", "")).collect();
    let plays = |client: &Role, beyond: u64| {
        client.until("playing", |status| status["phase"] == "in" && number(status, "delivered") > beyond);
    };
    clients.iter().for_each(|client| plays(client, 50));
    let address = first.text("address").to_owned();
    first.kill();
    let second = serve(&address);
    for client in &clients {
        let before = number(&client.status(), "delivered");
        plays(client, before + 100);
    }
    assert_eq!(number(&second.end(), "joined"), 2);
}

#[test]
fn who_takes_and_does_not_give_is_found_and_made_a_leaf() {
    let server = Role::start(
        "server --listen 127.0.0.1:0",
        &["--input", "pattern:1 Mbit/s", "--rate", "1 Mbit/s", "--uplink", "1500 kbit/s"],
    );
    // The only one that could carry much.
    let rider = client(&server, "10 Mbit/s", "--free-ride");
    rider.until("in", |status| status["phase"] == "in");
    let others: Vec<Role> = (0..3).map(|_| client(&server, "2 Mbit/s", "")).collect();
    // The server relegates it, or moves its children away and gives it no new ones because the others can carry all.
    let carried = Cell::new(clock::now());
    server.until("found", |status| {
        let edges = status["edges"].as_array().unwrap();
        if edges.is_empty()
            || edges.iter().any(|edge| edge[1] == 1)
            || number(status, "complaints_upheld") == 0
        {
            carried.set(clock::now());
        }
        number(status, "relegated") == 1 || clock::now().since(carried.get()) > Span::from_secs(3)
    });
    server.until("a leaf", |status| {
        let edges = status["edges"].as_array().unwrap();
        !edges.is_empty() && edges.iter().all(|edge| edge[1] != 1)
    });
    others.iter().for_each(|client| client.until("watching", |status| number(status, "delivered") > 100));
}

#[test]
fn who_is_throttled_carries_less_and_nobody_else_misses_anything() {
    misses_few(who_is_throttled_carries_less);
}

fn who_is_throttled_carries_less() -> Result<(), String> {
    let server = Role::start(
        "server --listen 127.0.0.1:0",
        &["--input", "pattern:1 Mbit/s", "--rate", "1 Mbit/s", "--uplink", "3 Mbit/s"],
    );
    let (address, fingerprint) = (server.text("address"), server.text("fingerprint"));
    let strong = Role::start(
        &format!("client --allow-private-addresses --server {address} --fingerprint {fingerprint}"),
        &["--uplink", "4 Mbit/s", "--throttle", "150 kbit/s", "6 s"],
    );
    strong.until("in", |status| status["phase"] == "in");
    let others: Vec<Role> = (0..4).map(|_| client(&server, "2 Mbit/s", "")).collect();
    let carries = |status: &Value| status["viewers"][1]["children"].as_u64().unwrap();
    server.until("an interior client", |status| carries(status) >= 4);
    // A slice takes 120 kbit/s: it can feed one child at most.
    server.until("found", |status| carries(status) <= 1);
    pause(2500);
    server.until("blamed", |status| number(status, "complaints_upheld") > 0);
    for other in others {
        other.until("playing", |status| number(status, "delivered") > 300);
        let status = other.end();
        let (gaps, delivered) = (number(&status, "gaps"), number(&status, "delivered"));
        assert!(delivered > 300, "{status}");
        if gaps * 200 > delivered {
            return Err(status.to_string());
        }
    }
    Ok(())
}

#[test]
fn a_browser_plays_and_draws_on_any_screen() {
    let Some(stream) = made(6) else { return skipped::skipped("a browser that plays", "ffmpeg") };
    // The encoder starts again: time stamps go back, and the picture has another size.
    let stream = [stream, made_of(14, "256x144", "").unwrap()].concat();
    let scratch = Scratch::new("browser");
    let mut server = server("1 Mbit/s", "6 Mbit/s", "");
    let viewer = client(&server, "3 Mbit/s", "");
    let feeding = feed(server.input(), stream, 20);
    let url = format!("http://{}/", viewer.text("page"));
    let Some(mut player) = Browser::open(&url, &scratch.path("player")) else {
        return skipped::skipped("a browser that plays", "chromium");
    };
    let time = "document.querySelector('video').currentTime";
    let begun = player.until_above(time, 0.1);
    player.until_above(time, begun + 1.0);
    assert_eq!(player.read("document.querySelector('video').videoWidth"), 320);
    for (width, name) in [(1280, "player.png.base64"), (390, "player-phone.png.base64")] {
        player.fit(width, name);
    }
    player.until_above("document.querySelector('video').videoWidth == 256 ? 1 : 0", 0.0);
    let restarted = player.until_above(time, begun + 1.0);
    player.until_above(time, restarted + 1.0);
    drop(player);
    let url = format!("http://{}/", server.text("page"));
    let mut dashboard = Browser::open(&url, &scratch.path("dashboard")).unwrap();
    // Ten slices and one of parity, each with the server and a viewer.
    dashboard.until_above("document.querySelectorAll('svg circle').length", 21.0);
    dashboard.until_above("document.querySelectorAll('#viewers tr').length", 1.0);
    for (width, name) in [(1280, "dashboard.png.base64"), (390, "dashboard-phone.png.base64")] {
        dashboard.fit(width, name);
    }
    // The feeder ends with the server.
    drop((dashboard, viewer, server));
    let _ = feeding.join();
}

#[test]
fn a_browser_plays_over_a_stall_and_a_jump() {
    let Some(stream) = made(10) else { return skipped::skipped("a browser after a stall", "ffmpeg") };
    let jumped = made_of(10, "320x180", "-output_ts_offset 3600").unwrap();
    // In the middle of a group of pictures.
    let (first, second) = stream.split_at(stream.len() * 11 / 20 / media::TS * media::TS);
    let scratch = Scratch::new("stall");
    let mut server = server("1 Mbit/s", "6 Mbit/s", "");
    let viewer = client(&server, "3 Mbit/s", "");
    let input = feed(server.input(), first.to_vec(), 5);
    let url = format!("http://{}/", viewer.text("page"));
    let Some(mut player) = Browser::open(&url, &scratch.path("player")) else {
        return skipped::skipped("a browser after a stall", "chromium");
    };
    let time = "document.querySelector('video').currentTime";
    player.until_above(time, 0.1);
    let input = input.join().unwrap();
    pause(10_000);
    let stalled = player.read(time).as_f64().unwrap();
    let feeding = feed(input, [second, &jumped[..]].concat(), 15);
    // Two seconds before the jump, and some behind it.
    player.until_above(time, stalled + 2.0);
    player.until_above(time, 11.0);
    drop((player, viewer, server));
    let _ = feeding.join();
}

#[test]
fn wrong_arguments_are_refused_with_their_cure() {
    for (arguments, names) in [
        ("server --input bogus:1", "--input"),
        ("server --input - --slices 0", "--slices"),
        ("server --input - --overload xyz", "--overload"),
        ("server --input - --page 0.0.0.0:80", "--page"),
        ("server --input - --identity /dev/null", "--identity"),
        ("client --server nowhere", "--server"),
        ("client --server 127.0.0.1:9 --fingerprint zz", "--fingerprint"),
        ("client --server 127.0.0.1:9 --skip-after 31s", "--skip-after"),
        ("client --server 127.0.0.1:9 --throttle a b", "--throttle"),
        ("demo --clients 2 --kill 2", "--kill"),
        ("demo --input -", "--input"),
    ] {
        let mut tool = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = tool.arg("stream").args(arguments.split(' ')).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments}: {said}");
        assert!(said.contains(names) && said.contains("help: "), "{arguments}: {said}");
    }
}

/// Sizes and losses that a stream is made for.
#[test]
#[ignore = "minutes of two cores: cargo test -p tidegate --test all stream -- --ignored"]
fn audiences_of_5_20_and_50_at_losses_of_0_1_and_5_per_cent() {
    for clients in ["5", "20", "50"] {
        for (loss, least) in [("0", 0.999), ("0.01", 0.99), ("0.05", 0.95)] {
            let uplink = if clients == "50" { "30 Mbit/s" } else { "12 Mbit/s" };
            let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
                .args(["stream", "demo", "--clients", clients, "--duration", "40 s", "--loss", loss])
                .args(["--rate", "1 Mbit/s", "--weakest", "500 kbit/s", "--strongest", "3 Mbit/s"])
                .args(["--server-uplink", uplink, "--delay", "40 ms", "--leave", "1", "--json"])
                .output()
                .unwrap();
            let measured: Value = serde_json::from_slice(&output.stdout).unwrap();
            eprintln!("{clients} clients, loss {loss}: {measured}");
            assert!(measured["continuity"].as_f64().unwrap() >= least, "{clients}, {loss}: {measured}");
        }
    }
}
