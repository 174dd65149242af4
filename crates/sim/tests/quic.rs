//! QUIC between relays: circuits share a connection and its congestion control, but do not wait for each other's losses.

use crate::endless;
use std::ops::ControlFlow;

use endless::{download, host, plan};
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_sim::observe::{Circuit, Host, Observation, User};
use tidegate_sim::plan::*;
use tidegate_sim::world;

const SERVER: u32 = 5;

/// Three relays (0 to 2), of which the middle is the slowest, a spare middle (3), clients (6 to 8), a server (5): a bulk
/// download, and two that ask for a page every quarter of a second, all over the same relays.
fn shared(loss: f64) -> Plan {
    let relay = || Role::Relay(RelayLimits::default());
    let mut hosts: Vec<HostPlan> =
        ["guard", "middle", "exit", "spare"].map(|name| host(name, relay(), 50, None)).into();
    (hosts[1].up.rate, hosts[1].down.rate) = (Rate(20_000_000), Rate(20_000_000));
    hosts.push(host("unused", Role::Client, 50, None));
    hosts.push(host("server", Role::Server, 1000, None));
    hosts.extend(["bulk", "web1", "web2"].map(|name| host(name, Role::Client, 50, None)));
    let second = Span::from_secs(1);
    let mut users: Vec<UserPlan> =
        (6..9).map(|client| download(client, [0, 1, 2], SERVER, second, second)).collect();
    let page = RequestPlan { bytes: 5_000, weight: 1.0, timeout: Span(u64::MAX), request_bytes: 100 };
    for user in &mut users[1..] {
        let pause = (Span::from_millis(250), Span::from_millis(250));
        user.traffic = Traffic::Fetch { requests: vec![page], pause, every: None };
    }
    let mut plan = plan(hosts, users, Vec::new(), 60);
    plan.paths = PathTable::uniform(1, Path { delay: Span::from_millis(20), loss, ..Path::default() });
    plan.trace_one_in = 1;
    plan
}

fn observe(plan: &Plan, system: &System, seed: u64) -> Vec<(Time, Observation)> {
    let mut seen = Vec::new();
    world::run(plan, system, Seed::root(seed), &mut seen, &mut |_| ControlFlow::Continue(()));
    seen
}

fn over(transport: Transport) -> System {
    System { transport, ..System::default() }
}

/// Mean seconds that cells of the pages wait for earlier bytes of their connection, or for a retransmission of their own,
/// from relay to relay.
fn waits(seen: &[(Time, Observation)]) -> (f64, f64) {
    let mut pages = Vec::new();
    let (mut others, mut own, mut count) = (0.0, 0.0, 0.0);
    for (_, what) in seen {
        match what {
            Observation::CircuitBegun { circuit, user: User(user), .. } if *user > 0 => pages.push(*circuit),
            Observation::Waited { circuit, at: Host(1 | 2), waits, .. } if pages.contains(circuit) => {
                others += waits.head_of_line.as_secs_f64();
                own += waits.retransmission.as_secs_f64();
                count += 1.0;
            }
            _ => {}
        }
    }
    assert!(count > 1000.0, "{count} cells");
    (others / count, own / count)
}

#[test]
fn on_a_lossy_link_no_circuit_waits_for_anothers_losses() {
    let (vanilla, _) = waits(&observe(&shared(0.01), &over(Transport::Vanilla), 1));
    let (quic, own) = waits(&observe(&shared(0.01), &over(Transport::Quic), 1));
    assert!(vanilla > 0.002, "one connection makes them wait {vanilla} s on average");
    assert!(quic < vanilla / 2.0, "{quic} s of {vanilla}");
    // A loss holds up only the rest of its own circuit's page.
    assert!(own > 0.0 && quic < 10.0 * own, "{quic} s, {own} s");
    let (without_loss, _) = waits(&observe(&shared(0.0), &over(Transport::Quic), 1));
    assert!(without_loss < 1e-9, "{without_loss} s");
}

#[test]
fn all_circuits_of_a_pair_share_one_connection() {
    let connections = |transport| {
        let seen = observe(&shared(0.0), &over(transport), 1);
        let mut opened = [0; 3];
        for (_, what) in seen {
            if let Observation::HostTotals { host: Host(host @ 0..3), totals } = what {
                opened[host as usize] = totals.connections;
            }
        }
        opened
    };
    // The exit connects to the server for each stream.
    let (vanilla, quic, pctcp) =
        (connections(Transport::Vanilla), connections(Transport::Quic), connections(Transport::PerCircuit));
    assert_eq!((vanilla[0], vanilla[1]), (1, 1));
    assert_eq!((quic[0], quic[1]), (1, 1));
    assert_eq!((pctcp[0], pctcp[1]), (3, 3));
}

#[test]
fn the_first_circuit_waits_for_a_handshake_and_no_other_does() {
    let built = |transport, round_trips| {
        let tls = Tls { round_trips, ..System::default().tls };
        let mut plan = shared(0.0);
        for user in &mut plan.users[1..] {
            user.start = Time::ZERO + Span::from_secs(10);
        }
        let seen = observe(&plan, &System { tls, ..over(transport) }, 1);
        [0, 1].map(|number| {
            let took = seen.iter().find_map(|(_, what)| match what {
                Observation::CircuitBuilt { circuit: Circuit(circuit), took } if *circuit == number => {
                    Some(*took)
                }
                _ => None,
            });
            took.expect("it is built")
        })
    };
    let [first, second] = built(Transport::Quic, 2);
    let [vanilla, _] = built(Transport::Vanilla, 2);
    assert!(first < vanilla, "TLS is in the first round trip: {first:?} of {vanilla:?}");
    assert!(second < first, "{second:?} of {first:?}");
}

#[test]
fn relays_that_do_not_speak_it_get_a_connection_as_ever() {
    let run = |transport| {
        let deployment = Deployment { upgraded: 0.0, ..Deployment::default() };
        observe(&shared(0.001), &System { deployment, ..over(transport) }, 3)
    };
    assert!(run(Transport::Quic) == run(Transport::Vanilla), "nobody to speak it with");
}

#[test]
fn a_relay_that_goes_down_takes_its_connections_along_and_comes_back() {
    let mut plan = shared(0.001);
    let kind = FaultKind::HostDown { host: 1 };
    let at = |seconds| Time::ZERO + Span::from_secs(seconds);
    plan.faults = vec![Fault { kind, from: at(10), until: at(12) }];
    let seen = observe(&plan, &over(Transport::Quic), 2);
    let mut circuits = std::collections::BTreeMap::new();
    let mut after = [0; 3];
    for (when, what) in &seen {
        match what {
            Observation::CircuitBegun { circuit, user: User(user), .. } => {
                circuits.insert(*circuit, *user as usize);
            }
            Observation::Delivered { circuit: circuit @ Circuit(_), bytes, .. } if *when > at(30) => {
                after[circuits[circuit]] += u64::from(*bytes);
            }
            _ => {}
        }
    }
    assert!(after[0] > 1_000_000 && after[1] > 100_000 && after[2] > 100_000, "{after:?}");
}
