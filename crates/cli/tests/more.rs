//! `tidegate more`: keys and directories, what is refused, and that guards stay.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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
fn a_front_that_others_could_reach_and_descriptors_of_nobody_are_refused() {
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
    assert!(String::from_utf8_lossy(&refused.stderr).contains("guards are drawn again"), "{refused:?}");
    let _ = std::fs::remove_dir_all(&folder);
}

/// What was said, and the exit code.
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
    assert!(code == Some(2) && text.contains("added before"), "{text}");
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
    assert!(code == Some(2) && text.contains("not that of peer 1"), "{text}");
    let (text, code) = said(&tidegate(&["more", "node", "--overlay", &place, "--number", "9"]));
    assert!(code == Some(2) && text.contains("peer-9.secret"), "{text}");
    std::fs::write(folder.join("peer-1.secret"), "7\n").expect("written");
    let (text, code) = node();
    assert!(code == Some(2) && text.contains("hexadecimal"), "{text}");
    let _ = std::fs::remove_dir_all(&folder);
}
