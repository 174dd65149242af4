//! Balance systems over surveys of a small network.

use std::ops::ControlFlow;
use std::sync::Arc;

use tidegate_control::balance::{Asks, Attack, BALANCES, Balance, Evidence, Survey, Team, Trick};
use tidegate_control::positions::Class;
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_proto::cell::RelayId;
use tidegate_sim::balance::{Balanced, Failure, weigh};
use tidegate_sim::plan::{
    BucketPlan, Directory, HostPlan, LinkPlan, Path, PathTable, Plan, QueuePlan, RelayEntry, RelayLimits,
    RequestPlan, Role, Route, System, Traffic, UserPlan,
};

const MBIT: u64 = 1_000_000;

/// Six relays limited to 2 to 12 Mbit/s that all have the same weight, a server, and clients who download all the time.
fn plan() -> Plan {
    plan_of(2)
}

/// The same with relays limited to 14 to 84 Mbit/s. FlashFlow grants background 3.3 Mbit/s at least, a quarter of the
/// slowest relay's limit.
fn fast() -> Plan {
    plan_of(14)
}

/// The slowest relay is limited to `step` Mbit/s, and each other one to `step` more than the one before.
fn plan_of(step: u64) -> Plan {
    let link = |mbit: u64| LinkPlan {
        rate: Rate(mbit * MBIT),
        queue: QueuePlan::DropTail { packets: u32::MAX, bytes: 64 << 10 },
    };
    let host = |name: String, role, mbit| HostPlan {
        name,
        role,
        location: 0,
        colocated: None,
        up: link(mbit),
        down: link(mbit),
    };
    let limits = |mbit: u64| BucketPlan {
        rate_bytes_per_s: mbit * MBIT / 8,
        burst_bytes: mbit * MBIT / 8,
        refill_every: Span::from_millis(10),
        drop_fractions: false,
    };
    let limits = |mbit| RelayLimits { bucket: Some(limits(mbit)), ..RelayLimits::default() };
    // A relay's link is twice as fast as its limit.
    let relays = (1..=6).map(|n| host(format!("relay{n}"), Role::Relay(limits(step * n)), 2 * step * n));
    let mut hosts: Vec<HostPlan> = relays.collect();
    hosts.push(host("server".into(), Role::Server, 1000));
    hosts.push(host("client".into(), Role::Client, 1000));
    let entry = |number: u32| RelayEntry {
        name: format!("relay{}", number + 1),
        class: Class::GuardExit,
        weight: 1000.0,
        ..RelayEntry::new(RelayId(number))
    };
    let never = Span(u64::MAX);
    let user = |number: u64| UserPlan {
        host: 7,
        class: "web".into(),
        route: Route::Drawn { keep_guard: false, onion_service: false },
        second_path: None,
        servers: vec![6],
        traffic: Traffic::Fetch {
            requests: vec![RequestPlan { bytes: 200_000, weight: 1.0, timeout: never, request_bytes: 100 }],
            pause: (Span::ZERO, Span::from_millis(500)),
            every: None,
        },
        start: Time::ZERO + Span::from_millis(100 * number),
        stop: Time::NEVER,
        circuit_lead: Span::ZERO,
        rests: Vec::new(),
        circuit_lifetime: Span::ZERO,
    };
    Plan {
        paths: PathTable::uniform(1, Path { delay: Span::from_millis(10), ..Path::default() }),
        users: (0..8).map(user).collect(),
        directory: Directory { relays: (0..6).map(entry).collect(), positions: None },
        measurements: Vec::new(),
        faults: Vec::new(),
        duration: Span::from_secs(20),
        sample_every: Span::from_secs(1),
        trace_one_in: 0,
        processes: 1,
        hosts,
    }
}

fn system(balance: Arc<dyn Balance>, attack: Attack) -> System {
    let survey = Survey { duration: Span::from_secs(20), ..Survey::default() };
    System { balance, attack, survey, ..System::default() }
}

fn go(plan: &mut Plan, system: &System, seed: u64) -> Result<Option<Balanced>, Failure> {
    weigh(plan, system, Seed::root(seed), &mut |_| ControlFlow::Continue(()))
}

fn flashflow() -> Arc<dyn Balance> {
    Arc::new(Team { seconds: 5, sockets: 6, rate: Rate(100 * MBIT), ..Team::default() })
}

#[test]
fn every_system_weighs_every_network_and_the_same_twice() {
    for part in BALANCES {
        let system = system(part.by_default(), Attack::default());
        let run = || {
            let mut plan = plan();
            let balanced =
                go(&mut plan, &system, 1).unwrap_or_else(|failure| panic!("{}: {failure}", part.name));
            (plan.directory, balanced.map(|balanced| balanced.weight_error))
        };
        let (directory, error) = run();
        assert_eq!(run().0, directory, "{}", part.name);
        if part.name == "given" {
            assert!(error.is_none() && directory == plan().directory);
        } else {
            assert!(directory.relays.iter().all(|relay| relay.weight > 0.0), "{}", part.name);
            assert!(error < Some(0.5), "{}: {error:?}", part.name);
        }
        if part.name == "truth" {
            assert!(error < Some(1e-9));
        }
    }
}

#[test]
fn flashflow_measures_under_clients_load_and_its_weights_are_nearly_true() {
    let mut error = 0.0;
    for seed in 1..=3 {
        let balanced = go(&mut fast(), &system(flashflow(), Attack::default()), seed).unwrap().unwrap();
        assert_eq!(balanced.unweighed, 0);
        // Five seconds are few: the burst of the first one adds some percent.
        assert!(balanced.capacity_error.unwrap().abs() < 0.05, "{seed}: {balanced:?}");
        let near = |(weight, capacity): &(f64, f64)| (0.9..1.1).contains(&(weight / capacity));
        assert!(balanced.relays.iter().all(near), "{seed}: {balanced:?}");
        error += balanced.weight_error / 3.0;
    }
    assert!(error < 0.02, "{error}");
}

#[test]
fn downloads_of_a_busy_exit_leave_it_its_measured_capacity() {
    let busy = |seed| {
        let mut plan = fast();
        // Only the second relay is an exit. Its link is as fast as its limit.
        for (number, relay) in plan.directory.relays.iter_mut().enumerate() {
            relay.class = if number == 1 { Class::GuardExit } else { Class::Guard };
        }
        let exit = &mut plan.hosts[1];
        (exit.up.rate, exit.down.rate) = (Rate(28 * MBIT), Rate(28 * MBIT));
        plan.users = plan.users.iter().cycle().take(24).cloned().collect();
        let balanced = go(&mut plan, &system(flashflow(), Attack::default()), seed).unwrap().unwrap();
        let (weight, capacity) = balanced.relays[1];
        weight / capacity
    };
    let shares: Vec<f64> = (1..=2).map(busy).collect();
    assert!(shares.iter().all(|share| *share > 0.8), "{shares:?}");
}

#[test]
fn users_stay_through_a_survey_that_is_longer_than_the_run() {
    let part = BALANCES.iter().find(|part| part.name == "self-reports").unwrap().by_default();
    let directory = |run| {
        let mut plan = Plan { duration: Span::from_secs(run), ..plan() };
        plan.users.iter_mut().for_each(|user| user.stop = Time::ZERO + plan.duration);
        go(&mut plan, &system(part.clone(), Attack::default()), 1).unwrap();
        plan.directory
    };
    assert_eq!(directory(2), directory(20));
}

#[test]
fn a_way_back_that_is_shorter_loses_no_measurement() {
    for there in [10, 90] {
        let mut plan = plan();
        plan.hosts[6].location = 1;
        let delay = |from, to| Span::from_millis(if from < to { there } else { 100 - there });
        plan.paths = PathTable::from_fn(2, |from, to| Path { delay: delay(from, to), ..Path::default() });
        let balanced = go(&mut plan, &system(flashflow(), Attack::default()), 1).unwrap().unwrap();
        assert_eq!((balanced.unweighed, balanced.failed.len()), (0, 0), "{there} ms there");
    }
}

#[test]
fn false_reports_gain_weight_in_trusting_systems() {
    let part = |name: &str| BALANCES.iter().find(|part| part.name == name).unwrap().by_default();
    let attack = |trick| Attack { trick, share: 0.2, factor: 50.0, ..Attack::default() };
    let advantage = |balance: Arc<dyn Balance>, trick| {
        let seeded = |seed| go(&mut fast(), &system(balance.clone(), attack(trick)), seed).unwrap().unwrap();
        (1..=2).map(|seed| seeded(seed).advantage.unwrap()).sum::<f64>() / 2.0
    };
    assert!(advantage(part("self-reports"), Trick::Inflate) > 3.0);
    assert!(advantage(part("torflow"), Trick::Inflate) > 2.0);
    let held = advantage(flashflow(), Trick::Hold);
    assert!((1.02..1.40).contains(&held), "{held}");
    assert!((0.9..1.1).contains(&advantage(flashflow(), Trick::Inflate)));
    // Attackers that know the slots can flood other relays in them.
    assert!(advantage(flashflow(), Trick::Flood) > 2.0);
}

#[test]
fn sybils_of_one_machine_are_measured_one_after_the_other() {
    let attack = Attack { trick: Trick::Sybils, share: 0.2, factor: 3.0, ..Attack::default() };
    let mut plan = plan();
    // A team that is just large enough for one of them at a time.
    let team = Team { seconds: 5, sockets: 6, measurers: 1, rate: Rate(36 * MBIT), ..Team::default() };
    let balanced = go(&mut plan, &system(Arc::new(team), attack), 3).unwrap().unwrap();
    assert!(plan.directory.relays.len() > 6, "they joined");
    assert!(balanced.advantage.unwrap() > 1.3, "{balanced:?}");
}

/// A system that weighs no relay, or guards only.
#[derive(Debug)]
struct Weighs(Vec<Option<f64>>);

impl Balance for Weighs {
    fn asks(&self) -> Asks {
        Asks::default()
    }

    fn weigh(&self, _: &Evidence) -> Vec<Option<f64>> {
        self.0.clone()
    }
}

#[test]
fn networks_without_a_balance_are_refused() {
    let fails = |plan: &mut Plan, balance: Arc<dyn Balance>| {
        go(plan, &system(balance, Attack::default()), 1).unwrap_err().to_string()
    };
    assert!(fails(&mut plan(), Arc::new(Weighs(vec![None; 6]))).contains("weights are zero or missing"));
    let mut guards = plan();
    guards.directory.relays.iter_mut().for_each(|relay| relay.class = Class::Guard);
    let no_exit = vec![Some(1e6); 6];
    assert!(fails(&mut guards, Arc::new(Weighs(no_exit))).contains("no relay can be chosen as exit"));
    let mut unlimited = plan();
    unlimited.hosts[0].role = Role::Relay(RelayLimits::default());
    unlimited.hosts[0].up.rate = Rate::UNLIMITED;
    unlimited.hosts[0].down.rate = Rate::UNLIMITED;
    assert!(fails(&mut unlimited, flashflow()).contains("unlimited or zero"));
    let mut idle = plan();
    idle.hosts.iter_mut().for_each(|host| host.up.rate = Rate(0));
    assert!(fails(&mut idle, flashflow()).contains("unlimited or zero"));
    let mut alone = plan();
    alone.hosts[6].role = Role::Client;
    alone.users.clear();
    assert!(fails(&mut alone, flashflow()).contains("no server"));
}
