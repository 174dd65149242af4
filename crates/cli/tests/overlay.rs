//! `tidegate overlay`: files fetched through overlays of processes on loopback, and among stock tor's.

#[path = "../../../tests/skipped.rs"]
mod skipped;

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

fn tidegate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate")).args(arguments).output().unwrap()
}

fn fetched(arguments: &[&str]) -> Value {
    let output = tidegate(arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["exact"], true, "{document}");
    document
}

#[test]
fn every_system_carries_a_file_byte_for_byte() {
    for system in ["vanilla", "pctcp", "ewma", "kist", "vegas", "switching", "predictor"] {
        let document = fetched(&["overlay", "demo", "--system", system, "--bytes", "1 MB", "--json"]);
        assert_eq!((&document["system"], &document["bytes"]), (&system.into(), &1_000_000.into()));
        let path = document["paths"][0].as_array().unwrap();
        let mut relays: Vec<&str> = path.iter().map(|name| name.as_str().unwrap()).collect();
        relays.sort_unstable();
        relays.dedup();
        assert_eq!(relays.len(), 3, "{document}");
    }
}

#[test]
fn stock_tor_fetches_a_file_through_our_relays() {
    if Command::new("tor").arg("--version").output().is_err() {
        return skipped::skipped("stock tor fetches a file through our relays", "tor");
    }
    let document = fetched(&["overlay", "tornet", "--bytes", "2 MB", "--json"]);
    let paths = document["paths"].as_array().unwrap();
    let ours = |hop: &Value| hop.as_str().unwrap().starts_with("tide");
    // Circuits of one hop fetch the consensus; the first goes to the authority.
    let mut long =
        paths.iter().map(|path| path.as_array().unwrap()).filter(|path| path.len() >= 3).peekable();
    assert!(long.peek().is_some(), "{document}");
    assert!(long.flatten().all(ours), "{document}");
    let about_us = |line: &&Value| {
        let line = line.as_str().unwrap();
        let words = ["protocol", "Received", "cell", "AUTHENTICATE", "circuit"];
        // The authority has no consensus in the first seconds.
        words.iter().any(|word| line.contains(word)) && !line.contains("Received http status code 404")
    };
    let warnings: Vec<&Value> = document["warnings"].as_array().unwrap().iter().filter(about_us).collect();
    assert!(warnings.is_empty(), "{warnings:#?}");
}

/// Whether a process runs.
fn is_alive(process: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    state.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn children(process: u32) -> Vec<u32> {
    let text =
        std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

#[test]
fn ctrl_c_ends_all_children() {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["overlay", "demo"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut seen = Vec::new();
    for _ in 0..600 {
        seen = children(demo.id());
        if seen.len() == 7 {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(seen.len(), 7, "a directory, five relays and a client");
    assert!(Command::new("kill").args(["-INT", &demo.id().to_string()]).status().unwrap().success());
    demo.wait().unwrap();
    assert!(!seen.iter().any(|child| is_alive(*child)), "some outlive the demo");
}

#[test]
fn mistakes_are_told_with_place_and_cure() {
    let directory = std::env::temp_dir().join(format!("tidegate-live-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let at = |name: &str| directory.join(name).display().to_string();
    let refused = |config: &str| {
        std::fs::write(at("relay.toml"), config).unwrap();
        let output = tidegate(&["relay", "--config", &at("relay.toml")]);
        assert_eq!(output.status.code(), Some(2), "{config}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(tidegate(&["relay", "--keygen", &at("relay.keys")]).status.success());
    assert_eq!(
        tidegate(&["relay", "--keygen", &at("relay.keys")]).status.code(),
        Some(2),
        "never overwritten"
    );
    let good = "nickname = \"a\"\nlisten = \"127.0.0.1:0\"\nkeys = \"relay.keys\"\n";
    for (line, cause) in [
        ("nicknam = \"b\"\n", "did you mean `nickname`?"),
        ("exit-policy = [\"allow *:*\"]\n", "no rule of an exit policy"),
        ("[tor]\nauthority = \"192.0.2.1:80\"\n", "not in a private network"),
        ("[tor]\nauthority = \"192.0.2.1:80\"\nallow-public-authority = true\n", "--allow-public-authority"),
        ("[system]\nname = \"x\"\ntransport = \"pctpc\"\n", "did you mean `pctcp`?"),
        ("[limits]\nmemroy = \"1 MB\"\n", "did you mean `memory`?"),
        ("[limits]\nconnections = 0\n", "limits.connections"),
    ] {
        let said = refused(&format!("{good}{line}"));
        assert!(said.contains(cause), "{said}");
    }
    assert!(refused(&good.replace("\"a\"", "\"a b\"")).contains("no nickname"));
    assert!(refused(&good.replace("relay.keys", "none.keys")).contains("--keygen"));
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(Path::new(&at("relay.keys")), mode).unwrap();
    assert!(refused(good).contains("can be read by others (mode 644)"));
    std::fs::remove_dir_all(&directory).unwrap();
}
