//! Networks that benchmarks run, and whether they are to be measured or only to work.

use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_sim::plan::*;

/// `cargo test` runs benchmarks, too, to see that they work: then everything is short.
pub fn is_measured() -> bool {
    std::env::args().any(|argument| argument == "--bench")
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
        second_path: None,
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

/// Three circuits that share one slow relay.
pub fn bottleneck(duration: Span) -> Plan {
    let rates = |index| Rate(if index == 3 { 4_000_000 } else { 10_000_000 });
    network(6, &[[0, 3, 4], [1, 3, 4], [2, 3, 5]], rates, duration)
}

/// Circuits over random relays of 20 Mbit/s.
pub fn random(relays: u32, circuits: usize, duration: Span) -> Plan {
    let mut draws = Seed::root(1).fork("bench").random();
    let mut path = || loop {
        let path = [0; 3].map(|_: u32| draws.below(relays as usize) as u32);
        if path[0] != path[1] && path[1] != path[2] && path[0] != path[2] {
            return path;
        }
    };
    let paths: Vec<[u32; 3]> = (0..circuits).map(|_| path()).collect();
    network(relays, &paths, |_| Rate(20_000_000), duration)
}
