//! The consensus reader against tor-netdoc, Arti's parser, on every real consensus present.

use crate::skipped;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use tidegate_data::consensus::{self, Consensus, Flavour};
use tidegate_data::open;
use tor_checkable::{ExternallySigned as _, TimeBound as _};
use tor_netdoc::doc::netstatus::{MdConsensus, NetParams, PlainConsensus, RelayWeight};

/// Contents of a consensus that both readers give.
#[derive(Debug, PartialEq)]
struct Reading {
    valid_after: u64,
    params: BTreeMap<String, i32>,
    bandwidth_weights: BTreeMap<String, i32>,
    relays: Vec<RelayReading>,
}

#[derive(Debug, PartialEq)]
struct RelayReading {
    nickname: String,
    identity: String,
    address: SocketAddr,
    flags: Vec<String>,
    bandwidth: u32,
    unmeasured: bool,
    version: Option<String>,
}

/// Flags unknown to tor-netdoc.
const ONLY_OURS: [&str; 4] = ["Named", "Unnamed", "Sybil", "V3Dir"];

fn ours(consensus: &Consensus) -> Reading {
    let relay = |relay: &consensus::RouterStatus| RelayReading {
        nickname: relay.nickname.clone(),
        identity: relay.identity.to_string(),
        address: (relay.address, relay.or_port).into(),
        flags: relay.flags.names().filter(|name| !ONLY_OURS.contains(name)).map(str::to_owned).collect(),
        bandwidth: relay.bandwidth,
        unmeasured: relay.unmeasured,
        version: relay.version.as_deref().map(plain_version),
    };
    Reading {
        valid_after: consensus.valid_after,
        params: consensus.params.clone(),
        bandwidth_weights: consensus.bandwidth_weights.clone(),
        relays: consensus.relays.iter().map(relay).collect(),
    }
}

/// `Tor 0.2.1.29 (r8e9b25e6c7a2e70c)` without the parentheses, which tor-netdoc drops.
fn plain_version(version: &str) -> String {
    match version.split(' ').collect::<Vec<_>>()[..] {
        ["Tor", number, ..] => format!("Tor {number}"),
        _ => version.to_owned(),
    }
}

fn map(params: &NetParams<i32>) -> BTreeMap<String, i32> {
    params.iter().map(|(name, value)| (name.clone(), *value)).collect()
}

/// tor-netdoc has one type per flavour.
macro_rules! theirs {
    ($consensus:ty, $text:expr) => {
        <$consensus>::parse($text).map(|(_, _, unchecked)| {
            let consensus = unchecked.dangerously_assume_timely().set_n_authorities(9).dangerously_assume_wellsigned();
            let relays = consensus.relays().iter().map(|relay| {
                let (bandwidth, unmeasured) = match *relay.weight() {
                    RelayWeight::Measured(bandwidth) => (bandwidth, false),
                    RelayWeight::Unmeasured(bandwidth) => (bandwidth, true),
                    _ => unreachable!("no third kind of weight"),
                };
                let mut flags: Vec<String> = relay.flags().iter().map(|flag| flag.to_string()).collect();
                flags.sort();
                RelayReading {
                    nickname: relay.nickname().to_owned(),
                    identity: relay.rsa_identity().as_hex_upper().trim_start_matches('$').to_owned(),
                    address: relay.addrs().next().expect("a relay has an address"),
                    flags,
                    bandwidth,
                    unmeasured,
                    version: relay.version().map(|version| plain_version(&version.to_string())),
                }
            });
            let since_1970 = consensus.lifetime().valid_after().duration_since(UNIX_EPOCH);
            Reading {
                valid_after: since_1970.expect("after 1970").as_secs(),
                params: map(consensus.params()),
                bandwidth_weights: map(consensus.bandwidth_weights()),
                relays: relays.collect(),
            }
        })
    };
}

/// Converts a text to the form that tor-netdoc requires.
///
/// It refuses two of the files. That of 2011 has `dir-source` lines without `contact` (two authorities announced
/// former keys); these are removed. That file and the one of 2016 (consensus methods below 25) lack `pr` lines; one
/// is added after each `s` line. The compared fields do not change.
fn in_todays_form(text: &str) -> String {
    let without_protocols = !text.contains("\npr ");
    let mut lines = text.split_inclusive('\n').peekable();
    let mut kept = String::with_capacity(text.len());
    while let Some(line) = lines.next() {
        let legacy =
            line.starts_with("dir-source ") && !lines.peek().is_some_and(|next| next.starts_with("contact"));
        if !legacy {
            kept.push_str(line);
        }
        if without_protocols && line.starts_with("s ") {
            kept.push_str("pr Link=1-2\n");
        }
    }
    kept
}

#[test]
fn real_consensuses_read_as_arti_reads_them() {
    let beside = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let data = std::env::var_os("TIDEGATE_DATA").map_or_else(beside, PathBuf::from);
    let Ok(entries) = std::fs::read_dir(data.join("consensus")) else {
        skipped::skipped("real consensuses read as arti reads them", "TIDEGATE_DATA");
        return;
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.retain(|path| path.to_string_lossy().contains("-consensus"));
    assert!(!paths.is_empty(), "a directory of consensuses without any");
    for path in paths {
        let document = open::open(&path).unwrap();
        let consensus = consensus::read(&document).unwrap();
        // CollecTor adds an annotation that does not belong to the document.
        let text = match document.text().strip_prefix("@type ") {
            Some(rest) => rest.split_once('\n').expect("more than a line").1,
            None => document.text(),
        };
        let read = |text: &str| match consensus.flavour {
            Flavour::Ns => theirs!(PlainConsensus, text),
            Flavour::Microdesc => theirs!(MdConsensus, text),
        };
        assert_eq!(read(text).is_err(), consensus.method < 25, "{}: refused as it is", path.display());
        let theirs = read(&in_todays_form(text));
        let theirs = theirs.unwrap_or_else(|error| panic!("{}: tor-netdoc: {error}", path.display()));
        let ours = ours(&consensus);
        assert_eq!(ours.relays.len(), theirs.relays.len(), "{}", path.display());
        for (ours, theirs) in ours.relays.iter().zip(&theirs.relays) {
            assert_eq!(ours, theirs, "{}", path.display());
        }
        assert_eq!(ours, theirs, "{}", path.display());
    }
}
