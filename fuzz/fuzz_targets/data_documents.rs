//! All readers of files. The first byte chooses the reader; the rest is the file, packed or not.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use tidegate_data::authority::Certificates;
use tidegate_data::formats::{DOWNLOADS, LATENCIES};
use tidegate_data::latency_graph::BareNumbers;
use tidegate_data::{
    consensus, descriptor, geoip, gml, graphml, latency_csv, latency_graph, microdescriptor, open, relays, tgen,
};

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else { return };
    let Ok(document) = open::unpack("fuzz", bytes.to_vec()) else { return };
    match kind % 14 {
        0 => drop(consensus::read(&document)),
        1 => drop(Certificates::default().read(&document)),
        2 => drop(microdescriptor::read(&document)),
        3 => drop((descriptor::read(document.text()), descriptor::read_extra_info(document.text()))),
        4 => drop(geoip::read(&document)),
        5 => {
            let _ = gml::read(&document).and_then(|it| latency_graph::table(&document, &it, BareNumbers::Refused));
        }
        6 => {
            let _ = graphml::read(&document).and_then(|it| latency_graph::table(&document, &it, BareNumbers::Shadow1));
        }
        7 => drop(latency_csv::wonderproxy(&document, &document)),
        8 => drop(latency_csv::ripe_countries(&document)),
        9 => drop(latency_csv::matrix(&document)),
        10 => drop(tgen::read(&document)),
        11 => drop(DOWNLOADS.read(Path::new("fuzz"), &document)),
        12 => drop((relays::capacities(&document), relays::users(&document))),
        _ => drop(LATENCIES.detect(&document).is_ok()),
    }
});
