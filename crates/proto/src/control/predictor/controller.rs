//! PredicTor's controller at one relay: turns measurements and messages into allowances of circuits.

use tidegate_control::predictor::Problem;
use tidegate_control::units::{Span, Time};

use super::adverts::Adverts;
use super::parameters::{EARLY, Exchange, Phases, PredictorParameters, Reads};
use super::planner::{Measured, Planner, Source};
use super::steps::{Due, Steps};
use super::trajectory::{About, Trajectory};
use super::wire;
use crate::cell::DATA_BYTES;
use crate::control::{
    Allowance, Control, Controller, Place, Plant, Route, Spread, Timer, Totals, Violation, Window,
};
use crate::ids::{CircId, CircuitKey, Side};

/// Bytes of a cell as the authors' code counts them.
const PLANNED_CELL: f64 = 512.0;
/// Tolerated number of successive solves that take longer than half a step.
const OVERRUNS: u32 = 3;
/// Steps without solves after that: one second, with steps of 40 ms.
const REST: u64 = 25;

/// A window without limit: only relays' allowances bound the cells in flight.
#[derive(Debug)]
struct Unbounded;

impl Window for Unbounded {
    fn room(&self) -> u32 {
        u32::MAX
    }
    fn sent(&mut self, _: Time) {}
    fn acknowledged(&mut self, _: Time, _: bool) -> Result<(), Violation> {
        Err(Violation)
    }
    fn sendme_increment(&self) -> u32 {
        u32::MAX
    }
}

impl Control for PredictorParameters {
    fn window(&self) -> Option<Box<dyn Window>> {
        (!self.windows).then(|| Box::new(Unbounded) as Box<dyn Window>)
    }

    fn controller(&self, relay: &Place) -> Option<Box<dyn Controller>> {
        Some(Box::new(Predictor {
            parameters: *self,
            planner: Planner::new(*self, relay.bandwidth),
            adverts: Adverts::new(self),
            steps: Steps::new(self, relay.clock),
            circuits: Vec::new(),
            values: Vec::new(),
            overhead: [0; 2],
            totals: Totals::default(),
            left_to_windows: false,
            solved: false,
            overruns: 0,
            rests_until: Time::ZERO,
        }))
    }

    fn spread(&self) -> Spread {
        Spread { random_phases: self.phases == Phases::Random, drift: self.drift }
    }

    fn message_step(&self) -> Option<Span> {
        Some(self.step)
    }
}

/// One relay's controller.
#[derive(Debug)]
struct Predictor {
    parameters: PredictorParameters,
    planner: Planner,
    adverts: Adverts,
    steps: Steps,
    /// Working memory: the relay's circuits, and values of messages.
    circuits: Vec<CircuitKey>,
    values: Vec<f64>,
    /// Bytes of messages sent and received since the last solve.
    overhead: [u64; 2],
    totals: Totals,
    /// Whether this step goes without plans, so that windows bound the circuits.
    left_to_windows: bool,
    /// Whether the last step was a solve.
    solved: bool,
    /// Number of successive solves that took too long.
    overruns: u32,
    /// Solves pause until then.
    rests_until: Time,
}

impl Controller for Predictor {
    fn first_allowance(&self) -> (f64, f64) {
        // The first cell need not wait for the next step.
        (1.0, 1.0)
    }

    fn next_step(&self) -> Option<Timer> {
        self.steps.next()
    }

    fn took(&mut self, now: Time, spent: Span) -> bool {
        let solved = std::mem::take(&mut self.solved);
        if solved {
            self.judge(now, spent);
        }
        solved
    }

    fn step(&mut self, now: Time, plant: &mut dyn Plant) {
        match self.steps.take(now) {
            Some(Due::Solve) => self.solve(now, plant),
            Some(Due::Act) => self.act(now, plant),
            Some(Due::Release(parts)) => {
                plant.release(now);
                self.steps.release_later(now, parts - 1);
            }
            Some(Due::Begin) | None => {}
        }
    }

    fn begun(&mut self, circuit: CircuitKey) {
        self.planner.forget(circuit);
        self.adverts.forget(circuit);
    }

    fn joined(&mut self, circuit: CircuitKey) {
        self.adverts.forget(circuit);
    }

    fn exchanged(&mut self, a: CircuitKey, b: CircuitKey) {
        self.planner.exchange(a, b);
        self.adverts.forget(a);
        self.adverts.forget(b);
    }

    fn receive(&mut self, now: Time, message: &[u8], find: &dyn Fn(CircId) -> Option<(CircuitKey, Side)>) {
        let (planner, mut refused) = (&mut self.planner, 0);
        let read = wire::read(message, (now, self.parameters.step), &mut self.values, |told| {
            let believed = find(CircId(told.circ))
                .is_some_and(|(circuit, side)| planner.receive(now, circuit, side == Side::Next, told));
            refused += u64::from(!believed);
        });
        refused += u64::from(read.is_err());
        self.totals.refused += refused;
        // Refused messages do not count; otherwise a noisy neighbour could use up our capacity on paper.
        if refused == 0 {
            self.overhead[1] += message.len() as u64;
        }
    }

    fn totals(&self) -> Option<Totals> {
        Some(Totals { fallbacks: self.planner.fallbacks(), ..self.totals })
    }
}

impl Predictor {
    /// Measures all circuits and solves for those that are not idle.
    fn solve(&mut self, now: Time, plant: &mut dyn Plant) {
        let PredictorParameters { exchange, windows, most_circuits, .. } = self.parameters;
        let PredictorParameters { solve_time: each, solve_time_per_circuit: per_circuit, .. } =
            self.parameters;
        let [sent, received] = std::mem::take(&mut self.overhead);
        self.planner.begin(if exchange == Exchange::InBand { sent.max(received) } else { 0 });
        plant.circuits(&mut self.circuits);
        for circuit in &self.circuits {
            let view = plant.view(*circuit);
            let source = match (view.enters, view.passes) {
                (true, _) => Source::Server(match self.parameters.reads {
                    Reads::Cells => plant.demand(*circuit),
                    Reads::Bytes => plant.announced(*circuit) / PLANNED_CELL,
                }),
                (false, true) => Source::Relay,
                (false, false) => Source::Server(0.0),
            };
            let (circuit, queue, to_client) = (*circuit, view.waiting, view.to_client);
            self.planner.add(now, &Measured { circuit, queue, source, to_client });
        }
        let circuits = self.planner.circuits();
        self.left_to_windows = windows && (circuits > most_circuits as usize || now < self.rests_until);
        let takes = if self.left_to_windows {
            self.planner.leave_to_windows();
            self.totals.left_to_windows += 1;
            Span::ZERO
        } else {
            self.planner.solve();
            self.solved = true;
            self.totals.solves += 1;
            self.totals.circuits += circuits as u64;
            let takes = each + per_circuit * circuits as u64;
            self.judge(now, takes);
            takes
        };
        self.steps.solved(now, takes);
        if takes == Span::ZERO {
            self.act(now, plant);
        }
    }

    /// Pauses solves if they are too slow.
    fn judge(&mut self, now: Time, took: Span) {
        let step = self.parameters.step;
        self.overruns = if took.0 > step.0 / 2 { self.overruns + 1 } else { 0 };
        if self.overruns == OVERRUNS {
            (self.overruns, self.rests_until) = (0, now + step * REST);
        }
    }

    /// Acts on the plans of the last solve: advertises them, then sets each circuit's allowance for this
    /// step.
    fn act(&mut self, now: Time, plant: &mut dyn Plant) {
        let PredictorParameters { step, carry, parts, tell_source, local_ends, reads, .. } = self.parameters;
        plant.circuits(&mut self.circuits);
        // Messages leave before this step's cells.
        self.advertise(now, plant);
        let dt = step.as_secs_f64();
        let mut row = 0;
        for circuit in &self.circuits {
            let plan = self.planner.next_plan(&mut row, *circuit);
            let view = plant.view(*circuit);
            // An idle circuit may send its first cell at once.
            let (send, share, take) = plan.map_or((1.0, 0.0, 1.0), |plan| {
                if self.left_to_windows {
                    return (f64::INFINITY, 0.0, f64::INFINITY);
                }
                if local_ends && view.to_client {
                    return (f64::INFINITY, 0.0, f64::INFINITY);
                }
                // The authors' bucket rounds up to whole bits; otherwise the rest of a queue would stay for ever.
                let bits = 8.0 * PLANNED_CELL;
                let send = match plan.output[0] * dt {
                    cells if carry => cells,
                    cells => libm::ceil(cells * bits) / bits,
                };
                // Cells from relays are already spread over the step.
                let share = if view.enters { send / f64::from(parts) } else { send };
                let take = match reads {
                    _ if local_ends => f64::INFINITY,
                    Reads::Cells => plan.intake[0] * dt,
                    Reads::Bytes => plan.intake[0] * dt * PLANNED_CELL / f64::from(DATA_BYTES),
                };
                (share, if share < send { share } else { 0.0 }, take)
            });
            // Keep the queue here short; data can wait at the server.
            let needed = plan.map_or(1.0, |plan| 2.0 * plan.output[0] * dt + 1.0) - view.waiting;
            let package = if (tell_source || local_ends) && !self.left_to_windows {
                take.min(needed.max(0.0))
            } else {
                take
            };
            let planned = plan.filter(|_| !self.left_to_windows).map(|plan| plan.output[0]);
            plant.allow(now, *circuit, &Allowance { send, share, package, planned, carry });
        }
        for row in 0.. {
            let Some(plan) = self.planner.plan(row) else { break };
            plant.resume(plan.circuit);
        }
        self.steps.release_later(now, parts - 1);
    }

    /// Advertises every circuit's plan: rates in to the predecessor, rates out and queue to the successor.
    fn advertise(&mut self, now: Time, plant: &mut dyn Plant) {
        const IDLE: [f64; Problem::MAX_HORIZON] = [0.0; Problem::MAX_HORIZON];
        let PredictorParameters { step, horizon, exchange, delay, .. } = self.parameters;
        let route = match exchange {
            Exchange::InBand => Route::InBand,
            Exchange::OutOfBand => Route::OutOfBand(Span(delay.0.saturating_sub(EARLY.0))),
        };
        let idle = &IDLE[..horizon];
        let adverts = &mut self.adverts;
        let (mut row, mut sent) = (0, 0);
        for circuit in &self.circuits {
            let plan = self.planner.next_plan(&mut row, *circuit);
            if !adverts.are_due(*circuit, plan.is_some()) {
                continue;
            }
            let [intake, output, queue, unhindered] = plan.map_or([idle, idle, idle, &[]], |plan| {
                [plan.intake, plan.output, plan.queue, plan.unhindered]
            });
            let about = [
                (Side::Next, About::Intake, intake),
                (Side::Prev, About::Output, output),
                (Side::Prev, About::Queue, queue),
                (Side::Prev, About::Virtual, unhindered),
            ];
            let flow = output.iter().fold(0.0, |most: f64, rate| most.max(*rate)) * step.as_secs_f64();
            let mut last = None;
            for (side, about, values) in about {
                if values.is_empty() || !plant.has_neighbour(*circuit, side) {
                    continue;
                }
                let Some(most) = adverts.prepare(now, *circuit, (about, flow), values) else { continue };
                sent += plant.advertise(now, (*circuit, side), most, route, &mut |circ, out| {
                    let trajectory = Trajectory { circ: circ.0, about, solved: now, step, values };
                    adverts.write(&trajectory, last == Some(side), out);
                });
                last = Some(side);
            }
        }
        sent += plant.send(now, route);
        self.overhead[0] += sent;
        self.totals.sent_bytes += sent;
    }
}
