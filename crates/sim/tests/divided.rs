//! Runs that are divided among processes: results do not depend on threads, and hardly on the division.

use std::ops::ControlFlow;
use std::sync::Arc;

use tidegate_control::positions::Class;
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_proto::cell::RelayId;
use tidegate_proto::registry::CONTROLS;
use tidegate_sim::digest::Digest;
use tidegate_sim::division::obstacle;
use tidegate_sim::observe::{Observation, Recorder};
use tidegate_sim::plan::*;
use tidegate_sim::world::{self, Threads};

fn host(name: String, role: Role, location: u32, rate: Rate) -> HostPlan {
    let link = LinkPlan { rate, queue: QueuePlan::DropTail { packets: 1000, bytes: u64::MAX } };
    HostPlan { name, role, location, colocated: None, up: link, down: link }
}

/// Eight relays, twelve users and two servers at four places in a row, so far apart; half of the users want a circuit for
/// each request.
fn network(processes: u32, apart: Span) -> Plan {
    let limits = RelayLimits { retry_after: Span::from_millis(10), servers: true, ..RelayLimits::default() };
    let rate = Rate(20_000_000);
    let mut hosts: Vec<HostPlan> =
        (0..8).map(|i| host(format!("relay{i}"), Role::Relay(limits), i % 4, rate)).collect();
    hosts.extend((0..12).map(|i| host(format!("client{i}"), Role::Client, i % 4, rate)));
    hosts.extend((0..2).map(|i| host(format!("server{i}"), Role::Server, i, rate)));
    let request = |bytes, timeout| RequestPlan { bytes, weight: 1.0, timeout, request_bytes: 100 };
    let user = |i: u32| UserPlan {
        host: 8 + i,
        class: "web".into(),
        route: Route::Drawn { keep_guard: true, onion_service: false },
        second_path: None,
        servers: vec![20, 21],
        traffic: Traffic::Fetch {
            requests: vec![
                request(100_000, Span::from_secs(10)),
                // Some transfers time out, before or after their connection opens.
                request(4_000_000, Span::from_millis(150 * u64::from(i))),
            ],
            pause: (Span::from_millis(100), Span::from_millis(300)),
            every: None,
        },
        start: Time::ZERO + Span::from_millis(500 + 37 * u64::from(i)),
        stop: Time::NEVER,
        circuit_lead: Span::from_millis(400),
        rests: Vec::new(),
        circuit_lifetime: if i.is_multiple_of(2) { Span::ZERO } else { Span::from_secs(600) },
    };
    let relay = |i| RelayEntry { class: Class::GuardExit, weight: 1.0, ..RelayEntry::new(RelayId(i)) };
    let relays = (0..8).map(relay);
    let path = |from: u32, to: u32| Path {
        delay: apart * u64::from(from.abs_diff(to)),
        loss: 0.001,
        ..Path::default()
    };
    Plan {
        hosts,
        paths: PathTable::from_fn(4, path),
        users: (0..12).map(user).collect(),
        directory: Directory { relays: relays.collect(), ..Directory::default() },
        duration: Span::from_secs(8),
        sample_every: Span::from_millis(100),
        processes,
        ..Plan::default()
    }
}

/// Results of a run that a test compares.
#[derive(Default, PartialEq, Debug)]
struct Seen {
    digest: Digest,
    ended: u32,
    given_up: u32,
    delivered: u64,
}

impl Recorder for Seen {
    fn record(&mut self, now: Time, observation: &Observation) {
        self.digest.record(now, observation);
        match observation {
            Observation::LastByte { .. } => self.ended += 1,
            Observation::TransferTimedOut { .. } => self.given_up += 1,
            Observation::Delivered { bytes, .. } => self.delivered += u64::from(*bytes),
            _ => {}
        }
    }
}

const APART: Span = Span::from_millis(6);

fn run(processes: u32, threads: usize, system: &System, seed: u64) -> Seen {
    let mut seen = Seen::default();
    let threads = Threads { count: threads, around: &|work| work() };
    let plan = network(processes, APART);
    let goes_on = &mut |_| ControlFlow::Continue(());
    world::run_on(&threads, &plan, system, Seed::root(seed), &mut seen, goes_on);
    seen
}

/// All controls, and other features between relays.
fn systems() -> Vec<System> {
    let controls = CONTROLS.iter().map(|part| System {
        name: part.name.into(),
        control: part.by_default(),
        tls: Tls { standing: true, ..Tls::default() },
        ..System::default()
    });
    let shaking_hands =
        System { tls: Tls { round_trips: 2, ..Tls::default() }, name: "tls".into(), ..System::default() };
    let pctcp = System { transport: Transport::PerCircuit, name: "pctcp".into(), ..System::default() };
    let kist = Some(kist::KistParameters::default());
    let kist =
        System { kist, scheduler: Arc::new(Ewma::default()), name: "kist".into(), ..System::default() };
    controls.chain([shaking_hands, pctcp, kist]).collect()
}

#[test]
fn threads_change_nothing() {
    for system in systems() {
        let one = run(4, 1, &system, 1);
        assert!(one.ended > 20 && one.given_up > 3, "{}: {one:?}", system.name);
        for threads in [2, 3, 9] {
            assert_eq!(run(4, threads, &system, 1), one, "{} on {threads} threads", system.name);
        }
    }
}

#[test]
fn a_division_changes_hardly_anything() {
    for system in systems() {
        let sum = |processes| (1..=4).map(|seed| run(processes, 2, &system, seed).delivered).sum::<u64>();
        let ratio = sum(4) as f64 / sum(1) as f64;
        assert!((0.9..1.1).contains(&ratio) && ratio != 1.0, "{}: {ratio}", system.name);
    }
}

#[test]
fn close_hosts_share_a_process_and_results_do_not_change() {
    let near = Span::from_micros(50);
    for system in systems() {
        let observe = |processes| {
            let mut seen = Vec::new();
            let goes_on = &mut |_| ControlFlow::Continue(());
            world::run(&network(processes, near), &system, Seed::root(1), &mut seen, goes_on);
            assert!(matches!(seen.pop(), Some((_, Observation::RunTotals { .. }))), "the last");
            seen
        };
        assert!(observe(1) == observe(4), "{}", system.name);
    }
}

#[test]
fn indivisible_plans_are_named_and_run_undivided() {
    let quic = System { transport: Transport::Quic, ..System::default() };
    assert_eq!(obstacle(&network(4, APART), &quic), Some("QUIC"));
    assert_eq!(run(4, 2, &quic, 1), run(1, 1, &quic, 1));
}
