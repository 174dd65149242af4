//! `tidegate lab real`: refusals, and a small network of stock tor on emulated hosts. Runs where tor is installed and the
//! user is root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tidegate_net::private_tor;

use crate::skipped;

fn lab(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["lab", "real"]).args(arguments).output().unwrap()
}

/// Writes a torrc that is removed with the value.
struct Torrc(PathBuf);

impl Torrc {
    fn new(name: &str, text: &str) -> Torrc {
        let path = std::env::temp_dir().join(format!("tidegate-{name}-{}.torrc", std::process::id()));
        fs::write(&path, text).unwrap();
        Torrc(path)
    }
    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Torrc {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn wrong_input_is_refused_with_a_cure() {
    let owned = Torrc::new("owned", "Schedulers KIST\nORPort 9001\n");
    let guards = Torrc::new("guards", "NumEntryGuards 2\n");
    let nonsense = Torrc::new("nonsense", "Schedulers Fastest\n");
    let mut cases = vec![
        (vec!["--tor", "/nowhere/tor"], "install Debian's package `tor`"),
        (vec!["--torrc", "/nowhere/torrc"], "cannot be read"),
        (vec!["--torrc", owned.path()], ":2:1: `ORPort` describes the network"),
        (vec!["--baseline", guards.path(), "--predict"], "does not model `NumEntryGuards 2`"),
        (vec!["--duration", "0 s"], "--duration"),
        (vec!["--rate", "1 bit/s"], "--rate"),
        (vec!["--rounds", "0"], "--rounds"),
    ];
    if private_tor::is_installed(Path::new("tor")) {
        cases.push((vec!["--torrc", nonsense.path()], "tor says"));
    } else {
        skipped::skipped("tor refuses an option of `lab real`", "tor");
    }
    for (arguments, said) in cases {
        let output = lab(&arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && text.contains(said), "{arguments:?}: {text}");
    }
}

#[test]
#[ignore = "slow: make test-all"]
fn stock_tor_is_measured_on_emulated_hosts() {
    let what = "stock tor is measured on emulated hosts";
    if !private_tor::is_installed(Path::new("tor")) {
        return skipped::skipped(what, "tor");
    }
    // A tenth of the default window, so that queues are short in a run this short.
    let limit = Torrc::new("limit", "RelayBandwidthRate 100 KB\nConsensusParams cc_alg=0 circwindow=100\n");
    let small =
        ["--guards", "1", "--exits", "1", "--clients", "1", "--delay", "2 ms", "--congestion", "reno"];
    let times = ["--duration", "5 s", "--warmup", "4 s", "--predict", "--json", "--torrc", limit.path()];
    let output = lab(&[&small[..], &times].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("needs hosts of its own") {
        return skipped::skipped(what, "root and /dev/net/tun");
    }
    assert!(output.status.success(), "{said}");
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    for side in ["baseline", "changed"] {
        let [connect, last_byte] =
            ["connect_s", "ttlb_50kib_s"].map(|key| shown[side][key]["median"].as_f64().unwrap());
        // Eight hosts' delays lie between a request and the exit's answer.
        assert!(connect > 0.016 && last_byte > connect, "{side}: {connect} s, {last_byte} s");
        assert!(shown[side]["ttlb_50kib_s"]["n"].as_u64().unwrap() >= 1, "{shown}");
        assert_eq!(shown[side]["failed"], 0);
    }
    // The limit takes most of the rate, and the simulator knows it. Directory traffic takes a part of what is left.
    for key in ["effect", "simulated_effect"] {
        let change = shown[key]["bulk_kb_per_s"]["change"].as_f64().unwrap();
        assert!(change < -0.5, "{key}: {change}");
    }
}
