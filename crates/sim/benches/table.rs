//! One table: processor time per unit of work with its spread; a lower bound, from pushing and popping its events or
//! copying its memory alone; and published figures of other systems. `cargo bench -p tidegate-sim --bench table`

mod networks;

use std::hint::black_box;
use std::ops::ControlFlow;

use rustix::time::{ClockId, clock_gettime};
use tidegate_control::predictor::{Formulation, Problem, Solution, Solver};
use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_proto::registry::CONTROLS;
use tidegate_sim::observe::{Observation, Recorder};
use tidegate_sim::plan::{Plan, System};
use tidegate_sim::queue::Queue;
use tidegate_sim::world;

/// Bytes of an event and its time.
const FILED: usize = 24;

/// Processor time of this thread, ns.
fn used() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn timed(work: impl FnOnce()) -> f64 {
    let begin = used();
    work();
    used() - begin
}

/// Median of some numbers, and their relative spread.
fn middle(values: &mut [f64]) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let median = values[values.len() / 2];
    (median, (values[values.len() - 1] - values[0]) / median)
}

/// Duration of each measurement.
struct Effort {
    repeats: usize,
    full: bool,
}

impl Effort {
    fn size(&self, full: usize, smoke: usize) -> usize {
        if self.full { full } else { smoke }
    }

    fn lasts(&self, full_ms: u64, smoke_ms: u64) -> Span {
        Span::from_millis(if self.full { full_ms } else { smoke_ms })
    }

    fn times(&self, measure: impl Fn() -> f64) -> Vec<f64> {
        (0..self.repeats).map(|_| measure()).collect()
    }
}

/// Nanoseconds to copy a byte from one place in memory to another.
fn copy(bytes: usize) -> f64 {
    let (from, mut to) = (vec![1u8; bytes], vec![0u8; bytes]);
    let taken = timed(|| {
        for _ in 0..4 {
            black_box(&mut to).copy_from_slice(black_box(&from));
        }
    });
    taken / (4 * bytes) as f64
}

/// Nanoseconds to pop and push an event with this many pending, half of them soon, half late.
fn event(pending: usize, steps: usize) -> f64 {
    let mut draws = Seed::root(1).random();
    let delays: Vec<Span> = (0..1 << 16)
        .map(|draw| Span(draws.below(if draw % 2 == 0 { 400_000 } else { 90_000_000 }) as u64))
        .collect();
    let mut queue = Queue::new();
    for i in 0..pending {
        queue.push(Time::ZERO + delays[i & 0xffff], [i as u64; 2]);
    }
    let mut run = |steps: usize| {
        for step in 0..steps {
            let (now, event) = queue.pop().expect("the number pending is constant");
            queue.push(now + delays[step & 0xffff], black_box(event));
        }
    };
    run(pending);
    timed(|| run(steps)) / steps as f64
}

/// Peak of pending events.
#[derive(Default)]
struct Peak(u64);

impl Recorder for Peak {
    fn record(&mut self, _: Time, observation: &Observation) {
        if let Observation::RunTotals { peak_pending_events, .. } = observation {
            self.0 = *peak_pending_events;
        }
    }
}

/// Nanoseconds per delivered cell, events per cell, and most events pending.
fn cells(plan: &Plan, system: &System) -> (f64, f64, u64) {
    let (mut peak, mut figures) = (Peak::default(), (0.0, 0.0));
    let taken = timed(|| {
        let end = world::run(plan, system, Seed::root(1), &mut peak, &mut |_| ControlFlow::Continue(()));
        figures = (end.cells_delivered.max(1) as f64, end.events as f64);
    });
    (taken / figures.0, figures.1 / figures.0, peak.0)
}

/// Nanoseconds per solve of PredicTor's problem for this many circuits, each with a queue, a successor and a predecessor.
fn solves(circuits: usize, instances: u64) -> Vec<f64> {
    let mut solver = Solver::new();
    let solve = |index: u64| {
        let mut draws = Seed::root(1).fork("solve").fork_index(index).random();
        let mut problem = Problem::new(Formulation::Prototype, 830.0);
        let fair = problem.capacity / circuits as f64;
        for _ in 0..circuits {
            problem.s0.push(draws.uniform(0.0, 4.0) * fair * problem.dt);
            problem.first_hop.push(draws.chance(1.0 / 3.0));
            let (limit, plan, stock) =
                (draws.uniform(0.3, 3.0), draws.uniform(0.0, 1.0), draws.uniform(0.0, 20.0));
            for _ in 0..problem.horizon {
                problem.vmax.push(limit * fair);
                problem.vsrc.push(plan * fair);
                problem.ssrc.push(stock * fair * problem.dt);
            }
        }
        let mut solution = Solution::default();
        timed(|| solver.solve(&problem, &mut solution).expect("less than all is fixed"))
    };
    (0..instances).map(solve).collect()
}

fn row(work: &str, mut ours: Vec<f64>, bound: Option<f64>) {
    let (median, spread) = middle(&mut ours);
    let (bound, ratio) = bound
        .map_or(("-".into(), "-".into()), |bound| (format!("{bound:.1}"), format!("{:.1}", median / bound)));
    println!("{work:<46} {median:>12.1} {:>7.0} % {bound:>10} {ratio:>7}", 100.0 * spread);
}

fn main() {
    let full = networks::is_measured();
    let effort = Effort { repeats: if full { 5 } else { 1 }, full };
    println!("{:<46} {:>12} {:>9} {:>10} {:>7}", "work", "ours, ns", "spread", "bound, ns", "times");
    let megabyte = effort.times(|| 1e6 * copy(effort.size(64 << 20, 1 << 20)));
    let byte = middle(&mut megabyte.clone()).0 / 1e6;
    row("copying a megabyte", megabyte, None);
    let steps = effort.size(1_000_000, 10_000);
    for pending in [2_000, effort.size(100_000, 2_000), effort.size(1_000_000, 2_000)] {
        let ours = effort.times(|| event(pending, steps));
        row(&format!("an event, {pending} pending"), ours, Some(FILED as f64 * byte));
    }
    let vanilla = System::default();
    let predictor = CONTROLS.iter().find(|part| part.name == "predictor").expect("it is registered");
    let predictor = System { control: predictor.by_default(), ..System::default() };
    let second = |smoke| effort.lasts(smoke, 700);
    for (work, plan, system) in [
        ("a cell, 3 circuits", networks::bottleneck(second(60_000)), &vanilla),
        ("a cell, 7 relays, 10 clients", networks::own_links(None, second(10_000)), &vanilla),
        (
            "the same where relays have buckets",
            networks::own_links(Some(networks::LARGE_BUCKET), second(10_000)),
            &vanilla,
        ),
        ("a cell, 100 relays x 1,000 circuits", networks::random(100, 1_000, second(4_000)), &vanilla),
        ("the same under PredicTor", networks::random(100, 1_000, second(2_000)), &predictor),
        (
            "a cell, 1,000 relays x 20,000 circuits",
            networks::random(effort.size(1_000, 100) as u32, effort.size(20_000, 1_000), second(1_500)),
            &vanilla,
        ),
    ] {
        let (_, events, peak) = cells(&plan, system);
        let bound = events * event((peak as usize).max(1), steps);
        row(work, effort.times(|| cells(&plan, system).0), Some(bound));
    }
    let solved = solves(300, effort.size(101, 3) as u64);
    let worst = solved.iter().copied().fold(0.0, f64::max);
    row("PredicTor's problem, 300 circuits", solved, None);
    row("its worst of a hundred", vec![worst], None);
    println!();
    println!(
        "Peers publish no costs per event or cell. The whole of Tor took Shadow 3.9 TiB of memory and 8 days (2021)."
    );
}
