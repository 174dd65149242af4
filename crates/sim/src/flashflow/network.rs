//! The plan of a world in which a team measures the relays of one machine.

use std::sync::Arc;

use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Rate, Span, Time};
use tidegate_proto::flashflow::cell::CELL;

use super::plan::{GuestsPlan, Plan, RelayPlan};
use crate::plan::{
    self, BucketPlan, Directory, Fault, FaultKind, FixedRate, HostPlan, LinkPlan, MeasurementPlan, Packaging,
    Path, PathTable, QueuePlan, RelayLimits, RequestPlan, Role, Route, System, Traffic, UserPlan,
};

/// Guards and exits of clients' circuits are this far from the relay.
const BACKGROUND_DELAY: Span = Span::from_millis(20);
/// How often a relay's bucket is refilled: as often as its pace looks.
const REFILL: Span = Span::from_millis(10);
/// Longer than all of a coordinator's timeouts together.
const PATIENCE: Span = Span::from_secs(120);

/// Links fast enough to add no waiting.
const FREE: LinkPlan = LinkPlan { rate: Rate::UNLIMITED, queue: QueuePlan::Shadow };

/// Hosts, in this order: the relays, the measurers, the coordinator; the guard and the exit of clients' circuits, their
/// client and their server. Locations: the relays' machine, each measurer's, and that of all others.
pub(super) fn world(plan: &Plan, seed: Seed) -> plan::Plan {
    let (relays, team) = (plan.relays.len() as u32, plan.measurers.len() as u32);
    let coordinator = relays + team;
    let far = 1 + team;
    let host = |name: String, role, location, colocated, link| HostPlan {
        name,
        role,
        location,
        colocated,
        up: link,
        down: link,
    };
    // Relays of one machine share the queue of its link.
    let shared = LinkPlan { queue: QueuePlan::Machine, ..plan.link };
    let mut hosts: Vec<HostPlan> = (0..)
        .zip(&plan.relays)
        .map(|(index, relay): (u32, &RelayPlan)| {
            let (machine, link) = if index == 0 { (None, plan.link) } else { (Some(0), shared) };
            host(format!("relay{index}"), Role::Relay(limits(relay)), 0, machine, link)
        })
        .collect();
    for (index, measurer) in (0..).zip(&plan.measurers) {
        let (name, link): (_, LinkPlan) = (format!("measurer{index}"), measurer.link);
        hosts.push(host(name, Role::Measurer, 1 + index, None, link));
    }
    hosts.push(host("coordinator".into(), Role::Coordinator, far, None, FREE));
    let [guard, exit, client, server] = [1, 2, 3, 4].map(|next| coordinator + next);
    let forwards = || Role::Relay(RelayLimits::default());
    hosts.push(host("guard".into(), forwards(), far + 1, None, FREE));
    hosts.push(host("exit".into(), forwards(), far + 1, None, FREE));
    hosts.push(host("client".into(), Role::Client, far + 1, Some(guard), FREE));
    hosts.push(host("server".into(), Role::Server, far + 1, Some(exit), FREE));
    let duration = plan.around * 2 + Span::from_secs(plan.seconds.into()) + PATIENCE;
    let guests =
        (relays..).zip(&plan.measurers).filter_map(|(host, measurer)| Some((host, measurer.guests?)));
    let guests = guests.flat_map(|(host, guests)| {
        let mut draws = seed.fork("guests").fork_index(u64::from(host)).random();
        guests.busy(Time::ZERO + duration, &mut draws).into_iter().map(move |(from, until, busy)| Fault {
            kind: FaultKind::LinkShare { host, share: 1.0 / (1.0 + f64::from(busy)) },
            from,
            until,
        })
    });
    let faults = guests.collect();
    let users = (0..).zip(&plan.relays).flat_map(|(index, relay): (u32, &RelayPlan)| {
        let path = [guard, index, exit];
        (0..relay.background.circuits).map(move |_| downloads_for_ever(path, client, server))
    });
    plan::Plan {
        paths: paths(plan, far),
        users: users.collect(),
        directory: Directory::default(),
        measurements: measurements(plan, coordinator),
        faults,
        duration,
        sample_every: Span::from_secs(1),
        trace_one_in: 0,
        processes: 1,
        hosts,
    }
}

impl GuestsPlan {
    /// The periods until `end` with busy guests, and their number in each.
    fn busy(&self, end: Time, draws: &mut Random) -> Vec<(Time, Time, u32)> {
        let stay = self.stay.as_secs_f64();
        let after = |at: Time, seconds: f64| at + Span::from_secs_f64(seconds);
        let mut changes: Vec<(Time, i32)> = Vec::new();
        let mut guest = |from: Time, draws: &mut Random| {
            changes.extend([(from, 1), (after(from, draws.exponential(stay)), -1)]);
        };
        // The number of guests at the start has a Poisson distribution. They stay as long as those that come later.
        let mut sum = draws.exponential(1.0);
        while sum < self.mean {
            guest(Time::ZERO, draws);
            sum += draws.exponential(1.0);
        }
        let mut at = after(Time::ZERO, draws.exponential(stay / self.mean));
        while at < end {
            guest(at, draws);
            at = after(at, draws.exponential(stay / self.mean));
        }
        changes.sort_unstable();
        let mut busy = 0;
        let periods = changes.windows(2).map(|two| {
            busy += two[0].1;
            (two[0].0, two[1].0, busy as u32)
        });
        periods.filter(|(from, until, busy)| from < until && *busy > 0).collect()
    }
}

fn limits(relay: &RelayPlan) -> RelayLimits {
    let rate = relay.rate.0 / 8;
    let bucket = (relay.rate != Rate::UNLIMITED).then_some(BucketPlan {
        rate_bytes_per_s: rate,
        burst_bytes: rate,
        refill_every: REFILL,
        drop_fractions: false,
    });
    RelayLimits { bucket, cell_cost: relay.cell_cost, ..RelayLimits::default() }
}

fn paths(plan: &Plan, far: u32) -> PathTable {
    PathTable::from_fn(far + 2, |from, to| {
        let (near, other) = (from.min(to), from.max(to));
        if other == far {
            return Path { delay: plan.coordinator_delay, ..Path::default() };
        }
        match plan.measurers.get((other as usize).wrapping_sub(1)) {
            Some(m) if near == 0 => Path { delay: m.delay, jitter: m.jitter, loss: m.loss },
            _ => Path { delay: BACKGROUND_DELAY, ..Path::default() },
        }
    })
}

fn downloads_for_ever(path: [u32; 3], client: u32, server: u32) -> UserPlan {
    const FOREVER: Span = Span(u64::MAX);
    let request = RequestPlan { bytes: u64::MAX, weight: 1.0, timeout: FOREVER, request_bytes: 100 };
    UserPlan {
        host: client,
        class: "background".into(),
        route: Route::Pinned(path),
        second_path: None,
        servers: vec![server],
        traffic: Traffic::Fetch { requests: vec![request], pause: (Span::ZERO, Span::ZERO), every: None },
        start: Time::ZERO,
        stop: Time::NEVER,
        circuit_lead: Span::ZERO,
        rests: Vec::new(),
        circuit_lifetime: FOREVER,
    }
}

fn measurements(plan: &Plan, coordinator: u32) -> Vec<MeasurementPlan> {
    let first = plan.relays.len() as u32;
    let measurement = |(index, relay): (u32, &RelayPlan)| MeasurementPlan {
        relay: index,
        coordinator,
        team: (first..).zip(&relay.shares).map(|(host, (rate, sockets))| (host, *rate, *sockets)).collect(),
        start: Time::ZERO + plan.around,
        seconds: plan.seconds,
        background_percent: plan.background_percent,
        check_one_in: plan.check_one_in,
        holds: relay.holds,
        slow: relay.slow,
    };
    (0..).zip(&plan.relays).map(measurement).collect()
}

/// Tor as it was, with exits that feed each background circuit its part of the rate.
pub(super) fn system(plan: &Plan) -> System {
    let background = plan.relays.iter().map(|relay| relay.background).find(|rate| rate.circuits > 0);
    let mut system = System { tcp: plan.tcp.clone(), ..System::default() };
    if let Some(background) = background {
        let cells = background.rate.0 as f64 / f64::from(background.circuits) / CELL as f64;
        let rate = Rate((cells * f64::from(Packaging::default().cell_bytes)) as u64);
        system.control = Arc::new(FixedRate { rate, ..FixedRate::default() });
    }
    system
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_come_and_go_around_their_mean() {
        let guests = GuestsPlan { mean: 1.2, stay: Span::from_secs(60) };
        let end = Time::ZERO + Span::from_secs(2_000_000);
        let periods = guests.busy(end, &mut Seed::root(1).random());
        assert!(periods.windows(2).all(|two| two[0].1 <= two[1].0), "periods overlap");
        let inside = |(from, until, busy): &(Time, Time, u32)| {
            (until.min(&end).since(*from).as_secs_f64() / 2e6, f64::from(*busy))
        };
        let share: f64 = periods.iter().map(|period| inside(period).0).sum();
        let mean: f64 = periods.iter().map(inside).map(|(share, busy)| share * busy).sum();
        assert!((mean - 1.2).abs() < 0.03, "{mean}");
        // A Poisson distribution: the machine has the link alone for exp(-1.2) of the time.
        assert!((1.0 - share - (-1.2_f64).exp()).abs() < 0.01, "{share}");
        // At the start, too: over many draws the mean is the same.
        let starts = (0..2000).filter_map(|seed| {
            let first = guests.busy(end.min(Time(1)), &mut Seed::root(seed).random()).first().copied();
            first.filter(|(from, ..)| *from == Time::ZERO).map(|(.., busy)| f64::from(busy))
        });
        assert!((starts.sum::<f64>() / 2000.0 - 1.2).abs() < 0.1);
    }
}
