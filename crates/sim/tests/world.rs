//! Whole runs on small networks: invariants of every system.

use std::ops::ControlFlow;
use std::sync::Arc;

use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_proto::registry::SCHEDULERS;
use tidegate_sim::observe::{Circuit, HostTotals, Observation, User};
use tidegate_sim::plan::*;
use tidegate_sim::tcp::{self, Congestion};
use tidegate_sim::world;

const ACCESS: LinkPlan =
    LinkPlan { rate: Rate(10_000_000), queue: QueuePlan::DropTail { packets: 1000, bytes: u64::MAX } };
const FREE: LinkPlan =
    LinkPlan { rate: Rate::UNLIMITED, queue: QueuePlan::DropTail { packets: u32::MAX, bytes: u64::MAX } };

fn relay(name: &str, link: LinkPlan) -> HostPlan {
    let role = Role::Relay(RelayLimits::default());
    HostPlan { name: name.into(), role, location: 0, colocated: None, up: link, down: link }
}

fn free(name: &str, role: Role) -> HostPlan {
    HostPlan { name: name.into(), role, location: 0, colocated: None, up: FREE, down: FREE }
}

fn user(host: u32, path: [u32; 3], server: u32, bytes: u64, start: Span) -> UserPlan {
    let request = RequestPlan { bytes, weight: 1.0, timeout: Span(u64::MAX), request_bytes: 100 };
    UserPlan {
        host,
        class: "bulk".into(),
        route: Route::Pinned(path),
        second_path: None,
        servers: vec![server],
        traffic: Traffic::Fetch {
            requests: vec![request],
            pause: (Span::from_secs(1), Span::from_secs(2)),
            every: None,
        },
        start: Time::ZERO + start,
        stop: Time::NEVER,
        circuit_lead: start,
        rests: Vec::new(),
        circuit_lifetime: Span::from_secs(600),
    }
}

/// Entry 1-3 (0-2), bottleneck (3), exit 1-2 (4-5), clients (6-8), server (9); 40 ms between any two.
fn bottleneck(bytes: u64) -> Plan {
    let narrow = LinkPlan { rate: Rate(4_000_000), ..ACCESS };
    let mut hosts: Vec<HostPlan> = ["entry1", "entry2", "entry3"].map(|name| relay(name, ACCESS)).into();
    hosts.push(relay("btlnk", narrow));
    hosts.extend(["exit1", "exit2"].map(|name| relay(name, ACCESS)));
    hosts.extend(["client1", "client2", "client3"].map(|name| free(name, Role::Client)));
    hosts.push(free("server", Role::Server));
    let start = |ms| Span::from_millis(ms);
    Plan {
        hosts,
        paths: PathTable::uniform(1, Path { delay: Span::from_millis(40), ..Path::default() }),
        users: vec![
            user(6, [0, 3, 4], 9, bytes, start(1000)),
            user(7, [1, 3, 4], 9, bytes, start(1300)),
            user(8, [2, 3, 5], 9, bytes, start(1600)),
        ],
        directory: Directory::default(),
        faults: vec![],
        duration: Span::from_secs(20),
        sample_every: Span::from_millis(100),
        trace_one_in: 16,
        processes: 1,
        measurements: Vec::new(),
    }
}

fn system(transport: Transport) -> System {
    System {
        name: "test".into(),
        transport,
        tcp: tcp::Config { congestion: Congestion::Reno, ..tcp::Config::default() },
        ..System::default()
    }
}

fn systems() -> impl Iterator<Item = System> {
    [Transport::Vanilla, Transport::PerCircuit].into_iter().flat_map(|transport| {
        let kist = System {
            kist: Some(kist::KistParameters::default()),
            scheduler: Arc::new(Ewma::default()),
            ..system(transport)
        };
        let scheduled = move |scheduler| System { scheduler, ..system(transport) };
        SCHEDULERS.iter().map(move |part| scheduled(part.by_default())).chain([kist])
    })
}

fn observe(plan: &Plan, system: &System, seed: u64) -> Vec<(Time, Observation)> {
    let mut seen = Vec::new();
    world::run(plan, system, Seed::root(seed), &mut seen, &mut |_| ControlFlow::Continue(()));
    seen
}

/// Delivered bytes per user from a time on.
fn delivered(seen: &[(Time, Observation)], from: Span) -> [u64; 3] {
    let (mut users, mut sum) = (vec![], [0; 3]);
    for (at, observation) in seen {
        match observation {
            Observation::CircuitBegun { user: User(user), .. } => users.push(*user as usize),
            Observation::Delivered { circuit: Circuit(circuit), bytes, .. } if *at >= Time::ZERO + from => {
                sum[users[*circuit as usize]] += u64::from(*bytes);
            }
            _ => {}
        }
    }
    sum
}

#[test]
fn an_unloaded_stream_takes_four_legs_to_connect_and_eight_to_its_first_byte() {
    let mut plan = bottleneck(1);
    plan.users.truncate(1);
    // Links so fast that only the delay counts.
    for host in &mut plan.hosts {
        (host.up, host.down) = (FREE, FREE);
    }
    let seen = observe(&plan, &system(Transport::Vanilla), 1);
    let start = Time::ZERO + Span::from_secs(1);
    let connected =
        seen.iter().find(|(_, what)| matches!(what, Observation::TransferConnected { .. })).unwrap().0;
    assert_eq!(connected.since(start), Span::from_millis(320));
    let first = seen.iter().find_map(|(_, what)| match what {
        Observation::FirstByte { took, .. } => Some(*took),
        _ => None,
    });
    assert_eq!(first, Some(Span::from_millis(640)));
}

#[test]
fn each_new_channel_of_a_circuit_waits_for_tls_and_the_link_protocol() {
    let mut plan = bottleneck(1);
    plan.users.truncate(1);
    for host in &mut plan.hosts {
        (host.up, host.down) = (FREE, FREE);
    }
    let built = |transport, round_trips, standing| {
        let tls = Tls { round_trips, standing, ..Tls::default() };
        let seen = observe(&plan, &System { tls, ..system(transport) }, 1);
        let took = |(_, observation): &(Time, Observation)| match observation {
            Observation::CircuitBuilt { took, .. } => Some(*took),
            _ => None,
        };
        seen.iter().find_map(took).unwrap()
    };
    // TCP's three handshakes and three extensions, over one, two and three legs: 9 round trips of 80 ms.
    assert_eq!(built(Transport::Vanilla, 0, false), Span::from_millis(9 * 80));
    // Three new channels.
    assert_eq!(built(Transport::Vanilla, 2, false), Span::from_millis((9 + 3 * 2) * 80));
    // Those between relays were there: one of TCP and two of the client's channel, and the extensions.
    assert_eq!(built(Transport::Vanilla, 2, true), Span::from_millis((1 + 2 + 6) * 80));
    // QUIC's first round trip is TLS's as well.
    assert_eq!(built(Transport::Quic, 2, true), Span::from_millis((1 + 1 + 6) * 80));
}

#[test]
fn channels_carry_no_cells_before_the_handshake_ends() {
    let mut plan = bottleneck(10_000);
    // Two relays extend to each other, the second one at any moment of the first one's handshake.
    plan.users.truncate(2);
    plan.users[1].route = Route::Pinned([3, 0, 4]);
    plan.duration = Span::from_secs(5);
    for (standing, later) in (0..800).step_by(20).flat_map(|later| [(false, later), (true, later)]) {
        let tls = Tls { round_trips: 2, standing, ..Tls::default() };
        let system = System { tls, ..system(Transport::Vanilla) };
        for (user, ms) in plan.users.iter_mut().zip([100, 100 + later]) {
            (user.start, user.circuit_lead) = (Time::ZERO + Span::from_millis(ms), Span::ZERO);
        }
        let bytes = delivered(&observe(&plan, &system, 1), Span::ZERO);
        assert!(bytes[0] >= 10_000 && bytes[1] >= 10_000, "{later} ms later: {bytes:?}");
    }
}

#[test]
fn the_bottleneck_is_filled_under_every_system() {
    for system in systems() {
        let seen = observe(&bottleneck(u64::MAX), &system, 1);
        let rates = delivered(&seen, Span::from_secs(8)).map(|bytes| bytes as f64 / 12.0);
        let sum: f64 = rates.iter().sum();
        // 500,000 B/s of packets less TCP/IP headers, TLS, cell headers and acknowledgements.
        assert!((420e3..450e3).contains(&sum), "{:?} {:?}: {rates:?}", system.transport, system.scheduler);
        assert!(rates.iter().all(|rate| *rate > 80e3), "no circuit starves: {rates:?}");
    }
}

#[test]
fn sized_downloads_arrive_whole() {
    for system in systems() {
        let seen = observe(&bottleneck(300_000), &system, 3);
        let done =
            seen.iter().filter(|(_, what)| matches!(what, Observation::LastByte { .. })).count() as u64;
        let begun =
            seen.iter().filter(|(_, what)| matches!(what, Observation::TransferBegun { .. })).count() as u64;
        assert!(done >= 9 && begun - done <= 3, "{done} of {begun}");
        let bytes: u64 = delivered(&seen, Span::ZERO).iter().sum();
        assert!((done * 300_000..=begun * 300_000).contains(&bytes), "no byte lost or doubled: {bytes}");
    }
}

#[test]
fn waits_account_for_a_cells_whole_way() {
    let plan = Plan { trace_one_in: 7, ..bottleneck(u64::MAX) };
    for system in systems() {
        let seen = observe(&plan, &system, 1);
        let hops: Vec<_> = seen
            .iter()
            .filter_map(|(_, what)| match what {
                Observation::Waited { hop, waits, .. } => Some((*hop, *waits)),
                _ => None,
            })
            .collect();
        assert!(hops.len() > 500, "{}", hops.len());
        assert!(hops.iter().all(|(hop, waits)| *hop < 3 && waits.propagation == Span::from_millis(40)));
        // Exit to middle carries less than the middle's uplink: its cells wait there, not here.
        let link = |hop: u8| {
            let of_hop: Vec<u64> =
                hops.iter().filter(|(at, _)| *at == hop).map(|(_, waits)| waits.link_queue.0).collect();
            of_hop.iter().sum::<u64>() / of_hop.len() as u64
        };
        assert!(link(1) > 2 * link(2), "{} {} {}", link(0), link(1), link(2));
    }
}

#[test]
fn a_run_depends_on_its_arguments_only() {
    let mut plan = bottleneck(300_000);
    plan.paths = PathTable::uniform(
        1,
        Path { delay: Span::from_millis(40), jitter: Span::from_millis(2), loss: 0.001 },
    );
    for system in systems() {
        let first = observe(&plan, &system, 1);
        assert_eq!(first, observe(&plan, &system, 1));
        assert_ne!(first, observe(&plan, &system, 2));
    }
}

/// The bottleneck's links are fast; its token bucket holds it to 200 kB/s.
fn bucket_bottleneck() -> Plan {
    let mut plan = bottleneck(u64::MAX);
    for host in &mut plan.hosts[..6] {
        (host.up, host.down) =
            (LinkPlan { rate: Rate(100_000_000), ..ACCESS }, LinkPlan { rate: Rate(100_000_000), ..ACCESS });
    }
    let bucket = BucketPlan {
        rate_bytes_per_s: 200_000,
        burst_bytes: 200_000,
        refill_every: Span::from_millis(10),
        drop_fractions: false,
    };
    plan.hosts[3].role = Role::Relay(RelayLimits { bucket: Some(bucket), ..RelayLimits::default() });
    plan
}

#[test]
fn a_cell_costs_as_many_events_late_in_a_run_as_early() {
    let system = system(Transport::Vanilla);
    let events_per_cell = |seconds| {
        let plan = Plan { duration: Span::from_secs(seconds), ..bucket_bottleneck() };
        let end =
            world::run(&plan, &system, Seed::root(1), &mut Vec::new(), &mut |_| ControlFlow::Continue(()));
        end.events as f64 / end.cells_delivered as f64
    };
    let (early, late) = (events_per_cell(20), events_per_cell(80));
    assert!(late < 1.05 * early, "{early} and then {late}: events that nobody needs breed");
}

#[test]
fn a_relays_bucket_limits_its_rate() {
    let plan = bucket_bottleneck();
    for system in systems() {
        let seen = observe(&plan, &system, 1);
        let sum = delivered(&seen, Span::from_secs(8)).iter().sum::<u64>() as f64 / 12.0;
        // 498 of each 536 bytes that the bucket counts; SENDMEs and TLS take a little more.
        assert!((175e3..187e3).contains(&sum), "{sum}");
    }
}

#[test]
fn processor_time_limits_a_relays_rate() {
    let mut plan = bottleneck(u64::MAX);
    let cell_cost = Span::from_millis(5);
    plan.hosts[3].role = Role::Relay(RelayLimits { cell_cost, ..RelayLimits::default() });
    let seen = observe(&plan, &system(Transport::Vanilla), 1);
    let sum = delivered(&seen, Span::from_secs(8)).iter().sum::<u64>() as f64 / 12.0;
    // 200 cells a second, a few of them SENDMEs.
    assert!((94e3..99.6e3).contains(&sum), "{sum}");
}

/// Sets the sizes of user `index`'s request and response.
fn asks(plan: &mut Plan, index: usize, request: u32, response: u64) {
    let Traffic::Fetch { requests, .. } = &mut plan.users[index].traffic else { panic!("it fetches") };
    (requests[0].request_bytes, requests[0].bytes) = (request, response);
}

#[test]
fn a_request_of_several_cells_costs_no_round_trip_more_than_one_of_one() {
    let first_byte = |request: u32, initial_window: u32| {
        let mut plan = bottleneck(1);
        plan.users.truncate(1);
        asks(&mut plan, 0, request, 1);
        for host in &mut plan.hosts {
            (host.up, host.down) = (FREE, FREE);
        }
        let tcp = tcp::Config { initial_window, congestion: Congestion::Reno, ..tcp::Config::default() };
        let seen = observe(&plan, &System { tcp, ..system(Transport::Vanilla) }, 1);
        let first = seen.iter().find_map(|(_, what)| match what {
            Observation::FirstByte { took, .. } => Some(*took),
            _ => None,
        });
        first.unwrap()
    };
    // Cells that arrive together are one write, and one segment: two at once are enough.
    for initial_window in [2, 10] {
        assert_eq!(first_byte(1000, initial_window), first_byte(100, initial_window));
    }
    assert_eq!(first_byte(1000, 2), Span::from_millis(640), "eight legs");
}

#[test]
fn an_exits_bucket_counts_traffic_with_servers() {
    let took = |servers: bool| {
        let mut plan = bottleneck(2_000_000);
        plan.users.truncate(2);
        asks(&mut plan, 1, 2_000_000, 1);
        let rate_bytes_per_s = 100_000;
        let refill_every = Span::from_millis(10);
        let bucket =
            BucketPlan { rate_bytes_per_s, burst_bytes: 10_000, refill_every, drop_fractions: false };
        let limits = RelayLimits { bucket: Some(bucket), servers, ..RelayLimits::default() };
        plan.hosts[4].role = Role::Relay(limits);
        plan.hosts[3].up = ACCESS;
        plan.hosts[3].down = ACCESS;
        plan.duration = Span::from_secs(90);
        let seen = observe(&plan, &system(Transport::Vanilla), 1);
        let last = seen.iter().filter_map(|(at, what)| match what {
            Observation::LastByte { .. } => Some(at.since(Time::ZERO + Span::from_secs(1)).as_secs_f64()),
            _ => None,
        });
        last.take(2).last().unwrap()
    };
    // One downloads 2 MB while the other uploads as much, over an exit of 100 kB/s. In tor both pass either bucket: as bytes
    // of the one's server or cells, and cells or bytes of the other's. Cells alone pass one bucket each.
    let (both, cells) = (took(true), took(false));
    assert!((40.0..46.0).contains(&both), "4 MB, half of them with 8 % for cells: {both}");
    assert!((20.0..24.0).contains(&cells), "2 MB each way: {cells}");
}

#[test]
fn a_stopping_user_finishes_its_transfer() {
    let mut plan = bottleneck(500_000);
    plan.users.truncate(2);
    plan.users.iter_mut().for_each(|user| user.stop = Time::ZERO + Span::from_secs(2));
    asks(&mut plan, 1, 100, u64::MAX);
    plan.duration = Span::from_secs(30);
    let seen = observe(&plan, &system(Transport::Vanilla), 1);
    let ends: Vec<(bool, Time)> = (seen.iter())
        .filter_map(|(at, what)| match what {
            Observation::LastByte { .. } => Some((true, *at)),
            Observation::TransferTimedOut { .. } => Some((false, *at)),
            _ => None,
        })
        .collect();
    let stop = Time::ZERO + Span::from_secs(2);
    assert_eq!(ends.len(), 2, "none is begun after: {ends:?}");
    assert_eq!(ends[0], (false, stop), "what would never end is broken off");
    assert!(ends[1].0 && ends[1].1 > stop, "what has begun ends");
    let closed = seen.iter().filter(|(_, what)| matches!(what, Observation::CircuitClosed { .. })).count();
    assert_eq!(closed, 2, "and its circuit is closed");
}

#[test]
fn circuits_survive_a_relays_fall() {
    let mut plan = bottleneck(300_000);
    let (from, until) = (Time::ZERO + Span::from_secs(6), Time::ZERO + Span::from_secs(8));
    plan.faults = vec![Fault { kind: FaultKind::HostDown { host: 3 }, from, until }];
    plan.duration = Span::from_secs(60);
    for system in systems() {
        let seen = observe(&plan, &system, 1);
        let failed =
            seen.iter().filter(|(_, what)| matches!(what, Observation::TransferTimedOut { .. })).count();
        assert!(failed >= 1, "downloads over the fallen relay fail");
        let late = delivered(&seen, Span::from_secs(40));
        assert!(late.iter().all(|bytes| *bytes > 600_000), "and users come back: {late:?}");
    }
}

fn relay_totals(seen: &[(Time, Observation)]) -> Vec<HostTotals> {
    let totals = seen.iter().filter_map(|(_, observation)| match observation {
        Observation::HostTotals { host, totals } if host.0 < 6 => Some(**totals),
        _ => None,
    });
    totals.collect()
}

#[test]
fn pctcp_without_upgraded_relays_is_vanilla_and_costs_descriptors_and_headers_where_it_is_deployed() {
    let plan = bottleneck(u64::MAX);
    let vanilla = observe(&plan, &system(Transport::Vanilla), 1);
    let run = |upgraded, esp_overhead| {
        let deployment = Deployment { upgraded, esp_overhead };
        observe(&plan, &System { deployment, ..system(Transport::PerCircuit) }, 1)
    };
    assert!(run(0.0, 57) == vanilla, "nobody to speak it with");

    let (plain, ipsec) = (run(1.0, 0), run(1.0, 57));
    let descriptors = |seen| relay_totals(seen).iter().map(|totals| totals.peak_descriptors).sum::<u64>();
    assert!(descriptors(&plain) > descriptors(&vanilla));
    assert!(relay_totals(&plain).iter().any(|totals| totals.peak_kernel_bytes > 0));
    // The shared link is full either way: what ESP takes is lost to the circuits.
    let sum = |seen| delivered(seen, Span::from_secs(5)).iter().sum::<u64>() as f64;
    let share = sum(&ipsec) / sum(&plain);
    assert!((0.93..0.99).contains(&share), "57 of 1500 bytes per packet: {share}");
}

#[test]
fn a_user_can_share_anothers_circuit() {
    let mut plan = bottleneck(u64::MAX);
    let mut probe = user(6, [0, 3, 4], 9, 1, Span::from_secs(8));
    probe.route = Route::Shared(0);
    plan.users.push(probe);
    for system in systems() {
        let seen = observe(&plan, &system, 1);
        let circuits = |user: u32| {
            let begun = seen.iter().filter_map(move |(_, what)| match what {
                Observation::TransferBegun { user: User(who), circuit, .. } if *who == user => Some(*circuit),
                _ => None,
            });
            begun.collect::<Vec<Circuit>>()
        };
        assert!(circuits(3).len() > 1 && circuits(3).iter().all(|circuit| *circuit == circuits(0)[0]));
        let built = seen.iter().filter(|(_, what)| matches!(what, Observation::CircuitBegun { .. })).count();
        assert_eq!(built, 3, "it builds none of its own");
        assert!(seen.iter().any(|(_, what)| matches!(what, Observation::LastByte { .. })));
    }
}

#[test]
fn congestion_control_fills_the_bottleneck_with_less_waiting() {
    let delay = |control: Arc<dyn Control>| {
        let system = System { control: Arc::clone(&control), ..system(Transport::Vanilla) };
        let seen = observe(&bottleneck(u64::MAX), &system, 1);
        let sum: f64 = delivered(&seen, Span::from_secs(8)).iter().map(|bytes| *bytes as f64 / 12.0).sum();
        assert!((420e3..450e3).contains(&sum), "{control:?}: {sum}");
        let waits: Vec<f64> = (seen.iter().filter(|(at, _)| *at > Time::ZERO + Span::from_secs(8)))
            .filter_map(|(at, what)| match what {
                Observation::Delivered { packaged, .. } => Some(at.since(*packaged).as_secs_f64()),
                _ => None,
            })
            .collect();
        waits.iter().sum::<f64>() / waits.len() as f64
    };
    let windows = delay(Arc::new(FixedWindows));
    let vegas = delay(Arc::new(vegas::VegasParameters::default()));
    assert!(vegas < 0.75 * windows, "{vegas} s, {windows} s with fixed windows");
}
