//! Whole runs: delivered data cells per second of one core, TCP on. Criterion reports cells as elements.

use std::ops::ControlFlow;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_proto::registry::{CONTROLS, SCHEDULERS};
use tidegate_sim::observe::{Observation, Recorder};
use tidegate_sim::plan::*;
use tidegate_sim::world;

/// Records nothing, as far as the optimiser can tell.
#[derive(Default)]
struct Count(u64);

impl Recorder for Count {
    fn record(&mut self, now: Time, _: &Observation) {
        self.0 = self.0.wrapping_add(now.0);
    }
}

fn link(rate: Rate) -> LinkPlan {
    LinkPlan { rate, queue: QueuePlan::DropTail { packets: 1000, bytes: u64::MAX } }
}

fn host(name: String, role: Role, rate: Rate, colocated: Option<u32>) -> HostPlan {
    HostPlan { name, role, location: 0, colocated, up: link(rate), down: link(rate) }
}

fn bulk(host: u32, path: [u32; 3], server: u32, start: Span) -> UserPlan {
    let request = RequestPlan { bytes: u64::MAX, weight: 1.0, timeout: Span(u64::MAX), request_bytes: 100 };
    UserPlan {
        host,
        class: "bulk".into(),
        route: Route::Pinned(path),
        servers: vec![server],
        traffic: Traffic::Fetch { requests: vec![request], pause: (Span::ZERO, Span::ZERO), every: None },
        start: Time::ZERO + start,
        stop: Time::NEVER,
        circuit_lead: start,
        rests: Vec::new(),
        circuit_lifetime: Span::from_secs(600),
    }
}

/// Circuits over random relays, from a server on the exit's machine to a client on the entry's.
fn network(relays: u32, paths: &[[u32; 3]], rates: impl Fn(u32) -> Rate, duration: Span) -> Plan {
    let relay =
        |index| host(format!("relay{index}"), Role::Relay(RelayLimits::default()), rates(index), None);
    let mut hosts: Vec<HostPlan> = (0..relays).map(relay).collect();
    let mut users = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        let at = hosts.len() as u32;
        hosts.push(host(format!("client{index}"), Role::Client, Rate::UNLIMITED, Some(path[0])));
        hosts.push(host(format!("server{index}"), Role::Server, Rate::UNLIMITED, Some(path[2])));
        users.push(bulk(at, *path, at + 1, Span::from_millis(500 + index as u64)));
    }
    let paths = PathTable::uniform(1, Path { delay: Span::from_millis(40), ..Path::default() });
    let (directory, faults, sample_every) = (Directory::default(), vec![], Span::from_millis(100));
    Plan {
        hosts,
        paths,
        users,
        directory,
        faults,
        duration,
        sample_every,
        trace_one_in: 0,
        measurements: Vec::new(),
    }
}

fn bottleneck() -> Plan {
    let rates = |index| Rate(if index == 3 { 4_000_000 } else { 10_000_000 });
    network(6, &[[0, 3, 4], [1, 3, 4], [2, 3, 5]], rates, Span::from_secs(60))
}

fn thousand() -> Plan {
    let mut draws = Seed::root(1).fork("bench").random();
    let mut path = || loop {
        let path = [draws.below(100) as u32, draws.below(100) as u32, draws.below(100) as u32];
        if path[0] != path[1] && path[1] != path[2] && path[0] != path[2] {
            return path;
        }
    };
    let paths: Vec<[u32; 3]> = (0..1000).map(|_| path()).collect();
    network(100, &paths, |_| Rate(20_000_000), Span::from_secs(8))
}

/// Vanilla Tor, with each other transport, scheduler and control in its turn.
fn systems() -> Vec<System> {
    let named = |name: &str| System { name: name.into(), ..System::default() };
    let mut systems = vec![named("vanilla"), System { transport: Transport::PerCircuit, ..named("pctcp") }];
    let schedulers = SCHEDULERS.iter().skip(1);
    systems.extend(schedulers.map(|part| System { scheduler: part.by_default(), ..named(part.name) }));
    let controls = CONTROLS.iter().skip(1);
    systems.extend(controls.map(|part| System { control: part.by_default(), ..named(part.name) }));
    systems
}

fn runs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("overlay");
    group.sample_size(10);
    for (name, plan) in [("bottleneck", bottleneck()), ("100x1000", thousand())] {
        for system in systems() {
            let run = || {
                let mut count = Count::default();
                world::run(&plan, &system, Seed::root(1), &mut count, &mut |_| ControlFlow::Continue(()))
            };
            group.throughput(Throughput::Elements(run().cells_delivered));
            group.bench_with_input(BenchmarkId::new(name, &system.name), &(), |bench, ()| bench.iter(run));
        }
    }
    group.finish();
}

criterion_group!(benches, runs);
criterion_main!(benches);
