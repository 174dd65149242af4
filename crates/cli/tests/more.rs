//! `tidegate more`: keys and directories, what is refused, and that guards stay.

use crate::skipped;
use crate::waiting::soon;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

fn tidegate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate")).args(arguments).output().expect("the tool runs")
}

/// A new overlay of five peers.
fn overlay(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("more-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let made = tidegate(&["more", "directory", "--out", &folder.to_string_lossy(), "--peers", "5"]);
    assert!(made.status.success(), "{made:?}");
    folder
}

#[test]
fn public_fronts_and_descriptors_without_a_service_are_refused() {
    let folder = overlay("socks");
    let place = folder.to_string_lossy().into_owned();
    let descriptor = folder.join("web.toml");
    std::fs::write(&descriptor, "name = \"nobody\"\n").expect("written");
    let receiver = descriptor.to_string_lossy().into_owned();
    let front = |listen: &str| {
        tidegate(&[
            "more",
            "socks",
            "--overlay",
            &place,
            "--number",
            "0",
            "--receiver",
            &receiver,
            "--listen",
            listen,
        ])
    };
    for (listen, cause) in [("0.0.0.0:0", "loopback"), ("127.0.0.1:0", "descriptor")] {
        let refused = front(listen);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(cause), "{listen}: {said}");
    }
    // A central manager, which sockets cannot have.
    let peer = ["--overlay", &place, "--number", "0", "--to", "1", "--file", &receiver];
    let (said, code) = said(&tidegate(&[&["more", "send", "--controller", "perfect"], &peer[..]].concat()));
    assert!(code == Some(2) && said.contains("only works in the simulator"), "{said}");
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn guards_are_drawn_once() {
    let folder = overlay("guards");
    let place = folder.to_string_lossy().into_owned();
    // Nine hops are refused, after the guards were drawn.
    let run = || {
        let empty = folder.join("directory.toml").to_string_lossy().into_owned();
        let peer = ["--overlay", &place, "--number", "1", "--guards", "2", "--hops", "9"];
        tidegate(&[&["more", "send"][..], &peer, &["--to", "2", "--file", &empty]].concat())
    };
    assert!(!run().status.success());
    let kept = || std::fs::read_to_string(folder.join("peer-1.guards")).expect("drawn");
    let guards: Vec<u16> = kept().split_whitespace().map(|guard| guard.parse().expect("a number")).collect();
    assert!(guards.len() == 2 && guards.iter().all(|guard| *guard < 5 && *guard != 1), "{guards:?}");
    let before = kept();
    assert!(!run().status.success());
    assert_eq!(kept(), before);
    std::fs::write(folder.join("peer-1.guards"), "7 x").expect("written");
    let refused = run();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("to draw new guards"), "{refused:?}");
    let _ = std::fs::remove_dir_all(&folder);
}

/// The output and the exit code.
fn said(output: &Output) -> (String, Option<i32>) {
    let text = [&output.stdout[..], &output.stderr].concat();
    (String::from_utf8_lossy(&text).into_owned(), output.status.code())
}

#[test]
fn a_directory_is_made_by_many_and_signed_by_one() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("more-many-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let at = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let more = |arguments: &[&str]| said(&tidegate(&[&["more"], arguments].concat()));
    assert_eq!(more(&["keygen", "--authority", "--out", &at("authority")]).1, Some(0));
    let (directory, secret, key) =
        (at("directory.toml"), at("authority/authority.secret"), at("authority/authority.key"));
    for (peer, address) in ["127.0.0.1:9801", "localhost:9802", "[::1]:9803"].iter().enumerate() {
        let out = at(&format!("peer{peer}"));
        assert_eq!(more(&["keygen", "--out", &out, "--address", address, "--epochs", "2"]).1, Some(0));
        let (text, code) =
            more(&["directory", "add", "--directory", &directory, "--peer", &format!("{out}/peer.toml")]);
        assert!(code == Some(0) && text.contains(&format!("peer {peer}:")), "{text}");
    }
    let verify = || more(&["directory", "verify", "--directory", &directory, "--authority", &key]);
    let (text, code) = verify();
    assert!(code == Some(2) && text.contains("not signed"), "{text}");
    assert_eq!(more(&["directory", "sign", "--directory", &directory, "--authority", &secret]).1, Some(0));
    let (text, code) = verify();
    assert!(code == Some(0) && text.contains("[::1]:9803") && text.contains("epoch 0 of 2"), "{text}");

    // Bad input: what is there already, other epochs, no address, a forged directory, keys that others can read.
    let add = |peer: &str| more(&["directory", "add", "--directory", &directory, "--peer", peer]);
    let before = std::fs::read_to_string(&directory).expect("written");
    let (text, code) = add(&at("peer1/peer.toml"));
    assert!(code == Some(2) && text.contains("add each peer once"), "{text}");
    assert_eq!(
        more(&["keygen", "--out", &at("odd"), "--address", "127.0.0.1:9804", "--epochs", "3"]).1,
        Some(0)
    );
    let (text, code) = add(&at("odd/peer.toml"));
    assert!(code == Some(2) && text.contains("--epochs"), "{text}");
    assert_eq!(std::fs::read_to_string(&directory).expect("still there"), before);
    let (text, code) = more(&["keygen", "--out", &at("none"), "--address", "nowhere"]);
    assert!(
        code == Some(2) && text.contains("host:port") && !folder.join("none/peer.secret").exists(),
        "{text}"
    );
    let (text, code) = more(&["keygen", "--out", &at("peer1"), "--address", "127.0.0.1:9805"]);
    assert!(code == Some(2) && text.contains("peer.secret"), "keys are not overwritten: {text}");
    std::fs::write(&directory, before.replace("localhost", "lacalhost")).expect("written");
    let (text, code) = verify();
    assert!(code == Some(2) && text.contains("not signed by the given authority"), "{text}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o644)).expect("ours");
        let (text, code) = more(&["directory", "sign", "--directory", &directory, "--authority", &secret]);
        assert!(code == Some(2) && text.contains("chmod 600"), "{text}");
    }
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn secrets_and_directories_of_others_are_refused() {
    let folder = overlay("others");
    let place = folder.to_string_lossy().into_owned();
    let node = || said(&tidegate(&["more", "node", "--overlay", &place, "--number", "1"]));
    std::fs::copy(folder.join("peer-2.secret"), folder.join("peer-1.secret")).expect("copied");
    let (text, code) = node();
    assert!(code == Some(2) && text.contains("does not match the keys of peer 1"), "{text}");
    let (text, code) = said(&tidegate(&["more", "node", "--overlay", &place, "--number", "9"]));
    assert!(code == Some(2) && text.contains("peer-9.secret"), "{text}");
    std::fs::write(folder.join("peer-1.secret"), "7\n").expect("written");
    let (text, code) = node();
    assert!(code == Some(2) && text.contains("hexadecimal"), "{text}");
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn a_mistake_leaves_no_file_behind_and_is_named() {
    let folder = overlay("mistakes");
    let at = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (place, out) = (at(""), at("out"));
    let refused = |arguments: &[&str], words: &str| {
        let (text, code) = said(&tidegate(&[&["more"], arguments].concat()));
        assert!(code == Some(2) && text.contains(words), "{arguments:?}: {text}");
        assert!(!Path::new(&out).exists(), "{arguments:?}");
    };
    refused(&["receive", "--overlay", &at("none"), "--number", "1", "--out", &out], "authority.key");
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").expect("loopback has ports");
    let address = taken.local_addr().expect("bound").to_string();
    let peer = ["--overlay", &place, "--number", "1", "--allow-private-addresses"];
    let receive = [&["receive"], &peer[..], &["--out", &out]].concat();
    refused(&[&receive[..], &["--listen-udp", &address]].concat(), &format!("datagrams at {address}"));
    refused(&[&receive[..], &["--limit", "1499 B/s"]].concat(), "less than a packet");
    refused(&[&["send"], &peer[..], &["--to", "2", "--file", &place]].concat(), "directory");
    let _ = std::fs::remove_dir_all(&folder);
}

/// The answer of a page on this machine to a request with this Host header.
fn get(address: &str, host: &str, path: &str) -> String {
    let mut tcp = TcpStream::connect(address).expect("the page is served");
    write!(tcp, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").expect("sent");
    let mut answer = String::new();
    tcp.read_to_string(&mut answer).expect("answered");
    answer
}

/// The status of the demonstration once this number of peers answer.
fn shown(page: &str, answering: usize) -> Value {
    for _ in 0..600 {
        let answer = get(page, "localhost", "/status.json");
        let status: Value =
            serde_json::from_str(answer.split_once("\r\n\r\n").expect("a body").1).expect("JSON");
        let moved = |peer: &Value| peer["forwarded"].as_f64() > Some(0.0);
        let peers = status["relays"].as_array().expect("peers");
        if peers.len() == answering && peers.iter().any(moved) {
            return status;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{answering} peers never answered");
}

#[test]
fn a_demo_whose_front_cannot_begin_ends() {
    let (text, code) = said(&tidegate(&["more", "demo", "--hops", "99"]));
    assert!(code == Some(2) && text.contains("1..=4"), "{text}");
    // A refusal by its peers ends it, too.
    let (text, code) = said(&tidegate(&["more", "demo", "--limit", "soon"]));
    assert!(code.is_some_and(|code| code > 0) && text.contains("soon"), "{text}");
}

#[test]
fn the_demos_page_shows_every_peer_and_one_that_was_stopped() {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["more", "demo", "--limit", "400 kB/s"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("the tool runs");
    let mut lines = BufReader::new(demo.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let page = lines
        .find_map(|line| Some(line.strip_prefix("page at ")?.split(' ').next()?.to_owned()))
        .expect("a page");
    let address = page.trim_start_matches("http://").trim_end_matches('/');
    assert!(get(address, "evil.example", "/status.json").starts_with("HTTP/1.1 421"));
    let status = shown(address, 10);
    let process = &status["peers"]
        .as_array()
        .expect("peers")
        .iter()
        .find(|peer| peer["peer"] == 3)
        .expect("3")["process"];
    assert!(
        Command::new("kill").args(["-STOP", &process.to_string()]).status().expect("kill runs").success()
    );
    let status = shown(address, 9);
    assert!(status["relays"].as_array().expect("peers").iter().all(|peer| peer["peer"] != 3), "{status}");
    for size in ["--window-size=1280,900", "--window-size=390,844"] {
        let dom = Command::new("chromium")
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--dump-dom",
                "--virtual-time-budget=5000",
                size,
            ])
            .arg(&page)
            .stderr(Stdio::null())
            .output();
        let Ok(dom) = dom else {
            skipped::skipped("the page of `more demo` in a browser", "chromium");
            break;
        };
        let dom = String::from_utf8_lossy(&dom.stdout).into_owned();
        assert!(
            dom.contains("9 of 10 peers answer") && dom.matches("<section").count() == 10,
            "{size}: {dom}"
        );
        assert!(dom.contains("does not answer") && dom.contains("data-fits=\"true\""), "{size}: {dom}");
    }
    // A terminal's Ctrl-C goes to the whole group.
    let group = format!("-{}", demo.id());
    assert!(Command::new("kill").args(["-INT", "--", &group]).status().expect("kill runs").success());
    assert!(demo.wait().expect("it ends").success(), "Ctrl-C is its end");
}

#[test]
fn a_peer_shows_its_metrics_on_loopback_alone() {
    let folder = overlay("status");
    let place = folder.to_string_lossy().into_owned();
    let node =
        ["more", "node", "--allow-private-addresses", "--overlay", &place, "--number", "1", "--status"];
    let (text, code) = said(&tidegate(&[&node[..], &["192.0.2.1:9"]].concat()));
    assert!(code == Some(2) && text.contains("loopback only"), "{text}");
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
    let address = port.local_addr().expect("bound").to_string();
    let (text, code) = said(&tidegate(&[&node[..], &[&address]].concat()));
    assert!(code == Some(2) && text.contains("in use"), "{text}");
    drop(port);
    let mut peer = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args([&node[..], &[&address]].concat())
        .stdout(Stdio::null())
        .spawn()
        .expect("the tool runs");
    // It listens after some time, and has its first numbers still later.
    let metric = "tidegate_more_unauthenticated_total 0.0";
    let mut metrics = String::new();
    soon("the page is served with its metrics", || {
        if TcpStream::connect(&address).is_ok() {
            metrics = get(&address, "127.0.0.1", "/metrics");
        }
        metrics.contains(metric)
    });
    assert!(metrics.contains(metric), "{metrics}");
    assert!(get(&address, "localhost", "/").contains("MORE peer 1"));
    assert!(get(&address, "localhost", "/secrets").starts_with("HTTP/1.1 404"));
    peer.kill().expect("it runs");
    peer.wait().expect("it ends");
    let _ = std::fs::remove_dir_all(&folder);
}
