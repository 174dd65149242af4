//! Every reader gets the files of all other readers: a refusal says what the file is and which command reads it.

use std::path::Path;

use crate::document::{DataError, Document};
use crate::formats::{
    BANDWIDTH_FILES, CONSENSUSES, DOWNLOADS, Formats, GEOIP, HOURLY_RELAYS, LATENCIES, RELAY_FILES,
    SPEED_TESTS, TRAFFIC_MODELS,
};
use crate::kinds::{self, KINDS};
use crate::{microdescriptor, torrc};

const NS: &str = include_str!("../../fixtures/consensus-ns");
const ID: &str = "000102030405060708090A0B0C0D0E0F10111213";

/// A file of every kind.
fn samples() -> Vec<(&'static str, String)> {
    let text = |text: &str| text.to_owned();
    let graphml = |key: &str| {
        format!("<graphml><key id='a' attr.name='{key}'/><graph><node id='start'/></graph></graphml>")
    };
    vec![
        ("a vote of a directory authority", text("network-status-version 3\nvote-status vote\n")),
        (kinds::CONSENSUS, text(NS)),
        (kinds::CONSENSUS, text(include_str!("../../fixtures/consensus-microdesc"))),
        ("a file of detached signatures", format!("consensus-digest {ID}\n")),
        (
            "a key certificate of a directory authority",
            text("dir-key-certificate-version 3\nfingerprint 00\n"),
        ),
        ("a document of bridges", text("@type bridge-server-descriptor 1.2\nrouter a 10.0.0.1 9001 0 0\n")),
        (kinds::DESCRIPTORS, text("@type server-descriptor 1.0\nrouter a 10.0.0.1 9001 0 0\nonion-key\n")),
        ("a file of extra-infos", format!("extra-info a {ID}\npublished 2020-01-01 00:00:00\n")),
        (kinds::MICRODESCRIPTORS, text(include_str!("../../fixtures/microdescriptors"))),
        (kinds::BANDWIDTH_FILE, format!("1523911758\nversion=1.9.0\n=====\nbw=5 node_id=${ID}\n")),
        (kinds::BANDWIDTH_FILE, format!("946684801\nnode_id=${ID}\tbw=5\tnick=a\n")),
        (kinds::SHADOW, text(include_str!("../../fixtures/shadow.config.yaml"))),
        (kinds::SHADOW, text("<?xml version='1.0'?>\n<shadow stoptime='9'/>")),
        (kinds::MARKOV, text(include_str!("../../fixtures/markov.graphml"))),
        // A model without emissions; its reader says what is wrong.
        (
            kinds::MARKOV,
            graphml("type").replace(
                "<node id='start'/>",
                "<edge source='a' target='a'><data key='a'>transition</data></edge>",
            ),
        ),
        (kinds::SHADOW1_GRAPH, text(include_str!("../../fixtures/network.graphml"))),
        (kinds::ACTIONS, graphml("recvsize")),
        (kinds::ACTIONS, graphml("serverport")),
        (kinds::GML, text(include_str!("../../fixtures/network.gml"))),
        (kinds::SUMMARY, text(include_str!("../../fixtures/torperf.json"))),
        (kinds::STAGED, text(include_str!("../../fixtures/relayinfo.json"))),
        (kinds::SPEED_TEST, format!("{{\"{ID}\": {{\"advbw\": {{\"before\": 1, \"after\": 2}}}}}}")),
        (kinds::CHURN, format!("{{\"1546534800.0\": [\"{ID}\"]}}")),
        (kinds::STAGED_USERS, text("{\"de\": 0.5, \"us\": 0.5}")),
        (kinds::ANALYSIS, text(include_str!("../../fixtures/onionperf.json"))),
        (kinds::TPF, text("@type torperf 1.1\nFILESIZE=51200 START=1000.00 DATACOMPLETE=1001.25\n")),
        (kinds::PINGS, text("source,destination,min,avg,max,mdev\n")),
        (kinds::PINGS, text("id,name,title,country\n0,A,Alpha,Germany\n")),
        (kinds::RIPE, text("cty1,cty2,rtt_avg\nDE,FR,10\n")),
        (
            "a table of Tor Metrics",
            text("# The Tor Project\ndate,source,filesize\n2025-01-01,op-de7a,51200\n"),
        ),
        (kinds::GEOIP, text("# a comment\n10,19,DE\n")),
        (kinds::TORRC, text("# a relay\nNickname a\nORPort 9001\n")),
        ("a text in Markdown", text("# A\n\nSave this:\n\n```toml\nduration = \"10 s\"\n[[system]]\n```\n")),
        ("a text in Markdown", text("# A\n\n```text\nORPort 9001\n```\n")),
        ("a scenario", text("duration = \"10 s\"\n[[system]]\nname = \"a\"\n")),
        (kinds::MATRIX, text("0 10\n10 0\n")),
    ]
}

#[test]
fn every_kind_is_recognised() {
    for (kind, text) in samples() {
        let document = Document::new("x", text.clone()).unwrap();
        assert_eq!(kinds::of(&document).map(|found| found.name), Some(kind), "{text}");
    }
    for kind in KINDS {
        assert!(samples().iter().any(|(name, _)| *name == kind.name), "{} has no sample", kind.name);
    }
    for none in ["hello\n", "{}", "<html></html>", "a,b,c\n1,2,3\n"] {
        assert!(kinds::of(&Document::new("x", none).unwrap()).is_none(), "{none}");
    }
}

type Read<'a> = (&'a str, &'a [&'a str], Box<dyn Fn(&Document) -> Result<(), DataError>>);

fn reader<T>(formats: &'static Formats<T>) -> Read<'static> {
    (formats.contents, formats.kinds, Box::new(|document| formats.read(Path::new("x"), document).map(drop)))
}

#[test]
fn every_reader_names_the_files_of_all_others() {
    let readers: [Read<'_>; 11] = [
        reader(&LATENCIES),
        reader(&RELAY_FILES),
        reader(&CONSENSUSES),
        reader(&BANDWIDTH_FILES),
        reader(&GEOIP),
        reader(&DOWNLOADS),
        reader(&TRAFFIC_MODELS),
        reader(&SPEED_TESTS),
        reader(&HOURLY_RELAYS),
        (
            "microdescriptors",
            &[kinds::MICRODESCRIPTORS],
            Box::new(|document| microdescriptor::read(document).map(drop)),
        ),
        ("a torrc", &[kinds::TORRC], Box::new(|document| torrc::read(document).map(drop))),
    ];
    for (contents, own, read) in readers {
        for (kind, text) in samples() {
            if own.contains(&kind) {
                continue;
            }
            let refused = read(&Document::new("x", text).unwrap()).expect_err(kind);
            let cause = format!("is {kind}, and not {contents}");
            assert_eq!(refused.cause, cause);
            assert!(refused.cure.contains("tidegate") || refused.cure.contains("reads it"), "{refused}");
        }
    }
}
