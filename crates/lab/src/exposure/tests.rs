//! Tests against TorPS and closed forms.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use tidegate_control::positions::{Class, PositionWeights};
use tidegate_control::random::Seed;
use tidegate_data::consensus::{Consensus, Flags, Flavour, Identity, PortSummary, RouterStatus};

use super::adversary::Adversary;
use super::client::ClientExposure;
use super::network::{Network, Roster, WeightedRelays};
use super::report::Exposure;
use super::settings::{ExposureSettings, StreamPaths};
use super::simulation::{run, world};
use super::user::{PORTS, UserModel};
use crate::monitor::Monitor;
use crate::statistics::Estimate;

/// A monitor with a number of threads.
struct Threads(usize);

impl Monitor for Threads {
    fn jobs(&self) -> usize {
        self.0
    }
}

const GOOD: [&str; 5] = ["Fast", "Running", "Stable", "Valid", "V2Dir"];

/// A relay of this number in a /16 of its own.
fn relay(number: u32, flags: &[&str], bandwidth: u32) -> RouterStatus {
    let mut identity = [0; 20];
    identity[16..].copy_from_slice(&number.to_be_bytes());
    RouterStatus {
        nickname: format!("relay{number}"),
        identity: Identity(identity),
        address: Ipv4Addr::from(number << 16 | 1),
        or_port: 9001,
        flags: Flags::from_names(GOOD.iter().chain(flags).copied()),
        version: None,
        bandwidth,
        unmeasured: false,
        ports: None,
        microdescriptor: None,
    }
}

fn consensus(relays: Vec<RouterStatus>) -> Consensus {
    Consensus {
        flavour: Flavour::Microdesc,
        method: 30,
        valid_after: 1_700_000_000,
        known_flags: GOOD.map(str::to_owned).to_vec(),
        params: BTreeMap::new(),
        relays,
        bandwidth_weights: BTreeMap::new(),
    }
}

/// `count` equal relays of each class.
fn uniform(count: u32) -> Consensus {
    let flags: [&[&str]; 3] = [&[], &["Guard"], &["Exit"]];
    consensus((0..3 * count).map(|number| relay(number + 1, flags[number as usize % 3], 1000)).collect())
}

fn simulated(settings: &ExposureSettings) -> Exposure {
    run(settings, &Threads(2)).unwrap().unwrap()
}

/// Position weights that TorPS' `recompute_bwweights` prints for the bandwidths of guards, middles, exits, and relays
/// that are both: Wgg, Wgd, Wee, Wed, Wmg, Wme, Wmd.
const TORPS_WEIGHTS: [([i64; 4], [i64; 7]); 10] = [
    ([400_000, 100_000, 400_000, 100_000], [7500, 3333, 7500, 3333, 2500, 2500, 3333]),
    ([200_000, 150_000, 200_000, 450_000], [10_000, 2963, 7500, 4074, 0, 2500, 2963]),
    ([500_000, 100_000, 150_000, 250_000], [6000, 1333, 10_000, 7333, 4000, 0, 1333]),
    ([150_000, 100_000, 500_000, 250_000], [10_000, 7333, 6000, 1333, 0, 4000, 1333]),
    ([700_000, 100_000, 100_000, 100_000], [5715, 0, 10_000, 10_000, 4285, 0, 0]),
    ([100_000, 100_000, 700_000, 100_000], [10_000, 10_000, 5715, 0, 0, 4285, 0]),
    ([5607, 2070, 1010, 1410], [6846, 0, 10_000, 10_000, 3154, 0, 0]),
    ([57_200, 9100, 14_500, 19_100], [5795, 79, 10_000, 9842, 4205, 0, 79]),
    ([30_000, 50_000, 10_000, 5000], [10_000, 0, 10_000, 10_000, 0, 0, 0]),
    ([30_000, 500, 1000, 5000], [5084, 0, 10_000, 10_000, 4916, 0, 0]),
];

#[test]
fn position_weights_are_those_of_torps() {
    for ([g, m, e, d], expected) in TORPS_WEIGHTS {
        let relays = [(Class::Guard, g), (Class::Middle, m), (Class::Exit, e), (Class::GuardExit, d)];
        let w = PositionWeights::computed(relays, 0, 10_000);
        let ours = [w.gg, w.gd, w.ee, w.ed, w.mg, w.me, w.md];
        for (ours, theirs) in ours.iter().zip(expected) {
            // TorPS rounds the quotient of another order of operations; tor's own integers are tested in `data`.
            assert!((ours - theirs).abs() <= 1, "{g} {m} {e} {d}: {w:?}");
        }
    }
}

#[test]
fn relays_weigh_as_in_torps_get_bw_weight() {
    let mut middle = relay(1, &[], 100);
    // A relay without the flag Exit may still exit to one port.
    middle.ports = Some(PortSummary { accept: true, ranges: vec![(443, 443)] });
    let mut others = [relay(2, &["Guard"], 200), relay(3, &["Exit"], 300), relay(4, &["Guard", "Exit"], 400)];
    others[0].ports = Some(PortSummary { accept: true, ranges: vec![(80, 80)] });
    let consensus = consensus([middle].into_iter().chain(others).collect());
    let positions =
        PositionWeights { scale: 10, gg: 6, gd: 2, mg: 4, mm: 10, me: 1, md: 3, eg: 5, em: 8, ee: 9, ed: 7 };
    let one = std::slice::from_ref(&consensus);
    let roster = Roster::new(one, &BTreeMap::new(), &BTreeSet::new(), &PORTS);
    let network = Network::new(&consensus, &positions, &roster, PORTS.len());
    // By hand: guards 200 x 0.6 + 400 x 0.2; middles 100 + 200 x 0.4 + 300 x 0.1 + 400 x 0.3;
    // port 80: 200 x 0.5 + 300 x 0.9 + 400 x 0.7; port 443: 100 x 0.8 + 300 x 0.9 + 400 x 0.7.
    let share = |relays: &WeightedRelays, number: u32| relays.share(|relay| relay == number);
    for (relays, number, expected) in [
        (&network.guards, 1, 120.0 / 200.0),
        (&network.guards, 3, 80.0 / 200.0),
        (&network.middles, 0, 100.0 / 330.0),
        (&network.middles, 2, 30.0 / 330.0),
        (&network.middles, 3, 120.0 / 330.0),
        (&network.exits[0], 1, 100.0 / 650.0),
        (&network.exits[0], 0, 0.0),
        (&network.exits[1], 0, 80.0 / 630.0),
        (&network.exits[1], 2, 270.0 / 630.0),
    ] {
        assert!((share(relays, number) - expected).abs() < 1e-12, "relay {number}: {relays:?}");
    }
    let mut random = Seed::root(1).random();
    let n = 20_000;
    let drawn = (0..n).filter(|_| network.middles.draw(&mut random, |relay| relay != 3) == Some(0)).count();
    let (expected, drawn) = (100.0 / 210.0, drawn as f64 / f64::from(n));
    assert!((drawn - expected).abs() < 0.015, "{drawn}, excluded relays leave the others' ratios");
    assert_eq!(network.guards.draw(&mut random, |relay| relay == 2), None);
    assert_eq!(network.guards.draw(&mut random, |relay| relay == 3), Some(3));
}

/// The network of the run of TorPS: sixty relays of four classes; neighbours share a /16; some are relatives.
fn network_of_torps() -> (Consensus, BTreeMap<Identity, BTreeSet<Identity>>) {
    let flags: [&[&str]; 4] = [&[], &["Guard"], &["Exit"], &["Guard", "Exit"]];
    let relay = |number: u32| {
        let class = number as usize % 4;
        let bandwidth = (100 + number * 37 % 61 * 10) * if class == 1 { 3 } else { 1 };
        let address = Ipv4Addr::from((20 + number / 2) << 24 | 1 << 16 | number << 8 | 1);
        RouterStatus { address, ..relay(number + 1, flags[class], bandwidth) }
    };
    let relays: Vec<RouterStatus> = (0..60).map(relay).collect();
    let mut families: BTreeMap<Identity, BTreeSet<Identity>> = BTreeMap::new();
    for guard in (1..32).step_by(4) {
        let pair = [relays[guard].identity, relays[guard + 3].identity];
        families.entry(pair[0]).or_default().insert(pair[1]);
        families.entry(pair[1]).or_default().insert(pair[0]);
    }
    (consensus(relays), families)
}

#[test]
fn shares_are_those_of_a_run_of_torps() {
    let (network, families) = network_of_torps();
    let settings = ExposureSettings {
        families,
        adversary: Adversary { share: 0.2, ..Adversary::default() },
        user: UserModel::Simple,
        days: 5,
        samples: 2500,
        ..ExposureSettings::new(vec![network]).unwrap()
    };
    let exposure = simulated(&settings);
    let ours = |count| exposure.share(count);
    // TorPS of 2014 (pathsim.py), one guard, 2,500 samples: means with half widths of 95 % intervals.
    let counts: [fn(&ClientExposure) -> u64; 4] = [
        |client| client.at_guard,
        |client| client.at_exit,
        |client| client.at_middle,
        |client| client.at_both,
    ];
    for (count, [mean, half]) in counts.into_iter().zip(TORPS_RUN) {
        let ours = ours(count);
        let allowed = 1.5 * libm::hypot(half, ours.ci95.unwrap());
        assert!((ours.mean - mean).abs() < allowed, "{} instead of {mean} ± {allowed}", ours.mean);
    }
    // TorPS' shares of 6,000 other samples with a compromised stream among the first ones.
    for (streams, theirs) in TORPS_FIRST {
        let [share, low, high] = exposure.first_compromise().by((f64::from(streams) - 0.5) / 144.0);
        // The half width of theirs is that of ours, times the root of 2,500 / 6,000.
        let allowed = 1.5 * (high - low) / 2.0 * libm::sqrt(1.0 + 2500.0 / 6000.0);
        assert!(
            (share - theirs).abs() < allowed,
            "{streams} streams: {share} instead of {theirs} ± {allowed}"
        );
    }
}
const TORPS_RUN: [[f64; 2]; 4] =
    [[0.30760, 0.01809], [0.10837, 0.00045], [0.13438, 0.00355], [0.03341, 0.00198]];
const TORPS_FIRST: [(u32, f64); 6] =
    [(1, 0.0335), (2, 0.0620), (5, 0.13367), (10, 0.20383), (20, 0.2675), (144, 0.2985)];

/// Clients that use one guard, with an adversary on a quarter of a network in which nothing excludes anything.
fn closed_form(days: u32, samples: u32) -> ExposureSettings {
    let settings = ExposureSettings::new(vec![uniform(100)]).unwrap();
    let adversary = Adversary { share: 0.25, on_guards: 0.5, relays: 10 };
    ExposureSettings { adversary, days, samples, user: UserModel::Simple, ..settings }
}

#[test]
fn compromise_is_that_of_the_closed_form() {
    // Within the first 108 days a client keeps its first guard, so the first k circuits compromise it with
    // probability g (1 - (1 - e)^k), and a stream with probability g e.
    for seed in 1..4 {
        let exposure = simulated(&ExposureSettings { seed, ..closed_form(3, 2000) });
        let (g, e) = (exposure.guard_probability, exposure.exit_probability);
        assert!(g > 0.2 && e > 0.2, "{g} {e}");
        let streams = exposure.stream_shares()[0];
        assert!((streams.mean - g * e).abs() < 1.6 * streams.ci95.unwrap(), "{streams:?}, {}", g * e);
        let first = exposure.first_compromise();
        for circuits in [1, 3, 10, 432] {
            let expected = g * (1.0 - libm::pow(1.0 - e, f64::from(circuits)));
            let [share, low, high] = first.by(f64::from(circuits - 1) / 144.0 + 1e-6);
            assert!((share - expected).abs() < 0.8 * (high - low), "{circuits}: {share}, {expected}");
        }
    }
}

#[test]
fn a_second_period_of_guards_doubles_the_chances() {
    // One guard lasts from 108 to 120 days; the second one is used for 48 to 60 days at least.
    let exposure = simulated(&closed_form(150, 120));
    let g = exposure.guard_probability;
    let first = exposure.first_bad_guard();
    for (day, expected) in [(107.0, g), (121.0, 1.0 - (1.0 - g) * (1.0 - g))] {
        let [share, low, high] = first.by(day);
        assert!((share - expected).abs() < 0.8 * (high - low), "{day}: {share}, {expected}");
    }
    for client in &exposure.clients {
        let [first, second] = client.guards_since[..] else {
            panic!("two guards: {:?}", client.guards_since)
        };
        assert!(first == 0.0 && (107.9..=121.0).contains(&second), "{second}");
    }
}

#[test]
fn two_guards_and_conflux_show_more_clients_to_guards() {
    let of = |used: usize, conflux: bool| {
        let paths = if conflux { StreamPaths::Conflux } else { StreamPaths::Circuit };
        let mut settings = ExposureSettings { paths, ..closed_form(3, 2000) };
        settings.guards.used = used;
        simulated(&settings)
    };
    let [one, two, conflux] = [of(1, false), of(2, false), of(2, true)];
    assert_eq!([&one, &two, &conflux].map(|exposure| exposure.guards_by(3.0).mean), [1.0, 2.0, 2.0]);
    let g = one.guard_probability;
    let (e, of_two) = (one.exit_probability, 1.0 - (1.0 - g) * (1.0 - g));
    for (exposure, clients, streams) in
        [(&one, g, g * e), (&two, of_two, g * e), (&conflux, of_two, of_two * e)]
    {
        let [share, low, high] = exposure.first_compromise().by(3.0);
        assert!((share - clients).abs() < 0.8 * (high - low), "{share}, {clients}");
        let compromised = exposure.stream_shares()[0];
        assert!(
            (compromised.mean - streams).abs() < 1.6 * compromised.ci95.unwrap(),
            "{compromised:?}, {streams}"
        );
    }
}

#[test]
fn per_packet_paths_and_moves_show_more_relays() {
    let of = |paths| simulated(&ExposureSettings { paths, ..closed_form(3, 500) });
    let near = |estimate: Estimate, expected: f64| {
        let width = 1.6 * estimate.ci95.unwrap();
        assert!((estimate.mean - expected).abs() < width, "{estimate:?}, {expected}");
    };
    let of_any = |share: f64, count: i32| 1.0 - (1.0 - share).powi(count);
    let single = of(StreamPaths::Circuit);
    let (g, e) = (single.guard_probability, single.exit_probability);
    let eight = of(StreamPaths::PerPacket(8));
    for (estimate, expected) in
        eight.stream_shares().into_iter().zip([of_any(g, 8) * of_any(e, 8), of_any(g, 8), of_any(e, 8)])
    {
        near(estimate, expected);
    }
    // A moved circuit shows its guard to further middles, and nothing to both ends.
    let moved = of(StreamPaths::Moving(2));
    near(moved.streams_over_middles(), of_any(single.streams_over_middles().mean, 3));
    near(moved.stream_shares()[0], g * e);
}

#[test]
fn results_depend_on_the_seed_alone() {
    let settings = closed_form(2, 40);
    let of = |seed, threads| {
        let settings = ExposureSettings { seed, ..settings.clone() };
        run(&settings, &Threads(threads)).unwrap().unwrap().clients
    };
    assert_eq!(of(1, 1), of(1, 7));
    assert_ne!(of(1, 1), of(2, 1));
    let fewer = ExposureSettings { samples: 10, ..settings.clone() };
    assert_eq!(
        run(&fewer, &Threads(1)).unwrap().unwrap().clients,
        of(1, 1)[..10],
        "a client has its own branch"
    );
}

#[test]
fn relays_change_one_by_one_between_consensuses() {
    let before = uniform(100);
    let mut after = uniform(100);
    // Half of the guards leave.
    after.relays.retain(|relay| !relay.flags.guard() || relay.identity.0[19] % 2 == 0);
    after.valid_after += 100 * 86_400;
    let settings = ExposureSettings { days: 120, samples: 400, ..closed_form(1, 1) };
    let settings = ExposureSettings { consensuses: vec![before, after], ..settings };
    let world = world(&settings);
    let guards: Vec<usize> = world.days.iter().map(|network| network.guards.len()).collect();
    assert_eq!((guards[0], guards[100], guards[119]), (110, 60, 60));
    assert!(guards.is_sorted_by(|one, next| one >= next) && (75..95).contains(&guards[50]), "{guards:?}");
    let exposure = simulated(&settings);
    let replaced = exposure.guards_by(100.0).mean - 1.0;
    // The honest half of the guards leaves by half: (1 - g) / 2 of the first guards, and some of their successors.
    let left = (1.0 - exposure.guard_probability) / 2.0;
    assert!((left - 0.07..left + 0.25).contains(&replaced), "{replaced}, {left}");
}

#[test]
fn wrong_settings_are_refused() {
    let twice = ExposureSettings::new(vec![uniform(10), uniform(10)]).unwrap_err();
    assert!(twice.cause.contains("2023-11-14"), "{twice}");
    let settings = closed_form(1, 2);
    for (share, on_guards) in [(0.0, 0.5), (1.0, 0.5), (f64::NAN, 0.5), (0.1, 1.5), (0.1, f64::NAN)] {
        let adversary = Adversary { share, on_guards, relays: 1 };
        assert!(run(&ExposureSettings { adversary, ..settings.clone() }, &Threads(1)).is_err());
    }
    let mut no_exit = uniform(10);
    no_exit.relays.retain(|relay| !relay.flags.exit());
    let all = Adversary { share: 0.5, on_guards: 1.0, relays: 1 };
    let settings = ExposureSettings { adversary: all, consensuses: vec![no_exit], ..settings };
    assert!(run(&settings, &Threads(1)).unwrap_err().cause.contains("exit"));
}
