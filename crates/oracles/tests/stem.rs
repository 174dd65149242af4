//! The consensus reader against stem's, on every real consensus present.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;
use tidegate_data::consensus::{self, Consensus, Flavour};
use tidegate_data::open;

use crate::skipped;

/// Contents of a consensus that both readers give.
#[derive(Debug, PartialEq, Deserialize)]
struct Reading {
    valid_after: u64,
    params: BTreeMap<String, i32>,
    bandwidth_weights: BTreeMap<String, i32>,
    relays: Vec<RelayReading>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct RelayReading {
    nickname: String,
    identity: String,
    address: String,
    flags: Vec<String>,
    bandwidth: u32,
    unmeasured: bool,
    version: Option<String>,
}

fn ours(consensus: &Consensus) -> Reading {
    let relay = |relay: &consensus::RouterStatus| {
        let mut flags: Vec<String> = relay.flags.names().map(str::to_owned).collect();
        flags.sort();
        RelayReading {
            nickname: relay.nickname.clone(),
            identity: relay.identity.to_string(),
            address: format!("{}:{}", relay.address, relay.or_port),
            flags,
            bandwidth: relay.bandwidth,
            unmeasured: relay.unmeasured,
            version: relay.version.clone(),
        }
    };
    Reading {
        valid_after: consensus.valid_after,
        params: consensus.params.clone(),
        bandwidth_weights: consensus.bandwidth_weights.clone(),
        relays: consensus.relays.iter().map(relay).collect(),
    }
}

fn of_stem(text: &str, flavour: Flavour) -> Reading {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join("consensus");
    std::fs::write(&path, text).unwrap();
    let flavour = match flavour {
        Flavour::Ns => "ns",
        Flavour::Microdesc => "microdesc",
    };
    let output = Command::new("/usr/bin/python3")
        .args(["-c", include_str!("stem.py")])
        .arg(&path)
        .arg(flavour)
        .output();
    let output = output.expect("Python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("stem.py prints JSON")
}

#[test]
fn real_consensuses_read_as_stem_reads_them() {
    let name = "real consensuses read as stem reads them";
    let beside = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let data = std::env::var_os("TIDEGATE_DATA").map_or_else(beside, PathBuf::from);
    let Ok(entries) = std::fs::read_dir(data.join("consensus")) else {
        skipped::skipped(name, "TIDEGATE_DATA");
        return;
    };
    let available = Command::new("/usr/bin/python3").args(["-c", "import stem"]).output();
    if !available.is_ok_and(|output| output.status.success()) {
        skipped::skipped(name, "python3-stem");
        return;
    }
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.retain(|path| path.to_string_lossy().contains("-consensus"));
    assert!(!paths.is_empty(), "a directory of consensuses without any");
    for path in paths {
        let document = open::open(&path).unwrap();
        let consensus = consensus::read(&document).unwrap();
        let (ours, theirs) = (ours(&consensus), of_stem(document.text(), consensus.flavour));
        assert_eq!(ours.relays.len(), theirs.relays.len(), "{}", path.display());
        for (ours, theirs) in ours.relays.iter().zip(&theirs.relays) {
            assert_eq!(ours, theirs, "{}", path.display());
        }
        assert_eq!(ours, theirs, "{}", path.display());
    }
}
