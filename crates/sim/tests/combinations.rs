//! Invariants under any combination of transport, scheduler, channel scheduler, congestion control and switching.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use proptest::prelude::*;
use tidegate_control::positions::{Class, PositionWeights};
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_proto::cell::RelayId;
use tidegate_proto::paths::{BuildTimeout, PathSelection};
use tidegate_proto::registry::{CONTROLS, SCHEDULERS, SPLITS};
use tidegate_sim::observe::{Circuit, Observation, Transfer};
use tidegate_sim::plan::*;
use tidegate_sim::tcp;
use tidegate_sim::world;

const WEB: u64 = 60_000;
const BULK: u64 = 400_000;

/// Two guards (0, 1), three middles (2-4) of which each is faster than the last, two exits (5, 6), a server (7),
/// two clients (8, 9) with three users each, two of which share a guard. The guards are the bottleneck.
fn plan(loss: f64) -> Plan {
    let link = |mbit: u64, packets| LinkPlan {
        rate: Rate(mbit * 1_000_000),
        queue: QueuePlan::DropTail { packets, bytes: u64::MAX },
    };
    let host = |name: String, role, mbit| HostPlan {
        name,
        role,
        location: 0,
        colocated: None,
        up: link(mbit, 300),
        down: link(mbit, 300),
    };
    let relay = |limits| Role::Relay(limits);
    let bucket = BucketPlan {
        rate_bytes_per_s: 250_000,
        burst_bytes: 30_000,
        refill_every: Span::from_millis(10),
        drop_fractions: false,
    };
    let limited = RelayLimits { bucket: Some(bucket), ..RelayLimits::default() };
    let mut hosts: Vec<HostPlan> = (0..7)
        .map(|n| match n {
            0 => host("guard0".into(), relay(RelayLimits::default()), 2),
            1 => host("guard1".into(), relay(limited), 10),
            _ => host(format!("relay{n}"), relay(RelayLimits::default()), 10),
        })
        .collect();
    hosts.push(host("server".into(), Role::Server, 100));
    hosts.extend((0..2).map(|n| host(format!("client{n}"), Role::Client, 20)));
    let entry = |number: u32, class, weight| RelayEntry { class, weight, ..RelayEntry::new(RelayId(number)) };
    let relays = (0..7).map(|number| match number {
        0 | 1 => entry(number, Class::Guard, 1.0),
        2..5 => entry(number, Class::Middle, f64::from(number) - 1.0),
        _ => entry(number, Class::Exit, 1.0),
    });
    // Each class in its own position.
    let positions = PositionWeights { scale: 1, gg: 1, mm: 1, ee: 1, ..PositionWeights::default() };
    let directory = Directory { relays: relays.collect(), positions: Some(positions) };
    let user = |n: u32| {
        let bytes = if n.is_multiple_of(2) { BULK } else { WEB };
        let request = RequestPlan { bytes, weight: 1.0, timeout: Span(u64::MAX), request_bytes: 100 };
        let pause = if n.is_multiple_of(2) { Span::ZERO } else { Span::from_millis(500) };
        UserPlan {
            host: 8 + n / 3,
            class: if n.is_multiple_of(2) { "bulk" } else { "web" }.into(),
            route: Route::Drawn { keep_guard: true, onion_service: false },
            second_path: None,
            servers: vec![7],
            traffic: Traffic::Fetch { requests: vec![request], pause: (pause, pause), every: None },
            start: Time::ZERO + Span::from_secs(1),
            stop: Time::NEVER,
            circuit_lead: Span::from_secs(1),
            rests: Vec::new(),
            circuit_lifetime: Span::from_secs(600),
        }
    };
    Plan {
        hosts,
        paths: PathTable::uniform(
            1,
            Path { delay: Span::from_millis(20), jitter: Span::from_millis(1), loss },
        ),
        users: (0..6).map(user).collect(),
        directory,
        faults: vec![],
        duration: Span::from_secs(25),
        sample_every: Span::from_secs(1),
        trace_one_in: 0,
        processes: 1,
        measurements: Vec::new(),
    }
}

#[test]
fn who_is_far_away_learns_its_own_build_timeout() {
    let mut plan = plan(0.0);
    // A circuit for each of many small requests; the second client is 200 ms away, where a circuit takes far longer than
    // four fifths of the first client's do.
    let request = RequestPlan { bytes: 500, weight: 1.0, timeout: Span(u64::MAX), request_bytes: 100 };
    for user in &mut plan.users {
        user.traffic =
            Traffic::Fetch { requests: vec![request], pause: (Span::ZERO, Span::ZERO), every: None };
        user.circuit_lifetime = Span::ZERO;
    }
    plan.users.truncate(4);
    plan.hosts[9].location = 1;
    let far = Path { delay: Span::from_millis(200), jitter: Span::ZERO, loss: 0.0 };
    let near = *plan.paths.get(0, 0);
    plan.paths = PathTable::from_fn(2, |from, to| if from == to { near } else { far });
    let learnt = BuildTimeout::Learnt(Span::from_millis(10));
    let paths = PathSelection { build_timeout: learnt, ..PathSelection::default() };
    let system = System { paths, ..System::default() };
    let mut seen: Vec<(Time, Observation)> = Vec::new();
    world::run(&plan, &system, Seed::root(1), &mut seen, &mut |_| ControlFlow::Continue(()));
    let (mut begun, mut fetched, mut users) = ([0; 2], [0; 2], BTreeMap::new());
    for (_, what) in &seen {
        match what {
            Observation::CircuitBegun { user, .. } => begun[usize::from(user.0 == 3)] += 1,
            Observation::TransferBegun { transfer, user, .. } => drop(users.insert(transfer.0, user.0)),
            Observation::LastByte { transfer, .. } => fetched[usize::from(users[&transfer.0] == 3)] += 1,
            _ => {}
        }
    }
    assert!(fetched[0] > 80, "the near ones have learnt: {fetched:?}");
    assert!(
        fetched[1] >= 8 && begun[1] <= fetched[1] + 2,
        "{} circuits for {} requests",
        begun[1],
        fetched[1]
    );
}

fn systems() -> Vec<System> {
    let threshold = Transport::Threshold { connections: 2, beyond: Sharing::ByClass };
    // A loud circuit waits until the others have caught up with it: short memories make short waits.
    let half_life = Span::from_secs(2);
    let windows = Windows { circuit: 200, circuit_increment: 20, stream: 100, stream_increment: 10 };
    let base = System {
        windows,
        // Small enough that output buffers fill.
        tcp: tcp::Config { send_buffer: tcp::Buffer::Fixed(32 << 10), ..tcp::Config::default() },
        ..System::default()
    };
    // Guards' connections to clients have few circuits to part.
    let rules = |form| Switching {
        form,
        rest: Span::from_millis(500),
        everywhere: form == Form::Connection,
        ..Switching::default()
    };
    let mut systems = vec![];
    for transport in [Transport::Vanilla, Transport::PerCircuit, Transport::Quic, threshold] {
        for part in SCHEDULERS {
            let scheduler: Arc<dyn Discipline> =
                if part.name == "ewma" { Arc::new(Ewma { half_life }) } else { part.by_default() };
            for kist in [None, Some(kist::KistParameters::default())] {
                for control in CONTROLS {
                    for form in [None, Some(Form::Connection), Some(Form::Circuit)] {
                        let system = System {
                            name: format!("{transport:?} {} {kist:?} {} {form:?}", part.name, control.name),
                            transport,
                            scheduler: Arc::clone(&scheduler),
                            kist,
                            connection_half_life: kist.map(|_| half_life),
                            switching: form.map(rules),
                            control: control.by_default(),
                            ..base.clone()
                        };
                        // All but the fixed windows alone.
                        let can_link = control.name != "windows" && form != Some(Form::Circuit);
                        for split in SPLITS.iter().filter(|_| can_link) {
                            let name = format!("{} {}", system.name, split.name);
                            let conflux = Some(split.by_default());
                            systems.push(System { name, conflux, ..system.clone() });
                        }
                        systems.push(system);
                    }
                }
            }
        }
    }
    systems
}

fn observe(system: &System, loss: f64, seed: u64) -> Vec<(Time, Observation)> {
    let mut seen = Vec::new();
    world::run(&plan(loss), system, Seed::root(seed), &mut seen, &mut |_| ControlFlow::Continue(()));
    seen
}

fn switches(seen: &[(Time, Observation)]) -> usize {
    seen.iter().filter(|(_, what)| matches!(what, Observation::Switched { .. })).count()
}

/// The longest pause of a download between two bytes.
fn longest_wait(seen: &[(Time, Observation)]) -> Span {
    // Of each download: its circuit, which carries one at a time, when it last got a byte, whether it has got any.
    let mut begun: BTreeMap<u32, (Circuit, Time, bool)> = BTreeMap::new();
    let mut longest = Span::ZERO;
    for (at, what) in seen {
        match what {
            Observation::TransferBegun { transfer, circuit, .. } => {
                begun.insert(transfer.0, (*circuit, *at, false));
            }
            Observation::Delivered { circuit, .. } => {
                let (_, last, arriving) =
                    begun.values_mut().find(|(on, ..)| on == circuit).expect("somebody asked for it");
                longest = longest.max(at.since(*last));
                (*last, *arriving) = (*at, true);
            }
            Observation::LastByte { transfer, .. } => drop(begun.remove(&transfer.0)),
            _ => {}
        }
    }
    let end = Time::ZERO + plan(0.0).duration;
    let unfinished = begun.values().filter(|(.., arriving)| *arriving).map(|(_, last, _)| end.since(*last));
    longest.max(unfinished.max().unwrap_or_default())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Every download arrives whole, without duplicate bytes and without long pauses.
    #[test]
    fn bytes_arrive_once_and_no_flow_starves(
        which in 0..systems().len(), lossy in any::<bool>(), seed in any::<u64>(),
    ) {
        let system = &systems()[which];
        let seen = observe(system, if lossy { 0.001 } else { 0.0 }, seed);
        let mut begun: BTreeMap<u32, (Circuit, u64)> = BTreeMap::new();
        let mut done = 0;
        let mut wanted = 0;
        let mut delivered = 0u64;
        for (_, what) in &seen {
            match what {
                Observation::TransferBegun { transfer: Transfer(transfer), circuit, bytes, .. } => {
                    begun.insert(*transfer, (*circuit, *bytes));
                    wanted += bytes;
                }
                Observation::Delivered { circuit, bytes, .. } => {
                    delivered += u64::from(*bytes);
                    let (_, left) =
                        begun.values_mut().find(|(on, _)| on == circuit).expect("somebody asked for it");
                    prop_assert!(u64::from(*bytes) <= *left, "no byte twice: {}", system.name);
                    *left -= u64::from(*bytes);
                }
                Observation::LastByte { transfer: Transfer(transfer), .. } => {
                    let (_, left) = begun.remove(transfer).expect("it was begun");
                    prop_assert_eq!(left, 0, "no byte is missing: {}", &system.name);
                    done += 1;
                }
                _ => {}
            }
        }
        let under_way: u64 = begun.values().map(|(_, left)| left).sum();
        prop_assert_eq!(delivered + under_way, wanted);
        prop_assert!(done >= 12, "{} downloads: {}", done, system.name);
        let longest = longest_wait(&seen);
        // Under EWMA one of six that was alone waits at a relay until the others' counts pass what is left of
        // its own: log2(6) half-lives, 5.2 s; and that at three relays.
        prop_assert!(longest < Span::from_secs(16), "{} without a byte: {}", longest, system.name);
    }
}

#[test]
fn a_bucket_of_a_few_cells_serves_all_connections() {
    let per_circuit = |system: &System| system.name == "PerCircuit round-robin None windows None";
    let system = systems().into_iter().find(per_circuit).expect("it is among them");
    // Refills of five cells. When the first connection always read first, others got no byte for 22 s.
    let waits: Vec<Span> = (10..50).map(|seed| longest_wait(&observe(&system, 0.0, seed))).collect();
    assert!(waits.iter().all(|wait| *wait < Span::from_secs(6)), "{:?}", waits.iter().max());
}

#[test]
fn both_forms_of_switching_happen_here() {
    let all = systems();
    for form in [Form::Connection, Form::Circuit] {
        let mut some = all.iter().filter(|system| {
            system.control.window().is_none()
                && system.transport == Transport::Vanilla
                && system.switching.is_some_and(|rules| rules.form == form)
        });
        let happens = some.any(|system| (1..=4).any(|seed| switches(&observe(system, 0.0, seed)) > 0));
        assert!(happens, "{form:?}");
    }
}
