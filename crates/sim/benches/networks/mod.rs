//! Networks that benchmarks run, and whether they are to be measured or only to work.

use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span};
use tidegate_sim::plan::*;

#[path = "../../tests/endless/mod.rs"]
mod endless;

/// `cargo test` runs benchmarks, too, to see that they work: then everything is short.
pub fn is_measured() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// Circuits over relays of so many Mbit/s, from a server on the exit's machine to a client on the entry's.
fn network(relays: u32, paths: &[[u32; 3]], mbit: impl Fn(u32) -> u64, duration: Span) -> Plan {
    let relay = |index| {
        endless::host(&format!("relay{index}"), Role::Relay(RelayLimits::default()), mbit(index), None)
    };
    let end = |name: String, role: Role, relay: u32| {
        let mut end = endless::host(&name, role, 0, Some(relay));
        (end.up.rate, end.down.rate) = (Rate::UNLIMITED, Rate::UNLIMITED);
        end
    };
    let mut hosts: Vec<HostPlan> = (0..relays).map(relay).collect();
    let mut users = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        let at = hosts.len() as u32;
        hosts.push(end(format!("client{index}"), Role::Client, path[0]));
        hosts.push(end(format!("server{index}"), Role::Server, path[2]));
        // All have begun after a second and a half.
        let start = Span::from_micros(500_000 + 1_000_000 * index as u64 / paths.len() as u64);
        users.push(endless::download(at, *path, at + 1, start, start));
    }
    Plan { duration, sample_every: Span::from_millis(100), ..endless::plan(hosts, users, vec![], 0) }
}

/// Three circuits that share one slow relay.
pub fn bottleneck(duration: Span) -> Plan {
    let mbit = |index| if index == 3 { 4 } else { 10 };
    network(6, &[[0, 3, 4], [1, 3, 4], [2, 3, 5]], mbit, duration)
}

/// So many random paths.
fn paths(relays: u32, circuits: usize) -> Vec<[u32; 3]> {
    let mut draws = Seed::root(1).fork("bench").random();
    let mut path = || loop {
        let path = [0; 3].map(|_: u32| draws.below(relays as usize) as u32);
        if path[0] != path[1] && path[1] != path[2] && path[0] != path[2] {
            return path;
        }
    };
    (0..circuits).map(|_| path()).collect()
}

/// Circuits over random relays of 20 Mbit/s.
pub fn random(relays: u32, circuits: usize, duration: Span) -> Plan {
    network(relays, &paths(relays, circuits), |_| 20, duration)
}

/// Ten clients over seven relays, all with links of their own; relays have a token bucket that never binds, or none.
pub fn own_links(bucket: Option<BucketPlan>, duration: Span) -> Plan {
    let limits = RelayLimits { bucket, ..RelayLimits::default() };
    let relay = |index| endless::host(&format!("relay{index}"), Role::Relay(limits), 100, None);
    let mut hosts: Vec<HostPlan> = (0..7).map(relay).collect();
    let mut users = Vec::new();
    for (index, path) in paths(7, 10).into_iter().enumerate() {
        let at = hosts.len() as u32;
        hosts.push(endless::host(&format!("client{index}"), Role::Client, 50, None));
        hosts.push(endless::host(&format!("server{index}"), Role::Server, 1_000, None));
        let start = Span::from_millis(500 + index as u64);
        users.push(endless::download(at, path, at + 1, start, start));
    }
    Plan { duration, sample_every: Span::from_millis(100), ..endless::plan(hosts, users, vec![], 0) }
}

/// A token bucket of a gigabyte a second.
pub const LARGE_BUCKET: BucketPlan = BucketPlan {
    rate_bytes_per_s: 1 << 30,
    burst_bytes: 1 << 30,
    refill_every: Span::from_millis(100),
    drop_fractions: false,
};
