//! PredicTor's closed loop on the three-circuit bottleneck of its paper (section 5.2).

use crate::endless;
use std::ops::ControlFlow;
use std::sync::Arc;

use tidegate_control::predictor::Formulation;
use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_proto::control::Totals;
use tidegate_sim::observe::Observation;
use tidegate_sim::plan::predictor::{Encoding, Exchange, Phases, PredictorParameters, Preset};
use tidegate_sim::plan::*;
use tidegate_sim::tcp::{self, Congestion};
use tidegate_sim::world;

use endless::{download, host, plan};

/// Entry 1-3 (0-2), bottleneck (3), exit 1-2 (4-5); clients at the entries (6-8), servers at the exits (9-11).
fn bottleneck(seconds: u64) -> Plan {
    let relay = |name: &str, mbit| host(name, Role::Relay(RelayLimits::default()), mbit, None);
    let mut hosts: Vec<HostPlan> = ["entry1", "entry2", "entry3"].map(|name| relay(name, 10)).into();
    hosts.push(relay("btlnk", 4));
    hosts.extend(["exit1", "exit2"].map(|name| relay(name, 10)));
    hosts.extend((0..3).map(|at| host("client", Role::Client, 1000, Some(at))));
    hosts.extend([4, 4, 5].map(|at| host("server", Role::Server, 1000, Some(at))));
    let user = |index: u32| {
        let exit = if index < 2 { 4 } else { 5 };
        let start = Span::from_millis(400 + 400 * u64::from(index));
        download(6 + index, [index, 3, exit], 9 + index, start, Span::from_millis(400))
    };
    plan(hosts, (0..3).map(user).collect(), vec![], seconds)
}

fn system(transport: Transport, parameters: PredictorParameters) -> System {
    let windows = Windows { circuit: 500, circuit_increment: 50, stream: 500, stream_increment: 50 };
    System {
        name: "predictor".into(),
        transport,
        control: Arc::new(parameters),
        windows,
        tcp: tcp::Config {
            congestion: Congestion::None,
            bursts: false,
            nagle: false,
            send_buffer: tcp::Buffer::Fixed(131_072),
            receive_buffer: tcp::Buffer::Fixed(131_072),
            ..tcp::Config::default()
        },
        output_buffer: OutputBuffer { high_bytes: 514, low_bytes: 0 },
        tls: Tls { record_overhead: 0, record_cells: 1, ..Tls::default() },
        ..System::default()
    }
}

/// Rates of the three circuits in kB/s, and the mean latency from the exit's queue on in ms, after 4 s.
fn closed_loop(transport: Transport, parameters: PredictorParameters) -> ([f64; 3], f64) {
    let (rates, latency, _) = closed_loop_and_totals(transport, parameters);
    (rates, latency)
}

/// The same, and the totals of all controllers.
fn closed_loop_and_totals(transport: Transport, parameters: PredictorParameters) -> ([f64; 3], f64, Totals) {
    run(&system(transport, parameters))
}

fn run(system: &System) -> ([f64; 3], f64, Totals) {
    let (plan, lead) = (bottleneck(10), Time::ZERO + Span::from_secs(4));
    let mut seen = Vec::new();
    world::run(&plan, system, Seed::root(1), &mut seen, &mut |_| ControlFlow::Continue(()));
    let (mut rates, mut latency, mut cells) = ([0.0; 3], 0.0, 0.0);
    for (now, what) in &seen {
        if let Observation::Delivered { circuit, bytes, departed, .. } = what
            && *now >= lead
        {
            rates[circuit.0 as usize] += f64::from(*bytes) / 6e3;
            latency += now.since(*departed).as_secs_f64() * 1e3;
            cells += 1.0;
        }
    }
    let mut all = Totals::default();
    for (_, what) in &seen {
        if let Observation::HostTotals { totals, .. } = what
            && let Some(control) = totals.control
        {
            all.sent_bytes += control.sent_bytes;
            all.solves += control.solves;
            all.left_to_windows += control.left_to_windows;
        }
    }
    (rates, latency / cells, all)
}

/// Share of the traffic within equal shares, which are max-min fair here.
fn fairness(rates: [f64; 3]) -> f64 {
    let total: f64 = rates.iter().sum();
    rates.iter().map(|rate| rate.min(total / 3.0)).sum::<f64>() / total
}

#[test]
fn rates_are_equal_and_latency_is_near_its_floor() {
    for (transport, exchange) in
        [(Transport::PerCircuit, Exchange::OutOfBand), (Transport::Vanilla, Exchange::OutOfBand)]
    {
        let s_max_time = Span::from_millis(80);
        let parameters = PredictorParameters { exchange, s_max_time, ..PredictorParameters::default() };
        let (rates, latency) = closed_loop(transport, parameters);
        assert!(rates.iter().sum::<f64>() >= 400.0, "{rates:?}");
        assert!(fairness(rates) >= 0.99, "{rates:?}");
        assert!((80.0..=95.0).contains(&latency), "{transport:?}: {latency} ms");
    }
}

/// The public code of 2020 in this scenario: 134.1, 135.1 and 134.4 KiB/s at 108.7 ms.
#[test]
fn the_prototype_is_the_authors_code() {
    let (rates, latency) = closed_loop(Transport::PerCircuit, PredictorParameters::from(Preset::Prototype));
    for (rate, theirs) in rates.iter().zip([137.3, 138.3, 137.6]) {
        assert!((rate / theirs - 1.0).abs() <= 0.03, "{rates:?}");
    }
    assert!((latency / 108.7 - 1.0).abs() <= 0.03, "{latency} ms");
}

#[test]
fn the_compact_encoding_costs_a_tenth_in_band() {
    let compact = PredictorParameters::default();
    assert!(matches!(compact.encoding, Encoding::Compact) && compact.exchange == Exchange::InBand);
    let plain = PredictorParameters { encoding: Encoding::Plain, ..compact };
    let (_, plainly, in_plain) = closed_loop_and_totals(Transport::PerCircuit, plain);
    let (rates, latency, compactly) = closed_loop_and_totals(Transport::PerCircuit, compact);
    let [bytes, all] = [compactly.sent_bytes, in_plain.sent_bytes];
    assert!(10 * bytes <= all, "{bytes} of {all} bytes");
    // A single run; the experiment has many.
    assert!(latency <= plainly + 5.0, "{latency} ms against {plainly}");
    assert!(rates.iter().sum::<f64>() >= 400.0, "{rates:?}");
    assert!(fairness(rates) >= 0.99, "{rates:?}");
    assert!((80.0..=95.0).contains(&latency), "{latency} ms");
}

/// Circuits that are slow to solve for (paper, section 4) cost a relay its plans, but break no circuit.
#[test]
fn an_overloaded_controller_leaves_circuits_to_the_windows() {
    let plans = PredictorParameters::default();
    let slow = PredictorParameters { solve_time_per_circuit: Span::from_millis(10), ..plans };
    let crowded = PredictorParameters { most_circuits: 2, ..plans };
    // Only the bottleneck has three circuits.
    for parameters in [slow, crowded] {
        let (rates, _, did) = closed_loop_and_totals(Transport::PerCircuit, parameters);
        assert!((100..=250).contains(&did.left_to_windows), "{did:?}");
        assert!(did.solves >= 1250, "{did:?}");
        assert!(rates.iter().sum::<f64>() >= 400.0, "{rates:?}");
        assert!(fairness(rates) >= 0.9, "{rates:?}");
    }
    let without = PredictorParameters { windows: false, ..crowded };
    let (_, _, did) = closed_loop_and_totals(Transport::PerCircuit, without);
    assert_eq!(did.left_to_windows, 0, "nothing else would bound what is in flight");
}

/// A socket's first window is hardly more than a segment of the loopback, over which exits read from servers.
#[test]
fn servers_keep_up_with_first_windows() {
    let mut system = system(Transport::PerCircuit, PredictorParameters::default());
    system.tcp = tcp::Config { congestion: Congestion::None, ..tcp::Config::default() };
    let (rates, ..) = run(&system);
    assert!(rates.iter().sum::<f64>() >= 390.0, "{rates:?}");
}

#[test]
fn queues_drain() {
    let never = PredictorParameters {
        exchange: Exchange::OutOfBand,
        drain: Span::ZERO,
        lasting_grants: false,
        ..PredictorParameters::default()
    };
    let drained = PredictorParameters { drain: Span::from_millis(120), ..never };
    let (_, standing) = closed_loop(Transport::PerCircuit, never);
    let (rates, latency) = closed_loop(Transport::PerCircuit, drained);
    assert!(latency <= standing - 3.0, "{latency} ms against {standing}");
    assert!(rates.iter().sum::<f64>() >= 400.0 && fairness(rates) >= 0.99, "{rates:?}");
}

#[test]
fn lasting_grants_need_no_queue_where_messages_miss_a_solve() {
    let closed = |lasting_grants| {
        let late = PredictorParameters {
            phases: Phases::Random,
            exchange: Exchange::OutOfBand,
            drain: Span::ZERO,
            s_max_time: Span::ZERO,
            lasting_grants,
            estimate_delay: true,
            ..PredictorParameters::default()
        };
        closed_loop(Transport::PerCircuit, late)
    };
    let (rates, latency) = closed(true);
    assert!(rates.iter().sum::<f64>() >= 400.0 && fairness(rates) >= 0.99, "{rates:?}");
    assert!(latency <= 140.0, "{latency} ms");
    let (rates, _) = closed(false);
    assert!(rates.iter().sum::<f64>() <= 300.0, "the prototype's plans end too early: {rates:?}");
}

/// A grant that fixed only two steps of 20 ms was over before the predecessor could follow it, and no cell went.
#[test]
fn steps_shorter_than_the_delay_and_messages_in_band_fill_the_link() {
    let prototype = PredictorParameters::from(Preset::Prototype);
    for parameters in [
        PredictorParameters { step: Span::from_millis(20), ..prototype },
        PredictorParameters { step: Span::from_millis(30), ..prototype },
        PredictorParameters { exchange: Exchange::InBand, ..prototype },
    ] {
        let (rates, latency) = closed_loop(Transport::PerCircuit, parameters);
        assert!(rates.iter().sum::<f64>() >= 380.0, "{parameters:?}: {rates:?}");
        assert!(fairness(rates) >= 0.97, "{parameters:?}: {rates:?}");
        assert!(latency <= 200.0, "{parameters:?}: {latency} ms");
    }
}

#[test]
fn the_journals_problem_and_random_phases_hold_rates_equal() {
    let out_of_band = PredictorParameters { exchange: Exchange::OutOfBand, ..PredictorParameters::default() };
    for parameters in [
        PredictorParameters {
            problem: Formulation::Journal,
            s_max_time: Span::from_millis(40),
            ..out_of_band
        },
        PredictorParameters { phases: Phases::Random, drift: 1e-4, ..out_of_band },
    ] {
        let (rates, latency) = closed_loop(Transport::PerCircuit, parameters);
        assert!(rates.iter().sum::<f64>() >= 380.0, "{parameters:?}: {rates:?}");
        assert!(fairness(rates) >= 0.98, "{parameters:?}: {rates:?}");
        assert!(latency <= 200.0, "{parameters:?}: {latency} ms");
    }
}
