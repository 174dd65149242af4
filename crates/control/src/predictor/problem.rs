//! One relay's optimal control problem and its solution.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which optimal control problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Formulation {
    /// The problem of the public prototype of 2020.
    Prototype,
    /// The journal's problem (eq. 25), with virtual outgoing rates.
    Journal,
}

/// The weights of the objective, applied to quantities divided by [`Problem::scaling`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// Of the squared unused incoming rate.
    pub input: f64,
    /// Of the squared unused outgoing rate.
    pub output: f64,
    /// Of the squared unused virtual outgoing rate (journal only).
    pub virtual_output: f64,
    /// Of the squared deviation of the virtual outgoing rate from the real one (eq. 24; journal only).
    pub deviation: f64,
    /// Of each unit of queue above `s_max`.
    pub overflow: f64,
    /// Discount per step.
    pub discount: f64,
    /// Below which the discount does not fall.
    pub floor: f64,
}

impl Weights {
    /// The prototype's weights; for the journal's problem those chosen here, which the paper does not give.
    pub(crate) fn of(kind: Formulation) -> Weights {
        let (input, virtual_output, deviation) = match kind {
            Formulation::Prototype => (10.0, 0.0, 0.0),
            Formulation::Journal => (1.0, 0.1, 1e-3),
        };
        Weights {
            input,
            output: 1.0,
            virtual_output,
            deviation,
            overflow: 1e5,
            discount: 1.0 / 3.0,
            floor: 1e-6,
        }
    }

    /// Weights of the squared distance of each kind of rate from its goal. The deviation counts twice: half
    /// of it is each rate's distance to the middle of the two, so `2 d (a - m)^2 + 2 d (b - m)^2` is `d (a - b)^2`.
    pub(super) fn rates(&self) -> [f64; 3] {
        [self.input, self.output + 2.0 * self.deviation, self.virtual_output + 2.0 * self.deviation]
    }

    pub(super) fn discount(&self, step: usize) -> f64 {
        libm::pow(self.discount, step as f64).max(self.floor)
    }
}

/// One relay's problem at one instant.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Which problem.
    pub kind: Formulation,
    /// Weights of the objective.
    pub weights: Weights,
    /// Largest sum of the circuits' rates, per direction, cells/s.
    pub capacity: f64,
    /// Queue allowed per circuit, cells (soft).
    pub s_max: f64,
    /// Divisor of rates and queues in the objective.
    pub scaling: f64,
    /// Steps looked ahead, 1 to [`Problem::MAX_HORIZON`].
    pub horizon: usize,
    /// Length of a step, seconds.
    pub dt: f64,
    /// Queue of each circuit now, cells.
    pub s0: Vec<f64>,
    /// Largest outgoing rate per circuit and step, from the successor; infinite for none.
    pub vmax: Vec<f64>,
    /// Queue at the predecessor per circuit and step.
    pub ssrc: Vec<f64>,
    /// Outgoing rate the predecessor plans, per circuit and step.
    pub vsrc: Vec<f64>,
    /// Virtual outgoing rate of the predecessor (eq. 21), journal only; infinite for no limit.
    pub vvsrc: Vec<f64>,
    /// Whether the circuit's data enters the overlay at this relay: its first rates are then free.
    /// Elsewhere the predecessor fixes the first incoming rates (prototype).
    pub first_hop: Vec<bool>,
    /// Number of first steps in which the predecessor fixes the incoming rate (prototype).
    pub fixed: usize,
    /// Whether a circuit's queue is unbounded; `s_max` bounds circuits beyond the end of this list.
    pub unbounded: Vec<bool>,
}

/// The reason for refusing a problem.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// A single number is out of its range.
    Number {
        /// The field.
        field: &'static str,
        /// Its value.
        value: f64,
        /// The accepted values.
        want: &'static str,
    },
    /// An array has the wrong length.
    Length {
        /// The field.
        field: &'static str,
        /// Its length.
        length: usize,
        /// The right length.
        want: usize,
    },
    /// An element of an array is negative or not a number.
    Element {
        /// The field.
        field: &'static str,
        /// The circuit.
        circuit: usize,
        /// The step; 0 for arrays without steps.
        step: usize,
        /// Its value.
        value: f64,
    },
    /// The problem is infeasible: the fixed rates exceed the capacity.
    FixedRates {
        /// The step.
        step: usize,
        /// The sum of the fixed incoming rates, cells/s.
        sum: f64,
        /// The capacity, cells/s.
        capacity: f64,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Number { field, value, want } => write!(f, "`{field}` is {value}; give {want}"),
            Refusal::Length { field, length, want } => {
                write!(f, "`{field}` has {length} numbers; give {want}")
            }
            Refusal::Element { field, circuit, step, value } => {
                write!(f, "`{field}` of circuit {circuit}, step {step} is {value}; give a number, at least 0")
            }
            Refusal::FixedRates { step, sum, capacity } => write!(
                f,
                "infeasible: the incoming rates fixed in step {step} add up to {sum} cells/s, over the \
                 capacity of {capacity}; lower `vsrc`, raise `capacity`, or set `first_hop`"
            ),
        }
    }
}

impl std::error::Error for Refusal {}

impl Problem {
    /// The longest horizon.
    pub const MAX_HORIZON: usize = 64;

    /// A problem without circuits, with the prototype's horizon (10 steps of 40 ms), scaling (50), queue bound
    /// (100 cells) and two fixed steps.
    pub fn new(kind: Formulation, capacity: f64) -> Problem {
        Problem {
            kind,
            weights: Weights::of(kind),
            capacity,
            s_max: 100.0,
            scaling: 50.0,
            horizon: 10,
            dt: 0.04,
            s0: Vec::new(),
            vmax: Vec::new(),
            ssrc: Vec::new(),
            vsrc: Vec::new(),
            vvsrc: Vec::new(),
            first_hop: Vec::new(),
            fixed: 2,
            unbounded: Vec::new(),
        }
    }

    /// Number of circuits.
    pub fn circuits(&self) -> usize {
        self.s0.len()
    }

    /// Removes all circuits but keeps the memory.
    pub fn clear(&mut self) {
        self.s0.clear();
        self.vmax.clear();
        self.ssrc.clear();
        self.vsrc.clear();
        self.vvsrc.clear();
        self.first_hop.clear();
        self.unbounded.clear();
    }

    /// The (soft) bound of a circuit's queue, cells; infinite for none.
    pub fn queue_bound(&self, circuit: usize) -> f64 {
        if self.unbounded.get(circuit) == Some(&true) { f64::INFINITY } else { self.s_max }
    }

    /// Whether the problem fixes this circuit's incoming rate in this step to the predecessor's plan.
    pub(super) fn fixes(&self, circuit: usize, step: usize) -> bool {
        self.kind == Formulation::Prototype && step < self.fixed && !self.first_hop[circuit]
    }

    /// The sum of the incoming rates that are fixed in a step, cells/s.
    pub(super) fn fixed_sum(&self, step: usize) -> f64 {
        let fixed = (0..self.circuits()).filter(|&circuit| self.fixes(circuit, step));
        fixed.map(|circuit| self.vsrc[circuit * self.horizon + step]).sum()
    }

    /// Checks lengths, ranges and feasibility. Only fixed rates can make a problem infeasible, because zero is
    /// feasible for all others.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        let number = |field, value: f64, ok: bool, want| {
            if ok { Ok(()) } else { Err(Refusal::Number { field, value, want }) }
        };
        let finite = |value: f64| value.is_finite() && value >= 0.0;
        let positive = |value: f64| value.is_finite() && value > 0.0;
        number("capacity", self.capacity, finite(self.capacity), "a finite number, at least 0")?;
        number("s_max", self.s_max, finite(self.s_max), "a finite number, at least 0")?;
        number("scaling", self.scaling, positive(self.scaling), "a finite number above 0")?;
        number("dt", self.dt, positive(self.dt), "a finite number above 0")?;
        let horizon_ok = (1..=Self::MAX_HORIZON).contains(&self.horizon);
        number("horizon", self.horizon as f64, horizon_ok, "a whole number from 1 to 64")?;
        let weights = &self.weights;
        for (field, value) in [("weight of input", weights.input), ("weight of output", weights.output)] {
            number(field, value, positive(value), "a finite number above 0")?;
        }
        let discount_ok = positive(weights.discount) && weights.discount <= 1.0;
        number("discount", weights.discount, discount_ok, "a number above 0, at most 1")?;
        number("floor of the discount", weights.floor, positive(weights.floor), "a finite number above 0")?;
        number(
            "weight of overflow",
            weights.overflow,
            positive(weights.overflow),
            "a finite number above 0",
        )?;
        if self.kind == Formulation::Journal {
            let value = weights.virtual_output;
            number("weight of virtual output", value, positive(value), "a finite number above 0")?;
            let value = weights.deviation;
            number("weight of deviation", value, finite(value), "a finite number, at least 0")?;
        }
        let n = self.circuits();
        let length = |field, length, want| {
            if length == want { Ok(()) } else { Err(Refusal::Length { field, length, want }) }
        };
        length("first_hop", self.first_hop.len(), n)?;
        let journal = self.kind == Formulation::Journal;
        let stepped = [("vmax", &self.vmax, true), ("ssrc", &self.ssrc, false), ("vsrc", &self.vsrc, false)];
        for (field, values, _) in stepped {
            length(field, values.len(), n * self.horizon)?;
        }
        if journal {
            length("vvsrc", self.vvsrc.len(), n * self.horizon)?;
        }
        for (circuit, &value) in self.s0.iter().enumerate() {
            if !finite(value) {
                return Err(Refusal::Element { field: "s0", circuit, step: 0, value });
            }
        }
        let virtual_source = journal.then_some(("vvsrc", &self.vvsrc, true));
        for (field, values, may_be_infinite) in stepped.into_iter().chain(virtual_source) {
            for (index, &value) in values.iter().enumerate() {
                if value.is_nan() || value < 0.0 || value.is_infinite() && !may_be_infinite {
                    let (circuit, step) = (index / self.horizon, index % self.horizon);
                    return Err(Refusal::Element { field, circuit, step, value });
                }
            }
        }
        for step in 0..self.horizon.min(2) {
            let sum = self.fixed_sum(step);
            if sum > self.capacity * (1.0 + 1e-9) {
                return Err(Refusal::FixedRates { step, sum, capacity: self.capacity });
            }
        }
        Ok(())
    }

    /// Fills in queues and objective of a solution from its rates.
    pub(super) fn complete(&self, solution: &mut Solution) {
        let (n, steps) = (self.circuits(), self.horizon);
        let weights = &self.weights;
        let scaled = |rate: f64| (self.capacity - rate) / self.scaling;
        let discounts: [f64; Problem::MAX_HORIZON] =
            std::array::from_fn(|step| if step < steps { weights.discount(step) } else { 0.0 });
        let mut cost = 0.0;
        let mut overflow = 0.0;
        for circuit in 0..n {
            let mut queue = self.s0[circuit];
            let mut change = 0.0;
            for step in 0..=steps {
                let (at, state) = (circuit * steps + step, circuit * (steps + 1) + step);
                solution.s[state] = queue;
                solution.d[state] = change;
                solution.eps[state] = (queue - self.queue_bound(circuit)).max(0.0);
                overflow += solution.eps[state] / self.scaling;
                if step == steps {
                    break;
                }
                let (v_in, v_out) = (solution.v_in[at], solution.v_out[at]);
                let mut terms = weights.input * scaled(v_in).powi(2) + weights.output * scaled(v_out).powi(2);
                if self.kind == Formulation::Journal {
                    let virtual_out = solution.vv_out[at];
                    terms += weights.virtual_output * scaled(virtual_out).powi(2);
                    terms += weights.deviation * ((virtual_out - v_out) / self.scaling).powi(2);
                }
                cost += discounts[step] * terms;
                queue = (queue + self.dt * (v_in - v_out)).max(0.0);
                change += self.dt * (v_in - self.vsrc[at]);
            }
            if self.kind == Formulation::Journal {
                let mut queue = self.s0[circuit];
                for step in 0..steps {
                    let at = circuit * steps + step;
                    queue += self.dt * (solution.v_in[at] - solution.vv_out[at]);
                    overflow += (queue - self.queue_bound(circuit)).max(0.0) / self.scaling;
                }
            }
        }
        solution.objective = cost / (n.max(1) as f64) + weights.overflow * overflow;
    }
}

/// Rates and quantities that follow from them. Arrays are flat, circuit by circuit; `s`, `d`, `eps` have one more
/// entry per circuit than there are steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Solution {
    /// Value of the objective, in scaled quantities.
    pub objective: f64,
    /// Incoming rates, cells/s.
    pub v_in: Vec<f64>,
    /// Outgoing rates, cells/s.
    pub v_out: Vec<f64>,
    /// Virtual outgoing rates, cells/s (journal only, else empty).
    pub vv_out: Vec<f64>,
    /// Queues, cells.
    pub s: Vec<f64>,
    /// Change of the predecessor's queue against its plan by the incoming rates, cells.
    pub d: Vec<f64>,
    /// Queue above `s_max`, cells.
    pub eps: Vec<f64>,
    /// Iterations taken.
    pub iterations: u32,
    /// Distance from the optimum.
    pub residuals: Residuals,
    /// Whether these are the safe rates instead of the optimum: every free rate has its fair share, within
    /// queue, successor and predecessor.
    pub fallback: bool,
}

/// Distances from the optimality conditions, in units of the capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Residuals {
    /// Largest gradient of the dual function: the largest error of the rates' sums.
    pub dual: f64,
    /// Distance of slacks and multipliers from complementarity.
    pub complementarity: f64,
}
