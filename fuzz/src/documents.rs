//! Files of networks and documents of directories.

use std::net::Ipv4Addr;
use std::path::Path;

use ed25519_dalek::SigningKey;
use tidegate_data::authority::Certificates;
use tidegate_data::formats::{DOWNLOADS, LATENCIES};
use tidegate_data::latency_graph::BareNumbers;
use tidegate_data::{
    consensus, descriptor, geoip, gml, graphml, latency_csv, latency_graph, microdescriptor, open, relays,
    shadow_file, tgen,
};
use tidegate_net::gate::Gate;
use tidegate_net::live::directory::{Admission, Authority, Entry, check};

/// All readers of files. The first byte chooses the reader; the rest is the file, packed or not.
pub fn data_documents(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else { return };
    let Ok(document) = open::unpack("fuzz", bytes.to_vec()) else { return };
    match kind % 15 {
        0 => drop(consensus::read(&document)),
        1 => drop(Certificates::default().read(&document)),
        2 => drop(microdescriptor::read(&document)),
        3 => drop((descriptor::read(document.text()), descriptor::read_extra_info(document.text()))),
        4 => drop(geoip::read(&document)),
        5 => {
            let read = gml::read(&document);
            drop(read.and_then(|graph| latency_graph::table(&document, &graph, BareNumbers::Refused)));
        }
        6 => {
            let read = graphml::read(&document);
            drop(read.and_then(|graph| latency_graph::table(&document, &graph, BareNumbers::Shadow1)));
        }
        7 => drop(latency_csv::wonderproxy(&document, &document)),
        8 => drop(latency_csv::ripe_countries(&document)),
        9 => drop(latency_csv::matrix(&document)),
        10 => drop(tgen::read(&document)),
        11 => drop(DOWNLOADS.read(Path::new("fuzz"), &document)),
        12 => drop((relays::capacities(&document), relays::users(&document))),
        13 => drop(LATENCIES.detect(&document).is_ok()),
        _ => drop(shadow_file::read(&document)),
    }
}

/// Documents of an overlay's directory: posts of relays to the authority, and directories that clients fetch. An entry that
/// is accepted reads the same once written.
pub fn directory_documents(input: &[u8]) {
    const NOW: u64 = 1_700_000_000;
    let Ok(text) = std::str::from_utf8(input) else { return };
    let key = SigningKey::from_bytes(&[7; 32]);
    let public = key.verifying_key().to_bytes();
    let _ = check(text, &public, NOW, 0);
    for line in text.lines() {
        if let Ok(entry) = Entry::parse(line) {
            assert_eq!(Entry::parse(&entry.line()), Ok(entry));
        }
    }
    let (token, gate) = (Some("open".to_owned()), Gate::Private);
    let admission = Admission { allowed: Vec::new(), token, per_address: 8, gate };
    let mut authority = Authority::new(key, admission, 3600);
    if authority.join(NOW, Ipv4Addr::LOCALHOST.into(), text).is_ok() {
        let directory = authority.directory(NOW);
        assert!(check(&directory, &public, NOW, NOW).is_ok_and(|read| read.relays.len() == 1), "{directory}");
    }
}
