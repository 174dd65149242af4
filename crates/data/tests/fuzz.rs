//! Malformed input for every reader: errors name the file and the mistake, without panics.

use std::path::Path;

use proptest::prelude::*;
use tidegate_control::random::Seed;
use tidegate_data::document::{DataError, Document};
use tidegate_data::formats::{DOWNLOADS, LATENCIES};
use tidegate_data::latency_graph::BareNumbers;
use tidegate_data::{
    consensus, geoip, gml, graphml, latency_csv, latency_graph, microdescriptor, open, relays, shadow_file,
    tgen, torrc,
};

const TPF: &str = "@type torperf 1.1\nFILESIZE=51200 START=1000.00 BUILDTIMES=0.25,0.5,0.75 DATARESPONSE=1000.50 \
    DATACOMPLETE=1001.25 DIDTIMEOUT=0 ENDPOINTREMOTE=a.example:192.0.2.7:80\n";

const TORRC: &str = "ORPort 9001\nContactInfo \"a \\\"b\\\"\"\nExitPolicy accept *:80, \\\n  reject *:*\n";

/// A reader without its result.
type Read = fn(&Document) -> Result<(), DataError>;

/// Name of a reader, the reader, and a small valid document.
fn readers() -> Vec<(&'static str, Read, String)> {
    let servers = "id,name,title,country\n0,A,Alpha,Germany\n1,B,Beta,France\n2,C,Gamma,Spain\n";
    let read_pings: Read = |document| {
        let servers = Document::new("servers.csv", "id,title,country\n0,A,Germany\n1,B,France\n2,C,Spain\n")?;
        latency_csv::wonderproxy(document, &servers).map(drop)
    };
    let read_servers: Read = |document| {
        let pings = Document::new("pings.csv", "source,destination,avg,mdev\n0,1,9,1\n1,2,8,1\n")?;
        latency_csv::wonderproxy(&pings, document).map(drop)
    };
    let read_gml: Read =
        |document| latency_graph::table(document, &gml::read(document)?, BareNumbers::Refused).map(drop);
    let read_graphml: Read =
        |document| latency_graph::table(document, &graphml::read(document)?, BareNumbers::Shadow1).map(drop);
    vec![
        ("ns", |d| consensus::read(d).map(drop), NS.to_owned()),
        ("microdesc", |d| consensus::read(d).map(drop), MICRODESC.to_owned()),
        ("microdescriptors", |d| microdescriptor::read(d).map(drop), MICRODESCRIPTORS.to_owned()),
        ("geoip", |d| geoip::read(d).map(drop), "# made up\n10,19,DE\n20,29,??\n30,35,FR\n".to_owned()),
        ("gml", read_gml, GML.to_owned()),
        ("graphml", read_graphml, GRAPHML.to_owned()),
        ("pings", read_pings, "source,destination,avg,mdev\n0,1,10.5,0.5\n1,2,8.25,0\n0,2,3,1\n".to_owned()),
        ("servers", read_servers, servers.to_owned()),
        (
            "countries",
            |d| latency_csv::ripe_countries(d).map(drop),
            "cty1,cty2,rtt_avg\nDE,FR,10\nDE,ES,3\n".to_owned(),
        ),
        ("matrix", |d| latency_csv::matrix(d).map(drop), "0 10 4\n10 0 3\n4 3 0\n".to_owned()),
        ("tgen", |d| tgen::read(d).map(drop), MARKOV.to_owned()),
        ("torperf", |d| DOWNLOADS.read(Path::new("input"), d).map(drop), TORPERF.to_owned()),
        ("tpf", |d| DOWNLOADS.read(Path::new("input"), d).map(drop), TPF.to_owned()),
        ("onionperf", |d| DOWNLOADS.read(Path::new("input"), d).map(drop), ONIONPERF.to_owned()),
        ("shadow", |d| shadow_file::read(d).map(drop), SHADOW.to_owned()),
        ("torrc", |d| torrc::read(d).map(drop), TORRC.to_owned()),
        ("capacities", |d| relays::capacities(d).map(drop), CAPACITIES.to_owned()),
        ("users", |d| relays::users(d).map(drop), "{\"de\": 0.5, \"us\": 0.25, \"ap\": 0.25}\n".to_owned()),
    ]
}

const NS: &str = include_str!("../fixtures/consensus-ns");
const MICRODESC: &str = include_str!("../fixtures/consensus-microdesc");
const MICRODESCRIPTORS: &str = include_str!("../fixtures/microdescriptors");
const GML: &str = include_str!("../fixtures/network.gml");
const GRAPHML: &str = include_str!("../fixtures/network.graphml");
const MARKOV: &str = include_str!("../fixtures/markov.graphml");
const SHADOW: &str = include_str!("../fixtures/shadow.config.yaml");
const TORPERF: &str = include_str!("../fixtures/torperf.json");
const ONIONPERF: &str = include_str!("../fixtures/onionperf.json");
const CAPACITIES: &str = include_str!("../fixtures/relayinfo.json");

/// Reads bytes with a reader and checks the error.
fn read(read: Read, bytes: Vec<u8>) -> Result<(), DataError> {
    let result = open::unpack("input", bytes).and_then(|document| {
        let _ = LATENCIES.detect(&document);
        read(&document)
    });
    if let Err(error) = &result {
        assert!(error.file == "input" || error.file.ends_with(".csv"), "{error}");
        assert!(!error.cause.is_empty() && !error.cure.is_empty(), "{error}");
        assert!(error.to_string().len() < 600, "an error is a line, not a dump: {error}");
    }
    result
}

#[test]
fn the_made_up_documents_are_valid() {
    for (name, reader, text) in readers() {
        if let Err(error) = read(reader, text.into_bytes()) {
            panic!("{name}: {error}");
        }
    }
}

#[test]
fn every_cut_is_refused_or_harmless() {
    for (name, reader, text) in readers() {
        // Line-based tables are complete after any line; other formats have an end.
        let has_an_end =
            !["microdescriptors", "geoip", "pings", "servers", "countries", "shadow", "tpf", "torrc"]
                .contains(&name);
        for part in 0..50 {
            let cut = text.len() * part / 50;
            let result = read(reader, text.as_bytes()[..cut].to_vec());
            let only_blanks_cut = text[..cut].trim_end() == text.trim_end();
            let behind_signature = text[..cut].ends_with("-----END SIGNATURE-----\n");
            assert!(
                result.is_err() || !has_an_end || only_blanks_cut || behind_signature,
                "{name} cut at {cut} was accepted"
            );
        }
    }
}

#[test]
fn flipped_bytes_never_panic() {
    let mut random = Seed::root(1).fork("flips").random();
    for (_, reader, text) in readers() {
        for _ in 0..300 {
            let mut bytes = text.clone().into_bytes();
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
            let _ = read(reader, bytes);
        }
    }
}

#[test]
fn numbers_out_of_range_never_panic() {
    let huge = [
        "99999999999999999999",
        "-1",
        "1e999",
        "nan",
        "18446744073709551615",
        "4294967296",
        "0",
        "-0.0",
        "1e-320",
    ];
    for (_, reader, text) in readers() {
        // Replaces every run of digits with each of these.
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            let length = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            if length > 0 {
                for number in huge {
                    let changed = [&bytes[..at], number.as_bytes(), &bytes[at + length..]].concat();
                    let _ = read(reader, changed);
                }
            }
            at += length.max(1);
        }
    }
}

#[test]
fn ten_megabytes_of_noise_are_refused() {
    let mut random = Seed::root(2).fork("noise").random();
    let noise: Vec<u8> = (0..10 << 20).map(|_| random.bits() as u8).collect();
    // Printable noise passes the check for text.
    let printable: Vec<u8> = noise.iter().map(|byte| b' ' + byte % 95).collect();
    let lines: Vec<u8> = noise.iter().map(|byte| if *byte < 8 { b'\n' } else { b' ' + byte % 95 }).collect();
    for (name, reader, _) in readers() {
        for noise in [&noise, &printable, &lines] {
            assert!(read(reader, noise.clone()).is_err(), "{name} accepted noise");
        }
    }
}

#[test]
fn deep_nesting_is_refused() {
    for deep in
        ["graph [ ", "[", "{\"relays\": ", "<graphml>", "<graphml><a>", "{\"data\": {\"a\": ", "\"", "<!--"]
    {
        for (name, reader, _) in readers() {
            assert!(read(reader, deep.repeat(20_000).into_bytes()).is_err(), "{name} accepted {deep}...");
        }
    }
}

#[test]
fn duplicated_and_dropped_lines_never_panic() {
    for (_, reader, text) in readers() {
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        for at in 0..lines.len() {
            let twice = [&lines[..=at], &lines[at..]].concat().concat();
            let dropped = [&lines[..at], &lines[at + 1..]].concat().concat();
            let swapped = [&lines[at..], &lines[..at]].concat().concat();
            for text in [twice, dropped, swapped] {
                let _ = read(reader, text.into_bytes());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        for (_, reader, _) in readers() {
            let _ = read(reader, bytes.clone());
        }
    }

    #[test]
    fn spliced_documents_never_panic(at in any::<prop::sample::Index>(), text in ".{0,40}", length in 0usize..60) {
        for (_, reader, valid) in readers() {
            let bytes = valid.as_bytes();
            let from = at.index(bytes.len());
            let to = (from + length).min(bytes.len());
            let _ = read(reader, [&bytes[..from], text.as_bytes(), &bytes[to..]].concat());
        }
    }

    #[test]
    fn packed_garbage_never_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..300), xz in any::<bool>()) {
        let magic: &[u8] = if xz { &[0xfd, b'7', b'z', b'X', b'Z', 0] } else { &[0x1f, 0x8b, 8, 0] };
        bytes.splice(0..0, magic.iter().copied());
        prop_assert!(open::unpack("input", bytes).is_err());
    }
}
