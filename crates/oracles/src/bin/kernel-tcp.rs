//! Measures the kernel's TCP and the model over the grid; prints the table of experiments/kernel-tcp/README.md.
//!
//! Usage: `kernel-tcp [rows [seconds [seeds]]]`: rows of the grid (`all`, `3`, `0-9`), seconds of the steady window,
//! runs with different random losses.

use std::process::ExitCode;
use std::thread;

use tidegate_control::units::Span;
use tidegate_oracles::comparison::{Cell, Row, grid};
use tidegate_oracles::kernel_tcp;

/// Excluded from the measurement: slow start and its effects.
const WARM_UP_S: u64 = 6;
/// Total rate of concurrent runs. A run at 10 Mbit/s needs a twentieth of a core.
const AT_ONCE_MBIT_PER_S: u64 = 40;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, default: u64| match arguments.get(place) {
        Some(text) => text.parse::<u64>().map_err(|e| format!("`{text}`: {e}")),
        None => Ok(default),
    };
    let rows = arguments.first().map_or("all", String::as_str);
    let run = || -> Result<(), String> {
        let (seconds, seeds) = (number(1, 40)?, number(2, 4)?);
        if let Some(why) = kernel_tcp::unavailable() {
            return Err(why);
        }
        let cells = choose(rows, &grid())?;
        table(&cells, seconds, seeds).map_err(|e| e.to_string())
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("kernel-tcp: {why}");
            ExitCode::FAILURE
        }
    }
}

fn choose(rows: &str, cells: &[Cell]) -> Result<Vec<Cell>, String> {
    if rows == "all" {
        return Ok(cells.to_vec());
    }
    let (first, last) = rows.split_once('-').unwrap_or((rows, rows));
    let place = |text: &str| text.parse::<usize>().map_err(|e| format!("row `{text}`: {e}"));
    let chosen = cells.get(place(first)?..=place(last)?);
    Ok(chosen.ok_or_else(|| format!("there are {} rows, counted from 0", cells.len()))?.to_vec())
}

fn table(cells: &[Cell], seconds: u64, seeds: u64) -> std::io::Result<()> {
    println!(
        "| algorithm | Mbit/s | delay, ms | queue | loss | runs | kernel, Mbit/s | model, Mbit/s | error, % | dropped, kernel | model | late p99, us |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    let (from, until) = (Span::from_secs(WARM_UP_S), Span::from_secs(WARM_UP_S + seconds));
    let mut errors = Vec::new();
    for cell in cells {
        let runs = if cell.loss > 0.0 { seeds } else { 1 };
        let conditions: Vec<_> = (0..runs).map(|seed| cell.conditions(from, until, seed)).collect();
        let at_once = (AT_ONCE_MBIT_PER_S / cell.mbit_per_s).max(1) as usize;
        let mut kernel = Vec::new();
        for batch in conditions.chunks(at_once) {
            let threads: Vec<_> = batch
                .iter()
                .map(|conditions| {
                    let conditions = *conditions;
                    thread::spawn(move || kernel_tcp::measure(&conditions))
                })
                .collect();
            for thread in threads {
                kernel.push(thread.join().expect("a measurement")?);
            }
        }
        let model = conditions.iter().map(|conditions| cell.model(conditions)).collect();
        let row = Row { cell: *cell, kernel, model };
        let late = row.kernel.iter().map(|run| run.late).max().unwrap_or_default();
        println!(
            "| {:?} | {} | {} | {} | {} | {runs} | {:.2} | {:.2} | {:+.1} | {} | {} | {} |",
            cell.congestion,
            cell.mbit_per_s,
            cell.delay_ms,
            cell.queue,
            cell.loss,
            row.kernel_mbit_per_s(),
            row.model_mbit_per_s(),
            100.0 * row.error(),
            row.kernel.iter().map(|run| run.dropped).sum::<u64>(),
            row.model.iter().map(|run| run.1).sum::<u64>(),
            late.as_micros()
        );
        errors.push(row.error().abs());
    }
    errors.sort_by(f64::total_cmp);
    let median = errors[errors.len() / 2];
    println!("\nmedian error {:.1} %, largest {:.1} %", 100.0 * median, 100.0 * errors[errors.len() - 1]);
    Ok(())
}
