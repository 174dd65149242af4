//! PredicTor at one relay (Döpmann et al. 2022): what its controller knows of its circuits, and what follows.
//!
//! Only the direction from exit to client is controlled, so a circuit's *predecessor* is the relay nearer to
//! the exit. Once per step the relay ([`crate::relay`]) says what it measured ([`Controller::begin`],
//! [`Controller::add`]), the controller solves ([`Controller::solve`]), and the relay acts: it lets each circuit
//! send so many cells in this step, and tells its neighbours the rest of the plan ([`wire`]).

mod compact;
mod delay;
mod steps;
mod telling;
pub mod wire;

use tidegate_control::predictor::exchange::{align, believe, last, share_fixed, source};
use tidegate_control::predictor::{Kind, Problem, Solution, Solver};
use tidegate_control::units::{Span, Time};

use super::Windows;
use crate::links::Clock;
use crate::node::CircuitKey;
use delay::Delay;
pub(crate) use steps::Due;
use steps::Steps;
pub(crate) use telling::Telling;
use wire::{About, Encoding, Heard};

/// PredicTor's parameters; the same at every relay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Tor's windows bound what a circuit has in flight, as ever.
    pub windows: Windows,
    /// Which optimal control problem.
    pub problem: Kind,
    /// Length of a step, and interval between solves (40 ms).
    pub step: Span,
    /// Steps looked ahead (10).
    pub horizon: usize,
    /// Share of a relay's bandwidth that its circuits may use (0.85).
    pub capacity_share: f64,
    /// Queue allowed per circuit, in cells (prototype: 100; soft),
    pub s_max: f64,
    /// or, if that is more, what a circuit sends in this time if all get the same (prototype: zero).
    pub s_max_time: Span,
    /// A circuit's queue is to drain in this time: its predecessor is granted so much less (prototype: zero,
    /// never).
    pub drain: Span,
    /// Where data enters the overlay, what the server has waiting counts as queue towards the successor.
    /// In the prototype only the relay's own queue does, which must then be long enough for a step.
    pub tell_source: bool,
    /// What rates and queues are divided by in the objective (50).
    pub scaling: f64,
    /// One-way delay between neighbours that plans are made for (40 ms).
    pub delay: Span,
    /// Whether `delay` is only the first belief, and each circuit's delays are estimated from the time stamps of
    /// its neighbours' messages; with shared clocks only.
    pub estimate_delay: bool,
    /// Whether servers are on the exits' machines and clients on the guards': what passes between them takes
    /// nothing of a relay's capacity. The prototype counts it all the same.
    pub local_ends: bool,
    /// Whether a successor's grants are taken to last ([`last`]); in the prototype they end with its plan.
    pub lasting_grants: bool,
    /// How neighbours' messages travel.
    pub exchange: Exchange,
    /// How they are written; any relay reads both.
    pub encoding: Encoding,
    /// The part of a cell that a step's rate leaves over may be sent in the next step; the prototype
    /// forgets it.
    pub carry: bool,
    /// Parts in which a step's cells are let go, spread evenly over it; the prototype lets all go at once.
    pub parts: u32,
    /// First solve, on each relay's clock (100 ms).
    pub first: Span,
    /// When in a step a relay solves.
    pub phases: Phases,
    /// Relays' clocks are fast or slow by up to this share, drawn per relay.
    pub drift: f64,
    /// Whose clock says when a message was made.
    pub clocks: Clocks,
    /// Time that a solve takes at a relay, and for each circuit in it; its results count from then on.
    pub solve_time: (Span, Span),
}

/// How neighbours' messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// As cells on the connection between the two.
    InBand,
    /// Past the network, in exactly [`Parameters::delay`], as in the authors' simulation.
    OutOfBand,
}

/// When in a step a relay solves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phases {
    /// All at the same instant.
    Synchronous,
    /// Each at its own, drawn uniformly.
    Random,
}

/// Whose clock says when a message was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// The sender's, believed within a few steps.
    Shared,
    /// Ours: when it arrived, less the delay that plans are made for.
    Own,
}

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters {
            windows: Windows::default(),
            problem: Kind::Prototype,
            step: Span::from_millis(40),
            horizon: 10,
            capacity_share: 0.85,
            s_max: 2.0,
            s_max_time: Span::from_millis(400),
            drain: Span::from_millis(120),
            tell_source: true,
            scaling: 50.0,
            delay: Span::from_millis(40),
            estimate_delay: false,
            local_ends: false,
            lasting_grants: true,
            exchange: Exchange::InBand,
            encoding: Encoding::Compact { resolution: 1.0 / 16.0 },
            carry: true,
            parts: 8,
            first: Span::from_millis(100),
            phases: Phases::Synchronous,
            drift: 0.0,
            clocks: Clocks::Shared,
            solve_time: (Span::ZERO, Span::ZERO),
        }
    }
}

/// Messages older than so many steps are not believed to be fresher, nor is a predecessor's plan believed for
/// longer than this after its last message.
const PATIENCE: u64 = 25;
/// The first steps of the prototype's plans are what the predecessor has fixed.
const FIXED: usize = 2;
/// Seconds' worth of a relay's bandwidth that a queue is believed to hold at most (prototype).
const BELIEVED_QUEUE: f64 = 60.0;
/// Bandwidth in cells per second where nothing limits a relay.
const UNLIMITED: f64 = 1e7;

/// Where a circuit's cells come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    /// A relay, which tells us.
    Relay,
    /// A server; so many cells are still to come, as far as can be told.
    Server(f64),
}

/// What a relay measures of a circuit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Which circuit.
    pub circuit: CircuitKey,
    /// Its cells in the circuit queue and the output buffer.
    pub queue: u32,
    /// Where its cells come from.
    pub source: Source,
    /// The next node is the client, which takes whatever comes.
    pub to_client: bool,
}

/// Counts of what a controller has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Problems solved.
    pub solves: u64,
    /// Circuits in them, summed.
    pub circuits: u64,
    /// Solves that ended in safe rates.
    pub fallbacks: u64,
    /// Trajectories refused: not numbers, too long, replayed, of the wrong kind or of no circuit of ours.
    pub refused: u64,
    /// Bytes of messages sent, cell headers included.
    pub sent_bytes: u64,
}

/// What is kept of a circuit between solves; its trajectories lie in `Controller::trajectories`.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// When what was heard was solved, by kind; zero if nothing was heard.
    solved: [Time; 4],
    /// The sender's own time of it, which must grow.
    stamps: [Time; 4],
    /// Values heard or wished, by kind; zero if none.
    lengths: [u16; 4],
    /// Neighbours have been told that nothing flows.
    quiet: bool,
    /// From the successor, and from the predecessor.
    delays: [Delay; 2],
}

/// One relay's controller.
#[derive(Debug)]
pub struct Controller {
    parameters: Parameters,
    /// Cells per second that the relay's link or bucket carries.
    bandwidth: f64,
    /// Message bytes sent or received since the last solve, the larger.
    overhead: [u64; 2],
    problem: Problem,
    solution: Solution,
    solver: Solver,
    /// Circuits in the order of the problem.
    rows: Vec<CircuitKey>,
    slots: Vec<Slot>,
    /// Four trajectories of `horizon` values per circuit, by [`About`]. At a circuit's first hop that of
    /// [`About::Output`] holds our own last wish.
    trajectories: Vec<f64>,
    telling: Telling,
    work: Vec<f64>,
    totals: Totals,
    steps: Steps,
}

/// The plan for one circuit.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// Which circuit.
    pub circuit: CircuitKey,
    /// Rates in, cells/s, by step.
    pub intake: &'a [f64],
    /// Rates out.
    pub output: &'a [f64],
    /// Queue after each step as the successor is told, cells.
    pub queue: &'a [f64],
    /// Rates out if it were not for the successor; empty in the prototype's problem.
    pub unhindered: &'a [f64],
}

impl Controller {
    /// A relay with this bandwidth, in bytes per second (infinite: no limit known), and this clock.
    pub fn new(parameters: Parameters, bytes_per_s: f64, clock: Clock) -> Controller {
        let mut problem = Problem::new(parameters.problem, 0.0);
        problem.s_max = parameters.s_max;
        problem.scaling = parameters.scaling;
        problem.horizon = parameters.horizon;
        problem.dt = parameters.step.as_secs_f64();
        Controller {
            parameters,
            // The prototype counts cells of 512 bytes.
            bandwidth: (bytes_per_s / 512.0).min(UNLIMITED),
            overhead: [0; 2],
            problem,
            solution: Solution::default(),
            solver: Solver::new(),
            rows: Vec::new(),
            slots: Vec::new(),
            trajectories: Vec::new(),
            telling: Telling::new(&parameters),
            work: Vec::new(),
            totals: Totals::default(),
            steps: Steps::new(&parameters, clock),
        }
    }

    /// The parameters.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// What was done so far.
    pub fn totals(&self) -> Totals {
        Totals { fallbacks: self.solver.fallbacks(), ..self.totals }
    }

    /// When the next thing is due.
    pub fn next_timeout(&self) -> Option<Time> {
        self.steps.next()
    }

    /// What is due by now.
    pub(crate) fn due(&mut self, now: Time) -> Option<Due> {
        self.steps.take(now)
    }

    /// So many circuits were solved for; true if the results count at once.
    pub(crate) fn solved(&mut self, now: Time, circuits: usize) -> bool {
        let (each, per_circuit) = self.parameters.solve_time;
        let takes = each + per_circuit * circuits as u64;
        self.steps.solved(now, takes);
        takes == Span::ZERO
    }

    /// So many parts of this step's cells are let go later.
    pub(crate) fn release_later(&mut self, now: Time, parts: u32) {
        self.steps.release_later(now, parts);
    }

    fn slot(&mut self, circuit: CircuitKey) -> (&mut Slot, &mut [f64]) {
        let (index, size) = (circuit.0 as usize, 4 * self.parameters.horizon);
        if self.slots.len() <= index {
            self.slots.resize(index + 1, Slot::default());
            self.trajectories.resize((index + 1) * size, 0.0);
        }
        (&mut self.slots[index], &mut self.trajectories[index * size..(index + 1) * size])
    }

    /// The circuit is gone; its number may be another's next.
    pub fn forget(&mut self, circuit: CircuitKey) {
        if let Some(slot) = self.slots.get_mut(circuit.0 as usize) {
            *slot = Slot::default();
        }
        self.telling.forget(circuit);
    }

    /// A neighbour of a circuit says something; `from_predecessor`: the one that sends us cells.
    pub fn hear(&mut self, now: Time, circuit: CircuitKey, from_predecessor: bool, heard: &Heard<'_>) {
        let Parameters { horizon, step, delay, clocks, problem, lasting_grants, .. } = self.parameters;
        let most = match heard.about {
            About::Queue => self.bandwidth * BELIEVED_QUEUE,
            _ => self.bandwidth,
        };
        let kind = heard.about as usize;
        let (slot, trajectories) = self.slot(circuit);
        let sound = from_predecessor == (heard.about != About::Intake)
            && (1..=horizon).contains(&heard.values.len())
            && heard.step == step
            // What was said before is not said again, nor more than once in a step.
            && (heard.solved.0 > slot.stamps[kind].0.saturating_add(step.0 / 2) || slot.lengths[kind] == 0)
            && heard.values.iter().all(|value| !value.is_nan());
        if !sound {
            self.totals.refused += 1;
            return;
        }
        let ours = &mut trajectories[kind * horizon..][..heard.values.len()];
        ours.copy_from_slice(heard.values);
        believe(ours, most);
        if lasting_grants && heard.about == About::Intake {
            last(ours, if problem == Kind::Prototype { FIXED } else { 0 });
        }
        slot.delays[usize::from(from_predecessor)].observe(now, now.since(heard.solved), step * PATIENCE);
        slot.lengths[kind] = heard.values.len() as u16;
        slot.stamps[kind] = heard.solved;
        let oldest = Time(now.0.saturating_sub((step * PATIENCE).0));
        slot.solved[kind] = match clocks {
            Clocks::Shared => heard.solved.clamp(oldest, now),
            Clocks::Own => Time(now.0.saturating_sub(delay.0)),
        };
    }

    /// Something came that is no message.
    pub fn refuse(&mut self) {
        self.totals.refused += 1;
    }

    /// Bytes of messages were sent, or received and believed: a neighbour that babbles must not make us think
    /// that nothing of our bandwidth is left.
    pub fn count_bytes(&mut self, sent: bool, bytes: u64) {
        self.overhead[usize::from(!sent)] += bytes;
        if sent {
            self.totals.sent_bytes += bytes;
        }
    }

    /// A new step begins.
    pub fn begin(&mut self) {
        self.problem.clear();
        self.rows.clear();
        let [sent, received] = std::mem::take(&mut self.overhead);
        let in_band = self.parameters.exchange == Exchange::InBand;
        let messages = if in_band { sent.max(received) as f64 / 512.0 / self.problem.dt } else { 0.0 };
        self.problem.capacity = self.parameters.capacity_share * (self.bandwidth - messages).max(0.0);
    }

    /// Adds a circuit to this step's problem. False if it has nothing to do, and so no part in it: its rates
    /// are zero.
    pub fn add(&mut self, now: Time, measured: &Measured) -> bool {
        let Parameters { horizon, step, delay, problem, local_ends, estimate_delay, .. } = self.parameters;
        let (most, dt) = (self.bandwidth * BELIEVED_QUEUE, self.problem.dt);
        let full = self.bandwidth;
        let index = measured.circuit.0 as usize;
        self.slot(measured.circuit);
        let (slot, heard) = (&self.slots[index], &self.trajectories[index * 4 * horizon..]);
        let of = |about: About| &heard[about as usize * horizon..][..slot.lengths[about as usize].into()];
        let steps = |span: f64| span / step.0 as f64;
        let [onwards, hither] = slot.delays.map(|estimate| {
            let believed = if estimate_delay { estimate.get(delay, step * horizon as u64) } else { delay };
            believed.0 as f64
        });
        let since = |about: About| now.since(slot.solved[about as usize]).0 as f64;
        let Problem { vmax, ssrc, vsrc, vvsrc, s0, first_hop, unbounded, .. } = &mut self.problem;
        let (row, end) = (vsrc.len(), vsrc.len() + horizon);
        vsrc.resize(end, 0.0);
        ssrc.resize(end, 0.0);
        let mut waiting = f64::from(measured.queue);
        match measured.source {
            // What is on the same machine is as good as in the queue.
            Source::Server(remaining) if local_ends => waiting += remaining.min(most),
            Source::Server(remaining) => {
                source(of(About::Output), remaining, most, dt, &mut vsrc[row..], &mut ssrc[row..]);
            }
            Source::Relay => {
                for (about, ours) in [(About::Output, &mut *vsrc), (About::Queue, &mut *ssrc)] {
                    if since(about) <= (step * PATIENCE).0 as f64 {
                        align(of(about), steps(since(about) - hither), &mut ours[row..]);
                    }
                }
            }
        }
        let idle = |values: &[f64]| values.iter().all(|value| *value <= 0.0);
        if waiting <= 0.0 && idle(&vsrc[row..]) && idle(&ssrc[row..]) {
            vsrc.truncate(row);
            ssrc.truncate(row);
            if measured.source != Source::Relay {
                self.slots[index].lengths[About::Output as usize] = 0;
            }
            return false;
        }
        let (at_server, at_client) = (measured.source != Source::Relay, measured.to_client);
        first_hop.push(at_server);
        unbounded.push(local_ends && (at_server || at_client));
        // A circuit whose cells go to the same machine has neither a queue nor a rate out to decide on.
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
            // The journal's eq. 13 takes the rates of the last message as they are.
            let delay = if problem == Kind::Journal { -onwards } else { onwards };
            align(of(About::Intake), steps(since(About::Intake) + delay), &mut vmax[row..]);
        }
        if problem == Kind::Journal {
            vvsrc.resize(end, if measured.source == Source::Relay { 0.0 } else { f64::INFINITY });
            if measured.source == Source::Relay {
                let elapsed = steps(since(About::Virtual) - hither);
                align(of(About::Virtual), elapsed, &mut vvsrc[row..]);
            }
        }
        self.rows.push(measured.circuit);
        true
    }

    /// Solves for the circuits added; their number. Then [`plan`](Self::plan) says what to do.
    pub fn solve(&mut self) -> usize {
        let (horizon, n) = (self.parameters.horizon, self.rows.len());
        let Problem { vsrc, first_hop, capacity, kind, s_max, .. } = &mut self.problem;
        let Parameters { s_max_time, .. } = self.parameters;
        *s_max = self.parameters.s_max;
        if s_max_time > Span::ZERO {
            *s_max = s_max.max(*capacity * s_max_time.as_secs_f64() / n.max(1) as f64);
        }
        if *kind == Kind::Prototype {
            for step in 0..horizon.min(FIXED) {
                share_fixed(vsrc, horizon, step, *capacity, |i| !first_hop[i], &mut self.work);
            }
        }
        let refusal = self.solver.solve(&self.problem, &mut self.solution);
        assert_eq!(refusal, Ok(()), "what is believed makes a sound problem");
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
        self.totals.solves += 1;
        self.totals.circuits += n as u64;
        for (row, circuit) in self.rows.iter().enumerate().filter(|(row, _)| self.problem.first_hop[*row]) {
            let index = circuit.0 as usize;
            let wish = &self.solution.v_in[row * horizon..(row + 1) * horizon];
            let at = (4 * index + About::Output as usize) * horizon;
            self.trajectories[at..at + horizon].copy_from_slice(wish);
            self.slots[index].lengths[About::Output as usize] = horizon as u16;
        }
        n
    }

    /// What waits already need not come: relays grant so much less that it drains. The problem alone lets a
    /// queue that a transient has left stand for ever, since both rates can be as high as the capacity.
    fn drain(&mut self) {
        let Parameters { horizon, drain, .. } = self.parameters;
        if drain == Span::ZERO {
            return;
        }
        let grants = self.solution.v_in.chunks_mut(horizon);
        for (row, grants) in grants.enumerate().filter(|(row, _)| !self.problem.first_hop[*row]) {
            // A cell on its way through is no queue.
            let less = (self.problem.s0[row] - 1.0).max(0.0) / drain.as_secs_f64();
            for grant in grants {
                *grant = (*grant - less).max(0.0);
            }
        }
    }

    /// The plan for the circuit that was number `row` of those that took part in the last solve.
    pub fn plan(&self, row: usize) -> Option<Plan<'_>> {
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

    /// The plan for a circuit, if it took part in the last solve. Circuits are asked for in order, and some that
    /// took part may have ended since; `row` goes along, from 0.
    pub(crate) fn next_plan(&self, row: &mut usize, circuit: CircuitKey) -> Option<Plan<'_>> {
        while self.rows.get(*row).is_some_and(|other| *other < circuit) {
            *row += 1;
        }
        let plan = self.plan(*row).filter(|plan| plan.circuit == circuit);
        *row += usize::from(plan.is_some());
        plan
    }

    /// Working memory to read messages into; give it back.
    pub(crate) fn take_values(&mut self) -> Vec<f64> {
        std::mem::take(&mut self.work)
    }

    pub(crate) fn return_values(&mut self, values: Vec<f64>) {
        self.work = values;
    }

    /// What writes messages; give it back.
    pub(crate) fn take_telling(&mut self) -> Telling {
        std::mem::take(&mut self.telling)
    }

    pub(crate) fn return_telling(&mut self, telling: Telling) {
        self.telling = telling;
    }

    /// The circuit has a new neighbour, who must be told as well.
    pub fn extended(&mut self, circuit: CircuitKey) {
        self.slot(circuit).0.quiet = false;
        self.telling.forget(circuit);
    }

    /// Whether there is something to tell a circuit's neighbours: its plan if it `flows`, else, once, that it
    /// does not. Without that they would take our silence for a wide open way.
    pub fn must_tell(&mut self, circuit: CircuitKey, flows: bool) -> bool {
        let quiet = std::mem::replace(&mut self.slot(circuit).0.quiet, !flows);
        flows || !quiet
    }
}
