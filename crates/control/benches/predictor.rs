//! PredicTor's solver: processor time and iterations per solve.
//!
//! Over the number of circuits on typical instances, and over families of hard ones.

use rustix::time::{ClockId, clock_gettime};
use tidegate_control::predictor::{Problem, Solution, Solver};

#[path = "../tests/hard/mod.rs"]
mod hard;

use hard::Family;

/// Instances per size of a median, and of each hard family.
const INSTANCES: u64 = 21;
const OF_A_FAMILY: u64 = 100;

fn used() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The median and the largest of some numbers.
fn middle_and_most(mut values: Vec<f64>) -> [f64; 2] {
    values.sort_by(f64::total_cmp);
    [values[values.len() / 2], values[values.len() - 1]]
}

/// Solves each problem `repeats` times with one solver, which reuses only its memory.
fn row(name: &str, repeats: usize, problems: &[Problem]) {
    let mut solution = Solution::default();
    let (mut times, mut iterations) = (Vec::new(), Vec::new());
    for problem in problems {
        let mut solver = Solver::new();
        let begin = used();
        for _ in 0..repeats {
            solver.solve(problem, &mut solution).expect("the instance is well formed");
        }
        times.push((used() - begin) * 1e3 / repeats as f64);
        iterations.push(f64::from(solution.iterations));
    }
    let ([time, longest], [count, most]) = (middle_and_most(times), middle_and_most(iterations));
    let circuits = problems[0].circuits();
    let each = time * 1e3 / circuits as f64;
    println!("{name:>10} {circuits:>6} {time:>10.3} {longest:>10.3} {each:>12.2} {count:>12} {most:>6}");
}

fn main() {
    // `cargo test` runs benches too, to check that they work; small problems suffice then.
    let is_measured = std::env::args().any(|argument| argument == "--bench");
    println!(
        "{:>10} {:>6} {:>10} {:>10} {:>12} {:>12} {:>6}",
        "family", "n", "ms", "at most", "us/circuit", "iterations", "at most"
    );
    let draw = |family: &Family, circuits: usize, count: u64| -> Vec<Problem> {
        (0..if is_measured { count } else { 1 }).map(|number| family.problem(circuits, number)).collect()
    };
    for family in Family::ALL {
        for circuits in [1, 3, 10, 30, 100, 1000, 3000].into_iter().filter(|n| is_measured || *n <= 30) {
            let repeats = if is_measured { (1000 / circuits).clamp(1, 50) } else { 1 };
            row(family.name, repeats, &draw(&family, circuits, INSTANCES));
        }
        if is_measured {
            row(family.name, 1, &draw(&family, 300, OF_A_FAMILY));
        }
    }
}
