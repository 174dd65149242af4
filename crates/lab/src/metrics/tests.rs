use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_sim::observe::{Circuit, Host, Observation, Recorder as _, RelaySample, Transfer, User, Waits};

use super::*;
use crate::input::SourceFile;
use crate::scenario::Scenario;

fn scenario(overrides: &[&str]) -> Scenario {
    let text = include_str!("../../../../scenarios/bottleneck.toml").to_owned();
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    Scenario::parse(SourceFile { file: "x".into(), text }, std::path::PathBuf::new(), &overrides).unwrap()
}

const fn at(ms: u64) -> Time {
    Time(ms * 1_000_000)
}

/// Runs a stream of observations through a fold over the bottleneck.
fn fold(stream: &[(Time, Observation)]) -> Metrics {
    let scenario = scenario(&[]);
    let network = crate::network::build(&scenario, Seed::root(1)).unwrap();
    let mut fold = Fold::new(&network, &scenario.systems[0], Seed::root(1), scenario.warmup());
    for (now, observation) in stream {
        fold.record(*now, observation);
    }
    fold.finish()
}

fn begun(circuit: u32, user: u32) -> Observation {
    Observation::CircuitBegun {
        circuit: Circuit(circuit),
        user: User(user),
        path: [Host(0), Host(3), Host(4)],
    }
}

fn delivered(circuit: u32, bytes: u32, packaged: Time, departed: Time) -> Observation {
    Observation::Delivered { circuit: Circuit(circuit), bytes, packaged, departed }
}

#[test]
fn latency_and_rate_count_after_the_warm_up() {
    let metrics = fold(&[
        (at(100), begun(0, 0)),
        (at(3_000), delivered(0, 1_000_000, at(0), at(0))),
        (at(5_000), delivered(0, 300, at(4_900), at(4_950))),
        (at(6_000), delivered(0, 100, at(5_700), at(5_800))),
    ]);
    let summary = &metrics.summary;
    // (300 B x 100 ms + 100 B x 300 ms) / 400 B; the million bytes before 4 s do not count.
    assert_eq!(summary["latency_mean_s"], 0.15);
    assert_eq!(summary["latency_from_departure_mean_s"], 0.0875);
    assert_eq!(summary["throughput_total_bytes_per_s"], 400.0 / 3.5);
    assert_eq!(summary["throughput_bytes_per_s"]["circuit1"], 400.0 / 3.5);
    assert_eq!(summary["throughput_bytes_per_s"]["circuit2"], 0.0);
    assert_eq!(summary["latency_mean_by_circuit_s"]["circuit2"], serde_json::Value::Null);
    assert_eq!(metrics.delivered.curves[0].iter().sum::<u64>(), 1_000_400, "curves cover the whole run");
}

#[test]
fn backlog_is_written_minus_delivered_on_open_circuits() {
    let injected = |circuit, bytes| Observation::Injected { circuit: Circuit(circuit), bytes };
    let metrics = fold(&[
        (at(0), begun(0, 0)),
        (at(0), begun(1, 1)),
        (at(4_000), injected(0, 1_000)),
        (at(4_000), injected(1, 500)),
        (at(5_750), delivered(0, 1_000, at(4_000), at(4_000))),
        (at(6_625), Observation::CircuitClosed { circuit: Circuit(1) }),
    ]);
    // 1500 for 1.75 s, 500 for 0.875 s, 0 for 0.875 s, sampled every 10 ms over 3.5 s.
    let mean = metrics.summary["backlog_mean_bytes"].as_f64().unwrap();
    assert!((mean - 875.0).abs() < 4.0, "{mean}");
    assert_eq!(metrics.summary["backlog_max_bytes"], 1_500);
    let total = |bin: usize| metrics.backlog.curves.iter().map(|curve| curve[bin]).sum::<u64>();
    let bin = |ms: u64| (at(ms).0 / metrics.backlog.step.0) as usize;
    assert_eq!(
        (total(bin(3_900)), total(bin(5_000)), total(bin(6_000)), total(bin(7_000))),
        (0, 1_500, 500, 0)
    );
}

#[test]
fn transfers_are_timed_by_class() {
    let begin = |transfer, user, bytes| Observation::TransferBegun {
        transfer: Transfer(transfer),
        user: User(user),
        circuit: Circuit(0),
        bytes,
    };
    let metrics = fold(&[
        (at(0), begun(0, 0)),
        (at(1_000), begin(0, 0, 10)),
        (at(4_000), begin(1, 0, 10)),
        (at(4_100), Observation::TransferConnected { transfer: Transfer(1) }),
        (at(4_200), Observation::FirstByte { transfer: Transfer(1), took: Span::from_millis(200) }),
        (at(4_300), Observation::LastByte { transfer: Transfer(1), took: Span::from_millis(300) }),
        (at(4_400), begin(2, 0, 10)),
        (at(5_400), Observation::TransferTimedOut { transfer: Transfer(2), received: 3 }),
        (at(5_500), Observation::LastByte { transfer: Transfer(0), took: Span::from_millis(4_500) }),
    ]);
    let summary = &metrics.summary;
    assert_eq!(summary["ttlb_s"]["bulk"]["count"], 1, "the transfer of the warm-up does not count");
    assert!((summary["ttfb_s"]["bulk"]["p50"].as_f64().unwrap() - 0.2).abs() < 0.001);
    assert!((summary["connect_s"]["bulk"]["p50"].as_f64().unwrap() - 0.1).abs() < 0.001);
    assert_eq!(summary["transfers"]["bulk"]["begun"], 2);
    assert_eq!(summary["transfers"]["bulk"]["timed_out_share"], 0.5);
    assert_eq!(metrics.transfers.records.len(), 2);
}

#[test]
fn relays_and_anatomy_are_means() {
    let sample = |cells, sent| {
        let sample = RelaySample { circuit_queue_cells: cells, sent_bytes: sent, ..RelaySample::default() };
        Observation::RelaySample { relay: Host(3), sample }
    };
    let waits = |ms| Waits { circuit_queue: Span::from_millis(ms), ..Waits::default() };
    let waited = |ms| Observation::Waited { circuit: Circuit(0), hop: 1, at: Host(3), waits: waits(ms) };
    let metrics = fold(&[
        (at(3_000), sample(1_000, 0)),
        (at(5_000), sample(10, 875_000)),
        (at(5_000), waited(10)),
        (at(6_000), sample(30, 0)),
        (at(6_000), waited(30)),
    ]);
    let relay = &metrics.summary["relays"]["btlnk"];
    assert_eq!(relay["queue_mean_cells"], 20.0);
    assert_eq!(relay["queue_max_cells"], 30);
    assert_eq!(relay["uplink_utilisation"], 0.5, "875 kB in 3.5 s over 4 Mbit/s");
    assert!(
        (metrics.summary["anatomy_mean_s"]["middle"]["circuit_queue"].as_f64().unwrap() - 0.02).abs() < 1e-12
    );
}

#[test]
fn fairness_is_that_of_the_paper() {
    // Table 1 of the paper: vanilla 0.849 and 0.833, max-min 136.7 each.
    let scenario = scenario(&[]);
    let network = crate::network::build(&scenario, Seed::root(1)).unwrap();
    let rates = [102.5e3, 102.5e3, 197.3e3];
    // The bottleneck carries 500 kB/s of which 410.1 are application bytes.
    let on_wire = |host: u32, _| (host == 3).then_some(500e3 * 402.3 / 410.1);
    let found = fairness::fairness(&network.plan, &scenario.systems[0], &rates, &on_wire).unwrap();
    assert!((found.max_min[0].1 - 136.7e3).abs() < 1.0, "{found:?}");
    assert!((found.by_rates - 0.849).abs() < 1e-3 && (found.by_max_min - 0.833).abs() < 1e-3, "{found:?}");
}

#[test]
fn a_whole_run_adds_up_and_repeats() {
    struct Still;
    impl crate::monitor::Monitor for Still {
        fn jobs(&self) -> usize {
            2
        }
    }
    let scenario = scenario(&["duration = \"3 s\"", "warmup = \"1 s\""]);
    let runs = crate::runs::run_all(&scenario, 2, &Still).unwrap();
    assert_eq!((runs.finished.len(), runs.missing.len()), (6, 0));
    let alone = crate::runs::run_once(&scenario, 1, 2, &Still).unwrap().unwrap();
    assert_eq!(alone.digest, runs.finished[4].digest, "on any number of threads");
    assert_ne!(runs.finished[0].digest, runs.finished[1].digest, "systems differ");
    let results = crate::results::Results::new(&scenario, &runs);
    let document = results.document();
    let control = |system: &str| &document["systems"][system]["control"];
    // Six relays, 73 times each: from 100 ms on every 40 ms, the last instant included.
    assert_eq!(control("predictor")["solves"], 438.0);
    assert_eq!(control("predictor")["fallbacks"], 0.0);
    assert!(control("vanilla").is_null());
    let relays = document["systems"]["predictor"]["relays"].as_object().unwrap();
    assert!(relays.values().all(|relay| relay["control"]["solves"] == 73.0), "{relays:?}");
    let sent: f64 = relays.values().map(|relay| relay["control"]["message_bytes"].as_f64().unwrap()).sum();
    assert!(sent > 0.0 && control("predictor")["message_bytes"] == sent, "{sent}");
    for system in &scenario.file.system {
        let all = &document["systems"][system.name.as_str()];
        let total = all["throughput_total_bytes_per_s"].as_f64().unwrap();
        let parts: f64 =
            (1..=3).map(|n| all["throughput_bytes_per_s"][format!("circuit{n}")].as_f64().unwrap()).sum();
        assert!(total > 300e3 && (total - parts).abs() < 1e-6 * total, "{total} {parts}");
        assert!(all["latency_mean_s"].as_f64().unwrap() > 0.08, "at least the propagation delay");
        // The anatomy's hops add up to the latency, up to which cells were followed.
        let hops: f64 = HOPS.iter().map(|hop| sum(&all["anatomy_mean_s"][hop])).sum();
        assert!((hops / all["latency_mean_s"].as_f64().unwrap() - 1.0).abs() < 0.2, "{hops} {all}");
    }
    fn sum(causes: &serde_json::Value) -> f64 {
        CAUSES.iter().map(|cause| causes[cause].as_f64().unwrap_or(0.0)).sum()
    }
    let page = crate::report::page(&results);
    assert!(page.contains("Anatomy of latency") && !page.contains("/*DATA*/") && page.len() < 1_200_000);
}

/// One circuit that carries 5 MiB from 11 s on, 512 KiB every 100 ms.
pub(crate) fn of_five_mib() -> Metrics {
    let at = |ms: u64| at(10_000 + ms);
    let (transfer, circuit, bytes) = (Transfer(0), Circuit(0), 5 << 20);
    let mut stream = vec![
        (at(900), begun(0, 0)),
        (at(1000), Observation::TransferBegun { transfer, user: User(0), circuit, bytes }),
        (at(1050), Observation::TransferConnected { transfer }),
        (at(1100), Observation::FirstByte { transfer, took: Span::from_millis(100) }),
    ];
    stream.extend((1..=10).map(|k| (at(1000 + 100 * k), delivered(0, 512 << 10, at(1000), at(1000)))));
    stream.push((at(2000), Observation::LastByte { transfer, took: Span::from_secs(1) }));
    // Afterwards two share the circuit, and their bytes cannot be told apart.
    for transfer in [Transfer(1), Transfer(2)] {
        stream.push((at(2100), Observation::TransferBegun { transfer, user: User(0), circuit, bytes }));
    }
    stream.extend((1..=20).map(|k| (at(2100 + 100 * k), delivered(0, 512 << 10, at(2100), at(2100)))));
    stream.push((at(4100), Observation::LastByte { transfer: Transfer(1), took: Span::from_secs(2) }));
    stream.push((at(5100), Observation::TransferTimedOut { transfer: Transfer(2), received: 0 }));
    stream.push((at(5200), Observation::CircuitBuilt { circuit, took: Span::from_millis(250) }));
    fold(&stream)
}

#[test]
fn goodput_counts_between_marks_where_a_transfer_is_alone() {
    let metrics = of_five_mib();
    let goodput: Vec<_> = metrics.transfers.records.iter().map(|record| record.goodput_bytes_per_s).collect();
    // 500 KiB had come after 100 ms, 1 MiB after 200; 4 MiB after 800, 5 MiB after 1000.
    let [to_1, fifth] = goodput[0].map(|rate| rate.unwrap());
    assert!((to_1 - f64::from(524 << 10) / 0.1).abs() < 1.0, "{to_1}");
    assert!((fifth - f64::from(1 << 20) / 0.2).abs() < 1.0, "{fifth}");
    assert_eq!(goodput[1..], [[None; 2]; 2]);
}

#[test]
fn a_transfer_is_of_the_circuit_that_its_stream_was_opened_on() {
    let transfer = Transfer(0);
    let begin = |circuit| Observation::TransferBegun {
        transfer,
        user: User(0),
        circuit: Circuit(circuit),
        bytes: 1_000,
    };
    let other =
        Observation::CircuitBegun { circuit: Circuit(1), user: User(0), path: [Host(0), Host(1), Host(2)] };
    let metrics = fold(&[
        (at(4_400), begun(0, 0)),
        (at(4_500), begin(0)),
        (at(4_600), Observation::CircuitClosed { circuit: Circuit(0) }),
        (at(4_600), other),
        (at(4_900), Observation::CircuitBuilt { circuit: Circuit(1), took: Span::from_millis(300) }),
        (at(4_900), Observation::StreamOpened { transfer, circuit: Circuit(1) }),
        (at(5_000), Observation::TransferConnected { transfer }),
        (at(6_500), Observation::TransferTimedOut { transfer, received: 0 }),
    ]);
    let [record] = &metrics.transfers.records[..] else { panic!("one transfer") };
    assert_eq!((record.circuit, record.path), (1, [0, 1, 2]));
    let (begun, built) = (record.circuit_begun_ns, record.circuit_built_ns);
    assert_eq!((begun, built), (Some(100_000_000), Some(400_000_000)));
    let steps = [record.opened, record.connected, record.first, record.given_up];
    assert_eq!(steps, [Some(400), Some(500), None, Some(2_000)].map(|ms| ms.map(Span::from_millis)));
}
