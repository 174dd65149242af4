//! `tidegate more`: what is refused, and that guards stay.

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
