//! A relay's plans: builds the optimal control problem of a step and solves it.
//!
//! The input is the relay's measurements and its neighbours' trajectories.

use super::exchange::{align, share_fixed, source};
use tidegate_control::predictor::{Formulation, Problem, Solution, Solver};
use tidegate_control::units::{Span, Time};

use super::beliefs::Beliefs;
use super::parameters::PredictorParameters;
use super::trajectory::{About, Trajectory};
use crate::ids::CircuitKey;

/// The origin of a circuit's cells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Source {
    /// A relay, which sends trajectories.
    Relay,
    /// A server, with an estimate of the remaining cells.
    Server(f64),
}

/// A relay's measurements of a circuit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measured {
    /// The circuit.
    pub circuit: CircuitKey,
    /// Its cells in the circuit queue and the output buffer.
    pub queue: f64,
    /// The origin of its cells.
    pub(crate) source: Source,
    /// The next node is the client, which accepts everything.
    pub to_client: bool,
}

/// The plan for one circuit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan<'a> {
    /// The circuit.
    pub circuit: CircuitKey,
    /// Rates in, cells/s, by step.
    pub intake: &'a [f64],
    /// Rates out.
    pub output: &'a [f64],
    /// Queue after each step for the successor, cells.
    pub queue: &'a [f64],
    /// Rates out without the successor's limit; empty in the prototype's problem.
    pub unhindered: &'a [f64],
}

/// Makes one relay's plans.
#[derive(Debug)]
pub(crate) struct Planner {
    parameters: PredictorParameters,
    beliefs: Beliefs,
    problem: Problem,
    solution: Solution,
    solver: Solver,
    /// Circuits in the order of the problem.
    rows: Vec<CircuitKey>,
    work: Vec<f64>,
}

impl Planner {
    /// A relay with this bandwidth, in bytes per second (infinite: no limit known).
    pub(crate) fn new(parameters: PredictorParameters, bytes_per_s: f64) -> Planner {
        let mut problem = Problem::new(parameters.problem, 0.0);
        problem.s_max = parameters.s_max;
        problem.scaling = parameters.scaling;
        problem.horizon = parameters.horizon;
        problem.fixed = parameters.fixed_steps();
        problem.dt = parameters.step.as_secs_f64();
        Planner {
            parameters,
            beliefs: Beliefs::new(parameters, bytes_per_s),
            problem,
            solution: Solution::default(),
            solver: Solver::new(),
            rows: Vec::new(),
            work: Vec::new(),
        }
    }

    /// Solves that ended in safe rates.
    pub(crate) fn fallbacks(&self) -> u64 {
        self.solver.fallbacks()
    }

    /// Forgets a circuit that is gone; its key may be reused.
    pub(crate) fn forget(&mut self, circuit: CircuitKey) {
        self.beliefs.forget(circuit);
    }

    /// Exchanges two circuits' successors.
    pub(crate) fn exchange(&mut self, a: CircuitKey, b: CircuitKey) {
        self.beliefs.exchange(a, b);
    }

    /// Stores a neighbour's trajectory; returns false if it is refused. `from_predecessor`: the neighbour sends
    /// us cells.
    pub(crate) fn receive(
        &mut self,
        now: Time,
        circuit: CircuitKey,
        from_predecessor: bool,
        told: &Trajectory<'_>,
    ) -> bool {
        self.beliefs.receive(now, circuit, from_predecessor, told)
    }

    /// Begins a new step; messages took `message_bytes` in the last one.
    pub(crate) fn begin(&mut self, message_bytes: u64) {
        self.problem.clear();
        self.rows.clear();
        let messages = message_bytes as f64 / 512.0 / self.problem.dt;
        self.problem.capacity = self.parameters.capacity_share * (self.beliefs.bandwidth - messages).max(0.0);
    }

    /// Adds a circuit to this step's problem. Returns false for an idle circuit, which is left out: its rates
    /// are zero.
    pub(crate) fn add(&mut self, now: Time, measured: &Measured) -> bool {
        let PredictorParameters { horizon, step, problem, local_ends, leave_out_idle, .. } = self.parameters;
        let index = self.beliefs.index(measured.circuit);
        let beliefs = &self.beliefs;
        let (most, full, dt) = (beliefs.longest_queue(), beliefs.bandwidth, self.problem.dt);
        let of = |about| beliefs.of(index, about);
        let steps = |span: f64| span / step.0 as f64;
        let since = |about| beliefs.age(now, index, about);
        let [onwards, hither] = beliefs.delays(index);
        let Problem { vmax, ssrc, vsrc, vvsrc, s0, first_hop, unbounded, .. } = &mut self.problem;
        let (row, end) = (vsrc.len(), vsrc.len() + horizon);
        vsrc.resize(end, 0.0);
        ssrc.resize(end, 0.0);
        let mut waiting = measured.queue;
        match measured.source {
            // Data on the same machine counts as queued.
            Source::Server(remaining) if local_ends => waiting += remaining.min(most),
            Source::Server(remaining) => {
                source(of(About::Output), remaining, most, dt, &mut vsrc[row..], &mut ssrc[row..]);
            }
            Source::Relay => {
                for (about, ours) in [(About::Output, &mut *vsrc), (About::Queue, &mut *ssrc)] {
                    if beliefs.holds(now, index, about) {
                        align(of(about), steps(since(about) - hither), &mut ours[row..]);
                    }
                }
            }
        }
        let idle = |values: &[f64]| values.iter().all(|value| *value <= 0.0);
        if leave_out_idle && waiting <= 0.0 && idle(&vsrc[row..]) && idle(&ssrc[row..]) {
            vsrc.truncate(row);
            ssrc.truncate(row);
            if measured.source != Source::Relay {
                self.beliefs.wish(measured.circuit, &[]);
            }
            return false;
        }
        let (at_server, at_client) = (measured.source != Source::Relay, measured.to_client);
        first_hop.push(at_server);
        unbounded.push(local_ends && (at_server || at_client));
        // Cells for the same machine need neither a queue nor a rate out.
        s0.push(if local_ends && at_client { 0.0 } else { waiting });
        vmax.resize(
            end,
            match (at_client, local_ends) {
                (true, true) => 0.0,
                (true, false) => f64::INFINITY,
                (false, _) => full,
            },
        );
        if !measured.to_client && !of(About::Intake).is_empty() {
            // The journal's equation 13 uses the last message's rates unshifted.
            let delay = if problem == Formulation::Journal { -onwards } else { onwards };
            align(of(About::Intake), steps(since(About::Intake) + delay), &mut vmax[row..]);
        }
        if problem == Formulation::Journal {
            vvsrc.resize(end, if measured.source == Source::Relay { 0.0 } else { f64::INFINITY });
            if measured.source == Source::Relay {
                let elapsed = steps(since(About::Virtual) - hither);
                align(of(About::Virtual), elapsed, &mut vvsrc[row..]);
            }
        }
        self.rows.push(measured.circuit);
        true
    }

    /// Solves for the circuits added and returns their number; then [`plan`](Self::plan) has the results.
    pub(crate) fn solve(&mut self) -> usize {
        let (horizon, n) = (self.parameters.horizon, self.rows.len());
        let Problem { vsrc, first_hop, fixed, capacity, s_max, .. } = &mut self.problem;
        let PredictorParameters { s_max_time, .. } = self.parameters;
        *s_max = self.parameters.s_max;
        if s_max_time > Span::ZERO {
            *s_max = s_max.max(*capacity * s_max_time.as_secs_f64() / n.max(1) as f64);
        }
        for step in 0..horizon.min(*fixed) {
            share_fixed(vsrc, horizon, step, *capacity, |i| !first_hop[i], &mut self.work);
        }
        let refusal = self.solver.solve(&self.problem, &mut self.solution);
        assert_eq!(refusal, Ok(()), "accepted trajectories make a sound problem");
        if self.parameters.tell_source {
            let Solution { s, d, .. } = &mut self.solution;
            for row in (0..n).filter(|row| self.problem.first_hop[*row]) {
                for step in 0..horizon {
                    let at = row * (horizon + 1) + step + 1;
                    s[at] += (self.problem.ssrc[row * horizon + step] - d[at]).max(0.0);
                }
            }
        }
        self.drain();
        for (row, circuit) in self.rows.iter().enumerate().filter(|(row, _)| self.problem.first_hop[*row]) {
            self.beliefs.wish(*circuit, &self.solution.v_in[row * horizon..(row + 1) * horizon]);
        }
        n
    }

    /// Number of circuits in this step's problem.
    pub(crate) fn circuits(&self) -> usize {
        self.rows.len()
    }

    /// Instead of solving: lets each circuit take and send as much as the relay carries.
    pub(crate) fn leave_to_windows(&mut self) {
        let (horizon, full) = (self.parameters.horizon, self.beliefs.bandwidth);
        let Solution { v_in, v_out, vv_out, s, .. } = &mut self.solution;
        vv_out.clear();
        for rates in [v_in, v_out] {
            rates.clear();
            rates.resize(self.rows.len() * horizon, full);
        }
        s.clear();
        s.extend(self.problem.s0.iter().flat_map(|queue| std::iter::repeat_n(*queue, horizon + 1)));
    }

    /// Lowers grants so that present queues drain. The problem alone keeps a transient's queue for ever, because both
    /// rates can be as high as the capacity.
    fn drain(&mut self) {
        let PredictorParameters { horizon, drain, .. } = self.parameters;
        if drain == Span::ZERO {
            return;
        }
        let grants = self.solution.v_in.chunks_mut(horizon);
        for (row, grants) in grants.enumerate().filter(|(row, _)| !self.problem.first_hop[*row]) {
            // One cell in transit does not count as a queue.
            let less = (self.problem.s0[row] - 1.0).max(0.0) / drain.as_secs_f64();
            for grant in grants {
                *grant = (*grant - less).max(0.0);
            }
        }
    }

    /// The plan for circuit number `row` of the last solve.
    pub(crate) fn plan(&self, row: usize) -> Option<Plan<'_>> {
        let horizon = self.parameters.horizon;
        let at = row * horizon..(row + 1) * horizon;
        let Solution { v_in, v_out, vv_out, s, .. } = &self.solution;
        Some(Plan {
            circuit: *self.rows.get(row)?,
            intake: &v_in[at.clone()],
            output: &v_out[at.clone()],
            queue: &s[row * (horizon + 1) + 1..][..horizon],
            unhindered: vv_out.get(at).unwrap_or(&[]),
        })
    }

    /// The plan for a circuit, if it was in the last solve. Callers ask for circuits in order and start with `row` = 0;
    /// circuits of the solve may have ended since.
    pub(crate) fn next_plan(&self, row: &mut usize, circuit: CircuitKey) -> Option<Plan<'_>> {
        while self.rows.get(*row).is_some_and(|other| *other < circuit) {
            *row += 1;
        }
        let plan = self.plan(*row).filter(|plan| plan.circuit == circuit);
        *row += usize::from(plan.is_some());
        plan
    }
}
