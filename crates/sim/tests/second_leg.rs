//! Users with streams over two circuits at once.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_proto::registry::{CONTROLS, SPLITS};
use tidegate_sim::observe::{Circuit, Host, Observation};
use tidegate_sim::plan::*;
use tidegate_sim::world;

const MEGABIT: u64 = 1_000_000;

/// Two guards (0, 1), two middles (2, 3), an exit (4), a server (5), a client (6) with one user; the first way's middle
/// carries `first` Mbit/s and is 30 ms away from all hosts, the second's `second` Mbit/s and 10 ms.
fn plan(first: u64, second: u64, bytes: u64) -> Plan {
    let link = |mbit| LinkPlan {
        rate: Rate(mbit * MEGABIT),
        queue: QueuePlan::DropTail { packets: 1000, bytes: u64::MAX },
    };
    let relay = || Role::Relay(RelayLimits::default());
    let host = |name: &str, role, location, mbit| HostPlan {
        name: name.into(),
        role,
        location,
        colocated: None,
        up: link(mbit),
        down: link(mbit),
    };
    let hosts = vec![
        host("guard1", relay(), 0, 1000),
        host("guard2", relay(), 0, 1000),
        host("middle1", relay(), 1, first),
        host("middle2", relay(), 0, second),
        host("exit", relay(), 0, 1000),
        host("server", Role::Server, 0, 1000),
        host("client", Role::Client, 0, 1000),
    ];
    let delay = |a: u32, b: u32| Span::from_millis(if a + b > 0 { 30 } else { 10 });
    let request = RequestPlan { bytes, weight: 1.0, timeout: Span(u64::MAX), request_bytes: 100 };
    let pause = (Span::from_millis(500), Span::from_millis(500));
    let user = UserPlan {
        host: 6,
        class: "bulk".into(),
        route: Route::Pinned([0, 2, 4]),
        second_path: Some([1, 3, 4]),
        servers: vec![5],
        traffic: Traffic::Fetch { requests: vec![request], pause, every: None },
        start: Time::ZERO + Span::from_secs(2),
        stop: Time::NEVER,
        circuit_lead: Span::from_secs(2),
        rests: Vec::new(),
        circuit_lifetime: Span::from_secs(600),
    };
    Plan {
        hosts,
        paths: PathTable::from_fn(2, |a, b| Path { delay: delay(a, b), ..Path::default() }),
        users: vec![user],
        directory: Directory::default(),
        faults: vec![],
        duration: Span::from_secs(30),
        sample_every: Span::from_secs(1),
        trace_one_in: 0,
        processes: 1,
        measurements: Vec::new(),
    }
}

fn system(conflux: Option<&str>) -> System {
    let split = |name| SPLITS.iter().find(|part| part.name == name).expect("it is registered").by_default();
    let conflux = conflux.map(split);
    System { control: Arc::new(vegas::VegasParameters::default()), conflux, ..System::default() }
}

fn observe(plan: &Plan, conflux: Option<&str>) -> Vec<(Time, Observation)> {
    run(plan, &system(conflux))
}

fn run(plan: &Plan, system: &System) -> Vec<(Time, Observation)> {
    let mut seen = Vec::new();
    world::run(plan, system, Seed::root(1), &mut seen, &mut |_| ControlFlow::Continue(()));
    seen
}

/// Bytes delivered, downloads done, and cells that each of the middles has processed.
fn results(seen: &[(Time, Observation)]) -> (u64, usize, [u64; 2]) {
    let (mut delivered, mut done, mut cells) = (0, 0, [0; 2]);
    for (_, what) in seen {
        match what {
            Observation::Delivered { bytes, .. } => delivered += u64::from(*bytes),
            Observation::LastByte { .. } => done += 1,
            Observation::HostTotals { host: Host(host @ 2..4), totals } => {
                cells[*host as usize - 2] = totals.cells_processed;
            }
            _ => {}
        }
    }
    (delivered, done, cells)
}

const ENDLESS: u64 = u64::MAX;

#[test]
fn two_legs_carry_at_least_as_much_as_the_faster_one() {
    let plan = plan(8, 4, ENDLESS);
    let (one, _, cells) = results(&observe(&plan, None));
    assert!(cells[1] == 0 && one > 0);
    let (both, _, cells) = results(&observe(&plan, Some("throughput")));
    let share = cells[1] as f64 / (cells[0] + cells[1]) as f64;
    assert!((1.4..1.6).contains(&(both as f64 / one as f64)), "12 instead of 8 Mbit/s: {one}, {both}");
    assert!((0.3..0.37).contains(&share), "{share}");
    let (fast, _, _) = results(&observe(&plan, Some("min-latency")));
    assert!(fast < both, "one at a time: {fast} of {both}");
}

#[test]
fn small_downloads_take_the_near_leg() {
    let plan = plan(8, 8, 20_000);
    let (_, one, _) = results(&observe(&plan, None));
    let (_, near, cells) = results(&observe(&plan, Some("min-latency")));
    assert!(near as f64 > 1.2 * one as f64, "{near}, {one}");
    assert!(cells[1] > 20 * cells[0], "{cells:?}");
}

#[test]
fn a_leg_that_fails_before_it_is_linked_is_done_without() {
    let mut plan = plan(8, 8, 20_000);
    let kind = FaultKind::HostDown { host: 3 };
    plan.faults = vec![Fault { kind, from: Time::ZERO, until: Time::ZERO + Span::from_secs(20) }];
    let (_, done, cells) = results(&observe(&plan, Some("throughput")));
    assert!(done > 10 && cells[1] == 0, "{done}");
}

#[test]
fn a_relay_that_stops_costs_a_set_and_users_go_on() {
    let mut plan = plan(8, 8, 500_000);
    let kind = FaultKind::HostDown { host: 3 };
    let (from, until) = (Time::ZERO + Span::from_secs(8), Time::ZERO + Span::from_secs(12));
    plan.faults = vec![Fault { kind, from, until }];
    let seen = observe(&plan, Some("throughput"));
    let mut open: BTreeMap<Circuit, Time> = BTreeMap::new();
    for (at, what) in &seen {
        match what {
            Observation::CircuitBegun { circuit, .. } => drop(open.insert(*circuit, *at)),
            Observation::CircuitClosed { circuit } => drop(open.remove(circuit)),
            _ => {}
        }
    }
    assert!(open.len() <= 2, "{open:?}");
    let late = seen.iter().filter(|(at, what)| *at > until && matches!(what, Observation::LastByte { .. }));
    assert!(late.count() > 8);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let plan = plan(8, 4, 300_000);
    for split in SPLITS {
        assert_eq!(observe(&plan, Some(split.name)), observe(&plan, Some(split.name)), "{}", split.name);
    }
}

/// Goodput after `from`, in Mbit/s, and the most bytes out of order at a sample.
fn later(seen: &[(Time, Observation)], user: u32, from: Span) -> (f64, u64) {
    let (mut circuits, mut bytes, mut most) = (BTreeMap::new(), 0, 0);
    let begin = Time::ZERO + from;
    for (at, what) in seen {
        match what {
            Observation::CircuitBegun { circuit, user, .. } => drop(circuits.insert(*circuit, user.0)),
            Observation::Delivered { circuit, bytes: more, .. }
                if *at > begin && circuits[circuit] == user =>
            {
                bytes += u64::from(*more);
            }
            Observation::OutOfOrder { bytes, .. } if *at > begin => most = most.max(*bytes),
            _ => {}
        }
    }
    let seconds = seen.last().expect("totals").0.since(begin).as_secs_f64();
    (bytes as f64 * 8e-6 / seconds, most)
}

/// Two legs of 16 and 8 Mbit/s; from the twentieth second on another user has the fast one, too, if there is one.
fn two_to_one(divided: bool, slow: bool, crossed: bool) -> Plan {
    let mut plan = plan(8, 16, ENDLESS);
    plan.sample_every = Span::from_millis(50);
    plan.duration = Span::from_secs(40);
    let way = |middle| if middle == 2 { [0, 2, 4] } else { [1, 3, 4] };
    if !divided {
        plan.users[0].second_path = None;
        plan.users[0].route = Route::Pinned(way(if slow { 2 } else { 3 }));
    }
    if crossed {
        let start = Time::ZERO + Span::from_secs(20);
        let other =
            UserPlan { second_path: None, route: Route::Pinned(way(3)), start, ..plan.users[0].clone() };
        plan.users.push(other);
    }
    plan
}

/// Every split under both kinds of control: its name, the user's goodput, and bytes out of order after a while.
fn divided(crossed: bool) -> Vec<(String, f64, u64, [f64; 2])> {
    let controls = ["vegas", "predictor"].map(|name| CONTROLS.iter().find(|part| part.name == name).unwrap());
    let from = Span::from_secs(if crossed { 24 } else { 10 });
    let mut all = Vec::new();
    for control in controls {
        let of = |plan: &Plan, conflux: Option<Arc<dyn Split>>| {
            let system = System { control: control.by_default(), conflux, ..System::default() };
            later(&run(plan, &system), 0, from)
        };
        let alone = [false, true].map(|slow| of(&two_to_one(false, slow, crossed && !slow), None).0);
        for split in SPLITS.iter().filter(|split| split.name != "min-latency") {
            let (rate, held) = of(&two_to_one(true, false, crossed), Some(split.by_default()));
            all.push((format!("{} {}", control.name, split.name), rate, held, alone));
        }
    }
    all
}

#[test]
fn two_legs_use_the_sum_of_their_rates_under_every_split() {
    for (name, rate, held, [fast, slow]) in divided(false) {
        assert!(rate > 1.3 * fast && rate > 0.9 * (fast + slow), "{name}: {rate} of {fast} + {slow}");
        // At most delta, 310 cells, of each leg's window wait in queues; the rest is on the way.
        assert!(held > 0 && held < 500_000, "{name}: {held} bytes");
    }
}

#[test]
fn however_divided_half_of_a_leg_that_another_takes_is_lost_and_no_more() {
    for (name, rate, held, [shared, slow]) in divided(true) {
        assert!(rate > 1.4 * shared && rate > 0.8 * (shared + slow), "{name}: {rate} of {shared} + {slow}");
        assert!(held > 0 && held < 400_000, "{name}: {held} bytes");
    }
}
