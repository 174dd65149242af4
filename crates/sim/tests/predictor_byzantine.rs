//! A relay that lies to its neighbours under PredicTor harms only its own circuits.

use crate::endless;
use std::ops::ControlFlow;
use std::sync::{Arc, LazyLock};

use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_sim::observe::Observation;
use tidegate_sim::plan::predictor::{Encoding, PredictorParameters};
use tidegate_sim::plan::*;
use tidegate_sim::{tcp, world};

const SECONDS: u64 = 5;
const LIAR: u32 = 1;

/// Guard, middle, exit of each circuit. Relay 1 is the liar; it is exit, middle and guard of the first three
/// circuits. Each of these shares the relay next to it with an honest circuit; the last touches neither.
const CIRCUITS: [[u32; 3]; 7] =
    [[2, 3, LIAR], [4, LIAR, 5], [LIAR, 6, 7], [8, 3, 9], [10, 9, 5], [8, 6, 11], [4, 10, 11]];

fn plan(lie: Option<Lie>) -> Plan {
    let host = |role, mbit, colocated| endless::host("host", role, mbit, colocated);
    // Relay 0 is not used.
    let mut hosts: Vec<_> = (0..12).map(|_| host(Role::Relay(RelayLimits::default()), 4, None)).collect();
    hosts.extend(CIRCUITS.map(|path| host(Role::Client, 1000, Some(path[0]))));
    hosts.extend(CIRCUITS.map(|path| host(Role::Server, 1000, Some(path[2]))));
    let half = Span::from_millis(500);
    let user = |(index, path): (u32, _)| endless::download(12 + index, path, 12 + 7 + index, half, half);
    let lies = |lie| Fault {
        kind: FaultKind::Byzantine { host: LIAR, lie },
        from: Time::ZERO + Span::from_millis(1500),
        until: Time::NEVER,
    };
    let users = (0..).zip(CIRCUITS).map(user).collect();
    endless::plan(hosts, users, lie.map(lies).into_iter().collect(), SECONDS)
}

/// Rates of the circuits in kB/s in the last three seconds, and trajectories refused.
fn rates(lie: Option<Lie>, encoding: Encoding) -> ([f64; 7], u64) {
    let (plan, lead) = (plan(lie), Time::ZERO + Span::from_secs(SECONDS - 3));
    let system = System {
        name: "predictor".into(),
        transport: Transport::PerCircuit,
        control: Arc::new(PredictorParameters { encoding, ..PredictorParameters::default() }),
        tcp: tcp::Config { congestion: tcp::Congestion::None, ..tcp::Config::default() },
        output_buffer: OutputBuffer { high_bytes: 514, low_bytes: 0 },
        tls: Tls { record_overhead: 0, record_cells: 1, ..Tls::default() },
        ..System::default()
    };
    let mut seen = Vec::new();
    let end = world::run(&plan, &system, Seed::root(1), &mut seen, &mut |_| ControlFlow::Continue(()));
    assert_eq!(end.reached, Time::ZERO + Span::from_secs(SECONDS));
    let (mut rates, mut refused) = ([0.0; 7], 0);
    for (now, what) in &seen {
        match what {
            Observation::Delivered { circuit, bytes, .. } if *now >= lead => {
                rates[circuit.0 as usize] += f64::from(*bytes) / 3e3;
            }
            // The circuits' end is that of the run.
            Observation::CircuitClosed { .. } => panic!("{lie:?}: a relay or connection is down"),
            Observation::HostTotals { totals, .. } => {
                refused += totals.control.map_or(0, |control| control.refused);
            }
            _ => {}
        }
    }
    (rates, refused)
}

const ENCODINGS: [Encoding; 2] = [Encoding::Compact, Encoding::Plain];

/// The circuits' goodput without lies.
static HONEST: LazyLock<[[f64; 7]; 2]> = LazyLock::new(|| {
    ENCODINGS.map(|encoding| {
        let (rates, refused) = rates(None, encoding);
        assert_eq!(refused, 0);
        rates
    })
});

/// With this lie the honest circuits get what they get without; `sound`: nothing in it can be refused.
fn harmless(lie: Lie, sound: bool) {
    for (encoding, honest) in ENCODINGS.into_iter().zip(*HONEST) {
        let (lied, refused) = rates(Some(lie), encoding);
        assert_eq!(refused == 0, sound, "{refused} trajectories refused");
        for circuit in 3..7 {
            assert!(
                lied[circuit] >= 0.9 * honest[circuit],
                "{encoding:?}, circuit {circuit}: {honest:?} {lied:?}"
            );
        }
    }
}

#[test]
fn a_greedy_relay_starves_nobody_else() {
    harmless(Lie::Greedy, true);
}

#[test]
fn a_denying_relay_starves_nobody_else() {
    harmless(Lie::Denying, true);
}

#[test]
fn values_that_are_not_numbers_starve_nobody_else() {
    harmless(Lie::NotNumbers, false);
}

#[test]
fn too_long_trajectories_starve_nobody_else() {
    harmless(Lie::TooLong, false);
}

#[test]
fn too_many_trajectories_starve_nobody_else() {
    harmless(Lie::TooMany, false);
}

#[test]
fn replayed_trajectories_starve_nobody_else() {
    harmless(Lie::Replayed, false);
}

#[test]
fn garbage_starves_nobody_else() {
    harmless(Lie::Garbage, false);
}

#[test]
fn a_silent_relay_starves_nobody_else() {
    harmless(Lie::Absent, true);
}
