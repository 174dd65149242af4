//! Four cells of the comparison with the kernel's TCP, at rates that a busy machine sustains.
//!
//! The whole grid: `cargo run -p tidegate-oracles --release --bin kernel-tcp`.

use crate::skipped;
use std::thread;
use std::time::Duration;

use tidegate_control::units::Span;
use tidegate_oracles::comparison::{Cell, Row};
use tidegate_oracles::kernel_tcp;
use tidegate_sim::tcp::Congestion;

/// Maximum lateness of the link; beyond, it does not match the conditions.
const TOO_LATE: Duration = Duration::from_millis(2);

/// The cells, and the allowed error of a test of a few seconds.
const CELLS: [(Cell, f64); 4] = [
    (Cell { congestion: Congestion::Reno, mbit_per_s: 5, delay_ms: 20, queue: 17, loss: 0.0 }, 0.05),
    (Cell { congestion: Congestion::Cubic, mbit_per_s: 5, delay_ms: 10, queue: 8, loss: 0.0 }, 0.05),
    (Cell { congestion: Congestion::Cubic, mbit_per_s: 10, delay_ms: 10, queue: 50, loss: 0.01 }, 0.25),
    (Cell { congestion: Congestion::Bbr, mbit_per_s: 10, delay_ms: 10, queue: 50, loss: 0.01 }, 0.05),
];

#[test]
fn the_model_matches_the_kernels_goodput() {
    if let Some(why) = kernel_tcp::unavailable() {
        skipped::skipped(&format!("TCP against the kernel's ({why})"), "root and /dev/net/tun");
        return;
    }
    let conditions = CELLS
        .map(|(cell, allowed)| (cell, allowed, cell.conditions(Span::from_secs(2), Span::from_secs(8), 1)));
    let (here, missing): (Vec<_>, Vec<_>) =
        conditions.into_iter().partition(|(_, _, conditions)| kernel_tcp::has(conditions.congestion));
    for (_, _, conditions) in missing {
        let name = conditions.congestion;
        skipped::skipped(
            &format!("TCP against the kernel's {name}"),
            &format!("the kernel's module for {name}"),
        );
    }
    let runs: Vec<_> = here
        .into_iter()
        .map(|(cell, allowed, conditions)| {
            (cell, allowed, conditions, thread::spawn(move || kernel_tcp::measure(&conditions)))
        })
        .collect();
    for (cell, allowed, conditions, run) in runs {
        let kernel = run.join().expect("a measurement").expect("namespaces are at hand");
        let row = Row { cell, kernel: vec![kernel], model: vec![cell.model(&conditions)] };
        println!(
            "{cell:?}: kernel {:.2} Mbit/s, model {:.2}, late {:?}",
            row.kernel_mbit_per_s(),
            row.model_mbit_per_s(),
            kernel.late
        );
        if kernel.late > TOO_LATE {
            println!("not judged: the machine was too busy to be a link");
            continue;
        }
        assert!(row.error().abs() <= allowed, "{cell:?}: error {:.3}, allowed {allowed}", row.error());
    }
}
