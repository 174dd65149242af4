//! A PredicTor relay with neighbours that lie, send garbage, repeat themselves or are silent.

use std::sync::Arc;

use crate::cell::{Cell, CircId, Command};
use crate::control::predictor::planner::{Measured, Planner, Source};
use crate::control::predictor::{About, PredictorParameters, Trajectory, wire};
use crate::links::Config;
use crate::node::{CircuitKey, Node};
use crate::onion::{Clear, Onion};
use crate::relay::Relay;
use proptest::prelude::*;
use tidegate_control::machine::Machine;
use tidegate_control::predictor::Formulation;
use tidegate_control::units::{Span, Time};

const STEP: Span = Span::from_millis(40);
/// 1000 cells of 512 bytes per second, of which circuits get 850.
const BYTES_PER_S: f64 = 512_000.0;
const CAPACITY: f64 = 850.0;

/// The message of the bad circuit's predecessor in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bad {
    Greedy,
    NotNumbers,
    TooLong,
    WrongKind,
    WrongStep,
    Replayed,
    Absent,
    FromTheFuture,
}

/// A middle relay with three circuits. The predecessors of circuits 0 and 1 always have more cells and plan what
/// they are granted; that of circuit 2 misbehaves. Returns each circuit's final grant, and the number of refused
/// trajectories.
fn grants(parameters: PredictorParameters, bad: Bad) -> ([f64; 3], u64) {
    let mut planner = Planner::new(parameters, BYTES_PER_S);
    let (mut granted, mut refused) = ([[0.0; 10]; 3], 0);
    for step in 1..80u64 {
        let now = Time(STEP.0 * step);
        let solved = Time(now.0 - STEP.0);
        let mut hear = |circuit: u32, about, solved, step, values: &[f64]| {
            let heard = Trajectory { circ: 0, about, solved, step, values };
            let believed = planner.receive(now, CircuitKey(circuit), about != About::Intake, &heard);
            refused += u64::from(!believed);
        };
        for circuit in 0..3u32 {
            hear(circuit, About::Intake, solved, STEP, &[1000.0; 10]);
        }
        for circuit in 0..2 {
            let plan = granted[circuit as usize];
            hear(circuit, About::Output, solved, STEP, &plan);
            hear(circuit, About::Queue, solved, STEP, &[100.0; 10]);
            hear(circuit, About::Virtual, solved, STEP, &[CAPACITY; 10]);
        }
        for about in [About::Output, About::Queue, About::Virtual] {
            match bad {
                Bad::Greedy => hear(2, about, solved, STEP, &[f64::MAX; 10]),
                Bad::NotNumbers => hear(2, about, solved, STEP, &[f64::NAN; 10]),
                Bad::TooLong => hear(2, about, solved, STEP, &[500.0; 11]),
                Bad::WrongKind => hear(2, About::Intake, solved, STEP, &[0.0; 12]),
                Bad::WrongStep => hear(2, about, solved, Span::from_millis(1), &[500.0; 10]),
                Bad::Replayed => hear(2, about, Time(STEP.0), STEP, &[1e9; 10]),
                Bad::FromTheFuture => hear(2, about, Time(u64::MAX - step), STEP, &[1e9; 10]),
                Bad::Absent => {}
            }
        }
        planner.begin(0);
        for circuit in 0..3 {
            let circuit = CircuitKey(circuit);
            planner.add(now, &Measured { circuit, queue: 2.0, source: Source::Relay, to_client: false });
        }
        planner.solve();
        for (row, granted) in granted.iter_mut().enumerate() {
            let plan = planner.plan(row).unwrap();
            let total = |values: &[f64]| values.iter().all(|value| (0.0..=CAPACITY + 1e-3).contains(value));
            assert!(total(plan.intake) && total(plan.output), "{bad:?}: {plan:?}");
            // The neighbour's next plan: our grant two steps later, as its own controller aligns it.
            for (at, grant) in granted.iter_mut().enumerate() {
                *grant = plan.intake[(at + 2).min(9)];
            }
        }
    }
    (granted.map(|steps| steps[0]), refused)
}

#[test]
fn no_predecessor_takes_more_than_its_share_from_others() {
    let prototype = PredictorParameters::default();
    for parameters in [
        prototype,
        PredictorParameters { problem: Formulation::Journal, ..prototype },
        PredictorParameters { estimate_delay: true, lasting_grants: true, ..prototype },
    ] {
        for bad in [
            Bad::Greedy,
            Bad::NotNumbers,
            Bad::TooLong,
            Bad::WrongKind,
            Bad::WrongStep,
            Bad::Replayed,
            Bad::FromTheFuture,
            Bad::Absent,
        ] {
            let (granted, refused) = grants(parameters, bad);
            for honest in &granted[..2] {
                assert!(*honest >= 0.9 * CAPACITY / 3.0, "{parameters:?}, {bad:?}: {granted:?}");
            }
            let believed = matches!(bad, Bad::Greedy | Bad::Absent);
            assert_eq!(refused == 0, believed, "{bad:?}: {refused} refused");
        }
    }
}

#[test]
fn local_ends_of_circuits_use_no_capacity() {
    // Circuit 0 begins here, circuit 1 ends here, circuit 2 passes; all neighbours send and take as much as they can.
    for (local_ends, share) in [(false, 3.0), (true, 2.0)] {
        let parameters =
            PredictorParameters { local_ends, lasting_grants: true, ..PredictorParameters::default() };
        let mut planner = Planner::new(parameters, BYTES_PER_S);
        let mut plans = [[0.0; 10]; 3];
        for step in 1..80u64 {
            let (now, solved) = (Time(STEP.0 * step), Time(STEP.0 * (step - 1)));
            let mut hear = |circuit: u32, about, values: &[f64]| {
                let heard = Trajectory { circ: 0, about, solved, step: STEP, values };
                planner.receive(now, CircuitKey(circuit), about != About::Intake, &heard);
            };
            for circuit in [0, 2] {
                hear(circuit, About::Intake, &[1000.0; 10]);
            }
            for circuit in [1, 2] {
                hear(circuit, About::Output, &plans[circuit as usize]);
                hear(circuit, About::Queue, &[100.0; 10]);
            }
            planner.begin(0);
            for (circuit, queue) in [(0, 20.0), (1, 0.0), (2, 2.0)] {
                let circuit = CircuitKey(circuit);
                let source = if circuit.0 == 0 { Source::Server(f64::INFINITY) } else { Source::Relay };
                planner.add(now, &Measured { circuit, queue, source, to_client: circuit.0 == 1 });
            }
            planner.solve();
            for (row, plan) in plans.iter_mut().enumerate() {
                let intake = planner.plan(row).unwrap().intake;
                *plan = std::array::from_fn(|at| intake[(at + 2).min(9)]);
            }
        }
        let [begins, passes] = [0, 2].map(|row| planner.plan(row).unwrap().output[0]);
        let ends = planner.plan(1).unwrap().intake[0];
        for (what, rate) in [("begins", begins), ("ends", ends), ("passes", passes)] {
            let due = CAPACITY / share;
            assert!((rate - due).abs() <= 0.05 * due, "{local_ends}: the circuit that {what} has {rate}");
        }
    }
}

#[test]
fn claims_of_a_silent_predecessor_expire() {
    let mut planner = Planner::new(PredictorParameters::default(), BYTES_PER_S);
    let heard =
        Trajectory { circ: 0, about: About::Output, solved: Time(1), step: STEP, values: &[800.0; 10] };
    planner.receive(Time(1), CircuitKey(0), true, &heard);
    let measured = Measured { circuit: CircuitKey(0), queue: 0.0, source: Source::Relay, to_client: true };
    planner.begin(0);
    assert!(planner.add(Time(STEP.0), &measured), "a missing message is bridged");
    planner.begin(0);
    assert!(!planner.add(Time(STEP.0 * 30), &measured), "but not indefinitely");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever two neighbours send, rates stay within the capacity.
    #[test]
    fn no_message_breaks_the_controller(
        messages in proptest::collection::vec(
            (0..4usize, 0..4u32, any::<bool>(), any::<u64>(), proptest::collection::vec(any::<f64>(), 0..12)),
            0..40,
        ),
        queues in proptest::collection::vec(0.0..2000.0f64, 4),
        journal in any::<bool>(),
    ) {
        let problem = if journal { Formulation::Journal } else { Formulation::Prototype };
        let mut planner = Planner::new(PredictorParameters { problem, ..PredictorParameters::default() }, BYTES_PER_S);
        let kinds = [About::Intake, About::Output, About::Queue, About::Virtual];
        let now = Time(STEP.0 * 100);
        for (about, circuit, from_predecessor, solved, values) in &messages {
            let heard =
                Trajectory { circ: 0, about: kinds[*about], solved: Time(*solved), step: STEP, values };
            planner.receive(now, CircuitKey(*circuit), *from_predecessor, &heard);
        }
        planner.begin(0);
        for (circuit, queue) in (0..).zip(queues) {
            let source = if circuit == 0 { Source::Server(f64::INFINITY) } else { Source::Relay };
            let circuit = CircuitKey(circuit);
            planner.add(now, &Measured { circuit, queue, source, to_client: circuit.0 == 1 });
        }
        let n = planner.solve();
        for step in 0..10 {
            let plans = (0..n).map(|row| planner.plan(row).unwrap());
            let (intake, output) =
                plans.fold((0.0, 0.0), |sum, plan| (sum.0 + plan.intake[step], sum.1 + plan.output[step]));
            prop_assert!(intake <= CAPACITY + 1e-3 && output <= CAPACITY + 1e-3, "{intake} {output}");
        }
    }

    /// Garbage, and messages about unknown circuits, are counted and dropped.
    #[test]
    fn no_cell_brings_a_relay_down(bytes in proptest::collection::vec(any::<u8>(), 1..507)) {
        let config =
            Config { control: Arc::new(PredictorParameters::default()), bandwidth: 1e6, ..Config::default() };
        let mut relay = Relay::<Clear>::new(Clear::default(), config);
        let channel = relay.channel_accepted(None);
        let mut foreign = Vec::new();
        let values = &[1.0; 10];
        let heard = Trajectory { circ: 5, about: About::Intake, solved: Time(1), step: STEP, values };
        wire::write(&heard, &mut foreign);
        for body in [bytes, foreign] {
            let cell = Cell { circ: CircId(0), command: Command::Plan, body: Clear::from_plain(body) };
            relay.cell(Time(2), channel, cell);
        }
        prop_assert!(relay.control_totals().unwrap().refused >= 2);
        for _ in 0..20 {
            let due = relay.next_timeout().expect("it takes steps");
            relay.timeout(due);
            prop_assert!(relay.poll().is_none());
        }
    }
}
