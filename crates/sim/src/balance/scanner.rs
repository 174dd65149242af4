//! Downloads through relays, as TorFlow and sbws make them: two hops, the relay and a helper that weighs no less.
//!
//! The world's circuits have three: the first is a relay of the scanner's own, on its machine and without limits.

use tidegate_control::positions::Class;
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_proto::paths::draw;

use super::failure::{Failure, place};
use crate::plan::{
    HostPlan, LinkPlan, Plan, QueuePlan, RelayEntry, RelayLimits, RequestPlan, Role, Route, Traffic, UserPlan,
};

/// The scanner's and its web server's link.
const LINK: Rate = Rate(1_000_000_000);
/// Files have 2^i KiB of them, as many as half a second of the relay's weight.
const SIZES: [u64; 2] = [16 << 10, 4 << 20];
/// Timeout of a download.
const TIMEOUT: Span = Span::from_secs(30);
/// Circuits are built this long before their download.
const LEAD: Span = Span::from_secs(5);

/// Adds the scanner and its users to a plan; gives each user with the index of the relay that it probes.
pub(super) fn add(
    plan: &mut Plan,
    [probes, beside]: [u32; 2],
    weights: &[f64],
    seed: Seed,
) -> Result<Vec<(u32, usize)>, Failure> {
    let location = place(plan)?;
    let first = plan.hosts.len() as u32;
    let link = LinkPlan { rate: LINK, queue: QueuePlan::DropTail { packets: u32::MAX, bytes: LINK.0 / 160 } };
    let mut host = |name: &str, role, colocated| {
        let name = name.to_owned();
        plan.hosts.push(HostPlan { name, role, location, colocated, up: link, down: link });
    };
    host("scanner's relay", Role::Relay(RelayLimits::default()), None);
    host("scanner", Role::Client, Some(first));
    host("scanner's server", Role::Server, None);
    let mut probed = Vec::new();
    for relay in 0..weights.len() {
        for number in 0..probes {
            let mut random = seed.fork_index(relay as u64).fork_index(number.into()).random();
            let entry = plan.directory.relays[relay].clone();
            let is_exit = can_exit(&entry);
            let helps = |(index, other): (usize, &RelayEntry)| {
                if index != relay && (is_exit || can_exit(other)) { weights[index] } else { 0.0 }
            };
            let helpers: Vec<f64> = plan.directory.relays.iter().enumerate().map(helps).collect();
            let heavier = helpers.iter().map(|weight| if *weight >= weights[relay] { *weight } else { 0.0 });
            let heavier: Vec<f64> = heavier.collect();
            let any = |list: &[f64]| list.iter().any(|weight| *weight > 0.0);
            let from = if any(&heavier) { heavier } else { helpers };
            if !any(&from) {
                return Err(Failure::TooSmall);
            }
            let helper = plan.directory.relays[draw(&mut random, from.iter().copied())].clone();
            let path = match is_exit {
                true => [first, helper.id.0, entry.id.0],
                false => [first, entry.id.0, helper.id.0],
            };
            let bytes = ((weights[relay] / 2.0) as u64).next_power_of_two().clamp(SIZES[0], SIZES[1]);
            // Before 0.1, other users have no circuits yet; downloads after 0.8 could not end in time.
            let span = plan.duration.as_secs_f64();
            let start = Span::from_secs_f64(random.uniform(0.1, 0.8) * span).max(LEAD);
            for _ in 0..=beside {
                probed.push((plan.users.len() as u32, relay));
                plan.users.push(user([first + 1, first + 2], path, bytes, Time::ZERO + start));
            }
        }
    }
    Ok(probed)
}

fn can_exit(relay: &RelayEntry) -> bool {
    matches!(relay.class, Class::Exit | Class::GuardExit)
}

fn user([client, server]: [u32; 2], path: [u32; 3], bytes: u64, start: Time) -> UserPlan {
    let request = RequestPlan { bytes, weight: 1.0, timeout: TIMEOUT, request_bytes: 100 };
    let never = Span::from_secs(1 << 20);
    UserPlan {
        host: client,
        class: "probe".into(),
        route: Route::Pinned(path),
        second_path: None,
        servers: vec![server],
        traffic: Traffic::Fetch { requests: vec![request], pause: (never, never), every: None },
        start,
        stop: Time::NEVER,
        circuit_lead: LEAD,
        rests: Vec::new(),
        circuit_lifetime: never,
    }
}
