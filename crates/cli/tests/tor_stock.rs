//! Stock relays of Debian's tor, limited to 10 and 50 Mbit/s, are loaded through ordinary circuits in a private
//! network. Runs where tor is installed.

use crate::skipped;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tidegate_net::private_tor::{self, Network};

const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

#[test]
#[ignore = "slow: make test-all"]
fn stock_relays_are_measured_through_ordinary_circuits() {
    if !private_tor::is_installed(Path::new("tor")) {
        skipped::skipped("stock relays are measured", "tor");
        return;
    }
    let directory = std::env::temp_dir().join(format!("tidegate-stock-{}", std::process::id()));
    fs::create_dir(&directory).unwrap();
    let mut network = Network::new(Path::new("tor"), &directory, 3).unwrap();
    let limits = [("slow", 10_000_000u64), ("fast", 50_000_000)];
    let targets: Vec<_> = limits.iter().map(|(name, _)| network.relay(name).unwrap()).collect();
    let exit = network.relay("exit").unwrap();
    network.start("").unwrap();
    network.run_relay(&exit, private_tor::RELAY).unwrap();
    for (target, (_, limit)) in targets.iter().zip(limits) {
        let bytes = limit / 8;
        let options = format!("RelayBandwidthRate {bytes} bytes\nRelayBandwidthBurst {bytes} bytes\n");
        network.run_relay(target, &(options + private_tor::RELAY)).unwrap();
    }
    let names: Vec<String> = ["slow", "fast", "exit"].iter().map(|name| format!("r {name} ")).collect();
    network.wait_for(&names).unwrap();

    let at = |name: &str| directory.join(name);
    let key = at("coordinator.key").display().to_string();
    assert!(Command::new(TIDEGATE).args(["flashflow", "keygen", &key]).output().unwrap().status.success());
    fs::write(at("network.torrc"), network.common()).unwrap();
    let mut config = format!(
        "identity = \"coordinator.key\"\nstate = \"state\"\nbandwidth-file = \"weights\"\n\
         first-guess = \"100 Mbit/s\"\n\n[parameters]\nduration = \"8 s\"\n\n\
         [stock]\ntorrc = \"network.torrc\"\nfar-end = \"{}\"\nlisten = \"127.0.0.1:0\"\nclients = 3\n\
         capacity = \"300 Mbit/s\"\n",
        exit.fingerprint
    );
    for (n, target) in targets.iter().enumerate() {
        config.push_str(&format!(
            "\n[[relay]]\nnickname = \"{}\"\ntarget = \"stock\"\nid = \"{}\"\naddress = \"127.0.0.{}:9001\"\n",
            target.name,
            target.fingerprint,
            n + 1
        ));
    }
    fs::write(at("coordinator.toml"), config).unwrap();
    let config = at("coordinator.toml").display().to_string();
    let output =
        Command::new(TIDEGATE).args(["flashflow", "coordinator", "--once", "--config", &config]).output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (name, limit) in limits {
        let of = |kind: &str| {
            let found = events.iter().rfind(|event| event["event"] == kind && event["relay"] == name);
            found.unwrap_or_else(|| panic!("no {kind} of {name}:\n{text}"))
        };
        assert_eq!(of("attempt")["target"], "stock", "what it is worth is said");
        let estimate = of("result")["estimate_bits_per_s"].as_u64().unwrap();
        eprintln!("{name}: {estimate} of {limit}");
        // How close it comes on a loaded machine is no matter of a test; that it does not exceed it, is.
        assert!((limit / 3..=limit * 105 / 100).contains(&estimate), "{name}: {estimate}\n{text}");
    }
    let file = fs::read_to_string(at("weights")).unwrap();
    assert_eq!(file.matches(" target=stock").count(), 2, "{file}");
    let verify = Command::new(TIDEGATE).args(["flashflow", "verify", "--config", &config]).output().unwrap();
    assert!(verify.status.success(), "{}", String::from_utf8_lossy(&verify.stderr));
    drop(network);
    fs::remove_dir_all(&directory).unwrap();
}
