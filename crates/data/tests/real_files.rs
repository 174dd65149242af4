//! The readers on real data sets, if present.

use crate::common;
use std::collections::BTreeSet;
use std::path::Path;

use common::real_data;
use tidegate_control::markov::{Chain, Delay};
use tidegate_control::units::Span;
use tidegate_data::authority::{Certificates, TOR, identities};
use tidegate_data::consensus::{self, Consensus, Flavour};
use tidegate_data::country::Country;
use tidegate_data::document::Document;
use tidegate_data::formats::{self, DOWNLOADS, GEOIP, LATENCIES, TRAFFIC_MODELS};
use tidegate_data::latency::LatencyTable;
use tidegate_data::sample::{self, Representative};
use tidegate_data::weights::{Class, class_of, computed, stated};
use tidegate_data::{microdescriptor, open, relays, torperf};

fn country(code: &str) -> Country {
    Country::from_code(code).unwrap()
}

/// File, flavour, relays and total weight in kB/s, counted with `grep` and `awk`.
const CONSENSUSES: &[(&str, Flavour, usize, u64)] = &[
    ("2011-07-16-20-00-00-consensus.xz", Flavour::Ns, 2647, 5435586),
    ("2016-12-05-00-00-00-consensus-microdesc.xz", Flavour::Microdesc, 7211, 47335994),
    ("2017-03-10-10-00-00-consensus-microdesc.xz", Flavour::Microdesc, 7326, 50114221),
    ("2017-12-10-06-00-00-consensus-microdesc.xz", Flavour::Microdesc, 6583, 44604065),
    ("2020-02-29-10-00-00-consensus.xz", Flavour::Ns, 6433, 68842463),
    ("2020-03-05-10-00-00-consensus.xz", Flavour::Ns, 6532, 72498337),
    ("2022-08-06-09-00-00-consensus-microdesc.xz", Flavour::Microdesc, 6783, 115579058),
    ("2023-04-03-17-00-00-consensus-microdesc.xz", Flavour::Microdesc, 6676, 113264031),
    ("2024-05-17-17-00-00-consensus-microdesc.xz", Flavour::Microdesc, 7195, 84857788),
    ("2025-08-08-09-00-00-consensus-microdesc.xz", Flavour::Microdesc, 9165, 167841644),
];

fn read_consensus(data: &Path, file: &str) -> Consensus {
    formats::CONSENSUSES.open(&data.join("consensus").join(file)).unwrap()
}

#[test]
fn consensuses_of_all_years_are_read_whole() {
    let Some(data) = real_data() else { return };
    for (file, flavour, relays, weight) in CONSENSUSES {
        let consensus = read_consensus(&data, file);
        let total: u64 = consensus.relays.iter().map(|relay| u64::from(relay.bandwidth)).sum();
        assert_eq!(
            (consensus.flavour, consensus.relays.len(), total),
            (*flavour, *relays, *weight),
            "{file}"
        );
        assert_eq!(consensus.bandwidth_weights.len(), 19, "{file}");
        let with_ports = consensus.relays.iter().filter(|relay| relay.ports.is_some()).count();
        assert_eq!(with_ports, if *flavour == Flavour::Ns { *relays } else { 0 }, "{file}");
    }
}

/// Number of valid signatures of nine authorities. Certificates of 2011 and early 2020 are missing.
#[test]
fn consensuses_need_signatures_with_known_certificates() {
    let Some(data) = real_data() else { return };
    let mut certificates = Certificates::default();
    certificates.open(&data.join("consensus/cached-certs.tar.xz")).unwrap();
    let mut unsigned = Vec::new();
    for (file, ..) in CONSENSUSES {
        let document = open::open(&data.join("consensus").join(file)).unwrap();
        let valid_after = consensus::read(&document).unwrap().valid_after;
        let named: BTreeSet<_> = document
            .lines()
            .filter_map(|(_, line)| {
                consensus::Identity::from_hex(line.strip_prefix("directory-signature ")?.rsplit(' ').nth(1)?)
            })
            .collect();
        match certificates.verify(&document, valid_after, &named) {
            Ok(signed) => println!("{file}: {} of {}", signed.len(), named.len()),
            Err(error) => {
                println!("{error}");
                unsigned.push(&file[..7]);
            }
        }
        if file.starts_with("2025") {
            let tor = identities(TOR).unwrap();
            assert!(certificates.verify(&document, valid_after, &tor).unwrap().len() >= 8);
            // Another address of a relay, another digit of a weight, another day: signatures do not match.
            for (from, to) in
                [("\nr ", "\nr x"), ("Bandwidth=1", "Bandwidth=9"), ("valid-until ", "valid-until  ")]
            {
                let forged = Document::new("forged", document.text().replacen(from, to, 1)).unwrap();
                let error = certificates.verify(&forged, valid_after, &tor).unwrap_err();
                assert!(error.cause.contains("signed by 0 of 9"), "{error}");
            }
            let later = certificates.verify(&document, valid_after + 900 * 86_400, &tor).unwrap_err();
            assert!(later.cause.contains("signed by 0 of 9"), "{later}");
        }
    }
    assert_eq!(unsigned, ["2011-07", "2020-02", "2020-03"]);
}

#[test]
fn relays_are_in_countries() {
    let Some(data) = real_data() else { return };
    let geoip = GEOIP.open(&data.join("geoip/geoip-2026-debian-0.4.9.11.xz")).unwrap();
    let consensus = read_consensus(&data, "2025-08-08-09-00-00-consensus-microdesc.xz");
    let of = |code| {
        let inside = |relay: &&consensus::RouterStatus| geoip.country(relay.address) == Some(country(code));
        consensus.relays.iter().filter(inside).count()
    };
    let placed = consensus.relays.iter().filter(|relay| geoip.country(relay.address).is_some()).count();
    assert!(placed * 1000 > consensus.relays.len() * 995, "{placed} placed");
    // The two largest counts, from relays-2025-08-08.derived.csv.xz.
    assert_eq!((of("US"), of("DE")), (2506, 1680));
}

fn read_latency(data: &Path, file: &str) -> LatencyTable {
    LATENCIES.open(&data.join("latency").join(file)).unwrap()
}

fn between(table: &LatencyTable, a: &str, b: &str) -> f64 {
    let at = |name| table.locations.iter().position(|location| location.name == name).unwrap();
    table.path(at(a), at(b)).delay.as_secs_f64() * 1e3
}

#[test]
fn cities_have_the_delays_that_were_measured() {
    let Some(data) = real_data() else { return };
    let table = read_latency(&data, "pings-2020-07-19-2020-07-20-grouped.csv.xz");
    assert_eq!(table.locations.len(), 246);
    assert!(table.locations.iter().all(|location| location.country.is_some()));
    let transatlantic = between(&table, "Frankfurt", "New York");
    assert!((38.0..50.0).contains(&transatlantic), "{transatlantic}");
    let within = between(&table, "Frankfurt", "Frankfurt");
    assert!((0.1..5.0).contains(&within), "{within}");
    assert!(table.completed < 1000, "{}", table.completed);
    assert!(table.in_or_near(country("US")).len() > 40);
    assert!(!table.in_or_near(country("LI")).is_empty());
}

#[test]
fn countries_have_the_delays_that_were_measured() {
    let Some(data) = real_data() else { return };
    let table = read_latency(&data, "country_rtt_stat.csv.gz");
    // 170 codes are countries; 13 of them appear only with `EU`, `None` or `Unknown`.
    assert_eq!(table.locations.len(), 157);
    assert!((between(&table, "DE", "DE") - 26.794_371_583_648_235 / 2.0).abs() < 1e-5);
    assert_eq!(between(&table, "DE", "JP"), between(&table, "JP", "DE"));
}

#[test]
fn shadows_planetlab_graph_is_read() {
    let Some(data) = real_data() else { return };
    let table = read_latency(&data, "topology.plab-2013.graphml.xml.xz");
    assert_eq!(table.locations.len(), 303);
    let own = table.path(0, 0);
    assert_eq!((own.delay, own.jitter), (Span::from_millis(25), Span::from_millis(11)));
    assert_eq!(table.locations[0].country, Some(country("US")));
    assert_eq!(table.locations[0].city.as_deref(), Some("AR"));
    // The edges of Shadow's later graph are cut off, so it is refused.
    let error = LATENCIES.open(&data.join("latency/atlas-nodes-networkinfo_staging.gml.xz")).unwrap_err();
    assert!(error.cause.contains("unreachable"), "{error}");
}

#[test]
fn computed_position_weights_are_those_of_the_authorities() {
    let Some(data) = real_data() else { return };
    for (file, ..) in CONSENSUSES {
        let consensus = read_consensus(&data, file);
        let stated = stated(&consensus).unwrap();
        assert_eq!(computed(&consensus), stated, "{file}");
    }
}

#[test]
fn samples_keep_classes_and_weights_of_real_networks() {
    let Some(data) = real_data() else { return };
    for (file, ..) in CONSENSUSES {
        let relays = read_consensus(&data, file).relays;
        let sampled = sample::sample(&relays, 0.02, Representative::Median);
        for class in Class::ALL {
            let weights = |chosen: &[usize]| -> Vec<f64> {
                let members = chosen.iter().map(|i| &relays[*i]);
                let members =
                    members.filter(|r| class_of(r) == class && r.flags.running() && r.bandwidth > 0);
                members.map(|relay| f64::from(relay.bandwidth)).collect()
            };
            let (all, some) = (weights(&(0..relays.len()).collect::<Vec<_>>()), weights(&sampled));
            let distance = sample::ks_distance(&all, &some);
            let expected = all.len() as f64 * 0.02;
            assert!(
                (some.len() as f64 - expected).abs() <= 0.5,
                "{file} {class:?}: {} of {expected}",
                some.len()
            );
            // Many relays have equal weights, so a representative may stand for relays of other buckets.
            assert!(
                distance <= 1.5 / some.len() as f64 + 0.01,
                "{file} {class:?}: {distance} with {}",
                some.len()
            );
        }
    }
}

#[test]
fn measured_downloads_are_read() {
    let Some(data) = real_data() else { return };
    let read = |file: &str| DOWNLOADS.open(&data.join("perf").join(file)).unwrap();
    let year = read("torperf-2019.json.xz");
    let sizes: Vec<(u64, usize)> = year.downloads.iter().map(|d| (d.bytes, d.ttlb_s.len())).collect();
    assert_eq!(sizes, [(51_200, 106_465), (1_048_576, 17_438), (5_242_880, 8_699)]);
    assert_eq!(year.requests, Some(torperf::Requests { made: 144_894, timed_out: 12_292, failed: 0 }));
    let median = torperf::quantile(&year.downloads[0].ttlb_s, 0.5).unwrap();
    assert!((1.0..3.0).contains(&median), "{median}");
    let analysis = read("2021-01-01.op-hk5.onionperf.analysis.json.xz");
    assert_eq!(analysis.downloads.len(), 3);
    // Two more of this day came from an onion service.
    assert_eq!(analysis.downloads[0].ttfb_s.len(), 3);
}

#[test]
fn capacities_and_users_are_read() {
    let Some(data) = real_data() else { return };
    let file = |name: &str| open::open(&data.join("relays").join(name)).unwrap();
    let relays = relays::capacities(&file("relayinfo_staging_2024-05-01--2024-05-31.json.xz")).unwrap();
    assert_eq!(relays.len(), 8665);
    let consensus = read_consensus(&data, "2024-05-17-17-00-00-consensus-microdesc.xz");
    let known = consensus.relays.iter().filter(|relay| relays.contains_key(&relay.identity)).count();
    assert_eq!(known, 7183);
    let users = relays::users(&file("userinfo_staging_2024-05-01--2024-05-31.json")).unwrap();
    assert!((users.values().sum::<f64>() - 1.0).abs() < 1e-9);
    assert!(users[&country("US")] > 0.1);
    let table = relays::countries(&file("relays-2025-08-08.derived.csv.xz")).unwrap();
    assert_eq!(table.values().filter(|code| **code == country("US")).count(), 2506);
}

#[test]
fn families_of_a_real_network_are_mutual() {
    let Some(data) = real_data() else { return };
    let relays = read_consensus(&data, "2017-03-10-10-00-00-consensus-microdesc.xz").relays;
    let file = |end| open::open(&data.join(format!("relays/2017-03-10-microdescs{end}.xz"))).unwrap();
    let [cache, journal] = ["", ".new"].map(file);
    let both = Document::new("both", [cache.text(), journal.text()].concat()).unwrap();
    // Relays without a microdescriptor, with relatives, and pairs, counted with Python's hashlib.
    for (document, counts) in [(cache, (1515, 1064, 3255)), (both, (0, 1376, 4799))] {
        let read = microdescriptor::read(&document).unwrap();
        let families = read.families(&relays);
        let pairs = families.relatives.values().map(|others| others.len()).sum::<usize>() / 2;
        assert_eq!((families.missing, families.relatives.len(), pairs), counts);
        assert_eq!(read.broken, 0, "{:?}", read.named);
        for (one, others) in &families.relatives {
            assert!(others.iter().all(|other| other != one && families.relatives[other].contains(one)));
        }
    }
}

#[test]
fn markov_models_are_read_unchanged() {
    let Some(data) = real_data() else { return };
    let read = |file: &str| TRAFFIC_MODELS.open(&data.join(file));
    let new = read("relays/shadowtor-0.31-2019-01/tgen.tor-streammodel-ccs2018.graphml").unwrap();
    let old = read("traffic/tgen.privcount.stream.model.graphml.xml.xz").unwrap();
    let lognormal = Delay::LogNormal { location: 7.498251160745908, scale: 6.514356309882063 };
    let state = |name: &str| new.states().iter().find(|state| state.name == name).unwrap();
    assert_eq!(state("Dwell").emissions[0].delay, lognormal);
    assert_eq!((new.states().len(), old.states().len()), (4, 4));
    let count = |model: &Chain| {
        let transitions: usize = model.states().iter().map(|state| state.transitions.len()).sum();
        let emissions: usize = model.states().iter().map(|state| state.emissions.len()).sum();
        (model.states().len(), transitions, emissions)
    };
    let old = read("traffic/tgen.privcount.packet.model.graphml.xml.xz").unwrap();
    assert_eq!(count(&old), (28, 83, 51));
    let new = read("relays/shadowtor-0.31-2019-01/tgen.tor-packetmodel-ccs2018.graphml").unwrap();
    assert_eq!(count(&new), (28, 83, 51));
    // Protocol scripts are GraphML too, but not Markov models.
    let error = read("traffic/tgen.protocol.bittorrent.model.graphml.xml.xz").unwrap_err();
    assert!(error.cause.contains("an action graph of tgen"), "{error}");
}
